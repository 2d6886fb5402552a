"""Forgetting in graphs that grow, with ids and without: what cannot be recognized or is not given is told, and can be
done later.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evergraph as eg

pytestmark = pytest.mark.filterwarnings("ignore:heads are as if these")

PEOPLE = 100
UNSEARCHED = "where the data hold these nodes too, as examples or neighbours, what was learned from them stands"
SIZES = (60, 80, 100)


def day(number: int, *, ids: bool = False, alike: bool = False, labelled: Any = None, seed: int = 0) -> eg.Graph:
    """The first people, with labels at those that are new or at those `labelled`.

    Features may be those of six kinds (`alike`).
    """
    random = np.random.default_rng(0)
    y = np.arange(PEOPLE) % 4
    x = 2 * random.normal(size=(4, 6))[y] + random.normal(size=(PEOPLE, 6))
    if alike:
        x = np.eye(6)[random.integers(0, 6, PEOPLE)]
    ends = np.random.default_rng(seed).integers(0, PEOPLE, (2, 500))
    size, before = SIZES[number], SIZES[number - 1] if number else 0
    told = np.full(size, -1)
    new = np.arange(before, size) if labelled is None else np.array(labelled)
    told[new] = y[new]
    return eg.make_graph(
        x[:size],
        ends[:, (ends < size).all(0)],
        told,
        class_names=list("abcd"),
        undirected=True,
        name=f"day{number + 1}",
        attributes={"id": [f"u{i}" for i in range(size)]} if ids else {},
    )


def made(*data: Any) -> eg.Learner:
    learner = eg.Learner(eg.RandomFeatures(hidden=60), eg.Auto(balance=0.0), dtype=torch.float64)
    for some in data:
        learner.learn(some)
    return learner


def never(gone: torch.Tensor, *data: Any) -> eg.Learner:
    """A learner of days that never had some nodes."""
    return made(*(eg.Task.of(some).without(gone[gone < some.num_nodes]) for some in data))


def left(found: eg.Learner, wanted: eg.Learner, graph: eg.Graph) -> float:
    assert found.classes_ == wanted.classes_
    return float((found.logits(graph) - wanted.logits(graph)).abs().max())


def told(learner: eg.Learner, *words: Any, **options: Any) -> tuple[int, list[str]]:
    """What `forget` returns, and what it notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = learner.forget(*words, **options)
    return count, [str(one.message) for one in caught]


@pytest.mark.parametrize("ids", ["all", "none", "first", "last"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_node_leaves_all_graphs_that_have_grown(ids: str, turned: bool) -> None:
    """Without ids, one graph begins with the nodes of the other: their features are the same, row by row."""
    days = [day(number, ids=ids in ("all", {0: "first", 2: "last"}.get(number))) for number in range(3)]
    found, gone = made(*days), torch.tensor([3])
    count, said = told(found, gone, days[::-1] if turned else days)
    assert (count, said) == (1, [])
    assert left(found, never(gone, *days), day(2)) < 1e-8


def test_a_class_leaves_all_graphs_that_have_grown() -> None:
    days = [day(0), day(1)]
    gone = torch.nonzero(days[1].y == 0).reshape(-1)
    gone = torch.cat([torch.nonzero(days[0].y == 0).reshape(-1), gone])
    found = made(*days)
    count, said = told(found, classes=["a"], data=days)
    assert (count, said) == (gone.numel(), [])
    assert left(found, never(gone, *days), day(1)) < 1e-8


def test_other_edges_among_the_same_nodes_do_not_hide_them() -> None:
    days, gone = [day(0), day(1, seed=1)], torch.tensor([3])
    found = made(*days)
    assert told(found, gone, days) == (1, [])
    assert left(found, never(gone, *days), days[1]) < 1e-8


def test_nodes_that_nothing_tells_apart_are_told_and_forgotten_once_they_have_ids() -> None:
    """Features of a few kinds may be the same by chance; ids may be added to data that were learned without them."""
    days, gone = [day(number, alike=True) for number in range(3)], torch.tensor([3])
    found, wanted = made(*days), never(gone, *days)
    count, said = told(found, gone, days)
    assert count == 1
    assert [note for note in said if UNSEARCHED in note] == said
    assert said[0].startswith(f"tasks 2 (day2) and 3 (day3): {UNSEARCHED}, since nothing tells which nodes are the")
    assert left(found, wanted, days[2]) > 1e-7
    named = [day(number, alike=True, ids=True) for number in range(3)]
    count, said = told(found, [], named)
    assert (count, said) == (1, [])
    assert left(found, wanted, days[2]) < 1e-8


@pytest.mark.parametrize("keep_in_graph", [False, True])
@pytest.mark.parametrize("ids", [False, True])
def test_data_that_are_not_given_are_named_with_and_without_ids(ids: bool, keep_in_graph: bool) -> None:
    days = [day(number, ids=ids, labelled=range(0, SIZES[number], 2)) for number in range(3)]
    found, gone = made(*days), torch.tensor([4])
    _, said = told(found, gone, days[1], keep_in_graph=keep_in_graph)
    how = "as examples" if keep_in_graph else "as examples or neighbours"
    assert any(note.startswith(f"the data of tasks 1 (day1) and 3 (day3) are not given: where they hold these nodes "
                               f"too, {how}, what was") for note in said)  # fmt: skip
    count, said = told(found, [], days)  # what was asked for then is done now
    assert (count, said) == (1, [])
    wanted = made(*(eg.Task.of(some).without(gone, keep_in_graph=keep_in_graph) for some in days))
    assert left(found, wanted, days[2]) < 1e-8
    assert told(found, [], days)[1][0].startswith("nothing was forgotten")


def test_tasks_of_a_stream_without_edges_between_them_share_nothing() -> None:
    """Nothing is said of them, even if the stream is made again, as in another process."""
    graph = day(2, labelled=range(PEOPLE))
    stream, again = (eg.TaskStream(graph, 2) for _ in range(2))
    found = made(*stream)
    nodes = stream[1].train[:2]
    assert told(found, nodes, again[1]) == (2, [])
    assert told(found, again[0].train[:1], [stream[0], again[1]]) == (1, [])


def test_a_node_read_by_a_later_task_of_a_joined_stream_is_an_example_of_an_earlier_one() -> None:
    stream = eg.TaskStream(day(2, labelled=range(PEOPLE)), 2, edges_between_tasks=True)
    found = made(*stream)
    number = int(stream[0].origin[1][stream[0].train[0]])
    neighbour = torch.nonzero(stream[1].origin[1] == number).reshape(-1)
    _, said = told(found, neighbour, stream[1])
    assert any(note.startswith("the data of task 1 (day3) are not given") for note in said)


def test_a_class_that_is_gone_is_followed_into_data_that_come_later(evergraph, tmp_path: Path) -> None:
    """The note asks for the data of task 2: giving them with the same call, or with any other, completes it."""
    days = [day(0), day(1, labelled=[i for i in range(60, 80) if day(1).y[i] != 0])]
    gone = torch.nonzero(days[0].y == 0).reshape(-1)
    for call in ({"classes": ["a"]}, {"nodes": []}, {"nodes": [70]}):
        found = made(*days)
        _, said = told(found, classes=["a"], data=days[0])
        assert any(note.startswith("the data of task 2 (day2) are not given") for note in said)
        assert "a" not in found.classes_
        found.save(tmp_path / "kept")
        found = eg.Learner.load(tmp_path / "kept")
        given = days[::-1] if call == {"nodes": [70]} else days
        _, said = told(found, data=given, **call)
        assert said == []
        extra = torch.tensor([70] if call == {"nodes": [70]} else [], dtype=torch.long)
        assert left(found, never(torch.cat([gone, extra]), *days), days[1]) < 1e-8
    with pytest.raises(eg.EvergraphError, match="knows no class 'e'"):
        found.forget(classes=["e"], data=days)


@pytest.mark.parametrize("first", [True, False])
def test_a_task_that_is_wholly_gone_is_followed_into_later_data_too(first: bool) -> None:
    """Its data are recognized as long as something of them may be left in other tasks; then they are left out."""
    days = [day(0), day(1), day(2)]
    found, gone = made(*days), torch.arange(60)
    _, said = told(found, gone, days[0])
    assert found.num_tasks == 2
    assert any("tasks 1 (day2) and 2 (day3) are not given" in note for note in said)
    assert any("the data of tasks 1 (day2) and 2 (day3) in one list" in note for note in said)  # numbered alike
    count, said = told(found, gone if first else [], days if first else days[::-1])
    assert (count, said) == (60, [])
    assert left(found, never(gone, *days[1:]), days[2]) < 1e-8
    count, said = told(found, torch.tensor([70]), [days[1], days[2], days[0]])
    assert count == 1
    assert said == [
        "left out: day1; this learner did not learn from it, it has changed since, or all of it was forgotten"
    ]
    with pytest.raises(eg.EvergraphError, match="day1 is not data that this learner learned from"):
        found.forget(torch.tensor([3]), days)  # numbered in the first, which is not known
    assert told(found, [], days)[1][1].startswith("nothing was forgotten")


def test_all_tasks_that_are_missing_are_named() -> None:
    days = [day(number, labelled=range(0, SIZES[number], 2)) for number in range(3)]
    found = eg.Learner(eg.RandomFeatures(hidden=60), "auto").fit(days)
    with pytest.raises(
        eg.EvergraphError, match=r"'a' was learned in tasks 1 \(day1\) and 3 \(day3\) too; give the data"
    ):
        found.forget(classes=["a"], data=days[1])
    with pytest.raises(eg.EvergraphError, match=r"tasks 2 \(day2\) and 3 \(day3\) had examples of the same classes"):
        found.forget(torch.arange(10), days[0])


def test_on_the_command_line_what_is_left_is_completed_without_a_selection(evergraph, tmp_path: Path) -> None:
    days = [day(0), day(1)]
    paths = []
    for some in days:
        paths.append(tmp_path / f"{some.name}.npz")
        np.savez(paths[-1], x=some.x, edge_index=some.edge_index, y=some.y)
    words = ("--checkpoint", tmp_path / "kept")
    for path in paths:
        assert evergraph("learn", path, *words, "--hidden", "20", "--set", "balance=0", "--undirected")[0] == 0
    empty = ("forget", paths[0], "--later", paths[1], *words, "--undirected")
    status, _, error = evergraph(*empty)
    assert (status, "say what to forget: --nodes 3,17 or --classes spam" in error) == (2, True)
    assert evergraph("forget", paths[0], *words, "--nodes", "3", "--undirected")[0] == 0
    status, out, error = evergraph(*empty)
    assert (status, out.split(";")[0]) == (0, "forgot 1 node")
    assert "note" not in error


def test_what_is_done_is_not_left_any_more() -> None:
    """Also where the data that were missing turn out to hold none of the nodes."""
    days = [day(0), day(1)]
    found = made(*days)
    found.forget(torch.tensor([70]), days[1])
    assert "left_to_forget" in found.records[0]
    assert told(found, [], days)[0] == 0
    assert not any("left_to_forget" in record for record in found.records)


def test_streams_of_other_contents_have_other_numbers() -> None:
    """Same name, sizes and labels: what tells the streams apart are features, edges, or how they are divided."""
    y = [0, 1, 2, 3] * 5
    x = torch.arange(40.0).reshape(20, 2)
    edges = [[number, (number + 1) % 20] for number in range(20)]
    others = [[number, (number + 3) % 20] for number in range(20)]
    graphs = [
        eg.make_graph(features, torch.tensor(pairs).T, y, undirected=True)
        for features, pairs in ((x, edges), (x, edges), (x + 1, edges), (x, others))
    ]
    streams = [eg.TaskStream(graph, 2) for graph in graphs] + [eg.TaskStream(graphs[0], 2, order=[1, 2, 3, 0])]
    first, again, *different = [stream[0].origin[0] for stream in streams]
    assert first == again
    assert len({first, *different}) == 4
