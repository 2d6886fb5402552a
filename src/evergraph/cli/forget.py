"""`evergraph forget`: make a saved learner forget nodes or classes, as if it had never learned them."""

from __future__ import annotations

from typing import Annotated

import typer

from evergraph.cli import common, flags, parsing, printing
from evergraph.cli.predict import Nodes, parse_nodes
from evergraph.data import find_graph
from evergraph.errors import EvergraphError, counted
from evergraph.training import Learner
from evergraph.training.driver import change_in_folder
from evergraph.training.forgetting import is_open


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("forget")(forget_command)


def forget_command(
    graph: flags.GraphSource,
    checkpoint: flags.Checkpoint,
    nodes: Nodes = None,
    classes: Annotated[
        list[str] | None, typer.Option(help="All nodes of these classes (comma-separated names, or repeat it).")
    ] = None,
    later: Annotated[
        list[str] | None,
        typer.Option(help="A graph that was learned later; with all of them, choices are made again."),
    ] = None,
    keep_in_graph: Annotated[
        bool, typer.Option("--keep-in-graph", help="Keep the nodes in the graph as unlabelled neighbours.")
    ] = False,
    json: flags.Json = False,
    directed: flags.Directed = None,
    device: flags.Device = "auto",
    data_root: flags.DataRoot = None,
) -> None:
    """Forget nodes or classes as if they had never been learned. Give the graph they were learned from.

    Without --nodes and --classes, what earlier calls left to do for lack of data is done with the data given now.

    Exact for auto and analytic, where examples have classes; other methods cannot forget, nor can any method forget
    examples with labels or numbers, and the error says what is possible.
    """
    if nodes and classes:
        raise EvergraphError("--nodes and --classes both say what to forget; give one of the two")

    def change(learner: Learner) -> int:
        if not nodes and not classes and not is_open(learner):
            raise EvergraphError("say what to forget: --nodes 3,17 or --classes spam")
        undirected, numbers = common.undirected(directed), learner.problem.kind == "numbers"
        data = [find_graph(source, data_root, undirected, numbers)[0] for source in (graph, *(later or ()))]
        named = parsing.class_names(classes)
        chosen = [] if not nodes and not classes else parse_nodes(nodes, data[0])
        return learner.forget(chosen, data, classes=named, keep_in_graph=keep_in_graph)

    learner, forgotten = change_in_folder(checkpoint, change, device=device)
    if json:
        printing.print_json({"checkpoint": str(checkpoint), "forgotten": forgotten, "classes": learner.classes_})
        return
    print(f"forgot {counted(forgotten, learner.problem.level)}; {common.known_now(learner, checkpoint)}")
