"""`auto`: the closed-form learner that chooses its features as the stream goes on, for people who want it to work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from evergraph.core.capabilities import capable
from evergraph.core.params import Params
from evergraph.errors import EvergraphError
from evergraph.methods.base import METHODS, Context
from evergraph.methods.closed_form.analytic import HELD_OUT
from evergraph.methods.closed_form.block_prediction import BlockPrediction, Way
from evergraph.methods.closed_form.block_sets import (
    MIXED,
    OWN,
    PREFERRED,
    best_ridge,
    cheapest_near,
    climbed,
    first_near,
    head_sets,
    leader,
    near_leader,
    own_sets,
    vote_sets,
)
from evergraph.methods.closed_form.hits import clearly_more, rows_of, validation_hits, with_changes_between
from evergraph.methods.closed_form.prior import Prior, came_again, log_worth
from evergraph.methods.closed_form.smoothing import best_share
from evergraph.methods.closed_form.sums import Wanted
from evergraph.methods.closed_form.trial import AT_FIRST, OnTrial
from evergraph.methods.closed_form.two_forms import BOTH
from evergraph.methods.state import state
from evergraph.models.base import GraphModel
from evergraph.models.feature_blocks import Layout

VOICES, BESIDE = "vote", "beside"  # the vote of depths, and that of the head beside own features
SIDE_BY_SIDE = 0.125  # share of the budget up to which the sums of all sets of blocks are kept
FEW_MISSES = 0.01  # share of the validation nodes up to which the best set is good enough by itself
SPEAKS = 0.02  # share of the validation nodes' variance from which on own features say something
TELLS = 0.25  # share from which on they tell classes apart well enough to judge edges by them, with a small ridge


@METHODS.register
@dataclass(repr=False)
class Auto(OnTrial):
    """`analytic`, with the blocks of features that the head reads chosen while the stream goes on.

    Graphs differ in how much a node's neighbours say about it and in what way: where edges mostly join nodes of one
    class, a node is best mixed with its neighbours; elsewhere what a node says and what its neighbours say are best
    read side by side, or the neighbours not at all. The same sums serve every set of blocks (`block_sets`), so at
    each task every set and every ridge is solved on the training nodes so far and tried on the task's validation
    nodes. The hits are added up over the tasks, and the heads of the sets near the one with most of them are blended
    (`blended`): at the next task others may lead. Once the sums of all sets take more than an eighth of the budget
    (with the first task, a quarter), the cheapest set within a standard error of the leader is kept beside
    `smooth`, and the other blocks are dropped for good. Graphs with edges between tasks are read in a way of their own
    (`elsewhere`).

    Decisions count what AP counts: tasks alike (`prior`). The sums weigh classes by their size, so the logits of a
    class are raised by the logarithm of what a hit in it counts over what it weighs.

    Args:
        ridge: as in `analytic`; 0 chooses, from 0.05 to 625.
        balance: as in `analytic`.
        premium: as in `analytic`.
        encoder: as in `analytic`; so are `judge_edges`, `smoothing`, `temperature` and
            `learn_validation`.
        memory: what the sums may take, e.g. `500MB`: linear blocks are exact where they fit, else sketched.
        prior: what counts alike in a decision: `tasks`, as in AP, as long as each class comes with one task alone, else
            nodes; `classes`; `nodes`; `weights` leaves classes as `balance` weighs them.
    """

    name = "auto"
    family = "closed form"
    reference = "analytic, with its features chosen along the stream; see docs/analytic.md"
    levels = ("node",)
    kinds = ("classes",)
    model = "mixed-features"

    prior: Prior = "tasks"
    own_: str = state(str)  # the set that speaks for a node's own features in the vote
    elsewhere_: dict[str, Params] = state(dict, like="params")  # the head where edges join tasks, by its way
    own_within_: dict[str, list[int]] = state(dict)  # nodes that own features put right, and wrong, in place of a way
    own_explains_: float = state(float)  # share of all validation nodes' variance, by heads of the training nodes
    smoothing_elsewhere_: list[int] = state(list)  # as `smoothing_counts_`, for the head `smooth`

    def start_task(self, context: Context) -> None:
        """Refuse a model whose features do not fall into blocks."""
        if capable(context.model, "feature_layout") is None:
            raise EvergraphError(f"auto chooses among random features, not {type(context.model).__name__}")
        super().start_task(context)

    def _leave_nodes(self, context: Context) -> None:
        """First drop what is not worth its place."""
        self._drop(context)
        super()._leave_nodes(context)

    def _sets(self, model: GraphModel) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """The sets that a head and the voice of own features may read, among the blocks that there are."""
        layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
        found = []
        for sets in (head_sets(layout.blocks), own_sets(layout.blocks)):
            live = {name: chosen for name, chosen in sets.items() if not self.set_hits_ or name in self.set_hits_}
            if self._trial is not None:
                live = {name: chosen for name, chosen in live.items() if layout.has(chosen)}
            found.append(layout.sets_among_present(live))
        return found[0], found[1]

    def _choose(self, context: Context) -> Tensor:
        """Count the hits of every set and ridge; the training nodes' head of the set and the ridge with most."""
        _, block_of_row = capable(context.model, "feature_blocks")()  # type: ignore[misc]
        for_head, for_own = self._sets(context.model)
        wanted = {name: self._tried(block_of_row, name, blocks) for name, blocks in {**for_own, **for_head}.items()}
        voices = self._vote_wants(context.model, BOTH[:1]) if self.set_hits_ else []  # they seldom change
        self.solve_ahead([*wanted.values(), *voices])
        for name, each in wanted.items():
            self._count(name, self._places(name), self.hits(context, each))
        validated = self.validated_ + context.count(context.task.val)
        if self._trial is not None:
            if (kept := self._settled(context, validated)) is None:
                return self._choose(context)  # blocks that were on trial are there now
            for_head, for_own = kept
        elif self._too_much():
            layout: Layout = capable(context.model, "feature_layout")()  # type: ignore[misc]
            for_head, for_own = self._worth_keeping(layout, for_head, for_own, validated)
        self._lead(for_head, for_own, validated)
        return self._measure(context.model)

    def _measure(self, model: GraphModel) -> Tensor:
        """What all tasks' validation nodes say of own features, and of the training nodes' head, which is returned."""
        self.own_explains_ = self._own_alone(model)[0] if self.own_ else 0.0
        return self._blended(model)

    def _tried(self, block_of_row: Tensor, name: str, blocks: Sequence[bool]) -> Wanted:
        """The training nodes' heads on a set of blocks that are to be tried."""
        return Wanted([self._ridges[place] for place in self._places(name)], BOTH[:1], rows_of(block_of_row, blocks))

    def _worth_keeping(
        self, layout: Layout, for_head: dict[str, list[bool]], for_own: dict[str, list[bool]], validated: int
    ) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """One set for the head, one for own features, and `smooth`, which every graph may come back to.

        Of linear blocks wider than random ones own features have the head's.
        """
        sets, widths, every = {**for_own, **for_head}, layout.widths, (for_head, for_own)
        cost = {name: sum(w for w, read in zip(widths, blocks) if read) for name, blocks in sets.items()}
        for_head = _only(for_head, cheapest_near(self.set_hits_, list(for_head), cost, validated))
        if for_own:
            room = max((w for w, block in zip(widths, layout.present) if not block.linear), default=0)
            free = [read or w <= room for w, read in zip(widths, *for_head.values())]
            cheap = [name for name, blocks in for_own.items() if all(f for f, read in zip(free, blocks) if read)]
            for_own = _only(for_own, first_near(self.set_hits_, cheap or list(for_own), validated))
        self.set_hits_ = {name: self.set_hits_[name] for name in {MIXED: [], **for_own, **for_head} if name in sets}
        for_head, for_own = ({n: read for n, read in some.items() if n in self.set_hits_} for some in every)
        return for_head, for_own

    def _lead(self, for_head: dict[str, list[bool]], for_own: dict[str, list[bool]], validated: int) -> None:
        """The head's set with most hits, those near it to be blended, and the first near the best for own features."""
        self.chosen_ = leader(self.set_hits_, list(for_head))
        missed = validated - max(self.set_hits_[self.chosen_])
        near = near_leader(self.set_hits_, list(for_head), validated) if missed > FEW_MISSES * validated else []
        self.blend_ = dict.fromkeys(near or [self.chosen_], 1.0)
        self.own_ = first_near(self.set_hits_, list(for_own), validated) if for_own else ""
        self.blocks_ = [any(read) for read in zip(*(for_head[name] for name in self.blend_))]

    def _wanted_to_write(self, model: GraphModel, parts: Sequence[str]) -> list[Wanted]:
        """Those of the blend and of the vote, and that of own features."""
        own = [self._explaining(model, self._own(model), parts)] if self.own_ else []
        return [*self._blend_wants(model, parts), *self._vote_wants(model, parts), *own]

    def conclude(self, model: GraphModel) -> None:
        """As `analytic`; and the sets by the hits as they stand."""
        super().conclude(model)
        for_head, for_own = self._sets(model)
        self._lead(for_head, for_own, self.validated_)
        self._measure(model)

    # what counts in a decision

    def _log_worth(self) -> Tensor:
        """The logarithm of what each output unit's scores are worth in a decision."""
        weights = self.cross_[BOTH[0]][-1]  # the last feature is one at every node
        known = [torch.tensor(each, device=weights.device) for each in (self.class_sizes_, self.task_of_unit_)]
        sizes, tasks = (pad(each, (0, weights.numel() - each.numel()), value=-1) for each in known)
        again = self.prior == "tasks" and came_again(weights, sizes, self.balance)
        return log_worth("nodes" if again else self.prior, weights, sizes, tasks)

    def _decisive(self, head: Tensor) -> Tensor:
        """A head whose logits are those of classes that count as `prior` says: its weight of the ones is raised.

        Scores that fall short of probabilities γ times have a temperature of a γth.
        """
        raised = head.clone()
        raised[-1] += self.temperature / self.stretch_ * self._log_worth().to(raised)
        return raised

    # graphs with edges between tasks

    def _vote(self, model: GraphModel, ridge: float, parts: Sequence[str], head: Tensor) -> Tensor:
        """Of voices or, where own features tell classes apart and the head reads them too, of the head and them."""
        return self._decisive_vote(model, self._ways(model, parts, head))

    def _decisive_vote(self, model: GraphModel, ways: dict[str, Tensor]) -> Tensor:
        """The vote as it decides, and judges edges: every voice's logits are raised as those of a head are."""
        voices = 2 if self._voting() == BESIDE else len(self.voices(model))
        vote = ways[self._voting()].clone()
        vote[-1] += voices * self.temperature * self._log_worth().to(vote)
        return vote

    def _voting(self) -> str:
        """Which vote there is. Where own features tell a task's classes apart better than nodes mixed with their
        neighbours do, mixing hides what a node says, and the head that reads both apart speaks in its place.
        """
        right, wrong = self.own_within_.get(MIXED, [0, 0])
        return BESIDE if self.chosen_ != MIXED and self.own_explains_ > TELLS and right > wrong else VOICES

    def _speaks(self) -> bool:
        """Whether own features say something when all classes compete."""
        return self.own_explains_ > SPEAKS

    def _explaining(self, model: GraphModel, blocks: Sequence[bool], parts: Sequence[str]) -> Wanted:
        """The head on some blocks alone, with the ridge that explains most."""
        rows = rows_of(capable(model, "feature_blocks")()[1], blocks)  # type: ignore[misc]
        return Wanted([self._explained(model, blocks)[1]], parts, rows)

    def _vote_wants(self, model: GraphModel, parts: Sequence[str]) -> list[Wanted]:
        """The heads of the vote."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        return [Wanted([self._voice_ridge()], parts, rows_of(block_of_row, blocks)) for blocks in self.voices(model)]

    def _voice_ridge(self) -> float:
        """The ridge of all heads of the vote: the smallest, where own features tell classes apart.

        Hits are counted in a task's own graph, where neighbours give the task away, and say little about the ridge
        where they do not. A larger one shrinks the scores, and with them what the vote can say about edges. Where
        features say little a small ridge learns noise: there it is the best of the deepest head up to 1.
        """
        if self.own_explains_ > TELLS:
            return self._ridges[0]
        tried = self.set_hits_.get(MIXED, self.set_hits_[self.chosen_])[: PREFERRED + 1]
        return self._ridges[best_ridge(tried)]

    def voices(self, model: GraphModel) -> list[list[bool]]:
        """The blocks that each head of the vote reads; the first mixes nodes with their neighbours."""
        return vote_sets(capable(model, "feature_layout")().present, self._own(model))  # type: ignore[misc]

    def _mixed_sets(self, model: GraphModel) -> list[list[bool]]:
        """The blocks that mix nodes with their neighbours, and of these the deepest: what the node says fades there."""
        present, mixed = capable(model, "feature_layout")().present, self.voices(model)[0]  # type: ignore[misc]
        deepest = max(block.depth for block, read in zip(present, mixed) if read)
        deep = [read and block.depth == deepest for block, read in zip(present, mixed)]
        return [mixed] if deep == mixed else [mixed, deep]

    def _own(self, model: GraphModel) -> list[bool]:
        """The blocks that speak for a node's own features."""
        return self._sets(model)[1].get(self.own_, [])

    def _ways(self, model: GraphModel, parts: Sequence[str], head: Tensor) -> dict[str, Tensor]:
        """Heads that may decide where edges join tasks, from the sums of some parts; so is the given head.

        The voices are heads on nodes mixed with their neighbours, two steps and one, and on their own features.
        """
        wanted = self._vote_wants(model, parts)
        self.solve_ahead(wanted)
        voices = [self.solve(*voice)[0] for voice in wanted]
        ways = {VOICES: torch.stack(voices).sum(0), MIXED: voices[0]}
        if not self._speaks():
            blended = [self._explaining(model, blocks, parts) for blocks in self._mixed_sets(model)]
            ways[MIXED] = torch.stack([self.solve(*each)[0] for each in blended]).mean(0)
        if self.own_:
            own = self.solve(*self._explaining(model, self._own(model), parts))[0]
            ways |= {OWN: own, BESIDE: head + own}
        return ways

    def _choose_voting(self, context: Context, head: Tensor) -> Tensor:
        """Count what tells which of the ways decides where edges join tasks.

        In a task's own graph neighbours give the task away, which they do not where edges join tasks; what they say
        about the class is what is left when the task's classes alone are to choose from.
        """
        ways = self._ways(context.model, BOTH[:1], head)
        self.smoothing_elsewhere_ = self._count_smoothing(context, ways[MIXED], self.smoothing_elsewhere_)
        units = torch.nonzero(self._arrived(context)).reshape(-1)
        if OWN in ways and units.numel() > 1:
            hits = dict(zip(ways, validation_hits(context, list(ways.values()), units)))
            for way in (VOICES, BESIDE, MIXED):
                counts = self.own_within_.get(way, [0, 0])
                counts = with_changes_between(context, counts, hits[way], hits[OWN])
                self.own_within_ = {**self.own_within_, way: counts}
        self._count_voting(context, ways[MIXED], ways[self._voting()])
        return self._decisive_vote(context.model, ways)

    def _own_alone(self, model: GraphModel) -> tuple[float, float]:
        """What own features explain, and with which ridge they do most."""
        return self._explained(model, self._own(model))

    def _explained(self, model: GraphModel, blocks: Sequence[bool]) -> tuple[float, float]:
        """What some blocks explain of the variance of all tasks' validation nodes, and with which ridge they do most.

        All classes compete, and heads are those of the training nodes alone. It needs no node: with the validation
        nodes' sums the squared error of a head W is Σ w − 2 tr(Wᵀ B) + tr(Wᵀ G W). From the middle of the grid the
        ridge moves for as long as more is explained.
        """
        rows = rows_of(capable(model, "feature_blocks")()[1], blocks)  # type: ignore[misc]
        cross = self.cross_[BOTH[1]]
        sizes = cross[-1]  # the last feature is one at every node
        variance = float(sizes.sum() - sizes.square().sum() / sizes.sum().clamp(min=1e-12))

        def explained(place: int) -> float:
            head = self.solve([self._ridges[place]], BOTH[:1], rows)[0]
            error = float(sizes.sum() - 2 * (head * cross).sum()) + self.energy(BOTH[1], head, rows)
            return 1 - error / variance if variance > 0 else 0.0

        known, key = self.computed(), (OWN, tuple(blocks))
        if key not in known:
            place = climbed(explained, len(self._ridges))
            known[key] = explained(place), self._ridges[place]
        found: tuple[float, float] = known[key]
        return found

    def elsewhere(self) -> str:
        """What decides where edges join tasks.

        Own features, where they say something when all classes compete, and put clearly more nodes right within their
        tasks than what is mixed with neighbours, and more than the vote. Else the vote, where own features say
        something and it costs no more than the premium; else the head on nodes mixed with their neighbours, over judged
        edges where own features say something. Elsewhere nothing could judge them.
        """
        speaks = self._speaks()
        right, wrong = self.own_within_.get(self._voting(), [0, 0])
        if speaks and right > wrong and clearly_more(self.own_within_[MIXED]):
            return OWN
        return "vote" if speaks and self.votes_ else MIXED

    def _write_elsewhere(self, model: GraphModel) -> None:
        """The head for graphs with edges between tasks, where it is not the vote."""
        (name, vote), way = next(iter(self.vote_.items())), self.elsewhere()
        learned = BOTH if self.learn_validation else BOTH[:1]
        ways = {} if way == "vote" else self._ways(model, learned, vote)  # the vote is not asked for
        self.elsewhere_ = {way: {name: ways[way].to(vote.dtype)}} if way in ways else {}

    def _prediction(self, model: GraphModel) -> BlockPrediction:
        """With what decides where edges join tasks."""
        prediction, way = super()._prediction(model), self.elsewhere()
        head = next(iter(self.elsewhere_.get(way, {}).values()), None)
        if head is None:
            return dataclasses.replace(prediction, elsewhere=Way(prediction.vote, 2))
        if way == OWN or not self._speaks():  # one head, with the ridge that explains most: scores are probabilities
            head = head * self._log_worth().exp().to(head)
        share = best_share(self.smoothing_elsewhere_, self.smoothing) if way == MIXED else 0.0
        judgements = 2 if way == MIXED and self._speaks() and not share else 0
        return dataclasses.replace(prediction, elsewhere=Way(head, judgements, share))

    # what is kept

    def _too_much(self) -> bool:
        """Whether the sums of all sets take more than their share of the budget."""
        held = [*self.factor_.values(), *2 * list(self.gram_.values())]  # G before a task and after it
        share = SIDE_BY_SIDE if self.tasks_ else AT_FIRST
        return sum(part.numel() * part.element_size() for part in held) > share * self.budget()

    def _fold_heads(self, fold: Callable[[Tensor, int], Tensor]) -> None:
        """Those for graphs with edges between tasks too."""
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
            held_out = context.cache[HELD_OUT]
            context.cache[HELD_OUT] = tuple(None if head is None else fold(head, 0) for head in held_out)
            context.task.graph.cache.clear()  # features of blocks that are gone


def _only(sets: dict[str, list[bool]], name: str) -> dict[str, list[bool]]:
    """One of the sets."""
    return {name: sets[name]}
