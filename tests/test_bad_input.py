"""Made-up bad inputs, over the public API, the command line and the files it reads.

Whatever is given: it works, or it raises one `EvergraphError` of one line (exit status 2 on the command line, nothing
left behind). What a value may be is judged here by rules of thumb (a number stays finite, of its kind and not
negative), not by the declarations under test. `EVERGRAPH_FUZZ=20 make fuzz` makes up twenty times as many.
"""

import contextlib
import io
import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.graph_files import npz_parts

import evergraph as eg
from evergraph import cli
from evergraph.core.settings import settings_of
from evergraph.data.datasets.sbm import sbm
from evergraph.data.files import content_mark, read_graph_file
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.persistence.reading import read_record

pytestmark = pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both")

TIMES = int(os.environ.get("EVERGRAPH_FUZZ", "1"))
SMALL = "sbm:nodes=120,classes=4,features=8,signal=3"


MADE_UP = []  # inputs, by test


def examples(number):
    """So many made-up inputs, the same ones every time unless more are asked for."""
    MADE_UP.append(number * TIMES)
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(
        max_examples=number * TIMES,
        deadline=None,
        database=None,
        derandomize=TIMES == 1,
        phases=[Phase.generate],  # an input is small as it is made; to shrink one takes minutes
        suppress_health_check=checks,
    )


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            " ",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "-1",
            "1e309",
            "0x10",
            "½",
            "٣",
            "None",
            "true",
            "[/b]",
            "{}",
            "..",
            "/",
        ]
    ),
)
NUMBERS = st.one_of(st.floats(), st.integers(), st.sampled_from([10**400, -(10**30), 2**63, 2**64, math.nan, math.inf]))
JUNK = st.one_of(
    NUMBERS,
    WORDS,
    st.none(),
    st.booleans(),
    st.binary(max_size=6),
    st.complex_numbers(),
    st.lists(st.one_of(NUMBERS, WORDS, st.none()), max_size=4),
    st.dictionaries(st.one_of(st.integers(), WORDS), NUMBERS, max_size=2),
    st.builds(object),
    st.sampled_from([np.array([1, 2]), np.float64("nan"), torch.zeros(2, 2), torch.tensor([True]), int, print, ...]),
)


def refused(error):
    assert isinstance(error, eg.EvergraphError), repr(error)
    assert str(error)
    assert "\n" not in str(error)


def sane(value, default):
    """What a setting may have become, whatever it was made of: of its default's kind, finite, not negative."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int):
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(sane(one, default[0] if default else 0) for one in value)
    if isinstance(default, float):
        return isinstance(value, float) and math.isfinite(value) and value >= 0
    return isinstance(value, str)


# settings of everything that is registered, from Python and from text

KINDS = [
    *(kind for kind in eg.registry.methods.values() if kind.__module__.startswith("evergraph")),
    *eg.registry.models.values(),
    *eg.registry.selection_rules.values(),
    eg.Training,
]
SETTINGS = [
    (kind, key, default)
    for kind in KINDS
    for key, default in settings_of(kind).items()
    if isinstance(default, (bool, int, float, str))
]


@given(st.sampled_from(SETTINGS), JUNK)
@examples(300)
def test_constructors_take_nothing_but_sane_settings(setting, value):
    kind, key, default = setting
    try:
        made = kind(**{key: value})
    except Exception as error:
        refused(error)
        return
    now = getattr(made, key)
    in_bytes = key == "memory" and sane(now, 1) and now > 0  # an amount as text, or a number of bytes
    assert in_bytes or sane(now, default), (kind, key, value)


@given(st.sampled_from([name for name in eg.METHODS if name != "joint"]), st.data())
@examples(250)
def test_methods_from_text_take_nothing_but_sane_settings(name, data):
    known = settings_of(eg.METHODS[name])
    key = data.draw(st.one_of(st.sampled_from(list(known) or ["strength"]), WORDS))
    text = data.draw(st.one_of(WORDS, NUMBERS.map(lambda number: str(number) if abs(number) < 1e300 else "1e999")))
    try:
        made = eg.make_method(name, {key: text})
    except Exception as error:
        refused(error)
        return
    assert sane(made.hyperparameters()[key], known[key])


@given(st.sampled_from(["nodes", "classes", "degree", "homophily", "features", "signal", "seed", "", "x"]), WORDS)
@examples(120)
def test_generated_graphs_take_nothing_but_sane_settings(key, text):
    try:
        graph = eg.stream(f"sbm:nodes=60,classes=6,{key}={text}").graph
    except Exception as error:
        refused(error)
        return
    assert bool(torch.isfinite(graph.x).all())


STREAM_SETTINGS = [
    "classes_per_task",
    "min_class_size",
    "seed",
    "first_tasks",
    "order",
    "test_graph",
    "problem",
    "oder",
]


@given(st.sampled_from([*STREAM_SETTINGS, "task_incremental", "edges_between_tasks", "data_root"]), JUNK)
@examples(150)
def test_streams_take_nothing_but_sane_settings(key, value):
    try:
        stream = eg.stream(SMALL, **{key: value})
    except Exception as error:
        refused(error)
        return
    assert len(stream) >= 1
    assert {len(task.class_names) for task in stream} <= set(range(1, 5))


@given(st.sampled_from(["model", "method", "training", "seed", "num_classes", "device", "problem", "epochs"]), JUNK)
@examples(120)
def test_learners_take_nothing_but_sane_settings(key, value):
    try:
        learner = eg.Learner(**{key: value})
    except Exception as error:
        refused(error)
        return
    assert sane(learner.seed, 0)
    assert sane(learner.training.epochs, 50)


# arrays

SHAPES = st.sampled_from([(), (0,), (4,), (4, 3), (3, 4), (2, 5), (4, 0), (2, 2, 2)])
TYPES = ["f2", "f4", ">f8", "longdouble", "i1", "u8", ">i4", "c16", "?", "U3", "S2", "O", "M8[s]"]


@st.composite
def arrays(draw):
    array = np.zeros(draw(SHAPES), dtype=draw(st.sampled_from(TYPES)))
    if array.size and array.dtype.kind in "fiu":
        array.flat[0] = draw(st.sampled_from([0, 1, 3, 100]))
    if array.size and array.dtype.kind == "f":
        array.flat[-1] = draw(st.sampled_from([0.0, math.nan, math.inf, -1.0, 0.5]))
    return draw(st.sampled_from([array, array.tolist()]))


@given(st.sampled_from(["x", "edge_index", "y", "class_names"]), st.one_of(arrays(), JUNK))
@examples(250)
def test_graphs_are_made_of_sane_arrays_alone(key, value):
    good = {"x": np.eye(4, 3), "edge_index": [[0, 1], [1, 2]], "y": [0, 1, 1, 0]}
    try:
        graph = eg.make_graph(**{**good, key: value})
    except Exception as error:
        refused(error)
        return
    assert (graph.x.size(0), graph.y.size(0), graph.adjacency.size(0)) == (4, 4, 4) or key == "x"
    values = graph.x if isinstance(graph.x, torch.Tensor) else graph.x.values
    assert bool(torch.isfinite(values).all())
    if graph.y.dim() == 2:  # columns of labels or numbers, not a number where unknown
        assert not bool(torch.isinf(graph.y).any())
        return
    assert int(graph.y.max()) < len(graph.class_names)
    assert int(graph.y.min()) >= -1


# files: one byte changed, cut short, or something else altogether


@pytest.fixture(scope="module")
def graph():
    return sbm(nodes=60, classes=4, degree=4, features=5, signal=3.0, seed=1)


def damaged(data, whole):
    """A file's bytes, changed."""
    how = data.draw(st.sampled_from(["flip", "cut", "insert", "replace"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    if how == "flip":
        return whole[:place] + bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[place + 1 :]
    if how == "cut":
        return whole[:place]
    junk = data.draw(st.binary(min_size=1, max_size=8))
    return whole[:place] + junk + whole[place:] if how == "insert" else junk


@given(st.data())
@examples(120)
def test_damaged_graph_files_are_refused_or_read_as_they_were(tmp_path_factory, graph, data):
    path = tmp_path_factory.mktemp("files") / "graph.npz"
    np.savez(path, **npz_parts(graph, graph.x.numpy()))
    before = content_mark(read_graph_file(path))
    path.write_bytes(damaged(data, path.read_bytes()))
    try:
        found = content_mark(read_graph_file(path))
    except Exception as error:
        refused(error)
        return
    assert found == before  # bytes that say nothing: a date in the archive's listing


@given(st.data())
@examples(120)
def test_damaged_converted_graphs_are_always_refused(tmp_path_factory, graph, data):
    folder = write_mapped(graph, tmp_path_factory.mktemp("mapped") / "graph")
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    changed = damaged(data, whole)
    path.write_bytes(changed)
    try:
        read_mapped(folder)
    except Exception as error:
        refused(error)
        return
    assert changed == whole


@pytest.fixture(scope="module")
def saved(tmp_path_factory, graph):
    """A learner's folder and a run's."""
    place = tmp_path_factory.mktemp("saved")
    eg.Learner(eg.GCN(hidden=4), "ewc", epochs=1, device="cpu").fit(eg.TaskStream(graph, 2)).save(place / "learner")
    spec = eg.RunSpec(SMALL, method="ewc", model_settings={"hidden": 4}, training=eg.Training(epochs=1), device="cpu")
    eg.run(spec, place / "run")
    return place


@given(st.data())
@examples(120)
def test_damaged_learners_and_runs_are_always_refused(tmp_path_factory, saved, data):
    place = tmp_path_factory.mktemp("copy") / "saved"
    shutil.copytree(saved, place)
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix != ".csv"]
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    changed = damaged(data, whole)
    path.write_bytes(changed)
    try:
        eg.Learner.load(place / "learner", device="cpu")
        for name in ("run/run.json", "run/result.json", "run/seed-0/matrix.json"):
            read_record(place / name)
    except Exception as error:
        refused(error)
        return
    if path.suffix == ".json":  # a blank between two entries is no damage: the hash is that of the content
        changed, whole = (json.dumps(json.loads(text)) for text in (changed, whole))
    assert changed == whole


# the command line

NOT_A_NUMBER = st.sampled_from(
    ["nan", "inf", "-inf", "1e999", "-1", "-0.5", "many", "", "1,2", "0x1", "--", "1e", "9" * 5000]
)
NOT_A_COUNT = st.one_of(NOT_A_NUMBER, st.sampled_from(["1.5", "1e3", "10000000000000000000000"]))
NO_NAME = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9).map(lambda text: f"zz{text}")
NO_SETTING = st.one_of(
    NO_NAME,
    NO_NAME.map(lambda name: f"{name}=1"),
    st.sampled_from(
        ["strength=nan", "strength=-1", "strength=inf", "strength=", "=1", "strength==1", "labels=x", "strength"]
    ),
)
NO_MODEL_SETTING = st.one_of(
    NO_NAME,
    st.sampled_from(["hidden=0", "hidden=x", "hidden=1e3", "dropout=1", "dropout=nan", "num_layers=0", "=", "heads=3"]),
)
NO_STREAM = st.one_of(
    NO_NAME,
    NO_NAME.map(lambda name: f"{name}.npz"),
    st.sampled_from(
        ["", ".", "/", "/dev/null", "sbm:nodes", "sbm:nodes=0", "sbm:=", "sbm:nodes=-5", "sbm:degree=nan", "digits:x=1"]
    ),
    st.sampled_from(["n" * 400, "sbm:classes=9,nodes=3", "sbm:homophily=1.5", "sbm:seed=-1", "sbm:signal=inf"]),
)
RUN_OPTIONS = {
    **dict.fromkeys(["--method", "--model", "--order", "--test-graph", "--problem", "--metric"], NO_NAME),
    **dict.fromkeys(["--label-scope", "--reduction", "--device", "--data-root", "--log", "--nonsense"], NO_NAME),
    **dict.fromkeys(["--hidden", "--classes-per-task", "--min-class-size", "--epochs", "--batch-size"], NOT_A_COUNT),
    **dict.fromkeys(["--patience", "--jobs", "--seeds"], NOT_A_COUNT),
    **dict.fromkeys(["--lr", "--weight-decay"], NOT_A_NUMBER),
    "--set": NO_SETTING,
    "--model-set": NO_MODEL_SETTING,
    "--fan-out": st.one_of(NO_NAME, st.sampled_from(["0", "-1", "1,0", ",", "", "1.5", "9" * 30])),
}
TUNE_OPTIONS = {
    **{key: RUN_OPTIONS[key] for key in ("--lr", "--epochs", "--set", "--model", "--label-scope")},
    "--rule": NO_NAME,
    "--trials": NOT_A_COUNT,
    "--space": st.one_of(NO_NAME, st.sampled_from(["strength=", "lr=nan:1", "lr=1:", "strength=-1:1"])),
    "--rule-set": st.one_of(NO_NAME, st.sampled_from(["tasks=1", "tasks=x", "x=1"])),
}
LEARN_OPTIONS = {
    **{key: RUN_OPTIONS[key] for key in ("--lr", "--epochs", "--set", "--model", "--label-scope", "--model-set")},
    **{key: RUN_OPTIONS[key] for key in ("--method", "--hidden", "--device", "--patience", "--fan-out")},
    "--classes": NO_NAME,
    "--num-classes": NOT_A_COUNT,
    "--seed": NOT_A_COUNT,
}
NO_METHODS = st.one_of(NO_NAME, st.sampled_from(["", ",", "+", "ewc+", "ewc,zz"]))
COMMANDS = {
    "run": ([SMALL, "--method", "ewc"], RUN_OPTIONS),
    "compare": ([SMALL, "--methods", "ewc"], {**RUN_OPTIONS, "--methods": NO_METHODS}),
    "tune": ([SMALL, "--method", "ewc", "--trials", "2"], TUNE_OPTIONS),
    "learn": ([SMALL, "--checkpoint", "learner", "--method", "ewc"], LEARN_OPTIONS),
    "predict": ([SMALL, "--checkpoint", "learner"], dict.fromkeys(["--checkpoint", "--out", "--device"], NO_NAME)),
    "report": (["nowhere"], {"--out": NO_NAME}),
    "info": (["nowhere"], {"--nonsense": NO_NAME}),
    "paper": (
        ["--data-root", "."],
        {"--seeds": NOT_A_COUNT, **dict.fromkeys(["--dataset", "--protocol", "--methods"], NO_NAME)},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_app():
    """The commands, put together once."""
    patch, app = pytest.MonkeyPatch(), typer.main.get_command(cli.make_app())
    patch.setattr(cli, "make_app", lambda: app)
    yield
    patch.undo()


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(words):
    """The command line in this process: exit status and what it printed."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["evergraph", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as ended:
                return ended.code, out.getvalue(), err.getvalue()
    finally:
        sys.argv = before


def refused_on_the_command_line(words):
    status, out, error = call(words)
    left = sorted(path.name for path in Path().iterdir())
    for name in left:  # nothing that one example leaves is held against the next
        shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
    assert (status, out) == (2, ""), (words, status, out, error)
    assert error.startswith("error: "), (words, error)
    assert error.count("\n") == 1, (words, error)
    assert left == [], words


@given(st.sampled_from(list(COMMANDS)), st.data())
@examples(220)
def test_bad_options_are_one_line_with_exit_status_2(empty, command, data):
    base, options = COMMANDS[command]
    option = data.draw(st.sampled_from(list(options)))
    value = data.draw(options[option])
    short = ["--epochs", "1"] if command in {"run", "compare", "tune", "learn"} else []
    refused_on_the_command_line([command, *base, *short, f"{option}={value}"])


@given(st.sampled_from(["run", "compare", "tune", "learn", "predict", "convert"]), NO_STREAM)
@examples(80)
def test_streams_that_are_none_are_one_line_with_exit_status_2(empty, command, stream):
    more = {"learn": ["--checkpoint", "l"], "predict": ["--checkpoint", "l"], "convert": ["folder"]}.get(command, [])
    refused_on_the_command_line([command, "--", stream, *more] if not more else [command, stream, *more])


@given(st.lists(st.one_of(NO_NAME, WORDS, st.sampled_from([*COMMANDS, "--json", "--out"])), min_size=1, max_size=4))
@examples(80)
def test_random_words_are_one_line_with_exit_status_2(empty, words):
    words = [word.replace("\0", "") for word in words if word not in {"--help"}]
    runs = words and words[0] in {"run", "compare", "tune", "paper"}
    refused_on_the_command_line([*words, "--nonsense"] if runs else ["zz", *words])


# learners: what is asked of one that has learned something


@pytest.fixture(scope="module")
def learner(graph):
    return eg.Learner(eg.GCN(hidden=4), "ewc", epochs=1, device="cpu").fit(eg.TaskStream(graph, 2))


CALLS = {
    "predict": lambda learner, graph, value: learner.predict(value),
    "predict nodes": lambda learner, graph, value: learner.predict(graph, value),
    "predict classes": lambda learner, graph, value: learner.predict(graph, classes=value),
    "logits": lambda learner, graph, value: learner.logits(value),
    "probabilities": lambda learner, graph, value: learner.predict_proba(graph, value),
    "learn": lambda learner, graph, value: learner.learn(value),
    "fit": lambda learner, graph, value: learner.fit(value),
    "evaluate": lambda learner, graph, value: learner.evaluate(value),
    "evaluate metric": lambda learner, graph, value: learner.evaluate(eg.TaskStream(graph, 2), metric=value),
    "grow": lambda learner, graph, value: learner.grow(value),
    "load": lambda learner, graph, value: eg.Learner.load(value),
    "task": lambda learner, graph, value: eg.Task.of(graph, value),
    "from_pyg": lambda learner, graph, value: eg.from_pyg(value),
    "make_method": lambda learner, graph, value: eg.make_method(value),
    "make_model": lambda learner, graph, value: eg.make_model(value),
    "stream": lambda learner, graph, value: eg.stream(value),
    "run": lambda learner, graph, value: eg.run(value, "out"),
    "report": lambda learner, graph, value: eg.write_report(value),
    "compose": lambda learner, graph, value: eg.Compose(value),
    "learn on_epoch": lambda learner, graph, value: learner.learn(graph, value if not callable(value) else None),
    "evaluate part": lambda learner, graph, value: learner.evaluate(graph, part=value),
    "why": lambda learner, graph, value: learner.why(graph, value),
    "forget": lambda learner, graph, value: learner.forget(value, graph),
    "save": lambda learner, graph, value: learner.save(value),
    "from_tables": lambda learner, graph, value: eg.from_tables(value),
    "from_networkx": lambda learner, graph, value: eg.from_networkx(value),
    "leak_score": lambda learner, graph, value: eg.leak_score(value),
    "average_forgetting": lambda learner, graph, value: eg.average_forgetting(value),
    "average_performance": lambda learner, graph, value: eg.average_performance(value),
    "register": lambda learner, graph, value: eg.register(value),
}


@given(st.sampled_from(list(CALLS)), JUNK)
@examples(350)
def test_calls_with_wrong_values_work_or_are_one_line(empty, learner, graph, name, value):
    before = learner.num_tasks
    try:
        CALLS[name](learner, graph, value)
    except Exception as error:
        refused(error)
    assert learner.num_tasks == before or name in {"learn", "learn on_epoch", "fit"}


def test_two_thousand_inputs_are_made_up():
    assert sum(MADE_UP) >= 2000 * TIMES
