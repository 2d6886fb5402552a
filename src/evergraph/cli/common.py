"""Shared parts of the commands: what options ask for, and folders of results."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evergraph.cli.failures import Stopped
from evergraph.cli.parsing import names_of, parse_fan_out, parse_order, parse_settings
from evergraph.core.settings import settings_of
from evergraph.data import SCENARIOS, dataset_of, find_graph
from evergraph.data.datasets import Dataset
from evergraph.data.streams import about_numbers
from evergraph.errors import EvergraphError, counted, tell
from evergraph.experiments import RunSpec, told
from evergraph.experiments.cells import FAILURES
from evergraph.experiments.engines import FOLDER, SCRIPT
from evergraph.experiments.result_file import COMMANDS, RESULTS, read_results
from evergraph.experiments.selection.record import RECORD
from evergraph.methods import METHODS, make_method, parts_of
from evergraph.persistence.files import holds_something
from evergraph.persistence.run_files import RUN
from evergraph.problems import PROBLEMS, problem_of
from evergraph.training import Learner, Training, default_method, targets_known


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


ONE = {"classes": "class", "labels": "label", "numbers": "number"}


def known_now(learner: Learner, checkpoint: Path) -> str:
    """Say how many classes, labels or numbers the learner in a folder knows now."""
    return f"{checkpoint} knows {counted(len(learner.classes_), ONE[learner.problem.kind])} now"


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
    test_graph, *also_test = names_of("test graph", options["test_graph"] or ["task"])
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
