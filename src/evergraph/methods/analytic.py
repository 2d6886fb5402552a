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
from evergraph.models.base import NODES_AT_ONCE
from evergraph.models.random_features import RandomFeatures
from evergraph.params import Params, copy_params

RIDGES = (0.05, 0.2, 1.0)
SMALL = 0.01  # a ridge below needs exact products


@dataclass(repr=False)
class Analytic(Method):
    """min over W of Σ_v w_v ‖φ_v W − onehot(y_v)‖² + ridge · (mean diagonal of G / classes) ‖W‖², over all tasks.

    φ are the inputs of the model's output layer. The loss is quadratic in W with the constant curvature
    G = Σ_v w_v φ_v φ_vᵀ, so the framework's penalty with the full Fisher of each past task is exact:
    the sums G and B = Σ_v w_v φ_v onehot(y_v)ᵀ are all that past tasks have to leave behind, in float64. The
    solution, by Cholesky, is the one of joint training on the same features.

    Validation nodes have sums of their own. They choose the ridge (and, for `RandomFeatures`, whether predictions are
    smoothed and whether depths vote) by heads of the training nodes; the final heads then learn from both. Each
    is counted when its task is the current one, and the counts are all that is kept.

    Args:
        ridge: ridge strength; 0 chooses among 0.05, 0.2 and 1 the one with most validation nodes right, the
            largest of equals.
        balance: node weights are (size of the node's class)^(−balance): 0 counts nodes, 1 counts classes.
        premium: the share of validation nodes that a vote of all depths may cost on the graphs of training, for
            what it saves on graphs with edges between tasks.
        encoder: `frozen` never trains the encoder; `first` trains it on the first task by the usual loop;
            `continual` trains it on every task (protect it with another method in `Compose`) and carries
            the sums over to the new features by the linear map that fits best on the current task's nodes.
    """

    name = "analytic"
    family = "closed form"
    reference = "ridge regression by accumulated statistics (recursive least squares); see docs/analytic.md"
    model = "random-features"

    ridge: float = 0.0
    balance: float = 0.75
    premium: float = 0.02
    encoder: str = "frozen"
    gram_: dict[str, Tensor] = state(dict)  # by part: `train` and `val`
    cross_: dict[str, Tensor] = state(dict)
    hits_: list[int] = state(list)  # validation nodes that each ridge puts right
    smoothing_: list[int] = state(lambda: [0, 0])  # validation nodes that smoothing puts right, and wrong
    voting_: list[int] = state(lambda: [0, 0])  # likewise for the vote
    validated_: int = state(int)
    tasks_: int = state(int)
    previous_: Params = state(dict)

    def __post_init__(self) -> None:
        one_of("encoder", self.encoder, ("frozen", "first", "continual"))
        for name in ("ridge", "balance", "premium"):
            if getattr(self, name) < 0:
                raise EvergraphError(f"analytic: {name}={getattr(self, name)} must not be negative")

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
        rows = model.rows_of(model.in_head) if isinstance(model, RandomFeatures) else None
        ridges = [self.ridge] if self.ridge else list(RIDGES)
        heads = self.solve_each(ridges, ("train",), rows)
        chosen = self._choose(context, heads)
        head = self.solve(ridges[chosen], rows=rows)
        if isinstance(model, RandomFeatures):
            if context.task.val.numel():
                self._choose_smoothing(context, model, heads[chosen])
                self._choose_voting(context, model, heads[chosen], ridges[chosen])
            model.vote.copy_(head + self.solve_shallow(model, ridges[chosen]))
            model.learn_doubt(context.task.graph, context.neighbourhoods)
        model.output_weight().copy_(head)
        self.tasks_ += 1
        self.previous_ = {}

    def grow(self, before: Params, after: Params) -> None:
        """New units have met no node: their columns of B are zero."""
        super().grow(before, after)
        widths = [(before[name].size(1), value.size(1)) for name, value in after.items() if value.dim() == 2]
        more = next((new - old for old, new in widths if new != old), 0)
        self.cross_ = {part: torch.nn.functional.pad(value, (0, more)) for part, value in self.cross_.items()}

    def solve(self, ridge: float, parts: Sequence[str] = ("train", "val"), rows: Tensor | None = None) -> Tensor:
        """W = (G + ridge · mean diagonal / classes · I)⁻¹ B, in float64; of the features `rows` alone, if given."""
        return self.solve_each([ridge], parts, rows)[0]

    def solve_each(self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor | None) -> list[Tensor]:
        """`solve` for several ridges."""
        first = self.gram_[parts[0]]
        rows = torch.arange(first.size(0), device=first.device) if rows is None else rows
        gram = first[rows].index_select(1, rows)
        for part in parts[1:]:
            gram += self.gram_[part][rows].index_select(1, rows)
        cross = torch.stack([self.cross_[part] for part in parts]).sum(0)
        classes = max(int((cross != 0).any(0).sum()), 1)
        diagonal = gram.diagonal().clone()
        unit = float(diagonal[diagonal > 0].mean()) / classes  # a feature may be zero at every node
        heads = []
        for ridge in ridges:
            gram.diagonal().copy_(diagonal + ridge * unit)
            heads.append(torch.zeros_like(cross))
            heads[-1][rows] = torch.cholesky_solve(cross[rows], torch.linalg.cholesky(gram))
        return heads

    def solve_shallow(self, model: RandomFeatures, ridge: float, parts: Sequence[str] = ("train", "val")) -> Tensor:
        """The sum of one head on the blocks of each depth below the largest that the model's head reads."""
        depths = torch.tensor([depth for depth, _ in model.blocks], device=model.in_head.device)
        total = torch.zeros_like(self.cross_["train"])
        for depth in depths[depths < depths[model.in_head].max()].unique():
            total += self.solve(ridge, parts, model.rows_of(depths == depth))
        return total

    def _accumulate(self, context: Context, part: str, nodes: Tensor) -> None:
        """G += Σ w φ φᵀ and B += Σ w φ onehotᵀ over `nodes`: products in the features' type, sums in float64.

        A ridge too small for what the features' type rounds off needs products in float64 too.
        """
        head, y = context.model.output_weight(), context.neighbourhoods.y
        if part not in self.gram_:
            self.gram_[part] = torch.zeros(head.size(0), head.size(0), dtype=torch.float64, device=head.device)
            self.cross_[part] = torch.zeros(head.shape, dtype=torch.float64, device=head.device)
        sizes = torch.bincount(y[context.task.train.to(y.device)], minlength=head.size(1)).double()
        weights = sizes.clamp(min=1) ** -self.balance
        for batch in context.neighbourhoods.exact().batches(nodes, NODES_AT_ONCE):
            features = context.model.features(batch)
            if 0 < self.ridge < SMALL:
                features = features.double()
            weighted = features * weights[batch.y].unsqueeze(1).to(features.dtype)
            self.gram_[part] += weighted.T @ features
            self.cross_[part].index_add_(1, batch.y, weighted.T.double())

    def _choose(self, context: Context, heads: list[Tensor]) -> int:
        """The ridge with most hits on validation nodes so far; the largest of equals."""
        found = validation_right(context, heads).sum(1).tolist()
        self.hits_ = [before + new for before, new in zip(self.hits_ or [0] * len(heads), found)]
        return max(range(len(heads)), key=lambda i: (self.hits_[i], i))

    def _choose_smoothing(self, context: Context, model: RandomFeatures, head: Tensor) -> None:
        """Smooth where the nodes put right outnumber those put wrong by more than two standard errors."""
        whole, nodes = context.neighbourhoods, context.task.val.to(context.neighbourhoods.y.device)
        if whole.num_hops or not model.smoothing:  # only graphs whose features fit into memory are smoothed
            return
        assert isinstance(whole.x, Tensor)
        scores = whole.x @ head.to(whole.x.dtype)
        smoothed = model.smooth(context.task.graph.adjacency.to(scores.dtype).to(scores.device), scores)
        truth = whole.y[nodes]
        counted(self.smoothing_, scores[nodes].argmax(1) == truth, smoothed[nodes].argmax(1) == truth)
        model.smooths.fill_(self.smoothing_[0] - self.smoothing_[1] > 2 * sum(self.smoothing_) ** 0.5)

    def _choose_voting(self, context: Context, model: RandomFeatures, head: Tensor, ridge: float) -> None:
        """Vote where it costs no more than the premium."""
        vote = head + self.solve_shallow(model, ridge, ("train",))
        counted(self.voting_, *validation_right(context, [head, vote]))
        self.validated_ += context.task.val.numel()
        model.votes.fill_(self.voting_[1] - self.voting_[0] <= self.premium * self.validated_)

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


def validation_right(context: Context, heads: list[Tensor]) -> Tensor:
    """Row i: which of the task's validation nodes head i puts right."""
    right = [torch.zeros(len(heads), 0, dtype=torch.bool)]
    nodes = context.task.val.to(context.neighbourhoods.y.device)
    for batch in context.neighbourhoods.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ():
        features = context.model.features(batch).double()
        right.append(torch.stack([(features @ head).argmax(1) == batch.y for head in heads]).cpu())
    return torch.cat(right, dim=1)


def counted(counts: list[int], before: Tensor, after: Tensor) -> None:
    """Add to `counts` how many nodes a change puts right, and how many wrong."""
    counts[0] += int((after & ~before).sum())
    counts[1] += int((before & ~after).sum())


class _Features(torch.nn.Module):
    """A model's features as a module's forward, for calls with other parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        features: Tensor = self.model.features(batch)  # type: ignore[operator]
        return features
