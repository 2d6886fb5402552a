"""Graphs edited in place: nothing computed from their earlier contents is used again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.sparse as sp
import torch
from torch import nn

import evergraph as eg
from evergraph.core.edits import Contents
from evergraph.core.sparse import SparseMatrix
from evergraph.data.files import content_mark
from evergraph.data.mapped import read_mapped, write_mapped

Edit = Callable[[eg.Graph], None]


class Plain(eg.GraphModel):
    """A model without an input key: what it propagates is cached for it alone."""

    def setup(self, in_channels: int, out_channels: int) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.ones(in_channels, out_channels))

    def logits(self, batch: object) -> torch.Tensor:
        return batch.x @ self.weight

    def inputs(self, graph: eg.Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple:
        return operator @ graph.x if isinstance(graph.x, torch.Tensor) else operator @ graph.x.dense(), 0


def negate_a_row(graph: eg.Graph) -> None:
    values = graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x[3]
    values[:9].mul_(-5)


def replace_features(graph: eg.Graph) -> None:
    graph.x = graph.x.with_values(-graph.x.values) if isinstance(graph.x, SparseMatrix) else -graph.x


def weigh_edges(graph: eg.Graph) -> None:
    graph.adjacency.values[::2] = 7.0


def redirect_edges(graph: eg.Graph) -> None:
    graph.adjacency.indices.copy_((graph.adjacency.indices + 1) % graph.num_nodes)


LEARNERS: dict[str, Callable[[], eg.Learner]] = {
    "auto": lambda: eg.Learner(device="cpu"),
    "analytic": lambda: eg.Learner(eg.RandomFeatures(hidden=40), eg.Analytic(), device="cpu"),
    "gcn": lambda: eg.Learner(eg.GCN(hidden=8), epochs=2, method="finetune", device="cpu"),
    "gin": lambda: eg.Learner(eg.GIN(hidden=8), epochs=2, method="finetune", device="cpu"),
    "own": lambda: eg.Learner(Plain(), epochs=1, method="finetune", device="cpu"),
}


def with_words(graph: eg.Graph, sparse: bool) -> eg.Graph:
    x = sp.csr_matrix(graph.x.clamp(min=0).numpy()) if sparse else graph.x.clone()
    return eg.make_graph(x, graph.edge_index, graph.y, undirected=True)


@pytest.mark.parametrize("edit", [negate_a_row, replace_features, weigh_edges, redirect_edges])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", LEARNERS)
def test_predictions_read_the_contents_of_now(small_graph: eg.Graph, name: str, sparse: bool, edit: Edit) -> None:
    graph = with_words(small_graph, sparse)
    learner, nodes = LEARNERS[name](), torch.arange(graph.num_nodes)
    learner.learn(eg.Task.of(graph))
    before = learner.logits(graph, nodes).clone()
    edit(graph)
    after = learner.logits(graph, nodes)
    afresh = SparseMatrix(*(part.clone() for part in graph.adjacency.parts()), graph.num_nodes)
    x = graph.x.bare() if sparse else graph.x.clone()
    torch.testing.assert_close(after, learner.logits(graph.altered(x=x, adjacency=afresh), nodes))
    assert not torch.allclose(before, after)


def test_what_was_computed_of_edited_edges_is_not_taken_over(small_graph: eg.Graph) -> None:
    small_graph.adjacency.t()
    small_graph.adjacency.values.mul_(3)
    named = small_graph.altered(name="named")
    assert torch.equal(named.adjacency.t().dense(), named.adjacency.dense().T)


def test_an_altered_copy_of_edited_files_is_not_read_from_them_again(small_graph: eg.Graph, tmp_path: Path) -> None:
    graph = read_mapped(write_mapped(small_graph, tmp_path / "folder"))
    graph.x[0] = 1
    with pytest.raises(eg.EvergraphError, match="no longer those on disk"):
        copy.deepcopy(graph.altered(y=graph.y.flip(0)))


def test_an_unedited_graph_is_propagated_once(small_graph: eg.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, nodes = LEARNERS["gcn"](), torch.arange(3)
    learner.learn(eg.Task.of(small_graph))
    learner.predict(small_graph, nodes)
    monkeypatch.setattr(eg.GCN, "inputs", lambda *_: pytest.fail("propagated again"))
    small_graph.y[0] = -1  # labels are not among what is propagated
    learner.predict(small_graph, nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edits_of_the_tensor_that_a_graph_was_made_of_are_noticed(small_graph: eg.Graph, dtype: torch.dtype) -> None:
    x = nn.Parameter(small_graph.x.to(dtype))
    graph = eg.make_graph(x, small_graph.edge_index, small_graph.y)
    cache = graph.cache
    with torch.no_grad():
        x[2] = 0
    assert graph.x[2].tolist() == [0] * 8
    assert graph.cache is not cache
    assert not graph.x.requires_grad


def test_a_graph_made_in_inference_mode_works(small_graph: eg.Graph) -> None:
    with torch.inference_mode():
        graph = eg.make_graph(small_graph.x + 0, small_graph.edge_index, small_graph.y)
    learner = LEARNERS["gcn"]()
    learner.learn(eg.Task.of(graph))
    assert len(learner.predict(graph)) == graph.num_nodes


def test_contents_are_known_by_tensor_and_edit() -> None:
    one, other = torch.zeros(2), torch.zeros(2)
    noted = Contents([one, other])
    assert noted.are_those_of([one, other])
    assert not noted.are_those_of([other, one])
    assert not noted.are_those_of([one])
    one.view(1, 2)[0, 0] = 1  # through a view
    assert not noted.are_those_of([one, other])


def test_a_task_edited_in_place_has_another_mark(small_graph: eg.Graph) -> None:
    task = eg.Task.of(small_graph)
    marks = [task.mark(), task.mark()]
    task.graph.x[5] += 1
    marks.append(task.mark())
    task.train = task.train[1:]
    marks.append(task.mark())
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3
    fresh = eg.Task.of(small_graph)
    fresh.train = task.train
    assert fresh.mark() == marks[-1]


def test_the_hash_that_convert_wrote_is_not_that_of_an_edited_graph(small_graph: eg.Graph, tmp_path: Path) -> None:
    graph, unedited = (read_mapped(write_mapped(small_graph, tmp_path / name)) for name in ("one", "other"))
    graph.x[0] += 1
    assert content_mark(graph) != content_mark(unedited)
    assert eg.Task.of(graph).mark() != eg.Task.of(unedited).mark()


def test_labels_edited_after_convert_have_another_hash(small_graph: eg.Graph, tmp_path: Path) -> None:
    graph, unedited = (read_mapped(write_mapped(small_graph, tmp_path / name)) for name in ("one", "other"))
    propagated = graph.cache
    graph.y[0] = -1
    assert content_mark(graph) != content_mark(unedited)
    assert graph.cache is propagated  # labels are not among what is propagated


@pytest.mark.parametrize("edit", [lambda graph: graph.x.mul_(-5), replace_features, weigh_edges])
@pytest.mark.parametrize("test_graph", ["task", "seen", "node"])
def test_a_stream_cuts_its_tasks_from_the_contents_of_now(small_graph: eg.Graph, test_graph: str, edit: Edit) -> None:
    stream = eg.TaskStream(small_graph, 2)
    before, task = stream.tests(1, 0, test_graph), stream[0]
    marks = stream[1].mark(), stream.so_far(1).mark()
    assert stream[0] is task
    assert stream.tests(1, 0, test_graph)[0] is before[0]
    edit(stream.graph)
    now, copied = stream.tests(1, 0, test_graph), copy.deepcopy(stream)
    assert torch.equal(now[1], before[1])  # the division stays
    same = torch.equal(now[0].x, before[0].x), torch.equal(now[0].adjacency.values, before[0].adjacency.values)
    assert not all(same)
    assert torch.equal(now[0].x, copied.tests(1, 0, test_graph)[0].x)
    assert marks != (stream[1].mark(), stream.so_far(1).mark())
    assert (copied[1].mark(), copied.so_far(1).mark()) == (stream[1].mark(), stream.so_far(1).mark())
    assert stream[0] is not task
    assert stream[0] is stream[0]


def test_a_learner_is_measured_on_the_edited_graph_of_a_stream(small_stream: eg.TaskStream) -> None:
    stream = copy.deepcopy(small_stream)
    learner = LEARNERS["auto"]().fit(stream)
    before = learner.evaluate(stream).ap
    stream.graph.x.zero_()
    assert learner.evaluate(stream).ap < before


def test_labels_of_a_stream_may_be_edited_as_long_as_they_fit_its_tasks(small_graph: eg.Graph) -> None:
    stream = eg.TaskStream(small_graph, 2)
    train, split = stream[0].train, stream._part.clone()
    node = int(train[stream[0].graph.y[train] == 0][0])
    examples = torch.nonzero(stream._task_of == 0).reshape(-1)
    stream.graph.y[examples[node]] = 1
    assert stream[0].graph.y[node] == 1
    assert torch.equal(stream._part, split)
    for label in (-1, 2):  # no label, and one of the next task
        stream.graph.y[examples[node]] = label
        for asked in (lambda: stream[0], lambda: stream.seen(1), lambda: stream.so_far(1), lambda: copy.copy(stream)):
            with pytest.raises(eg.EvergraphError, match="labels were edited, and no longer fit the tasks"):
                asked()


def by_year(labels: list[int], splits: list[int], years: list[int]) -> eg.TaskStream:
    """A stream of two years, whose nodes are in a circle."""
    number = len(labels)
    ring = torch.stack([torch.arange(number), (torch.arange(number) + 1) % number])
    x, y, known = torch.eye(number), torch.tensor(labels), {"year": years}
    return eg.TaskStream(eg.make_graph(x, ring, y, undirected=True, attributes=known, splits=splits), by="year")


@pytest.mark.parametrize("ask", [lambda stream: stream[0], copy.deepcopy, lambda stream: stream.first(1)])
def test_features_of_a_stream_with_unlabelled_nodes_may_be_edited(
    small_graph: eg.Graph, ask: Callable[[eg.TaskStream], eg.Task | eg.TaskStream]
) -> None:
    y = torch.where(torch.arange(60) % 5 == 0, -1, small_graph.y)
    years = {"year": (torch.arange(60) % 2).tolist()}
    x = small_graph.x
    graph = eg.make_graph(x.clone(), small_graph.edge_index, y, undirected=True, attributes=years)
    stream = eg.stream(graph, by="year")
    train = stream[0].train
    stream.graph.x.mul_(2)
    found = ask(stream)
    task = found if isinstance(found, eg.Task) else found[0]
    assert torch.equal(task.graph.x, 2 * x[::2])
    assert torch.equal(task.train, train)
    assert int((task.graph.y < 0).sum()) == 6
    stream.graph.y[0] = 1  # it has no part, and would never be learned
    with pytest.raises(eg.EvergraphError, match="labels were edited, and no longer fit the tasks"):
        ask(stream)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_no_label_may_become_one_of_another_task(small_graph: eg.Graph, part: str) -> None:
    stream = eg.TaskStream(small_graph, 2)
    node = int(torch.nonzero(stream._task_of == 0).reshape(-1)[getattr(stream[0], part)[0]])
    before = int(stream.graph.y[node])
    stream.graph.y[node] = 1 - before
    assert int((stream[0].graph.y[getattr(stream[0], part)] == 1 - before).sum()) > 0
    stream.graph.y[node] = 2
    with pytest.raises(eg.EvergraphError, match="labels were edited, and no longer fit the tasks"):
        _ = stream[0]
    stream.graph.y[node] = before
    assert torch.equal(stream[0].graph.y, eg.TaskStream(small_graph, 2)[0].graph.y)


def test_validation_examples_come_back_with_their_labels() -> None:
    """Class 2 is only tested in the first year, and trained from the second on: no head scored then can know it."""
    labels, splits = [0, 1, 0, 1, 2, 0, 2, 1, 0], [0, 0, 1, 1, 2, 0, 0, 0, 1]
    stream = by_year(labels, splits, [1, 1, 1, 1, 1, 2, 2, 2, 2])
    assert stream[0].val.tolist() == [2, 3]
    stream.graph.y[2] = 2
    assert stream[0].val.tolist() == [3]
    assert copy.deepcopy(stream)[0].val.tolist() == [3]
    stream.graph.y[2] = 0
    assert stream[0].val.tolist() == stream.first(1)[0].val.tolist() == [2, 3]


def test_the_hash_of_an_edited_stream_is_unknown() -> None:
    stream = eg.stream("sbm:nodes=60,classes=4,features=8")
    assert stream.graph_mark == eg.stream("sbm:nodes=60,classes=4,features=8").graph_mark != ""
    stream.graph.x[0] += 1
    assert stream.graph_mark == ""
