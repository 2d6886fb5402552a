"""The paper's table beside ours, in Markdown, CSV and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergraph.evaluation import mean_std, paired_difference, within_noise
from evergraph.experiments import told
from evergraph.experiments.latex import escape, tabular
from evergraph.experiments.method_table import keeps_old_data
from evergraph.experiments.paper.protocol import TWIN_OF, Protocol, other_graph, read
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_csv

NOT_MEASURED = "not measured here"
OVER_ORDERS = ("all_orders_mean", "all_orders_std", "against_best", "against_best_p", "best")
"""Columns of the CSV for each test graph; `best`, of the highest mean alone, is whether it leads by more than noise."""


def table_rows(
    protocol: Protocol, results: dict[str, dict[str, Any]], wanted: Sequence[str] | None
) -> list[dict[str, Any]]:
    """One dictionary per row: title, the paper's AP and AF, ours on the protocol's test graph and on the other one."""
    printed = read("printed").get(protocol.dataset, {})
    rows = []
    for name, row in protocol.rows(wanted).items():
        if TWIN_OF in row:
            continue
        result = protocol.measured(results, name)
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
                "searched": protocol.searched_settings(row),
                "orders": [protocol.measured(results, name, order) for order in protocol.orders],
            }
        )
    return with_differences(rows) if protocol.content.get("significance") else rows


def with_differences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row its values over all orders and seeds, and its gap to the best row without old data.

    `best` marks the one row that is better than every other row without old data by more than noise, if there is one;
    joint training, which keeps all data, does not compete.
    """
    for row in rows:
        row["all_orders"] = {graph: _values(row, graph) for graph in _graphs(rows)} if all(row["orders"]) else {}
    contenders = [row for row in rows if row["all_orders"] and not keeps_old_data(row["result"])]
    for graph in _graphs(rows) if contenders else ():
        leader = max(contenders, key=lambda row: mean_std(row["all_orders"][graph])["mean"])
        for row in rows:
            if row["all_orders"]:
                gap = paired_difference(row["all_orders"][graph], leader["all_orders"][graph])
                row.setdefault("behind", {})[graph] = gap
        tied = within_noise({row["title"]: row["all_orders"][graph] for row in contenders}, leader["title"])
        others = [tied[row["title"]] for row in contenders if row is not leader]
        leader.setdefault("best", {})[graph] = bool(others) and all(chance is False for chance in others)
    return rows


def _values(row: dict[str, Any], graph: str) -> list[float]:
    """AP of every order and seed on a test graph."""
    values: list[float] = []
    for result in row["orders"]:
        summary = _on(result, graph)
        assert summary is not None  # every run of a protocol is measured on both graphs
        values += summary["metrics"]["ap"]["values"]
    return values


def _on(result: dict[str, Any] | None, graph: str) -> dict[str, Any] | None:
    """A result's measures on a test graph; None if there are none."""
    if result is None or result["protocol"]["test_graph"] == graph:
        return result
    measures: dict[str, Any] | None = result["also_tested"].get(graph)
    return measures


def distance(row: dict[str, Any]) -> float | None:
    """Distance of a row from the printed one: the mean of |ΔAP| and |ΔAF|, in points, on the protocol's test graph.

    None for other protocols than `paper`, which do not aim at the printed numbers.
    """
    if row["paper_ap"] is None or row["result"] is None or row["protocol"] != "paper":
        return None
    gaps = [abs(row["result"][key]["mean"] - row[f"paper_{key}"]) for key in ("ap", "af")]
    return sum(gaps) / len(gaps)


def _cell(summary: dict[str, Any] | None, key: str) -> str:
    if summary is None:
        return NOT_MEASURED
    return told.mean_and_spread(summary[key], len(summary["metrics"]["ap"]["values"]))


def _printed(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _graphs(rows: list[dict[str, Any]]) -> tuple[str, str]:
    for row in rows:
        if row["result"]:
            test_graph = row["result"]["protocol"]["test_graph"]
            return test_graph, other_graph(test_graph)
    return "task", other_graph("task")


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    test_graph, other_graph = _graphs(rows)
    measured = [f"{measure} ({graph})" for graph in (test_graph, other_graph) for measure in ("AP", "AF")]
    distances = ["distance"] if any(distance(row) is not None for row in rows) else []
    head = ["method", "paper AP", "paper AF", *measured, *distances]
    lines = [" | ".join(head), " | ".join(["---"] + ["--:"] * (len(head) - 1))]
    for row in rows:
        elsewhere = _on(row["result"], other_graph)
        cells = [row["title"], _printed(row["paper_ap"]), _printed(row["paper_af"])]
        cells += [_cell(row["result"], "ap"), _cell(row["result"], "af")]
        cells += [_cell(elsewhere, "ap"), _cell(elsewhere, "af"), *(_printed(distance(row)) for _ in distances)]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


@dataclass(frozen=True)
class _Cell:
    """Text of a table, bold if it is the best."""

    text: str
    bold: bool = False


def _with_differences(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[_Cell]]]:
    """The columns and cells of the table over all orders and seeds, with what each method keeps beside its numbers."""
    graphs = _graphs(rows)
    heads = [[f"AP ({graph})", f"AF ({graph})", f"all orders ({graph})", "against the best"] for graph in graphs]
    head = ["method", *(cell for part in heads for cell in part), "keeps", "bytes kept", "settings"]
    lines = []
    for row in rows:
        line = [_Cell(row["title"])]
        for graph in graphs:
            summary = _on(row["result"], graph)
            line += [_Cell(_cell(summary, "ap")), _Cell(_cell(summary, "af")), *_against(row, graph)]
        kept = told.bytes_kept(row["result"]) if row["result"] else None
        keeps = told.keeps(row["result"]) if row["result"] else NOT_MEASURED
        last = [keeps, f"{kept:,}" if kept is not None else NOT_MEASURED, _chosen(row)]
        lines.append([*line, *map(_Cell, last)])
    return head, lines


def markdown_with_differences(rows: list[dict[str, Any]]) -> str:
    """A Markdown table over all orders and seeds, with what each method keeps beside its numbers."""
    head, cells = _with_differences(rows)
    lines = [" | ".join(head), " | ".join(["---"] + ["--:"] * (len(head) - 4) + ["---", "--:", "---"])]
    lines += [" | ".join(f"**{cell.text}**" if cell.bold else cell.text for cell in line) for line in cells]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def latex_with_differences(rows: list[dict[str, Any]]) -> str:
    """The same table as a LaTeX tabular (booktabs)."""
    head, cells = _with_differences(rows)
    lines = [[rf"\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text) for cell in line] for line in cells]
    return tabular("l" + "|rrrr" * len(_graphs(rows)) + "|lrl", [" & ".join(map(escape, head)) + r" \\"], lines)


def _tex(text: str) -> str:
    """Text for LaTeX, with minus signs before numbers."""
    return escape(re.sub(r"(?<!\w)-(?=\d)", "−", text))


def _against(row: dict[str, Any], graph: str) -> list[_Cell]:
    """AP over all orders, bold if it is the best by more than noise, and the gap to the best.

    The gap has its p-value if there are enough pairs to say anything about chance.
    """
    if not row["all_orders"]:
        return [_Cell(NOT_MEASURED), _Cell("")]
    values = row["all_orders"][graph]
    text = told.mean_and_spread(mean_std(values), len(values))
    if "best" in row and graph in row["best"]:
        return [_Cell(text, bold=row["best"][graph]), _Cell("best")]
    if "behind" not in row:
        return [_Cell(text), _Cell("")]
    gap = row["behind"][graph]
    chance = f" (p {gap.chance:.2g})" if gap.chance is not None else ""
    return [_Cell(text), _Cell(f"{gap.mean:+.2f}".replace("-", "−") + chance)]


def _chosen(row: dict[str, Any]) -> str:
    """The settings searched for the row, with the chosen values; for each graph, if the row is trained on each."""
    if row["result"] is None or not row["searched"]:
        return ""
    trained = [row["result"], *(other for other in row["result"]["also_tested"].values() if "protocol" in other)]
    chosen = [_values_of(row["searched"], result) for result in trained]
    graphs = [result["protocol"]["test_graph"] for result in trained]
    return chosen[0] if len(chosen) == 1 else "; ".join(f"{graph}: {words}" for graph, words in zip(graphs, chosen))


def _values_of(settings: Sequence[str], result: dict[str, Any]) -> str:
    found = {**result["hyperparameters"], **result["protocol"]}
    found |= {f"model.{key}": value for key, value in result["model"].items()}
    words = {key: found[key] for key in settings if key in found}
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in words.items()
    )


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
        elsewhere = _on(row["result"], other_graph)
        cells = [_cell(summary, key) for summary in (row["result"], elsewhere) for key in ("ap", "af")]
        cells = [cell if cell == NOT_MEASURED else f"${cell}$".replace("±", r"\pm") for cell in cells]
        lines.append([escape(row["title"]), _printed(row["paper_ap"]), _printed(row["paper_af"]), *cells])
    return tabular("l|rr|rr|rr", head, lines)


def table_as_csv(rows: list[dict[str, Any]]) -> str:
    """A CSV table with means and standard deviations in separate columns; empty where nothing was measured.

    With several orders, AP and AF are of the first one, and columns of the others follow.
    """
    test_graph, other_graph = _graphs(rows)
    measures = [
        f"{key}_{graph}_{part}"
        for graph in (test_graph, other_graph)
        for key in ("ap", "af")
        for part in ("mean", "std")
    ]
    columns = ["protocol", "dataset", "row", "title", "paper_ap", "paper_af"]
    lines = []
    for row in rows:
        result = row["result"]
        values: list[Any] = [None] * (len(measures) + 2)
        if result:
            summaries = (result, _on(row["result"], other_graph))
            values = [
                s[key][part] if s else None for s in summaries for key in ("ap", "af") for part in ("mean", "std")
            ]
            values += [result["seconds"], distance(row)]
        lines.append([*(row[key] for key in columns), *values])
    head = [*columns, *measures, "seconds", "distance"]
    if "all_orders" in rows[0]:
        head += [f"{key}_{graph}" for graph in (test_graph, other_graph) for key in OVER_ORDERS]
        head += ["keeps", "kept_bytes", "settings"]
        lines = [[*line, *_over_orders(row, (test_graph, other_graph))] for line, row in zip(lines, rows)]
    return as_csv(head, lines)


def _over_orders(row: dict[str, Any], graphs: Sequence[str]) -> list[Any]:
    """A row's values over all orders and seeds, its gap to the best, and what it keeps, for CSV."""
    found: list[Any] = []
    for graph in graphs:
        spread = mean_std(row["all_orders"][graph]) if row["all_orders"] else {}
        gap, leads = row.get("behind", {}).get(graph), row.get("best", {}).get(graph)
        others = None if leads is not None else gap
        found += [spread.get("mean"), spread.get("std"), others and others.mean, others and others.chance, leads]
    result = row["result"]
    return [*found, *([told.keeps(result), told.bytes_kept(result), _chosen(row)] if result else [None] * 3)]


def write_tables(rows: list[dict[str, Any]], folder: Path, heading: str) -> Path:
    """Write all three formats; return the path of the Markdown file."""
    over_orders = "all_orders" in rows[0]
    table, source = (markdown_with_differences, latex_with_differences) if over_orders else (markdown, latex)
    write_atomically(folder / "table.md", f"{heading}\n\n{table(rows)}")
    write_atomically(folder / "table.csv", table_as_csv(rows))
    write_atomically(folder / "table.tex", source(rows))
    return folder / "table.md"
