"""The learner: a model, a method, and the classes they have met. It learns, predicts, and is saved."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.checkpoint import load_tree, save_tree
from evergraph.data.graph import ClassName, Graph, from_pyg
from evergraph.data.stream import JointStream, Part, Task, TaskStream, TestGraph
from evergraph.errors import EvergraphError, unknown
from evergraph.methods.base import Context, Method
from evergraph.models.base import GraphModel, as_model, neighbourhoods
from evergraph.params import copy_params
from evergraph.results import Evaluation
from evergraph.saving import learner_state, restore, task_mark
from evergraph.training import Progress, Training, train


@dataclass
class Prediction:
    """The class of each node asked for, by the user's own names, and its probability."""

    nodes: Tensor
    classes: list[ClassName]
    probabilities: Tensor


class Learner:
    """Learns one task after another and remembers.

    Args:
        model: `eg.GCN()`, another model of the package, or any PyG-style module.
        method: how old tasks are protected; plain fine-tuning where not given.
        training: how a task is trained; single settings can be given as keywords (`epochs=20`).
        num_classes: outputs of the model; by default the first task's stream says.
        device: `cpu`, `cuda`, or `auto`.
        dtype: of the model's parameters, e.g. `torch.float64`; by default the model's own.
        seed: of everything random.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | None = None,
        training: Training | None = None,
        *,
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
        self.model: GraphModel = as_model(model)
        self.method = method if method is not None else Method()
        self.training = replace(training or Training(), **settings)
        self.device, self.dtype = pick_device(device), dtype
        self.seed, self.num_classes = seed, num_classes
        self.classes: list[ClassName] = []  # classes[unit]: the class of each output unit in use
        self.num_tasks = 0
        self.first_accuracies: list[float | None] = []  # on each task's test nodes, right after learning it
        self.history: list[dict[str, Any]] = []  # what each task was, for people
        self.notes: dict[str, Any] = {}
        self._progress: Progress | None = None
        self.task_mark: str | None = None  # which task it is in the middle of
        self._generator = torch.Generator().manual_seed(seed + 7919)  # the method's own random numbers
        self._random_state = torch.Generator().manual_seed(seed).get_state()

    # learning

    def learn(self, task: Task, on_epoch: Callable[[Progress, int], None] | None = None) -> list[dict[str, float]]:
        """Learn a task; returns the per-epoch log. A learner saved or stopped in mid-task goes on where it was.

        An error before the end of the first epoch leaves the learner as it was before.
        """
        with self._own_random_numbers():
            self._set_up(task)
            with self._begun(task) as resumed:
                names = set(task.class_names)
                context = self._context(task, [unit for unit, name in enumerate(self.classes) if name not in names])
                if not resumed:
                    self.method.start_task(context)
                assert self._progress is not None
                progress = train(context, self.method, self.training, self._progress, self._between_epochs(on_epoch))
                self.model.eval()
                self.method.end_task(context)
        self._progress, self.task_mark = None, None
        self.num_tasks += 1
        units = self._units(task.graph)
        candidates = list(range(len(self.classes)))
        measured = task.test.numel() > 0
        truth = units[task.graph.y[task.test]]
        self.first_accuracies.append(
            accuracy(self.logits(task.graph, task.test), truth, candidates) if measured else None
        )
        trained = {"classes": list(task.class_names), "nodes": task.train.numel(), "epochs": progress.epoch}
        self.history.append({**trained, "label_scope": self.training.label_scope, "lr": self.training.lr})
        return progress.log

    @property
    def in_mid_task(self) -> bool:
        """Whether a task was begun and not finished: `learn` with the same task goes on with it."""
        return self._progress is not None

    @contextmanager
    def _begun(self, task: Task) -> Iterator[bool]:
        """Enter a task, or go on with the one that was left; says which. Undone if nothing comes of it."""
        mark = task_mark(task)
        if self._progress is not None:
            if mark != self.task_mark:
                raise EvergraphError(
                    f"the learner is in the middle of another task (epoch {self._progress.epoch}); "
                    "learn that one to its end, or load an earlier checkpoint"
                )
            yield True
            return
        before = (list(self.classes), copy_params(self.model), self._generator.get_state())
        self.classes += new_names(self.classes, task)
        self._progress, self.task_mark = Progress(), mark
        try:
            yield False
        except BaseException:
            if self._progress.epoch == 0:
                self.classes, params, state = before
                self._generator.set_state(state)
                self._progress, self.task_mark = None, None
                with torch.no_grad():
                    for name, value in self.model.named_parameters():
                        value.copy_(params[name])
            raise

    def fit(self, stream: TaskStream) -> Evaluation:
        """Learn all tasks of a stream and evaluate on it."""
        for task in self.tasks_of(stream):
            self.learn(task)
        return self.evaluate(stream)

    def tasks_of(self, stream: TaskStream) -> TaskStream | JointStream:
        """The stream as the method is entitled to see it: joint training sees all data so far."""
        return stream.joint() if self.method.joint else stream

    def grow(self, num_classes: int) -> None:
        """Make room for more classes: the output layer gets more units, the method's state follows."""
        if self.in_mid_task:
            raise EvergraphError("the learner is in the middle of a task; finish it before the output layer grows")
        if self.model.out_channels is None:
            self.num_classes = num_classes
            return
        if num_classes <= self.model.out_channels:
            raise EvergraphError(f"the output layer has {self.model.out_channels} units already; ask for more")
        before = copy_params(self.model)
        with self._own_random_numbers():
            self.model.grow(num_classes)
            self.model.to(self.device)
        self.method.grow(before, copy_params(self.model))
        self.num_classes = num_classes

    def check(self, task: Task) -> None:
        """Raise the error that `learn(task)` would raise before it begins, if the task does not fit."""
        if task.train.numel() == 0:
            raise EvergraphError(f"task {task.index}: no training nodes")
        if task.graph.num_features != (self.model.in_channels or task.graph.num_features):
            raise EvergraphError(
                f"task {self.num_tasks} has {task.graph.num_features} features a node, but the learner was built for "
                f"{self.model.in_channels}; all tasks must have the same features"
            )
        room = self.model.out_channels or self.num_classes or task.num_classes
        needed = len(self.classes) + len(new_names(self.classes, task))
        if needed > room:
            raise EvergraphError(
                f"task {self.num_tasks} brings the classes to {needed}, but the output layer has {room} units; "
                f"call learner.grow({needed}) first (--grow on the command line)"
            )

    def _set_up(self, task: Task) -> None:
        """Check the task; build the model at the first one."""
        self.check(task)
        if self.model.in_channels is None:
            self.num_classes = self.num_classes or task.num_classes
            self.model.setup(task.graph.num_features, self.num_classes)
        self.model.to(device=self.device, dtype=self.dtype)
        if any(isinstance(value, nn.UninitializedParameter) for value in self.model.parameters()):
            self.model.eval()
            with torch.no_grad():  # a foreign module's lazy layers take their sizes from a first pass
                cut = neighbourhoods(self.model, task.graph, device=self.device)
                self.model(cut.batch(task.train[:1].to(self.device)))

    def _context(self, task: Task, old: list[int]) -> Context:
        units = self._units(task.graph)
        current = sorted(self.classes.index(name) for name in task.class_names)
        assert self.model.out_channels is not None
        scope = {
            "current": current,
            "seen": list(range(len(self.classes))),
            "all": list(range(self.model.out_channels)),
        }[self.training.label_scope]
        labels = torch.where(task.graph.y >= 0, units[task.graph.y], -1)
        return Context(
            model=self.model,
            task=task,
            index=self.num_tasks,
            classes=torch.tensor(scope, device=self.device),
            old=torch.tensor(old, dtype=torch.long, device=self.device),
            neighbourhoods=neighbourhoods(
                self.model, task.graph, y=labels, fan_out=self.training.fan_out, device=self.device
            ),
            batch_size=self.training.batch_size or None,
            generator=self._generator,
            reduction=self.training.reduction,
        )

    def _between_epochs(self, on_epoch: Callable[[Progress, int], None] | None) -> Callable[[Progress, int], None]:
        """The caller's hook, called with the learner in a state that can be saved."""

        def hook(progress: Progress, epochs: int) -> None:
            self._random_state = torch.get_rng_state()
            if on_epoch is not None:
                on_epoch(progress, epochs)
                torch.set_rng_state(self._random_state)  # whatever the hook drew

        return hook

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Run with the learner's random numbers, and leave everybody else's alone."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self._random_state)
            if devices:
                torch.cuda.manual_seed(zlib.crc32(self._random_state.numpy().tobytes()))  # draws nothing here
            yield
            self._random_state = torch.get_rng_state()

    # looking

    def evaluate(
        self,
        stream: TaskStream,
        *,
        balanced: bool = False,
        test_graph: TestGraph | None = None,
        part: Part = "test",
    ) -> Evaluation:
        """Accuracy in percent on the test nodes of every task learned so far, as the stream's protocol says.

        `balanced` gives the mean of the classes' accuracies instead of the share of nodes; `test_graph`
        asks for another test graph than the stream's own, `part="val"` for the validation nodes.
        """
        if not self.num_tasks:
            raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
        after = min(self.num_tasks, len(stream)) - 1
        tests = (stream.tests(after, index, test_graph, part) for index in range(after + 1))
        accuracies: list[float] = []
        # nodes of one graph are computed together, and graphs one after another: all at once may not fit
        for _, group in groupby(tests, key=lambda pair: id(pair[0])):
            pairs = list(group)
            graph, units = pairs[0][0], self._units(pairs[0][0])
            logits = self.logits(graph, torch.cat([nodes for _, nodes in pairs]))
            for (_, nodes), own in zip(pairs, logits.split([nodes.numel() for _, nodes in pairs])):
                index = len(accuracies)
                candidates = [int(units[position]) for position in stream.candidates(after, index)]
                if min(candidates) < 0:
                    raise EvergraphError(f"task {index} of {stream.name} has classes the learner has not met")
                accuracies.append(accuracy(own, units[graph.y[nodes]], candidates, balanced))
        arrived = stream.tasks_classes[: after + 1]
        names = [", ".join(str(stream.graph.class_names[position]) for position in group) for group in arrived]
        first: list[float | None] = [None] * (after + 1)
        if (
            part == "test"
            and (test_graph or stream.test_graph) == "task"
            and not stream.task_incremental
            and not self.method.joint
        ):
            first = self.first_accuracies[: after + 1]
        return Evaluation(accuracies, first, names)

    def predict(
        self,
        graph: Graph | Any,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        classes: Sequence[ClassName] | None = None,
    ) -> Prediction:
        """The most probable class of each node and its probability.

        Args:
            graph: a `Graph` or a PyG `Data` object; labels are not needed and not looked at.
            nodes: the nodes asked for; all by default.
            classes: choose among these alone; among all classes met by default.
        """
        if not self.num_tasks or self.model.in_channels is None:
            raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
        graph = graph if isinstance(graph, Graph) else from_pyg(graph)
        if graph.num_features != self.model.in_channels:
            raise EvergraphError(
                f"{graph.name} has {graph.num_features} features a node, but the learner was built for "
                f"{self.model.in_channels}; give it a graph with the features it was trained on"
            )
        units = list(range(len(self.classes)))
        if classes is not None:
            for name in classes:
                if name not in self.classes:
                    raise unknown("class", name, map(str, self.classes))
            units = [self.classes.index(name) for name in classes]
        asked = torch.arange(graph.num_nodes) if nodes is None else torch.as_tensor(nodes, dtype=torch.long)
        if asked.numel() and not 0 <= int(asked.min()) <= int(asked.max()) < graph.num_nodes:
            raise EvergraphError(f"{graph.name}: nodes run from 0 to {graph.num_nodes - 1}; one asked for is outside")
        best = self.logits(graph, asked)[:, units].softmax(1).max(1)
        return Prediction(asked, [self.classes[units[i]] for i in best.indices.tolist()], best.values)

    @torch.no_grad()
    def logits(self, graph: Graph, nodes: Tensor) -> Tensor:
        """All output units at the given nodes, with exact neighbourhoods."""
        self.model.eval()
        return self.model.graph_logits(graph, nodes, self.device)

    def _units(self, graph: Graph) -> Tensor:
        """The output unit of each of the graph's class positions; -1 for classes not met."""
        position = {name: unit for unit, name in enumerate(self.classes)}
        return torch.tensor([position.get(name, -1) for name in graph.class_names], dtype=torch.long)

    def __repr__(self) -> str:
        counts = f"{self.num_tasks} tasks, {len(self.classes)} classes"
        return f"Learner({type(self.model).__name__}, {self.method!r}, {counts})"

    # saving

    def save(self, path: str | Path, *, notes: dict[str, Any] | None = None) -> None:
        """Save everything that the future needs to a folder, atomically (see `evergraph.checkpoint`).

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
        """A saved learner. A model or method that is not evergraph's own has to be passed in."""
        return restore(cls, path, load_tree(path), model, method, device)


def accuracy(logits: Tensor, truth: Tensor, candidates: list[int], balanced: bool = False) -> float:
    """Percent of nodes whose highest logit among the candidate units is the true one; `balanced`: mean over classes."""
    columns = torch.tensor(candidates)
    right = (columns[logits[:, columns].argmax(1)] == truth).double()
    if balanced:
        return 100 * float(torch.stack([right[truth == unit].mean() for unit in truth.unique()]).mean())
    return 100 * float(right.mean())


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
