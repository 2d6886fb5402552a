"""Graphs, tasks and streams that were pickled or copied: the same contents, and nothing computed from them."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sp
import torch

import evergraph as eg
from evergraph.core.features import as_dense
from evergraph.data.mapped import read_mapped, write_mapped
from evergraph.data.parts import read_parts, write_parts

Copied = Callable[[Any], Any]


def pickled(found: Any) -> Any:
    return pickle.loads(pickle.dumps(found))


COPIES = pytest.mark.parametrize("copied", [pickled, copy.deepcopy, copy.copy])


def assert_same(one: eg.Graph, other: eg.Graph) -> None:
    assert torch.equal(as_dense(one.x), as_dense(other.x))
    assert torch.equal(one.adjacency.dense(), other.adjacency.dense())
    assert torch.equal(one.y, other.y)
    assert (one.class_names, one.name, one.on_disk, one.mark) == (
        other.class_names, other.name, other.on_disk, other.mark,
    )  # fmt: skip


@COPIES
@pytest.mark.parametrize("sparse", [False, True])
def test_a_copy_predicts_alike_and_holds_nothing_computed(small_graph: eg.Graph, copied: Copied, sparse: bool) -> None:
    if sparse:
        small_graph = small_graph.altered(x=eg.make_graph(
            sp.csr_matrix(small_graph.x.numpy()), small_graph.edge_index, undirected=True).x)  # fmt: skip
    fresh = len(pickle.dumps(small_graph))
    learner = eg.Learner(eg.GIN(hidden=8), epochs=1, method="finetune", device="cpu")
    learner.learn(eg.Task.of(small_graph))
    nodes = torch.arange(small_graph.num_nodes)
    before = learner.logits(small_graph, nodes)
    assert small_graph.cache
    found = copied(small_graph)
    assert not found.cache
    assert not found.private_cache
    assert_same(found, small_graph)
    assert torch.equal(learner.logits(found, nodes), before)
    assert len(pickle.dumps(small_graph)) == fresh


def test_a_deep_copy_is_a_graph_of_its_own(small_graph: eg.Graph) -> None:
    found = copy.deepcopy(small_graph)
    found.x[0] = 5
    assert not torch.equal(found.x, small_graph.x)


@COPIES
def test_a_graph_on_disk_is_read_from_its_folder_again(
    small_graph: eg.Graph, copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wide = eg.make_graph(torch.ones(60, 5000), small_graph.edge_index, small_graph.y)
    graph = read_mapped(write_mapped(wide, "folder"))
    content = pickle.dumps(graph)
    assert len(content) < 10_000  # of 1.2 MB of features
    monkeypatch.chdir("/")
    assert_same(copied(graph), graph)
    labelled = graph.altered(y=graph.y.flip(0))
    assert_same(copied(labelled), labelled)
    shutil.rmtree(tmp_path / "folder")
    write_mapped(small_graph, tmp_path / "folder")
    with pytest.raises(eg.EvergraphError, match="folder holds another graph than it did"):
        pickle.loads(content)


def test_what_is_on_disk_no_longer_is_refused(small_graph: eg.Graph, tmp_path: Path) -> None:
    graph = read_mapped(write_mapped(small_graph, tmp_path / "folder"))
    changed = graph.altered(x=graph.x + 1)
    with pytest.raises(eg.EvergraphError, match="no longer those on disk"):
        pickle.dumps(changed)
    graph.x[0] = 1
    with pytest.raises(eg.EvergraphError, match="no longer those on disk"):
        copy.deepcopy(graph)
    write_parts(small_graph, tmp_path / "parts", 2)
    with pytest.raises(eg.EvergraphError, match="is in parts, one for each process; read its folder"):
        pickle.dumps(read_parts(tmp_path / "parts")[0])


def assert_same_task(one: eg.Task, other: eg.Task) -> None:
    assert_same(one.graph, other.graph)
    assert one.mark() == other.mark()
    assert all(torch.equal(getattr(one, part), getattr(other, part)) for part in ("train", "val", "test"))


@COPIES
@pytest.mark.parametrize("edges_between_tasks", [False, True])
def test_a_stream_makes_the_same_tasks(small_graph: eg.Graph, copied: Copied, edges_between_tasks: bool) -> None:
    stream = eg.TaskStream(small_graph, 2, edges_between_tasks=edges_between_tasks)
    fresh = len(pickle.dumps(stream))
    for task in stream:
        assert_same_task(copied(task), task)
    assert len(pickle.dumps(stream)) == fresh
    for one, other in zip(copied(stream), stream):
        assert_same_task(one, other)
        assert_same_task(one.so_far(), other.so_far())


def test_a_task_pickled_alone_holds_nothing_of_later_tasks(small_graph: eg.Graph) -> None:
    wide = eg.make_graph(small_graph.x.repeat(1, 500), small_graph.edge_index, small_graph.y, undirected=True)
    first = eg.TaskStream(wide, 2)[0]
    assert len(pickle.dumps(first)) < 1.2 * first.graph.x.numel() * 4  # a third of the stream's nodes
    assert pickled(first).so_far is copy.deepcopy(first).so_far is None
    assert copy.copy(first).so_far().mark() == first.so_far().mark()


def test_joint_training_keeps_tasks_that_were_pickled_alone(small_graph: eg.Graph) -> None:
    stream = eg.TaskStream(small_graph, 2)
    found = []
    for copied in (lambda task: task, pickled):
        learner = eg.Learner(eg.GCN(hidden=8), "joint", epochs=3, device="cpu")
        for task in stream:
            learner.learn(copied(task))
        found.append(learner.logits(stream.graph))
    assert torch.equal(*found)


def test_a_stream_of_a_graph_on_disk(small_graph: eg.Graph, tmp_path: Path) -> None:
    stream = eg.TaskStream(read_mapped(write_mapped(small_graph, tmp_path / "folder")), 2)
    for one, other in zip(pickled(stream), stream):
        assert_same_task(one, other)


def test_nodes_are_the_same_ones_in_tasks_pickled_one_by_one(small_graph: eg.Graph) -> None:
    """Forgetting a node that later tasks have too, learned by a process that was sent each task."""
    stream = eg.TaskStream(small_graph, 2, edges_between_tasks=True)
    forgotten = []
    for copied in (lambda task: task, pickled):
        tasks = [copied(task) for task in stream]
        learner = eg.Learner(eg.RandomFeatures(hidden=20), eg.Analytic(), device="cpu")
        for task in tasks:
            learner.learn(task)
        learner.forget(tasks[0].train[:2], [copied(task) for task in tasks])
        forgotten.append(learner.logits(small_graph, torch.arange(60)))
    assert torch.equal(*forgotten)


@COPIES
def test_an_edited_copy_of_a_task_is_another_task(small_graph: eg.Graph, copied: Copied) -> None:
    task = eg.Task.of(small_graph)
    before = task.mark()
    small_graph.x[0] += 1
    found = copied(task)
    assert found.mark() == eg.Task.of(small_graph).mark() != before
