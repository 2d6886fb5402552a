"""The learner: a model, a method, and the classes they have met. It learns, predicts, and is saved."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.core.finite import has_nan, is_finite, is_overflow, is_prediction
from evergraph.core.settings import Checked, PositiveInt, Seed, checked
from evergraph.data import ClassName, Graph, Part, Task, TaskStream, as_graph, with_links
from evergraph.errors import DivergedError, EvergraphError, tell
from evergraph.evaluation import METRICS, Evaluation
from evergraph.methods import METHODS, Context, Method, View, as_method, is_method
from evergraph.models import MODELS, GraphModel, as_model, level_of, make_model
from evergraph.persistence.checkpoint import load_tree, save_tree
from evergraph.problems import PROBLEMS, NodeClassification, Problem, problem_of
from evergraph.training.evaluating import evaluate
from evergraph.training.inputs import Tasks, as_task, as_tasks, chosen_examples, chosen_units, is_pairs
from evergraph.training.loop import OnEpoch, OptimizerState, Progress, diverged, train
from evergraph.training.settings import Training
from evergraph.training.snapshot import learner_state, restore

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # what protects a model of one's own where no method is named
DEFAULT_FOR_GRAPHS = "analytic"  # where examples are graphs with classes
DEFAULT_ELSEWHERE = "curvature"


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


class Learner(metaclass=Checked):
    """Learns one task after another and remembers.

    Args:
        model: `eg.GCN()`, another model of the package or its name, or any PyG-style module; by default the one that
            the method prefers.
        method: how old tasks are protected, as an object or by name (`"ewc"`, `"ema+ewc"`). By default `auto`; for a
            model of your own, the paper's regularizer at stand-ins for the old nodes.
        training: how a task is trained; single settings can be given as keywords (`epochs=20`). By default what the
            method asks for, else `Training()`.
        problem: what is to be learned, by name; by default the first stream or task says.
        num_classes: outputs of the model to begin with; by default the first task's stream says. Where more classes
            come, the output layer grows.
        device: `cpu`, `cuda`, or `auto`.
        dtype: of the model's parameters, e.g. `torch.float64`; by default the model's own.
        seed: of everything random.
    """

    def __init__(
        self,
        model: nn.Module | Method | str | None = None,
        method: Method | str | None = None,
        training: Training | None = None,
        *,
        problem: str | None = None,
        num_classes: PositiveInt | None = None,
        device: str = "auto",
        dtype: torch.dtype | None = None,
        seed: Seed = 0,
        **settings: Any,
    ) -> None:
        unknown_settings = sorted(set(settings) - set(Training.__dataclass_fields__))
        if unknown_settings:
            raise EvergraphError(
                f"unknown setting {unknown_settings[0]!r}; choose from {', '.join(Training.__dataclass_fields__)}"
            )
        if method is None and (is_method(model) or (isinstance(model, str) and model not in MODELS)):
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
        self.records: list[dict[str, Any]] = []  # each task's mark, and what was measured after it, by mark
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
            named = model if model is None or isinstance(model, str) else "a model of one's own"
            method = default_method(named, problem)
        self.method: Method = as_method(method)
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

    def learn(self, task: Task | Graph | Any, on_epoch: OnEpoch | None = None) -> list[dict[str, float]]:
        """Learn a task; returns the per-epoch log. A learner saved or stopped between epochs goes on where it was.

        A PyG `Data` object, a `Graph` or the path of a graph file is the task of all its labelled nodes
        (`Task.of`). Classes that are new make the output layer grow.

        An error leaves the learner as it was before the call. Only what `on_epoch` itself raises, between two
        epochs, leaves it in the middle of the task, ready to be saved or to go on.
        """
        task = as_task(task, seed=self.seed, index=self.num_tasks)
        self.check(task)
        if not self.in_mid_task and (before := self.learned_as(task)) is not None:
            tell(f"{task.graph.name}: this very task was learned already, as task {before}; it is learned once more")
        with self._own_random_numbers(), self._transaction(task) as resumed:
            self._set_up(task)
            if not resumed and (self.model.out_channels or 0) < len(self.classes_):
                self._grow(len(self.classes_))
            context = self._context(task, task)
            if not resumed:
                self.method.start_task(context)
            if (data := self.method.training_data(context)) is not None:
                context = self._context(data, task)
            self.method.prepare(context)
            assert self.progress is not None
            progress = self.progress
            try:
                train(context, self.method, self.training, progress, self._between_epochs(on_epoch))
                self.model.eval()
                self.method.end_task(context)
            except (RuntimeError, OverflowError) as error:
                if not is_overflow(error):
                    raise
                raise diverged(context, self.training, progress) from None
            if not is_finite(self.model.parameters()) or has_nan(self.method.state_dict()):
                raise diverged(context, self.training, progress)
            self.first_accuracies = [*self.first_accuracies, self._test(task)]
            tested = {} if self.first_accuracies[-1] is None else {task.mark(): self.first_accuracies[-1]}
            self.records = [*self.records, {"mark": task.mark(), "tested": tested}]
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
        plain = ("classes_", "first_accuracies", "records", "progress", "task_mark", "num_classes", "random_state")
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

    def fit(self, stream: Tasks) -> Learner:
        """Learn all tasks of a stream or of a list, and return the learner."""
        tasks = as_tasks(stream, seed=self.seed)
        if isinstance(tasks, TaskStream):
            self.settle(tasks.problem)
        for task in tasks:
            self.learn(task)
        return self

    def learned_as(self, task: Task) -> int | None:
        """The number of the task under which this very one was learned; None if it was not."""
        marks = [record["mark"] for record in self.records]
        return marks.index(task.mark()) if task.mark() in marks else None

    @checked
    def grow(self, num_classes: PositiveInt) -> None:
        """Make room for more classes: the output layer gets more units, the method's state follows."""
        if self.in_mid_task:
            raise EvergraphError("the learner is in the middle of a task; finish it before the output layer grows")
        if self.model.out_channels is None:
            self.num_classes = num_classes
            return
        if num_classes <= self.model.out_channels:
            raise EvergraphError(f"the output layer has {self.model.out_channels} units already; ask for more")
        with self._own_random_numbers():
            self._grow(num_classes)

    def _grow(self, num_classes: int) -> None:
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
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
        if not self.in_mid_task:
            new_names(self.classes_, task)  # a class under two names is refused here

    def _set_up(self, task: Task) -> None:
        """Build the model at the first task; let the method adapt it to later ones."""
        if self.model.in_channels is None:
            self.num_classes = max(self.num_classes or task.num_classes, len(self.classes_))
            self.model.setup(task.graph.num_features, self.num_classes)
        if not self.model.reads_edge_weights and bool((task.graph.adjacency.values != 1).any()):
            tell(f"{task.graph.name}: {type(self.model).__name__} does not use edge weights; it reads every edge alike")
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
            method=self.method,
            class_names=list(self.classes_),
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
        return metric(self.outputs(task.graph, task.test), truth, range(len(self.classes_)))

    def evaluate(
        self,
        stream: Tasks,
        *,
        metric: str | None = None,
        balanced: bool = False,
        test_graph: str | None = None,
        part: Part = "test",
        after: int | None = None,
    ) -> Evaluation:
        """The metric on the test examples of tasks: of a stream, those learned so far, as its protocol says.

        Its `matrix` has a row for each of the tasks: what was measured right after it was learned, by `learn` and by
        earlier calls of `evaluate`. What is measured now is remembered for later calls.

        Args:
            stream: a stream; or a list of tasks, graphs or paths (months, say), split as `learn` splits them.
            metric: by name; the problem's own by default.
            balanced: short for `metric="balanced-accuracy"`.
            test_graph: another test graph than the stream's own.
            part: `val` for validation examples.
            after: the last task of the stream that has been learned; by default as many as `learn` was called. To be
                given where tasks were learned in pieces (`Task.pieces`).
        """
        name = "balanced-accuracy" if balanced and metric is None else metric
        return evaluate(self, stream, name, test_graph, part, after)

    def predict(
        self,
        graph: Graph | Any,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        classes: Sequence[ClassName] | None = None,
    ) -> Prediction:
        """What each example is predicted to be, and how probable it is.

        Args:
            graph: a `Graph`, a PyG `Data` object, a list of them or the path of a graph file; targets are not needed
                and not looked at.
            nodes: the examples (nodes, graphs, links) asked for, as numbers or as a mask over all; all by default.
                Where links are predicted, pairs of nodes `(2, number)` may be asked for.
            classes: choose among these alone; among all classes met by default.
        """
        units = chosen_units(classes, self.classes_)
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
        if self.problem.level == "link" and is_pairs(nodes):
            graph, nodes = with_links(graph, nodes), None
        if graph.level != self.problem.level:
            raise EvergraphError(
                f"{graph.name} has {graph.level}s as examples, and the learner predicts {self.problem.level}s"
            )
        chosen = chosen_examples(nodes, graph)
        return chosen, self.outputs(graph, chosen)

    @torch.no_grad()
    def outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        """What the method predicts, else the model."""
        self.model.eval()
        view = View(self.model, self.problem, graph, nodes, self.device)
        outputs = self.method.predict(view)
        outputs = view.outputs() if outputs is None else outputs
        if not is_prediction(outputs):
            raise DivergedError(
                f"{graph.name}: the outputs are not finite numbers, so the model diverged or the features are not "
                f"finite; lower lr (now {self.training.lr:g}) or the method's strength"
            )
        return outputs

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
    @checked
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


def default_method(model: str | None, problem: str = NodeClassification.name) -> str:
    """The method where none is named.

    Nodes with classes: `auto`, or for a model that is not its own what protects any model. Graphs with classes: the
    closed form, with a model of its own. Elsewhere the paper's regularizer.
    """
    kind, own = PROBLEMS[problem], model is None or model == METHODS[DEFAULT_METHOD].model
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_METHOD if own else DEFAULT_FOR_A_MODEL
    return DEFAULT_FOR_GRAPHS if kind.kind == "classes" and kind.level == "graph" and own else DEFAULT_ELSEWHERE


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
