"""The sums that a closed form keeps, in the smaller of two forms, and the heads solved from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from evergraph.core.capabilities import capable
from evergraph.core.dense_algebra import EXACT
from evergraph.core.params import Params
from evergraph.core.symmetric import SymmetricSum, pack, unpack
from evergraph.data.tasks import Task
from evergraph.methods.base import Context, Method
from evergraph.methods.closed_form.factor import Factor, weighed
from evergraph.methods.closed_form.factored import FactoredSums, rotated
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.hits import changes_between, validation_hits
from evergraph.methods.closed_form.sums import (
    HeadRequest,
    RidgeSystem,
    Sums,
    accumulate,
    constant_first,
    ridge_system,
    solve,
    solved,
    spread,
)
from evergraph.methods.state import state
from evergraph.models.base import NODES_AT_ONCE, GraphModel

PARTS = ("train", "val")
TRAIN_ONLY = PARTS[:1]


@dataclass(repr=False)
class TwoForms(Method):
    """G and B of training and validation nodes (the parts `train` and `val`), over all tasks.

    While there are fewer nodes than half the features, and these come in blocks, the sums are kept as factors
    (`factored`); otherwise as B and the lower triangle of G, in float64. A subclass defines the weights of nodes.
    """

    gram_: dict[str, Tensor] = state(dict, replaced=True)  # by part: `train` and `val`
    cross_: dict[str, Tensor] = state(dict, replaced=True)
    factor_: dict[str, Tensor] = state(dict, replaced=True)  # by part, while there are fewer nodes than features
    factor_targets_: dict[str, Tensor] = state(dict, replaced=True)
    block_widths_: list[int] = state(list)
    task_rows_: list[dict[str, int]] = state(list)  # number of rows that each task left in the factors, by part
    fresh_: dict[str, int] = state(dict)  # number of last rows that are nodes of the current task, until it ends
    _features_bytes: ClassVar[int] = 0  # set per instance: bytes of the features of the task that was added last

    def _weights(self, sizes: Tensor) -> Tensor:
        """Return the weight of a node of each output unit, given the sizes of the classes."""
        raise NotImplementedError

    def _needs_gram(self) -> bool:
        """Return whether the sums have to be kept as G."""
        return False

    def _needs_exact(self) -> bool:
        """Return whether products, not only their sums, have to be formed in float64, and factors kept in it."""
        return False

    def _error(self) -> float:
        """Return the relative error that heads may have."""
        return EXACT

    def _centres(self) -> bool:
        """Return whether ridges pull heads towards the mean target instead of zero, as targets far from zero need."""
        return False

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Measure the scales of input columns, at the first task in which they vary; note the widths of the blocks."""
        measure = capable(model, "scale_new_columns" if self.cross_ else "scale_inputs")
        if measure is not None:
            measure(task.graph)
        self.gram_ = {part: pack(gram) for part, gram in self.gram_.items()}  # square in learners of older versions
        layout = capable(model, "feature_layout")
        self.block_widths_ = [] if layout is None else list(layout().widths)

    def gram(self, part: str) -> Tensor:
        """Return G of one part, packed, whichever form it is kept in."""
        if part in self.gram_:
            return self.gram_[part]
        return Factor(self.factor_[part], self.factor_targets_[part]).gram()

    def gram_among(self, part: str, rows: Tensor) -> Tensor:
        """Return G of one part over the features `rows` as a square matrix, whichever form it is kept in."""
        if part in self.gram_:
            return SymmetricSum([self.gram_[part]], rows).formed()
        return unpack(Factor(self.factor_[part][:, rows], self.factor_targets_[part]).gram())

    def energy(self, part: str, head: Tensor, rows: Tensor) -> float:
        """Return tr(Wᵀ G W) of one part, for a head that reads only the features `rows`."""
        if part in self.gram_:
            read = head[rows.to(head.device)]
            return float((read * SymmetricSum([self.gram_[part]], rows).product(read.double())).sum())
        scores = Factor(self.factor_[part], self.factor_targets_[part]).scores(head, rows)
        return float(scores.double().square().sum())

    def make_dense(self) -> None:
        """Convert factors to G; B is kept in both forms."""
        if self.factor_:
            self.gram_ = self._new_sums = {part: self.gram(part) for part in self.factor_}
            self.factor_, self.factor_targets_, self.fresh_, self.task_rows_ = {}, {}, {}, []

    def add_to_sums(self, context: Context, sizes: Tensor | None, sign: int = 1) -> None:
        """Add a task's nodes to the factors, as plain rows until `forget_nodes`, or to G if there are too many.

        Args:
            context: the task.
            sizes: sizes of the classes, which give the nodes' weights; None for rows of labels or numbers.
            sign: 1 to add, -1 to subtract.
        """
        _, head = linear_head(context.model)
        features = context.batcher.x
        self.__dict__["_features_bytes"] = features.nbytes if isinstance(features, Tensor) else 0
        in_blocks = len(self.block_widths_) and sum(self.block_widths_) + 1 == head.size(0)
        dense = self._dense(head.size(0), self._rows("train") + context.num_train)
        if not in_blocks or dense or context.task.graph.rows is not None or sign < 0:
            self.make_dense()
            self._accumulate(context, None if sizes is None else self._weights(sizes), sign)
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
        """Return whether the sums are kept as G: with more nodes than features, or more than half as many if G fits."""
        needed = bool(self.gram_) or self._needs_gram()
        return needed or rows > width or (self._fits(width) and 2 * rows > width)

    def _fits(self, width: int) -> bool:
        """Return whether G over `width` features may be kept."""
        return True

    def too_much(self) -> bool:
        """Return whether the sums take so much that choices among features are given up for room."""
        return False

    def _room(self, features: int) -> int | None:
        """Return the bytes for what is computed from the factors, beside a task's features; None for no limit."""
        return None

    def _factor_type(self, head: Tensor) -> torch.dtype:
        """Return the type in which factors are kept."""
        return torch.float64 if self._needs_exact() else head.dtype

    def factors_of(self, context: Context, sizes: Tensor | None) -> dict[str, Factor]:
        """Return the factors of a task's nodes by part, weighted by the sizes of their classes if they have any."""
        features, head = linear_head(context.model)
        weights, units, found = None if sizes is None else self._weights(sizes), head.size(1), {}
        for part in PARTS:
            nodes = getattr(context.task, part).to(context.device)
            batches = context.batcher.exact().batches(nodes, NODES_AT_ONCE) if nodes.numel() else ()
            dtype = self._factor_type(head)
            new = Factor(head.new_zeros(0, head.size(0), dtype=dtype), head.new_zeros(0, units, dtype=dtype))
            for batch in batches:
                rows = features(batch).to(dtype)
                own = None if weights is None else weights[batch.y]
                new = new.stacked(weighed(rows, batch.y, own, units, in_place=rows is batch.x))
            found[part] = new
        return found

    def forget_nodes(self) -> None:
        """Keep no row that is a node: rotate the task's rows or, if another task as large would need G, form G."""
        width = sum(self.block_widths_) + 1
        another = self.fresh_.get("train", 0) if self._fits(width) else 0
        if self.factor_ and self._dense(width, self._rows("train") + another):
            self.make_dense()
        for part, number in self.fresh_.items():
            whole = Factor(self.factor_[part], self.factor_targets_[part])
            kept, last = whole.last(number)
            joined = last.replaced(rotated(last), kept, whole) if number else kept
            self.factor_ = {**self.factor_, part: joined.rows}
            self.factor_targets_ = {**self.factor_targets_, part: joined.targets}
        if self.factor_:
            known = {part: sum(rows[part] for rows in self.task_rows_) for part in PARTS}
            self.task_rows_ = [*self.task_rows_, {part: self._rows(part) - known[part] for part in PARTS}]
        self.fresh_ = {}
        for computed in ("_heads", "_sums", "_new_sums"):  # from the old sums
            self.__dict__.pop(computed, None)

    def exchange_rows(self, number: int, new: dict[str, Factor] | None) -> None:
        """Replace the rows of a task in the factors by others, or by none if `new` is None, and update B."""
        factors, targets, cross = dict(self.factor_), dict(self.factor_targets_), dict(self.cross_)
        for part in PARTS:
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
            left = (targets[part] != 0).any(0)  # where no row has a target, B is zero, not a rounding error
            cross[part] = torch.where(left, cross[part] + own.cross() - old.cross(), 0.0)
            self.task_rows_[number] = {**self.task_rows_[number], part: own.rows.size(0)}
        self.factor_, self.factor_targets_, self.cross_ = factors, targets, cross

    def _rows(self, *parts: str) -> int:
        return sum(self.factor_[part].size(0) for part in parts if part in self.factor_)

    def solve(
        self, ridges: Sequence[float], parts: Sequence[str], rows: Tensor | None = None, rough: bool = False
    ) -> list[Tensor]:
        """Return the head for each ridge, from the sums of `parts`, on the features `rows` only, if given."""
        wanted = HeadRequest(list(dict.fromkeys(ridges)), parts, rows, rough)
        new = self._unknown(wanted)
        if new.ridges and self.factor_ and not self._centres():
            known, key = self.computed(), self._key(parts, rows)
            found = self._factored().solve(new, self._error())
            known.update({(*key, ridge, rough): head for ridge, head in zip(new.ridges, found)})
        elif new.ridges:
            self.solve_ahead([new])
        by_ridge = {ridge: self._known(wanted, ridge) for ridge in wanted.ridges}
        return [by_ridge[ridge].clone() for ridge in ridges]  # type: ignore[union-attr]

    def solve_ahead(self, wanted: Sequence[HeadRequest]) -> None:
        """Solve side by side for what `solve` and `hits` will be asked for, all of the same parts."""
        error = self._error()
        if self._centres():
            for each in wanted:
                places = [(*self._key(each.parts, each.rows), ridge, False) for ridge in each.ridges]
                self.computed().update(zip(places, self._solve_centred(each)))
            return
        if self.factor_:
            self._factored().solve_ahead(wanted, error)
            return
        known, made = self.computed(), dict[Any, tuple[RidgeSystem, Tensor | None]]()
        like = next(iter(self.cross_.values()))
        asked = dict[Any, tuple[RidgeSystem, float, bool, Tensor | None]]()
        for each in sorted(wanted, key=lambda each: each.rough):  # what is wanted exactly will do for a rough request
            key, new = self._key(each.parts, each.rows), self._unknown(each).ridges
            if new and key not in made:
                rows = None if each.rows is None else constant_first(each.rows.cpu(), like.size(0))
                sums = [Sums(self.gram_[part], self.cross_[part]) for part in each.parts]
                made[key] = ridge_system(sums, rows), rows
            for ridge in new:
                system, rows = made[key]
                asked.setdefault((*key, ridge), (system, ridge, each.rough, rows))
        found = solved([each[:3] for each in asked.values()], error)
        for (place, (_, _, _, rows)), one in zip(asked.items(), found):
            known[*place, not one.exact] = spread(one.found, rows, like)

    def _solve_centred(self, wanted: HeadRequest) -> list[Tensor]:
        """Solve for heads of targets less their mean, which is added to the weights of the last feature.

        That feature is one, so targets with another zero have the same head but for the mean. If it is not, as below a
        GCN's last layer, the best multiple of it takes the place of the mean.
        """
        cross, error = {part: self.cross_[part] for part in wanted.parts}, self._error()
        last = torch.tensor([next(iter(cross.values())).size(0) - 1])
        total = torch.stack([self.gram_among(part, last).reshape(()) for part in cross]).sum().double()
        mean = torch.stack([each[-1] for each in cross.values()]).sum(0) / total.clamp(min=1e-30)
        if self.factor_:
            heads = self._factored().centred(mean).solve(wanted, error)
        else:
            one = torch.zeros_like(next(iter(cross.values()))[:, :1])
            one[-1] = 1
            ones = {part: SymmetricSum([self.gram_[part]]).product(one) for part in cross}
            sums = [Sums(self.gram_[part], cross[part] - ones[part] * mean) for part in cross]
            heads = solve(wanted.ridges, sums, wanted.rows, error)
        for head in heads:
            head[-1] += mean.to(head)
        return heads

    def _unknown(self, wanted: HeadRequest) -> HeadRequest:
        """Return the request without the ridges whose heads are known."""
        return wanted._replace(ridges=[ridge for ridge in wanted.ridges if self._known(wanted, ridge) is None])

    def _known(self, wanted: HeadRequest, ridge: float) -> Tensor | None:
        """Return a known head; a rough one only if that will do."""
        known, key = self.computed(), (*self._key(wanted.parts, wanted.rows), ridge)
        return known.get((*key, False), known.get((*key, True)) if wanted.rough else None)

    def _key(self, parts: Sequence[str], rows: Tensor | None) -> tuple[tuple[str, ...], bytes]:
        """Return what identifies a head, except for its ridge."""
        read = rows if rows is not None else torch.arange(next(iter(self.cross_.values())).size(0))
        return tuple(parts), read.cpu().numpy().tobytes()

    def hits(self, context: Context, wanted: HeadRequest) -> tuple[int, list[int]]:
        """Return the task's validation nodes that the first head classifies correctly, and changes by the last head.

        The changes are the nodes that the last head corrects, and those that it breaks, in place of the first.
        """
        last = self.fresh_.get("val", 0)
        if last:
            truth = self.factor_targets_["val"][-last:].argmax(1)
            scores = self._factored().scores(wanted, self._error(), "val", last)
            hits = torch.stack([found.argmax(1) == truth for found in scores])
        else:
            hits = validation_hits(context, self.solve(*wanted))
        counts = [int(hits[0].sum()), 0, 0]
        counts[1:] = changes_between(hits[0], hits[-1])
        whole, right, wrong = counts if last else context.total(torch.tensor(counts)).tolist()
        return whole, [right, wrong]

    def validation_errors(self, wanted: HeadRequest) -> list[float]:
        """Return the squared error of each head at the validation nodes of all tasks, weighted as in the sums.

        No node is needed: by the validation sums it is Σ w − 2 tr(Wᵀ B) + tr(Wᵀ G W).
        """
        cross = self.cross_["val"]
        total = float(cross[-1].sum())  # the last feature is one at every node
        if self.factor_ and (rows := self._rows("val")):
            targets = self.factor_targets_["val"].double()
            scores = (found.double() for found in self._factored().scores(wanted, self._error(), "val", rows))
            return [total + float((found * (found - 2 * targets)).sum()) for found in scores]
        assert wanted.rows is not None
        return [
            total - 2 * float((head * cross).sum()) + self.energy("val", head, wanted.rows)
            for head in self.solve(*wanted)
        ]

    def computed(self) -> dict[Any, Any]:
        """Return the cache of what was computed from the current sums, mostly heads: voices often equal the head."""
        sums = (self.gram_, self.cross_, self.factor_)
        known = getattr(self, "_heads", None)
        if known is None or any(now is not then for now, then in zip(sums, known[0])):
            self._heads: tuple[Any, dict[Any, Any]] = (sums, {})
        return self._heads[1]

    def _factored(self) -> FactoredSums:
        """Return the factors with what has been computed from them; made again whenever they change."""
        known = getattr(self, "_sums", None)
        if known is None or known[0] is not self.factor_:
            factors = {part: Factor(self.factor_[part], self.factor_targets_[part]) for part in self.factor_}
            widths = torch.tensor([*self.block_widths_, 1])
            block_of_row = torch.arange(widths.numel()).repeat_interleave(widths)
            block_of_row[-1] = -1  # the column of ones
            known = (self.factor_, FactoredSums(factors, block_of_row, self._room(self._features_bytes)))
            self._sums = known
        sums: FactoredSums = known[1]
        return sums

    def _accumulate(self, context: Context, weights: Tensor | None, sign: int = 1) -> None:
        """Add a task's examples to G and B, or subtract them, weighted by their class if they have one."""
        features, head = linear_head(context.model)
        gram, cross, exact = dict(self.gram_), dict(self.cross_), self._needs_exact()
        in_place = self.gram_ is self.__dict__.get("_new_sums")  # made within this task: nothing else refers to them
        for part in PARTS:
            examples = getattr(context.task, part).to(context.device)
            before = Sums(gram[part], cross[part]) if part in gram else None
            gram[part], cross[part] = accumulate(
                context, features, head, examples, weights, before, exact, sign, in_place
            )
        self.gram_, self.cross_ = gram, cross

    def grow(self, before: Params, after: Params) -> None:
        """Add columns of zeros to B and the factors' targets for new units, which have no nodes yet."""
        super().grow(before, after)
        widths = [(before[name].size(1), value.size(1)) for name, value in after.items() if value.dim() == 2]
        more = next((new - old for old, new in widths if new != old), 0)
        for key in ("cross_", "factor_targets_"):
            setattr(self, key, {part: pad(value, (0, more)) for part, value in getattr(self, key).items()})
