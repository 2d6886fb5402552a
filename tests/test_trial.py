"""Linear blocks on trial: tried by products between nodes, as if their features were there."""

from __future__ import annotations

import pytest
import torch

import evergraph as eg
from evergraph.core.features import as_dense, with_self_loops
from evergraph.core.sparse import SparseMatrix
from evergraph.core.symmetric import unpack
from evergraph.data import Graph
from evergraph.data.datasets.sbm import sbm
from evergraph.data.streams import TaskStream
from evergraph.methods.closed_form import auto
from evergraph.models import feature_blocks, linear_products
from evergraph.models.block_steps import Steps, WordsWithin
from evergraph.training.learner import Learner

WORDS = 300


def words_graph() -> Graph:
    """A graph of four classes with words of their own; a node without words and one without neighbours among them."""
    made = sbm(nodes=160, classes=4, degree=4, features=9, signal=3.0, seed=2)
    generator = torch.Generator().manual_seed(0)
    likely = torch.full((160, WORDS), 0.02)
    likely[torch.arange(160).unsqueeze(1), 10 * made.y.unsqueeze(1) + torch.arange(10)] = 0.2
    x = (torch.rand(160, WORDS, generator=generator) < likely).float()
    x[7] = 0
    made.x = SparseMatrix.from_dense(x)
    return made


def learned(memory: str, tried: bool, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """A learner of two tasks, with linear blocks on trial or not."""
    with monkeypatch.context() as patched:
        if not tried:
            patched.setattr(eg.Auto, "_can_be_tried", lambda *_: False)
        method = eg.Auto(memory=memory)
        return Learner(eg.make_model("mixed-features", hidden=7 * 60), method, dtype=torch.float64).fit(
            TaskStream(words_graph(), 2)
        )


@pytest.mark.parametrize("sparse", [True, False])
def test_products_between_nodes_are_those_of_the_features(sparse: bool) -> None:
    graph = words_graph()
    x = graph.x if sparse else as_dense(graph.x)
    operator = with_self_loops(graph.adjacency).to(torch.float64)
    blocks = [feature_blocks.Block(*about, linear=True) for about in ((0, 0.5), (1, None), (2, None), (2, 0.5))]
    nodes, counted = torch.tensor([11, 7, 3, 100, 40]), torch.tensor([11, 3])
    found = linear_products.linear_products(x.to(torch.float64), operator, blocks, nodes, counted)
    own = feature_blocks.unit_rows(x.to(torch.float64))
    steps = Steps(operator.row_sums().unsqueeze(1), [operator] * 2, [160] * 3)
    for block, products in zip(blocks, found):
        rows = as_dense(feature_blocks.unit_rows(WordsWithin(own, steps).of(block, 0)))
        assert torch.allclose(unpack(products.between), rows[nodes] @ rows[nodes].T, atol=1e-12)
        assert products.words == int((rows[counted] != 0).any(0).sum())


@pytest.mark.parametrize("admitted", [False, True])
def test_a_trial_ends_as_with_the_features(admitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same counts, choices and heads; where a set with linear blocks is kept, they are taken up."""
    if admitted:
        monkeypatch.setattr(auto, "cheapest_near", lambda counts, names, *_: "all")
    trials = []
    monkeypatch.setattr(eg.Auto, "_try", _watched(eg.Auto._try, trials))
    tried, plain = (learned("1MB", tried, monkeypatch) for tried in (True, False))
    assert len(trials) == 1
    first, second = tried.method, plain.method
    assert first.set_hits_ == second.set_hits_
    assert (first.ridge_places_, first.smaller_) == (second.ridge_places_, second.smaller_)
    assert (first.chosen_, first.own_, first.blocks_) == (second.chosen_, second.own_, second.blocks_)
    assert tried.model.hyperparameters() == plain.model.hyperparameters()
    assert any(block.linear for block in tried.model.blocks) == admitted
    for mine, other in zip(tried.model.parameters(), plain.model.parameters()):
        assert torch.allclose(mine, other, atol=1e-9)


def test_a_small_graph_has_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eg.Auto, "_try", None)
    assert any(block.linear for block in learned("1GB", True, monkeypatch).model.blocks)


def _watched(function, calls):  # type: ignore[no-untyped-def]
    def watched(*given):  # type: ignore[no-untyped-def]
        calls.append(given)
        return function(*given)

    return watched
