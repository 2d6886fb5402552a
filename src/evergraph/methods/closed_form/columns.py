"""The closed form where examples have a row of labels or numbers in place of a class."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.errors import EvergraphError
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE
from evergraph.problems.base import Problem


def check_targets(context: Context, columns: int) -> None:
    """Refuse what one matrix G for all columns cannot express: targets that are known of some examples alone.

    Args:
        context: the task.
        columns: how many columns the tasks before had; 0 for none before.
    """
    graph, name = context.task.graph, context.problem.name
    if columns and columns != context.num_seen and not graph.has_classes:
        raise EvergraphError(
            f"analytic: {graph.name} brings a column that earlier tasks did not have, and their examples are gone; "
            "use curvature, ewc, mas or lwf"
        )
    used = torch.cat([context.task.train, context.task.val]).to(context.device)
    if bool(context.batcher.y[used].isnan().any()):
        raise EvergraphError(
            f"analytic: {graph.name} has examples of which some targets are not known, and {name} in closed form needs "
            "all; use curvature, ewc, mas or lwf"
        )


def negative_errors(context: Context, heads: list[Tensor]) -> Tensor:
    """−Σ ‖φ W − y‖² over the task's validation examples, this process's own, for each head."""
    features, _ = linear_head(context.model)
    total = torch.zeros(len(heads), dtype=torch.float64)
    examples = context.own(context.task.val).to(context.device)
    for batch in context.batcher.exact().batches(examples, NODES_AT_ONCE) if examples.numel() else ():
        rows, y = features(batch).double(), batch.y.double()
        total -= torch.stack([(rows @ head[:, : y.size(1)] - y).square().sum() for head in heads]).cpu()
    return total


def as_outputs(problem: Problem, scores: Tensor, temperature: float) -> Tensor:
    """Least-squares scores as the problem's outputs: logits of classes or of labels, and numbers as they are.

    A label's score is near 1 where it holds and near 0 where it does not: ½ is as probable as not.
    """
    if problem.kind == "numbers":
        return scores
    return (scores - 0.5 if problem.kind == "labels" else scores) / temperature
