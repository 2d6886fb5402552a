"""What decides on a graph whose edges join tasks: own features, a vote, or nodes mixed with their neighbours.

In a task's own graph, by which heads are measured, neighbours give the task away. Where edges join tasks they mislead,
so other heads than the one with most hits may be better there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.capabilities import capable
from evergraph.core.params import Params
from evergraph.methods.base import Context
from evergraph.methods.closed_form.block_prediction import BlockPrediction, Way
from evergraph.methods.closed_form.block_sets import MIXED, OWN, PREFERRED, vote_sets
from evergraph.methods.closed_form.hits import clearly_more, rows_of, validation_hits, with_changes_between
from evergraph.methods.closed_form.smoothing import best_share
from evergraph.methods.closed_form.sums import HeadRequest
from evergraph.methods.closed_form.trial import OnTrial
from evergraph.methods.closed_form.two_forms import PARTS, TRAIN_ONLY
from evergraph.methods.state import state
from evergraph.models.base import GraphModel

VOICES, BESIDE = "vote", "beside"  # the vote of all depths, and the vote of the head, own features and this vote
UNJUDGED = 1 / 3  # share of the features of the unweighted graph where mixed nodes decide
BESIDE_VOICES = 3  # in the vote `BESIDE`
JUDGE = "judge"  # where the vote decides: the head on own features that judges edges first if the vote is misled
INFORMATIVE = 0.02  # share of the validation nodes' variance above which own features are informative
SEPARATES_CLASSES = 0.25  # share above which they separate classes well enough to judge edges by, with a small ridge
OVER_VOTE, OVER_MIXED = 1.0, 2.0  # standard errors by which own features have to be better than either to decide alone
OVER_JUDGE = 2.0  # the same over a vote that judges edges well, as own features separate classes
BEHIND_MIXED = 0.05  # share of the nodes up to which own features may be worse than mixed ones in a vote that decides
MANY = 5_000  # training nodes from which on the voices have the smallest ridge
WELL_EXPLAINED = 0.5  # share above which their voice in the vote weighs more than one, in proportion to the share


@dataclass(repr=False)
class BetweenTasks(OnTrial):
    """Chooses what decides on graphs whose edges join tasks (`elsewhere`).

    A subclass defines what counts in a decision (`_log_worth`).
    """

    own_: str = state(str)  # the set of blocks that represents a node's own features
    elsewhere_: dict[str, Params] = state(dict, like="params")  # heads for graphs with edges between tasks, by way
    own_within_: dict[str, list[int]] = state(dict)  # by way: nodes that own features correct and break in its place
    own_explains_: float = state(float)  # share of all validation nodes' variance that own features explain
    smoothing_elsewhere_: list[int] = state(list)  # as `smoothing_counts_`, for the head `smooth`

    def _log_worth(self) -> Tensor:
        """Return log π / Ω of each output unit: what it counts in a decision over what it weighs."""
        raise NotImplementedError

    def _rows_of(self, model: GraphModel, sets: dict[str, list[bool]]) -> dict[str, Tensor]:
        """Return the features that each set reads."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        return {name: rows_of(block_of_row, blocks) for name, blocks in sets.items()}

    def _vote(self, model: GraphModel, parts: Sequence[str], head: Tensor) -> Tensor:
        """Return the vote that decides and judges edges: the logits of every voice are raised like those of a head."""
        beside = self._voting() == BESIDE
        voices = BESIDE_VOICES if beside else len(self.voices(model))
        vote = self._beside(model, parts, head) if beside else self._vote_of_voices(model, parts)
        vote[-1] += voices * self.temperature * self._log_worth().to(vote)
        return vote

    def _voting(self) -> str:
        """Return which vote is used: `VOICES` or `BESIDE`.

        If own features separate a task's classes better than nodes mixed with their neighbours do, mixing hides
        information about the node. The head, which reads both separately, and own features are then voices of their
        own, and the voices that mix are only a part of the third.
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

    def _own_request(self, model: GraphModel, parts: Sequence[str]) -> HeadRequest:
        """Return a request for the head on own features alone, with the ridge that explains most."""
        return self._explaining(model, self._own(model), parts)

    def _voice_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the voices of the vote."""
        _, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        return [
            HeadRequest([self._voice_ridge()], parts, rows_of(block_of_row, blocks)) for blocks in self.voices(model)
        ]

    def _voice_ridge(self) -> float:
        """Return the ridge of all voices of the vote: if own features separate classes, the smallest of many nodes.

        Sums grow with the nodes, and with them what a ridge adds. With fewer nodes than `MANY` the ridge is as many
        times larger, up to 1, so that as much is added.

        Hits are counted in a task's own graph, where neighbours give the task away, and say little about the best
        ridge where they do not. A larger ridge shrinks the scores, and with them the vote's evidence about edges. With
        weak features a small ridge learns noise: then it is the ridge of the deepest head, up to 1.
        """
        if len(self._ridges) == 1:
            return self._ridges[0]
        if self.own_explains_ > SEPARATES_CLASSES:
            return min(self._ridges[0] * max(MANY / max(sum(self.class_sizes_), 1), 1.0), self._ridges[PREFERRED])
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

        The given head is solved from the same sums.
        """
        informative = self._own_features_informative()
        mixed = self._solved_voices(model, parts)[0] if informative else self._mixed_head(model, parts)
        ways = {VOICES: self._vote_of_voices(model, parts), MIXED: mixed}
        if self.own_:
            ways |= {OWN: self._own_head(model, parts), BESIDE: self._beside(model, parts, head)}
        return ways

    def _own_head(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the head on own features alone."""
        return self.solve(*self._own_request(model, parts))[0]

    def _beside(self, model: GraphModel, parts: Sequence[str], head: Tensor) -> Tensor:
        """Return the vote of the head, own features and the mean of the voices."""
        together = self._vote_of_voices(model, parts) / len(self.voices(model))
        return head + self._own_head(model, parts) + together

    def _solved_voices(self, model: GraphModel, parts: Sequence[str]) -> list[Tensor]:
        """Return the heads that the vote adds up, solved from the sums of `parts`."""
        wanted = self._voice_requests(model, parts)
        self.solve_ahead(wanted)
        return [self.solve(*voice)[0] for voice in wanted]

    def _vote_of_voices(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the weighted sum of the voices.

        One reads nodes mixed with their neighbours two steps away, one those one step away, and one own features.
        """
        weighted = zip(self._voice_weights(model), self._solved_voices(model, parts))
        return torch.stack([weight * voice for weight, voice in weighted]).sum(0)

    def _choose_voting(self, context: Context, head: Tensor) -> None:
        """Count what chooses between the ways that may decide where edges join tasks.

        In a task's own graph neighbours give the task away, but not where edges join tasks. What neighbours reveal
        about the class, as features or by smoothing, is what remains when only the task's own classes compete.
        """
        ways, units = self._ways(context.model, TRAIN_ONLY, head), torch.nonzero(self._arrived(context)).reshape(-1)
        if units.numel() > 1:
            mixed = self._mixed_head(context.model, TRAIN_ONLY)
            self.smoothing_elsewhere_ = self._count_smoothing(context, mixed, self.smoothing_elsewhere_, units)
        if OWN in ways and units.numel() > 1:
            hits = dict(zip(ways, validation_hits(context, list(ways.values()), units)))
            for way in (VOICES, BESIDE, MIXED):
                counts = self.own_within_.get(way, [0, 0])
                counts = with_changes_between(context, counts, hits[way], hits[OWN])
                self.own_within_ = {**self.own_within_, way: counts}
        self._count_voting(context, ways[MIXED], ways[self._voting()])

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
        left. The more so where own features separate classes, since the vote then judges edges well. The vote decides
        if own features are informative, it costs no more than the premium, and own features, within their tasks, are
        not much worse than nodes mixed with their neighbours, since a weak voice misleads it where all classes compete.
        Otherwise the head on nodes mixed with their neighbours decides. Its edges are judged
        only if own features are informative, since nothing else could judge them.
        """
        speaks, (right, wrong) = self._own_features_informative(), self.own_within_.get(MIXED, [0, 0])
        over_vote = self.own_within_.get(self._voting(), [0, 0])
        enough = OVER_JUDGE if self.own_explains_ > SEPARATES_CLASSES else OVER_VOTE
        if speaks and clearly_more(over_vote, enough) and clearly_more([right, wrong], OVER_MIXED):
            return OWN
        keeps_up = wrong - right <= BEHIND_MIXED * self.validated_
        return VOICES if speaks and self.votes_ and keeps_up else MIXED

    def _cost_elsewhere(self) -> float:
        best = self.set_hits_.get(self.chosen_, 0)
        mixed, (right, wrong) = self.set_hits_.get(MIXED, best), self.voting_
        hits = {OWN: self.set_hits_.get(self.own_, best), VOICES: mixed + right - wrong, MIXED: mixed}
        return max(best - hits[self.elsewhere()], 0) / max(self.validated_, 1)

    def _write_elsewhere(self, model: GraphModel) -> None:
        """Solve and store the head for graphs with edges between tasks; if it is the vote, what may judge before it."""
        (name, vote), way = next(iter(self.vote_.items())), self.elsewhere()
        learned = PARTS if self.learn_validation else TRAIN_ONLY
        if way == VOICES:
            separates = self.own_explains_ > SEPARATES_CLASSES
            self.elsewhere_ = {JUDGE: {name: self._own_judge(model, learned).to(vote.dtype)}} if separates else {}
            return
        if way == MIXED:
            self.elsewhere_ = {MIXED: {name: self._mixed_head(model, learned).to(vote.dtype)}}
            return
        self.elsewhere_ = {OWN: {name: self._own_head(model, learned).to(vote.dtype)}}

    def _own_judge(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the head on own features that judges edges if the vote is misled."""
        return self._raised(self._own_request(model, TRAIN_ONLY), self._own_request(model, parts))

    def _mixed_head(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the head on nodes mixed with their neighbours that decides where edges join tasks.

        If nothing can judge these edges, it is the mean of two depths, and `_prediction` corrects it for the prior.
        """
        if not self._own_features_informative():
            blended = [self._explaining(model, blocks, parts) for blocks in self._mixed_sets(model)]
            return torch.stack([self.solve(*each)[0] for each in blended]).mean(0)
        raised = self._raised(*(self._voice_requests(model, each)[0] for each in (TRAIN_ONLY, parts)))
        return raised / self.stretch_  # to the scale of the head's scores, for which probabilities are calibrated

    def _raised(self, trained: HeadRequest, wanted: HeadRequest) -> Tensor:
        """Return a head stretched to probabilities, by its scores if `trained` alone, with logits raised by `prior`."""
        head = self._stretch(self.solve(*trained)[0], trained.rows) * self.solve(*wanted)[0]
        head[-1] += self.temperature * self._log_worth().to(head)
        return head

    def _prediction(self, model: GraphModel) -> BlockPrediction:
        """Return the prediction of `analytic`, with the chosen way for graphs with edges between tasks."""
        prediction, way = super()._prediction(model), self.elsewhere()
        head, judge = (next(iter(self.elsewhere_.get(each, {}).values()), None) for each in (way, JUDGE))
        if head is None:
            return dataclasses.replace(prediction, elsewhere=Way(prediction.vote, 2, own=judge, name="vote"))
        informative, share = self._own_features_informative(), best_share(self.smoothing_elsewhere_, self.smoothing)
        if way == OWN or not informative:
            head = head * self._log_worth().exp().to(head)  # the ridge explains most, so scores are probabilities
        if way == OWN:  # no edge is read
            return dataclasses.replace(prediction, elsewhere=Way(head, 0))
        unjudged = UNJUDGED if informative else 1.0  # nothing can judge edges if own features say nothing
        return dataclasses.replace(prediction, elsewhere=Way(head, 2 if informative else 0, share, unjudged=unjudged))
