"""`evergraph predict`: a saved learner's predictions on a graph, as a table."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from evergraph.cli import common, flags, parsing, together
from evergraph.cli.parts import predict_parts
from evergraph.core.workers import launched
from evergraph.data import Graph, find_graph
from evergraph.data.from_tables import is_table, table_files
from evergraph.data.mapped import is_parts
from evergraph.data.targets import as_known
from evergraph.errors import EvergraphError, counted, first_line
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_csv
from evergraph.training import Learner, Prediction
from evergraph.training.inputs import example_ids

Nodes = Annotated[
    list[str] | None,
    typer.Option(help="Nodes, comma-separated (or repeat it): by id if the graph has ids, otherwise by number from 0."),
]


def add_commands(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("predict")(predict_command)


def predict_command(
    graph: flags.GraphSource,
    checkpoint: flags.Checkpoint,
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file (a new folder for a graph in parts); by default CSV on stdout."),
    ] = None,
    processes: together.Processes = 1,
    nodes: Nodes = None,
    classes: Annotated[
        list[str] | None, typer.Option(help="Choose only among these classes (comma-separated names, or repeat it).")
    ] = None,
    all_classes: Annotated[
        bool, typer.Option("--all-classes", help="Add a column with the probability of each class.")
    ] = False,
    unknown: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Flag nodes of classes never learned, at this rate of false alarms (e.g. 0.05). Adds the columns "
            "strangeness and unknown.",
        ),
    ] = None,
    uncalibrated: Annotated[bool, typer.Option("--uncalibrated", help="Do not calibrate probabilities.")] = False,
    ignore_labels: Annotated[
        bool, typer.Option("--ignore-labels", help="Predict even if the graph's labels name classes never learned.")
    ] = False,
    directed: flags.Directed = None,
    device: flags.Device = "auto",
    data_root: flags.DataRoot = None,
) -> None:
    """Predict the most probable class of every example: columns node, class, probability.

    For graphs the first column is graph instead of node; for links there are link, source and target. If examples have
    several labels or numbers, each has its own column instead of class and probability.
    """
    if unknown is not None and 1 <= unknown < 100:
        raise EvergraphError(f"--unknown {unknown:g}: the rate is a share, not a percentage; write {unknown / 100:g}")
    if processes > 1 and launched() == 1:
        raise typer.Exit(together.launch(processes))
    if is_parts(graph):
        for option, given in (
            ("--nodes", nodes),
            ("--unknown", unknown),
            ("--directed" if directed else "--undirected", directed),
        ):
            if given not in (None, []):
                raise EvergraphError(f"{graph} is in parts, all of which are predicted as they are; leave out {option}")
        pyarrow = _parquet()
        predict_parts(
            graph,
            checkpoint,
            out,
            device,
            check=None if ignore_labels else _check_labels,
            predict=lambda learner, data, rows: _predicted(learner, data, rows, classes, None, uncalibrated),
            as_bytes=lambda prediction: _as_parquet(prediction.as_columns(all_classes=all_classes), pyarrow),
        )
        return
    if launched() > 1:
        raise EvergraphError(f"{graph} is not a graph in parts; predict it in one process, or convert it with --parts")
    parquet = _parquet() if out is not None and _checked_format(out, graph) == ".parquet" else None
    learner = Learner.load(checkpoint, device=device)
    data = find_graph(graph, data_root, common.undirected(directed), learner.problem.kind == "numbers")[0]
    if not ignore_labels and unknown is None:
        _check_labels(data, learner, checkpoint)
    prediction = _predicted(learner, data, parse_nodes(nodes, data), classes, unknown, uncalibrated)
    columns = prediction.as_columns(all_classes=all_classes)
    if out is None:
        sys.stdout.write(_as_csv(columns))
        return
    write_atomically(out, _as_csv(columns) if parquet is None else _as_parquet(columns, parquet))
    sys.stdout.write(f"{counted(len(prediction), 'prediction')}: {out}\n")


def _checked_format(out: Path, graph: str) -> str:
    """The ending of the file to write; raises if it says nothing about the format, or if the graph is read from it."""
    if out.suffix not in {".csv", ".parquet"}:
        raise EvergraphError(f"--out {out}: cannot tell the format; end the name in .csv or .parquet")
    if read := _file_read(out, graph):
        raise EvergraphError(f"--out {out} would overwrite {read}, which is read; name another file")
    return out.suffix


def _file_read(out: Path, graph: str) -> str:
    """The graph's own file that `out` would overwrite, under whatever name; empty if there is none."""
    files = table_files(graph) if is_table(graph) else [Path(graph)]
    return next((str(path) for path in files if out.exists() and path.exists() and out.samefile(path)), "")


def _predicted(
    learner: Learner, data: Graph, nodes: Any, classes: list[str] | None, unknown: float | None, uncalibrated: bool
) -> Prediction:
    """Predict as the options request; classes are named as on the command line."""
    by_name = {str(name): name for name in learner.classes_}
    chosen = [by_name.get(name, name) for name in parsing.class_names(classes) or ()]
    return learner.predict(data, nodes, classes=chosen or None, unknown=unknown, calibrated=not uncalibrated)


def parse_nodes(texts: list[str] | None, graph: Graph, option: str = "--nodes") -> list[int] | list[str] | None:
    """Parse comma-separated nodes, given once or several times: ids if the graph has ids, else numbers."""
    names = parsing.class_names(texts, option)
    if names is None or example_ids(graph) is not None:
        return names
    if odd := [name for name in names if not name.isdecimal()]:
        raise EvergraphError(
            f"{option} {odd[0]}: the {graph.level}s of {graph.name} have no ids; give their numbers, from 0 to "
            f"{graph.num_examples - 1}"
        )
    return [int(name) for name in names]


def _check_labels(data: Graph, learner: Learner, checkpoint: Path) -> None:
    """Raise if labels name classes that were never learned: their nodes can only be misclassified."""
    if not data.has_classes:
        return
    sizes = data.class_sizes() if data.rows is None else data.rows.group.sum([data.class_sizes()])[0]
    present = [name for name, size in zip(data.class_names, sizes.tolist()) if size]
    missing = [name for name in as_known(present, learner.classes_) if name not in learner.classes_]
    if missing:
        raise EvergraphError(
            f"{data.name}: unknown classes {parsing.listed(missing)}: {checkpoint} has not learned them; learn them "
            f"first, {'' if data.rows else 'add --unknown 0.05 to flag such nodes, or '}add --ignore-labels to "
            "choose among the classes it knows"
        )


def _as_csv(columns: dict[str, list[Any]]) -> str:
    rows = zip(*columns.values())
    return as_csv(columns, ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows))


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EvergraphError(
            f"a .parquet file needs pyarrow ({first_line(error)}); pip install 'evergraph[parquet]', or write a .csv"
        ) from None
    return pyarrow


def _as_parquet(columns: dict[str, list[Any]], pyarrow: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()
