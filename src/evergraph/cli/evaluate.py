"""`evergraph evaluate`: measure a saved learner on labelled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table

from evergraph.cli import common, flags, parsing, printing
from evergraph.data import Graph, Task, find_graph
from evergraph.data.examples import as_existing_links
from evergraph.errors import EvergraphError
from evergraph.evaluation import METRICS
from evergraph.problems import LinkPrediction
from evergraph.training import Learner
from evergraph.training.learned_data import classes_given, trained_on, without_forgotten

HELD_OUT, SPLIT, TRAINED, ALL = "held out", "test split", "trained on", "all labelled"
"""Which examples are measured: those held out when the graph was learned; those that learning it would hold out; either
of these, but the learner was trained on some of them; or all."""


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("evaluate")(evaluate_command)


def evaluate_command(
    graphs: Annotated[
        list[str],
        typer.Argument(help="Labelled graphs: files (.npz, .pt), tables (nodes.csv:edges=edges.csv) or folders."),
    ],
    checkpoint: flags.Checkpoint,
    classes: Annotated[
        list[str] | None, typer.Option(help="Only examples of these classes (comma-separated names, or repeat it).")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All labelled examples: for graphs that were never learned.")
    ] = False,
    metric: flags.Metric = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Also show the accuracy of each class.")] = False,
    json: flags.Json = False,
    directed: flags.Directed = None,
    device: flags.Device = "auto",
    data_root: flags.DataRoot = None,
) -> None:
    """Measure a saved learner on labelled graphs, such as the months so far.

    A graph that was learned is measured on the examples held out then, any other graph on those that learning it would
    hold out (a fifth, or its test mask) or, with --all, on all that have a label. If only some of a graph's classes
    were learned, name the same ones with --classes.
    """
    learner = Learner.load(checkpoint, device=device)
    if by_class and learner.problem.kind != "classes":
        raise EvergraphError(f"--by-class is for examples with classes; {checkpoint} predicts {learner.problem.kind}")
    if by_class and metric not in (None, "accuracy", "balanced-accuracy"):
        raise EvergraphError(f"--by-class shows accuracies; leave --metric {metric} out")
    numbers = learner.problem.kind == "numbers"
    data = [find_graph(source, data_root, common.undirected(directed), numbers)[0] for source in graphs]
    if learner.problem.name == LinkPrediction.name:
        data = [as_existing_links(graph) for graph in data]
    for source, graph in zip(graphs, data):
        if not bool(graph.labelled.any()):
            raise EvergraphError(f"{source}: no {graph.level} has a label to compare predictions with")
    named, measured = parsing.class_names(classes), []
    for index, own in enumerate(data):
        names = _as_learned(learner, own, named)
        task = Task.of(own, names, seed=learner.seed, index=index, numbers=numbers)
        measured.append(_everything(task, names) if everything else _held_out(learner, task))
    evaluation = learner.evaluate([task for task, _ in measured], metric=metric)
    measured = [(without_forgotten(learner, task), which) for task, which in measured]
    rows = [
        {"graph": source, "examples": task.test.numel(), "which": which, "now": now, "then": then}
        | ({"classes": _by_class(learner, task)} if by_class else {})
        for source, (task, which), now, then in zip(graphs, measured, evaluation.accuracies, evaluation.first)
    ]
    name, af = metric or learner.problem.metric, evaluation.af if len(rows) > 1 else None
    if json:
        printing.print_json(
            {"checkpoint": str(checkpoint), "metric": name, "graphs": rows, "ap": evaluation.ap, "af": af}
        )
        return
    written = partial(METRICS[name].written, decimals=2)
    _print(METRICS[name].title, learner.problem.level, rows, written)
    if len(rows) > 1:
        printing.console().print(f"AP {written(evaluation.ap)}" + ("" if af is None else f"   AF {written(af)}"))


def _as_learned(learner: Learner, graph: Graph, names: list[str] | None) -> list[str] | None:
    """Return class names in the order in which a task of the same classes was learned, so that it is recognized."""
    learned = ([str(name) for name in classes_given(learner, number, graph)] for number in range(learner.num_tasks))
    return next((own for own in learned if names is not None and sorted(own) == sorted(names)), names)


def _held_out(learner: Learner, task: Task) -> tuple[Task, str]:
    """Return the task that learning a graph would make of it, and which examples its test examples are."""
    if trained_on(learner, task):
        return task, TRAINED
    return task, SPLIT if learner.learned_as(task) is None else HELD_OUT


def _everything(task: Task, names: Sequence[str] | None) -> tuple[Task, str]:
    """Return a task with all labelled examples, of the named classes if given, as test examples, whatever its split."""
    graph = task.graph
    if graph.level == "link":
        raise EvergraphError(f"--all: some links of {graph.name} are edges to test the others along; leave it out")
    chosen, positions = graph.labelled, list(task.class_positions)
    if graph.has_classes:
        present = torch.unique(graph.y[chosen]).tolist()
        positions = [place for place in present if names is None or str(graph.class_names[place]) in names]
        chosen = torch.isin(graph.y, torch.tensor(positions))
    return replace(task, class_positions=positions, test=torch.nonzero(chosen).reshape(-1)), ALL


def _by_class(learner: Learner, task: Task) -> list[dict[str, Any]]:
    """Count a task's measured examples, and the correctly classified ones, by class."""
    truth = learner.problem.targets(task.graph, learner.classes_)[task.test]
    correct = learner.outputs(task.graph, task.test)[:, : len(learner.classes_)].argmax(1) == truth
    return [
        {"class": name, "examples": int((truth == unit).sum()), "correct": int(correct[truth == unit].sum())}
        for unit, name in enumerate(learner.classes_)
        if (truth == unit).any()
    ]


def _print(title: str, level: str, rows: Sequence[dict[str, Any]], written: Callable[[float], str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("graph")
    for name in (f"{level}s", "which", title, "when learned"):
        table.add_column(name, justify="right")
    for row in rows:
        then = "–" if row["then"] is None else written(row["then"])
        table.add_row(row["graph"], f"{row['examples']:,}", row["which"], written(row["now"]), then)
        for own in row.get("classes", ()):
            share = 100 * own["correct"] / own["examples"]
            table.add_row(f"  class {own['class']}", f"{own['examples']:,}", "", f"{share:.2f}", "")
    printing.console().print(table)
