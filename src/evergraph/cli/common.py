"""What the commands share: option types, parsing, progress bars, tables."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evergraph.errors import EvergraphError
from evergraph.runs import OnProgress, RunSpec, holds_something
from evergraph.training import Training

Stream = Annotated[str, typer.Argument(help="A stream's name (see `evergraph streams`) or the path of a graph file.")]
Method = Annotated[str, typer.Option(help="A method's name (see `evergraph methods`); a+b composes two.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A hyper-parameter of the method.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 0, 1, …", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the datasets, in PyG's layout (or EVERGRAPH_DATA).")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; a new one under runs/ by default.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the stopped run in --out.")]
Log = Annotated[str | None, typer.Option(help="Also log to tensorboard, mlflow, wandb (names with commas).")]
Order = Annotated[str, typer.Option(help="labelled, random, random:SEED, size, or class names with commas.")]
ClassesPerTask = Annotated[int | None, typer.Option(help="Classes that arrive together.")]
MinClassSize = Annotated[int | None, typer.Option(help="Leave out classes with fewer nodes.")]
LabelScope = Annotated[str, typer.Option(help="Classes in the training softmax: seen, current or all.")]
Reduction = Annotated[str, typer.Option(help="sum or mean of the loss over a batch.")]
TestGraph = Annotated[str, typer.Option(help="task: each task's own graph; seen: one graph of all classes seen.")]
Epochs = Annotated[int, typer.Option(help="Passes over a task's training nodes.")]
LearningRate = Annotated[float, typer.Option("--lr", help="Adam's learning rate.")]
WeightDecay = Annotated[float, typer.Option(help="Adam's L2 term.")]
BatchSize = Annotated[int, typer.Option(help="Seed nodes in a batch; 0 for full batch.")]
ClassBalanced = Annotated[bool, typer.Option("--class-balanced", help="Weigh classes inversely to their size.")]
Patience = Annotated[int, typer.Option(help="Early stopping on the current task's validation loss; 0 is off.")]
FanOut = Annotated[str | None, typer.Option(help="Sample neighbours, e.g. 10,25; all of them by default.")]
TaskIncremental = Annotated[bool, typer.Option("--task-incremental", help="The task is known at test time.")]
EdgesBetween = Annotated[bool, typer.Option("--edges-between-tasks", help="Keep edges to earlier tasks' nodes.")]
Model = Annotated[str | None, typer.Option(help="gcn, sage, gat or random-features; the method's own by default.")]
Hidden = Annotated[int | None, typer.Option(help="Width of the hidden layer; the model's own by default.", min=1)]

stderr = Console(stderr=True)
DEFAULTS = Training()
RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "set_": (Set, None),
    "classes_per_task": (ClassesPerTask, None),
    "min_class_size": (MinClassSize, None),
    "order": (Order, "labelled"),
    "label_scope": (LabelScope, DEFAULTS.label_scope),
    "reduction": (Reduction, DEFAULTS.reduction),
    "test_graph": (TestGraph, "task"),
    "task_incremental": (TaskIncremental, False),
    "edges_between_tasks": (EdgesBetween, False),
    "epochs": (Epochs, DEFAULTS.epochs),
    "lr": (LearningRate, DEFAULTS.lr),
    "weight_decay": (WeightDecay, DEFAULTS.weight_decay),
    "batch_size": (BatchSize, DEFAULTS.batch_size),
    "class_balanced": (ClassBalanced, False),
    "patience": (Patience, 0),
    "fan_out": (FanOut, None),
    "model": (Model, None),
    "hidden": (Hidden, None),
    "device": (Device, "auto"),
    "data_root": (DataRoot, None),
    "out": (Out, None),
    "resume": (Resume, False),
    "log": (Log, None),
}
"""The options of every command that runs something: name → (type for typer, default)."""


Command = Callable[..., None]


def takes_options(*names: str) -> Callable[[Command], Command]:
    """Give a command some of the options above; it finds them in its first argument, a dictionary."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[1:]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in RUN_OPTIONS.items()
            if name in names
        ]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            command({name: given.pop(name) for name in names}, **given)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


takes_run_options = takes_options(*RUN_OPTIONS)


def parse_settings(items: list[str] | None) -> dict[str, str]:
    """`KEY=VALUE` items as a dictionary."""
    found: dict[str, str] = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise EvergraphError(f"--set {item!r} is not KEY=VALUE, e.g. --set strength=0.1")
        found[key] = value
    return found


def parse_fan_out(text: str | None) -> tuple[int, ...] | None:
    """`10,25` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise EvergraphError(f"--fan-out {text!r} is not a list of numbers; e.g. 10,25") from None


def parse_order(text: str) -> str | list[str]:
    """An order's name, or class names with commas."""
    return text.split(",") if "," in text else text


TRAINING_OPTIONS = tuple(f.name for f in dataclasses.fields(Training))


def make_training(options: dict[str, Any]) -> Training:
    """How a task is trained, from the command line's options."""
    return Training(**{**{n: options[n] for n in TRAINING_OPTIONS}, "fan_out": parse_fan_out(options["fan_out"])})


def make_spec(source: str, method: str, settings: dict[str, Any], seeds: int, options: dict[str, Any]) -> RunSpec:
    """A run's specification from the command line's options."""
    stream_keys = (
        "classes_per_task",
        "min_class_size",
        "test_graph",
        "task_incremental",
        "edges_between_tasks",
    )
    chosen = {key: options[key] for key in stream_keys if options.get(key) is not None}
    chosen["order"] = parse_order(options["order"])
    return RunSpec(
        source=source,
        stream=chosen,
        method=method,
        settings=settings,
        **model_options(options),
        training=make_training(options),
        seeds=list(range(seeds)),
        device=options["device"],
    )


def model_options(options: dict[str, Any]) -> dict[str, Any]:
    """The model that the options name, and its settings; the method's own where they name none."""
    settings = {"hidden": options["hidden"]} if options["hidden"] else {}
    return {"model": options["model"] or "", "model_settings": settings}


def refuse_strangers(folder: Path, what: str) -> None:
    """An error where the folder holds something, and no run: `what` would be mixed into it."""
    if holds_something(folder) and not any(folder.rglob("run.json")):
        raise EvergraphError(f"{folder} exists and is not {what}'s folder; name another with --out")


def how_to_resume(folder: Path) -> str:
    """The command line as it was given, made one that goes on in `folder`."""
    if not any(folder.rglob("run.json")):
        return "nothing was begun yet"
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word == "--out":
            next(given, None)
        elif word != "--resume" and not word.startswith("--out="):
            words.append(word)
    return "go on with: " + shlex.join(["evergraph", *words, "--out", str(folder), "--resume"])


@contextmanager
def on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends with exit status 130 and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {message()}", file=sys.stderr)
        raise SystemExit(130) from None


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


@contextmanager
def progress_bar(label: str, seeds: int) -> Iterator[OnProgress]:
    """A bar on stderr with the time left; it counts epochs over all tasks and seeds."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    hidden = not stderr.is_terminal  # elsewhere it would leave an empty line
    with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True, disable=hidden) as bar:
        line = bar.add_task(label, total=None)

        def update(seed: int, task: int, tasks: int, epoch: int, epochs: int) -> None:
            done = (seed * tasks + task) * epochs + epoch
            text = f"{label}: seed {seed + 1}/{seeds}, task {task + 1}/{tasks}, epoch {epoch}/{epochs}"
            bar.update(line, total=seeds * tasks * epochs, completed=done, description=text)

        yield update


def spread(value: dict[str, float]) -> str:
    """mean ± std."""
    return f"{value['mean']:.2f} ± {value['std']:.2f}"


def result_table(results: list[dict[str, Any]]) -> Table:
    """One row a run."""
    protocol = results[0]["protocol"]
    table = Table(
        title=(
            f"{results[0]['stream']}: {protocol['tasks']} tasks, {protocol['scenario']}, "
            f"test graph {protocol['test_graph']}"
        ),
        caption=(
            f"label scope {protocol['label_scope']}, loss {protocol['reduction']}, {protocol['epochs']} epochs, "
            f"lr {protocol['lr']:g}, seeds {', '.join(map(str, results[0]['seeds']))}; mean ± std over seeds"
        ),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("method")
    for name in ("AP (%)", "AF (%)", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(result["method"], spread(result["ap"]), spread(result["af"]), f"{result['seconds']:.1f}")
    return table
