"""Methods, models, problems, metrics and so on of one's own: what they get wrong is one line, never a wrong number."""

import collections
import copy
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import evergraph as eg
from evergraph.experiments.selection import Space
from evergraph.registry import Registry

SMALL = "sbm:nodes=60,classes=4,features=8"

# learned state


@dataclass(repr=False)
class Anchored(eg.Method):
    """Its state has a name without a trailing underscore."""

    name = "anchored"
    anchor: dict[str, torch.Tensor] = eg.state(dict, like="params", new="values")

    def end_task(self, context: eg.Context) -> None:
        self.anchor = eg.copy_params(context.model)


def test_what_is_declared_as_state_is_state_whatever_its_name(small_stream: eg.TaskStream, tmp_path: Any) -> None:
    learner = eg.Learner(eg.GCN(hidden=4), Anchored(), epochs=1)
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path, method=Anchored())
    assert loaded.method.kept_bytes() == learner.method.kept_bytes() > 0
    loaded.grow(9)
    assert {name: value.shape for name, value in loaded.method.anchor.items()} == {
        name: value.shape for name, value in loaded.model.named_parameters()
    }


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"empty": {}}, "state: empty={} must be a function or a class"),
        ({"empty": dict, "like": "param"}, "state: like='param' must be None or one of: params"),
        ({"empty": dict, "new": "value"}, "state: new='value' must be one of: zeros, values"),
    ],
)
def test_state_that_is_declared_wrongly_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message.replace("{}", r"\{\}")):
        eg.state(**declared)


@dataclass(repr=False)
class Counting(eg.Method):
    """Counts steps in a tuple and in a dictionary with a default."""

    name = "counting"
    fails: bool = False
    tensors_: tuple[torch.Tensor, ...] = eg.state(lambda: (torch.zeros(1),))
    steps_: dict[str, int] = eg.state(lambda: collections.defaultdict(int))

    def observe(self, step: eg.Step) -> None:
        self.tensors_[0].add_(1)
        self.steps_["all"] += 1

    def end_task(self, context: eg.Context) -> None:
        if self.fails:
            raise ValueError("it fails")


def test_state_in_any_container_is_restored_after_a_failure_and_by_early_stopping(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(eg.GCN(hidden=4), Counting(), epochs=2)
    learner.learn(small_stream[0])
    before = copy.deepcopy(learner.method.state_dict())
    learner.method.fails = True
    with pytest.raises(ValueError, match="fails"):
        learner.learn(small_stream[1])
    assert learner.method.state_dict() == before
    learner = eg.Learner(eg.GCN(hidden=4), Counting(), epochs=30, patience=2, lr=0.5)
    learner.learn(small_stream[0])
    assert float(learner.method.tensors_[0]) == learner.method.steps_["all"] < 30
    assert learner.method.steps_["none"] == 0


# registration


def test_a_method_that_is_given_a_name_is_saved_and_loaded_by_it(
    small_stream: eg.TaskStream, tmp_path: Any, registries: None
) -> None:
    @eg.registry.methods.register(name="renamed")
    @dataclass(repr=False)
    class Renamed(eg.EWC):
        """EWC by another name."""

    assert (Renamed.name, eg.EWC.name) == ("renamed", "ewc")
    learner = eg.Learner(eg.GCN(hidden=4), Renamed(strength=3.0), epochs=1)
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    assert repr(eg.Learner.load(tmp_path).method) == repr(learner.method)
    with pytest.raises(eg.EvergraphError, match="class Renamed is called 'renamed', not 'again'; give it one name"):
        eg.registry.methods.register(name="again")(Renamed)


@pytest.mark.parametrize("kind", [name for name, value in vars(eg.registry).items() if isinstance(value, Registry)])
def test_registries_hold_nothing_of_another_kind(kind: str) -> None:
    class Rule:
        name, about = "rule", "no subclass of anything"

    entries: Registry[Any] = getattr(eg.registry, kind)
    for entry in (Rule, Rule()):
        with pytest.raises(eg.EvergraphError, match=f"is no {entries.kind}: it must be "):
            entries.register(entry)
    assert "rule" not in entries


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a,b", "a+b", "-a", 5])
def test_names_that_the_command_line_could_not_take_are_refused(name: Any) -> None:
    with pytest.raises(eg.EvergraphError, match="is no name for a method; use letters, digits"):
        eg.registry.methods.register(name=name)(eg.Method)


def test_nothing_is_registered_without_a_name() -> None:
    with pytest.raises(eg.EvergraphError, match="register needs a model, or its name"):
        eg.registry.models.register()  # type: ignore[call-overload]


# settings


@pytest.mark.parametrize("kept", [True, False])
def test_settings_need_no_dataclass_but_have_to_be_kept(
    small_stream: eg.TaskStream, tmp_path: Any, registries: None, kept: bool
) -> None:
    @eg.registry.methods.register
    class Plain(eg.Method):
        """Its constructor is written out."""

        name = "plain"

        def __init__(self, strength: eg.NonNegative = 1.0) -> None:
            setattr(self, "strength" if kept else "_strength", strength)

    @eg.registry.models.register(name="scaled")
    class Scaled(eg.GCN):
        """Another argument."""

        def __init__(self, scale: float = 1.0) -> None:
            super().__init__(4)
            setattr(self, "scale" if kept else "_scale", scale)

    method, model = Plain(strength=5.0), Scaled(scale=3.0)
    if not kept:
        for made in (method, model):
            with pytest.raises(eg.EvergraphError, match=r"does not keep its setting .*; store it as self\.s"):
                made.hyperparameters()
        return
    learner = eg.Learner(model, method, epochs=1)
    learner.learn(small_stream[0])
    learner.save(tmp_path)
    loaded = eg.Learner.load(tmp_path)
    assert (loaded.method.strength, loaded.model.scale) == (5.0, 3.0)
    spec = eg.RunSpec(SMALL, method="plain", settings={"strength": 7.0}, training=eg.Training(epochs=1))
    assert eg.run(spec, tmp_path / "run")["hyperparameters"] == {"strength": 7.0}


# problems


class Tempered(eg.NodeClassification):
    """softmax(z / T), with a score and samples of its own."""

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * super().score(2 * outputs, targets)

    def sample(self, outputs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return super().sample(2 * outputs, generator)


def test_a_fused_draw_does_not_stand_in_for_a_sample_and_score_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, problem = torch.randn(5, 3), Tempered()
    expected = problem.sampled_score(outputs, torch.Generator().manual_seed(0))
    monkeypatch.setattr("evergraph.problems.classification.fused_softmax_suits", lambda outputs: True)
    drawn = problem.sampled_score(outputs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, expected)
    assert eg.capable(problem, "draws_scores_for_several") is None
    assert eg.capable(eg.NodeClassification(), "draws_scores_for_several")


# capabilities


@pytest.mark.parametrize("rests_on", ["logits", (), (eg.GCN.logits,), None])
def test_a_capability_names_what_it_rests_on(rests_on: Any) -> None:
    with pytest.raises(eg.EvergraphError, match="must name the methods it rests on"):
        eg.capability(rests_on=rests_on)


def test_a_capability_that_rests_on_a_misspelt_method_is_an_error() -> None:
    class Model(eg.GCN):
        """It says that its features rest on its logits, nearly."""

        @eg.capability(rests_on=["logitz"])
        def features(self, batch: eg.Batch) -> torch.Tensor:
            return batch.x

    with pytest.raises(eg.EvergraphError, match="'features' of Model rests on 'logitz', which it lacks"):
        eg.capable(Model(), "features")


# shapes and values that hooks return


def hooked(**hooks: Any) -> eg.Method:
    """A method with the given hooks."""
    return type("Hooked", (eg.Method,), {"name": "hooked", **hooks})()


def ranking(rank: Any) -> eg.Method:
    """A replay method with the given `rank`."""
    return type("Ranking", (eg.ReplayMethod,), {"name": "ranking", "rank": rank})()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (hooked(epochs=lambda *_: None), "hooked: epochs=None must be a whole number of at least 0"),
        (hooked(epochs=lambda *_: -1), "hooked: epochs=-1 must be a whole number of at least 0"),
        (hooked(epochs=lambda *_: 1.5), "hooked: epochs=1.5 must be a whole number of at least 0"),
        (
            hooked(directions=lambda _, context: [{"weight": torch.zeros(3)}]),
            "unknown parameter in a direction 'weight'; choose one of: weights.0, weights.1",
        ),
        (
            hooked(replay=lambda _, step: [eg.Replay(step.batch, weights=torch.ones(step.batch.num_seeds, 1))]),
            "hooked: replay gives weights of shape (12, 1) for 12 examples; there must be one for each",
        ),
        (
            ranking(lambda _, context, nodes, number: context.task.test[:number]),
            "ranking: rank must return a tensor of some of the nodes it is given",
        ),
        (
            ranking(lambda _, context, nodes, number: torch.rand(number)),
            "ranking: rank must return a tensor of some of the nodes it is given",
        ),
    ],
    ids=lambda value: value.split(";")[0] if isinstance(value, str) else "",
)
def test_what_a_hook_returns_is_checked(small_stream: eg.TaskStream, method: eg.Method, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=re.escape(message)):
        eg.Learner(eg.GCN(hidden=4), method, epochs=1, batch_size=0).learn(small_stream[0])


@pytest.mark.parametrize(
    ("reduced", "shape"),
    [(lambda loss: loss[:3], "(3,)"), (torch.mean, "()"), (lambda loss: loss.unsqueeze(1), "(12, 1)")],
)
def test_a_problem_gives_every_example_a_loss(
    small_stream: eg.TaskStream, registries: None, reduced: Any, shape: str
) -> None:
    @eg.registry.problems.register
    class Reduced(eg.NodeClassification):
        """Its loss has another shape."""

        name = "reduced"

        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return reduced(super().loss(outputs, targets))

    with pytest.raises(eg.EvergraphError, match=re.escape(f"the loss of reduced has shape {shape} for 12 examples")):
        eg.Learner(eg.GCN(hidden=4), "finetune", problem="reduced", epochs=1, batch_size=0).learn(small_stream[0])


# errors in a plug-in's code

PLUGIN = """
import sys, torch, evergraph as eg

def penalty(self, step):
    {}

eg.registry.methods.register(type("Own", (eg.Method,), {{"__doc__": "Its own.", "name": "own", "penalty": penalty}}))
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> Callable[[str], Path]:
    """Writes a file with a method `own` whose penalty runs the given line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGRAPH_PLUGINS", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def write(line: str) -> Path:
        path = tmp_path / "own.py"
        path.write_text(PLUGIN.format(line))
        return path

    return write


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise ValueError('oops')", "own.py, line 5, in penalty: ValueError: oops (traceback in "),
        ("raise ValueError('too large')", "own.py, line 5, in penalty: ValueError: too large (traceback in "),
        ("raise OverflowError('mine')", "own.py, line 5, in penalty: OverflowError: mine (traceback in "),
        ("torch.zeros(3) @ torch.zeros(4)", "own.py, line 5, in penalty: RuntimeError: "),
        ("return 'text'", "TypeError: "),
        ("sys.exit()", "own.py, line 5, in penalty called sys.exit; let it raise an error instead"),
    ],
)
def test_an_error_in_a_plug_in_is_one_line(
    plug_in: Callable[[str], Path], evergraph: Call, tmp_path: Path, line: str, message: str
) -> None:
    words = ["run", SMALL, "--method", "own", "--epochs", 1, "--out", "out", "--plugin", plug_in(line)]
    status, out, error = evergraph(*words)
    assert (status, out) == (2, "")
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    if "sys.exit" not in line:
        [file] = tmp_path.glob("evergraph-*/failures.txt")
        assert str(file) in error
        assert "Traceback" in file.read_text()


def test_sys_exit_while_a_plug_in_is_loaded_is_no_success(plug_in: Callable[[str], Path], evergraph: Call) -> None:
    path = plug_in("")
    path.write_text("import sys; sys.exit(0)")
    status, out, error = evergraph("methods", "--plugin", path)
    assert (status, out) == (2, "")
    assert error.startswith(f"error: --plugin {path} cannot be loaded (SystemExit: ")


def test_a_plug_in_is_loaded_once_however_its_path_is_written(
    plug_in: Callable[[str], Path], evergraph: Call, tmp_path: Path
) -> None:
    path = plug_in("return None")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.py").symlink_to(path)
    words = [word for name in ("own.py", "sub/../own.py", "link.py") for word in ("--plugin", name)]
    status, out, error = evergraph("methods", *words)
    assert status == 0, error
    assert out.count(" own ") == 1
    apart = tmp_path / f"a{os.pathsep}b"
    apart.mkdir()
    path.rename(apart / "own.py")
    status, _, error = evergraph("methods", "--plugin", apart / "own.py")
    assert status == 2
    assert "separates paths; rename or move the file" in error


def test_what_a_model_does_not_define_is_named(small_stream: eg.TaskStream) -> None:
    class Linear(eg.GraphModel):
        """It cannot grow."""

        def setup(self, in_channels: int, out_channels: int) -> None:
            self.in_channels, self.out_channels = in_channels, out_channels
            self.weight = torch.nn.Parameter(torch.zeros(in_channels, out_channels))

        def inputs(self, graph: eg.Graph, operator: Any, propagate: bool | None = None) -> tuple[Any, int]:
            return graph.x, 0

        def logits(self, batch: eg.Batch) -> torch.Tensor:
            return eg.linear(batch.x, self.weight)

    learner = eg.Learner(Linear(), epochs=1).fit(small_stream)
    with pytest.raises(eg.EvergraphError, match="Linear does not define grow, which is needed here"):
        learner.grow(9)


def test_outputs_that_are_whole_numbers_are_no_divergence(small_stream: eg.TaskStream) -> None:
    class Whole(eg.GCN):
        """Its outputs are whole numbers."""

        def logits(self, batch: eg.Batch) -> torch.Tensor:
            return super().logits(batch).long()

    with pytest.raises(eg.EvergraphError, match="the model's outputs are whole numbers"):
        eg.Learner(Whole(hidden=4), epochs=1).learn(small_stream[0])


# metrics and summaries


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "metric 'own' returned None, not a number"),
        ("1", "metric 'own' returned '1', not a number"),
        (torch.ones(3), "metric 'own' returned tensor([1., 1., 1.]), not a number"),
        (float("nan"), "metric 'own' is nan on task 1; let it return a number where it is undefined"),
    ],
)
def test_a_metric_that_is_no_number_is_named(
    small_stream: eg.TaskStream, registries: None, returned: Any, message: str
) -> None:
    eg.registry.metrics.register(eg.Metric("own", "own", lambda outputs, targets, candidates: returned))
    learner = eg.Learner(eg.GCN(hidden=4), epochs=1)
    learner.learn(small_stream[0])
    with pytest.raises(eg.EvergraphError, match=re.escape(message)):
        learner.evaluate(small_stream, metric="own")


def test_a_metric_or_summary_may_be_a_tensor_of_one_number(small_stream: eg.TaskStream, registries: None) -> None:
    eg.registry.metrics.register(eg.Metric("own", "own", lambda outputs, targets, candidates: torch.tensor(50.0)))
    learner = eg.Learner(eg.GCN(hidden=4), epochs=1).fit(small_stream)
    assert learner.evaluate(small_stream, metric="own").accuracies == [50.0] * 3
    summary = eg.evaluation.Summary("own", "Own", "One.", lambda matrix: torch.tensor(3.0))
    assert type(summary.of([[1.0]])) is float


def test_a_problem_whose_metric_is_undefined_on_a_task_learns_it(small_stream: eg.TaskStream, registries: None) -> None:
    eg.registry.metrics.register(eg.Metric("own", "own", lambda outputs, targets, candidates: float("nan")))

    @eg.registry.problems.register
    class Undefined(eg.NodeClassification):
        """Measured by a metric that is never defined."""

        name, metric = "undefined", "own"

    learner = eg.Learner(eg.GCN(hidden=4), problem="undefined", epochs=1)
    learner.learn(small_stream[0])
    assert learner.first_accuracies == [None]


# settings as text, and search spaces


@dataclass(repr=False)
class Choosing(eg.Method):
    """Settings of many types."""

    name = "choosing"
    order: Literal[1, 2] = 1
    marks: Literal["a", "1"] = "a"
    words: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    count: eg.PositiveInt = 3


def test_text_is_read_as_declared(registries: None) -> None:
    eg.registry.methods.register(Choosing)
    made = eg.make_method("choosing", {"order": "2", "marks": "1", "words": "a,b", "sizes": "1,2"})
    assert made.hyperparameters() == {"order": 2, "marks": "1", "words": ["a", "b"], "sizes": [1, 2], "count": 3}
    for key, text in (("order", "3"), ("marks", "A"), ("sizes", "1,x")):
        with pytest.raises(eg.EvergraphError, match=f"{key}=.* must be "):
            eg.make_method("choosing", {key: text})


def test_a_range_of_whole_numbers_is_searched_in_whole_numbers(
    registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    eg.registry.methods.register(Choosing)
    spec = eg.RunSpec(SMALL, method="choosing")
    monkeypatch.setattr(Choosing, "search_space", {"count": (1, 100)})
    found = Space.of(spec).at([0.3])["count"]
    assert isinstance(found, int)
    assert Choosing(count=found).count == found
    for wrong in ((100, 1), (1, 2, 3), ("a", "b"), "ab", [], 5, (0, float("inf"))):
        monkeypatch.setattr(Choosing, "search_space", {"count": wrong})
        with pytest.raises(eg.EvergraphError, match=r"choosing: search_space\['count'\] is .*; it must be a pair"):
            Space.of(spec)
