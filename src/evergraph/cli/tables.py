"""Tables of results for the terminal."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from evergraph.errors import counted
from evergraph.experiments import told
from evergraph.experiments.comparison import row_label
from evergraph.experiments.method_table import MethodTable, cell_text, column_titles, heading, legend
from evergraph.experiments.metric_titles import PLAIN, describe_metric
from evergraph.experiments.result_file import each_test_graph


def listing(*columns: str) -> Table:
    """A table of names and their descriptions; on narrow terminals lines are folded, and nothing is cut off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    return table


class _Hyphenated:
    """Text that breaks at spaces and after hyphens, and elsewhere only where a part is wider than the column."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(8, len(self.text)), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, 1)
        words = [self.text] if len(self.text) <= width else self.text.split()
        yield Text("\n".join(line for word in words for line in wrap(word, width)))


def metric_unit(results: list[dict[str, Any]]) -> str:
    """Unit shown after AP and AF: percent, or the name of a metric not in percent; empty if metrics differ."""
    metrics = {describe_metric(result)["name"]: describe_metric(result) for result in results}
    if all(metric["unit"] == "%" for metric in metrics.values()):
        return " (%)"
    return f" ({next(iter(metrics))})" if len(metrics) == 1 else ""


def result_table(results: list[dict[str, Any]]) -> Group:
    """A table per test graph, with one row per run."""
    protocol = results[0]["protocol"]
    rows = [
        {**one, "kept_bytes": told.bytes_kept(one), "runs": len(one["seeds"])}
        for result in results
        for one in each_test_graph(result)
    ]
    by = f" by {protocol['by']}" if "by" in protocol else ""
    about = f"{counted(protocol['tasks'], 'task')}, {protocol['scenario']}{by}, "
    several = len(results[0]["seeds"]) > 1
    seeds = f"seed{'s' * several} {', '.join(map(str, results[0]['seeds']))}"
    seeds += "; mean ± std over seeds" if several else ""
    return _tables(rows, about, ", ".join([*_training(results), seeds]))


def _training(results: list[dict[str, Any]]) -> list[str]:
    """How networks were trained, with all values of each setting; methods without epochs are left out."""
    trained = [result["protocol"] for result in results if "epochs" in result["protocol"]]
    if not trained:
        return []
    pieces = f" of pieces of {trained[0]['pieces']}" if "pieces" in trained[0] else ""
    keys = ("label_scope", "reduction", "epochs", "lr")
    values = {key: sorted({own[key] for own in trained}) for key in keys}
    epochs = f"{{}} epoch{'s' * (values['epochs'] != [1])}{pieces}"
    texts = {"label_scope": "label scope {}", "reduction": "loss {}", "epochs": epochs, "lr": "lr {}"}
    return [
        text.format(" or ".join(f"{value:g}" if key == "lr" else str(value) for value in values[key]))
        for key, text in texts.items()
    ]


def methods_and_streams(table: MethodTable) -> Table:
    """One row per method, one column per stream, with the best of each stream and those within noise of it marked."""
    unit = " in percent" if set(table.metrics) == {PLAIN} else ""
    shown = Table(caption=f"{heading(table)}{unit}. {legend(table)}", caption_justify="left")
    shown.add_column("method", no_wrap=True)
    for column in column_titles(table):
        shown.add_column(column, justify="right")
    for method, entries in table.rows.items():
        cells = [
            Text(cell_text(entry, "", "", "†"), "bold" if entry and entry.best and entry.tied else "")
            for entry in entries
        ]
        shown.add_row(Text(method, "italic" if method in table.apart else ""), *cells)
    return shown


def comparison_table(rows: list[dict[str, Any]]) -> Group:
    """A table per stream and test graph, with one row per method and its settings."""
    spread = "mean ± std over class orders and seeds; " if any(row["runs"] > 1 for row in rows) else ""
    return _tables(rows, "", f"{spread}seconds per run")


def _metric_of(row: dict[str, Any]) -> dict[str, Any]:
    """The metric of a result or of a row of a table."""
    return describe_metric({"protocol": row.get("protocol", row)})


def _in_words(metric: dict[str, Any]) -> str:
    """A metric's quantity, with a word on errors; its unit is in the columns' titles."""
    return f"{metric['quantity']}{' (lower is better)' if metric['higher_is_better'] is False else ''}"


def _tables(rows: list[dict[str, Any]], about: str, caption: str) -> Group:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        graph = row.get("test_graph") or row["protocol"]["test_graph"]
        groups.setdefault((row["stream"], graph), []).append(row)
    tables: list[Table | str] = []
    for (stream, graph), members in groups.items():
        metrics = {metric["name"]: metric for row in members if (metric := _metric_of(row))}
        measured = next(iter(metrics.values())) if len(metrics) == 1 else None
        named = f"{_in_words(measured)}, " if measured and measured["name"] != PLAIN else ""
        title = f"{stream}: {about}{named}test graph {graph}"
        if leak := members[0].get("leak"):
            title += f"; leak score {leak['mean']:.1f} (chance {leak['chance']:.1f})"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", min_width=8)
        unit = metric_unit([{"protocol": row.get("protocol", row)} for row in members])
        for name in (f"AP{unit}", f"AF{unit}", "seconds", "bytes kept"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("keeps; uses", min_width=11)
        for row, (ap, af) in zip(members, told.ap_and_af(members)):
            numbers = [ap, af, f"{row['seconds']:.1f}", told.show_bytes(row["kept_bytes"])]
            access = "; ".join(word for word in (told.keeps(row), told.uses(row)) if word != "–")
            table.add_row(_Hyphenated(row_label(row)), *numbers, access)
        tables.append(table)
    return Group(*tables, caption, *([told.LEAK] if any(row.get("leak") for row in rows) else []))
