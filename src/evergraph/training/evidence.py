"""Statistics of a task's validation examples, for calibrated probabilities and for detecting unknown classes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.data import Graph, Task
from evergraph.data.targets import as_known
from evergraph.methods import Context, View
from evergraph.training.calibration import GRID, losses_at_temperatures
from evergraph.training.parts import outputs_in_pieces
from evergraph.training.unknown import confidence, counted, separations

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

Evidence = dict[str, Any]
"""Entries of a task's record that were measured on its validation examples."""
BEFORE, AFTER = ("separations",), ("calibration", "familiar")
"""Names of the entries that are measured before the task is learned, and after."""


def strangeness(learner: Learner, graph: Graph, nodes: Tensor, outputs: Tensor | None = None) -> Tensor:
    """One or two numbers per example that say how strange it looks; pass `outputs` if they are known already."""
    claim = learner.method.capability_of_a_part("strangeness")
    if claim is None:
        outputs = learner.outputs(graph, nodes) if outputs is None else outputs
        return confidence(outputs[:, : len(learner.classes_)])
    found: Tensor = claim(View(learner.model.eval(), learner.problem, graph, nodes, learner.device))
    return found


def before_learning(learner: Learner, task: Task) -> Evidence:
    """Measure how well each mixture separates examples of new classes, while these are still unknown."""
    known = set(learner.classes_)
    tables = [record["familiar"] for record in learner.records if record.get("familiar")]
    if not tables or learner.problem.kind != "classes" or not task.val.numel() or task.graph.rows is not None:
        return {}
    new = torch.tensor([name not in known for name in as_known(task.graph.class_names, learner.classes_)])
    strangers = task.val[new[task.graph.y[task.val]]]
    if not strangers.numel() or _width(tables) != 2:
        return {}
    return {"separations": separations(tables, strangeness(learner, task.graph, strangers))}


def after_learning(learner: Learner, task: Task, context: Context) -> Evidence:
    """Measure the validation examples with a model that has not learned from them; nothing if there is none."""
    if learner.problem.kind != "classes" or learner.method.trains_on_validation or not context.count(task.val):
        return {}
    claim = learner.method.capability_of_a_part("held_out")
    held_out: AbstractContextManager[None] = claim(context) if claim is not None else nullcontext()
    if task.graph.rows is not None:
        return _over_parts(learner, task, context, held_out)
    with held_out:
        outputs = learner.outputs(task.graph, task.val)[:, : len(learner.classes_)]
        values = strangeness(learner, task.graph, task.val, outputs)
    targets = learner.problem.targets(task.graph, learner.classes_)[task.val]
    return {"calibration": losses_at_temperatures(learner.problem, outputs, targets), "familiar": counted(values)}


def _over_parts(learner: Learner, task: Task, context: Context, held_out: AbstractContextManager[None]) -> Evidence:
    """Measure the calibration only, summed over the processes that hold the validation examples."""
    targets, losses = learner.problem.targets(task.graph, learner.classes_), torch.zeros(len(GRID), dtype=torch.float64)
    with held_out:
        for piece, outputs in outputs_in_pieces(learner, task.graph, task.val) if task.val.numel() else ():
            known = outputs[:, : len(learner.classes_)]
            losses += torch.tensor(losses_at_temperatures(learner.problem, known, targets[piece]), dtype=torch.float64)
    return {"calibration": context.total(losses).tolist()}


def _width(tables: list[list[list[int]]]) -> int:
    return len(next(row for table in tables for row in table)) - 1
