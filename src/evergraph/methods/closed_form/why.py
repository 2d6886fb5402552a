"""Why a closed form predicts a class, a label or a number at a node: a score is a sum over nodes and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import with_self_loops
from evergraph.errors import EvergraphError
from evergraph.methods.base import View
from evergraph.methods.closed_form.block_prediction import BlockPrediction, Decides, Reading
from evergraph.methods.closed_form.columns import as_outputs
from evergraph.models.score_pieces import Piece


@dataclass
class Reasons:
    """The contributions to a node's logit (before calibration) or number.

    Args:
        logit: output of the unit, or the difference between two.
        constant: the part that depends on no feature.
        by_depth: contributions by number of propagation steps.
        nodes: the nodes that contribute, including the node itself.
        by_node: the contribution of each of these nodes, over all features.
        by_feature: the contribution of each feature, over all nodes.
        between_tasks: whether edges between tasks were found.
        decides: the head that decides: `head` itself, the `vote` of all depths or an `other` one.
        judged: share of the features that it reads over judged edges.
        shares: if probabilities are smoothed, nodes and their parts of the class's probability before calibration.
    """

    logit: float
    constant: float
    by_depth: dict[int, float]
    nodes: Tensor
    by_node: Tensor
    by_feature: Tensor
    between_tasks: bool = False
    decides: Decides = "head"
    judged: float = 0.0
    shares: tuple[Tensor, Tensor] | None = field(default=None)


def reasons(
    view: View,
    units: Sequence[int],
    whole: tuple[BlockPrediction, Reading] | None,
    head: Tensor,
    temperature: float,
) -> Reasons:
    """Decompose one node's output exactly into constant + Σ_u Σ_f contributions (`score_pieces`).

    Args:
        view: the graph; the node is the only requested example.
        units: an output unit; or two, for the first against the second.
        whole: how the graph is read, if it is read as a whole.
        head: the head that is read otherwise.
        temperature: as in `as_outputs`, which makes outputs of scores.
    """
    pieces_of = capable(view.model, "score_pieces")
    if pieces_of is None:
        raise EvergraphError(
            f"{type(view.model).__name__} does not say what carries a score; use random features (auto)"
        )
    node, over = int(view.nodes[0]), [(view.graph.adjacency, 1.0)]
    if whole is not None:
        head, over = whole[1].head.detach(), whole[1].over
    weights = head[:, units[0]] - (head[:, units[1]] if len(units) > 1 else 0)
    zero, one = as_outputs(view.problem, torch.tensor([0.0, 1.0], dtype=torch.float64), temperature).tolist()
    constant, pieces = zero if len(units) == 1 else 0.0, list[Piece]()
    for edges, share in over:
        held, some = pieces_of(view.graph.x, with_self_loops(edges.to("cpu")), node, share * weights * (one - zero))
        constant, pieces = constant + held, pieces + some
    nodes, by_node = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
    by_depth: dict[int, float] = {}
    by_feature = torch.zeros(view.graph.num_features, dtype=torch.float64)
    for piece in pieces:
        nodes, by_node = torch.cat([nodes, piece.nodes]), torch.cat([by_node, piece.by_node()])
        by_feature += piece.by_feature()
        by_depth[piece.depth] = by_depth.get(piece.depth, 0.0) + float(piece.by_feature().sum())
    nodes, place = torch.unique(nodes, return_inverse=True)
    by_node = torch.zeros(nodes.numel(), dtype=torch.float64).index_add_(0, place, by_node)
    found = Reasons(
        constant + sum(by_depth.values()), constant, dict(sorted(by_depth.items())), nodes, by_node, by_feature
    )
    if whole is not None:
        prediction, reading = whole
        found.between_tasks, found.decides, found.judged = reading.between_tasks, reading.decides, reading.judged
        found.shares = _shares(prediction, reading, node, units[0])
    return found


def _shares(prediction: BlockPrediction, reading: Reading, node: int, unit: int) -> tuple[Tensor, Tensor] | None:
    """Return the nodes that a smoothed probability comes from and their parts, which add up to it uncalibrated."""
    if reading.smoothed_over is None:
        return None
    share = prediction.shares(reading.smoothed_over, node, reading.smoothing)
    part = share * prediction.probabilities(reading.features @ reading.head)[:, unit]
    nodes = torch.nonzero(share > 0).reshape(-1)
    return nodes.cpu(), part[nodes].double().cpu()
