"""Predictions on a graph in parts: a Parquet file for each, written by the process that holds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from evergraph.core.workers import join_workers
from evergraph.data import Graph
from evergraph.data.parts import part_sizes, read_parts
from evergraph.errors import EvergraphError
from evergraph.persistence.files import make_folder, write_atomically
from evergraph.training import Learner, Prediction
from evergraph.training.parts import NODES_AT_ONCE


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
        graph: its folder.
        checkpoint: the learner's folder.
        out: the folder of the predictions.
        device: where to compute.
        check: refuses a graph whose labels the learner has never met.
        predict: what the learner says of some of this process's nodes.
        as_bytes: from a prediction to a file's content.
    """
    if out is None or out.suffix:
        raise EvergraphError(f"{graph} is in parts; name a folder for their predictions with --out")
    group = join_workers()
    learner = Learner.load(checkpoint, device=device)
    data, own = read_parts(graph)
    assert data.rows is not None
    if check is not None:
        check(data, learner, checkpoint)
    make_folder(out, "name another with --out")
    sizes, first = part_sizes(graph), 0
    for number in own:
        rows = torch.arange(first, first + sizes[number])
        found = joined([predict(learner, data, piece) for piece in rows.split(NODES_AT_ONCE)])
        found.nodes = found.nodes + data.rows.start
        write_atomically(out / f"part-{number:05d}.parquet", as_bytes(found))
        first += sizes[number]
    group.barrier()
    sys.stdout.write(f"{out}: {len(sizes)} files, {sum(sizes)} nodes\n")


def joined(predictions: list[Prediction]) -> Prediction:
    """Predictions of some nodes and of others as one."""
    first = predictions[0]
    return Prediction(
        torch.cat([prediction.nodes for prediction in predictions]),
        [label for prediction in predictions for label in prediction.labels],
        torch.cat([prediction.probabilities for prediction in predictions]),
        classes=first.classes,
        table=None if first.table is None else torch.cat([p.table for p in predictions if p.table is not None]),
    )
