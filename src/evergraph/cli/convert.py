"""`evergraph convert`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from evergraph.cli import common, flags, printing
from evergraph.errors import NumbersError


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("convert")(convert_command)


def convert_command(
    stream: flags.Stream,
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    parts: Annotated[
        int | None, typer.Option(help="Write this many blocks of rows, for processes that share the graph.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split of a graph in parts, if it has none.", min=0)] = 0,
    json: flags.Json = False,
    directed: flags.Directed = None,
    data_root: flags.DataRoot = None,
) -> None:
    """Convert a graph to a folder of mapped arrays, which is read from disk as needed.

    With --parts, the folder holds blocks of rows with a split of their nodes; each of several processes of `evergraph
    learn` and `predict` reads some of the blocks.
    """
    from evergraph.data import find_graph
    from evergraph.data.mapped import not_convertible, write_mapped
    from evergraph.data.parts import write_parts

    try:
        graph, _ = find_graph(stream, data_root, common.undirected(directed))
    except NumbersError:
        raise not_convertible(stream) from None
    if parts is None:
        write_mapped(graph, folder)
    else:
        write_parts(graph, folder, parts, seed)
    if json:
        counts = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        printing.print_json({"folder": str(folder), **counts, **({"parts": parts} if parts is not None else {})})
        return
    if parts is not None:
        options = ["--method", "analytic", "--checkpoint", "CHECKPOINT", "--processes", str(parts)]
        command = shlex.join(["evergraph", "learn", str(folder), *options])
        print(f"{folder}: {graph.num_nodes} nodes, {graph.num_edges} edges in {parts} parts; learn it with: {command}")
        return
    command = shlex.join(["evergraph", "run", str(folder)])
    print(f"{folder}: {graph.num_nodes} nodes, {graph.num_edges} edges; use it as a stream: {command}")
