"""`evergraph convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergraph.cli import common


def add_commands(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("convert")(convert_command)


def convert_command(
    stream: common.Stream,
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    json: common.Json = False,
    directed: common.Directed = False,
    data_root: common.DataRoot = None,
) -> None:
    """Write a graph as a folder of mapped arrays: used in place of a file, it is read as needed, not as a whole."""
    from evergraph.data import find_graph
    from evergraph.data.mapped import write_mapped

    graph, _ = find_graph(stream, data_root, False if directed else None)
    write_mapped(graph, folder)
    if json:
        common.print_json({"folder": str(folder), "nodes": graph.num_nodes, "edges": graph.num_edges})
        return
    print(f"{folder}: {graph.num_nodes} nodes, {graph.num_edges} edges; use it as a stream: evergraph run {folder}")
