"""Peak memory of a whole run, measured in a separate process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from evergraph.errors import EvergraphError


def resident_megabytes(root: str | Path | None, epochs: int, threads: int) -> float:
    """Largest resident memory, in MB, of a process that learns and tests all five tasks of Coauthor-CS."""
    code = "from benchmarks.resident import main; main()"
    command = [sys.executable, "-c", code, str(root or ""), str(epochs), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), check=False)
    if done.returncode:
        raise EvergraphError(f"bench: the memory run failed ({(done.stderr.strip().splitlines() or ['?'])[-1][:120]})")
    return float(done.stdout.split()[-1])


def child_environment() -> dict[str, str]:
    """Environment variables with which a process can import this package, whatever folder it is started in."""
    root = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def peak_megabytes() -> float:
    """Largest resident memory of this process so far, in MB.

    On Linux the kernel's own count is read, since `ru_maxrss` of a child process starts at its parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = [line.split() for line in status.read_text().splitlines()]
        return next(int(line[1]) for line in lines if line[0] == "VmHWM:") / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)  # bytes on macOS, else kilobytes


class Peak(threading.Thread):
    """Largest resident memory of this process while the context is open, sampled a hundred times a second.

    Shared memory counts once: each of `sharers` processes has an equal part of it. (Linux's own count of the peak
    includes all of it for each process.) On other systems it is the peak so far.
    """

    def __init__(self, sharers: int = 1) -> None:
        super().__init__(daemon=True)
        self.megabytes, self.seconds = 0.0, 0.0  # the peak, and the processor time spent on sampling
        self._sharers, self._end = sharers, threading.Event()

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        """Sample until closed, at least once."""
        while True:
            self.megabytes, self.seconds = max(self.megabytes, self._now()), time.thread_time()
            if self._end.wait(0.01):
                return

    def _now(self) -> float:
        try:
            with open("/proc/self/status", encoding="ascii", errors="ignore") as status:
                kilobytes = {line[3:8]: int(line.split()[1]) for line in status if line.startswith("Rss")}
            return (kilobytes["Anon:"] + kilobytes["File:"] + kilobytes["Shmem"] / self._sharers) / 1024
        except (OSError, KeyError):
            return peak_megabytes()


def main() -> None:
    """Run the child process and print its peak."""
    import torch

    from benchmarks.setting import coauthor
    from evergraph.data.streams import TaskStream
    from evergraph.methods import OnlineCurvature
    from evergraph.models.gcn import GCN
    from evergraph.training.learner import Learner

    root, epochs, threads = sys.argv[1] or None, int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    stream = TaskStream(coauthor(root)[0], 3)
    learner = Learner(GCN(), OnlineCurvature(), epochs=epochs, device="cpu")
    for task in stream:
        learner.learn(task)
        learner.evaluate(stream)
    print(peak_megabytes())
