"""Explanations of predictions: how much each neighbour and each feature contributes, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.data import ClassName, Graph
from evergraph.errors import EvergraphError
from evergraph.methods import View
from evergraph.training.inputs import chosen_units, example_ids
from evergraph.training.predicting import asked

if TYPE_CHECKING:
    from evergraph.training.learner import Learner

Amount = tuple[Any, float]
"""A name, and the amount that it adds to the logit."""
READ_BY = {
    "head": "the head itself",
    "vote": "a vote of all depths",
    "other": "the head that decides on such graphs",
}
"""What reads a graph with edges between tasks, in words."""
LISTED = 5
"""How many nodes and features a text lists unless told otherwise."""


@dataclass
class Explanation:
    """One node's prediction, broken down into amounts that add up exactly to the logit, or to the predicted number.

    Args:
        node: the node, by its id or number.
        label: the class or label being explained, or the name of the number.
        probability: calibrated probability of the class; None for a number, which has none.
        against: the class that it is compared with; None for the logit alone.
        logit: z of the class, or z of the class minus z of `against`; the number itself if one is predicted. Where
            probabilities are smoothed over neighbours, z is the node's own, before smoothing.
        constant: the part of the logit that comes from no feature.
        by_depth: amount added by features, by number of propagation steps; 0 for the node's own features.
        neighbours: amount added by each node, summed over its features, largest first; includes the node itself.
        features: amount added by each feature, summed over all nodes, largest first.
        shares: where probabilities are smoothed, the part of `probability` that comes from each node.
        between_tasks: whether edges between tasks were found.
        decides: the head that decides: `head` itself, the `vote` of all depths or an `other` one.
        judged: share of the features that it reads over judged edges.
    """

    node: Any
    label: ClassName
    probability: float | None
    against: ClassName | None
    logit: float
    constant: float
    by_depth: dict[int, float]
    neighbours: list[Amount]
    features: list[Amount]
    shares: list[Amount] | None
    between_tasks: bool
    decides: str
    judged: float

    @property
    def quantity(self) -> str:
        """What the amounts add up to: a logit or a number."""
        return "number" if self.probability is None else "logit"

    @property
    def compared(self) -> str:
        """What it is compared with, in words; empty if it is not."""
        if self.against is None:
            return ""
        return f" {'minus' if self.probability is None else 'rather than'} {self.against!r}"

    @property
    def headline(self) -> str:
        """What is predicted, in a line."""
        if self.probability is None:
            return f"node {self.node}: {self.label!r}{self.compared} is {self.logit:.4g}"
        return f"node {self.node}: {self.label!r} with probability {self.probability:.3g}"

    def text(self, most: int = LISTED) -> str:
        """Return the explanation as a few lines of text, with the `most` largest amounts."""
        depths = [f"{amount:+.3g} {_called(depth)}" for depth, amount in self.by_depth.items() if amount]
        lines = [
            self.headline,
            f"  {self.quantity}{self.compared} {self.logit:.4g} = {self.constant:+.3g} constant {' '.join(depths)}",
            f"  nodes: {_listed(self.neighbours, most)}",
            f"  features: {_listed(self.features, most)}",
        ]
        if self.shares is not None:
            parts = ", ".join(f"{name} {part:.2g}" for name, part in self.shares[:most])
            lines.append(f"  its probability is mixed with its neighbours': {parts}")
        if self.between_tasks:
            lines.append(f"  edges between tasks were found: read by {READ_BY[self.decides]}{self._over}")
        return "\n".join(lines)

    @property
    def _over(self) -> str:
        """Over which edges it reads, in words; empty if as they are."""
        if not self.judged:
            return ""
        vote = "it" if self.decides == "vote" else "the vote of all depths"
        return f", {'partly ' if self.judged < 1 else ''}on edges weighed by {vote}"

    def __str__(self) -> str:
        return self.text()

    def as_dict(self, most: int | None = None) -> dict[str, Any]:
        """Return the explanation as plain values, for JSON, with all amounts of a list or the `most` largest."""
        return {
            **vars(self),
            "by_depth": {str(depth): amount for depth, amount in self.by_depth.items()},
            "neighbours": self.neighbours[:most],
            "features": self.features[:most],
            "shares": None if self.shares is None else self.shares[:most],
        }

    def draw(self, path: str | Path, most: int = 8) -> None:
        """Draw the largest amounts as bars into a .png, .pdf or .svg file."""
        from evergraph.training.why_picture import draw

        draw(self, path, most)


def _called(depth: int) -> str:
    return {0: "own features", 1: "one step away", 2: "two steps away"}.get(depth, f"{depth} steps away")


def _listed(amounts: Sequence[Amount], most: int) -> str:
    shown = [f"{name} {amount:+.3g}" for name, amount in amounts[:most]]
    rest = amounts[most:]
    others = [f"{len(rest):,} other{'s' * (len(rest) > 1)} {sum(amount for _, amount in rest):+.3g}"] if rest else []
    return ", ".join([*shown, *others])


def why(
    learner: Learner, graph: Graph | Any, node: Any, label: ClassName | None, against: ClassName | None
) -> Explanation:
    """See `Learner.why`."""
    claim = capable(learner.method, "reasons")
    if claim is None or learner.problem.level != "node":
        raise EvergraphError(
            f"{learner.method.title} on {learner.problem.level}s does not say what carries a prediction; "
            "auto and analytic do, on nodes, with random features"
        )
    graph, chosen = asked(learner, graph, node)
    if chosen.numel() != 1:
        raise EvergraphError(f"why explains one node at a time, not {chosen.numel()}")
    outputs, of_numbers = learner.outputs(graph, chosen)[:, : len(learner.classes_)], learner.problem.kind == "numbers"
    if of_numbers and label is None and len(learner.classes_) > 1:
        raise EvergraphError(f"why explains one number at a time; name one of: {', '.join(map(str, learner.classes_))}")
    best = learner.classes_[int(outputs.argmax())] if label is None else label
    if against == best:
        raise EvergraphError(f"{best!r} cannot be compared with itself; name another class")
    units = chosen_units([best] if against is None else [best, against], learner.classes_)
    found = claim(View(learner.model.eval(), learner.problem, graph, chosen, learner.device), units)
    ids = example_ids(graph) or range(graph.num_nodes)
    features = graph.feature_names or learner.feature_names or [f"feature {i}" for i in range(graph.num_features)]
    probability = None
    if not of_numbers:
        probabilities = learner.problem.probabilities(outputs / learner.temperature, range(len(learner.classes_)))
        probability = float(probabilities[0, units[0]])
    return Explanation(
        node=ids[int(chosen)],
        label=learner.classes_[units[0]],
        probability=probability,
        against=against,
        logit=found.logit,
        constant=found.constant,
        by_depth=found.by_depth,
        neighbours=_largest([ids[i] for i in found.nodes.tolist()], found.by_node),
        features=_largest(features, found.by_feature),
        shares=None if found.shares is None or probability is None else _parts(ids, found.shares, probability),
        between_tasks=found.between_tasks,
        decides=found.decides,
        judged=found.judged,
    )


def _parts(ids: Sequence[Any], shares: tuple[Tensor, Tensor], probability: float) -> list[Amount]:
    """Pair nodes with their parts of a probability before calibration, scaled to add up to the calibrated one."""
    nodes, parts = shares
    total = float(parts.sum())
    return _largest([ids[i] for i in nodes.tolist()], parts * (probability / total if total else 0.0))


def _largest(names: Sequence[Any], amounts: Tensor) -> list[Amount]:
    """Pair names with amounts, sorted by decreasing absolute value; zeros are left out."""
    order = torch.argsort(amounts.abs(), descending=True, stable=True).tolist()
    return [(names[i], float(amounts[i])) for i in order if amounts[i] != 0]
