"""What a method keeps, is told and looks at, as text that tables print beside its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evergraph.data import TEST_GRAPHS
from evergraph.evaluation import decimal_places
from evergraph.experiments.metric_titles import describe_metric
from evergraph.methods import Access

USES = {"old_labels": "old labels", "task_identity": "task identity", "all_data": "all data"}


UNDECLARED = "undeclared"
"""What a method is said to keep that keeps something and declares nothing."""
BOOKKEEPING = 64  # bytes, eight plain numbers: a counter or a running mean keeps nothing of old tasks


def other_test_nodes(access: Access, test_graph: str, level: str = "node") -> str:
    """Which other test examples a prediction may depend on: `none`, the `neighbours` that the model reads, or `all`.

    If examples are graphs, no other test graph is read; no message passes along a test link.
    """
    if TEST_GRAPHS[test_graph].alone:
        return "none"
    return "all" if access.transductive else "neighbours" if level == "node" else "none"


def keeps(result: Mapping[str, Any]) -> str:
    """The kinds of data that the method keeps, as text; `UNDECLARED` if it keeps something and declares nothing."""
    kinds = result.get("access", {}).get("keeps")
    if isinstance(kinds, str):  # in a report
        return kinds
    if kinds:
        return ", ".join(kinds)
    return UNDECLARED if kinds is not None and (bytes_kept(result) or 0) > BOOKKEEPING else "nothing"


def undeclared(results: Iterable[Mapping[str, Any]]) -> str:
    """Say which methods keep something and declare nothing; empty if none does."""
    names = dict.fromkeys(str(result["method"]) for result in results if keeps(result) == UNDECLARED)
    if not names:
        return ""
    return (
        f"{', '.join(names)}: keeps something of earlier tasks and declares nothing, so it does not compete with "
        "methods without old data; declare what it keeps: access = eg.Access(keeps=(…))"
    )


def uses(result: Mapping[str, Any]) -> str:
    """What the method uses besides the current task and the model, as text."""
    words = [word for key, word in USES.items() if result.get("access", {}).get(key)]
    if result.get("test_nodes_read") == "all":
        words.append("all test nodes")
    return ", ".join(words) or "–"


def bytes_kept(result: Mapping[str, Any]) -> int | None:
    """Bytes kept after the last task, maximum over seeds; None if they were not counted."""
    counted = result.get("kept_bytes") or []
    if isinstance(counted, int):  # in a row of a table
        return counted
    return max((values[-1] for values in counted if values), default=None)


def show_bytes(number: int | None) -> str:
    """Format a number of bytes in decimal units, as the report prints them."""
    if number is None:
        return "–"
    size, unit = float(number), 0
    while size >= 1000 and unit < 4:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}" if unit else f"{number} B"


def mean_and_spread(value: Mapping[str, float], runs: int, digits: int = 2) -> str:
    """Format as mean ± std; the mean alone if there was one run, which has no spread."""
    mean = f"{value['mean']:z.{digits}f}"
    return f"{mean} ± {value['std']:.{digits}f}" if runs > 1 else mean


def markdown_row(cells: Iterable[Any]) -> str:
    """A row of a table in Markdown; a bar in a name does not end its cell."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def ap_and_af(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """AP and AF of results or rows of a table, as text, with the decimal places that their metric needs.

    Rows of one stream, test graph and metric have the same number of them.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    keys = []
    for row in rows:
        own = row.get("protocol", row)
        keys.append((str(row["stream"]), str(own.get("test_graph")), describe_metric({"protocol": own})["name"]))
        groups.setdefault(keys[-1], []).append(row)
    digits = {}
    for key, members in groups.items():
        unit = describe_metric({"protocol": {"metric": key[-1]}})["unit"]
        values = [row[measure]["mean"] for row in members for measure in ("ap", "af")]
        digits[key] = decimal_places(values, unit, percent=2)
    return [
        (mean_and_spread(row["ap"], row["runs"], digits[key]), mean_and_spread(row["af"], row["runs"], digits[key]))
        for row, key in zip(rows, keys)
    ]


LEAK = "leak score: percent of tests whose task the nearest mean of features names (docs/concepts.md#leak-score)"


def leak_text(result: Mapping[str, Any]) -> str:
    """The leak score of a result's test graph, in percent."""
    leak = result.get("leak")
    return f"{leak['mean']:.1f}" if leak else "–"
