"""Streams: which classes and nodes go where, on which graphs tasks are learned and tested."""

import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import evergraph as eg
from evergraph.data import DATASETS, union
from evergraph.data.arrangement import split_nodes

pytestmark = pytest.mark.filterwarnings("ignore:.*will be in no task")


@pytest.fixture
def skewed() -> eg.Graph:
    """Classes a … f of 10, 30, 20, 5, 4 and 30 nodes, and 11 unlabelled nodes; edges at random."""
    y = np.repeat([0, 1, 2, 3, 4, 5, -1], [10, 30, 20, 5, 4, 30, 11])
    random = np.random.default_rng(2)
    edges = random.integers(0, y.size, (2, 400))
    return eg.make_graph(
        random.standard_normal((y.size, 3)),
        edges,
        random.permutation(y),
        class_names=list("abcdef"),
        undirected=True,
        name="skewed",
    )


def names(stream: eg.TaskStream) -> list[list[object]]:
    return [task.class_names for task in stream]


def members(task: eg.Task, nodes: torch.Tensor) -> set[tuple[float, ...]]:
    """Nodes known by their features, which are all different."""
    return set(map(tuple, task.graph.x[nodes].tolist()))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"classes_per_task": 2}, ["ab", "cd", "f"]),
        ({"classes_per_task": 5}, ["abcdf"]),
        ({"classes_per_task": 2, "min_class_size": 10}, ["ab", "cf"]),
        ({"classes_per_task": 2, "min_class_size": 11}, ["bc", "f"]),
        ({"classes_per_task": 2, "order": "size"}, ["bf", "ca", "d"]),
        ({"classes_per_task": 2, "order": ["f", "a", "b", "d"]}, ["fa", "bd"]),
        ({"classes_per_task": 1, "order": ("f", "a")}, ["f", "a"]),
        ({"order": [["f"], ["a", "c", "b"]]}, ["f", "acb"]),
    ],
)
def test_which_classes_arrive_when(skewed: eg.Graph, options: dict, expected: list[str]) -> None:
    options = {"min_class_size": 5, **options}
    stream = eg.stream(skewed, **options)
    assert names(stream) == [list(group) for group in expected]
    assert stream.num_classes == sum(map(len, expected))
    assert [task.index for task in stream] == list(range(len(expected)))
    # labels are positions in the order of arrival
    for task in stream:
        assert sorted(task.graph.y.unique().tolist()) == task.class_positions


def test_classes_and_unlabelled_nodes_left_out_are_gone(skewed: eg.Graph) -> None:
    stream = eg.stream(skewed, min_class_size=20)
    assert stream.graph.num_nodes == 80
    assert int(stream.graph.y.min()) == 0


def test_classes_that_an_order_leaves_out_are_named(skewed: eg.Graph) -> None:
    with pytest.warns(eg.EvergraphWarning, match=r"order names 2 of \d classes; .*c.* will be in no task"):
        assert [task.class_names for task in eg.stream(skewed, order=["b", "a"])] == [["b", "a"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eg.stream(skewed, order=[["b", "a"]])  # tasks as they are to be


def test_random_orders(skewed: eg.Graph) -> None:
    def order(**options: object) -> list[object]:
        return eg.stream(skewed, min_class_size=5, **options).graph.class_names

    assert order(order="random", seed=3) == order(order="random", seed=3)
    assert len({tuple(order(order="random", seed=seed)) for seed in range(10)}) > 5
    assert order(order="random", seed=3) == order(order="random:3", seed=8)
    assert sorted(order(order="random:1")) == list("abcdf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_task": 0}, "classes_per_task=0 must be None or a whole number of at least 1"),
        ({"classes_per_task": -1}, "classes_per_task=-1 must be None or a whole number of at least 1"),
        ({"classes_per_task": 6}, "classes_per_task=6 is impossible with 5 classes"),
        ({"min_class_size": 0}, "class 'e' has 4 nodes, too few to split 60/20/20; .*min_class_size"),
        ({"min_class_size": 31}, r"no class has 31 nodes or more \(the largest has 30\)"),
        ({"order": "alphabetical"}, "unknown class order 'alphabetical'; choose one of: labelled, random"),
        ({"order": "random:x"}, "unknown class order 'random:x'"),
        ({"order": "random:"}, "unknown class order 'random:'"),
        ({"order": ["a", "z"]}, "unknown class in the order 'z'; choose one of: a, b, c, d, f"),
        ({"order": ["a", "e"]}, "unknown class in the order 'e'"),  # too small, so not there
        ({"order": [["a", "b", "b"], ["c"]]}, "class 'b' is given twice"),
        ({"order": ["a", "b", "a"]}, "class 'a' is given twice"),
        ({"order": [["a"], []]}, "task 2 of the order has no class"),
        ({"order": []}, "the class order is empty"),
        ({"test_graph": "whole"}, "unknown test graph 'whole'; choose one of: task, seen"),
    ],
)
def test_impossible_streams(skewed: eg.Graph, options: dict, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.stream(skewed, **{"min_class_size": 5, **options})


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(eg.EvergraphError, match=r"unknown stream 'coauthors'; choose one of: digits, coauthor-cs"):
        eg.stream("coauthors")


def test_the_split_is_sixty_twenty_twenty_of_each_class(skewed: eg.Graph) -> None:
    for task in eg.stream(skewed, min_class_size=5):
        pieces = [set(part.tolist()) for part in (task.train, task.val, task.test)]
        assert set.union(*pieces) == set(range(task.graph.num_nodes))
        assert sum(map(len, pieces)) == task.graph.num_nodes  # no node twice
        for position in task.class_positions:
            size = int((task.graph.y == position).sum())
            shares = [int((task.graph.y[part] == position).sum()) for part in (task.train, task.val, task.test)]
            assert shares[:2] == [size * 3 // 5, size // 5]


@pytest.mark.parametrize("size", [5, 6, 7, 9, 10, 35, 99, 155])
def test_split_sizes_are_whole_number_arithmetic(size: int) -> None:
    graph = eg.make_graph(np.eye(size), np.zeros((2, 0), int), np.zeros(size, int))
    train, val, test = (part.numel() for part in split_nodes(graph, [0], 0))
    assert (train, val, test) == (size * 3 // 5, size // 5, size - size * 3 // 5 - size // 5)


def test_the_split_depends_on_the_seed_alone(skewed: eg.Graph) -> None:
    """Not on the order of the classes, nor on which other classes there are, nor on the task size."""

    def split(**options: object) -> dict[str, set[tuple[float, ...]]]:
        stream = eg.stream(skewed, **{"min_class_size": 5, **options})
        parts = {"train": set(), "val": set(), "test": set()}
        for task in stream:
            for key, found in parts.items():
                nodes = getattr(task, key)
                named = zip(task.class_positions, task.class_names)
                own = [nodes[task.graph.y[nodes] == position] for position, name in named if name in "bf"]
                found |= members(task, torch.cat([*own, nodes[:0]]))
        return parts

    reference = split()
    assert split(order="size") == reference
    assert split(order="random", seed=0) == reference
    assert split(order=[["f"], ["b", "a"]]) == reference
    assert split(classes_per_task=3, min_class_size=20) == reference
    other = split(seed=1)
    assert other != reference
    shared = len(other["test"] & reference["test"])
    assert shared < len(reference["test"]) / 2


def test_edges_between_tasks_dropped(small_stream: eg.TaskStream) -> None:
    for task in small_stream:
        own = torch.isin(small_stream.graph.y, torch.tensor(task.class_positions)).nonzero().reshape(-1)
        expected = small_stream.graph.subgraph(own)
        assert torch.equal(task.graph.edge_index, expected.edge_index)
        assert torch.equal(task.graph.x, expected.x)


def test_edges_between_tasks_kept(small_graph: eg.Graph) -> None:
    stream = eg.TaskStream(small_graph, 2, edges_between_tasks=True)
    alone = eg.TaskStream(small_graph, 2)
    for task, lonely in zip(stream, alone):
        so_far = (stream.graph.y <= task.class_positions[-1]).nonzero().reshape(-1)
        assert torch.equal(task.graph.edge_index, stream.graph.subgraph(so_far).edge_index)
        # trained and tested are the task's own nodes alone, the same as without the edges
        for part in ("train", "val", "test"):
            nodes, own = getattr(task, part), getattr(lonely, part)
            assert members(task, nodes) == members(lonely, own)
    assert stream[2].graph.num_edges > sum(task.graph.num_edges for task in alone)


def test_test_graph_task(small_stream: eg.TaskStream) -> None:
    for after in range(3):
        for index in range(after + 1):
            graph, nodes = small_stream.tests(after, index)
            assert graph is small_stream[index].graph
            assert nodes is small_stream[index].test


def test_test_graph_seen(small_graph: eg.Graph) -> None:
    stream, alone = eg.TaskStream(small_graph, 2, test_graph="seen"), eg.TaskStream(small_graph, 2)
    for after in range(3):
        so_far = (stream.graph.y <= stream[after].class_positions[-1]).nonzero().reshape(-1)
        expected = stream.graph.subgraph(so_far)
        for index in range(after + 1):
            graph, nodes = stream.tests(after, index)
            assert torch.equal(graph.edge_index, expected.edge_index)
            assert set(map(tuple, graph.x[nodes].tolist())) == members(alone[index], alone[index].test)
    # tasks themselves are still learned on their own graphs
    assert torch.equal(stream[1].graph.edge_index, alone[1].graph.edge_index)


def test_candidates(small_graph: eg.Graph) -> None:
    by_class = eg.TaskStream(small_graph, 2)
    by_task = eg.TaskStream(small_graph, 2, task_incremental=True)
    assert by_class.candidates(1, 0) == [0, 1, 2, 3]
    assert by_task.candidates(1, 0) == [0, 1]
    assert by_class.protocol()["scenario"] == "class-incremental"
    assert by_task.protocol()["scenario"] == "task-incremental"


@pytest.mark.parametrize(("options", "joined"), [({}, False), ({"test_graph": "seen"}, True)])
def test_all_tasks_so_far_hold_all_data_so_far(small_graph: eg.Graph, options: dict, joined: bool) -> None:
    stream = eg.TaskStream(small_graph, 2, **options)
    joint = [stream.so_far(index) for index in range(len(stream))]
    assert len(joint) == 3
    for index, task in enumerate(joint):
        assert task.class_positions == list(range(2 * index + 2))
        for part in ("train", "val", "test"):
            everything = set.union(*(members(t, getattr(t, part)) for t in list(stream)[: index + 1]))
            assert members(task, getattr(task, part)) == everything
            assert stream[index].so_far is not None
            assert torch.equal(getattr(stream[index].so_far(), part), getattr(task, part))
        apart = sum(t.graph.num_edges for t in list(stream)[: index + 1])
        assert (task.graph.num_edges > apart) == (joined and index > 0)
        assert joined or task.graph.num_edges == apart
    assert stream[-1].so_far is not None
    assert torch.equal(stream[-1].so_far().train, joint[2].train)


def test_the_union_of_tasks_is_their_graphs_side_by_side(small_graph: eg.Graph) -> None:
    """What the stream itself gives, where its tasks keep their own graphs; other names and orders are matched."""
    stream = eg.TaskStream(small_graph, 2)
    whole, theirs = union(list(stream)), stream.so_far(2)
    assert whole.class_names == theirs.class_names
    assert whole.graph.num_edges == theirs.graph.num_edges
    for part in ("train", "val", "test"):
        nodes, others = getattr(whole, part), getattr(theirs, part)
        assert members(whole, nodes) == members(theirs, others)
        by_features = {tuple(theirs.graph.x[node].tolist()): int(theirs.graph.y[node]) for node in others}
        assert all(by_features[tuple(whole.graph.x[node].tolist())] == int(whole.graph.y[node]) for node in nodes)
    first = eg.make_graph(
        np.eye(3), np.array([[0], [1]]), np.array([0, 1, -1]), class_names=["a", "b"], undirected=False
    )
    second = eg.make_graph(
        np.ones((2, 3)), np.array([[1], [0]]), np.array([1, 0]), class_names=["c", "a"], undirected=False
    )
    both = union([eg.Task.of(graph, hold_out=False) for graph in (first, second)])
    assert (both.graph.class_names, both.class_names) == (["a", "b", "c"], ["a", "b", "c"])
    assert both.graph.y.tolist() == [0, 1, -1, 0, 2]
    assert both.graph.edge_index.tolist() == [[0, 4], [1, 3]]
    assert both.train.tolist() == [0, 1, 3, 4]


def test_tasks_are_a_sequence(small_stream: eg.TaskStream) -> None:
    assert len(small_stream) == len(list(small_stream)) == 3
    assert small_stream[-1] is small_stream[2]
    with pytest.raises(IndexError):
        small_stream[3]
    assert repr(small_stream[0]).startswith("Task(0, classes=[0, 1], nodes=")
    assert repr(small_stream) == "TaskStream('sbm', 3 tasks, 6 classes, 60 nodes)"


@pytest.mark.parametrize(
    ("options", "per_task", "order"),
    [
        ({}, 2, "labelled"),
        ({"order": "random:4"}, 2, "random:4"),
        ({"order": ["f", "c", "a"]}, 2, ["f", "c", "a"]),
        ({"order": [["f", "c", "a"], ["b"]]}, [3, 1], ["f", "c", "a", "b"]),
    ],
)
def test_the_protocol_says_how_the_stream_was_cut(
    skewed: eg.Graph, options: dict, per_task: object, order: object
) -> None:
    protocol = eg.stream(skewed, min_class_size=5, **options).protocol()
    assert (protocol["classes_per_task"], protocol["order"], protocol["min_class_size"]) == (per_task, order, 5)
    assert protocol["split"] == "60/20/20 per class"


def test_presets_have_the_papers_configuration() -> None:
    cut = {name: (preset.classes_per_task, preset.min_class_size) for name, preset in DATASETS.items()}
    assert cut["coauthor-cs"] == (3, 0)
    assert cut["corafull"] == (9, 151)  # more than 150 nodes
    assert cut["arxiv"] == (6, 411)  # more than 410 nodes
    assert cut["digits"] == (2, 0)


def test_the_default_stream_is_digits() -> None:
    stream = eg.stream()
    assert (stream.name, len(stream), stream.num_classes) == ("digits", 5, 10)


def test_a_stream_from_a_pyg_object_with_names() -> None:
    graph = eg.stream("sbm:nodes=100,classes=4").graph
    data = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, class_names=["red", "green", "blue", "grey"])
    stream = eg.stream(data, order=["grey", "red", "blue", "green"])
    assert names(stream) == [["grey", "red"], ["blue", "green"]]


def test_a_stream_from_a_path(small_graph: eg.Graph, tmp_path) -> None:
    data = Data(x=small_graph.x, edge_index=small_graph.edge_index, y=small_graph.y)
    torch.save(data, tmp_path / "mine.pt")
    assert eg.stream(tmp_path / "mine.pt").name == "mine"
    assert len(eg.stream(str(tmp_path / "mine.pt"), classes_per_task=3)) == 2


def test_a_task_of_everything_in_a_graph(skewed: eg.Graph) -> None:
    stream = eg.stream(skewed, min_class_size=5)
    kept = skewed.subgraph((skewed.y != 4).nonzero().reshape(-1))
    task = eg.Task.of(kept, seed=0)
    assert task.class_names == list("abcdf")
    # the same nodes as in a stream with the same seed
    union = set.union(*(members(t, t.test) for t in stream))
    assert set(map(tuple, task.graph.x[task.test].tolist())) == union
