"""A closed-form head: learning the tasks in turn gives the same solution as learning them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from evergraph.core.capabilities import capability, capable
from evergraph.core.dense_algebra import EXACT
from evergraph.core.params import Params
from evergraph.core.settings import Bounds, Fraction, NonNegative, Positive
from evergraph.core.side_by_side import ONE, blas_threads
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, Context, View
from evergraph.methods.closed_form.block_prediction import WHOLE, BlockPrediction, Way, Whole
from evergraph.methods.closed_form.columns import as_outputs, check_targets, negative_errors
from evergraph.methods.closed_form.drift import MovingEncoder
from evergraph.methods.closed_form.familiarity import damped_factor, dense_rows, evenly, strangeness
from evergraph.methods.closed_form.forgetting import ForgettingFromSums
from evergraph.methods.closed_form.head import head_name, linear_head
from evergraph.methods.closed_form.hits import rows_of, validation_hits, with_changes_between
from evergraph.methods.closed_form.smoothing import best_share, with_changes
from evergraph.methods.closed_form.sums import SMALL, HeadRequest
from evergraph.methods.closed_form.two_forms import PARTS, TRAIN_ONLY, TwoForms
from evergraph.methods.closed_form.why import Reasons, reasons
from evergraph.methods.state import state
from evergraph.models.base import GraphModel, known_inputs
from evergraph.problems.base import Problem

RIDGES = (0.05, 0.2, 1.0)
SCORES = "closed form: scores of all nodes"  # in a graph's cache, with the key of the prediction they come from
FEW = 0.02  # share of edges between tasks, beyond that found in training graphs, that is always tolerated
PER_COST = 1.5  # further share tolerated per unit of `_cost_elsewhere`
HELD_OUT = "the head that has not learned from the validation nodes"  # in a context's cache


@METHODS.register
@dataclass(repr=False)
class Analytic(MovingEncoder, TwoForms):
    """Ridge regression on the model's features over all tasks, solved in closed form from sums.

    The head W minimizes Σ_v w_v ‖φ_v W − onehot(y_v)‖² + ridge · (mean diagonal of G / classes) ‖W‖² over all tasks,
    where φ_v are the inputs of the model's output layer. The loss is quadratic in W with the constant curvature
    G = Σ_v w_v φ_v φ_vᵀ, so the framework's penalty with the full Fisher of each past task is exact:
    the sums G and B = Σ_v w_v φ_v onehot(y_v)ᵀ, in float64, are all that is needed of past tasks. The
    solution, by Cholesky, equals that of joint training on the same features.

    Numbers may have any zero: for them the penalty is on W less the mean target as the weight of the constant feature,
    so that a ridge pulls predictions to the mean of all tasks' targets, not to zero. Below a GCN's last layer no
    feature is constant, and predicted numbers should be near zero.

    Validation nodes have sums of their own. Heads solved from the training nodes alone are scored on them to choose
    the ridge and, if the model's features come in blocks, how much predictions are smoothed and whether the vote of
    all depths is used (`block_prediction`). The final heads are then solved from both sums, unless `learn_validation`
    is off. Validation nodes are scored while their task is the current one; only counts are kept.

    New examples of a known class can arrive at any time. With `balance=0` the head then equals that of all examples
    learned at once; otherwise new examples are weighted by the size that their class has reached, and earlier ones
    keep their weight.

    Args:
        ridge: ridge strength; 0 chooses among 0.05, 0.2 and 1 the one with most correctly classified validation
            nodes, the largest if tied.
        balance: node weights are (size of the node's class)^(−balance): 0 counts nodes, 1 counts classes,
            and above 1, up to 2, rarer classes count more.
        premium: share of the validation nodes that a vote of all depths may cost on training graphs, in return for
            its gains on graphs with edges between tasks.
        encoder: `frozen` never trains the encoder; `first` trains it on the first task by the usual loop;
            `continual` trains it on every task, composed with a method that protects it. The sums then follow by the
            linear map that best fits the examples which that method keeps, and stay unchanged if it keeps none.
        judge_edges: judge the edges at test time; when off, the graph is used as it is.
        smoothing: largest of three tried shares of the neighbours' probabilities in a prediction; 0 never smooths.
        temperature: of the softmax that turns least-squares scores into probabilities.
        learn_validation: whether the final heads also learn from the validation nodes once the choices are made. When
            off, the head uses only the labels that a network trained on the training nodes uses.
    """

    name = "analytic"
    family = "closed form"
    learns_without_epochs = True
    reference = "ridge regression by accumulated statistics (recursive least squares); see docs/analytic.md"
    access = Access(keeps=("statistics",), transductive=True)
    model = "random-features"
    search_space = MappingProxyType({"ridge": (1e-3, 10.0)})

    ridge: NonNegative = 0.0
    balance: Annotated[float, Bounds(at_least=0, at_most=2)] = 0.75
    premium: NonNegative = 0.02
    encoder: Literal["frozen", "first", "continual"] = "frozen"
    judge_edges: bool = True
    smoothing: Fraction = 0.75
    temperature: Positive = 0.1
    learn_validation: bool = True
    class_sizes_: list[int] = state(list)  # training nodes of each output unit so far
    hits_: list[float] = state(list)  # of each ridge: correctly classified validation nodes, or minus squared errors
    smoothing_counts_: list[int] = state(list)  # of each share: validation nodes that smoothing corrects, and breaks
    voting_: list[int] = state(lambda: [0, 0])  # validation nodes that the vote corrects, and breaks
    validated_: int = state(int)
    tasks_: int = state(int)
    encoder_before_: Params = state(dict, like="params", new="values")
    trained_head_: Params = state(dict, like="params")  # between tasks: the trained head, by its name
    drift_: list[float] = state(list)  # for each task: share of the kept examples' change that the map misses
    vote_: Params = state(dict, like="params")  # the vote, by the head's name
    blocks_: list[bool] = state(list)  # which blocks of features the head reads
    task_of_unit_: list[int] = state(list)
    votes_: bool = state(bool)
    smoothing_share_: float = state(float)  # share of the neighbours' probabilities; 0 for none
    doubt_: float = state(float)  # largest share of a task's own edges that is mistaken for edges between tasks
    _rounding: ClassVar[float] = 0.0  # set per instance: machine epsilon of the head's type
    _numbers: ClassVar[bool] = False  # set per instance: whether targets are numbers
    _measuring: ClassVar[bool] = False  # set per instance: whether `held_out` has replaced the head

    # learning

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Add the task to the sums, choose the ridge, solve, and write the head."""
        context.model.eval()
        with blas_threads(ONE):  # one thread by default; larger operations ask for more
            self.follow(context)
            self._add(context)
            self.decide(context)
            self.write(context.problem, context.model)
            self._learn_doubt(context)
            self._leave_nodes(context)
        self.tasks_ += 1

    def _leave_nodes(self, context: Context) -> None:
        """Forget single nodes, so that only sums are kept."""
        self.forget_nodes()

    def decide(self, context: Context) -> None:
        """Score every choice on the task's validation nodes, by heads that have not learned from them."""
        model, in_blocks = context.model, self._in_blocks(context.problem, context.model)
        self._note_type(context.problem, model)
        trained = self._choose(context)
        if in_blocks and context.count(context.task.val):
            self.smoothing_counts_ = self._count_smoothing(context, trained, self.smoothing_counts_)
            self._choose_voting(context, trained)
        self.conclude(model)
        if in_blocks:
            trained = self._refined(model, trained, TRAIN_ONLY)
        context.cache[HELD_OUT] = self._prior_corrected(trained)

    def conclude(self, model: GraphModel) -> None:
        """Choose the smoothing share with the largest net gain, and the vote if it costs no more than the premium."""
        self.smoothing_share_ = best_share(self.smoothing_counts_, self.smoothing)
        self.votes_ = bool(self.validated_) and self.voting_[1] - self.voting_[0] <= self.premium * self.validated_

    def write(self, problem: Problem, model: GraphModel) -> None:
        """Solve the heads by the current choices, and write them."""
        self._note_type(problem, model)
        _, head = linear_head(model)
        ridge, learned = self.chosen_ridge(), PARTS if self.learn_validation else TRAIN_ONLY
        in_blocks = self._in_blocks(problem, model)
        self.solve_ahead(self._final_head_requests(model, learned) if in_blocks else [HeadRequest([ridge], learned)])
        final = self._solved(model, learned) if in_blocks else self.solve([ridge], learned)[0]
        if in_blocks:
            self.vote_ = {head_name(model, head): self._vote(model, learned, final).to(head.dtype)}
            self._write_elsewhere(model)
            final = self._refined(model, final, learned)
        head.copy_(self._prior_corrected(final))

    def _solved(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """Return the head on blocks of features by the current choices, solved from the sums of `parts`."""
        return self.solve([self.chosen_ridge()], parts, self._head_rows(model))[0]

    def _refined(self, model: GraphModel, head: Tensor, parts: Sequence[str]) -> Tensor:
        """Return the head after other heads, solved from the sums of `parts`, had their say; here the head itself."""
        return head

    def _prior_corrected(self, head: Tensor) -> Tensor:
        """Return the head that makes decisions; here the solved head itself."""
        return head

    def _final_head_requests(self, model: GraphModel, parts: Sequence[str]) -> list[HeadRequest]:
        """Return requests for the heads to be written that can be solved side by side."""
        return [HeadRequest([self.chosen_ridge()], parts, self._head_rows(model))]

    def _write_elsewhere(self, model: GraphModel) -> None:
        """Write a separate head for graphs with edges between tasks; none here."""

    def _choose(self, context: Context) -> Tensor:
        """Count the hits of every ridge; return the head with the chosen one, solved from the training nodes alone."""
        rows = self._head_rows(context.model) if self._in_blocks(context.problem, context.model) else None
        heads = self.solve(self._ridges, ("train",), rows)
        self._choose_ridge(context, heads)
        return heads[list(self._ridges).index(self.chosen_ridge())]

    @property
    def _ridges(self) -> Sequence[float]:
        """The ridges to try."""
        return [self.ridge] if self.ridge else list(RIDGES)

    def chosen_ridge(self) -> float:
        """Return the ridge with most hits (or least squared error) on validation examples; the largest if tied."""
        return self._ridges[max(range(len(self.hits_)), key=lambda i: (self.hits_[i], i))]

    def _add(self, context: Context) -> None:
        """Add the task's examples to the sums, weighted by the size that their class has reached, if they have one."""
        if context.batcher.y.dim() > 1:  # rows of labels or numbers
            check_targets(context, len(self.class_sizes_))
            self.add_to_sums(context, None)
            self.class_sizes_ = [sum(self.class_sizes_[:1]) + context.num_train] * context.num_seen
            return
        self.add_to_sums(context, self._sizes(context))
        self._learn_units(context)

    def _sizes(self, context: Context) -> Tensor:
        """Number of training nodes of each output unit, including this task's."""
        sizes = self._arrived(context)
        sizes[: len(self.class_sizes_)] += torch.tensor(self.class_sizes_, dtype=torch.long, device=sizes.device)
        return sizes

    def _arrived(self, context: Context) -> Tensor:
        """Number of this task's training nodes of each output unit, over all processes."""
        own = context.batcher.y[context.own(context.train)]
        return context.total(torch.bincount(own, minlength=linear_head(context.model)[1].size(1)))

    def _weights(self, sizes: Tensor) -> Tensor:
        """Return the weight of a node of each output unit, given the sizes of the classes."""
        return sizes.double().clamp(min=1) ** -self.balance

    def _needs_exact(self) -> bool:
        """Return whether the ridge is so small that it reads directions which float32 cannot resolve."""
        return 0 < self.ridge < SMALL

    def _needs_gram(self) -> bool:
        """Return whether the encoder may be trained: the sums follow its drift in G."""
        return self.encoder != "frozen"

    def _error(self) -> float:
        """Return about ten roundings of the head's type; held-out heads are as exact, since calibration uses them."""
        return max(EXACT, 10 * self._rounding)

    def _centres(self) -> bool:
        """Return whether targets are numbers, which may have any zero."""
        return self._numbers

    def _note_type(self, problem: Problem, model: GraphModel) -> None:
        self.__dict__["_rounding"] = float(torch.finfo(linear_head(model)[1].dtype).eps)
        self.__dict__["_numbers"] = problem.kind == "numbers"

    def _learn_units(self, context: Context) -> None:
        """Update the sizes of classes and the task that brought each output unit."""
        sizes = self._sizes(context)
        tasks = [*self.task_of_unit_, *[-1] * (sizes.numel() - len(self.task_of_unit_))]
        for unit in torch.nonzero(self._arrived(context)).reshape(-1).tolist():
            tasks[unit] = tasks[unit] if tasks[unit] >= 0 else self.tasks_
        self.class_sizes_, self.task_of_unit_ = sizes.tolist(), tasks

    @capability(rests_on=("_add", "add_to_sums", "decide", "write"))
    def forgetting(self) -> ForgettingFromSums | str:
        """Return how examples are forgotten, or why they cannot be: the encoder was trained on them."""
        if self.encoder != "frozen":
            return f"encoder={self.encoder!r} trained the encoder on them; learn anew without them"
        return ForgettingFromSums(self)

    def _in_blocks(self, problem: Problem, model: GraphModel) -> bool:
        """Return whether the vote and edge judging apply: nodes have classes, and features come in blocks."""
        return problem.kind == "classes" and capable(model, "feature_blocks") is not None

    # choices, by the current task's validation nodes

    def _choose_ridge(self, context: Context, heads: list[Tensor]) -> None:
        """Add up the hits (or negative squared errors) of each ridge on validation examples."""
        classes = context.problem.kind == "classes"
        own = validation_hits(context, heads).sum(1) if classes else negative_errors(context, heads)
        hits = context.total(own).tolist()
        self.hits_ = [before + new for before, new in zip(self.hits_ or [0] * len(heads), hits)]

    def _count_smoothing(
        self, context: Context, head: Tensor, counts: Sequence[int], units: Tensor | None = None
    ) -> list[int]:
        """Return `counts` plus the nodes that smoothing a head's predictions corrects, and breaks, among `units`."""
        return with_changes(counts, context, head, self.smoothing, self._prediction(context.model).smooth, units)

    def _choose_voting(self, context: Context, head: Tensor) -> None:
        """Count the nodes that the vote, solved from the training nodes alone, corrects and breaks."""
        self._count_voting(context, head, self._vote(context.model, TRAIN_ONLY, head))

    def _count_voting(self, context: Context, head: Tensor, vote: Tensor) -> None:
        """Count the nodes that a vote corrects and breaks in place of a head."""
        self.voting_ = with_changes_between(context, self.voting_, *validation_hits(context, [head, vote]))
        self.validated_ += context.count(context.task.val)

    # blocks of features

    def _head_rows(self, model: GraphModel) -> Tensor | None:
        """Return the features that the head reads, None for all; by default the blocks with any propagation."""
        blocks = capable(model, "feature_blocks")
        if blocks is None:
            return None
        depths, block_of_row = blocks()
        if not self.blocks_:
            self.blocks_ = [depth > 0 or not any(depths) for depth in depths]
        return rows_of(block_of_row, self.blocks_)

    def _vote(self, model: GraphModel, parts: Sequence[str], head: Tensor) -> Tensor:
        """Return the sum of the head and of one head on the blocks of each depth below the deepest that it reads."""
        depths, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        deepest = max(depth for depth, read in zip(depths, self.blocks_) if read)
        total = head.clone()
        for depth in sorted({depth for depth in depths if depth < deepest}):
            rows = rows_of(block_of_row, [other == depth for other in depths])
            total += self.solve([self.chosen_ridge()], parts, rows)[0]
        return total

    def _prediction(self, model: GraphModel) -> BlockPrediction:
        """Return how a whole graph is predicted, with the current heads and choices."""
        _, head = linear_head(model)
        whole = [capable(model, name) for name in WHOLE]
        tasks = torch.tensor(self.task_of_unit_, device=head.device)
        vote, share = next(iter(self.vote_.values()), head), self.smoothing_share_
        return BlockPrediction(
            head=head,
            vote=vote,
            task_of_unit=torch.nn.functional.pad(tasks, (0, head.size(1) - tasks.numel()), value=-1),
            graph_features=whole[0],  # type: ignore[arg-type]
            graph_scores=whole[1],  # type: ignore[arg-type]
            feature_scores=whole[2],  # type: ignore[arg-type]
            temperature=self.temperature,
            smoothing=share,
            judges=self.judge_edges and not self._measuring and len({*self.task_of_unit_} - {-1}) > 1,
            tolerated=FEW + self.doubt_ + PER_COST * self._cost_elsewhere(),
            elsewhere=Way(vote, 2, name="vote") if self.votes_ else Way(head, 0 if share else 1, share, name="head"),
        )

    def _cost_elsewhere(self) -> float:
        """Return the share of validation nodes that the way that decides where edges join tasks costs where none do.

        On a graph with few edges between tasks the head loses little, but the other way costs nearly as much as on a
        task's own graph. So the more it costs, the more such edges are tolerated.
        """
        right, wrong = self.voting_
        return max(wrong - right, 0) / max(self.validated_, 1) if self.votes_ else 0.0

    def _learn_doubt(self, context: Context) -> None:
        """Update the largest share of a task's own edges that is mistaken for edges between tasks."""
        if not self._in_blocks(context.problem, context.model):
            return
        prediction = self._prediction(context.model)
        if prediction.judges and not context.batcher.num_hops:
            features = context.batcher.x
            assert isinstance(features, Tensor)
            adjacency = context.task.graph.adjacency.to(features.dtype).to(features.device)
            _, share = prediction.judge(adjacency, features)
            self.doubt_ = max(share, self.doubt_)

    def access_at(self, level: str) -> Access:
        """Return the access: transductive for nodes, whose edges are judged over a whole graph, but not otherwise."""
        return replace(self.access.at(level), transductive=level == "node")

    @torch.no_grad()
    def predict(self, view: View) -> Tensor | None:
        """Return scores of the requested examples, by judged edges if features come in blocks and fit into memory.

        Scores of a whole graph are cached with it: requesting nodes one by one costs no more than all at once.
        """
        if not self.tasks_:
            return None
        in_blocks = self._in_blocks(view.problem, view.model)
        key = self._prediction(view.model).key(view.model, view.device) if in_blocks else ""
        if key and (known := view.graph.cache.get(SCORES, ("", None)))[0] == key:
            scores: Tensor = known[1]
        elif (whole := self._whole(view)) is not None:
            scores = whole.prediction.scores(*whole[1:]).cpu()
            view.graph.cache[SCORES] = (key, scores)
        else:
            return as_outputs(view.problem, view.outputs(), self.temperature)
        return scores[view.nodes.cpu()]

    def _whole(self, view: View) -> Whole | None:
        """Return the inputs of prediction on the whole graph; None if the graph is not predicted as a whole."""
        if not self._in_blocks(view.problem, view.model) or any(capable(view.model, name) is None for name in WHOLE):
            return None
        prediction, fits = self._prediction(view.model), capable(view.model, "reads_whole")
        needed = prediction.smoothing or prediction.judges
        if view.graph.rows is not None or fits is None or not fits(view.graph) or not needed:
            return None
        dtype, joining = prediction.head.dtype, view.graph.joining
        x = view.graph.x.to(dtype).to(view.device)
        adjacency = view.graph.adjacency.to(dtype).to(view.device)
        features = known_inputs(view.model, view.graph, torch.device(view.device))
        assert features is None or isinstance(features, Tensor)
        return Whole(prediction, x, adjacency, features, None if joining is None else joining.to(view.device))

    # for users of a deployed learner

    @capability(rests_on=("decide", "write"))
    @contextmanager
    def held_out(self, context: Context) -> Iterator[None]:
        """Replace the final head, within the context, by one that has not learned from the validation nodes.

        Meanwhile no edge is judged, and this head decides: the others have learned from them.
        """
        _, head = linear_head(context.model)
        final = head.detach().clone()
        try:
            head.data.copy_(context.cache[HELD_OUT])
            self.__dict__["_measuring"] = True
            yield
        finally:
            head.data.copy_(final)
            self.__dict__["_measuring"] = False

    @capability(rests_on=("_add", "add_to_sums", "predict"))
    def strangeness(self, view: View) -> Tensor:
        """Return how strange examples look, as two numbers each (`familiarity.strangeness`)."""
        used = [unit for unit, size in enumerate(self.class_sizes_) if size]
        head = linear_head(view.model)[1].detach()
        rows = evenly(dense_rows(view.model, head.size(0))).to(head.device)
        known, key = self.computed(), ("leverage", rows.cpu().numpy().tobytes(), len(used))
        if key not in known:  # once per task
            known[key] = damped_factor(self.gram_among("train", rows), len(used))
        return strangeness(view, head[:, used], rows, known[key], len(used))

    @torch.no_grad()
    @capability(rests_on=("predict", "_whole"))
    def reasons(self, view: View, units: Sequence[int]) -> Reasons:
        """Decompose one node's score for an output unit, or for one unit against another (`why.reasons`)."""
        whole, head = self._whole(view), linear_head(view.model)[1].detach()
        read = None
        if whole is not None:
            features = view.problem.batcher(view.model, view.graph, device=view.device).x
            assert isinstance(features, Tensor)
            read = whole.prediction, whole.prediction.reading(whole.x, whole.adjacency, features, whole.joining)
        return reasons(view, units, read, head, self.temperature)
