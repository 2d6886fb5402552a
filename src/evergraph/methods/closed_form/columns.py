"""The closed form for examples that have a row of labels or numbers instead of a class."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.errors import EvergraphError
from evergraph.methods.base import Context
from evergraph.methods.closed_form.head import linear_head
from evergraph.models.base import NODES_AT_ONCE
from evergraph.problems.base import Problem


def check_targets(context: Context, columns: int) -> None:
    """Refuse targets that are known only for some examples: one matrix G cannot serve all columns then.

    Args:
        context: the task.
        columns: number of columns in earlier tasks; 0 if there were none.
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
    """Return −Σ ‖φ W − y‖² for each head, over this process's share of the task's validation examples."""
    features, _ = linear_head(context.model)
    total = torch.zeros(len(heads), dtype=torch.float64)
    examples = context.own(context.task.val).to(context.device)
    for batch in context.batcher.exact().batches(examples, NODES_AT_ONCE) if examples.numel() else ():
        rows, y = features(batch).double(), batch.y.double()
        total -= torch.stack([(rows @ head[:, : y.size(1)] - y).square().sum() for head in heads]).cpu()
    return total


def as_outputs(problem: Problem, scores: Tensor, temperature: float) -> Tensor:
    """Turn least-squares scores into the problem's outputs: logits of classes or labels; numbers stay as they are.

    A label's score is near 1 if it holds and near 0 if it does not, so at ½ both are equally likely.
    """
    if problem.kind == "numbers":
        return scores
    return (scores - 0.5 if problem.kind == "labels" else scores) / temperature
