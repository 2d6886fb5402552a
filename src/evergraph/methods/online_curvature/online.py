"""The paper's method, `curvature`: a form of the curvature regularizer composed with a moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evergraph.core.settings import BelowOne, Fraction, NonNegative, PositiveInt
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Method, SearchSpace
from evergraph.methods.compose import Compose
from evergraph.methods.ema import EMA
from evergraph.methods.online_curvature.anchors import PAPER, AnchoredCurvature, OverNodes, OverTasks
from evergraph.methods.online_curvature.batch import BatchCurvature
from evergraph.methods.online_curvature.between import InterpolatedCurvature
from evergraph.methods.online_curvature.queue import QueueCurvature, QueueRule
from evergraph.methods.online_curvature.stand_ins import StandInCurvature


@METHODS.register
@dataclass(repr=False)
class OnlineCurvature(Compose):
    """strength/2 Σ_{t<τ} (θ−θ_t)ᵀ F(θ) (θ−θ_t), then θ_t ← β θ_{t−1} + (1−β) θ, with the paper's defaults.

    It is `ema` composed with one form of the regularizer: `batch-curvature`, `queue-curvature`,
    `stand-in-curvature` or `interpolated-curvature`.

    Args:
        strength: λ; 0.1 in the paper.
        estimator: `exact` (expectation over labels in closed form; recommended), `sampled` (one label drawn
            per node: the paper's equation "Ours"), `queue` (one gradient per step, M kept: Algorithm 1).
        nodes: `batch` sums F over the nodes of the step (the paper), `means` over the means of the old classes,
            `prototypes` over several prototypes of each; the paper counts what they keep as replay. `memory` sums F
            over the memory of the replay method that this one is composed with (`ssm+curvature`).
        queue_size: M, the length of the queue; 128 in the paper.
        ema: β of the moving average after each task; 0 turns it off (the paper's ablation).
        point: where between θ_t and θ the Fisher is evaluated: 1 is the paper's θ, 0 is EWC's θ_t. Below 1
            every anchor is stored and each costs its own product.
        over_tasks: `sum-of-squares` (equation "Ours") has the gradient F D, `square-of-sum` (the batch loss
            and Algorithm 1) has (τ−1) F D.
        over_nodes: `loss` reduces the regularizer over nodes as the loss is reduced; `sum` (equation "Ours") and
            `mean` fix it. With the queue, `loss` estimates the same quantity (|B|/|Q| Σ_Q for a summed loss,
            1/|Q| Σ_Q for a mean), `mean` is the paper's queue line taken literally (1/|Q| Σ_Q for either), and
            `sum` is the plain sum over the queue.
        anchors: `stored` uses θ_1 … θ_{τ−1}; `previous` uses θ_0 … θ_{τ−2}, as in the batch loss; `latest`
            uses only θ_{τ−1}, so that nothing pulls back to a time when later classes were unknown. By
            default `stored` with the batch, `latest` otherwise.
        queue_rule: `text` holds at most M gradients; `algorithm` pops only when more than M are held
            before a push, so it can hold M+1.
        prototypes: number of prototypes per class, only for `nodes="prototypes"`.
        ema_from_first_task: average the first task with the initial parameters, as Algorithm 1 does.
    """

    name = "curvature"
    family = "Fisher, full, online"
    reference = PAPER
    hold = ("strength", "ema")

    strength: NonNegative = 0.1
    estimator: Literal["exact", "sampled", "queue"] = "exact"
    nodes: Literal["batch", "means", "prototypes", "memory"] = "batch"
    queue_size: PositiveInt = 128
    ema: BelowOne = 0.5
    point: Fraction = 1.0
    over_tasks: OverTasks = "sum-of-squares"
    over_nodes: OverNodes = "loss"
    anchors: Literal["", "stored", "previous", "latest"] = ""
    queue_rule: QueueRule = "text"
    prototypes: PositiveInt = 32
    ema_from_first_task: bool = False

    def __post_init__(self) -> None:
        self.anchors = self.anchors or ("stored" if self.nodes == "batch" else "latest")
        if self.nodes != "batch" and (self.estimator == "queue" or self.point < 1):
            raise EvergraphError(f"curvature: nodes={self.nodes} needs estimator=exact or sampled, and point=1")
        if self.point < 1 and self.estimator == "queue":
            raise EvergraphError(
                "curvature: the queue's gradients are taken at θ; use estimator=exact or sampled with point<1"
            )
        super().__init__(EMA(self.ema, self.ema_from_first_task), self._regularizer())

    def _regularizer(self) -> AnchoredCurvature:
        """Create the form of the regularizer that the settings ask for."""
        shared: dict[str, Any] = {
            key: getattr(self, key) for key in ("strength", "over_tasks", "over_nodes", "anchors")
        }
        if self.estimator == "queue":
            return QueueCurvature(**shared, queue_size=self.queue_size, queue_rule=self.queue_rule)
        if self.nodes != "batch":
            number = self.prototypes if self.nodes == "prototypes" else 0
            from_memory = self.nodes == "memory"
            return StandInCurvature(**shared, estimator=self.estimator, prototypes=number, from_memory=from_memory)
        if self.point != 1:
            return InterpolatedCurvature(**shared, estimator=self.estimator, point=self.point)
        return BatchCurvature(**shared, estimator=self.estimator)

    @property
    def search_space(self) -> SearchSpace:  # type: ignore[override]
        """Search space of the regularizer, with the decay of the average."""
        average, form = (method.search_space for method in self.methods)
        return {**form, "ema": average["decay"]}

    @property
    def training(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Training settings of the regularizer: old classes compete in training with stand-ins, not with the batch."""
        return self.methods[1].training

    model = Method.model
    hyperparameters = Method.hyperparameters
    title = Method.title
    description = Method.description
    __repr__ = Method.__repr__
