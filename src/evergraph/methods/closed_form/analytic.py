"""A closed-form head: learning task after task gives the solution of learning all at once."""

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
from evergraph.methods.closed_form.forgetting import Forgetting
from evergraph.methods.closed_form.head import head_name, linear_head
from evergraph.methods.closed_form.hits import rows_of, validation_hits, with_changes_between
from evergraph.methods.closed_form.smoothing import best_share, with_changes
from evergraph.methods.closed_form.sums import SMALL, Wanted
from evergraph.methods.closed_form.two_forms import BOTH, TwoForms
from evergraph.methods.closed_form.why import Reasons, reasons
from evergraph.methods.state import state
from evergraph.models.base import GraphModel, known_inputs
from evergraph.problems.base import Problem

RIDGES = (0.05, 0.2, 1.0)
SCORES = "closed form: scores of all nodes"  # in a graph's cache, with what they were computed by
HELD_OUT = "heads that have not learned from the validation nodes"  # in a context's cache: the head and the vote


@METHODS.register
@dataclass(repr=False)
class Analytic(MovingEncoder, TwoForms):
    """min over W of Σ_v w_v ‖φ_v W − onehot(y_v)‖² + ridge · (mean diagonal of G / classes) ‖W‖², over all tasks.

    φ are the inputs of the model's output layer. The loss is quadratic in W with the constant curvature
    G = Σ_v w_v φ_v φ_vᵀ, so the framework's penalty with the full Fisher of each past task is exact:
    the sums G and B = Σ_v w_v φ_v onehot(y_v)ᵀ are all that past tasks have to leave behind, in float64. The
    solution, by Cholesky, is the one of joint training on the same features.

    Validation nodes have sums of their own. They choose the ridge (and, where the model's features fall into blocks,
    whether predictions are smoothed and whether depths vote) by heads of the training nodes; the final heads then
    learn from both, unless `learn_validation` is off. Each is counted when its task is the current one, and the counts
    are all that is kept.

    New examples of a class that was learned before can come at any time. With `balance=0` the head then equals that
    of all examples at once; otherwise new examples are weighed by the size that their class has reached, and those
    learned before keep the weight they had.

    Args:
        ridge: ridge strength; 0 chooses among 0.05, 0.2 and 1 the one with most validation nodes right, the
            largest of equals.
        balance: node weights are (size of the node's class)^(−balance): 0 counts nodes, 1 counts classes,
            and above 1, up to 2, the rarer class counts more.
        premium: the share of validation nodes that a vote of all depths may cost on the graphs of training, for
            what it saves on graphs with edges between tasks.
        encoder: `frozen` never trains the encoder; `first` trains it on the first task by the usual loop;
            `continual` trains it on every task, composed with a method that protects it; the sums follow by the
            linear map that fits best on what that method keeps of earlier tasks, and stay where it keeps nothing.
        judge_edges: judge the edges at test time; off, the graph is taken as it is.
        smoothing: the largest share of the neighbours' probabilities in the prediction, of three; 0 never smooths.
        temperature: of the softmax that makes probabilities of least-squares scores.
        learn_validation: whether the final heads learn from the validation nodes too, once they have chosen. Off, the
            head has the labels that a network trained on the training nodes has.
    """

    name = "analytic"
    family = "closed form"
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
    hits_: list[float] = state(list)  # validation nodes that each ridge puts right; or minus its squared errors
    smoothing_counts_: list[int] = state(list)  # validation nodes that each share of smoothing puts right, and wrong
    voting_: list[int] = state(lambda: [0, 0])  # likewise for the vote
    validated_: int = state(int)
    tasks_: int = state(int)
    encoder_before_: Params = state(dict, like="params", new="values")
    trained_head_: Params = state(dict, like="params")  # between tasks: the head of training, under its name
    drift_: list[float] = state(list)  # at each task: the share of the kept examples' change that the map misses
    vote_: Params = state(dict, like="params")  # the head of the vote, under the head's name
    blocks_: list[bool] = state(list)  # which blocks of features the head reads
    task_of_unit_: list[int] = state(list)
    votes_: bool = state(bool)
    smoothing_share_: float = state(float)  # the share of the neighbours' probabilities; 0 for none
    doubt_: float = state(float)
    _rounding: ClassVar[float] = 0.0  # of an object: of the type that its head is kept in

    # learning

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Add the task to the sums, choose the ridge, solve, and write the head."""
        context.model.eval()
        with blas_threads(ONE):  # what is worth more asks for more
            self.follow(context)
            self._add(context)
            self.decide(context)
            self.write(context.problem, context.model)
            self._learn_doubt(context)
            self._leave_nodes(context)
        self.tasks_ += 1

    def _leave_nodes(self, context: Context) -> None:
        """Keep nothing that is still a node."""
        self.forget_nodes()

    def decide(self, context: Context) -> None:
        """Count what the task's validation nodes say of each choice, by heads that have not learned from them."""
        model, vote = context.model, None
        self._note_type(model)
        trained = self._choose(context)
        if self._in_blocks(context.problem, model) and context.count(context.task.val):
            self.smoothing_counts_ = self._count_smoothing(context, trained, self.smoothing_counts_)
            vote = self._choose_voting(context, trained)
        self.conclude(model)
        context.cache[HELD_OUT] = self._decisive(trained), vote

    def conclude(self, model: GraphModel) -> None:
        """Smooth as puts most more nodes right than wrong; vote where that costs no more than the premium."""
        self.smoothing_share_ = best_share(self.smoothing_counts_, self.smoothing)
        self.votes_ = bool(self.validated_) and self.voting_[1] - self.voting_[0] <= self.premium * self.validated_

    def write(self, problem: Problem, model: GraphModel) -> None:
        """Solve the heads by the choices as they stand, and write them."""
        self._note_type(model)
        _, head = linear_head(model)
        ridge, learned = self.chosen_ridge(), BOTH if self.learn_validation else BOTH[:1]
        in_blocks = self._in_blocks(problem, model)
        self.solve_ahead(self._wanted_to_write(model, learned) if in_blocks else [Wanted([ridge], learned)])
        final = self._solved(model, learned) if in_blocks else self.solve([ridge], learned)[0]
        if in_blocks:
            self.vote_ = {head_name(model, head): self._vote(model, ridge, learned, final).to(head.dtype)}
            self._write_elsewhere(model)
        head.copy_(self._decisive(final))

    def _solved(self, model: GraphModel, parts: Sequence[str]) -> Tensor:
        """The head on blocks of features, from the sums of some parts, by the choices as they stand."""
        return self.solve([self.chosen_ridge()], parts, self._head_rows(model))[0]

    def _decisive(self, head: Tensor) -> Tensor:
        """A head as it decides: what is solved for."""
        return head

    def _wanted_to_write(self, model: GraphModel, parts: Sequence[str]) -> list[Wanted]:
        """The heads that will be written: those that can be solved for side by side."""
        return [Wanted([self.chosen_ridge()], parts, self._head_rows(model))]

    def _write_elsewhere(self, model: GraphModel) -> None:
        """Write a head of its own for graphs with edges between tasks: none here."""

    def _choose(self, context: Context) -> Tensor:
        """Count the hits of every ridge; the head that training nodes alone make with the chosen one."""
        rows = self._head_rows(context.model) if self._in_blocks(context.problem, context.model) else None
        heads = self.solve(self._ridges, ("train",), rows)
        self._choose_ridge(context, heads)
        return heads[list(self._ridges).index(self.chosen_ridge())]

    @property
    def _ridges(self) -> Sequence[float]:
        """The ridges that are tried."""
        return [self.ridge] if self.ridge else list(RIDGES)

    def chosen_ridge(self) -> float:
        """The ridge with most hits (or the least squared error) on validation examples; the largest of equals."""
        return self._ridges[max(range(len(self.hits_)), key=lambda i: (self.hits_[i], i))]

    def _add(self, context: Context) -> None:
        """Add the task's examples to the sums, where they have classes weighed by the size that theirs has reached."""
        if context.batcher.y.dim() > 1:  # rows of labels or numbers
            check_targets(context, len(self.class_sizes_))
            self.add_to_sums(context, None)
            self.class_sizes_ = [sum(self.class_sizes_[:1]) + context.num_train] * context.num_seen
            return
        self.add_to_sums(context, self._sizes(context))
        self._learn_units(context)

    def _sizes(self, context: Context) -> Tensor:
        """Training nodes of each output unit, this task's included."""
        sizes = self._arrived(context)
        sizes[: len(self.class_sizes_)] += torch.tensor(self.class_sizes_, dtype=torch.long, device=sizes.device)
        return sizes

    def _arrived(self, context: Context) -> Tensor:
        """Training nodes of each output unit in this task, over all processes."""
        own = context.batcher.y[context.own(context.train)]
        return context.total(torch.bincount(own, minlength=linear_head(context.model)[1].size(1)))

    def _weights(self, sizes: Tensor) -> Tensor:
        """The weight of a node of each output unit, by the size of its class."""
        return sizes.double().clamp(min=1) ** -self.balance

    def _needs_exact(self) -> bool:
        """A ridge near zero reads directions that float32 does not hold."""
        return 0 < self.ridge < SMALL

    def _needs_gram(self) -> bool:
        """An encoder's drift is followed in G."""
        return self.encoder != "frozen"

    def _error(self) -> float:
        """As exact as the type that a learned head is kept in; heads that are only measured say what is calibrated."""
        return max(EXACT, 10 * self._rounding)

    def _note_type(self, model: GraphModel) -> None:
        self.__dict__["_rounding"] = float(torch.finfo(linear_head(model)[1].dtype).eps)

    def _learn_units(self, context: Context) -> None:
        """The sizes of classes, and the task that brought each."""
        sizes = self._sizes(context)
        tasks = [*self.task_of_unit_, *[-1] * (sizes.numel() - len(self.task_of_unit_))]
        for unit in torch.nonzero(self._arrived(context)).reshape(-1).tolist():
            tasks[unit] = tasks[unit] if tasks[unit] >= 0 else self.tasks_
        self.class_sizes_, self.task_of_unit_ = sizes.tolist(), tasks

    @capability(rests_on=("_add", "add_to_sums", "decide", "write"))
    def forgetting(self) -> Forgetting | str:
        """How examples are taken back; where the encoder was trained on them, why that cannot be."""
        if self.encoder != "frozen":
            return f"encoder={self.encoder!r} trained the encoder on them; learn anew without them"
        return Forgetting(self)

    def _in_blocks(self, problem: Problem, model: GraphModel) -> bool:
        """Whether depths vote and edges are judged: where nodes have classes, and features fall into blocks."""
        return problem.kind == "classes" and capable(model, "feature_blocks") is not None

    # choices, by validation nodes of the current task

    def _choose_ridge(self, context: Context, heads: list[Tensor]) -> None:
        """Count the hits (or add up the squared errors) of each ridge on validation examples."""
        classes = context.problem.kind == "classes"
        own = validation_hits(context, heads).sum(1) if classes else negative_errors(context, heads)
        hits = context.total(own).tolist()
        self.hits_ = [before + new for before, new in zip(self.hits_ or [0] * len(heads), hits)]

    def _count_smoothing(self, context: Context, head: Tensor, counts: Sequence[int]) -> list[int]:
        """The counts, with the nodes that smoothing a head's predictions puts right, and wrong."""
        return with_changes(counts, context, head, self.smoothing, self._prediction(context.model).smooth)

    def _choose_voting(self, context: Context, head: Tensor) -> Tensor:
        """Count the nodes that the vote puts right, and wrong; the vote, of training nodes alone."""
        vote = self._vote(context.model, self.chosen_ridge(), BOTH[:1], head)
        self._count_voting(context, head, vote)
        return vote

    def _count_voting(self, context: Context, head: Tensor, vote: Tensor) -> None:
        """Count the nodes that a vote puts right, and wrong, in place of a head."""
        self.voting_ = with_changes_between(context, self.voting_, *validation_hits(context, [head, vote]))
        self.validated_ += context.count(context.task.val)

    # blocks of features

    def _head_rows(self, model: GraphModel) -> Tensor | None:
        """The features that the head reads; None for all. By default the blocks with a step of propagation or more."""
        blocks = capable(model, "feature_blocks")
        if blocks is None:
            return None
        depths, block_of_row = blocks()
        if not self.blocks_:
            self.blocks_ = [depth > 0 or not any(depths) for depth in depths]
        return rows_of(block_of_row, self.blocks_)

    def _vote(self, model: GraphModel, ridge: float, parts: Sequence[str], head: Tensor) -> Tensor:
        """The sum of the head and of one head on the blocks of each depth below the largest that it reads."""
        depths, block_of_row = capable(model, "feature_blocks")()  # type: ignore[misc]
        deepest = max(depth for depth, read in zip(depths, self.blocks_) if read)
        total = head.clone()
        for depth in sorted({depth for depth in depths if depth < deepest}):
            rows = rows_of(block_of_row, [other == depth for other in depths])
            total += self.solve([ridge], parts, rows)[0]
        return total

    def _prediction(self, model: GraphModel) -> BlockPrediction:
        """How a whole graph is predicted, as things stand."""
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
            judges=self.judge_edges and max(self.task_of_unit_, default=-1) > 0,
            doubt=self.doubt_,
            elsewhere=Way(vote, 2) if self.votes_ else Way(head, 0 if share else 1, share),
        )

    def _learn_doubt(self, context: Context) -> None:
        """How many edges within a task are taken for others: the largest share in a task's own graph so far."""
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
        """Edges are judged over a whole graph where its nodes are predicted; elsewhere each example is by itself."""
        return replace(self.access.at(level), transductive=level == "node")

    @torch.no_grad()
    def predict(self, view: View) -> Tensor | None:
        """Plain scores; where the graph's features fall into blocks and fit into memory, by judged edges.

        Scores of a whole graph are kept with it: to ask for one node after another costs no more than to ask for all.
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
        """How a whole graph is predicted; None where it is not."""
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

    # what users of a deployed learner ask for

    @capability(rests_on=("decide", "write"))
    @contextmanager
    def held_out(self, context: Context) -> Iterator[None]:
        """The heads that have not learned from the task's validation nodes, in place of the final ones."""
        _, head = linear_head(context.model)
        final, votes = head.detach().clone(), self.vote_
        chosen, vote = context.cache[HELD_OUT]
        try:
            head.data.copy_(chosen)
            if vote is not None:
                self.vote_ = {head_name(context.model, head): vote.to(head.dtype)}
            yield
        finally:
            head.data.copy_(final)
            self.vote_ = votes

    @capability(rests_on=("_add", "add_to_sums", "predict"))
    def strangeness(self, view: View) -> Tensor:
        """How strange examples look, in two numbers each (`familiarity.strangeness`)."""
        used = [unit for unit, size in enumerate(self.class_sizes_) if size]
        head = linear_head(view.model)[1].detach()
        rows = evenly(dense_rows(view.model, head.size(0))).to(head.device)
        known, key = self.computed(), ("leverage", rows.cpu().numpy().tobytes(), len(used))
        if key not in known:  # after a task and before the next one
            known[key] = damped_factor(self.gram_among("train", rows), len(used))
        return strangeness(view, head[:, used], rows, known[key], len(used))

    @torch.no_grad()
    @capability(rests_on=("predict", "_whole"))
    def reasons(self, view: View, units: Sequence[int]) -> Reasons:
        """What carries the score of one node: of an output unit, or of one against another (`why.reasons`)."""
        whole, head = self._whole(view), linear_head(view.model)[1].detach()
        read = None
        if whole is not None:
            features = view.problem.batcher(view.model, view.graph, device=view.device).x
            assert isinstance(features, Tensor)
            read = whole.prediction, whole.prediction.reading(whole.x, whole.adjacency, features, whole.joining)
        return reasons(view, units, read, head, self.temperature)
