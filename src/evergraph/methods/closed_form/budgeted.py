"""A closed form whose sums stay within a memory budget: the smaller of two forms, over features that can be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergraph.core.capabilities import capability, capable
from evergraph.core.dense_algebra import product
from evergraph.core.params import Params
from evergraph.data.tasks import Task
from evergraph.errors import EvergraphError
from evergraph.methods.base import Context, View
from evergraph.methods.closed_form.analytic import BOTH, Analytic
from evergraph.methods.closed_form.factor import Factor, weighed
from evergraph.methods.closed_form.factored import FactoredSums, rotated
from evergraph.methods.closed_form.forgetting import Forgetting
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.hits import validation_hits
from evergraph.methods.memory.budget import Budget
from evergraph.methods.state import state
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.models.feature_blocks import Layout

NARROWEST = 64  # columns of a linear block below which it is not worth its place


@dataclass(repr=False)
class BudgetedAnalytic(Analytic):
    """`Analytic` with sums that take no more than `memory`.

    While there are fewer nodes than features the sums are kept as factors (`factored`), else as G and B in float64.
    Where neither form fits, linear blocks of features are narrowed to a sketch (`Hashing`), and what was summed is
    folded to what it would be had the sketch been there from the first task on.
    """

    memory: str = "1GB"
    factor_: dict[str, Tensor] = state(dict, replaced=True)  # by part, while there are fewer nodes than features
    factor_targets_: dict[str, Tensor] = state(dict, replaced=True)
    block_widths_: list[int] = state(list)
    task_rows_: list[dict[str, int]] = state(list)  # rows of the factors that each task left, by part
    fresh_: dict[str, int] = state(dict)  # rows of the factor that are nodes of the current task, until it ends

    def __post_init__(self) -> None:
        self.budget()

    def budget(self) -> int:
        """The budget in bytes."""
        limit = Budget.of(self.name, self.memory or "1GB", 0).num_bytes
        if limit is None:
            raise EvergraphError(
                f"{self.name}: memory={self.memory!r} must be an amount, e.g. 500MB; no share of nodes is kept"
            )
        return limit

    # the two forms

    def gram(self, part: str) -> Tensor:
        """G of one part, whichever form it is kept in."""
        if part in self.gram_:
            return self.gram_[part]
        return Factor(self.factor_[part], self.factor_targets_[part]).gram()

    def gram_among(self, part: str, rows: Tensor) -> Tensor:
        """G of one part among some features, whichever form it is kept in."""
        if part in self.gram_:
            return super().gram_among(part, rows)
        return Factor(self.factor_[part][:, rows], self.factor_targets_[part]).gram()

    def energy(self, part: str, head: Tensor, rows: Tensor) -> float:
        """tr(Wᵀ G W) of one part, for a head that reads the features `rows` alone."""
        read = head[rows.to(head.device)]
        if part in self.gram_:
            return float((read * product(self.gram_among(part, rows), read)).sum())
        return float(product(self.factor_[part][:, rows], read.to(self.factor_[part].dtype)).double().square().sum())

    def make_dense(self) -> None:
        """From factors to G; B is kept in either form."""
        if self.factor_:
            self.gram_ = {part: self.gram(part) for part in self.factor_}
            self.factor_, self.factor_targets_, self.fresh_, self.task_rows_ = {}, {}, {}, []

    def add_to_sums(self, context: Context, sizes: Tensor, sign: int = 1) -> None:
        """Nodes join the factors as they are until `_forget_nodes`; where they outnumber the features, G."""
        _, head = linear_head(context.model)
        in_blocks = len(self.block_widths_) and sum(self.block_widths_) + 1 == head.size(0)
        dense = self._dense(head.size(0), self._rows("train") + context.num_train)
        if not in_blocks or dense or context.task.graph.rows is not None or self.encoder != "frozen" or sign < 0:
            self.make_dense()
            super().add_to_sums(context, sizes, sign)
            return
        factors, targets, cross = dict(self.factor_), dict(self.factor_targets_), dict(self.cross_)
        for part, new in self.factors_of(context, sizes).items():
            self.fresh_[part] = new.rows.size(0)
            before = cross.get(part, torch.zeros(head.shape, dtype=torch.float64, device=head.device))
            cross[part] = before + new.cross()
            if part in factors:
                new = Factor(factors[part], targets[part]).stacked(new)
            factors[part], targets[part] = new
        self.factor_, self.factor_targets_, self.cross_ = factors, targets, cross

    def _dense(self, width: int, rows: int) -> bool:
        """Whether the sums over so many features of so many nodes are G: from half as many nodes on, where G fits."""
        fits = 2 * 8 * width**2 <= self.budget()
        return bool(self.gram_) or rows > width or (fits and 2 * rows > width)

    def factors_of(self, context: Context, sizes: Tensor) -> dict[str, Factor]:
        """The factors of a task's nodes, weighed by given sizes of their classes; by part."""
        features, head = linear_head(context.model)
        weights, units, found = self._weights(sizes), head.size(1), {}
        for part in BOTH:
            nodes = getattr(context.task, part).to(weights.device)
            batches = context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ()
            new = Factor(head.new_zeros(0, head.size(0)), head.new_zeros(0, units))
            for batch in batches:
                new = new.stacked(weighed(features(batch), batch.y, weights[batch.y], units))
            found[part] = new
        return found

    def _forget_nodes(self) -> None:
        """Leave no row of the task that ends: rotate its rows or, where another such task would lead there, form G."""
        width = sum(self.block_widths_) + 1
        if self.factor_ and self._dense(width, self._rows("train") + self.fresh_.get("train", 0)):
            self.make_dense()
        for part, number in self.fresh_.items():
            kept, last = Factor(self.factor_[part], self.factor_targets_[part]).last(number)
            joined = kept.stacked(rotated(last)) if number else kept
            self.factor_ = {**self.factor_, part: joined.rows}
            self.factor_targets_ = {**self.factor_targets_, part: joined.targets}
        if self.factor_:
            known = {part: sum(rows[part] for rows in self.task_rows_) for part in BOTH}
            self.task_rows_ = [*self.task_rows_, {part: self._rows(part) - known[part] for part in BOTH}]
        self.fresh_ = {}
        for computed in ("_heads", "_sums"):  # from sums that are gone
            self.__dict__.pop(computed, None)

    def exchange_rows(self, number: int, new: dict[str, Factor] | None) -> None:
        """Put other rows in the place of those of a task; None for none. B follows."""
        factors, targets, cross = dict(self.factor_), dict(self.factor_targets_), dict(self.cross_)
        for part in BOTH:
            start = sum(rows[part] for rows in self.task_rows_[:number])
            sizes = [
                start,
                self.task_rows_[number][part],
                factors[part].size(0) - start - self.task_rows_[number][part],
            ]
            first, old, last = (Factor(*pair) for pair in zip(factors[part].split(sizes), targets[part].split(sizes)))
            own = (
                rotated(new[part])
                if new is not None and new[part].rows.size(0)
                else Factor(old.rows[:0], old.targets[:0])
            )
            factors[part], targets[part] = first.stacked(own).stacked(last)
            cross[part] = cross[part] + own.cross() - old.cross()
            self.task_rows_[number] = {**self.task_rows_[number], part: own.rows.size(0)}
        self.factor_, self.factor_targets_, self.cross_ = factors, targets, cross

    def _rows(self, *parts: str) -> int:
        return sum(self.factor_[part].size(0) for part in parts if part in self.factor_)

    def solve(self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor | None = None) -> list[Tensor]:
        """As `Analytic.solve`, from either form."""
        read = rows if rows is not None else torch.arange(next(iter(self.cross_.values())).size(0))
        known, among = self._solved(), (tuple(parts), read.cpu().numpy().tobytes())
        new = [ridge for ridge in dict.fromkeys(ridges) if (*among, ridge) not in known]
        if new:
            found = self._factored().solve(new, parts, rows, self._error(parts)) if self.factor_ else super().solve(new, parts, rows)
            known.update({(*among, ridge): head for ridge, head in zip(new, found)})
        return [known[*among, ridge].clone() for ridge in ridges]

    def hits(self, context: Context, ridges: Sequence[float], rows: Tensor) -> list[int]:
        """The task's validation nodes that the training nodes' head of each ridge on the features `rows` puts right."""
        if not (last := self.fresh_.get("val", 0)):
            return context.total(validation_hits(context, self.solve(ridges, BOTH[:1], rows)).sum(1)).tolist()
        truth = self.factor_targets_["val"][-last:].argmax(1)
        scores = self._factored().scores(ridges, BOTH[:1], rows, "val", last)
        return [int((found.argmax(1) == truth).sum()) for found in scores]

    def _solved(self) -> dict[tuple[tuple[str, ...], bytes, float], Tensor]:
        """Heads that were solved from the sums as they stand: a voice of the vote is often the head."""
        sums = (self.gram_, self.cross_, self.factor_)
        known = getattr(self, "_heads", None)
        if known is None or any(now is not then for now, then in zip(sums, known[0])):
            self._heads: tuple[Any, dict[tuple[tuple[str, ...], bytes, float], Tensor]] = (sums, {})
        return self._heads[1]

    def _factored(self) -> FactoredSums:
        """The factors, with what has been computed of them: made anew whenever they change."""
        known = getattr(self, "_sums", None)
        if known is None or known[0] is not self.factor_:
            factors = {part: Factor(self.factor_[part], self.factor_targets_[part]) for part in self.factor_}
            widths = torch.tensor([*self.block_widths_, 1])
            block_of_row = torch.arange(widths.numel()).repeat_interleave(widths)
            block_of_row[-1] = -1  # the column of ones
            known = (self.factor_, FactoredSums(factors, block_of_row))
            self._sums = known
        sums: FactoredSums = known[1]
        return sums

    def grow(self, before: Params, after: Params) -> None:
        """New units have met no node."""
        more = [(before[name].size(1), value.size(1)) for name, value in after.items() if value.dim() == 2]
        wider = next((new - old for old, new in more if new != old), 0)
        padded = {part: torch.nn.functional.pad(value, (0, wider)) for part, value in self.factor_targets_.items()}
        self.factor_targets_ = padded
        super().grow(before, after)

    @capability(rests_on=("_add", "add_to_sums", "decide", "write"))
    def forgetting(self) -> Forgetting | str:
        """As `Analytic`: from G a task is subtracted, from factors its rows are taken."""
        return super().forgetting()

    @capability(rests_on=("_add", "add_to_sums", "predict"))
    def strangeness(self, view: View) -> Tensor:
        """As `Analytic`, from either form."""
        return super().strangeness(view)

    # the budget

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Make room for the task: narrow the features where the sums would take more than the budget."""
        layout = capable(model, "feature_layout")
        if layout is None or capable(model, "narrow") is None:
            return
        self.block_widths_ = list(layout().widths)
        nodes = {part: self._rows(part) + getattr(task, part).numel() for part in BOTH}
        while self._bytes(layout().width, nodes, linear_head(model)[1].element_size()) > self.budget():
            self._make_room(model)

    def _bytes(self, width: int, nodes: dict[str, int], size: int) -> int:
        """What the sums of so many nodes over so many features take, in the form that they would have."""
        return 2 * 8 * width**2 if self._dense(width, nodes["train"]) else size * width * sum(nodes.values())

    def _make_room(self, model: GraphModel) -> None:
        """Leave a little behind: half of the columns of linear blocks or, where they are few, these blocks."""
        layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
        linear = [block.linear for block in layout.present]
        if not any(linear) or (all(linear) and layout.linear_width <= NARROWEST):
            raise EvergraphError(
                f"{self.name}: memory={self.memory!r} cannot hold the sums of {layout.width} features; "
                "give more, or a model with a smaller hidden"
            )
        if layout.linear_width <= NARROWEST:
            self._narrow(model, [not words for words in linear], layout.linear_width)
        else:
            self._narrow(model, [True] * len(linear), 2 ** ((layout.linear_width - 1).bit_length() - 1))

    def _narrow(self, model: GraphModel, keep: Sequence[bool], linear_width: int) -> Callable[[Tensor, int], Tensor]:
        """Drop blocks, narrow linear ones; the sums follow. Returns what takes other sums over features there."""
        fold = capable(model, "narrow")(keep, linear_width)  # type: ignore[misc]
        self.factor_ = {part: fold(rows, 1) for part, rows in self.factor_.items()}
        self.cross_ = {part: fold(cross, 0) for part, cross in self.cross_.items()}
        self.gram_ = {part: fold(fold(gram, 0), 1) for part, gram in self.gram_.items()}
        self._fold_heads(fold)
        self.blocks_ = [read for read, kept in zip(self.blocks_, keep) if kept]
        self.block_widths_ = list(capable(model, "feature_layout")().widths)  # type: ignore[misc]
        folded: Callable[[Tensor, int], Tensor] = fold
        return folded

    def _fold_heads(self, fold: Callable[[Tensor, int], Tensor]) -> None:
        """Heads besides the model's keep its shape; where blocks were narrowed they are solved anew with the task."""
        self.vote_ = {name: fold(vote, 0) for name, vote in self.vote_.items()}
