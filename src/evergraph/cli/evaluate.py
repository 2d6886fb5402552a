"""`evergraph evaluate`: measure a saved learner on labelled graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table

from evergraph.cli import common, parsing
from evergraph.data import Task, find_graph
from evergraph.errors import EvergraphError
from evergraph.evaluation import METRICS, Evaluation
from evergraph.training import Learner
from evergraph.training.learned_data import trained_on

HELD_OUT, ALL = "held out", "all labelled"  # which examples of a graph are measured


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("evaluate")(evaluate_command)


def evaluate_command(
    graphs: Annotated[
        list[str],
        typer.Argument(help="Labelled graphs: files (.npz, .pt), tables (nodes.csv:edges=edges.csv) or folders."),
    ],
    checkpoint: common.Checkpoint,
    classes: Annotated[str | None, typer.Option(help="Only examples of these classes (comma-separated names).")] = None,
    metric: common.Metric = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Also show the accuracy of each class.")] = False,
    json: common.Json = False,
    directed: common.Directed = False,
    device: common.Device = "auto",
    data_root: common.DataRoot = None,
) -> None:
    """Measure a saved learner on labelled graphs, such as the months so far.

    A graph that was learned is measured on the examples held out then, any other graph on all its labelled examples. If
    only some of a graph's classes were learned, name the same ones with --classes.
    """
    learner = Learner.load(checkpoint, device=device)
    if by_class and learner.problem.kind != "classes":
        raise EvergraphError(f"--by-class is for examples with classes; {checkpoint} predicts {learner.problem.kind}")
    numbers = learner.problem.kind == "numbers"
    data = [find_graph(source, data_root, False if directed else None, numbers)[0] for source in graphs]
    names = parsing.class_names(classes)
    tasks = [Task.of(own, names, seed=learner.seed, index=index, numbers=numbers) for index, own in enumerate(data)]
    measured = [_measured_on(learner, task) for task in tasks]
    evaluation = learner.evaluate([task for task, _ in measured], metric=metric)
    rows = [
        {"graph": source, "examples": task.test.numel(), "which": which, "now": now, "then": then}
        | ({"classes": _by_class(learner, task)} if by_class else {})
        for source, (task, which), now, then in zip(graphs, measured, evaluation.accuracies, evaluation.first)
    ]
    name = metric or learner.problem.metric
    if json:
        common.print_json(
            {"checkpoint": str(checkpoint), "metric": name, "graphs": rows, "ap": evaluation.ap, "af": evaluation.af}
        )
        return
    _print(METRICS[name].title, learner.problem.level, rows, evaluation)


def _measured_on(learner: Learner, task: Task) -> tuple[Task, str]:
    """Return a task whose test examples are those to measure, and which these are."""
    every = replace(task, test=torch.cat([task.train, task.val, task.test]).sort().values)
    if learner.learned_as(task) is None and not trained_on(learner, every):
        return every, ALL
    return task, HELD_OUT


def _by_class(learner: Learner, task: Task) -> list[dict[str, Any]]:
    """Count a task's measured examples, and the correctly classified ones, by class."""
    truth = learner.problem.targets(task.graph, learner.classes_)[task.test]
    correct = learner.outputs(task.graph, task.test)[:, : len(learner.classes_)].argmax(1) == truth
    return [
        {"class": name, "examples": int((truth == unit).sum()), "correct": int(correct[truth == unit].sum())}
        for unit, name in enumerate(learner.classes_)
        if (truth == unit).any()
    ]


def _print(title: str, level: str, rows: Sequence[dict[str, Any]], evaluation: Evaluation) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("graph")
    for name in (f"{level}s", "which", title, "when learned"):
        table.add_column(name, justify="right")
    for row in rows:
        then = "–" if row["then"] is None else f"{row['then']:.2f}"
        table.add_row(row["graph"], f"{row['examples']:,}", row["which"], f"{row['now']:.2f}", then)
        for own in row.get("classes", ()):
            share = 100 * own["correct"] / own["examples"]
            table.add_row(f"  class {own['class']}", f"{own['examples']:,}", "", f"{share:.2f}", "")
    console = common.console()
    console.print(table)
    if len(rows) > 1:
        af = "" if evaluation.af is None else f"   AF {evaluation.af:.2f}"
        console.print(f"AP {evaluation.ap:.2f}{af}")
