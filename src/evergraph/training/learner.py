"""The learner: a model, a method, and the classes they have met. It learns, predicts, and is saved."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.data import TEST_GRAPHS, ClassName, Graph, Part, Task, TaskStream, as_graph, with_links
from evergraph.errors import EvergraphError, unknown
from evergraph.evaluation import METRICS, Evaluation
from evergraph.methods import Context, Method, View, make_method
from evergraph.models import MODELS, GraphModel, as_model, level_of, make_model
from evergraph.persistence.checkpoint import load_tree, save_tree
from evergraph.problems import PROBLEMS, Problem, problem_of
from evergraph.training.loop import OnEpoch, OptimizerState, Progress, diverged, train
from evergraph.training.settings import Training
from evergraph.training.snapshot import learner_state, restore

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # what protects a model of one's own where no method is named
DEFAULT_FOR_GRAPHS = "analytic"  # where examples are graphs with classes
DEFAULT_ELSEWHERE = "curvature"


def default_method(problem: str, *, own_model: bool = False) -> str:
    """The method that a learner takes where none is named."""
    kind = PROBLEMS[problem]
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_FOR_A_MODEL if own_model else DEFAULT_METHOD
    closed_form = kind.kind == "classes" and kind.level == "graph" and not own_model
    return DEFAULT_FOR_GRAPHS if closed_form else DEFAULT_ELSEWHERE


@dataclass
class Prediction:
    """What each example asked for is predicted to be, in the user's own words. A sequence of them.

    Args:
        nodes: the examples asked for: nodes, graphs or links, as numbers.
        labels: the class of each; with several labels, a list of those that hold; with numbers, the number (or a list).
        probabilities: of each class; with several labels, a column for each; with numbers, the numbers, a column each.
        columns: what the columns are called, where there are columns.
    """

    nodes: Tensor
    labels: list[Any]
    probabilities: Tensor
    columns: list[ClassName] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.labels[index]


class Learner:
    """Learns one task after another and remembers.

    Args:
        model: `eg.GCN()`, another model of the package or its name, or any PyG-style module; by default the one that
            the method prefers.
        method: how old tasks are protected, as an object or by name (`"ewc"`, `"ema+ewc"`). By default `auto`; for a
            model of your own, the paper's regularizer at stand-ins for the old nodes.
        training: how a task is trained; single settings can be given as keywords (`epochs=20`). By default what the
            method asks for, else `Training()`.
        problem: what is to be learned, by name; by default the first stream or task says.
        num_classes: outputs of the model; by default the first task's stream says.
        device: `cpu`, `cuda`, or `auto`.
        dtype: of the model's parameters, e.g. `torch.float64`; by default the model's own.
        seed: of everything random.
    """

    def __init__(
        self,
        model: nn.Module | str | None = None,
        method: Method | str | None = None,
        training: Training | None = None,
        *,
        problem: str | None = None,
        num_classes: int | None = None,
        device: str = "auto",
        dtype: torch.dtype | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        unknown_settings = sorted(set(settings) - set(Training.__dataclass_fields__))
        if unknown_settings:
            raise EvergraphError(
                f"unknown setting {unknown_settings[0]!r}; choose from {', '.join(Training.__dataclass_fields__)}"
            )
        if isinstance(model, str) and method is None and model not in MODELS:
            model, method = None, model  # eg.Learner("ewc")
        self._asked_for = (model, method, training, settings)
        self.problem_is_open = problem is None
        self._build(problem or f"{level_of(model)}-classification")
        self.device, self.dtype = pick_device(device), dtype
        self.seed, self.num_classes = seed, num_classes
        self.classes_: list[ClassName] = []  # classes_[unit]: the class of each output unit in use
        self.num_tasks = 0
        self.first_accuracies: list[float | None] = []  # on each task's test nodes, right after learning it
        self.history: list[dict[str, Any]] = []  # what each task was, for people
        self.notes: dict[str, Any] = {}
        self.progress: Progress | None = None
        self.optimizer_state: OptimizerState | None = None  # the last task's, where the training keeps it
        self.task_mark: str | None = None  # which task it is in the middle of
        self.generator = torch.Generator().manual_seed(seed + 7919)  # the method's own random numbers
        self.random_state = torch.Generator().manual_seed(seed).get_state()

    def _build(self, problem: str) -> None:
        """Make the problem, the method and the model, of what was asked for."""
        model, method, training, settings = self._asked_for
        self.problem: Problem = PROBLEMS[problem]()
        if method is None:
            method = default_method(problem, own_model=model is not None)
        self.method = make_method(method) if isinstance(method, str) else method
        self.method.check_problem(self.problem)
        chosen = self.method.model if model is None else model
        node_model = make_model(chosen) if isinstance(chosen, str) else as_model(chosen)
        self.model: GraphModel = self.problem.adapt(node_model)
        self.training = replace(training or Training(**self.method.training), **settings)

    def settle(self, problem: str) -> None:
        """Take the problem, where none was named and nothing is learned yet."""
        if self.problem_is_open and not self.num_tasks and not self.in_mid_task and problem != self.problem.name:
            self._build(problem)
        self.problem_is_open = False

    # learning

    def learn(self, task: Task, on_epoch: OnEpoch | None = None) -> list[dict[str, float]]:
        """Learn a task; returns the per-epoch log. A learner saved or stopped between epochs goes on where it was.

        An error leaves the learner as it was before the call. Only what `on_epoch` itself raises, between two
        epochs, leaves it in the middle of the task, ready to be saved or to go on.
        """
        self.check(task)
        with self._own_random_numbers(), self._transaction(task) as resumed:
            self._set_up(task)
            context = self._context(task, task)
            if not resumed:
                self.method.start_task(context)
            if (data := self.method.training_data(context)) is not None:
                context = self._context(data, task)
            self.method.prepare(context)
            assert self.progress is not None
            progress = train(context, self.method, self.training, self.progress, self._between_epochs(on_epoch))
            self.model.eval()
            self.method.end_task(context)
            if not all(bool(torch.isfinite(value).all()) for value in self.model.parameters()):
                raise diverged(context, self.training, progress)
            self.first_accuracies = [*self.first_accuracies, self._test(task)]
        self.optimizer_state = progress.optimizer if self.training.keep_optimizer else None
        self.progress, self.task_mark = None, None
        self.num_tasks += 1
        trained = {"classes": list(task.class_names), "nodes": task.train.numel(), "epochs": progress.epoch}
        self.history.append({**trained, "label_scope": self.training.label_scope, "lr": self.training.lr})
        return progress.log

    @property
    def in_mid_task(self) -> bool:
        """Whether a task was begun and not finished: `learn` with the same task goes on with it."""
        return self.progress is not None

    @contextmanager
    def _transaction(self, task: Task) -> Iterator[bool]:
        """Enter a task, or go on with the one that was left; says which. A failure leaves everything as it was."""
        mark, resumed = task.mark(), self.in_mid_task
        if self.progress is not None and mark != self.task_mark:
            raise EvergraphError(
                f"the learner is in the middle of another task (epoch {self.progress.epoch}); "
                "learn that one to its end, or load an earlier checkpoint"
            )
        plain = ("classes_", "first_accuracies", "progress", "task_mark", "num_classes", "random_state")
        before = {name: copy.deepcopy(getattr(self, name)) for name in (*plain, "optimizer_state")}
        restore_model = remembered(self.model)
        state, generator = self.method.copied_state(), self.generator.get_state()
        if not resumed:
            self.classes_ = self.classes_ + new_names(self.classes_, task)
            kept = self.optimizer_state if self.training.keep_optimizer else None
            self.progress, self.task_mark, self.optimizer_state = Progress(optimizer=kept), mark, None
        try:
            yield resumed
        except _StoppedBetweenEpochs as stopped:
            raise stopped.reason from None
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            restore_model()
            self.method.load_state_dict(state)
            self.generator.set_state(generator)
            raise

    def fit(self, stream: TaskStream) -> Learner:
        """Learn all tasks of a stream, and return the learner."""
        self.settle(stream.problem)
        for task in stream:
            self.learn(task)
        return self

    def grow(self, num_classes: int) -> None:
        """Make room for more classes: the output layer gets more units, the method's state follows."""
        if self.in_mid_task:
            raise EvergraphError("the learner is in the middle of a task; finish it before the output layer grows")
        if self.model.out_channels is None:
            self.num_classes = num_classes
            return
        if num_classes <= self.model.out_channels:
            raise EvergraphError(f"the output layer has {self.model.out_channels} units already; ask for more")
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        with self._own_random_numbers():
            self.model.grow(num_classes)
            self.model.to(self.device)
        after = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.method.grow(before, after)
        self.num_classes = num_classes

    def check(self, task: Task) -> None:
        """Raise the error that `learn(task)` would raise before it begins, if the task does not fit."""
        self.settle(problem_of(task.graph))
        if task.train.numel() == 0:
            raise EvergraphError(f"task {task.index}: no training {task.graph.level}s")
        if task.graph.level != self.problem.level:
            raise EvergraphError(
                f"{task.graph.name} has {task.graph.level}s as examples, and {self.problem.name} is about "
                f"{self.problem.level}s; name the problem: Learner(problem={problem_of(task.graph)!r})"
            )
        if task.graph.num_features != (self.model.in_channels or task.graph.num_features):
            raise EvergraphError(
                f"task {self.num_tasks} has {task.graph.num_features} features per node, but the learner was built for "
                f"{self.model.in_channels}; all tasks must have the same features"
            )
        room = self.model.out_channels or self.num_classes or task.num_classes
        needed = self.classes_needed(task)
        if needed > room:
            raise EvergraphError(
                f"task {self.num_tasks} brings the classes to {needed}, but the output layer has {room} units; "
                f"call learner.grow({needed}) first (--grow on the command line)"
            )

    def classes_needed(self, task: Task) -> int:
        """How many classes the learner will know once it has learned the task."""
        return len(self.classes_) + (0 if self.in_mid_task else len(new_names(self.classes_, task)))

    def _set_up(self, task: Task) -> None:
        """Build the model at the first task; let the method adapt it to later ones."""
        if self.model.in_channels is None:
            self.num_classes = self.num_classes or task.num_classes
            self.model.setup(task.graph.num_features, self.num_classes)
        self.method.adapt_model(self.model, task)
        self.model.to(device=self.device, dtype=self.dtype)
        if any(isinstance(value, nn.UninitializedParameter) for value in self.model.parameters()):
            self.model.eval()
            with torch.no_grad():  # a foreign module's lazy layers take their sizes from a first pass
                batcher = self.problem.batcher(self.model, task.graph, device=self.device)
                self.model(batcher.batch(task.train[:1].to(self.device)))

    def _context(self, data: Task, arrived: Task) -> Context:
        """What the method sees of the data it trains on."""
        names, units = set(data.class_names), range(len(self.classes_))
        scope = {
            "current": [unit for unit in units if self.classes_[unit] in names],
            "seen": list(units),
            "all": list(range(self.model.out_channels or 0)),
        }[self.training.label_scope]
        earlier = {name for entry in self.history for name in entry["classes"]}
        old = [unit for unit in units if self.classes_[unit] in earlier]
        batcher = self.problem.batcher(
            self.model,
            data.graph,
            targets=self.problem.targets(data.graph, self.classes_),
            fan_out=self.training.fan_out,
            device=self.device,
        )
        return Context(
            model=self.model,
            task=data,
            problem=self.problem.within(torch.tensor(scope, device=self.device)),
            index=self.num_tasks,
            old=torch.tensor(old, dtype=torch.long, device=self.device),
            batcher=batcher,
            batch_size=self.training.batch_size or None,
            generator=self.generator,
            reduction=self.training.reduction,
            arrived=arrived,
            num_seen=len(self.classes_),
        )

    def _between_epochs(self, on_epoch: OnEpoch | None) -> OnEpoch:
        """The caller's hook, called with the learner in a state that can be saved."""

        def hook(progress: Progress, epochs: int) -> None:
            self.random_state = torch.get_rng_state()
            if on_epoch is None:
                return
            try:
                on_epoch(progress, epochs)
            except BaseException as reason:
                raise _StoppedBetweenEpochs(reason) from None
            torch.set_rng_state(self.random_state)  # whatever the hook drew

        return hook

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Run with the learner's random numbers, and leave everybody else's alone."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self.random_state)
            if devices:
                torch.cuda.manual_seed(zlib.crc32(self.random_state.numpy().tobytes()))  # draws nothing here
            yield
            self.random_state = torch.get_rng_state()

    # looking

    def _test(self, task: Task) -> float | None:
        """The metric on a task's test examples among all classes known; None where it has none."""
        if not task.test.numel():
            return None
        truth = self.problem.targets(task.graph, self.classes_)[task.test]
        metric = METRICS[self.problem.metric]
        return metric(self._outputs(task.graph, task.test), truth, range(len(self.classes_)))

    def evaluate(
        self,
        stream: TaskStream,
        *,
        metric: str | None = None,
        balanced: bool = False,
        test_graph: str | None = None,
        part: Part = "test",
        after: int | None = None,
    ) -> Evaluation:
        """The metric on the test examples of every task learned so far, as the stream's protocol says.

        Args:
            stream: the tasks; those learned so far are tested.
            metric: by name; the problem's own by default.
            balanced: short for `metric="balanced-accuracy"`.
            test_graph: another test graph than the stream's own.
            part: `val` for validation examples.
            after: the last task of the stream that has been learned; by default as many as `learn` was called. To be
                given where tasks were learned in pieces (`Task.pieces`).
        """
        if not self.num_tasks:
            raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
        name = metric or ("balanced-accuracy" if balanced else self.problem.metric)
        measure = METRICS[name]
        unit_of = {name: unit for unit, name in enumerate(self.classes_)}
        in_pieces = after is not None
        after = min(self.num_tasks, len(stream)) - 1 if after is None else range(len(stream))[after]
        tests = (stream.tests(after, index, test_graph, part) for index in range(after + 1))
        values: list[float] = []
        # examples of one graph are computed together, and graphs one after another: all at once may not fit
        for _, group in groupby(tests, key=lambda pair: id(pair[0])):
            pairs = list(group)
            graph = pairs[0][0]
            truth = self.problem.targets(graph, self.classes_)
            outputs = self._outputs(graph, torch.cat([nodes for _, nodes in pairs]))
            for (_, nodes), rows in zip(pairs, outputs.split([nodes.numel() for _, nodes in pairs])):
                index = len(values)
                names = [stream.graph.class_names[position] for position in stream.candidates(after, index)]
                if any(name not in unit_of for name in names):
                    raise EvergraphError(f"task {index} of {stream.name} has classes the learner has not met")
                values.append(measure(rows, truth[nodes], [unit_of[name] for name in names]))
        # what was measured right after learning was measured in this way alone
        own_graphs = not TEST_GRAPHS[test_graph or stream.test_graph].joins_tasks
        comparable = name == self.problem.metric and part == "test" and own_graphs
        first: list[float | None] = [None] * (after + 1)
        if comparable and not stream.task_incremental and not in_pieces:
            first = self.first_accuracies[: after + 1]
        return Evaluation(values, first, stream.task_names[: after + 1], measure.higher_is_better)

    def predict(
        self,
        graph: Graph | Any,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        classes: Sequence[ClassName] | None = None,
    ) -> Prediction:
        """What each example is predicted to be, and how probable it is.

        Args:
            graph: a `Graph`, a PyG `Data` object or a list of them; targets are not needed and not looked at.
            nodes: the examples (nodes, graphs, links) asked for, as numbers or as a mask over all; all by default.
                Where links are predicted, pairs of nodes `(2, number)` may be asked for.
            classes: choose among these alone; among all classes met by default.
        """
        units = list(range(len(self.classes_)))
        if classes is not None:
            for name in classes:
                if name not in self.classes_:
                    raise unknown("class", name, map(str, self.classes_))
            units = [self.classes_.index(name) for name in classes]
        chosen, outputs = self._asked(graph, nodes)
        names = [self.classes_[unit] for unit in units]
        labels, probabilities = self.problem.read(outputs, units, names)
        return Prediction(chosen, labels, probabilities, names if self.problem.kind != "classes" else None)

    def predict_proba(self, graph: Graph | Any, nodes: Tensor | Sequence[int] | None = None) -> Tensor:
        """The probability of every class, one row per node; the columns are in the order of `classes_`."""
        _, outputs = self._asked(graph, nodes)
        return self.problem.probabilities(outputs, range(len(self.classes_)))

    def logits(self, graph: Graph | Any, nodes: Tensor | Sequence[int] | None = None) -> Tensor:
        """All outputs at the given nodes, one row each."""
        return self._asked(graph, nodes)[1]

    def _asked(self, graph: Graph | Any, nodes: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor]:
        """The nodes asked for, as numbers, and their outputs."""
        if not self.num_tasks or self.model.in_channels is None:
            raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
        graph = as_graph(graph)
        if graph.num_features != self.model.in_channels:
            raise EvergraphError(
                f"{graph.name} has {graph.num_features} features per node, but the learner was built for "
                f"{self.model.in_channels}; give it a graph with the features it was trained on"
            )
        chosen = None if nodes is None else torch.as_tensor(nodes)
        if self.problem.level == "link" and chosen is not None and chosen.dim() == 2:
            graph, chosen = with_links(graph, chosen), None
        if graph.level != self.problem.level:
            raise EvergraphError(
                f"{graph.name} has {graph.level}s as examples, and the learner predicts {self.problem.level}s"
            )
        count, what = graph.num_examples, f"{graph.level}s"
        chosen = torch.arange(count) if chosen is None else chosen
        if chosen.dtype == torch.bool:
            if chosen.shape != (count,):
                raise EvergraphError(f"{graph.name}: a mask of shape {tuple(chosen.shape)} does not fit {count} {what}")
            chosen = torch.nonzero(chosen).reshape(-1)
        chosen = chosen.long()
        if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
            raise EvergraphError(f"{graph.name}: {what} run from 0 to {count - 1}; one asked for is outside")
        return chosen, self._outputs(graph, chosen)

    @torch.no_grad()
    def _outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        """What the method predicts, else the model."""
        self.model.eval()
        view = View(self.model, self.problem, graph, nodes, self.device)
        outputs = self.method.predict(view)
        return view.outputs() if outputs is None else outputs

    def __repr__(self) -> str:
        counts = f"{self.num_tasks} tasks, {len(self.classes_)} classes"
        return f"Learner({type(self.model).__name__}, {self.method!r}, {counts})"

    # saving

    def save(self, path: str | Path, *, notes: dict[str, Any] | None = None) -> None:
        """Save everything that the future needs to a folder, atomically (see `evergraph.persistence.checkpoint`).

        `notes` are plain values of your own that travel in the same atomic write; `load` puts them
        back in `learner.notes`.
        """
        if notes is not None:
            self.notes = notes
        save_tree(path, learner_state(self))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        method: Method | None = None,
        device: str = "auto",
    ) -> Learner:
        """A saved learner. A model or method that is not registered has to be passed in."""
        return restore(cls, path, load_tree(path), model, method, device)


class _StoppedBetweenEpochs(BaseException):
    """Carries what a caller's hook raised past the clean-up for failures."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__()
        self.reason = reason


def remembered(model: nn.Module) -> Callable[[], None]:
    """A function that gives a model its present parameters, buffers and parts again, whatever happens to it.

    Every module stays the object it was: a caller's own module is put back too, not replaced by a copy.
    """
    copies: dict[int, Any] = {}
    copy.deepcopy(model, copies)  # fills in the copy of each object under the object's id
    modules = list(model.modules())

    def restore() -> None:
        original = {id(copies[id(module)]): module for module in modules}
        for module in modules:
            saved = vars(copies[id(module)])
            parts = {name: None if part is None else original[id(part)] for name, part in saved["_modules"].items()}
            vars(module).clear()
            vars(module).update({**saved, "_modules": parts})

    return restore


def new_names(known: list[ClassName], task: Task) -> list[ClassName]:
    """The task's classes that were not met before. One name in two types is a slip, not two classes."""
    fresh = [name for name in task.class_names if name not in known]
    types = {str(name): type(name).__name__ for name in known}
    for name in fresh:
        if str(name) in types:
            raise EvergraphError(
                f"{task.graph.name} calls a class {name!r} ({type(name).__name__}), the learner knows it as "
                f"{types[str(name)]}; name classes alike in all graphs"
            )
    return fresh


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in {"cpu", "cuda"} and not name.startswith("cuda:"):
        raise EvergraphError(f"unknown device {name!r}; choose one of: auto, cpu, cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EvergraphError("device cuda: this machine has no usable GPU; use --device cpu or auto")
    return torch.device(name)
