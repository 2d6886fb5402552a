"""Where examples are links: messages pass along the links that are known, never along those asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import evergraph as eg
from evergraph.errors import EvergraphWarning


def raw_links(number: int = 300, **settings: Any) -> eg.Graph:
    """Links among 40 nodes, as they are before a task is made of them; 300 are too many to be pairs of their own."""
    random = np.random.default_rng(0)
    return eg.make_links(random.standard_normal((40, 5)), random.integers(0, 40, (2, number)), **settings)


def same(one: eg.Prediction, other: eg.Prediction) -> bool:
    return torch.allclose(one.probabilities, other.probabilities)


def test_links_asked_for_by_number_are_read_along_the_others_as_pairs_are() -> None:
    links = raw_links(y=np.arange(300) % 2)
    one = eg.Learner("analytic", device="cpu")
    one.learn(links)
    chosen = torch.tensor([4, 250, 17])
    ends = links.members.rows(chosen).indices.view(-1, 2).T
    asked = one.predict(links, chosen)
    assert asked.nodes.tolist() == chosen.tolist()
    assert torch.equal(asked.ends, ends.T)
    assert same(asked, one.predict(links, ends))
    assert same(one.predict(links, chosen.tolist()), asked)
    assert torch.allclose(one.predict_proba(links, chosen).max(1).values, asked.probabilities)
    bare = eg.make_links(links.x, ends)
    with pytest.warns(EvergraphWarning, match="all of its 3 links are asked for"):
        assert not same(one.predict(bare), asked)


@pytest.mark.parametrize("hold_out", [True, False])
@pytest.mark.parametrize("settings", [{"y": np.arange(300) % 2}, {"y": np.arange(300) / 300, "columns": True}])
def test_all_links_of_learned_data_are_read_along_those_trained_on(
    settings: dict[str, Any], hold_out: bool, recwarn: pytest.WarningsRecorder
) -> None:
    links = raw_links(**settings)
    task = eg.Task.of(links, hold_out=hold_out)
    one = eg.Learner("analytic", device="cpu")
    one.learn(task)
    assert same(one.predict(links), one.predict(task.graph))
    assert same(one.predict(links, torch.arange(300)), one.predict(task.graph))
    assert not [warning for warning in recwarn if "asked for" in str(warning.message)]


def test_all_links_that_exist_are_read_along_those_trained_on() -> None:
    links = raw_links(80, negatives=True)
    task = eg.Task.of(links)
    assert task.graph.num_examples > links.num_examples  # with pairs drawn as negative examples
    one = eg.Learner("finetune", problem="link-prediction", epochs=2, device="cpu")
    one.learn(task)
    assert same(one.predict(links), one.predict(task.graph, torch.arange(80)))


def test_all_links_of_two_tasks_are_read_along_what_both_trained_on_and_neither_held_out() -> None:
    links = raw_links(y=np.arange(300) % 4)
    tasks = [eg.Task.of(links, classes) for classes in ([0, 1], [2, 3])]
    one = eg.Learner("analytic", device="cpu").fit(tasks)
    ends = links.members.indices.view(-1, 2).tolist()
    held_out = [set(ends[i]) for task in tasks for part in (task.val, task.test) for i in part.tolist()]
    known = [ends[i] for task in tasks for i in task.train.tolist() if set(ends[i]) not in held_out]
    along = eg.make_links(links.x, np.array(ends).T, edge_index=np.array(known).T)
    assert torch.allclose(one.logits(links), one.outputs(along, torch.arange(300)))


def test_all_links_of_other_data_are_read_along_edges_with_a_note() -> None:
    one = eg.Learner("analytic", device="cpu")
    one.learn(raw_links(y=np.arange(300) % 2))
    other = raw_links(20)
    with pytest.warns(EvergraphWarning, match=r"all of its 20 links are asked for, and no task .* edge_index alone"):
        found = one.logits(other)
    assert torch.allclose(found, one.outputs(other, torch.arange(20)))


def test_the_command_predicts_held_out_links_as_well_as_it_evaluates_them(evergraph: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kind, ends = np.arange(60) % 2, random.integers(0, 60, (2, 2000))
    ends = ends[:, (kind[ends[0]] == kind[ends[1]]) | (random.random(2000) < 0.1)]  # neighbours say of which kind it is
    x = torch.as_tensor(random.standard_normal((60, 4)) + 0.3 * kind[:, None]).float()
    y = torch.as_tensor(kind[ends[0]])
    data = Data(x=x, edge_label_index=torch.as_tensor(ends), edge_label=y)
    torch.save(data, tmp_path / "links.pt")
    folder = ["--checkpoint", str(tmp_path / "k")]
    assert evergraph("learn", str(tmp_path / "links.pt"), *folder)[0] == 0
    status, out, err = evergraph("predict", str(tmp_path / "links.pt"), *folder)
    assert status == 0
    assert "asked for" not in err
    test = eg.Task.of(data).test
    classes = torch.tensor([int(line.split(",")[3]) for line in out.splitlines()[1:]])
    assert out.startswith("link,source,target,class,")
    _, out, _ = evergraph("evaluate", str(tmp_path / "links.pt"), *folder, "--json")
    assert 100 * float((classes[test] == y[test]).double().mean()) == pytest.approx(json.loads(out)["ap"])


def pairs_of(task: eg.Task, links: Tensor) -> list[frozenset[int]]:
    assert task.graph.members is not None
    return [frozenset(pair) for pair in task.graph.members.rows(links).indices.view(-1, 2).tolist()]


@pytest.mark.parametrize("streamed", [False, True])
def test_no_pair_is_both_trained_and_tested_on_in_either_direction(streamed: bool) -> None:
    """Each link is given in both directions, as in PyG's `edge_index`."""
    once = np.random.default_rng(0).integers(0, 60, (2, 100))
    links, time = np.concatenate([once, once[::-1]], 1), np.arange(200) % 7
    made = eg.make_links(np.eye(60), links, negatives=True, attributes={"time": time})
    tasks = list(eg.stream(made, scenario="time", bins=2)) if streamed else [eg.Task.of(made)]
    parts: list[set[frozenset[int]]] = [set(), set(), set()]
    for task in tasks:
        linked, drawn = (torch.nonzero(task.graph.y[:, 0] == label).reshape(-1) for label in (1, 0))
        assert len(set(pairs_of(task, drawn))) == drawn.numel()
        for pairs, times, links in zip(parts, (1, 5, 5), (task.train, task.val, task.test)):
            pairs.update(pairs_of(task, links))
            assert torch.isin(links, drawn).sum() == times * torch.isin(links, linked).sum()
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_fewer_pairs_without_a_link_are_drawn_where_there_are_too_few() -> None:
    ends = np.triu_indices(12, 1)
    dense = eg.make_links(np.eye(12), np.stack(ends)[:, ::2], negatives=True)
    with pytest.warns(EvergraphWarning, match=r"too few pairs of nodes have no link; .*, \d+% as many"):
        task = eg.Task.of(dense)
    assert all(int((task.graph.y[part, 0] == 0).sum()) for part in (task.train, task.val, task.test))
    with pytest.raises(eg.EvergraphError, match="nearly all pairs of nodes are linked"):
        eg.Task.of(eg.make_links(np.eye(12), np.stack(ends), negatives=True))


def test_pieces_of_link_prediction_have_links_and_pairs_without_one() -> None:
    for task in eg.stream("growing-links:nodes=80,waves=2,groups=4,links=100"):
        pieces = list(task.pieces(10))
        assert torch.cat([piece.train for piece in pieces]).sort().values.equal(task.train)
        assert all(0.4 <= float(piece.graph.y[piece.train, 0].mean()) <= 0.6 for piece in pieces[:-1])


def test_edges_between_pairs_that_are_to_be_predicted_are_left_out_with_a_note() -> None:
    """As in PyG's `RandomLinkSplit`, whose training part has its own links in `edge_index`."""
    pairs = np.stack([np.arange(20), np.arange(20) + 20])
    links = eg.make_links(np.eye(40), pairs, np.arange(20) % 2, edge_index=pairs, name="own")
    with pytest.warns(EvergraphWarning, match="own: 16 of the 40 edges in edge_index join the ends of validation and"):
        task = eg.Task.of(links)
    edges = {frozenset(pair) for pair in task.graph.edge_index.T.tolist()}
    assert edges == set(pairs_of(task, task.train))
    one = eg.Learner("analytic", device="cpu")
    one.learn(task)
    assert same(one.predict(links), one.predict(task.graph))
    bare = eg.make_links(np.eye(40), pairs, np.arange(20) % 2)
    asked = torch.tensor([[0], [20]])
    assert same(one.predict(links, asked), one.predict(bare, asked))


def saved_links(path: Path, label: Tensor | None = None) -> Path:
    """Write PyG's object of 80 links among 40 nodes."""
    random = torch.Generator().manual_seed(0)
    links = torch.randint(40, (2, 80), generator=random)
    none = torch.zeros(2, 0, dtype=torch.long)
    data = Data(x=torch.randn(40, 5, generator=random), edge_index=none, edge_label_index=links, edge_label=label)
    torch.save(data, path)
    return path


def test_links_without_labels_are_links_to_predict(evergraph, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path, folder = saved_links(tmp_path / "links.pt"), tmp_path / "learner"
    with pytest.warns(EvergraphWarning, match=r"no link has a label.*whether there is a link \(link-prediction\)"):
        task = eg.Task.of(path)
    assert task.graph.positives_only
    assert float(task.graph.y[task.train].mean()) == 0.5
    words = ("--checkpoint", folder, "--device", "cpu")
    status, out, err = evergraph("learn", path, *words)
    assert status == 0, err
    assert "link-prediction" in err
    status, out, err = evergraph("evaluate", path, *words, "--metric", "mrr", "--json")
    assert status == 0, err
    assert json.loads(out)["graphs"][0]["which"] == "held out"
    status, _, err = evergraph("evaluate", path, *words, "--all")
    assert status == 2
    assert "--all: some links of links are edges to test the others along; leave it out" in err
    one = eg.Learner("lwf", problem="link-classification", device="cpu")
    with pytest.raises(eg.EvergraphError, match=r"links: all that is known .* link-classification needs .*edge_label"):
        one.learn(path)


@pytest.mark.parametrize("label", [torch.ones(80), torch.arange(80) % 2, torch.arange(80) / 80])
def test_link_prediction_refuses_labels_before_it_trains(label: Tensor, tmp_path: Path) -> None:
    path = saved_links(tmp_path / "links.pt", label)
    with pytest.raises(eg.EvergraphError, match="draws the pairs without a link itself; give only"):
        eg.Learner(problem="link-prediction", device="cpu").learn(path)


def test_directions_cannot_be_kept_where_examples_are_links(evergraph, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = saved_links(tmp_path / "links.pt", torch.arange(80) % 2)
    status, _, err = evergraph("learn", path, "--checkpoint", tmp_path / "learner", "--directed")
    assert status == 2
    assert err.startswith("error: links: where examples are links, messages pass along edges and links in both direct")


def test_joint_training_reads_the_graphs_that_tests_run_on() -> None:
    stream = eg.stream("growing-ratings:nodes=60,groups=3,links=150")
    one, other = (eg.Learner(eg.GCN(hidden=4), "joint", epochs=2, device="cpu") for _ in range(2))
    assert torch.equal(one.fit(stream).logits(stream[0].graph), other.fit(alone(stream)).logits(stream[0].graph))
    assert stream.so_far(1).graph.num_edges == stream[0].graph.num_edges + stream[1].graph.num_edges
    seen = eg.stream("growing-ratings:nodes=60,groups=3,links=150", test_graph="seen")
    assert torch.equal(seen.so_far(1).graph.edge_index, seen.seen(1).graph.edge_index)


def alone(stream: eg.TaskStream) -> list[eg.Task]:
    """The tasks as they are if no stream has the earlier ones."""
    return [replace(task, so_far=None) for task in stream]
