"""The tables of docs/problems.md: eight methods on each real dataset, three seeds, settings chosen by `first-tasks`.

One `evergraph compare` for each table, as the page lists them; finished runs are not repeated:

    python -m benchmarks.problems --data-root DATA --tables 5 --jobs 3
    python -m benchmarks.problems enzymes bitcoin-otc-time --data-root DATA
    python -m benchmarks.problems --quick --data-root DATA --out FOLDER
    python -m benchmarks.problems --again auto --data-root DATA --tables 5 --jobs 3
    python -m benchmarks.problems --print
    python -m benchmarks.problems --write

`--quick` runs every row with one seed, one trial and two epochs, to check that all of them finish. `--time-limit` stops
after the given number of seconds; the same command then continues with what is left: finished trials and seeds are
kept. `--again` measures the rows of one method again and replaces the existing ones. `--write` writes the tables of the
results in `results/problems` into the page.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import markdown, spread, with_tables
from evergraph.experiments.comparison import table_rows, write_tables
from evergraph.experiments.result_file import read_results
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_json

METHODS = ("finetune", "ewc", "mas", "lwf", "curvature", "reservoir")
ALIKE = "--tune first-tasks --trials 10 --label-scope seen"
NODES = "--hidden 64 --epochs 100 --batch-size 0 --set auto.hidden=7168"
BOTH = f"{NODES} --test-graph task,seen"
GRAPHS = "--model gin --hidden 64 --epochs 50 --set analytic.model=random-features --set analytic.hidden=640"
LINKS = "--hidden 32 --epochs 10 --batch-size 512 --class-balanced --metric balanced-accuracy --set analytic.hidden=640"
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
"""By name: the stream, its closed form, and the options of models and training."""
KEPT = ("results.jsonl", "table.csv", "table.md")
RESULTS = Path("results/problems")
QUICK = ["--trials", "1", "--epochs", "2", "--seeds", "1"]  # if an option is given twice, the last one counts


def methods_of(name: str) -> tuple[str, ...]:
    """The methods of a table."""
    return (*METHODS, TABLES[name][1], "joint")


def words(name: str, data_root: str = "DATA", results: Path = RESULTS, methods: Sequence[str] = ()) -> list[str]:
    """The words of a table's command, or of the command for some of its methods."""
    stream, closed_form, training = TABLES[name]
    listed = ",".join(methods or methods_of(name))
    text = f"evergraph compare {stream} --methods {listed} {ALIKE} {training}"
    text += f" --set {closed_form}.ridge=0" if closed_form in listed.split(",") else ""
    return shlex.split(f"{text} --data-root {data_root} --out {results / name}")


ROWS = {
    "finetune": "fine-tuning", "ewc": "EWC", "mas": "MAS", "lwf": "LwF", "curvature": "curvature",
    "reservoir": "reservoir, 20 examples a class", "closed form": "closed form", "joint": "joint",
}  # fmt: skip
GROUPS = {
    "Nodes, new classes (GCN; closed form `auto`). AP / AF on test graph `task`, then AP on `seen`:": (
        "chameleon-filtered", "squirrel-filtered", "actor", "blogcatalog",
    ),
    "Nodes over domains (GCN; closed form: `auto`) and graphs with new classes (GIN; `analytic`), AP / AF:": (
        "twitch", "letter-med", "enzymes",
    ),
    "Links (GCN; closed form `analytic`), balanced accuracy over six classes of ratings, AP / AF:": (
        "bitcoin-otc", "bitcoin-otc-time",
    ),
}  # fmt: skip
PAGE = Path("docs/problems.md")


def tables(results: Path = RESULTS) -> str:
    """The page's tables, from the results folder; a dash where nothing was measured."""
    parts = []
    for title, names in GROUPS.items():
        cells = {name: _cells(results / name, TABLES[name][1]) for name in names}
        head = ["method", *(f"`{name}`" for name in names)]
        lines = [[shown, *(cells[name].get(row, "–") for name in names)] for row, shown in ROWS.items()]
        parts.append(f"{title}\n\n{markdown(head, lines)}")
    return "\n\n".join(parts)


def _cells(folder: Path, closed_form: str) -> dict[str, str]:
    """A cell for each method: AP and AF on test graph `task`, and AP on `seen` if it was measured."""
    found: dict[str, list[str]] = {}
    for row in table_rows([entry["result"] for entry in read_results(folder).values()]):
        name = "closed form" if row["method"] == closed_form else row["method"]
        ap, af = spread(row["ap"]), spread(row["af"])
        found.setdefault(name, []).append(f"{ap} / {af}" if row["test_graph"] == "task" else f"· {ap}")
    return {name: " ".join(sorted(shown, key=lambda text: text.startswith("·"))) for name, shown in found.items()}


def page_with_tables(page: str) -> str:
    """The page with the tables between its marks."""
    return with_tables(page, tables())


def run(
    names: list[str],
    data_root: str,
    results: Path,
    more: list[str],
    at_once: int,
    seconds: float,
    methods: Sequence[str] = (),
) -> list[str]:
    """Run tables in parallel, or what is left of them; return the failures. Child processes never outlive it."""
    waiting, running, wrong = list(names), dict[str, subprocess.Popen[bytes]](), list[str]()
    begun, environment = time.monotonic(), {"OMP_NUM_THREADS": "1", **os.environ}
    try:
        while (waiting or running) and time.monotonic() - begun < seconds:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                command = [*words(name, data_root, results, methods), *more]
                command += ["--resume"] if (results / name).exists() else []
                running[name] = subprocess.Popen([sys.executable, "-m", *command], env=environment)
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                print(f"== {name}: done after {time.monotonic() - begun:.0f} s", flush=True)
                del running[name]
                if process.returncode:
                    wrong.append(f"{name}: ended with status {process.returncode}")
                else:
                    _tidy(results / name)
            time.sleep(0.2)
        return [
            *wrong,
            *(f"{name}: stopped at the time limit" for name in running),
            *(f"{name}: not begun" for name in waiting),
        ]
    finally:
        for process in running.values():
            process.kill()  # its child processes exit with it
            process.wait()


def _tidy(folder: Path) -> None:
    """Remove everything but what the page's tables are made from and what the same command would resume from."""
    for left in folder.iterdir():
        if left.name not in (*KEPT, "tuning", "cells"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def renew(folder: Path, measured: Path) -> None:
    """Replace the results of the same methods with the measured ones, and rewrite the folder's tables."""
    entries = {**read_results(folder), **read_results(measured)}
    lines = [as_json({"key": key, **entry}) for key, entry in entries.items()]
    write_atomically(folder / "results.jsonl", "".join(f"{line}\n" for line in lines))
    write_tables(table_rows([entry["result"] for entry in entries.values()]), folder)


def again(method: str, names: list[str], data_root: str, results: Path, more: list[str], at_once: int) -> list[str]:
    """Measure the rows of one method again in the tables that have it; return the failures."""
    names = [name for name in names if method in methods_of(name)]
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(names, data_root, Path(folder), more, at_once, math.inf, [method])
        if not wrong:
            for name in names:
                renew(results / name, Path(folder) / name)
    return wrong


def main() -> None:
    """Run the requested tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--data-root", default="DATA")
    parser.add_argument("--jobs", default="1", help="processes for each table")
    parser.add_argument("--tables", type=int, default=1, help="tables that are worked on side by side")
    parser.add_argument("--device", default="cpu", help="small graphs side by side are faster on the CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the tables")
    parser.add_argument(
        "--time-limit", type=float, default=math.inf, metavar="SECONDS", help="stop then; the same command goes on"
    )
    parser.add_argument("--again", metavar="METHOD", help="measure the rows of this method anew")
    parser.add_argument("--quick", action="store_true", help="every row with one seed, one trial, two epochs")
    parser.add_argument("--print", action="store_true", dest="show", help="print the commands alone")
    parser.add_argument("--write", action="store_true", help="write the tables into the page alone")
    chosen = parser.parse_args()
    names = chosen.names or list(TABLES)
    if wrong := [name for name in names if name not in TABLES]:
        parser.error(f"no table {wrong[0]!r}; there are {', '.join(TABLES)}")
    if chosen.quick and chosen.out == RESULTS:
        parser.error("--quick measures nothing; name another folder than the results' with --out")
    if chosen.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if chosen.show:
        print("\n".join(shlex.join(words(name, chosen.data_root, chosen.out)) for name in names))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    more = ["--jobs", chosen.jobs, "--device", chosen.device, *(QUICK if chosen.quick else [])]
    if chosen.again:
        wrong = again(chosen.again, names, chosen.data_root, chosen.out, more, chosen.tables)
    else:
        wrong = run(names, chosen.data_root, chosen.out, more, chosen.tables, chosen.time_limit)
    if wrong:
        sys.exit("; ".join(wrong) + ". The same command goes on with what is left.")


if __name__ == "__main__":
    main()
