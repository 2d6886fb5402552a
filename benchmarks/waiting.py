"""Seconds of training with threads that wait as GNU's OpenMP library has them by default, and as Evergraph has them.

    python -m benchmarks.waiting            # on a quiet machine
    python -m benchmarks.waiting --busy 2   # beside two programs that compute all the time

Each line is one process with two threads, by turns: `auto` on digits, and a GCN on digits, 40 full-batch epochs a task.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from evergraph.program import SPINS

DEFAULT, BRIEF = "300000", "1000"  # spins of the library itself, and of Evergraph
TIMED = """
import time
import evergraph as eg
import torch
torch.set_num_threads(2)
stream = eg.stream("digits")
eg.Learner("auto").fit(stream.first(1))  # imports, allocates and fills caches
for make in (lambda: eg.Learner("auto"), lambda: eg.Learner(eg.GCN(hidden=256), epochs=40)):
    began = time.perf_counter()
    make().fit(stream)
    print(f"{time.perf_counter() - began:.2f}", end=" ")
"""
BUSY = "while True: sum(range(100_000))"


def main(arguments: list[str] | None = None) -> None:
    """Print the seconds of each process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--busy", type=int, default=0, help="programs that compute all the time")
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args(arguments)
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(asked.busy)]
    try:
        time.sleep(1)
        for _ in range(asked.times):
            for spins in (DEFAULT, BRIEF):
                environment = {**os.environ, SPINS: spins}
                found = subprocess.run([sys.executable, "-c", TIMED], env=environment, capture_output=True, text=True)
                print(f"{spins:>6} spins: auto, GCN: {found.stdout or found.stderr} s", flush=True)
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
