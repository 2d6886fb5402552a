"""`evergraph why`: the neighbours and features that contribute most to a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergraph.cli import common, flags, printing
from evergraph.cli.predict import parse_nodes
from evergraph.data import ClassName, find_graph
from evergraph.errors import EvergraphError
from evergraph.training import Learner
from evergraph.training.why import LISTED


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("why")(why_command)


def why_command(
    graph: flags.GraphSource,
    checkpoint: flags.Checkpoint,
    node: Annotated[
        list[str], typer.Option(help="The node: its id if the graph has ids, otherwise its number from 0.")
    ],
    label: Annotated[
        str | None, typer.Option("--class", help="The class to explain; the predicted one by default.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Explain why it is not this class.")] = None,
    most: Annotated[
        int | None, typer.Option(help="How many nodes and features to list (default: 5, or all with --json).", min=1)
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the explanation to a .png, .pdf or .svg file.")] = None,
    json: flags.Json = False,
    directed: flags.Directed = None,
    device: flags.Device = "auto",
    data_root: flags.DataRoot = None,
) -> None:
    """Explain a node's prediction: how much each neighbour and each feature adds to its logit."""
    learner = Learner.load(checkpoint, device=device)
    data = find_graph(graph, data_root, common.undirected(directed), learner.problem.kind == "numbers")[0]
    asked = parse_nodes(node, data, "--node") or []
    if len(asked) != 1:
        raise EvergraphError(f"--node {','.join(node)}: name one node")
    found = learner.why(data, asked[0], _known(label, learner), against=_known(against, learner))
    if picture is not None:
        found.draw(picture, most or LISTED)
    if json:
        printing.print_json(found.as_dict(most))
        return
    print(found.text(most or LISTED))


def _known(name: str | None, learner: Learner) -> ClassName | None:
    """The class of that name as the learner stores it, which may be a number."""
    return next((known for known in learner.classes_ if str(known) == name), name)
