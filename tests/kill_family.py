"""Runs and kills a family of real processes; `test_resume.py` starts it.

One process forks children that each go on with the same run until they are
killed (SIGKILL) at a random moment. Prints one JSON object: how many were killed, and whether every run
ended in the very matrices of one that was never stopped.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import torch

from evergraph.experiments.run import run
from evergraph.experiments.specification import RunSpec
from evergraph.training import Training, driver

STREAM = "sbm:nodes=240,classes=6,features=12,signal=3"
CASES = [
    ("curvature", {"estimator": "queue", "queue_size": 6}, {}, {}),
    ("si+ema", {}, {"dropout": 0.3}, {"fan_out": (3, 3)}),
    ("joint", {}, {}, {"patience": 2, "class_balanced": True}),
    ("puma+ewc", {"per_class": 3, "networks": 20}, {}, {}),  # most of its time it condenses
    ("delome", {"memory": "1KB", "networks": 40}, {}, {}),
]


def spec(case) -> RunSpec:
    method, settings, model, training = case
    return RunSpec(
        source=STREAM,
        method=method,
        settings=settings,
        model_settings={"hidden": 16, **model},
        training=Training(**{"epochs": 4, "batch_size": 32, **training}),
        seeds=[0, 1],
        device="cpu",
    )


def in_child(case, folder: Path) -> int:
    """Go on with the run in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run(spec(case), folder, resume=True)
        status = 0
    finally:
        os._exit(status)


def matrices(folder: Path):
    result = json.loads((folder / "result.json").read_text())
    logs = [(folder / f"seed-{seed}" / "log.csv").read_text() for seed in result["seeds"]]
    return result["matrices"], result["validation"], logs


def wanted_file(path: Path) -> bool:
    """What a finished run's folder may hold; a process killed after the result was written may leave its locks."""
    written = {"run.json", "result.json", "matrix.json", "log.csv"}
    return path.name in written | {".lock", ".turn"} or path.name.startswith("seed-")


def main(root: Path, wanted: int, cases: list) -> None:
    torch.set_num_threads(1)
    driver.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every epoch: there is always one being written
    chance = random.Random(time.time_ns())
    run(spec(CASES[0]), root / "warm")  # what torch imports late is imported before the first fork
    kills, rounds, equal, left, failed = 0, 0, [], [], 0
    while kills < wanted or rounds < len(cases):
        case = cases[rounds % len(cases)]
        unbroken, folder = root / f"unbroken-{rounds % len(cases)}", root / f"killed-{rounds}"
        if not unbroken.exists():
            began = time.monotonic()
            os.waitpid(in_child(case, unbroken), 0)
            whole = time.monotonic() - began
        while not (folder / "result.json").exists():
            child = in_child(case, folder)
            enough = kills >= wanted * (rounds + 1) / len(cases)
            patience = time.monotonic() + (600 if enough else chance.uniform(0, 0.5) * whole)
            done = 0
            while time.monotonic() < patience and not done:
                done, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if not done:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                kills += 1
            elif os.WEXITSTATUS(status):
                failed += 1
                break
        equal.append(not failed and matrices(folder) == matrices(unbroken))
        left += [str(path.relative_to(folder)) for path in folder.rglob("*") if not wanted_file(path)]
        rounds += 1
    print(json.dumps({"kills": kills, "rounds": rounds, "equal": equal, "left": left, "failed": failed}))
