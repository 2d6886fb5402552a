"""Predictions on a graph in parts: one Parquet file per part, written by the process that holds the part."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from evergraph.core.workers import ConnectionLostError, Workers, join_workers
from evergraph.data import Graph
from evergraph.data.parts import part_sizes, read_parts
from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.files import make_folder, remove_file, write_atomically
from evergraph.training import Learner, Prediction
from evergraph.training.parts import NODES_IN_PIECE


def predict_parts(
    graph: str,
    checkpoint: Path,
    out: Path | None,
    device: str,
    *,
    check: Callable[[Graph, Learner, Path], None] | None,
    predict: Callable[[Learner, Graph, Tensor], Prediction],
    as_bytes: Callable[[Prediction], bytes],
) -> None:
    """Predict the nodes of a graph in parts.

    Args:
        graph: folder of the graph.
        checkpoint: folder of the learner.
        out: folder of the predictions; it must not exist, and appears when all predictions are written.
        device: where to compute.
        check: raises for a graph with labels that the learner has not learned.
        predict: predicts some of this process's nodes.
        as_bytes: converts a prediction to a file's content.
    """
    if out is None or out.suffix:
        raise EvergraphError(f"{graph} is in parts; name a folder for their predictions with --out")
    group = join_workers()
    learner = Learner.load(checkpoint, device=device)
    data, own = read_parts(graph)
    assert data.rows is not None
    if check is not None:
        check(data, learner, checkpoint)
    sizes, first = part_sizes(graph), 0
    with filled_together(out, [f"part-{number:05d}.parquet" for number in own], group) as files:
        for number, file in zip(own, files):
            rows = torch.arange(first, first + sizes[number])
            found = joined([predict(learner, data, piece) for piece in rows.split(NODES_IN_PIECE)])
            found.nodes = found.nodes + data.rows.start
            write_atomically(file, as_bytes(found))
            first += sizes[number]
    sys.stdout.write(f"{out}: {len(sizes)} files, {sum(sizes)} nodes\n")


@contextmanager
def filled_together(folder: Path, names: list[str], group: Workers) -> Iterator[list[Path]]:
    """Yield the files that this process has to write in a new folder, renamed when all processes have written theirs.

    Until then the folder has a hidden name beside the final one. The processes of a machine share it; machines need no
    common file system.
    """
    if os.path.lexists(folder):
        raise EvergraphError(f"{folder} exists; name a folder that does not with --out")
    hidden = folder.with_name(f".{folder.name}.{group.everywhere(os.urandom(4).hex())}.part")
    make_folder(hidden, "name another with --out")
    files = [hidden / name for name in names]
    try:
        yield files
        group.barrier()
        with suppress(FileNotFoundError):  # another process of this machine was first
            hidden.rename(folder)
    except ConnectionLostError:  # no process continues, so a killed process's files can go too
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); name another with --out") from None
    finally:
        for file in files:
            remove_file(file)
        with suppress(OSError):  # other processes' files may still be there
            hidden.rmdir()


def joined(predictions: list[Prediction]) -> Prediction:
    """Concatenate the predictions of several sets of nodes."""
    first = predictions[0]
    return Prediction(
        torch.cat([prediction.nodes for prediction in predictions]),
        [label for prediction in predictions for label in prediction.labels],
        torch.cat([prediction.probabilities for prediction in predictions]),
        classes=first.classes,
        table=None if first.table is None else torch.cat([p.table for p in predictions if p.table is not None]),
    )
