"""Predictions on a graph in parts: a Parquet file for each, written by the process that holds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from evergraph.core.workers import join_workers
from evergraph.data.parts import part_sizes, read_parts
from evergraph.errors import EvergraphError
from evergraph.persistence.files import make_folder, write_atomically
from evergraph.training import Learner, Prediction
from evergraph.training.parts import outputs_in_pieces


def predict_parts(graph: str, checkpoint: Path, out: Path | None, device: str, table: Any, as_bytes: Any) -> None:
    """Predict the nodes of a graph in parts.

    Args:
        graph: its folder.
        checkpoint: the learner's folder.
        out: the folder of the predictions.
        device: where to compute.
        table: from a prediction to columns.
        as_bytes: from columns to a file's content.
    """
    if out is None or out.suffix:
        raise EvergraphError(f"{graph} is in parts; name a folder for their predictions with --out")
    group = join_workers()
    learner = Learner.load(checkpoint, device=device)
    data, own = read_parts(graph)
    assert data.rows is not None
    make_folder(out, "name another with --out")
    sizes, first = part_sizes(graph), 0
    for number in own:
        columns: dict[str, list[Any]] = {}
        for piece, outputs in outputs_in_pieces(learner, data, torch.arange(first, first + sizes[number])):
            calibrated = outputs / learner.temperature
            labels, probabilities = learner.problem.read(calibrated, range(len(learner.classes_)), learner.classes_)
            for name, values in table(Prediction(piece + data.rows.start, labels, probabilities)).items():
                columns.setdefault(name, []).extend(values)
        write_atomically(out / f"part-{number:05d}.parquet", as_bytes(columns))
        first += sizes[number]
    group.barrier()
    sys.stdout.write(f"{out}: {len(sizes)} files, {sum(sizes)} nodes\n")
