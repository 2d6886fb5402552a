"""A closed-form head: learning task after task gives the solution of learning all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.data.batches import Batch
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.base import Context, Method, state
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.models.random_features import RandomFeatures
from evergraph.params import Params, copy_params

RIDGES = (0.05, 0.2, 1.0)


@dataclass(repr=False)
class Analytic(Method):
    """min over W of Σ_v w_v ‖φ_v W − onehot(y_v)‖² + ridge · (mean diagonal of G / classes) ‖W‖², over all tasks.

    φ are the inputs of the model's output layer. The loss is quadratic in W with the constant curvature
    G = Σ_v w_v φ_v φ_vᵀ, so the framework's penalty with the full Fisher of each past task is exact:
    the sums G and B = Σ_v w_v φ_v onehot(y_v)ᵀ are all that past tasks have to leave behind, in float64. The
    solution, by Cholesky, is the one of joint training on the same features.

    Validation nodes have sums of their own. They choose the ridge (and whether the model smooths its
    predictions) by the head of the training nodes; the final head then learns from both.

    Args:
        ridge: ridge strength; 0 chooses among 0.05, 0.2 and 1: the largest whose accuracy on the validation
            nodes, each counted when its task was the current one, is within one standard error of the best.
        balance: node weights are (size of the node's class)^(−balance): 0 counts nodes, 1 counts classes.
        encoder: `frozen` never trains the encoder; `first` trains it on the first task by the usual loop;
            `continual` trains it on every task (protect it with another method in `Compose`) and carries
            the sums over to the new features by the linear map that fits best on the current task's nodes.
    """

    name = "analytic"
    family = "closed form"
    reference = "ridge regression by accumulated statistics (recursive least squares); see docs/analytic.md"
    model = "random-features"

    ridge: float = 0.0
    balance: float = 0.5
    encoder: str = "frozen"
    gram_: dict[str, Tensor] = state(dict)  # by part: `train` and `val`
    cross_: dict[str, Tensor] = state(dict)
    hits_: list[int] = state(list)
    validated_: int = state(int)
    smoothing_: list[int] = state(lambda: [0, 0])  # validation nodes that smoothing puts right, and wrong
    tasks_: int = state(int)
    previous_: Params = state(dict)

    def __post_init__(self) -> None:
        one_of("encoder", self.encoder, ("frozen", "first", "continual"))
        if self.ridge < 0 or self.balance < 0:
            raise EvergraphError(f"analytic: ridge={self.ridge} and balance={self.balance} must not be negative")

    def epochs(self, context: Context, planned: int) -> int:
        """A frozen encoder needs no training."""
        trained = self.encoder == "continual" or (self.encoder == "first" and context.index == 0)
        return planned if trained else 0

    def start_task(self, context: Context) -> None:
        """Refuse a model without a linear head; keep the encoder's parameters, to see how far it drifts."""
        context.model.output_weight()
        self.previous_ = copy_params(context.model) if self.encoder == "continual" and self.tasks_ else {}

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Add the task to the sums, choose the ridge, solve, and write the head."""
        model = context.model.eval()
        if self.previous_:
            self._follow_drift(context)
        y = context.neighbourhoods.y
        for part, nodes in (("train", context.task.train), ("val", context.task.val)):
            self._accumulate(context, part, nodes.to(y.device))
        if isinstance(model, RandomFeatures):
            units = torch.unique(y[context.task.train.to(y.device)])
            model.task_of_unit[units[model.task_of_unit[units] < 0]] = self.tasks_
        ridges = [self.ridge] if self.ridge else list(RIDGES)
        heads = [self.solve(ridge, ("train",)) for ridge in ridges]
        chosen = self._choose(context, heads)
        if isinstance(model, RandomFeatures) and model.smoothing and context.task.val.numel():
            self._choose_smoothing(context, model, heads[chosen])
        head = model.output_weight()
        head.copy_(self.solve(ridges[chosen], ("train", "val")))
        self.tasks_ += 1
        self.previous_ = {}

    def grow(self, before: Params, after: Params) -> None:
        """New units have met no node: their columns of B are zero."""
        super().grow(before, after)
        widths = [(before[name].size(1), value.size(1)) for name, value in after.items() if value.dim() == 2]
        more = next((new - old for old, new in widths if new != old), 0)
        self.cross_ = {part: torch.nn.functional.pad(value, (0, more)) for part, value in self.cross_.items()}

    def solve(self, ridge: float, parts: Sequence[str] = ("train", "val")) -> Tensor:
        """W = (G + ridge · mean diagonal / classes · I)⁻¹ B, in float64."""
        gram = torch.stack([self.gram_[part] for part in parts]).sum(0)
        cross = torch.stack([self.cross_[part] for part in parts]).sum(0)
        diagonal = gram.diagonal()
        used = diagonal[diagonal > 0]  # blocks that are turned off have none
        classes = max(int((cross != 0).any(0).sum()), 1)
        diagonal.add_(ridge * float(used.mean()) / classes)
        return torch.cholesky_solve(cross, torch.linalg.cholesky(gram))

    def _accumulate(self, context: Context, part: str, nodes: Tensor) -> None:
        """G += Σ w φ φᵀ and B += Σ w φ onehotᵀ over `nodes`, a batch at a time."""
        head, y = context.model.output_weight(), context.neighbourhoods.y
        if part not in self.gram_:
            self.gram_[part] = torch.zeros(head.size(0), head.size(0), dtype=torch.float64, device=head.device)
            self.cross_[part] = torch.zeros(head.shape, dtype=torch.float64, device=head.device)
        sizes = torch.bincount(y[context.task.train.to(y.device)], minlength=head.size(1)).double()
        weights = sizes.clamp(min=1) ** -self.balance
        for batch in context.neighbourhoods.exact().batches(nodes, NODES_AT_ONCE):
            features = context.model.features(batch).double()
            weighted = features * weights[batch.y].unsqueeze(1)
            self.gram_[part].addmm_(weighted.T, features)
            self.cross_[part].index_add_(1, batch.y, weighted.T)

    def _choose(self, context: Context, heads: list[Tensor]) -> int:
        """Count each head's hits on the current validation nodes; the largest ridge within one error of the best."""
        found = validation_hits(context, heads)
        self.hits_ = [before + new for before, new in zip(self.hits_ or [0] * len(heads), found)]
        self.validated_ += context.task.val.numel()
        rates = torch.tensor(self.hits_, dtype=torch.float64) / max(self.validated_, 1)
        error = float((rates.max() * (1 - rates.max()) / max(self.validated_, 1)).sqrt())
        return max(i for i, rate in enumerate(rates.tolist()) if rate >= float(rates.max()) - error)

    def _choose_smoothing(self, context: Context, model: RandomFeatures, head: Tensor) -> None:
        """Smooth where the nodes put right outnumber those put wrong by more than two standard errors."""
        y, nodes = context.neighbourhoods.y, context.task.val
        model.head.copy_(head)
        model.smooths.fill_(True)
        smoothed = model.graph_logits(context.task.graph, nodes, y.device).argmax(1)
        plain = GraphModel.graph_logits(model, context.task.graph, nodes, y.device).argmax(1)
        truth = y[nodes.to(y.device)].cpu()
        better = int(((smoothed == truth) & (plain != truth)).sum())
        worse = int(((smoothed != truth) & (plain == truth)).sum())
        self.smoothing_ = [self.smoothing_[0] + better, self.smoothing_[1] + worse]
        model.smooths.fill_(self.smoothing_[0] - self.smoothing_[1] > 2 * sum(self.smoothing_) ** 0.5)

    def _follow_drift(self, context: Context) -> None:
        """G ← TᵀGT and B ← TᵀB, with φ_before T ≈ φ_after in least squares on the current task's nodes."""
        old = {f"model.{name}": value for name, value in self.previous_.items()}
        before_before = torch.zeros_like(self.gram_["train"])
        before_after = torch.zeros_like(before_before)
        for batch in context.batches(NODES_AT_ONCE):
            after = context.model.features(batch).double()
            before = functional_call(_Features(context.model), old, (batch,)).double()
            before_before.addmm_(before.T, before)
            before_after.addmm_(before.T, after)
        # damped towards the identity: directions that the task does not show are taken not to drift
        damping = 1e-3 * float(before_before.diagonal().mean())
        before_before.diagonal().add_(damping)
        before_after.diagonal().add_(damping)
        change = torch.cholesky_solve(before_after, torch.linalg.cholesky(before_before))
        for part in self.gram_:
            self.gram_[part] = change.T @ self.gram_[part] @ change
            self.cross_[part] = change.T @ self.cross_[part]


def validation_hits(context: Context, heads: list[Tensor]) -> list[int]:
    """How many of the task's validation nodes each head puts right."""
    hits = [0] * len(heads)
    nodes = context.task.val.to(context.neighbourhoods.y.device)
    for batch in context.neighbourhoods.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        features = context.model.features(batch).double()
        hits = [h + int(((features @ head).argmax(1) == batch.y).sum()) for h, head in zip(hits, heads)]
    return hits


class _Features(torch.nn.Module):
    """A model's features as a module's forward, for calls with other parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        features: Tensor = self.model.features(batch)  # type: ignore[operator]
        return features
