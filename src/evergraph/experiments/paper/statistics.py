"""The paper's Table 2 for the available data, beside the printed one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evergraph.data import TaskStream, stream
from evergraph.errors import EvergraphError
from evergraph.experiments.paper.protocol import read

TITLES = {
    "nodes": "# Nodes",
    "edges": "# Edges",
    "classes": "# Classes",
    "tasks": "# Tasks",
    "classes_per_task": "# Classes per task",
    "nodes_per_task": "Avg # nodes per task",
    "edges_per_task": "Avg # edges per task",
}
SAME_GRAPH = {"corafull-knn": "corafull"}  # other features, the same nodes, edges and classes


def count(tasks: TaskStream) -> dict[str, int]:
    """Count the rows of Table 2. Edges are directed, within the tasks' own graphs, with one self-loop per node.

    Counted this way, all available data gives the printed numbers exactly.
    """
    nodes = [task.graph.num_nodes for task in tasks]
    edges = [task.graph.num_edges + task.graph.num_nodes for task in tasks]
    return {
        "nodes": sum(nodes),
        "edges": sum(edges),
        "classes": tasks.num_classes,
        "tasks": len(tasks),
        "classes_per_task": len(tasks.tasks_classes[0]),
        "nodes_per_task": round(sum(nodes) / len(tasks)),
        "edges_per_task": round(sum(edges) / len(tasks)),
    }


def statistics(datasets: Sequence[str], data_root: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """For each dataset, the numbers printed in the paper and those counted here; None where either is missing."""
    printed = read("printed")["statistics"]
    table: dict[str, dict[str, Any]] = {}
    for name in datasets:
        try:
            counted, reason = count(stream(name, data_root=data_root)), ""
        except EvergraphError as error:
            if len(datasets) == 1:
                raise
            counted, reason = None, str(error)
        table[name] = {"printed": printed.get(SAME_GRAPH.get(name, name)), "counted": counted, "missing": reason}
    return table


def markdown(table: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown."""
    heads = [f"{name}, {side}" for name in table for side in ("printed", "counted")]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    for key, title in TITLES.items():
        sides = [columns[side] for columns in table.values() for side in ("printed", "counted")]
        cells = [side[key] if side else None for side in sides]
        lines.append(f"| {title} | " + " | ".join("–" if cell is None else f"{cell:,}" for cell in cells) + " |")
    notes = [f"{name}: not at hand ({columns['missing']})" for name, columns in table.items() if columns["missing"]]
    about = "Edges: directed, within the tasks' own graphs, with one self-loop per node."
    return "\n".join([*lines, "", about, *notes]) + "\n"
