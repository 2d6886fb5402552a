"""The search over what the paper leaves open: all rows of its printed Coauthor-CS column, one seed each.

    python results/paper/search.py --data-root DIR [--device cuda] [--jobs 15] [--out FOLDER]

Each combination of the open choices (epochs, softmax over seen or all classes, class-balanced loss, Adam's state kept
between tasks, sampled neighbours) is run for every printed row, the baselines in their papers' reading and in CGLB's,
Ours by queue, sampled and exact. `search-paper.jsonl` has a line for each run. The table at the end ranks the
combinations by one distance: the mean over rows of the mean of |ΔAP| and |ΔAF| to the printed row, on the nearer of the
two test graphs for the whole combination, each row in the reading that is nearest in that combination. The runs of the
protocol's own combination are the first seeds of its table (`paper/coauthor-cs/results.jsonl`). A line is written as
soon as its run is done; combinations that are not complete are not ranked.
"""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

from evergraph.experiments import RunSpec
from evergraph.experiments.cells import Cell, Results, run_cells
from evergraph.experiments.paper.protocol import Protocol, read
from evergraph.persistence.files import taken_folder, write_atomically

HERE = Path(__file__).parent
FILE = HERE / "search-paper.jsonl"
TABLE = HERE / "paper" / "coauthor-cs" / "results.jsonl"
BASE = {"epochs": 200, "label_scope": "seen", "class_balanced": False, "keep_optimizer": False, "fan_out": None}
LWF = [{"strength": 1.0, "temperature": 2.0}, {"strength": 10.0, "temperature": 20.0}]  # the ends of the paper's ranges


def combinations() -> list[dict[str, object]]:
    """Balance × kept state with few epochs; one change at a time from the protocol's."""
    some = [
        {**BASE, "epochs": 50, "class_balanced": balanced, "keep_optimizer": kept}
        for balanced, kept in itertools.product((False, True), (False, True))
    ]
    changes: list[dict[str, object]] = [{}, {"epochs": 100}, {"class_balanced": True}, {"keep_optimizer": True}]
    changes += [{"epochs": 50, "label_scope": "all"}, {"epochs": 50, "fan_out": (10, 25)}]
    return [*some, *({**BASE, **change} for change in changes)]


def cells(device: str) -> dict[str, tuple[str, dict[str, object], RunSpec]]:
    """The runs by name, each with its row and its combination."""
    plan = Protocol.load("paper", "coauthor-cs", 1, device)
    named = {}
    for combination in combinations():
        for name, row in plan.rows().items():
            printed = row.get("printed", name)
            if printed not in read("printed")["coauthor-cs"] or "literal" in name:
                continue
            for settings in LWF if row["method"] == "lwf" else [{}]:
                spec = plan.spec(row, [0], **settings)
                training = replace(spec.training, **combination)
                label = "-".join(map(str, [*combination.values(), *settings.values()])).replace(" ", "")
                named[f"{label}/{name}"] = (printed, combination, replace(spec, training=training))
    return named


def first_seeds() -> dict[str, dict[str, object]]:
    """What the first seed of each run of the protocol's table came to, by method, settings and training."""
    found = {}
    for entry in map(json.loads, TABLE.read_text().splitlines()):
        result, spec = entry["result"], entry["spec"]

        def first(measured: dict[str, dict[str, dict[str, list[float]]]]) -> dict[str, dict[str, float]]:
            return {key: {"mean": measured["metrics"][key]["values"][0]} for key in ("ap", "af")}

        training = {key: spec["training"][key] for key in BASE}
        found[fingerprint(spec["method"], spec["settings"], training)] = {
            **first(result),
            "also_tested": {"seen": first(result["also_tested"]["seen"])},
        }
    return found


def written() -> dict[str, dict[str, object]]:
    """What the lines of an earlier call say, by method, settings and training."""
    found = {}
    for line in map(json.loads, FILE.read_text().splitlines() if FILE.exists() else ()):
        measured = {graph: {key: {"mean": value} for key, value in line[graph].items()} for graph in ("task", "seen")}
        found[line["reading"] + fingerprint("", line["settings"], line["combination"])] = {
            **measured["task"],
            "also_tested": {"seen": measured["seen"]},
        }
    return found


def fingerprint(method: str, settings: dict[str, object], training: dict[str, object]) -> str:
    """What tells runs of the search apart."""
    return json.dumps([method, settings, training], sort_keys=True)


def lines_of(wanted: dict[str, tuple[str, dict[str, object], RunSpec]], results: Results) -> str:
    """A line for each run that is done."""
    lines = []
    for name, (printed, combination, spec) in wanted.items():
        if (result := results.get(name)) is None:
            continue
        line = {"row": printed, "reading": name.rpartition("/")[2], "combination": combination}
        line |= {"settings": spec.settings, "seed": 0}
        for graph, found in (("task", result), ("seen", result["also_tested"]["seen"])):
            line[graph] = {key: round(found[key]["mean"], 2) for key in ("ap", "af")}
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


def ranked(lines: list[dict[str, object]]) -> list[tuple[float, str, dict[str, object], dict[str, dict[str, object]]]]:
    """The combinations by distance: (distance, test graph, combination, nearest run of each printed row)."""
    printed = read("printed")["coauthor-cs"]
    rows = len({line["row"] for line in lines})
    found = []
    for combination in combinations():
        for graph in ("task", "seen"):
            nearest: dict[str, dict[str, object]] = {}
            for line in lines:
                if line["combination"] != json.loads(json.dumps(combination)):
                    continue
                ap, af = printed[line["row"]]
                gap = (abs(line[graph]["ap"] - ap) + abs(line[graph]["af"] - af)) / 2
                if line["row"] not in nearest or gap < nearest[line["row"]]["gap"]:
                    nearest[line["row"]] = {**line, "gap": gap}
            if len(nearest) == rows:
                mean = sum(run["gap"] for run in nearest.values()) / len(nearest)
                found.append((mean, graph, combination, nearest))
    return sorted(found, key=lambda entry: entry[0])


def main() -> None:
    """Run what is not in the file yet, write a line a run, print the ranking and the nearest combination row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default="runs/search-paper")
    parser.add_argument("--table", action="store_true", help="print the ranking of what is in the file; run nothing")
    given = parser.parse_args()
    if not given.table:
        wanted, measured, earlier = cells(given.device), first_seeds(), written()

        def known(cell: Cell) -> dict[str, object] | None:
            _, combination, spec = wanted[cell.key]
            line = cell.key.rpartition("/")[2] + fingerprint("", spec.settings, combination)
            return earlier.get(line) or measured.get(fingerprint(spec.method, spec.settings, combination))

        with taken_folder(Path(given.out), lambda: None):
            run_cells(
                [Cell(name, spec) for name, (_, _, spec) in wanted.items()],
                given.out,
                known=known,
                data_root=given.data_root,
                jobs=given.jobs,
                on_result=lambda results: write_atomically(FILE, lines_of(wanted, results)),
            )
    if not FILE.exists():
        parser.error(f"{FILE.name} is not there yet; leave --table out to make it")
    entries = ranked([json.loads(line) for line in FILE.read_text().splitlines()])
    print("| distance | test graph | " + " | ".join(BASE) + " |")
    print("|--:|---|" + "---|" * len(BASE))
    for mean, graph, combination, _ in entries:
        print(f"| {mean:.2f} | {graph} | " + " | ".join(str(value) for value in combination.values()) + " |")
    _, graph, combination, nearest = entries[0]
    print(f"\nNearest: {combination}, test graph {graph}\n\n| row | printed | nearest reading | AP / AF | distance |")
    print("|---|--:|---|--:|--:|")
    for row, run in nearest.items():
        ap, af = read("printed")["coauthor-cs"][row]
        measured = f"{run[graph]['ap']:.2f} / {run[graph]['af']:.2f}"
        print(f"| {row} | {ap:.2f} / {af:.2f} | {run['reading']} {run['settings']} | {measured} | {run['gap']:.2f} |")


if __name__ == "__main__":
    main()
