"""`evergraph learn` and `info`: a learner saved in a folder."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from evergraph.cli import common, flags, parsing, printing, together
from evergraph.core.workers import join_workers, launched
from evergraph.data import Graph, Task, find_graph
from evergraph.data.mapped import is_parts
from evergraph.data.parts import read_parts, task_of_parts
from evergraph.data.streams import about_numbers
from evergraph.errors import EvergraphError, counted, in_a_list
from evergraph.evaluation import METRICS
from evergraph.experiments import told
from evergraph.methods import METHODS, make_method, parts_of, preferred_model
from evergraph.models import make_model
from evergraph.problems import PROBLEMS, problem_of
from evergraph.training import Learner, Training
from evergraph.training.description import describe, problem_learned
from evergraph.training.driver import learn_in_folder
from evergraph.training.learned_data import LearnedBefore, learned_before
from evergraph.training.snapshot import model_name
from evergraph.training.task_names import in_tasks
from evergraph.training.unknown import in_words

CREATION = ("set_", "memory", "model", "hidden", "model_set", "problem")
OPTIONS = (*CREATION, *common.TRAINING_OPTIONS, "directed", "device", "data_root")


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command("learn")(learn_command)
    app.command("info")(info_command)


@flags.takes_options(*OPTIONS)
def learn_command(
    options: dict[str, Any],
    context: typer.Context,
    graph: flags.GraphSource,
    checkpoint: flags.Checkpoint,
    classes: Annotated[
        list[str] | None,
        typer.Option(help="Learn only the nodes of these classes (comma-separated names, or repeat it)."),
    ] = None,
    method: flags.ChosenMethod = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Number of outputs to start with; the graph's classes by default.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Learn again what was already learned.")] = False,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Train on all nodes; hold out none for validation and test.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Drop an unfinished task.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    processes: together.Processes = 1,
    json: flags.Json = False,
) -> None:
    """Learn a graph's classes. The first call creates the learner; later calls teach it more.

    The first call fixes the method, model and seed. Training settings may change from call to call; those not given
    stay as they were. If the command is stopped or killed, repeat it to continue.
    """
    if processes > 1 and launched() == 1:
        raise typer.Exit(together.launch(processes))
    given = common.training_options(options)
    named = {name for name in (*OPTIONS, "method", "seed", "num_classes") if _was_given(context, name)}
    if all_nodes and options["patience"]:
        raise EvergraphError("--patience needs validation nodes; leave --all-nodes out")
    join_workers()
    data = _read(graph, checkpoint, options)
    known, wanted = 0, {**options, "method": method, "seed": seed, "num_classes": num_classes}
    chosen = common.named_method(method or ("analytic" if data.rows is not None else None), graph, options)

    def fits(begun: Learner) -> None:
        """Raise unless an unfinished task continues with the options it was begun with."""
        _check_same(begun, checkpoint, named, wanted)
        _check_training(begun, checkpoint, given)

    def prepare(learner: Learner | None) -> tuple[Learner, Task]:
        nonlocal known
        if learner is None:
            learner = _make_learner(chosen, num_classes, seed, options)
        else:
            _check_same(learner, checkpoint, named, wanted)
            _check_level(learner, checkpoint, graph, data)
            learner.training = dataclasses.replace(learner.training, **given)
        known = len(learner.classes_)
        task = _task(learner, data, parsing.class_names(classes), hold_out=not all_nodes)
        if not again and (before := learned_before(learner, task, data)) is not None:
            _refuse_again(graph, learner, task, before)
        return learner, task

    bar = printing.progress_bar(f"{graph} {chosen}", 1)
    with (
        common.on_interrupt(lambda: _how_to_continue(checkpoint)),
        together.shared_folder(checkpoint) as folder,
        bar as update,
    ):
        try:
            learner = learn_in_folder(
                folder,
                prepare,
                device=options["device"],
                restart=restart,
                on_epoch=lambda progress, epochs: update(0, 0, 1, progress.epoch, epochs),
                fits=fits,
            )
        except _LearnedAlready as found:
            print(f"note: {found}; nothing was done", file=sys.stderr)
            if json:
                printing.print_json({"checkpoint": str(checkpoint), **found.report(), "learned": False})
            return
    common.tell_unused(options, [learner.method.title], bool(learner.history[-1]["epochs"]))
    _warn_of_one_class(learner)
    if json:
        last = learner.history[-1]
        new = [name for name in last["classes"] if name in learner.classes_[known:]]
        report = {
            **_as_reported(learner, last),
            "new_classes": new,
            "test_accuracy": learner.first_accuracies[-1],
            "learned": True,
        }
        printing.print_json({"checkpoint": str(checkpoint), **report})
    else:
        _tell(learner, checkpoint)


def _as_reported(learner: Learner, entry: dict[str, Any]) -> dict[str, Any]:
    """What is known of a task, without what does not apply to a method that learns without epochs."""
    if entry["epochs"] or not common.learns_without_epochs(learner.method.title):
        return entry
    return {key: value for key, value in entry.items() if key not in ("epochs", "steps")}


def _how_to_continue(checkpoint: Path) -> str:
    """What is left of a task that was stopped."""
    if not checkpoint.exists():
        return "nothing was saved yet; repeat the command to begin again"
    return f"repeat the command to continue; {checkpoint} holds the learner as it was before this task"


def _read(graph: str, checkpoint: Path, options: dict[str, Any]) -> Graph:
    """Read the graph, or this process's share of one in parts; `options` get the problem if they name none."""
    problem = options["problem"] or problem_learned(checkpoint)
    undirected = common.undirected(options["directed"])
    if is_parts(graph):
        if undirected is not None:
            flag = "--undirected" if undirected else "--directed"
            raise EvergraphError(
                f"{graph} is in parts, which keep the directions they were converted with; leave out {flag}"
            )
        data = read_parts(graph)[0]
    else:
        data = find_graph(graph, options["data_root"], undirected, about_numbers(problem))[0]
    options["problem"] = problem or problem_of(data)
    return data


def _task(learner: Learner, data: Graph, classes: list[str] | None, *, hold_out: bool) -> Task:
    """The task of a graph's examples, or of those of some classes, for a learner."""
    if data.rows is not None:
        return task_of_parts(data, classes, learner.num_tasks)
    numbers = learner.problem.kind == "numbers"
    return Task.of(data, classes, hold_out=hold_out, seed=learner.seed, index=learner.num_tasks, numbers=numbers)


def _warn_of_one_class(learner: Learner) -> None:
    """Warn if the last task trained a softmax over one class."""
    last = learner.history[-1]
    if (
        learner.problem.kind == "classes"
        and last["epochs"]
        and len(last["classes"]) == 1
        and (last["label_scope"] == "current" or len(learner.classes_) == 1)
    ):
        advice = "give several classes at once" if len(learner.classes_) == 1 else "use --label-scope seen"
        print(f"warning: a softmax over one class alone teaches nothing; {advice}", file=sys.stderr)


def _tell(learner: Learner, checkpoint: Path) -> None:
    """Say what was learned last, how well, and what is known now."""
    last, accuracy = learner.history[-1], learner.first_accuracies[-1]
    level, metric = learner.problem.level, METRICS[learner.problem.metric]
    unit, held_out = " %" if metric.unit == "%" else "", ""
    if accuracy is not None:
        held_out = f"{metric.quantity} on held-out {level}s {metric.written(accuracy, 1)}{unit}"
    passes = _passes(last["epochs"], common.learns_without_epochs(learner.method.title))
    sys.stdout.write(
        f"learned {parsing.listed(last['classes'])} from {counted(last['nodes'], level)} in {passes}; "
        f"{held_out or 'none held out to test on'}\n"
        f"{common.known_now(learner, checkpoint)} (task {learner.num_tasks})\n"
    )


class _LearnedAlready(Exception):  # noqa: N818
    """The learner has already learned the task, in the tasks of these numbers, and is left as it is."""

    def __init__(self, message: str, learner: Learner, numbers: list[int]) -> None:
        super().__init__(message)
        self.learner, self.numbers = learner, numbers

    def report(self) -> dict[str, Any]:
        """What `learn --json` printed of those tasks: of one as it was, of several together, without an accuracy."""
        entries = [self.learner.history[number] for number in self.numbers]
        accuracies = [self.learner.first_accuracies[number] for number in self.numbers]
        return {
            **_as_reported(self.learner, entries[-1]),
            "classes": list(dict.fromkeys(name for entry in entries for name in entry["classes"])),
            "nodes": sum(entry["nodes"] for entry in entries),
            "new_classes": [],
            "test_accuracy": accuracies[0] if len(accuracies) == 1 else None,
        }


def _refuse_again(graph: str, learner: Learner, task: Task, before: LearnedBefore) -> None:
    """Raise since examples would be learned twice without --again; the message names what is left to learn."""
    level, tasks = task.graph.level, in_tasks(*before.numbers)
    gone = f" ({level}s forgotten since: {before.forgotten})" if before.forgotten else ""
    too = ", including what was forgotten" if before.forgotten else ""
    if before.altered is not None:
        said = f"{before.how_altered(task.graph)}; {before.advice(task.graph)}"
        raise EvergraphError(f"{said}, or add --again to count all of them twice")
    if before.whole or before.examples == before.total:
        where = f"as {tasks}" if before.whole else f"in {tasks}"
        said = f"{graph} was learned already, {where}{gone}; --again learns it again{too}"
        raise _LearnedAlready(said, learner, before.numbers)
    names = ",".join(map(in_a_list, before.other_classes))
    others = f"--classes {shlex.quote(names)} learns the others, " if names else ""
    raise EvergraphError(
        f"{graph}: {before.examples} of {before.total} training {level}s were learned already, in "
        f"{tasks}{gone}; {others}--again learns all of them again{too}"
    )


def _make_learner(method: str, num_classes: int | None, seed: int, options: dict[str, Any]) -> Learner:
    """Make the learner of a first call."""
    named = common.model_options(options)
    chosen = make_method(method, common.method_settings([method], options))
    return Learner(
        make_model(named["model"] or preferred_model(method), **named["model_settings"]),
        chosen,
        Training(**{**chosen.training, **common.training_options(options)}),
        problem=options["problem"],
        num_classes=num_classes,
        device=options["device"],
        seed=seed,
    )


def info_command(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of the learner.")],
    json: flags.Json = False,
) -> None:
    """Describe a saved learner: its model, method, training, classes, tasks, and what it stores."""
    about = describe(checkpoint)
    if json:
        printing.print_json(about)
        return
    table = Table(title=str(checkpoint), title_justify="left", show_header=False)
    for key, value in about.items():
        if key == "training" and _learns_without_epochs(about) and not any(task["epochs"] for task in about["tasks"]):
            value = "one pass over each task, without epochs"
        if key == "model":
            value = {name: setting for name, setting in value.items() if name != "scales" or not setting}
        if key not in ("tasks", "card") and (key != "scaled_columns" or value):
            table.add_row(key.replace("_", " "), _shown(value))
    for key, value in card_lines(about):
        table.add_row(key, value)
    printing.console().print(table)


def card_lines(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The model card: what was learned, when, from which graph and how well, and what is kept of it."""
    kind = PROBLEMS.get(about["problem"])
    metric = METRICS["accuracy" if kind is None else kind.metric]
    unit = " %" if metric.unit == "%" else f" ({metric.name})"
    level = "node" if kind is None else kind.level
    without_epochs = _learns_without_epochs(about)
    for number, task in enumerate(about["tasks"], start=1):
        value, when = task["test_accuracy"], task.get("learned")
        accuracy = "not measured" if value is None else f"{metric.written(value, 1)}{unit} when learned"
        held_out = task.get("examples", {})
        rest = f" (plus {held_out['validation']} for validation, {held_out['test']} for testing)" if held_out else ""
        where = f"; {when}, from {task['graph']}" if when else ""
        gone = f"; {task['forgotten']} forgotten since" if task.get("forgotten") else ""
        passes = _passes(task["epochs"], without_epochs)
        learned = f"{parsing.listed(task['classes'])}: {counted(task['nodes'], level)}{rest}, {passes}, {accuracy}"
        steps = f"; steps {task['steps']}" if task.get("steps") else ""
        yield f"task {number}", f"{learned}{steps}{where}{gone}"
    card = about["card"]
    if card["keeps"] is not None:
        yield "kept of tasks", _kept(card["keeps"], card["kept_bytes"])
    if kind is None or kind.kind == "classes":
        fitted = f"outputs are divided by {card['temperature']:.3g}, fitted on validation examples"
        unfitted = "from outputs as they are; no validation examples to fit a temperature to"
        yield "probabilities", unfitted if card["temperature"] == 1 else fitted
        yield "unknown classes", in_words(card["unknown_above"], card["false_alarms"])


def _kept(kinds: list[str], sizes: dict[str, int]) -> str:
    """What is kept of tasks and how much, with the names of the largest pieces."""
    large = sorted(sizes, key=lambda name: -sizes[name])[:3]
    pieces = [f"{name} {told.show_bytes(sizes[name])}" for name in large]
    rest = [f"{len(sizes) - len(large)} smaller ones"] if len(sizes) > len(large) else []
    total = f"{told.show_bytes(sum(sizes.values()))}: {', '.join([*pieces, *rest])}"
    return f"{', '.join(kinds) or 'nothing'} ({total if sizes else 'nothing besides the model'})"


def _learns_without_epochs(about: dict[str, Any]) -> bool:
    """Whether a learner's method learns without epochs; False if the method is not registered here."""
    method = about["method"].get("name", "")
    return all(part in METHODS for part in parts_of(method)) and common.learns_without_epochs(method)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _check_same(learner: Learner, checkpoint: Path, named: set[str], options: dict[str, Any]) -> None:
    """Raise if an option contradicts what was fixed when the learner was created."""
    title = learner.method.title
    now = {"method": title, "model": model_name(learner.model), "seed": learner.seed, "problem": learner.problem.name}
    now |= {"hidden": learner.model.hyperparameters().get("hidden"), "num_classes": learner.model.out_channels}
    for name, value in now.items():
        if name in named and options[name] != value:
            advice = "leave it out, or name another folder"
            raise EvergraphError(
                f"--{name.replace('_', '-')} {options[name]} does not fit: {checkpoint} has {value}; {advice}"
            )
    if named & {"set_", "memory"}:
        wanted = make_method(title, common.method_settings([title], options)).hyperparameters()
        if wanted != learner.method.hyperparameters():
            given = " and ".join(f"--{name.strip('_')}" for name in ("set_", "memory") if name in named)
            raise EvergraphError(f"{given} does not fit: {checkpoint} has {learner.method!r}; leave it out")
    if "model_set" in named:
        settings = common.model_options(options)["model_settings"]
        wanted = make_model(model_name(learner.model), **settings).hyperparameters()
        now = learner.model.hyperparameters()  # a method may since have changed others: the kept blocks, the lift
        if any(wanted.get(name) != now.get(name) for name in settings):
            raise EvergraphError(f"--model-set does not fit the model of {checkpoint}; leave it out")


def _check_training(begun: Learner, checkpoint: Path, given: dict[str, Any]) -> None:
    """Raise if training settings are given other than those that an unfinished task was begun with."""
    for name, value in given.items():
        if getattr(begun.training, name) != value:
            raise EvergraphError(
                f"{checkpoint}: the unfinished task was begun with {name}={getattr(begun.training, name)}, not "
                f"{value}; leave it out, or add --restart to start over"
            )


def _check_level(learner: Learner, checkpoint: Path, graph: str, data: Graph) -> None:
    """Raise if the graph's examples are of another kind than those that the learner learns."""
    if data.level != learner.problem.level:
        raise EvergraphError(
            f"{graph} has {data.level}s as examples, and {checkpoint} learns {learner.problem.level}s "
            f"({learner.problem.name}); name another folder with --checkpoint"
        )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return parsing.listed(value, 40) if isinstance(value, list) else str(value)


def _passes(epochs: int, without_epochs: bool) -> str:
    """Number of passes over the training nodes, as text; a closed form has no epochs."""
    return "one pass" if without_epochs and not epochs else counted(epochs, "epoch")
