"""Shared parts of the commands: option types, parsing, progress bars."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evergraph.cli.failures import Stopped
from evergraph.cli.parsing import names_of, parse_fan_out, parse_order, parse_settings
from evergraph.core.settings import settings_of
from evergraph.data import SCENARIOS, TEST_GRAPHS, dataset_of, find_graph
from evergraph.data.datasets import Dataset
from evergraph.data.streams import about_numbers
from evergraph.errors import EvergraphError, shown, tell
from evergraph.evaluation import METRICS
from evergraph.experiments import LOGGERS, RunSpec, told
from evergraph.experiments.cells import FAILURES
from evergraph.experiments.engines import ENGINES, FOLDER, SCRIPT
from evergraph.experiments.result_file import COMMANDS, RESULTS, read_results
from evergraph.experiments.seed_run import OnProgress
from evergraph.experiments.selection.record import RECORD
from evergraph.methods import METHODS, make_method, parts_of
from evergraph.models import MODELS
from evergraph.persistence.files import holds_something
from evergraph.persistence.run_files import RUN
from evergraph.problems import PROBLEMS, problem_of
from evergraph.training import LABEL_SCOPES, Training, default_method, targets_known


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
Log = Annotated[str | None, typer.Option(help=f"Also log to {_choices(LOGGERS)} (comma-separated).")]
Order = Annotated[str, typer.Option(help="labelled, random, random:SEED, size, or comma-separated class names.")]
ClassesPerTask = Annotated[int | None, typer.Option(help="Number of classes per task.")]
MinClassSize = Annotated[int | None, typer.Option(help="Drop classes with fewer nodes than this.")]
ABOUT_TEST_GRAPHS = "; ".join(f"{name}: {rule.about}" for name, rule in TEST_GRAPHS.items())
TestGraph = Annotated[str, typer.Option(help=f"{ABOUT_TEST_GRAPHS}. Several: comma-separated.")]
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


def console(stderr: bool = False) -> Console:
    """A console that prints text as it is: a class may be called "[/b]", which would otherwise be markup."""
    return Console(stderr=stderr, markup=False, emoji=False)


stderr = console(stderr=True)
RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "set_": (Set, None),
    "memory": (Memory, None),
    "model": (Model, None),
    "hidden": (Hidden, None),
    "model_set": (ModelSet, None),
    "classes_per_task": (ClassesPerTask, None),
    "min_class_size": (MinClassSize, None),
    "order": (Order, "labelled"),
    "test_graph": (TestGraph, "task"),
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


def method_settings(methods: Sequence[str], options: dict[str, Any]) -> dict[str, str]:
    """The settings given by --set and --memory; raises for --memory if none of the methods has a memory."""
    settings = parse_settings(options["set_"])
    if options["memory"] is None:
        return settings
    if not any("memory" in settings_of(METHODS[part]) for method in methods for part in parts_of(method)):
        able = [name for name, kind in METHODS.items() if "memory" in settings_of(kind)]
        raise EvergraphError(
            f"--memory: {', '.join(methods)} keeps no examples; leave it out, or choose one of: {', '.join(able)}"
        )
    return {**settings, "memory": options["memory"]}


TRAINING_OPTIONS = tuple(f.name for f in dataclasses.fields(Training))


def training_options(options: dict[str, Any]) -> dict[str, Any]:
    """The training settings that were given."""
    settings = {name: options[name] for name in TRAINING_OPTIONS if options[name] is not None}
    return {**settings, "fan_out": parse_fan_out(settings["fan_out"])} if "fan_out" in settings else settings


def learns_without_epochs(method: str) -> bool:
    """Whether a method, or a part of a composed one, learns even if no epoch is trained."""
    return any(METHODS[part].learns_without_epochs for part in parts_of(method))


def tell_unused(options: dict[str, Any], methods: Iterable[str], trained: bool) -> None:
    """Note training options that had no effect since methods learn without epochs, or that no epoch was trained."""
    given = [f"--{name.replace('_', '-')}" for name in training_options(options)]
    if not trained and not all(map(learns_without_epochs, methods)):
        tell("--epochs 0: the network is not trained; its accuracy is that of the parameters it began with")
    elif given and not trained:
        names = ", ".join(dict.fromkeys(methods))
        tell(f"{', '.join(given)}: no effect; {names} learned in one pass over each task, without epochs")


def tell_undeclared(results: Iterable[dict[str, Any]]) -> None:
    """Note methods that keep something of earlier tasks and declare nothing."""
    if note := told.undeclared(results):
        tell(note)


def undirected(directed: bool | None) -> bool | None:
    """`undirected`, as graphs are read with it, from --directed or --undirected; None if neither is given."""
    return None if directed is None else not directed


STREAM_OPTIONS = (
    "classes_per_task", "min_class_size", "test_graph", "task_incremental", "edges_between_tasks", "scenario", "by",
    "bins", "blur", "split",
)  # fmt: skip


def named_method(method: str | None, source: str, options: dict[str, Any]) -> str:
    """The requested method, or the default for the problem, which the stream or file determines if it is not named."""
    if method is not None:
        return method
    dataset = dataset_of(source)
    problem = options["problem"] or (dataset.problem if dataset is not None else "")
    if problem and PROBLEMS[problem].kind != "numbers":
        return default_method(options["model"], problem)
    graph = find_graph(source, options["data_root"], undirected(options["directed"]), about_numbers(problem))[0]
    all_known = targets_known(graph) and not (graph.num_classes > 1 and _by_columns(options, dataset))
    return default_method(options["model"], problem or problem_of(graph), all_known=all_known)


def _by_columns(options: dict[str, Any], dataset: Dataset | None) -> bool:
    """Whether a command makes a stream whose tasks are columns of labels or numbers, not values of an attribute."""
    if "scenario" not in options:  # a single task, of all columns
        return False
    preset = "class" if dataset is None or options["task_incremental"] else dataset.scenario
    return not (options["by"] or SCENARIOS[options["scenario"] or preset].by_attribute)


def make_spec(
    source: str, method: str, settings: dict[str, Any], seeds: int, options: dict[str, Any], *, own_training: bool
) -> RunSpec:
    """Build a run's specification from the command line's options.

    With `own_training`, training options that were not given take the method's own values.
    """
    chosen = {key: options[key] for key in STREAM_OPTIONS if options.get(key) is not None}
    preferred = dict(make_method(method, settings).training) if own_training else {}
    if options["pieces"]:
        preferred["epochs"] = 1
    test_graph, *also_test = names_of("test graph", [options["test_graph"]])
    edges = {} if options["directed"] is None else {"undirected": undirected(options["directed"])}
    return RunSpec(
        source=source,
        stream={**chosen, "test_graph": test_graph, "order": parse_order(options["order"]), **edges},
        method=method,
        settings=settings,
        **model_options(options),
        training=Training(**{**preferred, **training_options(options)}),
        seeds=list(range(seeds)),
        device=options["device"],
        also_test=also_test,
        problem=options["problem"] or "",
        metric=options["metric"] or "",
        pieces=options["pieces"] or 0,
    )


def model_options(options: dict[str, Any]) -> dict[str, Any]:
    """The model and its settings from the options; an empty name stands for the method's own model."""
    settings: dict[str, Any] = dict(parse_settings(options["model_set"], "--model-set"))
    if options["hidden"]:
        settings["hidden"] = options["hidden"]
    return {"model": options["model"] or "", "model_settings": settings}


def _begun(folder: Path) -> bool:
    """Whether a folder holds runs, searches, their results, or what says that some were started."""
    names = (RUN, RESULTS, RECORD, FAILURES, COMMANDS, f"{FOLDER}/{SCRIPT}")
    return any(any(folder.rglob(name)) for name in names)


def look_for_results(folder: Path, what: str) -> dict[str, dict[str, Any]]:
    """Read a folder's results; raise if it holds something other than runs, into which `what` would be mixed."""
    if holds_something(folder) and not _begun(folder):
        raise EvergraphError(f"{folder} exists and is not {what}'s folder; name another with --out")
    return read_results(folder)


def how_to_resume(folder: Path) -> str:
    """The command that continues in `folder`, made from the command line as it was given."""
    if not _begun(folder):
        return "nothing was begun yet"
    words, arguments = [], iter(sys.argv[1:])
    for word in arguments:
        if word == "--out":
            next(arguments, None)
        elif word != "--resume" and not word.startswith("--out="):
            words.append(word)
    return "go on with: " + shlex.join(["evergraph", *words, "--out", str(folder), "--resume"])


@contextmanager
def on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """Exit with status 130 on Ctrl-C and print how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {message()}", file=sys.stderr)
        raise Stopped(130) from None


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


@contextmanager
def counting_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr that counts runs (what was done, number done, total); lines outside a terminal.

    It appears with the first count, when the input has been checked.
    """
    counts = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    columns = (*counts, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    bar = Progress(*columns, console=stderr, disable=not stderr.is_terminal)
    line = bar.add_task("starting", total=None)

    def update(what: str, done: int, total: int) -> None:
        if not stderr.is_terminal:
            print(f"{done}/{total} {what}".rstrip(), file=sys.stderr, flush=True)
            return
        bar.start()
        bar.update(line, description=what, completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def progress_bar(label: str, seeds: int) -> Iterator[OnProgress]:
    """A progress bar on stderr with the time left; it counts epochs over all tasks and seeds."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    hidden = not stderr.is_terminal  # outside a terminal it would leave an empty line
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True, disable=hidden) as bar:
        line = bar.add_task(label, total=None)

        def update(seed: int, task: int, tasks: int, epoch: int, epochs: int) -> None:
            done = (seed * tasks + task) * epochs + epoch
            text = f"{label}: seed {seed + 1}/{seeds}, task {task + 1}/{tasks}, epoch {epoch}/{epochs}"
            bar.update(line, total=seeds * tasks * epochs, completed=done, description=text)

        yield update
