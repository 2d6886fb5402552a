"""Methods × streams: one number for each pair, with the best of each stream and those within noise of it marked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergraph.evaluation import SUMMARIES, decimal_places, mean_std, within_noise
from evergraph.evaluation.significance import FEWEST
from evergraph.experiments import told
from evergraph.experiments.comparison import row_label, settings_apart, stream_titles
from evergraph.experiments.latex import escape, tabular
from evergraph.experiments.metric_titles import PLAIN, describe_metric, direction_of
from evergraph.experiments.result_file import each_test_graph
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_csv

MARKS = (
    "Bold: the best of the column that keeps no old data; †: not significantly different from it (paired t-test over "
    "runs, Holm-corrected, p ≥ 0.05). In italics: methods that keep old nodes or graphs and so do not compete; joint "
    "training is a ceiling."
)
OLD_DATA = {"graphs", "real nodes", "real graphs", "real links", told.UNDECLARED}
"""The kinds of kept things that are old data, or may be."""


@dataclass(frozen=True)
class Entry:
    """One method on one stream.

    Args:
        values: one number per run.
        best: whether it is the best of its column among methods without old data.
        tied: whether its distance from the best may be chance, true for the best itself; None if there are too few runs
            to tell.
        digits: number of decimal places.
    """

    values: list[float]
    best: bool
    tied: bool | None
    digits: int = 1


@dataclass(frozen=True)
class MethodTable:
    """A table of methods (rows) and streams with their test graphs (columns).

    Args:
        columns: titles of the columns.
        rows: an entry for each column (None where not run), by method and the settings in which its runs differ.
        apart: methods that keep old data.
        metrics: name of each column's metric.
        measure: name of the summary shown.
        note: which methods do not declare what they keep.
    """

    columns: list[str]
    rows: dict[str, list[Entry | None]]
    apart: set[str]
    metrics: list[str]
    measure: str = "ap"
    note: str = ""


def heading(table: MethodTable) -> str:
    """What the numbers are: the summary and, unless it is accuracy or the columns differ in it, the metric."""
    title = SUMMARIES[table.measure].title
    metrics = set(table.metrics)
    return f"{title}: {_metric_text(table, metrics.pop())}" if len(metrics) == 1 and PLAIN not in metrics else title


def column_titles(table: MethodTable) -> list[str]:
    """Titles of the columns, with the metric of each if they differ in it."""
    if len(set(table.metrics)) == 1:
        return table.columns
    return [f"{title}: {_metric_text(table, metric)}" for title, metric in zip(table.columns, table.metrics)]


def _metric_text(table: MethodTable, metric: str) -> str:
    """A metric's title; for its levels, with a word on errors. AF is a gain, of which more is always better."""
    if SUMMARIES[table.measure].is_gain:
        return str(describe_metric({"protocol": {"metric": metric}})["title"])
    return direction_of(metric)


def legend(table: MethodTable) -> str:
    """Explanation of the numbers and marks of a table."""
    counts = sorted({len(entry.values) for entries in table.rows.values() for entry in entries if entry is not None})
    runs = " or ".join(map(str, counts)) + (" run" if counts == [1] else " runs")
    few = (
        f" With fewer than {FEWEST} runs, which cannot tell noise from difference, nothing is marked."
        if any(entry.tied is None for entries in table.rows.values() for entry in entries if entry is not None)
        else ""
    )
    note = f" {table.note}." if table.note else ""
    spread = "" if counts == [1] else "Mean ± sample standard deviation over seeds and class orders, "
    return f"{spread}{runs} an entry. {MARKS}{few}{note}"


def keeps_old_data(result: Mapping[str, Any]) -> bool:
    """Whether a result's method keeps nodes or graphs of old tasks, or does not say what it keeps."""
    return bool(OLD_DATA & set(told.keeps(result).split(", ")))


def method_table(
    results: Iterable[dict[str, Any]], measure: str = "ap", tuned: Mapping[str, Collection[str]] | None = None
) -> MethodTable:
    """Build the table of results on every test graph they were measured on; runs are paired by class order and seed.

    A method's rows are not distinguished by settings that were `tuned` (by method).
    """
    found: dict[str, dict[str, dict[tuple[str, int], float]]] = {}
    summary, signs = SUMMARIES[measure], dict[str, int]()  # −1 for a column of errors, where smaller is better
    metrics, units = dict[str, str](), dict[str, str]()
    results = [one for measured in results for one in each_test_graph(measured)]
    labels = [
        row_label({"method": result["method"], "settings": settings})
        for result, settings in zip(results, settings_apart(results, tuned))
    ]
    titles = stream_titles(str(result["stream"]) for result in results)
    apart = {label for label, result in zip(labels, results) if keeps_old_data(result)}
    graphs = {str(result["protocol"].get("test_graph")) for result in results}
    for label, result in zip(labels, results):
        protocol = result["protocol"]
        title = titles[str(result["stream"])] + (f", {protocol['test_graph']}" if len(graphs) > 1 else "")
        own = found.setdefault(title, {}).setdefault(label, {})
        metric = describe_metric(result)
        better = metric["higher_is_better"]
        signs[title] = 1 if better or summary.is_gain else -1
        metrics[title] = metric["name"]
        units[title] = metric["unit"]
        for seed, matrix in zip(result["seeds"], result["matrices"]):
            own[str(protocol.get("order")), seed] = summary.of(matrix, higher_is_better=better)
    methods = list(dict.fromkeys(labels))
    rows: dict[str, list[Entry | None]] = {method: [] for method in methods}
    for title, column in found.items():
        competing = {method: runs for method, runs in column.items() if method not in apart}
        shared = set.intersection(*map(set, competing.values())) if competing else set()
        paired = {method: [runs[key] for key in sorted(shared)] for method, runs in competing.items()}
        rivals = {method: values for method, values in paired.items() if values}
        total = {method: signs[title] * sum(values) for method, values in rivals.items()}
        best = max(total, key=total.__getitem__, default=None)
        enough = len(shared) >= FEWEST
        tied = within_noise(rivals, best) if best is not None and enough else {}
        digits = decimal_places((value for runs in column.values() for value in runs.values()), units[title])
        for method in methods:
            runs = column.get(method)
            marks = method == best, tied.get(method, False if enough else None)
            rows[method].append(None if runs is None else Entry(list(runs.values()), *marks, digits))
    return MethodTable(list(found), rows, apart, list(metrics.values()), measure, told.undeclared(results))


def markdown(table: MethodTable) -> str:
    """The table in Markdown."""
    lines = [told.markdown_row(["method", *column_titles(table)]), "|---|" + "--:|" * len(table.columns)]
    for method, entries in table.rows.items():
        name = f"*{method}*" if method in table.apart else method
        lines.append(told.markdown_row([name, *(cell_text(entry, "**", "**", "†") for entry in entries)]))
    return "\n".join([f"{heading(table)}. {legend(table)}", "", *lines]) + "\n"


def latex(table: MethodTable) -> str:
    """The table in LaTeX (booktabs)."""
    rows = []
    for method, entries in table.rows.items():
        name = rf"\emph{{{escape(method)}}}" if method in table.apart else escape(method)
        cells = [
            cell_text(entry, r"\textbf{", "}", r"$^\dagger$").replace("±", r"$\pm$").replace("–", "--")
            for entry in entries
        ]
        rows.append([name, *cells])
    head = [" & ".join(["Method", *map(escape, column_titles(table))]) + r" \\"]
    return f"% {heading(table)}. {legend(table)}\n{tabular('l' + 'r' * len(table.columns), head, rows)}"


def table_as_csv(table: MethodTable) -> str:
    """The table as CSV: one line per method and column."""
    measured = [f"{table.measure}_mean", f"{table.measure}_std"]
    head = ["method", "stream", "metric", *measured, "runs", "best", "within_noise"]
    lines = []
    for method, entries in table.rows.items():
        for column, metric, entry in zip(table.columns, table.metrics, entries):
            if entry is not None:
                spread = mean_std(entry.values)
                noise = "" if entry.tied is None or method in table.apart else entry.tied
                numbers = [spread["mean"], spread["std"], len(entry.values), entry.best, noise]
                lines.append([method, column, metric, *numbers])
    return as_csv(head, lines)


def write_method_table(
    results: Sequence[dict[str, Any]], folder: Path, note: str = "", tuned: Mapping[str, Collection[str]] | None = None
) -> MethodTable:
    """Write `methods.md`, `methods.tex` and `methods.csv`; return the table."""
    table = method_table(results, tuned=tuned)
    write_atomically(folder / "methods.md", markdown(table) + (f"\n{note}\n" if note else ""))
    write_atomically(folder / "methods.tex", (f"% {note}\n" if note else "") + latex(table))
    write_atomically(folder / "methods.csv", table_as_csv(table))
    return table


def cell_text(entry: Entry | None, before: str, after: str, sign: str) -> str:
    """Mean and standard deviation; marked if it is the best or within noise of it, with enough runs to tell."""
    if entry is None:
        return "–"
    text = told.mean_and_spread(mean_std(entry.values), len(entry.values), entry.digits)
    if not entry.tied:
        return text
    return f"{before}{text}{after}" if entry.best else f"{text}{sign}"
