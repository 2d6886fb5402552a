"""How predictions fare where edges join tasks, rehearsed within one task: its classes play the tasks.

Training sees the edges within a task alone, so nothing of a stream tells how a head does on a graph with edges between
tasks. But a task with several classes can show it in small. The edges between its classes are cut, heads are learned
on the cut graph, and validation nodes are predicted on the graph as it is. Test nodes take no part: they and their
edges are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.sparse import SparseMatrix, with_self_loops
from evergraph.methods.base import Context
from evergraph.methods.closed_form.factored import FactoredSums, weighed
from evergraph.methods.closed_form.hits import rows_of

if TYPE_CHECKING:
    from evergraph.methods.closed_form.auto import Auto

ENOUGH = 1000  # validation nodes, over all tasks, after which nothing is rehearsed any more


def rehearse(
    method: Auto, context: Context, ways_elsewhere: Mapping[str, tuple[float, Sequence[bool]]]
) -> dict[str, int] | None:
    """How many validation nodes are put right by the head, by the vote, and by heads of other ridges and blocks.

    None where there is nothing to rehearse: one class, no validation node, no edge between classes, or a graph whose
    features do not fit into memory.
    """
    model, task, batcher = context.model, context.task, context.batcher
    graph_features = capable(model, "graph_features")
    y, device = batcher.y, context.device
    if batcher.num_hops or graph_features is None or not task.val.numel() or not method.factor_:
        return None
    nodes = torch.cat([task.train, task.val])
    part = task.graph.subgraph(nodes)
    labels, dtype = y[nodes.to(device)], next(model.parameters()).dtype
    classes, labels = torch.unique(labels, return_inverse=True)
    adjacency, x = part.adjacency.to(dtype).to(device), part.x.to(dtype).to(device)
    alike = labels[adjacency.row_of_entry()] == labels[adjacency.indices]
    if classes.numel() < 2 or bool(alike.all()):
        return None
    cut = _without(adjacency, ~alike)
    rows = graph_features(x, with_self_loops(cut))[: task.train.numel()]
    weights = torch.bincount(labels[: rows.size(0)], minlength=classes.numel()).double().clamp(min=1) ** -method.balance
    factor = weighed(rows, labels[: rows.size(0)], weights[labels[: rows.size(0)]], classes.numel())
    _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
    sums = FactoredSums({"train": factor}, block_of_row)

    def solved(ridge: float, blocks: Sequence[bool]) -> Tensor:
        return sums.solve([ridge], ("train",), rows_of(block_of_row, blocks))[0].to(dtype)

    ridge = method.chosen_ridge()
    prediction = replace(
        method._prediction(model),
        head=solved(ridge, method.blocks_),
        vote=torch.stack([solved(min(ridge, 1.0), voice) for voice in method.voices(model)]).sum(0),
        task_of_unit=torch.arange(classes.numel(), device=device),
        judges=True, votes=True, smooths=False, doubt=-1.0, elsewhere=None,
    )  # fmt: skip
    features, asked = graph_features(x, with_self_loops(adjacency)), slice(rows.size(0), None)
    ways = {
        "head": replace(prediction, votes=False),
        "vote": prediction,
        **{name: replace(prediction, elsewhere=solved(*way)) for name, way in ways_elsewhere.items()},
    }
    scores = {name: way.scores(x, adjacency, features)[asked].argmax(1) for name, way in ways.items()}
    return {name: int((found == labels[asked]).sum()) for name, found in scores.items()}


def _without(adjacency: SparseMatrix, gone: Tensor) -> SparseMatrix:
    """The matrix without some of its entries."""
    kept = ~gone
    indptr = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])[adjacency.indptr]
    return SparseMatrix(indptr, adjacency.indices[kept], adjacency.values[kept], adjacency.num_columns)
