"""Metrics of one task: how well outputs fit the targets. Each is defined here, once, and registered by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph import registry
from evergraph.core.settings import Checked
from evergraph.errors import EvergraphError, tell
from evergraph.evaluation.matrix import as_number, decimal_places

METRICS: registry.Registry[Metric] = registry.metrics
HITS_AT = (10, 20, 50, 100)
_QUANTITY_AND_UNIT = re.compile(r"(.+) \(([^()]+)\)")


@dataclass(frozen=True)
class Metric(metaclass=Checked):
    """A metric of the outputs on a set of examples.

    Args:
        name: the name to pass to `--metric`.
        title: its title in tables and figures, with its unit.
        function: computes it from outputs `(examples, units)`, targets (true units, or a row of labels or numbers with
            NaN for unknown ones) and the units that prediction chooses from.
        higher_is_better: False for an error.
        of_probabilities: whether it depends on the size of outputs, not only on their order, so that a learner's
            outputs are calibrated for it.
        kinds: kinds of targets that it applies to: `classes`, `labels` or `numbers`; None for all.
    """

    name: str
    title: str
    function: Callable[[Tensor, Tensor, Sequence[int]], float]
    higher_is_better: bool = True
    of_probabilities: bool = False
    kinds: tuple[str, ...] | None = None

    @property
    def quantity(self) -> str:
        """The title without its unit."""
        parts = _QUANTITY_AND_UNIT.fullmatch(self.title)
        return parts[1] if parts else self.title

    @property
    def unit(self) -> str:
        """The unit in the title, without its parentheses; empty if there is none."""
        parts = _QUANTITY_AND_UNIT.fullmatch(self.title)
        return parts[2] if parts else ""

    def written(self, value: float, decimals: int) -> str:
        """Format a value: percentages with so many decimal places, others with three significant digits."""
        return f"{value:.{decimal_places([value], self.unit, percent=decimals)}f}"

    def __call__(self, outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
        """Compute the metric; NaN where it is undefined."""
        return as_number(f"metric {self.name!r}", self.function(outputs, targets, candidates))

    def check(self, kind: str) -> None:
        """Raise if the metric does not apply to this kind of target, before any prediction is made."""
        if self.kinds is not None and kind not in self.kinds:
            others = [metric.name for metric in METRICS.values() if metric.kinds is None or kind in metric.kinds]
            raise EvergraphError(
                f"{self.name} is for {' or '.join(self.kinds)}, and what is predicted here are {kind}; choose "
                f"one of: {', '.join(others)}"
            )


METRICS.accept(instances_of=Metric)


def _hits(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> Tensor:
    """1 for each example whose highest output among the candidate units is the true one, else 0."""
    if targets.dim() != 1:
        raise EvergraphError(
            "accuracy is for examples with one class each; use --metric roc-auc (for links hits@50 or mrr too), "
            "and for numbers mae or rmse"
        )
    columns = torch.tensor(candidates)
    return (columns[outputs[:, columns].argmax(1)] == targets).double()


def accuracy(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Percent of examples whose highest output among the candidate units is the true one."""
    return 100 * float(_hits(outputs, targets, candidates).mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Mean over the classes present of the percent of their examples that are classified correctly."""
    hits = _hits(outputs, targets, candidates)
    return 100 * float(torch.stack([hits[targets == unit].mean() for unit in targets.unique()]).mean())


def calibration_error(outputs: Tensor, targets: Tensor, candidates: Sequence[int], bins: int = 15) -> float:
    """Expected calibration error in percent: the mean of |accuracy − confidence| over intervals, weighted by size.

    Confidence is the softmax probability of the predicted unit (Guo et al., ICML 2017).
    """
    hits = _hits(outputs, targets, candidates)
    chosen = outputs[:, list(candidates)].double()
    confidence = (chosen.max(1).values - chosen.logsumexp(1)).exp()
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, (confidence * bins).long().clamp(max=bins - 1), hits - confidence)
    return 100 * float(gaps.abs().sum()) / hits.numel()


def _area(scores: Tensor, positive: Tensor) -> float:
    """Probability that a positive example scores higher than a negative one; ties count one half."""
    negatives = scores[~positive].sort().values
    wins = torch.searchsorted(negatives, scores[positive]) + torch.searchsorted(negatives, scores[positive], right=True)
    return float(wins.double().mean()) / (2 * negatives.numel())


def _log_odds(outputs: Tensor) -> Tensor:
    """log p/(1 − p) of each class: it orders examples as p does, and tells them apart where p rounds to 1.

    It is an output minus the log-sum-exp of the others. Taken out of the sum over all classes, each class but the most
    probable one leaves at least half of it; that one's others are summed by themselves.
    """
    z = outputs.double()
    highest, best = z.max(1, keepdim=True)
    terms = (z - highest).exp()
    others = highest + (terms.sum(1, keepdim=True) - terms).log()
    return z - others.scatter(1, best, z.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True))


def roc_auc(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Area under the ROC curve, in percent: the mean over labels that have positive and negative examples.

    If examples have one class of several, the mean over classes of one against the rest, where the score of a class is
    its probability among the candidates. 50, with a note, if no label has both.
    """
    if targets.dim() == 1:
        scores = _log_odds(outputs[:, list(candidates)])
        targets = torch.stack([targets == unit for unit in candidates], 1).double()
    else:
        scores = outputs[:, list(candidates)]
        targets = targets[:, list(candidates)]
    areas = []
    for score, target in zip(scores.double().T, targets.T):
        known = ~target.isnan()
        positive = target[known] > 0.5
        if positive.any() and not positive.all():
            areas.append(_area(score[known], positive))
    if not areas:
        tell(
            "roc-auc: no label has both positive and negative examples among those tested, so that it is 50 whatever "
            "is predicted; make tasks larger (--classes-per-task)"
        )
    return 100 * sum(areas) / len(areas) if areas else 50.0


def _errors(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> Tensor:
    """z − y of all known numbers."""
    y = targets[:, list(candidates)]
    return (outputs[:, list(candidates)].double() - y.double())[~y.isnan()]


def mean_absolute_error(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Mean of |z − y| over all known numbers."""
    return float(_errors(outputs, targets, candidates).abs().mean())


def root_mean_squared_error(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """Root of the mean of (z − y)² over all known numbers."""
    return float(_errors(outputs, targets, candidates).square().mean().sqrt())


def hits_at(k: int) -> Callable[[Tensor, Tensor, Sequence[int]], float]:
    """Hits@k: percent of links that score higher than the k-th best of the task's pairs without a link (as in OGB).

    100, with a note, if there are fewer than k such pairs.
    """

    def hits(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
        positive, negative = _linked_and_not(outputs, targets, candidates)
        if negative.numel() < k:
            other = next((f"hits@{fewer} or " for fewer in reversed(HITS_AT) if fewer <= negative.numel()), "")
            tell(
                f"hits@{k}: links are ranked against {negative.numel()} pairs without one, fewer than {k}, so that it "
                f"is 100 whatever is predicted; use --metric {other}mrr"
            )
            return 100.0
        return 100 * float((positive > negative.topk(k).values[-1]).double().mean())

    return hits


def mean_reciprocal_rank(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> float:
    """MRR in percent: the mean over links of 1 / rank among the task's pairs without a link; ties count against it."""
    positive, negative = _linked_and_not(outputs, targets, candidates)
    ordered = negative.sort().values
    above = ordered.numel() - torch.searchsorted(ordered, positive)
    return 100 * float((1 / (1 + above.double())).mean())


def _linked_and_not(outputs: Tensor, targets: Tensor, candidates: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Scores of the links, and of the pairs without one; pairs of which that is unknown are left out."""
    if targets.dim() != 2 or len(candidates) != 1:
        raise EvergraphError("this metric ranks links against pairs without one: it needs one label per pair")
    known = ~targets[:, candidates[0]].isnan()
    scores, linked = outputs[known, candidates[0]], targets[known, candidates[0]] > 0.5
    return scores[linked], scores[~linked]


METRICS.register(Metric("accuracy", "accuracy (%)", accuracy, kinds=("classes",)))
METRICS.register(Metric("balanced-accuracy", "balanced accuracy (%)", balanced_accuracy, kinds=("classes",)))
METRICS.register(
    Metric(
        "calibration-error",
        "expected calibration error (%)",
        calibration_error,
        higher_is_better=False,
        of_probabilities=True,
        kinds=("classes",),
    )
)
METRICS.register(Metric("roc-auc", "ROC-AUC (%)", roc_auc, of_probabilities=True, kinds=("classes", "labels")))
for _name, _title, _error in (
    ("mae", "mean absolute error", mean_absolute_error),
    ("rmse", "root mean squared error", root_mean_squared_error),
):
    METRICS.register(Metric(_name, _title, _error, higher_is_better=False, kinds=("numbers",)))
for _k in HITS_AT:
    METRICS.register(Metric(f"hits@{_k}", f"Hits@{_k} (%)", hits_at(_k), kinds=("labels",)))
METRICS.register(Metric("mrr", "MRR (%)", mean_reciprocal_rank, kinds=("labels",)))
