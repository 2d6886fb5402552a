"""One command in several processes, started by torchrun or `--processes`. Only the first one prints and writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from evergraph.core.workers import GO_ON, join_workers, launched
from evergraph.errors import EvergraphError

Processes = Annotated[
    int, typer.Option(help="Processes on this machine that share every step; use torchrun for several machines.", min=1)
]
TOGETHER = ("run", "learn", "predict")  # commands that several processes can run together
PARENT = "EVERGRAPH_PARENT"  # the process that started this one
GRACE = 10.0  # seconds that processes have to exit by themselves when one of them has failed


def quiet_unless_first(words: list[str]) -> None:
    """Silence all but the first of several processes; raise for commands that they cannot run together."""
    if launched() == 1:
        return
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in TOGETHER:
        raise EvergraphError(f"{command or 'this'} is not for torchrun; {', '.join(TOGETHER)} are")
    if os.environ.get("RANK") != "0":
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    if PARENT in os.environ:
        threading.Thread(target=_end_with_parent, args=(int(os.environ[PARENT]),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def shared_folder(folder: Path) -> Iterator[Path]:
    """A folder that all processes find in the same state; the first one writes to it, the others to a temporary copy.

    The processes need no common file system.
    """
    group = join_workers()
    if group.size == 1:
        yield folder
        return
    files = group.everywhere(_content(folder) if group.rank == 0 else None)
    if group.rank == 0:
        yield folder
        group.barrier()
        return
    with tempfile.TemporaryDirectory(prefix="evergraph-") as scratch:
        copy = Path(scratch) / "copy"
        for name, content in files.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
        yield copy
        group.barrier()


def _content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def launch(processes: int) -> int:
    """Run this command in several processes on this machine and return the exit status. A failure prints one line."""
    from torch.distributed import TCPStore

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # this process holds the store, so that the others can report a failure whichever of them is gone
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", PARENT: str(os.getpid())}
    shared |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    command = [sys.executable, "-m", "evergraph", *sys.argv[1:]]
    running = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    try:
        while all(process.poll() in (None, 0) for process in running):
            if all(process.poll() == 0 for process in running):
                return 0
            time.sleep(0.05)
        _wait(running, GRACE)
    except KeyboardInterrupt:
        _wait(running, GRACE)  # they received it too, and the first prints how to continue
        return 130
    finally:
        for process in running:
            process.kill()
            process.wait()
    rank, status = next((rank, process.returncode) for rank, process in enumerate(running) if process.returncode)
    if store.add("evergraph/failed", 1) == 1:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        print(f"error: process {rank} {how}; {GO_ON}", file=sys.stderr)
    return max(status, 2)


def _wait(running: list[subprocess.Popen[bytes]], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in running):
        time.sleep(0.05)
