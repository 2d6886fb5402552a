"""The tables of docs/results-field.md, from `results/paper/field`: every method at equal bytes, stream by stream.

    python -m benchmarks.field

writes them into the page. Nothing is trained: `results/paper/field/README.md` lists the commands that measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown, spread, with_tables
from evergraph.experiments.comparison import table_rows
from evergraph.experiments.paper.protocol import Protocol
from evergraph.experiments.result_file import is_trial, read_results

RESULTS = Path("results/paper/field")
PAGE = Path("docs/results-field.md")
STREAMS = ("coauthor-cs", "amazon-computers", "corafull-knn")
TEST_GRAPHS = ("task", "seen", "node")
HEAD = ("method", "AP / AF on `task`", "AP on `seen`", "AP on `node`", "bytes kept", "seconds per run")


def tables(results: Path = RESULTS) -> str:
    """A table for each stream with measured rows, with the leak score of each test graph above it."""
    measured = {stream: read_results(results / stream) for stream in STREAMS}
    shown = [table(stream, found) for stream, found in measured.items() if not all(map(is_trial, found))]
    return "\n\n".join(shown) or "Not measured yet."


def table(stream: str, entries: Mapping[str, dict[str, Any]]) -> str:
    """One stream's table: a line for each row title of the protocol, with all test graphs."""
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
    return f"{title}\n\n{markdown(HEAD, [[label, *_cells(graphs)] for label, graphs in lines.items()])}"


def _cells(graphs: dict[str, dict[str, Any]]) -> list[str]:
    """A method's cells; a dash where it was not measured."""
    first = next(iter(graphs.values()))
    cells = [spread(graphs[graph]["ap"]) if graph in graphs else "–" for graph in TEST_GRAPHS]
    if "task" in graphs:
        cells[0] += f" / {spread(graphs['task']['af'])}"
    return [*cells, f"{first['kept_bytes']:,}", f"{first['seconds']:.1f}"]


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
