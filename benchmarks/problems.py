"""The tables of docs/problems.md: on each real set eight methods, three seeds, settings chosen alike by `first-tasks`.

One `evergraph compare` for each table, as the page lists them; what is finished is not run again:

    python -m benchmarks.problems --data-root DATA --jobs 14
    python -m benchmarks.problems enzymes bitcoin-otc-time --data-root DATA
    python -m benchmarks.problems --print
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

METHODS = ("finetune", "ewc", "mas", "lwf", "curvature", "reservoir")
ALIKE = "--tune first-tasks --trials 10 --label-scope seen"
NODES = "--hidden 64 --epochs 100 --batch-size 0 --set auto.hidden=5120"
BOTH = f"{NODES} --test-graph task,seen"
GRAPHS = "--model gin --hidden 64 --epochs 50 --set analytic.model=random-features --set analytic.hidden=640"
LINKS = "--hidden 32 --epochs 10 --batch-size 512 --metric balanced-accuracy --set analytic.hidden=640"
TABLES: dict[str, tuple[str, str, str]] = {
    "chameleon-filtered": ("chameleon-filtered", "auto", BOTH),
    "squirrel-filtered": ("squirrel-filtered", "auto", BOTH),
    "actor": ("actor", "auto", BOTH),
    "blogcatalog": ("blogcatalog", "auto", BOTH),
    "twitch": ("twitch", "auto", NODES),
    "letter-med": ("letter-med", "analytic", GRAPHS),
    "enzymes": ("enzymes", "analytic", GRAPHS),
    "bitcoin-otc": ("bitcoin-otc", "analytic", LINKS),
    "bitcoin-otc-time": ("bitcoin-otc --scenario time", "analytic", LINKS),
}
"""By name: the stream, its closed form, and how its models are trained."""
KEPT = ("results.jsonl", "table.csv", "table.md")


def words(name: str, data_root: str = "DATA") -> list[str]:
    """The words of a table's command."""
    stream, closed_form, training = TABLES[name]
    methods = ",".join((*METHODS, closed_form, "joint"))
    text = f"evergraph compare {stream} --methods {methods} {ALIKE} {training} --set {closed_form}.ridge=0"
    return shlex.split(f"{text} --data-root {data_root} --out results/problems/{name}")


def main() -> None:
    """Run the tables asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--data-root", default="DATA")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--device", default="cpu", help="small graphs side by side are faster on the CPU")
    parser.add_argument("--print", action="store_true", dest="show", help="print the commands alone")
    chosen = parser.parse_args()
    for name in chosen.names or TABLES:
        command = words(name, chosen.data_root)
        if chosen.show:
            print(shlex.join(command))
            continue
        folder = Path(command[-1])
        more = ["--jobs", chosen.jobs, "--device", chosen.device, *(["--resume"] if folder.exists() else [])]
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", *command, *more], check=True)
        for left in folder.iterdir():
            if left.name not in (*KEPT, "tuning", "cells"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


if __name__ == "__main__":
    main()
