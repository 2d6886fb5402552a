"""`auto`: the closed-form learner that chooses its features along the stream."""

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
    blend_shares,
    cheapest_near,
    first_near,
    head_sets,
    leader,
    own_sets,
    vote_sets,
)
from evergraph.methods.closed_form.hits import clearly_more, rows_of, validation_hits, with_changes_between
from evergraph.methods.closed_form.prior import Prior, log_worth, seen_in_several_tasks
from evergraph.methods.closed_form.smoothing import best_share
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.trial import AT_FIRST, OnTrial
from evergraph.methods.closed_form.two_forms import PARTS, TRAIN_ONLY
from evergraph.methods.state import state
from evergraph.models.base import GraphModel
from evergraph.models.feature_blocks import Layout

VOICES, BESIDE = "vote", "beside"  # the vote of all depths, and the vote of the head and own features
JUDGE = "judge"  # where the vote decides: the head on own features that judges edges first if the vote is misled
SIDE_BY_SIDE = 0.125  # share of the budget up to which the sums of all sets of blocks are kept
FEW_MISSES = 0.01  # share of misclassified validation nodes up to which the best set is used alone
INFORMATIVE = 0.02  # share of the validation nodes' variance above which own features are informative
SEPARATES_CLASSES = 0.25  # share above which they separate classes well enough to judge edges by, with a small ridge
OVER_VOTE, OVER_MIXED = 1.0, 2.0  # standard errors by which own features have to be better than either to decide alone
BEHIND_MIXED = 0.05  # share of the nodes up to which own features may be worse than mixed ones in a vote that decides
WELL_EXPLAINED = 0.5  # share above which their voice in the vote weighs more than one, in proportion to the share


@METHODS.register
@dataclass(repr=False)
class Auto(OnTrial):
    """`analytic` that also chooses, along the stream, which blocks of features the head reads.

    Graphs differ in how informative a node's neighbours are, and how. Where edges mostly join nodes of one class, a
    node is best mixed with its neighbours; elsewhere a node and its neighbours are best read side by side, or the
    neighbours not at all. The same sums serve every set of blocks (`block_sets`), so at each task every set is solved
    on the training nodes so far, with the ridge that explains most about the validation nodes of all tasks (`ridges`),
    and tried on the task's validation nodes. Hits are added up over the tasks, and the heads of the sets near the one
    with most hits are blended (`blended`); the next task may change which these are. Once the sums of all sets take
    more than an eighth of the budget (a quarter at the first task), the cheapest set within a standard error of the
    leader is kept besides `smooth`, and the other blocks are dropped for good. Graphs with edges between tasks are
    predicted differently (`elsewhere`).

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
    own_: str = state(str)  # the set of blocks that represents a node's own features
    elsewhere_: dict[str, Params] = state(dict, like="params")  # heads for graphs with edges between tasks, by way
    own_within_: dict[str, list[int]] = state(dict)  # by way: nodes that own features correct and break in its place
    own_explains_: float = state(float)  # share of all validation nodes' variance that own features explain
    smoothing_elsewhere_: list[int] = state(list)  # as `smoothing_counts_`, for the head `smooth`

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
        elif self._too_much():
            layout: Layout = capable(context.model, "feature_layout")()  # type: ignore[misc]
            for_head, for_own = self._worth_keeping(layout, for_head, for_own, validated)
        self._lead(for_head, for_own, validated)
        return self._measure(context.model)

    def _rows_of(self, model: GraphModel, sets: dict[str, list[bool]]) -> dict[str, Tensor]:
        """Return the features that each set reads."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        return {name: rows_of(block_of_row, blocks) for name, blocks in sets.items()}

    def _measure(self, model: GraphModel) -> Tensor:
        """Measure own features and the blend on all tasks' validation sums; return the training nodes' blend."""
        self.own_explains_ = self._own_alone(model)[0] if self.own_ else 0.0
        return self._blended(model)

    def _worth_keeping(
        self, layout: Layout, for_head: dict[str, list[bool]], for_own: dict[str, list[bool]], validated: int
    ) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Return one set for the head, one for own features, and `smooth`, which may be needed again on any graph.

        Own features may use linear blocks that are wider than random ones only if the head reads them too.
        """
        sets, widths, every, hits = {**for_own, **for_head}, layout.widths, (for_head, for_own), self.set_hits_
        cost = {name: sum(w for w, read in zip(widths, blocks) if read) for name, blocks in sets.items()}
        for_head = _only(for_head, cheapest_near(hits, list(for_head), cost, validated))
        if for_own:
            room = max((w for w, block in zip(widths, layout.present) if not block.linear), default=0)
            free = [read or w <= room for w, read in zip(widths, *for_head.values())]
            cheap = [name for name, blocks in for_own.items() if all(f for f, read in zip(free, blocks) if read)]
            for_own = _only(for_own, first_near(hits, cheap or list(for_own), validated))
        self.set_hits_ = {name: self.set_hits_[name] for name in {MIXED: [], **for_own, **for_head} if name in sets}
        for_head, for_own = ({n: read for n, read in some.items() if n in self.set_hits_} for some in every)
        return for_head, for_own

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
        own = [self._explaining(model, self._own(model), parts)] if self.own_ else []
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

    # graphs with edges between tasks

    def _vote(self, model: GraphModel, ridge: float, parts: Sequence[str], head: Tensor) -> Tensor:
        """Return the vote of the voices or, if own features separate classes, of the head and own features."""
        return self._prior_corrected_vote(model, self._ways(model, parts, head))

    def _prior_corrected_vote(self, model: GraphModel, ways: dict[str, Tensor]) -> Tensor:
        """Return the vote that decides and judges edges: the logits of every voice are raised like those of a head."""
        voices = 2 if self._voting() == BESIDE else len(self.voices(model))
        vote = ways[self._voting()].clone()
        vote[-1] += voices * self.temperature * self._log_worth().to(vote)
        return vote

    def _voting(self) -> str:
        """Return which vote is used: `VOICES` or `BESIDE`.

        If own features separate a task's classes better than nodes mixed with their neighbours do, mixing hides
        information about the node, and the head, which reads both separately, replaces the voices that mix.
        """
        right, wrong = self.own_within_.get(MIXED, [0, 0])
        return BESIDE if self.chosen_ != MIXED and self.own_explains_ > SEPARATES_CLASSES and right > wrong else VOICES

    def _own_features_informative(self) -> bool:
        """Return whether own features are informative when all classes compete."""
        return self.own_explains_ > INFORMATIVE

    def _explaining(self, model: GraphModel, blocks: Sequence[bool], parts: Sequence[str]) -> HeadRequest:
        """Return a request for the head on `blocks` alone, with the ridge that explains most."""
        rows = rows_of(capable(model, "feature_blocks")()[1], blocks)  # type: ignore[misc]
        return HeadRequest([self._explained(model, blocks)[1]], parts, rows)

    def _voice_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the voices of the vote."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        return [
            HeadRequest([self._voice_ridge()], parts, rows_of(block_of_row, blocks)) for blocks in self.voices(model)
        ]

    def _voice_ridge(self) -> float:
        """Return the ridge of all voices of the vote: the smallest, if own features separate classes.

        Hits are counted in a task's own graph, where neighbours give the task away, and say little about the best
        ridge where they do not. A larger ridge shrinks the scores, and with them the vote's evidence about edges. With
        weak features a small ridge learns noise: then it is the ridge of the deepest head, up to 1.
        """
        if self.own_explains_ > SEPARATES_CLASSES:
            return self._ridges[0]
        deepest = self._ridge_place(MIXED if MIXED in self.set_hits_ else self.chosen_)
        return self._ridges[min(deepest, PREFERRED)]

    def voices(self, model: GraphModel) -> list[list[bool]]:
        """Return the blocks that each voice of the vote reads; the first mixes nodes with their neighbours."""
        return vote_sets(capable(model, "feature_layout")().present, self._own(model))  # type: ignore[misc]

    def _voice_weights(self, model: GraphModel) -> list[float]:
        """Return the weight of each voice in the vote; together they are as many as there are voices.

        Neighbours from other tasks mislead the voices that mix, but not own features: if these explain more than half
        of the variance, their voice weighs more than the others.
        """
        voices, own = self.voices(model), self._own(model)
        if own not in voices or len(voices) == 1:
            return [1.0] * len(voices)
        weight = max(self.own_explains_ / WELL_EXPLAINED, 1.0)
        return [weight if voice == own else (len(voices) - weight) / (len(voices) - 1) for voice in voices]

    def _mixed_sets(self, model: GraphModel) -> list[list[bool]]:
        """Return the blocks that mix nodes with neighbours, and the deepest of these, where the node itself fades."""
        present, mixed = capable(model, "feature_layout")().present, self.voices(model)[0]  # type: ignore[misc]
        deepest = max(block.depth for block, read in zip(present, mixed) if read)
        deep = [read and block.depth == deepest for block, read in zip(present, mixed)]
        return [mixed] if deep == mixed else [mixed, deep]

    def _own(self, model: GraphModel) -> list[bool]:
        """Return the blocks that represent a node's own features."""
        return self._sets(model)[1].get(self.own_, [])

    def _ways(self, model: GraphModel, parts: Sequence[str], head: Tensor) -> dict[str, Tensor]:
        """Return the ways: heads that may decide where edges join tasks, by name, solved from the sums of `parts`.

        The given head is solved from the same sums. The voices are heads on nodes mixed with their neighbours, two
        steps and one, and on their own features.
        """
        wanted = self._voice_requests(model, parts)
        self.solve_ahead(wanted)
        voices = [self.solve(*voice)[0] for voice in wanted]
        weighted = [weight * voice for weight, voice in zip(self._voice_weights(model), voices)]
        ways = {VOICES: torch.stack(weighted).sum(0), MIXED: voices[0]}
        if not self._own_features_informative():
            blended = [self._explaining(model, blocks, parts) for blocks in self._mixed_sets(model)]
            ways[MIXED] = torch.stack([self.solve(*each)[0] for each in blended]).mean(0)
        if self.own_:
            own = self.solve(*self._explaining(model, self._own(model), parts))[0]
            ways |= {OWN: own, BESIDE: head + own}
        return ways

    def _choose_voting(self, context: Context, head: Tensor) -> Tensor:
        """Count what chooses between the ways that may decide where edges join tasks; return the vote.

        In a task's own graph neighbours give the task away, but not where edges join tasks. What neighbours reveal
        about the class is what remains when only the task's own classes compete.
        """
        ways = self._ways(context.model, TRAIN_ONLY, head)
        self.smoothing_elsewhere_ = self._count_smoothing(context, ways[MIXED], self.smoothing_elsewhere_)
        units = torch.nonzero(self._arrived(context)).reshape(-1)
        if OWN in ways and units.numel() > 1:
            hits = dict(zip(ways, validation_hits(context, list(ways.values()), units)))
            for way in (VOICES, BESIDE, MIXED):
                counts = self.own_within_.get(way, [0, 0])
                counts = with_changes_between(context, counts, hits[way], hits[OWN])
                self.own_within_ = {**self.own_within_, way: counts}
        self._count_voting(context, ways[MIXED], ways[self._voting()])
        return self._prior_corrected_vote(context.model, ways)

    def _own_alone(self, model: GraphModel) -> tuple[float, float]:
        """Return the share of variance that own features explain, and the ridge that explains most."""
        return self._explained(model, self._own(model))

    def _explained(self, model: GraphModel, blocks: Sequence[bool]) -> tuple[float, float]:
        """Return the share of all tasks' validation variance that `blocks` explain, and the ridge that explains most.

        All classes compete, and heads are solved from the training nodes alone.
        """
        known, key = self.computed(), (OWN, tuple(blocks))
        if key not in known:
            rows = self._rows_of(model, {OWN: list(blocks)})
            place = self._explaining_places(rows, {OWN: None})[OWN]
            known[key] = self._explained_by(self._request([place], rows[OWN]))[0], self._ridges[place]
        found: tuple[float, float] = known[key]
        return found

    def elsewhere(self) -> str:
        """Return the way that decides where edges join tasks.

        Own features decide if they are informative when all classes compete and, within their tasks, classify clearly
        more nodes correctly than nodes mixed with their neighbours do, and than the vote does. Where hits are alike,
        the vote is the safer choice: own features are one of its voices, but without it nothing of the neighbours is
        left. The vote decides if own features are informative, it costs no more than the premium, and own features,
        within their tasks, are not much worse than nodes mixed with their neighbours, since a weak voice misleads it
        where all classes compete. Otherwise the head on nodes mixed with their neighbours decides. Its edges are judged
        only if own features are informative, since nothing else could judge them.
        """
        speaks, (right, wrong) = self._own_features_informative(), self.own_within_.get(MIXED, [0, 0])
        over_vote = self.own_within_.get(self._voting(), [0, 0])
        if speaks and clearly_more(over_vote, OVER_VOTE) and clearly_more([right, wrong], OVER_MIXED):
            return OWN
        keeps_up = wrong - right <= BEHIND_MIXED * self.validated_
        return "vote" if speaks and self.votes_ and keeps_up else MIXED

    def _write_elsewhere(self, model: GraphModel) -> None:
        """Solve and store the head for graphs with edges between tasks; if it is the vote, what may judge before it."""
        (name, vote), way = next(iter(self.vote_.items())), self.elsewhere()
        learned = PARTS if self.learn_validation else TRAIN_ONLY
        if way == "vote":
            separates = self.own_explains_ > SEPARATES_CLASSES
            self.elsewhere_ = {JUDGE: {name: self._own_judge(model, learned).to(vote.dtype)}} if separates else {}
            return
        ways = self._ways(model, learned, vote)  # the way that reads the head is not used
        self.elsewhere_ = {way: {name: ways[way].to(vote.dtype)}} if way in ways else {}

    def _own_judge(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the head on own features that judges edges if the vote is misled: its scores are probabilities."""
        own = self._own(model)
        trained, wanted = (self._explaining(model, own, each) for each in (TRAIN_ONLY, parts))
        judge = self._stretch(self.solve(*trained)[0], trained.rows) * self.solve(*wanted)[0]
        judge[-1] += self.temperature * self._log_worth().to(judge)
        return judge

    def _prediction(self, model: GraphModel) -> BlockPrediction:
        """Return the prediction of `analytic`, with the chosen way for graphs with edges between tasks."""
        prediction, way = super()._prediction(model), self.elsewhere()
        head, judge = (next(iter(self.elsewhere_.get(each, {}).values()), None) for each in (way, JUDGE))
        if head is None:
            return dataclasses.replace(prediction, elsewhere=Way(prediction.vote, 2, own=judge))
        if (
            way == OWN or not self._own_features_informative()
        ):  # heads with the ridge that explains most: scores are probabilities
            head = head * self._log_worth().exp().to(head)
        share = best_share(self.smoothing_elsewhere_, self.smoothing) if way == MIXED else 0.0
        judgements = 2 if way == MIXED and self._own_features_informative() and not share else 0
        return dataclasses.replace(prediction, elsewhere=Way(head, judgements, share))

    # what is kept

    def _too_much(self) -> bool:
        """Return whether the sums of all sets exceed their share of the budget."""
        held = [*self.factor_.values(), *2 * list(self.gram_.values())]  # G is held twice: before and after a task
        share = SIDE_BY_SIDE if self.tasks_ else AT_FIRST
        return sum(part.numel() * part.element_size() for part in held) > share * self.budget()

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
            held_out = context.cache[HELD_OUT]
            context.cache[HELD_OUT] = tuple(None if head is None else fold(head, 0) for head in held_out)
            context.task.graph.cache.clear()  # it holds features of dropped blocks


def _only(sets: dict[str, list[bool]], name: str) -> dict[str, list[bool]]:
    """Return a dictionary with the named set only."""
    return {name: sets[name]}
