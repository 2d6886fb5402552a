"""Where examples are links: messages pass along the links that are known, never along those asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    with pytest.warns(EvergraphWarning, match=r"all of its 20 links are asked for, so messages pass along edge_index"):
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
