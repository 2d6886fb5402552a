"""The tables of docs/results-field.md, from `results/paper/field`: every method at equal bytes, stream by stream.

    python -m benchmarks.field

puts them into the page. Nothing is trained: `results/paper/field/README.md` has the commands that measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.problems import BEGIN, END
from evergraph.experiments.comparison import table_rows
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.result_file import is_trial, read_results

RESULTS = Path("results/paper/field")
PAGE = Path("docs/results-field.md")
STREAMS = ("coauthor-cs", "amazon-computers", "corafull-knn")
TEST_GRAPHS = ("task", "seen", "node")
HEAD = (
    "| method | AP / AF on `task` | AP on `seen` | AP on `node` | bytes kept | seconds per run |",
    "|---|--:|--:|--:|--:|--:|",
)


def tables(results: Path = RESULTS) -> str:
    """A table for each stream of which rows have been measured, with the leak score of each test graph above it."""
    measured = {stream: read_results(results / stream) for stream in STREAMS}
    shown = [table(stream, found) for stream, found in measured.items() if not all(map(is_trial, found))]
    return "\n\n".join(shown) or "Not measured yet."


def table(stream: str, entries: Mapping[str, dict[str, Any]]) -> str:
    """One stream's table: a line for each title of the protocol, all test graphs in it."""
    protocol = Protocol.load("field", stream, seeds=1)
    lines: dict[str, dict[str, dict[str, Any]]] = {}
    leaks: dict[str, str] = {}
    for name, row in protocol.rows().items():
        if (key := protocol.key(name)) not in entries:
            continue
        for found in table_rows([entries[key]["result"]]):
            lines.setdefault(row["title"], {}).setdefault(found["test_graph"], found)
            if found["leak"]:
                leaks.setdefault(found["test_graph"], f"{found['leak']['mean']:.0f} on `{found['test_graph']}`")
    told = [leaks[graph] for graph in TEST_GRAPHS if graph in leaks]
    title = f"**{stream}**" + (f" (leak score {', '.join(told)})" if told else "")
    return "\n".join([title, "", *HEAD, *(_line(label, graphs) for label, graphs in lines.items())])


def _line(label: str, graphs: dict[str, dict[str, Any]]) -> str:
    first = next(iter(graphs.values()))
    cells = [_spread(graphs, graph, "ap") for graph in TEST_GRAPHS]
    if "task" in graphs:
        cells[0] += f" / {_spread(graphs, 'task', 'af')}"
    cells += [f"{first['kept_bytes']:,}", f"{first['seconds']:.1f}"]
    return f"| {' | '.join([label, *cells])} |"


def _spread(graphs: dict[str, dict[str, Any]], graph: str, name: str) -> str:
    """Mean and standard deviation; a dash where it was not measured."""
    if graph not in graphs:
        return "–"
    value = graphs[graph][name]
    return f"{value['mean']:.1f} ± {value['std']:.1f}".replace("-", "−")


def main() -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
