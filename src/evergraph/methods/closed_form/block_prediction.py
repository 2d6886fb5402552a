"""Prediction on a whole graph by heads on blocks of features: a vote of depths, judged edges, smoothing.

Training sees only the edges within a task. A graph to predict on may have edges between tasks too, and the deeper a
block of features, the more of them reach it. So besides the head there is the vote: the sum of the head and of one
head on the blocks of each smaller depth (a node's own features, then its neighbours'). Its softmax is the normalized
product of their softmaxes. The vote on the tasks of an edge's two ends gives the probability that they belong to the
same task: the edge is judged. If few edges seem to join tasks (`tolerated`), the head predicts on the graph as it is.
Otherwise features are computed again on the graph with weighted edges, and the vote decides if
the validation nodes allow it. Where the vote is misled, own features judge the edges before it. If the validation
nodes favour smoothing, the head's probabilities are mixed with the neighbours', over the weighted edges. All this uses
the test graph alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.features import Features, with_self_loops
from evergraph.core.sparse import SparseMatrix
from evergraph.methods.closed_form.judged_edges import judge_edges
from evergraph.models.base import GraphModel

WHOLE = ("graph_features", "graph_scores", "feature_scores")  # capabilities needed to read a whole graph at once
ROUNDS = 5  # of smoothing
MISLED = 0.1  # share of the edges the vote finds within tasks, from which on it is misled if own features find fewer


Decides = Literal["head", "vote", "other"]
"""Which head reads a graph: the head itself, the vote of all depths, or another one."""


class Way(NamedTuple):
    """How nodes of a graph with edges between tasks are predicted.

    Args:
        head: the head that reads the features.
        judgements: how often edges are judged and features computed over the weighted ones (better features judge
            better); with 0 the features are those of the unweighted graph.
        smoothing: share of the neighbours' probabilities in the prediction, over the weighted edges, or (with
            `unjudged`) over all (`smoothing_over_all`); 0 for none.
        own: head on own features that judges edges first where the vote is misled (`first_judged`); None for none.
        unjudged: share of the features of the unweighted graph beside those over judged edges; 0 for the latter alone,
            1 if no edge is judged.
        name: which head it is.
    """

    head: Tensor
    judgements: int
    smoothing: float = 0.0
    own: Tensor | None = None
    unjudged: float = 0.0
    name: Decides = "other"

    def smoothing_over_all(self, share: float) -> float:
        """Return the neighbours' share where probabilities are smoothed over all edges, `share` of them between tasks.

        If edges are not judged, that share is not known either.
        """
        return self.smoothing * (1 - share) if self.judgements else self.smoothing

    def own_heads(self) -> list[Tensor]:
        """Return the head on own features in a list, empty if there is none."""
        return [] if self.own is None else [self.own]


class Reading(NamedTuple):
    """How a graph is read: scores are features @ head.

    Args:
        head: the head, or the vote.
        features: features of all nodes.
        over: the edges over which features were computed, and the share of these features; the shares sum to one.
        smoothed_over: the edges over which probabilities are smoothed; None if they are not.
        smoothing: share of the neighbours' probabilities.
        between_tasks: whether edges between tasks were found, and `elsewhere` says how the graph is read.
        decides: which head it is.
        judged: share of the features that were computed over judged edges.
    """

    head: Tensor
    features: Tensor
    over: list[tuple[SparseMatrix, float]]
    smoothed_over: SparseMatrix | None
    smoothing: float
    between_tasks: bool = False
    decides: Decides = "head"
    judged: float = 0.0


@dataclass(frozen=True)
class BlockPrediction:
    """Everything that prediction on a graph depends on.

    Args:
        head: scores are features @ head.
        vote: the sum of the heads of all depths.
        task_of_unit: the task that brought each output unit; -1 for unused units.
        graph_features: computes a graph's features from node features and an operator; caches what depends on the
            node features alone in the third argument.
        graph_scores: computes these features times the third argument, a head; the fourth argument is the cache.
        feature_scores: multiplies features by a head.
        temperature: of the softmax that turns least-squares scores into probabilities.
        smoothing: share of the neighbours' probabilities in the head's predictions; 0 for none.
        judges: whether edges are judged.
        tolerated: share of edges between tasks up to which the head predicts on the graph as it is.
        elsewhere: how nodes are predicted if there are edges between tasks.
    """

    head: Tensor
    vote: Tensor
    task_of_unit: Tensor
    graph_features: Callable[[Features, SparseMatrix, dict[int, Tensor] | None], Tensor]
    graph_scores: Callable[[Features, SparseMatrix, Tensor, dict[int, Tensor] | None], Tensor]
    feature_scores: Callable[[Tensor, Tensor], Tensor]
    temperature: float
    smoothing: float
    judges: bool
    tolerated: float
    elsewhere: Way

    def key(self, model: GraphModel, device: torch.device) -> str:
        """Return a key that is equal for predictions with equal scores; empty if the model's features have no key."""
        features = capable(model, "input_key")
        if features is None:
            return ""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.head, self.vote, self.elsewhere.head, *self.elsewhere.own_heads(), self.task_of_unit):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        way = (self.elsewhere.judgements, self.elsewhere.smoothing, self.elsewhere.unjudged)
        rest = (self.temperature, self.smoothing, self.judges, self.tolerated, way)
        return f"{features()} {device} {self.head.dtype} {digest.hexdigest()} {rest}"

    def scores(
        self, x: Features, adjacency: SparseMatrix, features: Tensor | None, joining: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of all nodes of a graph; `features` are those of the unweighted graph, if known."""
        projected: dict[int, Tensor] = {}

        def read(edges: SparseMatrix, *heads: Tensor) -> tuple[Tensor, ...]:
            together = torch.cat(heads, dim=1)
            if edges is adjacency and features is not None:
                found = self.feature_scores(features, together)
            else:
                found = self.graph_scores(x, with_self_loops(edges), together, projected)
            return found.split([head.size(1) for head in heads], dim=1)

        way = self.elsewhere
        unweighted = [way.head] if way.unjudged or not way.judgements else []
        own, vote, *others = read(adjacency, self.head, self.vote, *unweighted, *way.own_heads())
        edges, share = self.weigh(adjacency, vote, joining) if self.judges else (adjacency, 0.0)
        if share <= self.tolerated:
            return self.mixed(adjacency, own, self.smoothing)
        edges = self.first_judged(adjacency, edges, share, others[len(unweighted) :], joining)
        for _ in range(way.judgements - 1):
            (vote,) = read(edges, self.vote)
            edges, _ = self.weigh(adjacency, vote, joining)
        (found,) = read(edges, way.head) if way.judgements else others[:1]
        if way.unjudged:
            found = torch.lerp(found, others[0], way.unjudged)
            return self.mixed(adjacency, found, way.smoothing_over_all(share))
        return self.mixed(edges, found, way.smoothing)

    def reading(self, x: Features, adjacency: SparseMatrix, features: Tensor, joining: Tensor | None = None) -> Reading:
        """Return what `scores` are computed from: which head reads which features, and how they are smoothed."""
        weighted, share = self.judge(adjacency, features, joining) if self.judges else (adjacency, 0.0)
        if share <= self.tolerated:
            smoothed = adjacency if self.smoothing else None
            return Reading(self.head, features, [(adjacency, 1.0)], smoothed, self.smoothing)
        way, unweighted, over = self.elsewhere, features, [(adjacency, 1.0)]
        judges = [self.feature_scores(features, judge) for judge in way.own_heads()]
        weighted = self.first_judged(adjacency, weighted, share, judges, joining)
        projected: dict[int, Tensor] | None = {} if way.judgements > 1 else None
        for judgement in range(way.judgements):
            if judgement:
                weighted, _ = self.judge(adjacency, features, joining)
            features, over = self.graph_features(x, with_self_loops(weighted), projected), [(weighted, 1.0)]
        smoothed, smoothing = weighted, way.smoothing
        if way.unjudged:
            features = torch.lerp(features, unweighted, way.unjudged)
            shares = [(weighted, 1 - way.unjudged), (adjacency, way.unjudged)]
            over = [(edges, own) for edges, own in shares if own]
            smoothed, smoothing = adjacency, way.smoothing_over_all(share)
        judged = 1 - way.unjudged if way.judgements else 0.0
        return Reading(way.head, features, over, smoothed if smoothing else None, smoothing, True, way.name, judged)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the softmax over the units in use."""
        return (scores / self.temperature).masked_fill(self.task_of_unit < 0, -torch.inf).softmax(1)

    def judge(
        self, adjacency: SparseMatrix, features: Tensor, joining: Tensor | None = None
    ) -> tuple[SparseMatrix, float]:
        """Return the edges, weighted by the vote on their ends' tasks, and the share of edges between tasks."""
        return self.weigh(adjacency, self.feature_scores(features, self.vote), joining)

    def weigh(self, adjacency: SparseMatrix, vote: Tensor, joining: Tensor | None = None) -> tuple[SparseMatrix, float]:
        """Like `judge`, from the vote's scores."""
        p = self.probabilities(vote)
        known = self.task_of_unit[self.task_of_unit >= 0].unique()  # some tasks bring no class of their own
        tasks = p.new_zeros(p.size(0), known.numel())
        tasks.index_add_(1, torch.searchsorted(known, self.task_of_unit.clamp(min=int(known[0]))), p)
        return judge_edges(adjacency, tasks, joining=joining)

    def first_judged(
        self, adjacency: SparseMatrix, edges: SparseMatrix, share: float, own: list[Tensor], joining: Tensor | None
    ) -> SparseMatrix:
        """Return the edges as own features judge them if the vote is misled, else as the vote did (`edges`).

        The ends of an edge mislead each other in a vote that reads neighbours: they come to look alike, and the edge
        seems to lie within a task. Own features cannot be misled, so if they find clearly fewer edges within tasks than
        the vote does, the vote is misled.
        """
        for scores in own:
            judged, found = self.weigh(adjacency, scores, joining)
            if 1 - found < (1 - MISLED) * (1 - share):
                return judged
        return edges

    def shares(self, adjacency: SparseMatrix, node: int, smoothing: float, rounds: int = ROUNDS) -> Tensor:
        """Return the share of every node in the smoothed probabilities of one node; the shares sum to one."""
        back = means_over(adjacency).t()
        alone = torch.zeros(adjacency.num_rows, 1, dtype=adjacency.dtype, device=adjacency.device)
        alone[node] = 1
        mixed, spread = torch.zeros_like(alone), alone
        for _ in range(rounds):
            mixed, spread = mixed + (1 - smoothing) * spread, smoothing * (back @ spread)
        return (mixed + spread).reshape(-1)

    def mixed(self, adjacency: SparseMatrix, scores: Tensor, smoothing: float) -> Tensor:
        """Return the outputs for scores: logits, or log-probabilities if they are smoothed."""
        return self.smooth(adjacency, scores, smoothing) if smoothing else scores / self.temperature

    def smooth(self, adjacency: SparseMatrix, scores: Tensor, smoothing: float, rounds: int = ROUNDS) -> Tensor:
        """Return log Z after rounds of Z ← (1 − s) p + s · (mean of Z over a node and its neighbours); s: smoothing."""
        mean = means_over(adjacency)
        p = self.probabilities(scores)
        mixed = p
        for _ in range(rounds):
            mixed = (1 - smoothing) * p + smoothing * (mean @ mixed)
        return mixed.clamp(min=1e-30).log()


class Whole(NamedTuple):
    """A whole graph to predict on.

    Args:
        prediction: how it is predicted.
        x: node features.
        adjacency: its edges.
        features: the model's features of all nodes on the unweighted graph, if known.
        joining: mask of the nodes that join the graph one by one; None for none.
    """

    prediction: BlockPrediction
    x: Features
    adjacency: SparseMatrix
    features: Tensor | None
    joining: Tensor | None


def means_over(adjacency: SparseMatrix) -> SparseMatrix:
    """Return the matrix that averages over a node and its neighbours."""
    mean = with_self_loops(adjacency)
    return mean.with_values(mean.values / mean.row_sums()[mean.row_of_entry()])
