"""`auto`: the closed-form learner that chooses its features along the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from evergraph.core.capabilities import capable
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context
from evergraph.methods.closed_form.analytic import HELD_OUT
from evergraph.methods.closed_form.block_sets import (
    MIXED,
    blend_shares,
    cheapest_near,
    first_near,
    head_sets,
    leader,
    own_sets,
    still_open,
)
from evergraph.methods.closed_form.budgeted import AT_FIRST
from evergraph.methods.closed_form.prior import Prior, log_worth, seen_in_several_tasks
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.two_forms import PARTS, TRAIN_ONLY
from evergraph.methods.closed_form.within_tasks import WithinTasks
from evergraph.models.base import GraphModel
from evergraph.models.feature_blocks import Layout

SIDE_BY_SIDE = 0.125  # share of the budget up to which the sums of all sets of blocks are kept
FEW_MISSES = 0.01  # share of misclassified validation nodes up to which the best set is used alone
HARDLY = 0.02  # share of the validation nodes: a smaller gain is not worth the room of further sets
HARDLY_OWN = 0.03  # the same for own features, which are one voice among several


@METHODS.register
@dataclass(repr=False)
class Auto(WithinTasks):
    """`analytic` that also chooses, along the stream, which blocks of features the head reads.

    Graphs differ in how informative a node's neighbours are, and how. Where edges mostly join nodes of one class, a
    node is best mixed with its neighbours; elsewhere a node and its neighbours are best read side by side, or the
    neighbours not at all. The same sums serve every set of blocks (`block_sets`), so at each task every set is solved
    on the training nodes so far, with the ridge that explains most about the validation nodes of all tasks (`ridges`),
    and tried on the task's validation nodes. Hits are added up over the tasks, and the heads of the sets near the one
    with most hits are blended (`blended`); the next task may change which these are. Once the sums of all sets take
    more than an eighth of the budget (a quarter at the first task), sets that are behind, could hardly gain anything
    or would not fit are dropped for good (`_worth_keeping`). Graphs with edges between tasks are predicted differently
    (`elsewhere`).

    Decisions aim at AP, in which all tasks count equally (`prior`). The sums weight classes by their size, so the
    logits of a class are raised by the logarithm of what a hit in it counts over what the class weighs.

    Args:
        ridge: as in `analytic`; 0 chooses from 0.05 to 625.
        balance: as in `analytic`.
        premium: as in `analytic`.
        encoder: as in `analytic`; so are `judge_edges`, `smoothing`, `temperature` and
            `learn_validation`.
        memory: memory for the sums, e.g. `500MB`: linear blocks are exact if they fit, else sketched.
        prior: what counts equally in a decision: `tasks`, as in AP, as long as each class comes with a single task,
            else nodes; `classes`; `nodes`; `weights` leaves classes as `balance` weights them.
    """

    name = "auto"
    family = "closed form"
    reference = "analytic, with its features chosen along the stream; see docs/analytic.md"
    levels = ("node",)
    kinds = ("classes",)
    model = "mixed-features"

    prior: Prior = "tasks"

    def start_task(self, context: Context) -> None:
        """Refuse a model whose features do not come in blocks."""
        if capable(context.model, "feature_layout") is None:
            raise EvergraphError(f"auto chooses among random features, not {type(context.model).__name__}")
        super().start_task(context)

    def _leave_nodes(self, context: Context) -> None:
        """Drop blocks that are no longer read, then forget single nodes."""
        self._drop(context)
        super()._leave_nodes(context)

    def _sets(self, model: GraphModel) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Return the sets that the head, and the voice of own features, may read, among the present blocks."""
        layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
        found = []
        for sets in (head_sets(layout.blocks), own_sets(layout.blocks)):
            live = {name: chosen for name, chosen in sets.items() if not self.set_hits_ or name in self.set_hits_}
            if self._trial is not None:
                live = {name: chosen for name, chosen in live.items() if layout.has(chosen)}
            found.append(layout.sets_among_present(live))
        return found[0], found[1]

    def _choose(self, context: Context) -> Tensor:
        """Find every set's ridge and count its hits; return the head chosen by them, solved from the training nodes."""
        for_head, for_own = self._sets(context.model)
        sets = self._rows_of(context.model, {**for_own, **for_head})
        voices = self._voice_requests(context.model, TRAIN_ONLY) if self.set_hits_ else []  # their sets seldom change
        self._find_ridges(sets, beside=voices)
        new = context.count(context.task.val)
        for name, rows in sets.items():
            self._count(name, *self.hits(context, self._request(self._compared(name), rows)), new)
        validated = self.validated_ + new
        if self._trial is not None:
            if (kept := self._settled(context, validated)) is None:
                return self._choose(context)  # blocks that were on trial are present now
            for_head, for_own = kept
        elif self.too_much():
            layout: Layout = capable(context.model, "feature_layout")()  # type: ignore[misc]
            for_head, for_own = self._worth_keeping(layout, for_head, for_own, validated)
        self._lead(for_head, for_own, validated)
        return self._measure(context.model)

    def _measure(self, model: GraphModel) -> Tensor:
        """Measure own features and the blend on all tasks' validation sums; return the training nodes' blend."""
        self.own_explains_ = self._own_alone(model)[0] if self.own_ else 0.0
        return self._blended(model)

    def _worth_keeping(
        self, layout: Layout, for_head: dict[str, list[bool]], for_own: dict[str, list[bool]], validated: int
    ) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Return the sets that may turn out to be the best, as far as they fit, and `smooth`, which any graph may need.

        What is dropped is lost for good, and the first tasks say little. So of the sets that are still open only those
        are dropped whose sums would not fit with another task, the widest first. Always kept are the cheapest for the
        head, and one for own features that is no wider than a random block or reads what the head reads.
        """
        sets, widths, hits = {**for_own, **for_head}, layout.lasting_widths, self.set_hits_
        cost = {name: sum(w for w, read in zip(widths, blocks) if read) for name, blocks in sets.items()}
        head = cheapest_near(hits, list(for_head), cost, validated)
        kept = [name for name in (MIXED, head) if name in sets]
        open_ = set(still_open(hits, list(for_head), head, validated, HARDLY))
        if for_own:
            room = max((w for w, block in zip(widths, layout.present) if not block.linear), default=0)
            free = [read or w <= room for w, read in zip(widths, sets[head])]
            cheap = [name for name, blocks in for_own.items() if all(f for f, read in zip(free, blocks) if read)]
            kept.append(first_near(hits, cheap or list(for_own), validated))
            open_ |= {*still_open(hits, list(for_own), kept[-1], validated, HARDLY_OWN)}
        for name in sorted(open_ - {*kept}, key=lambda name: (cost[name], name)):
            read = [any(blocks) for blocks in zip(*(sets[each] for each in [*kept, name]))]
            if self._would_fit(1 + sum(w for w, needed in zip(widths, read) if needed)):
                kept.append(name)
        self.set_hits_ = {name: self.set_hits_[name] for name in dict.fromkeys(kept)}
        left = [{name: read for name, read in some.items() if name in kept} for some in (for_head, for_own)]
        return left[0], left[1]

    def _would_fit(self, width: int) -> bool:
        """Return whether the sums over `width` features would fit the budget with another task like those so far."""
        nodes = {part: self._rows(part) * (self.tasks_ + 2) // (self.tasks_ + 1) for part in PARTS}
        size = max((part.element_size() for part in self.factor_.values()), default=8)
        return self._bytes(width, nodes, size) <= self.budget()

    def _lead(self, for_head: dict[str, list[bool]], for_own: dict[str, list[bool]], validated: int) -> None:
        """Choose the head's leading set, the sets near it to blend, and the first near the best for own features."""
        hits = self.set_hits_
        self.chosen_ = leader(hits, list(for_head))
        missed = validated - hits[self.chosen_]
        few = missed <= FEW_MISSES * validated
        self.blend_ = {self.chosen_: 1.0} if few else blend_shares(hits, list(for_head), validated)
        self.own_ = first_near(hits, list(for_own), validated) if for_own else ""
        self.blocks_ = [any(read) for read in zip(*(for_head[name] for name in self.blend_))]

    def _final_head_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the heads of the blend and the vote, and the head of own features."""
        own = [self._own_request(model, parts)] if self.own_ else []
        return [*self._blend_requests(model, parts), *self._voice_requests(model, parts), *own]

    def conclude(self, model: GraphModel) -> None:
        """Make the choices of `analytic`, and choose the sets by the current hits."""
        super().conclude(model)
        for_head, for_own = self._sets(model)
        self._find_ridges(self._rows_of(model, {**for_own, **for_head}))
        self._lead(for_head, for_own, self.validated_)
        self._measure(model)

    # what counts in a decision

    def _log_worth(self) -> Tensor:
        """Return log π / Ω of each output unit: what it counts in a decision over what it weighs (`prior`)."""
        weights = self.cross_["train"][-1]  # the last feature is one at every node
        known = [torch.tensor(each, device=weights.device) for each in (self.class_sizes_, self.task_of_unit_)]
        sizes, tasks = (pad(each, (0, weights.numel() - each.numel()), value=-1) for each in known)
        again = self.prior == "tasks" and seen_in_several_tasks(weights, sizes, self.balance)
        return log_worth("nodes" if again else self.prior, weights, sizes, tasks)

    def _prior_corrected(self, head: Tensor) -> Tensor:
        """Return the head with the logits of classes raised as `prior` says, by its weights of the column of ones.

        Scores that have to be stretched by γ have a temperature that is γ times smaller.
        """
        raised = head.clone()
        raised[-1] += self.temperature / self.stretch_ * self._log_worth().to(raised)
        return raised

    # what is kept

    def too_much(self) -> bool:
        """Return whether the sums of all sets exceed their share of the budget."""
        rows, squares = (sum(part.nbytes for part in kept.values()) for kept in (self.factor_, self.gram_))
        held = self._lasting * rows + self._lasting**2 * 2 * squares  # G is held twice: before and after a task
        return held > (SIDE_BY_SIDE if self.tasks_ else AT_FIRST) * self.budget()

    def _fold_heads(self, fold: Callable[[Tensor, int], Tensor]) -> None:
        """Fold stored heads, including those for graphs with edges between tasks."""
        super()._fold_heads(fold)
        self.elsewhere_ = {
            way: {name: fold(head, 0) for name, head in heads.items()} for way, heads in self.elsewhere_.items()
        }

    def _drop(self, context: Context) -> None:
        """Drop the blocks that no set reads any more."""
        for_head, for_own = self._sets(context.model)
        read = [any(blocks) for blocks in zip(*for_head.values(), *for_own.values(), *self.voices(context.model))]
        if not all(read):
            layout: Layout = capable(context.model, "feature_layout")()  # type: ignore[misc]
            fold = self._narrow(context.model, read, layout.linear_width)
            context.cache[HELD_OUT] = fold(context.cache[HELD_OUT], 0)
            context.task.graph.cache.clear()  # it holds features of dropped blocks
