"""`evergraph learn`, `predict`, `info`: a learner that lives in a folder."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from evergraph.cli import common
from evergraph.data import ClassName, Graph, Task, find_graph
from evergraph.errors import EvergraphError, first_line
from evergraph.evaluation import METRICS
from evergraph.methods import make_method, preferred_model
from evergraph.models import make_model
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_csv
from evergraph.problems import PROBLEMS, problem_of
from evergraph.training import Learner, Prediction, Training
from evergraph.training.description import describe
from evergraph.training.driver import learn_in_folder
from evergraph.training.snapshot import model_name

GraphSource = Annotated[str, typer.Argument(help="The path of a graph (.npz, .pt), or a stream's name for its graph.")]
Checkpoint = Annotated[Path, typer.Option(help="The folder in which the learner lives.", callback=common.folder_name)]
Classes = Annotated[str | None, typer.Option(help="Names with commas.")]
CREATION = ("set_", "memory", "model", "hidden", "model_set", "problem")
OPTIONS = (*CREATION, *common.TRAINING_OPTIONS, "directed", "device", "data_root")


def add_commands(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("learn")(learn_command)
    app.command("predict")(predict_command)
    app.command("info")(info_command)


@common.takes_options(*OPTIONS)
def learn_command(
    options: dict[str, Any],
    context: typer.Context,
    graph: GraphSource,
    checkpoint: Checkpoint,
    classes: Annotated[str | None, typer.Option(help="Learn the nodes of these classes alone (names, commas).")] = None,
    method: common.ChosenMethod = None,
    num_classes: Annotated[int | None, typer.Option(help="Outputs to begin with; the graph's classes else.")] = None,
    grow: Annotated[bool, typer.Option("--grow", hidden=True, help="Outputs grow by themselves.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Learn what was learned before once more.")] = False,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Hold no nodes out for validation and test.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Drop a task that was left in the middle.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    json: common.Json = False,
) -> None:
    """Learn a graph's classes. The first call makes the learner, every further one teaches it more.

    Method, model and seed are chosen at the first call. Training settings may change from call to call;
    those not given stay as they were. Killed or stopped, the same command goes on where it was.
    """
    given = common.training_options(options)
    named = {name for name in (*OPTIONS, "method", "seed", "num_classes") if _was_given(context, name)}
    if all_nodes and options["patience"]:
        raise EvergraphError("--patience needs validation nodes; leave --all-nodes out")
    data = find_graph(graph, options["data_root"], False if options["directed"] else None)[0]
    options["problem"] = options["problem"] or problem_of(data)
    known, wanted = 0, {**options, "method": method, "seed": seed, "num_classes": num_classes}
    chosen = common.named_method(method, graph, options)

    def fits(begun: Learner) -> None:
        """A task that was left in the middle goes on as it was begun."""
        _check_same(begun, checkpoint, named, wanted)
        for name, value in given.items():
            if getattr(begun.training, name) != value:
                raise EvergraphError(
                    f"{checkpoint}: the task left in the middle was begun with {name}="
                    f"{getattr(begun.training, name)}, not {value}; leave it out, or add --restart to begin anew"
                )

    def prepare(learner: Learner | None) -> tuple[Learner, Task]:
        nonlocal known
        if learner is None:
            learner = _make_learner(chosen, num_classes, seed, options)
        else:
            _check_same(learner, checkpoint, named, wanted)
            learner.training = dataclasses.replace(learner.training, **given)
        known = len(learner.classes_)
        task = Task.of(data, _names(classes), hold_out=not all_nodes, seed=learner.seed, index=learner.num_tasks)
        before = None if again else learner.learned_as(task)
        if before is not None:
            raise _LearnedAlready(f"{graph} was learned already, as task {before + 1}; --again learns it once more")
        return learner, task

    hint = f"the same command goes on; {checkpoint} holds the learner as it was before this task"
    with common.on_interrupt(lambda: hint), common.progress_bar(f"{graph} {chosen}", 1) as update:
        try:
            learner = learn_in_folder(
                checkpoint,
                prepare,
                device=options["device"],
                restart=restart,
                on_epoch=lambda progress, epochs: update(0, 0, 1, progress.epoch, epochs),
                fits=fits,
            )
        except _LearnedAlready as found:
            print(f"note: {found}; nothing was done", file=sys.stderr)
            return
    last, accuracy = learner.history[-1], learner.first_accuracies[-1]
    if (
        last["epochs"]
        and len(last["classes"]) == 1
        and (last["label_scope"] == "current" or len(learner.classes_) == 1)
    ):
        advice = "give several classes at once" if len(learner.classes_) == 1 else "use --label-scope seen"
        print(f"warning: a softmax over one class alone teaches nothing; {advice}", file=sys.stderr)
    if json:
        new = [name for name in last["classes"] if name in learner.classes_[known:]]
        common.print_json({"checkpoint": str(checkpoint), **last, "new_classes": new, "test_accuracy": accuracy})
        return
    level, metric = learner.problem.level, METRICS[learner.problem.metric]
    name, _, unit = metric.title.partition(" (%")
    held_out = f"{name} on held-out {level}s {accuracy:.1f}{' %' if unit else ''}" if accuracy is not None else ""
    sys.stdout.write(
        f"learned {_listed(last['classes'])} from {last['nodes']} {level}s in {last['epochs']} epochs; "
        f"{held_out or 'none held out to test on'}\n"
        f"{checkpoint} knows {len(learner.classes_)} classes now (task {learner.num_tasks})\n"
    )


class _LearnedAlready(Exception):  # noqa: N818
    """The task is one that the learner knows; it is left as it is."""


def _make_learner(method: str, num_classes: int | None, seed: int, options: dict[str, Any]) -> Learner:
    """The learner of a first call."""
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


def predict_command(
    graph: GraphSource,
    checkpoint: Checkpoint,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; CSV on stdout by default.")] = None,
    classes: Annotated[str | None, typer.Option(help="Choose among these classes alone (names, commas).")] = None,
    ignore_labels: Annotated[
        bool, typer.Option("--ignore-labels", help="Predict even where the graph's labels name classes never learned.")
    ] = False,
    directed: common.Directed = False,
    device: common.Device = "auto",
    data_root: common.DataRoot = None,
) -> None:
    """Write the most probable class of every example, and its probability: columns node, class, probability.

    Where examples have several labels or numbers, there is a column for each instead.
    """
    if out is not None and out.suffix not in {".csv", ".parquet"}:
        raise EvergraphError(f"--out {out}: cannot tell the format; end the name in .csv or .parquet")
    parquet = _parquet() if out is not None and out.suffix == ".parquet" else None
    learner = Learner.load(checkpoint, device=device)
    data = find_graph(graph, data_root, False if directed else None)[0]
    if not ignore_labels:
        _check_labels(data, learner, checkpoint)
    by_name = {str(name): name for name in learner.classes_}
    chosen = [by_name.get(name, name) for name in _names(classes) or ()]
    prediction = learner.predict(data, classes=chosen or None)
    if out is None:
        sys.stdout.write(_as_csv(prediction))
        return
    write_atomically(out, _as_csv(prediction) if parquet is None else _as_parquet(prediction, parquet))


def info_command(
    checkpoint: Annotated[Path, typer.Argument(help="The folder in which a learner lives.")],
    json: common.Json = False,
) -> None:
    """Say what a learner is: its model, method, training, classes, tasks, and what it stores."""
    about = describe(checkpoint)
    if json:
        common.print_json(about)
        return
    table = Table(title=str(checkpoint), title_justify="left", show_header=False)
    for key, value in about.items():
        if key != "tasks":
            table.add_row(key.replace("_", " "), _shown(value))
    for number, task in enumerate(about["tasks"], start=1):
        kind = PROBLEMS.get(about["problem"])
        unit = " %" if kind is None or METRICS[kind.metric].title.endswith("(%)") else f" ({kind.metric})"
        value = task["test_accuracy"]
        accuracy = "not measured" if value is None else f"{value:.1f}{unit} when learned"
        level = "node" if kind is None else kind.level
        line = f"{_listed(task['classes'])}: {task['nodes']} {level}s, {task['epochs']} epochs, {accuracy}"
        table.add_row(f"task {number}", line)
    common.console().print(table)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _check_same(learner: Learner, checkpoint: Path, named: set[str], options: dict[str, Any]) -> None:
    """What was chosen when the learner was made cannot be chosen otherwise now."""
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
        if make_model(model_name(learner.model), **settings).hyperparameters() != learner.model.hyperparameters():
            raise EvergraphError(f"--model-set does not fit the model of {checkpoint}; leave it out")


def _check_labels(data: Graph, learner: Learner, checkpoint: Path) -> None:
    """A node whose label names a class never learned can only be predicted wrongly."""
    if not data.has_classes:
        return
    present = [data.class_names[position] for position in data.y[data.y >= 0].unique().tolist()]
    missing = [name for name in present if name not in learner.classes_]
    if missing:
        raise EvergraphError(
            f"{data.name}: unknown classes {_listed(missing)}: {checkpoint} has not learned them; learn them first, "
            "or add --ignore-labels to choose among the classes it knows"
        )


def _names(text: str | None) -> list[str] | None:
    """Names with commas; a name that has a comma itself stands in double quotes, as in a CSV file."""
    if text is None:
        return None
    parts = next(csv.reader([text], skipinitialspace=True), [])
    names = [name.strip() for name in parts if name.strip()]
    if not names:
        raise EvergraphError("--classes is empty; give names with commas, e.g. --classes 3,5")
    return names


def _listed(names: Iterable[ClassName], most: int = 8) -> str:
    shown = [repr(name) if isinstance(name, str) else str(name) for name in names]
    rest = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + rest


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return _listed(value, 40) if isinstance(value, list) else str(value)


def _as_csv(prediction: Prediction) -> str:
    examples, numbers = prediction.nodes.tolist(), prediction.probabilities.tolist()
    if prediction.columns is not None:  # several labels or numbers: a column for each
        rows = ([example, *(f"{value:.6g}" for value in values)] for example, values in zip(examples, numbers))
        return as_csv(["example", *prediction.columns], rows)
    named = zip(examples, prediction.labels, numbers)
    return as_csv(
        ["node", "class", "probability"], ([node, name, f"{probability:.6g}"] for node, name, probability in named)
    )


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EvergraphError(
            f"a .parquet file needs pyarrow ({first_line(error)}); pip install 'evergraph[parquet]', or write a .csv"
        ) from None
    return pyarrow


def _as_parquet(prediction: Prediction, pyarrow: Any) -> bytes:
    if prediction.columns is not None:
        values = prediction.probabilities.numpy()
        columns: dict[str, Any] = {"example": prediction.nodes.numpy()} | {
            str(n): values[:, i] for i, n in enumerate(prediction.columns)
        }
        return _parquet_bytes(columns, pyarrow)
    mixed = len({type(name) for name in prediction.labels}) > 1
    names = [str(name) for name in prediction.labels] if mixed else prediction.labels
    columns = {"node": prediction.nodes.numpy(), "class": names, "probability": prediction.probabilities.numpy()}
    return _parquet_bytes(columns, pyarrow)


def _parquet_bytes(columns: dict[str, Any], pyarrow: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue()
