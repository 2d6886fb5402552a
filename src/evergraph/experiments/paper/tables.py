"""The paper's table beside ours, in the formats people paste: Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evergraph.experiments.latex import escape, tabular
from evergraph.experiments.paper.protocol import Protocol, read
from evergraph.persistence.files import write_atomically

NOT_MEASURED = "not measured here"


def table_rows(
    protocol: Protocol, results: dict[str, dict[str, Any]], wanted: Sequence[str] | None
) -> list[dict[str, Any]]:
    """One dictionary per row: title, the paper's AP and AF, ours on the protocol's test graph and on the other one."""
    printed = read("printed").get(protocol.dataset, {})
    rows = []
    for name, row in protocol.rows(wanted).items():
        result = results.get(protocol.key(name))
        theirs = printed.get(row.get("printed", name), (None, None))
        rows.append(
            {
                "protocol": protocol.name,
                "dataset": protocol.dataset,
                "row": name,
                "title": row["title"],
                "paper_ap": theirs[0],
                "paper_af": theirs[1],
                "result": result,
                "settings": result["hyperparameters"] if result else None,
            }
        )
    return rows


def distance(row: dict[str, Any]) -> float | None:
    """How far a row is from the printed one: the mean of |ΔAP| and |ΔAF|, in points, on the protocol's test graph.

    Only protocol `paper` sets out to come near.
    """
    if row["paper_ap"] is None or row["result"] is None or row["protocol"] != "paper":
        return None
    gaps = [abs(row["result"][key]["mean"] - row[f"paper_{key}"]) for key in ("ap", "af")]
    return sum(gaps) / len(gaps)


def _cell(summary: dict[str, Any] | None, key: str, plus_minus: str = "±") -> str:
    if summary is None:
        return NOT_MEASURED
    return f"{summary[key]['mean']:.2f} {plus_minus} {summary[key]['std']:.2f}"


def _printed(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _graphs(rows: list[dict[str, Any]]) -> tuple[str, str]:
    for row in rows:
        if row["result"]:
            test_graph = row["result"]["protocol"]["test_graph"]
            return test_graph, "seen" if test_graph == "task" else "task"
    return "task", "seen"


def _other(row: dict[str, Any], graph: str) -> dict[str, Any] | None:
    result: dict[str, Any] | None = row["result"]
    if result is None:
        return None
    summary: dict[str, Any] | None = result["also_tested"].get(graph)
    return summary


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    test_graph, other_graph = _graphs(rows)
    measured = [f"{measure} ({graph})" for graph in (test_graph, other_graph) for measure in ("AP", "AF")]
    distances = ["distance"] if any(distance(row) is not None for row in rows) else []
    head = ["method", "paper AP", "paper AF", *measured, *distances]
    lines = [" | ".join(head), " | ".join(["---"] + ["--:"] * (len(head) - 1))]
    for row in rows:
        elsewhere = _other(row, other_graph)
        cells = [row["title"], _printed(row["paper_ap"]), _printed(row["paper_af"])]
        cells += [_cell(row["result"], "ap"), _cell(row["result"], "af")]
        cells += [_cell(elsewhere, "ap"), _cell(elsewhere, "af"), *(_printed(distance(row)) for _ in distances)]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def latex(rows: list[dict[str, Any]]) -> str:
    """A LaTeX tabular (booktabs)."""
    test_graph, other_graph = _graphs(rows)
    head = [
        rf" & \multicolumn{{2}}{{c|}}{{paper}} & \multicolumn{{2}}{{c|}}{{ours, {test_graph}}} "
        rf"& \multicolumn{{2}}{{c}}{{ours, {other_graph}}} \\",
        r"Method & AP & AF & AP & AF & AP & AF \\",
    ]
    lines = []
    for row in rows:
        elsewhere = _other(row, other_graph)
        cells = [_cell(summary, key, r"\pm") for summary in (row["result"], elsewhere) for key in ("ap", "af")]
        cells = [cell if cell == NOT_MEASURED else f"${cell}$" for cell in cells]
        lines.append([escape(row["title"]), _printed(row["paper_ap"]), _printed(row["paper_af"]), *cells])
    return tabular("l|rr|rr|rr", head, lines)


def as_csv(rows: list[dict[str, Any]]) -> str:
    """A CSV with means and deviations in columns of their own; empty where nothing was measured."""
    test_graph, other_graph = _graphs(rows)
    text = io.StringIO()
    measures = [
        f"{key}_{graph}_{part}"
        for graph in (test_graph, other_graph)
        for key in ("ap", "af")
        for part in ("mean", "std")
    ]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["protocol", "dataset", "row", "title", "paper_ap", "paper_af", *measures, "seconds", "distance"])
    for row in rows:
        result = row["result"]
        values: list[Any] = [None] * (len(measures) + 2)
        if result:
            summaries = (result, _other(row, other_graph))
            values = [
                s[key][part] if s else None for s in summaries for key in ("ap", "af") for part in ("mean", "std")
            ]
            values += [result["seconds"], distance(row)]
        writer.writerow(
            [row["protocol"], row["dataset"], row["row"], row["title"], row["paper_ap"], row["paper_af"], *values]
        )
    return text.getvalue()


def write_tables(rows: list[dict[str, Any]], folder: Path, heading: str) -> Path:
    """All three formats; returns the Markdown's path."""
    write_atomically(folder / "table.md", f"{heading}\n\n{markdown(rows)}")
    write_atomically(folder / "table.csv", as_csv(rows))
    write_atomically(folder / "table.tex", latex(rows))
    return folder / "table.md"
