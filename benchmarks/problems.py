"""The tables of docs/problems.md: on each real set eight methods, three seeds, settings chosen alike by `first-tasks`.

One `evergraph compare` for each table, as the page lists them; what is finished is not run again:

    python -m benchmarks.problems --data-root DATA --jobs 14
    python -m benchmarks.problems enzymes bitcoin-otc-time --data-root DATA
    python -m benchmarks.problems --print
    python -m benchmarks.problems --write

The last puts the tables of what `results/problems` holds into the page.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from evergraph.experiments.comparison import table_rows
from evergraph.experiments.result_file import read_results

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


ROWS = {
    "finetune": "fine-tuning", "ewc": "EWC", "mas": "MAS", "lwf": "LwF", "curvature": "curvature",
    "reservoir": "reservoir, 20 examples a class", "closed form": "closed form", "joint": "joint",
}  # fmt: skip
GROUPS = {
    "Nodes, new classes (GCN; closed form `auto`). AP / AF on test graph `task`, then AP on `seen`:": (
        "chameleon-filtered", "squirrel-filtered", "actor", "blogcatalog",
    ),
    "Nodes over domains (GCN; closed form `auto`) and graphs with new classes (GIN; `analytic`), AP / AF:": (
        "twitch", "letter-med", "enzymes",
    ),
    "Links (GCN; closed form `analytic`), balanced accuracy over six classes of ratings, AP / AF:": (
        "bitcoin-otc", "bitcoin-otc-time",
    ),
}  # fmt: skip
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PAGE = Path("docs/problems.md")


def tables(results: Path = Path("results/problems")) -> str:
    """The page's tables, of what the results folder holds; a dash where something was not measured."""
    parts = []
    for title, names in GROUPS.items():
        cells = {name: _cells(results / name, TABLES[name][1]) for name in names}
        head = ["method", *(f"`{name}`" for name in names)]
        lines = [head, ["---", *["--:"] * len(names)]]
        lines += [[shown, *(cells[name].get(row, "–") for name in names)] for row, shown in ROWS.items()]
        parts.append(title + "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def _cells(folder: Path, closed_form: str) -> dict[str, str]:
    """A cell for each method: AP and AF on test graph `task`, and AP on `seen` where that was measured."""
    found: dict[str, list[str]] = {}
    for row in table_rows([entry["result"] for entry in read_results(folder).values()]):
        name = "closed form" if row["method"] == closed_form else row["method"]
        ap, af = (f"{row[key]['mean']:.1f} ± {row[key]['std']:.1f}".replace("-", "−") for key in ("ap", "af"))
        found.setdefault(name, []).append(f"{ap} / {af}" if row["test_graph"] == "task" else f"· {ap}")
    return {name: " ".join(sorted(shown, key=lambda text: text.startswith("·"))) for name, shown in found.items()}


def page_with_tables(page: str) -> str:
    """The page with the tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run the tables asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--data-root", default="DATA")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--device", default="cpu", help="small graphs side by side are faster on the CPU")
    parser.add_argument("--print", action="store_true", dest="show", help="print the commands alone")
    parser.add_argument("--write", action="store_true", help="write the tables into the page alone")
    chosen = parser.parse_args()
    if chosen.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
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
