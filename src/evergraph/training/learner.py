"""The learner: a model, a method, and the classes they have met. It learns, predicts, and is saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from evergraph.core import large
from evergraph.core.settings import Bounds, Checked, ClassCount, Seed, checked
from evergraph.data import ClassName, Graph, Part, Task, TaskStream, as_graph
from evergraph.errors import EvergraphError, counted, is_out_of_memory, tell
from evergraph.evaluation import Evaluation
from evergraph.methods import Method, as_method, is_method
from evergraph.models import MODELS, GraphModel, as_model, level_of, make_model
from evergraph.persistence.checkpoint import load_tree, save_tree
from evergraph.problems import PROBLEMS, Problem, problem_of
from evergraph.training.calibration import temperature_of
from evergraph.training.defaults import default_method, pick_device, targets_known
from evergraph.training.evaluating import evaluate
from evergraph.training.forgetting import forget
from evergraph.training.inputs import Tasks, as_task, as_tasks, is_id
from evergraph.training.learned_data import LearnedBefore, first_graph, learned_before, learned_from
from evergraph.training.learning import check_fit, grow, learn
from evergraph.training.member import OnEpoch, OptimizerState, Progress
from evergraph.training.predicting import asked, outputs, predict
from evergraph.training.prediction import Prediction
from evergraph.training.settings import Training, unknown_setting
from evergraph.training.snapshot import learner_state, restore
from evergraph.training.task_names import in_tasks
from evergraph.training.transaction import own_random_numbers
from evergraph.training.why import Explanation, why


class Learner(metaclass=Checked):
    """Learns one task after another while remembering the earlier ones.

    Args:
        model: `eg.GCN()`, another model of the package or its name, or any PyG-style module; by default the one that
            the method prefers.
        method: how old tasks are protected, as an object or by name (`"ewc"`, `"ema+ewc"`). By default `auto`; for a
            model of your own, the paper's regularizer at stand-ins for the old nodes.
        training: how a task is trained; single settings can be given as keywords (`epochs=20`). By default what the
            method asks for, else `Training()`.
        problem: the problem to learn, by name; by default inferred from the first stream or task.
        num_classes: initial number of model outputs; by default that of the first task's stream. The output layer grows
            when more classes come.
        device: `cpu`, `cuda`, or `auto`.
        dtype: dtype of the model's parameters, `torch.float32` or `torch.float64`; by default the model's own.
        seed: seed of everything random.
    """

    def __init__(
        self,
        model: nn.Module | Method | str | None = None,
        method: Method | str | None = None,
        training: Training | None = None,
        *,
        problem: str | None = None,
        num_classes: ClassCount | None = None,
        device: str = "auto",
        dtype: torch.dtype | None = None,
        seed: Seed = 0,
        **settings: Any,
    ) -> None:
        if dtype not in (None, torch.float32, torch.float64):
            raise EvergraphError(f"Learner: dtype={dtype} must be torch.float32 or torch.float64")
        if method is None and (is_method(model) or (isinstance(model, str) and model not in MODELS)):
            model, method = None, model  # eg.Learner("ewc")
        known = {key: value for key, value in settings.items() if key in Training.__dataclass_fields__}
        self._asked_for = (model, method, training, known)
        self.problem_is_open = problem is None
        self._build(problem or f"{level_of(model)}-classification")
        for key, value in settings.items():
            if key not in known:
                raise unknown_setting(key, value, (model, self.model), (method, self.method))
        self.device, self.dtype = pick_device(device), dtype
        self.seed, self.num_classes = seed, num_classes
        self.classes_: list[ClassName] = []  # classes_[unit]: the class of each output unit in use
        self.num_tasks = 0
        self.first_accuracies: list[float | None] = []  # on each task's test nodes, right after learning it
        self.history: list[dict[str, Any]] = []  # description of each task, for people
        self.records: list[dict[str, Any]] = []  # each task's mark, and what was measured after it, by mark
        self.notes: dict[str, Any] = {}
        self.feature_names: list[str] | None = None  # of the first task whose features had names
        self.progress: Progress | None = None
        self.optimizer_state: OptimizerState | None = None  # of the last task, if the training keeps it
        self.task_mark: str | None = None  # of the task that the learner is in the middle of
        self.generator = torch.Generator().manual_seed(seed + 7919)  # the method's own random numbers
        self.random_state = torch.Generator().manual_seed(seed).get_state()

    def _build(self, problem: str, *, all_known: bool = False) -> None:
        """Build the problem, the method and the model from what was asked for."""
        model, method, training, settings = self._asked_for
        self.problem: Problem = PROBLEMS[problem]()
        if method is None:
            named = model if model is None or isinstance(model, str) else "a model of one's own"
            method = default_method(named, problem, all_known=all_known)
        self.method: Method = as_method(method)
        self.method.check_problem(self.problem)
        chosen = self.method.model if model is None else model
        node_model = make_model(chosen) if isinstance(chosen, str) else as_model(chosen)
        self.model: GraphModel = self.problem.adapt(node_model)
        self.training = replace(training or Training(**self.method.training), **settings)
        if self.training.patience and (reason := self.method.no_validation):
            patience = self.training.patience
            raise EvergraphError(f"patience={patience} needs validation examples, and {reason}; set patience to 0")

    @contextmanager
    def _settled(self, problem: str, graph: Graph) -> Iterator[None]:
        """Within this context and after it, the problem is set; an error before a task has begun leaves it open."""
        before = {name: getattr(self, name) for name in ("problem", "method", "model", "training", "problem_is_open")}
        try:
            self._settle(problem, graph)
            yield
        except BaseException:
            if not self.num_tasks and not self.in_mid_task:
                vars(self).update(before)
            raise

    def _settle(self, problem: str, graph: Graph) -> None:
        """Set the problem, and the method for such a graph, if none was named and nothing is learned yet."""
        open_method = self._asked_for[1] is None and self.problem.kind != "classes"
        if not self.num_tasks and not self.in_mid_task and (self.problem_is_open or open_method):
            problem = problem if self.problem_is_open else self.problem.name
            all_known = targets_known(graph)
            if problem != self.problem.name or (open_method and all_known):
                self._build(problem, all_known=all_known)
        self.problem_is_open = False

    # learning

    @checked
    def learn(self, task: Task | Graph | Any, on_epoch: OnEpoch | None = None) -> list[dict[str, float]]:
        """Learn a task; returns the per-epoch log. A learner saved or stopped between epochs resumes where it was.

        A PyG `Data` object, a `Graph` or the path of a graph file stands for the task of all its labelled nodes
        (`Task.of`). New classes make the output layer grow.

        An error leaves the learner as it was before the call. Only an exception raised by `on_epoch` itself, between
        two epochs, leaves it in the middle of the task, ready to be saved or resumed.
        """
        numbers = self.problem.kind == "numbers"
        graph = None if isinstance(task, (Task, TaskStream, list, tuple)) else as_graph(task, numbers=numbers)
        task = as_task(task if graph is None else graph, seed=self.seed, index=self.num_tasks, numbers=numbers)
        with self._settled(problem_of(task.graph), task.graph):
            check_fit(self, task)
            if not self.in_mid_task and (before := learned_before(self, task, graph)) is not None:
                tell(_once_more(task, before))
            with large.reused():
                log = learn(self, task, on_epoch)
        if not log and self.training.epochs and self.num_tasks == 1 and (given := self._asked_for[3]):
            tell(f"{', '.join(given)}: no effect; {self.method.name} learns in one pass over each task, without epochs")
        return log

    @property
    def in_mid_task(self) -> bool:
        """Whether a task was begun and not finished: `learn` with the same task resumes it."""
        return self.progress is not None

    @checked
    def forget(
        self,
        nodes: Any = None,
        data: Tasks | Graph | Any = None,
        *,
        classes: Sequence[ClassName] | ClassName | None = None,
        keep_in_graph: bool = False,
    ) -> int:
        """Forget examples or whole classes, as if never learned; returns the number of examples forgotten.

        The closed form (`auto`, `analytic`) undoes examples that have classes exactly; other methods, and examples with
        labels or numbers, raise an error that says what is possible. Given the data of the task and of all tasks
        learned after it, everything that is kept equals what it would have been: sums, class sizes, counts of
        validation examples, calibration. Given the data of the task alone, this holds for the sums, and so for the
        heads, at the choices (the ridge, which blocks are read, …) that later tasks' validation examples have led to.
        Those choices stand, as a note says, until a later call has all these data.

        Args:
            nodes: the examples, as ids, indices or a mask in `data` (the first of a list), as in `predict`; or the name
                of a class. They are forgotten wherever the data hold them: by id, by index in one stream or graph, or
                row by row where one graph begins with the nodes of another. An empty list does what earlier calls left.
            data: the data that they were learned from, unchanged: a task, a graph or a path; or a list, with other
                tasks behind it; or the stream.
            classes: forget all examples of these classes, in all tasks.
            keep_in_graph: leave the nodes in the graph, as unlabelled neighbours of others (links as edges); else they
                and their edges are removed from it too, and what was learned from their neighbours is as if they had
                never been there.
        """
        if isinstance(nodes, str) and nodes in map(str, self.classes_) and classes is None:
            if data is not None and is_id(nodes, first_graph(self, data)):
                raise EvergraphError(
                    f"{nodes!r} is a class and the id of a {self.problem.level}: "
                    f"forget([{nodes!r}], data) forgets the {self.problem.level}, classes=[{nodes!r}] the class"
                )
            nodes, classes = None, [nodes]
        return forget(self, nodes, data, classes, keep_in_graph)

    def fit(self, stream: Tasks) -> Learner:
        """Learn all tasks of a stream or of a list, and return the learner."""
        tasks = as_tasks(stream, seed=self.seed, numbers=self.problem.kind == "numbers")
        settled = self._settled(tasks.problem, tasks[0].graph) if isinstance(tasks, TaskStream) else nullcontext()
        with settled, large.reused():
            for task in tasks:
                self.learn(task)
        return self

    def learned_as(self, task: Task) -> int | None:
        """Number under which this very task was learned, whatever was forgotten since; None if it was not."""
        learned = learned_from(self, task)
        return None if learned is None else learned.number

    @checked
    def grow(self, num_classes: ClassCount) -> None:
        """Make room for more classes: add units to the output layer, and grow the method's state to match."""
        if self.in_mid_task:
            raise EvergraphError("the learner is in the middle of a task; finish it before the output layer grows")
        if self.model.out_channels is None:
            self.num_classes = num_classes
            return
        if num_classes <= self.model.out_channels:
            raise EvergraphError(f"the output layer has {self.model.out_channels} units already; ask for more")
        with own_random_numbers(self):
            try:
                grow(self, num_classes)
            except (MemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise EvergraphError(f"not enough memory for {num_classes} classes; ask for fewer") from None
                raise

    def check(self, task: Task) -> None:
        """Raise the error that `learn(task)` would raise before it begins, if the task does not fit."""
        with self._settled(problem_of(task.graph), task.graph):
            check_fit(self, task)

    # evaluating and predicting

    @checked
    def evaluate(
        self,
        stream: Tasks | Any,
        *,
        metric: str | None = None,
        balanced: bool = False,
        test_graph: str | None = None,
        part: Part = "test",
        after: int | None = None,
    ) -> Evaluation:
        """Evaluate on the test examples of tasks; for a stream, of the tasks learned so far, as its protocol says.

        The result's `matrix` has a row for each of the tasks: what was measured right after it was learned, by `learn`
        and by earlier calls of `evaluate`. What is measured now is remembered for later calls.

        Args:
            stream: a stream; or a list of tasks, graphs or paths (months, say), split as `learn` splits them.
            metric: name of the metric; the problem's own by default.
            balanced: short for `metric="balanced-accuracy"`.
            test_graph: a test graph other than the stream's own; tasks of a list are tested on their own graphs.
            part: `val` for validation examples.
            after: the last task of the stream that has been learned; by default inferred from the number of calls of
                `learn`. Needed if tasks were learned in pieces (`Task.pieces`).
        """
        if balanced and metric not in (None, "balanced-accuracy"):
            raise EvergraphError(f"evaluate: balanced=True is short for balanced-accuracy, not {metric}; leave one out")
        return evaluate(self, stream, "balanced-accuracy" if balanced else metric, test_graph, part, after)

    @checked
    def predict(
        self,
        graph: Graph | Any,
        nodes: Any = None,
        *,
        classes: Any = None,
        unknown: Annotated[float, Bounds(above=0, below=1)] | None = None,
        calibrated: bool = True,
    ) -> Prediction:
        """Predict the class, labels or number of each example, and how probable they are.

        Args:
            graph: a `Graph`, a PyG `Data` object, a list of them or the path of a graph file; targets are not needed
                and not read.
            nodes: the examples (nodes, graphs, links) asked for, all by default: a list of ids if the graph has ids,
                else of indices; a tensor of indices (rows, from 0), whether it has ids or not; or a mask over all.
                Where examples are links, pairs of nodes `(2, number)` may be asked for; messages pass along links that
                are not asked for or, if all are, along those that the learner trained on.
            classes: choose among these classes only; among all classes met by default.
            unknown: flag examples that look like no class learned, in `prediction.unknown`; at most this share of
                examples of known classes is flagged with them.
            calibrated: compute probabilities at the temperature fitted to validation examples; else from the outputs
                as they are.
        """
        return predict(self, graph, nodes, classes, unknown, calibrated)

    @checked
    def predict_proba(self, graph: Graph | Any, nodes: Any = None, *, calibrated: bool = True) -> Tensor:
        """The probability of every class, one row per node; the columns are in the order of `classes_`."""
        graph, chosen = asked(self, graph, nodes)
        temperature = self.temperature if calibrated and self.problem.kind == "classes" else 1.0
        return self.problem.probabilities(self.outputs(graph, chosen) / temperature, range(len(self.classes_)))

    @checked
    def why(
        self,
        graph: Graph | Any,
        node: int | str | Any,
        label: ClassName | None = None,
        *,
        against: ClassName | None = None,
    ) -> Explanation:
        """Explain one node's prediction: how much each neighbour and each feature adds to the logit, or to the number.

        The closed form is linear in its features, so the amounts add up exactly. Random features are a ReLU of random
        sums: which of them are positive at this node, and the length they are scaled by, are taken as given; so the
        amounts say what makes up this logit, not how it would change with the graph.

        Args:
            graph: as in `predict`.
            node: the node, by id where the graph has ids, else by number.
            label: the class to explain, the predicted one by default; or which of several numbers.
            against: explain why it is `label` rather than this class.
        """
        return why(self, graph, node, label, against)

    @property
    def temperature(self) -> float:
        """Divisor of outputs for calibrated probabilities; 1 if no task had validation examples to fit it to."""
        return temperature_of(self.records)

    def logits(self, graph: Graph | Any, nodes: Tensor | Sequence[int] | None = None) -> Tensor:
        """All outputs at the given nodes, one row each."""
        graph, chosen = asked(self, graph, nodes)
        return self.outputs(graph, chosen)

    def outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        """Outputs predicted by the method, or by the model if the method leaves that to it."""
        return outputs(self, graph, nodes)

    def __repr__(self) -> str:
        counts = f"{counted(self.num_tasks, 'task')}, {counted(len(self.classes_), 'class')}"
        return f"Learner({type(self.model).__name__}, {self.method!r}, {counts})"

    # saving

    @checked
    def save(self, path: str | Path, *, notes: dict[str, Any] | None = None) -> None:
        """Save everything needed to continue to a folder, atomically (see `evergraph.persistence.checkpoint`).

        `notes` are plain values of your own, saved in the same atomic write; `load` puts them back in `learner.notes`.
        """
        if not str(path):
            raise EvergraphError("save: path is empty; name a folder")
        kept = self.notes if notes is None else notes
        save_tree(path, {**learner_state(self), "notes": kept})
        self.notes = kept  # only now: notes that cannot be saved must not spoil later calls

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
        """Load a saved learner. A model or method that is not registered has to be passed in."""
        return restore(cls, path, load_tree(path), model, method, device)


def _once_more(task: Task, before: LearnedBefore) -> str:
    """Warning for a task that was learned before, in whole or in part."""
    level, tasks = task.graph.level, in_tasks(*before.numbers)
    gone = f", including {level}s forgotten since ({before.forgotten})" if before.forgotten else ""
    if before.whole:
        return f"{task.graph.name}: this very task was learned already, as {tasks}; it is learned again{gone}"
    if before.altered is not None:
        return f"{before.how_altered(task.graph)}; they are learned again and count twice ({before.advice(task.graph)})"
    return (
        f"{task.graph.name}: {before.examples} of {before.total} training {level}s were learned already, in "
        f"{tasks}; they are learned again{gone}"
    )
