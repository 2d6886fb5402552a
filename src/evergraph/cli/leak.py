"""`evergraph leak`: how much a stream's test graphs reveal about the task."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from evergraph.cli import flags, parsing, printing
from evergraph.data import DEFAULT_STREAM, TEST_GRAPHS, leak_score, stream
from evergraph.evaluation import mean_std
from evergraph.experiments.told import LEAK, mean_and_spread

STREAM_OPTIONS = ("order", "classes_per_task", "min_class_size", "edges_between_tasks", "data_root")


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("leak")(leak_command)


@flags.takes_options(*STREAM_OPTIONS)
def leak_command(
    options: dict[str, Any],
    streams: Annotated[
        list[str] | None, typer.Argument(help="Streams' names or paths of graph files; digits by default.")
    ] = None,
    seeds: flags.Seeds = 3,
    json: flags.Json = False,
) -> None:
    """Measure how much each test graph reveals: how often the right task is guessed from mean features alone.

    Nothing is trained. A score of 100 means that the test graph gives the task away.
    """
    chosen = {**options, "order": parsing.parse_order(options["order"])}
    rows: list[dict[str, Any]] = []
    for name in streams or [DEFAULT_STREAM]:
        split = [stream(name, seed=seed, **chosen) for seed in range(seeds)]
        for graph in TEST_GRAPHS:
            scores = [leak_score(tasks, graph) for tasks in split]
            leak = {**mean_std(scores), "values": scores, "chance": 100 / len(split[0])}
            rows.append({"stream": name, "test_graph": graph, "tasks": len(split[0]), "leak": leak})
    if json:
        printing.print_json(rows)
        return
    caption = f"{'mean ± std over seeds; ' if seeds > 1 else ''}{LEAK}"
    table = Table("stream", "test graph", caption=caption, caption_justify="left")
    for title in ("tasks", "leak score (%)", "chance (%)"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        numbers = [str(row["tasks"]), mean_and_spread(row["leak"], seeds), f"{row['leak']['chance']:.1f}"]
        table.add_row(row["stream"], row["test_graph"], *numbers)
    printing.console().print(table)
