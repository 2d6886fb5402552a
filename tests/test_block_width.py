"""How many random features `auto` computes if nobody says, and what is left of them where memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.models.block_width import (
    DRAWN,
    FEW_COLUMNS,
    FEW_NODES,
    MEDIUM_COLUMNS,
    USUAL,
    WIDER,
    WIDEST,
    Limits,
    first_width,
)  # fmt: skip
from test_forgetting import assert_same

BLOCKS = eg.MixedFeatures().all_blocks


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a sixteenth of the usual width."""
    for module in ("models.block_width", "models.random_features", "methods.closed_form.budgeted"):
        monkeypatch.setattr(f"evergraph.{module}.USUAL", USUAL // 16)
    monkeypatch.setattr("evergraph.models.block_width.WIDEST", WIDEST // 16)
    monkeypatch.setattr(eg.MixedFeatures, "default_hidden", eg.MixedFeatures.default_hidden // 16)


def tasks_of(columns: int, nodes: int = 60, classes: int = 4) -> eg.TaskStream:
    return eg.TaskStream(sbm(nodes=nodes, classes=classes, degree=4, features=columns, signal=3.0, seed=0), 2)


def auto(model: eg.MixedFeatures | None = None, memory: str = "1GB", dtype: torch.dtype | None = None) -> eg.Learner:
    return eg.Learner(model or eg.MixedFeatures(), eg.Auto(memory=memory), device="cpu", dtype=dtype)


def yes(_: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("columns", "nodes", "room", "width"),
    [
        pytest.param(FEW_COLUMNS, 100, 10**9, 0, id="few columns"),
        pytest.param(FEW_COLUMNS + 1, FEW_NODES, 0, WIDEST, id="few nodes"),
        pytest.param(DRAWN // (4 * 7 * WIDEST), FEW_NODES, 0, WIDEST, id="few nodes with words"),
        pytest.param(DRAWN // (4 * 7 * WIDEST) + 1, FEW_NODES, 0, 0, id="few nodes with very many words"),
        pytest.param(MEDIUM_COLUMNS, FEW_NODES + 1, 5 * 2048 + 1, 2048, id="much memory"),
        pytest.param(MEDIUM_COLUMNS, FEW_NODES + 1, 5 * 2048, 1536, id="memory"),
        pytest.param(MEDIUM_COLUMNS, FEW_NODES + 1, 5 * 1536, 0, id="little memory"),
        pytest.param(MEDIUM_COLUMNS + 1, FEW_NODES + 1, 10**9, 0, id="words"),
    ],
)
def test_blocks_are_wider_where_that_is_cheap_or_worth_it(columns: int, nodes: int, room: int, width: int) -> None:
    """Four blocks that mix, own features and the column of ones have to fit, whatever is dropped later."""
    assert first_width(BLOCKS, columns, nodes, Limits(yes, lambda width: width <= room), yes, 4) == width


def test_small_graphs_have_wide_blocks_only_if_the_sums_of_their_first_task_are_small() -> None:
    asked = list[int]()
    limits = Limits(lambda width: bool(asked.append(width)), lambda _: False)
    assert first_width(BLOCKS, 100, FEW_NODES, limits, yes, 4) == 0
    assert asked == [7 * WIDEST + 3 * 100]  # seven random blocks, three linear ones


def test_features_of_a_graph_four_times_as_large_are_at_hand() -> None:
    asked = list[int]()
    first_width(BLOCKS, 100, FEW_NODES + 1, Limits(yes, yes), lambda width: bool(asked.append(width)), 4)
    assert asked == [4 * 7 * width for width in WIDER]


def test_a_model_without_random_blocks_has_no_width_to_choose() -> None:
    linear = [block for block in BLOCKS if block.linear]
    assert first_width(linear, 100, 10, Limits(yes, yes), yes, 4) == 0
    learner = auto(eg.MixedFeatures(blocks=[block.written() for block in linear])).fit([tasks_of(80)[0]])
    assert learner.method.wider_ == 1


@pytest.mark.parametrize(
    ("columns", "nodes", "memory", "width"),
    [(60, 60, "1GB", 1024), (80, 60, "1GB", 4096), (80, 3000, "1GB", 1536), (80, 3000, "500MB", 1024)],
)
def test_auto_chooses_the_width_by_its_memory(columns: int, nodes: int, memory: str, width: int) -> None:
    model = eg.MixedFeatures()
    model.setup(columns, 2)
    eg.Auto(memory=memory).adapt_model(model, tasks_of(columns, nodes)[0])
    assert (model.block_width, model.hyperparameters()["hidden"]) == (width, 7 * width)


def test_a_given_width_is_kept() -> None:
    assert auto(eg.MixedFeatures(hidden=700)).fit([tasks_of(80)[0]]).model.block_width == 100


def model_of(settings: dict[str, object], like: eg.MixedFeatures | None = None) -> eg.MixedFeatures:
    torch.manual_seed(1)
    model = eg.make_model("mixed-features", **settings)
    model.setup(80, 4)
    model.double()
    if like is not None:
        model.load_state_dict(like.state_dict())
    return model


def test_a_narrowed_block_has_the_first_features_of_the_wide_one() -> None:
    """And linear blocks the same share of the energy as in a model whose blocks were never wider."""
    graph = tasks_of(80)[0].graph
    wide = model_of({"hidden": 7 * 4096, "block_width": 4096})
    operator = wide.operator(graph).to(torch.float64)
    before, parts = wide.graph_features(graph.x.double(), operator), wide.widths()
    fold = wide.narrow([True] * 10, wide.linear_width, 1024)
    assert wide.widths() == [1024 if width == 4096 else width for width in parts]
    assert wide.hyperparameters()["block_width"] == 1024
    for model in (wide, model_of(wide.hyperparameters(), wide)):
        found = model.graph_features(graph.x.double(), operator)
        assert torch.allclose(found, fold(before, 1))
    usual = model_of({"hidden": 7 * 1024}).graph_features(graph.x.double(), operator)
    energies = [
        [float(part.square().sum()) for part in features[:, :-1].split(wide.widths(), dim=1)]
        for features in (found, usual)
    ]
    assert all(got == pytest.approx(want, rel=0.1) for got, want in zip(*energies))


def test_blocks_of_a_given_width_are_not_narrowed_and_measured_whole() -> None:
    """As in learners of earlier versions."""
    graph = tasks_of(80)[0].graph
    model = model_of({"hidden": 7 * 2048})
    operator, x = model.operator(graph).to(torch.float64), graph.x.double()
    first = model.graph_features(x, operator)[:, :2048]
    h = torch.relu(first)
    assert torch.equal(h, first)
    step = model.blocks[0].operator(operator, operator.row_sums())
    plain = step @ (x / x.norm(dim=1, keepdim=True)) @ model.projection[:, :2048].double()
    want = torch.relu(plain) / plain.norm(dim=1, keepdim=True) * (2048 / 7) ** 0.5
    assert torch.allclose(first, want)
    assert not model.feature_layout().narrowable


@pytest.mark.usefixtures("small")
def test_sums_of_narrowed_blocks_are_those_of_narrow_ones() -> None:
    """The sums are those of a learner whose blocks were narrow from the first task on."""
    stream = tasks_of(80, 400, classes=8)
    found, widths = auto(memory="5300KB", dtype=torch.float64), list[int]()
    for task in stream:
        found.learn(task)
        widths.append(found.model.block_width)
    assert widths[0] == WIDEST // 16 > widths[-1] >= USUAL // 16
    kept = found.model.hyperparameters()
    wanted = auto(eg.make_model("mixed-features", **kept), "5300KB", torch.float64).fit(stream)
    assert wanted.model.hyperparameters() == kept
    every = torch.arange(found.model.head.size(0))
    for part in ("train", "val"):
        assert torch.allclose(found.method.gram_among(part, every), wanted.method.gram_among(part, every))
    assert found.evaluate(stream).ap > 80


def test_a_wide_learner_is_saved_loaded_and_goes_on(tmp_path: Path) -> None:
    stream = tasks_of(80)
    first = auto().fit([stream[0]])
    first.save(tmp_path / "kept")
    learners = [
        first,
        eg.Learner.load(tmp_path / "kept"),
        eg.Learner.load(tmp_path / "kept", model=eg.MixedFeatures()),
    ]
    logits = [learner.fit([stream[1]]).logits(stream[1].graph) for learner in learners]
    assert all(torch.equal(each, logits[0]) for each in logits)


def test_a_failed_first_task_leaves_the_width_open(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = auto()
    with monkeypatch.context() as failing:
        failing.setattr(eg.Auto, "decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learner.learn(tasks_of(80)[0])
    learner.learn(tasks_of(20)[0])
    assert learner.model.block_width == 1024


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("memory", ["3MB", "6MB", "8MB"])
def test_no_set_is_lost_that_blocks_of_the_usual_width_would_keep(memory: str) -> None:
    stream = tasks_of(80, 400, classes=8)
    found = auto(memory=memory).fit(stream)
    usual = auto(eg.MixedFeatures(hidden=eg.MixedFeatures.default_hidden), memory).fit(stream)
    assert len(found.method.set_hits_) >= len(usual.method.set_hits_)


@pytest.mark.usefixtures("small")
def test_wide_blocks_are_narrowed_where_features_would_not_be_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few nodes are labelled, so the sums stay small; but the vote needs all features of a graph at once."""
    small, large = (sbm(nodes=nodes, classes=4, degree=4, features=80, signal=3.0, seed=0) for nodes in (60, 900))
    y = large.y.clone()
    y[60:] = -1
    large = large.altered(y=y)
    for module in ("models.random_features", "methods.closed_form.budgeted"):
        monkeypatch.setattr(f"evergraph.{module}.AT_HAND", 900 * 1100 * 4)
    learner = auto()
    learner.learn(small)
    assert learner.model.block_width == WIDEST // 16
    learner.learn(large)
    assert learner.model.block_width < WIDEST // 16
    assert learner.model.reads_whole(large)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("memory", ["1GB", "2200KB"])
def test_forgetting_equals_never_having_learned(memory: str, loaded: bool, tmp_path: Path) -> None:
    stream = tasks_of(80, 160, classes=8)
    found, wanted = (auto(memory=memory, dtype=torch.float64) for _ in range(2))
    found.fit(stream)
    if loaded:
        found.save(tmp_path / "kept")
        found = eg.Learner.load(tmp_path / "kept")
    gone = stream[0].train[:5]
    found.forget(gone, list(stream))
    wanted.fit([stream[0].without(gone), *list(stream)[1:]])
    assert (found.model.block_width == WIDEST // 16) == (memory == "1GB")
    assert found.model.hyperparameters() == wanted.model.hyperparameters()
    assert_same(found, wanted)
