"""SLURM: writes the work as an array job; the same command gathers the results when the job is done."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from evergraph.errors import EvergraphError, first_line
from evergraph.experiments.engines.base import Engine, Work, passed_on
from evergraph.experiments.engines.processes import begin_process
from evergraph.experiments.specification import RunSpec
from evergraph.persistence.files import make_folder, remove_file, write_atomically
from evergraph.persistence.reading import read_json
from evergraph.training import Training

SCRIPT, TASKS = "array.sh", "tasks.json"
FOLDER = "slurm"  # beside the runs


class Listed(TypedDict):
    """A task of the array, as stored in `tasks.json`."""

    key: str
    spec: dict[str, Any]
    folder: str
    seed: int
    data_root: str | None
    shared: str | None


class ArrayWrittenError(Exception):
    """Not an error: the array job was written and has to run before there are results to gather."""


class SlurmEngine(Engine):
    """An array job with a task for each unfinished seed.

    Args:
        folder: folder of the job, with its script, tasks and output.
        jobs: tasks at a time; SLURM decides by default.
    """

    attempts = 1  # a failed task is part of the next array

    def __init__(self, folder: Path, jobs: int | None = None) -> None:
        self.folder, self.jobs = folder.absolute(), jobs
        self._done: list[Work] = []
        self._left: list[Work] = []

    def submit(self, work: Work) -> None:
        """Queue a seed for the array; a finished one is only gathered."""
        (self._done if work.is_done() else self._left).append(work)

    def wait(self) -> list[tuple[Work, Exception | None]]:
        """Return the finished work; if there is none, write the array of what is left and raise `ArrayWrittenError`."""
        if not self._done:
            raise ArrayWrittenError(self._write())
        done, self._done = self._done, []
        return [(work, None) for work in done]

    def _write(self) -> str:
        failed = self._failed()
        make_folder(self.folder)
        for old in self.folder.glob("*.failed"):
            remove_file(old)
        tasks = [
            {**asdict(work), "folder": str(Path(work.folder).absolute()), "spec": asdict(work.spec)}
            | {"shared": str(Path(work.shared).absolute()) if work.shared else None}
            for work in self._left
        ]
        write_atomically(self.folder / TASKS, json.dumps(tasks, indent=1))
        write_atomically(self.folder / SCRIPT, self._script(len(tasks)))
        named = "".join(f"\nfailed before, tried again: {key} ({why})" for key, why in failed.items())
        return (
            f"{len(tasks)} runs are left; submit them with: sbatch {shlex.quote(str(self.folder / SCRIPT))}\n"
            f"when they are done, the same command with --resume gathers the results{named}"
        )

    def _script(self, tasks: int) -> str:
        at_once = f"%{self.jobs}" if self.jobs else ""
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in passed_on().items())
        gpu = "#SBATCH --gpus-per-task=1\n" if any(work.spec.device.startswith("cuda") for work in self._left) else ""
        command = shlex.join([sys.executable, "-m", "evergraph", "work", str(self.folder / TASKS)])
        return (
            "#!/bin/bash\n# Add what your cluster asks for: --partition, --time, --mem, --account.\n"
            f"#SBATCH --job-name=evergraph\n#SBATCH --array=0-{tasks - 1}{at_once}\n#SBATCH --ntasks=1\n"
            f"#SBATCH --cpus-per-task=1\n{gpu}#SBATCH --output={self.folder}/%a.log\n"
            f'{exports}\nexec {command} "$SLURM_ARRAY_TASK_ID"\n'
        )

    def _failed(self) -> dict[str, str]:
        """Error messages of the previous array's failed tasks, by run and seed."""
        if not (self.folder / TASKS).exists():
            return {}
        tasks = read_json(self.folder / TASKS, list[Listed])
        files = {number: self.folder / f"{number}.failed" for number in range(len(tasks))}
        return {
            f"{tasks[number]['key']}, seed {tasks[number]['seed']}": file.read_text(encoding="utf-8").strip()
            for number, file in files.items()
            if file.exists()
        }


def work_on(tasks: Path, number: int) -> None:
    """Run a task of the array: one seed, into the run's folder; a failure is also written beside the tasks."""
    listed = read_json(tasks, list[Listed])
    if not 0 <= number < len(listed):
        raise EvergraphError(f"{tasks} has tasks 0 to {len(listed) - 1}, not {number}")
    task, failure = listed[number], tasks.parent / f"{number}.failed"
    begin_process()
    settings = {**task["spec"], "training": Training(**task["spec"]["training"])}
    try:
        Work(task["key"], RunSpec(**settings), task["folder"], task["seed"], task["data_root"], task["shared"]).do()
    except Exception as error:
        write_atomically(failure, first_line(error) if isinstance(error, EvergraphError) else repr(error)[:200])
        raise
    remove_file(failure)
