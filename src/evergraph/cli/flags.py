"""The options of the commands, as typer reads them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evergraph.data import SCENARIOS, TEST_GRAPHS
from evergraph.errors import EvergraphError, shown
from evergraph.evaluation import METRICS
from evergraph.experiments import LOGGERS
from evergraph.experiments.engines import ENGINES
from evergraph.models import MODELS
from evergraph.problems import PROBLEMS
from evergraph.training import LABEL_SCOPES, Training


def folder_name(option: typer.CallbackParam, value: Path | None) -> Path | None:
    """Raise if the folder's name was forgotten, so that the next option was taken for it."""
    if str(value or "").startswith("--"):
        raise EvergraphError(f"--{option.name} {shown(str(value))} is an option, not a folder; name one")
    return value


DEFAULTS = Training()
GraphSource = Annotated[
    str,
    typer.Argument(
        help="A graph file (.npz, .pt), a table (nodes.csv:edges=edges.csv), a converted folder or a stream's name."
    ),
]
Checkpoint = Annotated[Path, typer.Option(help="Folder of the learner.", callback=folder_name)]


def _choices(names: Any) -> str:
    """Names as help texts list them."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


Stream = Annotated[str, typer.Argument(help="A stream's name (see `evergraph streams`) or the path of a graph file.")]
Method = Annotated[str, typer.Option(help="A method's name (see `evergraph methods`); a+b composes two.")]
ChosenMethod = Annotated[
    str | None,
    typer.Option(
        help="A method's name (see `evergraph methods`). The default is auto for nodes with classes, or "
        "stand-in-curvature if --model is given; analytic for graphs and links with classes, for link prediction and "
        "for numbers; otherwise curvature."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a hyper-parameter of the method.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT", help="How much auto or a replay method may keep: 2MB, a number of bytes, or 1% of the nodes."
    ),
]
ModelSet = Annotated[
    list[str] | None, typer.Option("--model-set", metavar="KEY=VALUE", help="Set a hyper-parameter of the model.")
]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 0, 1, …", min=1)]
Jobs = Annotated[
    int | None,
    typer.Option(help="Number of runs side by side, in processes of their own; 1 by default.", min=1, max=1024),
]
On = Annotated[
    str,
    typer.Option(help="Where to run. " + "; ".join(f"{name}: {what}" for name, what in ENGINES.items()) + "."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the datasets, in PyG's layout (or EVERGRAPH_DATA).")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; a new one under runs/ by default.", callback=folder_name),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the stopped run in --out.")]
Log = Annotated[
    list[str] | None, typer.Option(help=f"Also log to {_choices(LOGGERS)} (comma-separated, or repeat it).")
]
Order = Annotated[str, typer.Option(help="labelled, random, random:SEED, size, or comma-separated class names.")]
ClassesPerTask = Annotated[int | None, typer.Option(help="Number of classes per task.")]
MinClassSize = Annotated[int | None, typer.Option(help="Drop classes with fewer nodes than this.")]
ABOUT_TEST_GRAPHS = "; ".join(f"{name}: {rule.about}" for name, rule in TEST_GRAPHS.items())
TestGraph = Annotated[
    list[str] | None,
    typer.Option(help=f"{ABOUT_TEST_GRAPHS}. Several: comma-separated, or repeat it; task by default."),
]
Scenario = Annotated[
    str | None, typer.Option(help="; ".join(f"{name}: {kind.about}" for name, kind in SCENARIOS.items()) + ".")
]
By = Annotated[str | None, typer.Option(help="The attribute that defines the tasks, such as a year or a country.")]
Bins = Annotated[int | None, typer.Option(help="Number of intervals for --by; 0 makes one task per value.", min=0)]
Blur = Annotated[float | None, typer.Option(help="Share of training examples that arrive with another task.")]
Pieces = Annotated[
    int | None,
    typer.Option(
        help="Learn without task boundaries, this many training examples at a time; a single pass unless --epochs is "
        "given.",
        min=1,
    ),
]
Split = Annotated[str | None, typer.Option(help="given: the data's own masks, if it has some; random: 60/20/20.")]
TaskIncremental = Annotated[bool, typer.Option("--task-incremental", help="The task is known at test time.")]
EdgesBetween = Annotated[bool, typer.Option("--edges-between-tasks", help="Keep edges to earlier tasks' nodes.")]
Directed = Annotated[
    bool | None,
    typer.Option(
        "--directed/--undirected",
        help="Keep the directions of the edges, or read each in both. By default each is read in both, with a note "
        "where only one is given.",
    ),
]
Problem = Annotated[str | None, typer.Option(help=f"{_choices(PROBLEMS)}; the stream's own by default.")]
Metric = Annotated[str | None, typer.Option(help=f"{_choices(METRICS)}; the problem's own by default.")]
Model = Annotated[str | None, typer.Option(help=f"{_choices(MODELS)}; the method's own by default.")]
Hidden = Annotated[int | None, typer.Option(help="Width of the hidden layer; the model's own by default.", min=1)]


def _training_option(kind: Any, about: str, name: str, *flags: str) -> Any:
    """An option of `Training`; if it is not given, the method's own value applies, else the default named here."""
    return Annotated[
        kind | None, typer.Option(*flags, help=f"{about} (default: the method's own, or {getattr(DEFAULTS, name)})")
    ]


LabelScope = _training_option(str, f"Classes in the training softmax: {_choices(LABEL_SCOPES)}.", "label_scope")
Reduction = _training_option(str, "How the loss is reduced over a batch: sum or mean.", "reduction")
Epochs = _training_option(int, "Passes over a task's training nodes.", "epochs")
LearningRate = _training_option(float, "The optimizer's learning rate.", "lr", "--lr")
WeightDecay = _training_option(float, "The optimizer's L2 term.", "weight_decay")
BatchSize = _training_option(int, "Training nodes in a batch; 0 for all of them.", "batch_size")
Patience = _training_option(
    int, "Epochs without a better validation loss before a task stops; 0 never stops early.", "patience"
)
ClassBalanced = Annotated[bool | None, typer.Option("--class-balanced", help="Weight classes inversely to their size.")]
KeepOptimizer = Annotated[
    bool | None, typer.Option("--keep-optimizer", help="Keep the optimizer's averages between tasks.")
]
Optimizer = _training_option(str, "adam, or sgd with momentum.", "optimizer")
Schedule = _training_option(str, "Learning rate over a task: constant, or cosine (falls to 0).", "schedule")
WarmUp = _training_option(float, "Share of a task's epochs over which the learning rate rises.", "warm_up")
AverageLast = _training_option(
    float, "Share of a task's epochs, at its end, whose parameters are averaged.", "average_last"
)
FanOut = Annotated[str | None, typer.Option(help="Sample neighbours, e.g. 10,25; by default all are used.")]
RuleSet = Annotated[
    list[str] | None, typer.Option("--rule-set", metavar="KEY=VALUE", help="A setting of the rule, e.g. tasks=3.")
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        metavar="KEY=RANGE",
        help="Search this too, or instead of what the method declares: KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=a,b,c; "
        "KEY is a setting of the method or the training, or model.KEY.",
    ),
]
RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "set_": (Set, None),
    "memory": (Memory, None),
    "model": (Model, None),
    "hidden": (Hidden, None),
    "model_set": (ModelSet, None),
    "classes_per_task": (ClassesPerTask, None),
    "min_class_size": (MinClassSize, None),
    "order": (Order, "labelled"),
    "test_graph": (TestGraph, None),
    "scenario": (Scenario, None),
    "by": (By, None),
    "bins": (Bins, None),
    "blur": (Blur, None),
    "pieces": (Pieces, None),
    "split": (Split, None),
    "task_incremental": (TaskIncremental, False),
    "edges_between_tasks": (EdgesBetween, False),
    "directed": (Directed, None),
    "problem": (Problem, None),
    "metric": (Metric, None),
    "label_scope": (LabelScope, None),
    "reduction": (Reduction, None),
    "epochs": (Epochs, None),
    "lr": (LearningRate, None),
    "weight_decay": (WeightDecay, None),
    "batch_size": (BatchSize, None),
    "class_balanced": (ClassBalanced, None),
    "patience": (Patience, None),
    "fan_out": (FanOut, None),
    "keep_optimizer": (KeepOptimizer, None),
    "optimizer": (Optimizer, None),
    "schedule": (Schedule, None),
    "warm_up": (WarmUp, None),
    "average_last": (AverageLast, None),
    "jobs": (Jobs, None),
    "on": (On, "local"),
    "device": (Device, "auto"),
    "data_root": (DataRoot, None),
    "out": (Out, None),
    "resume": (Resume, False),
    "log": (Log, None),
}
"""The options of every command that runs something: name → (type for typer, default)."""
Command = Callable[..., None]


def takes_options(*names: str) -> Callable[[Command], Command]:
    """Add some of `RUN_OPTIONS` to a command, which receives them in its first argument, a dictionary."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        arguments = list(signature.parameters.values())[1:]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in RUN_OPTIONS.items()
            if name in names
        ]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command({name: values.pop(name) for name in names}, **values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in arguments] + shared
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate
