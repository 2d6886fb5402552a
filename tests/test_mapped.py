"""Graphs on disk: what comes back is what was written, and training cannot tell."""

import json
import shlex
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse as sp
from typer.testing import CliRunner

import evergraph as eg
from evergraph.cli import make_app
from evergraph.core import mapped_pages
from evergraph.core.features import as_dense
from evergraph.core.mapped_pages import PAGEMAP, release_pages
from evergraph.core.params import copy_params
from evergraph.core.sparse import SparseMatrix
from evergraph.data import mapped
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph, make_graph
from evergraph.data.mapped import read_mapped, write_mapped, write_mapped_blocks
from evergraph.data.parts import read_parts, write_parts
from evergraph.errors import EvergraphError
from evergraph.persistence.reading import read_record, write_record


def with_words(graph: Graph) -> Graph:
    x = sp.random(graph.num_nodes, 9, 0.3, format="csr", rng=0, dtype="float32")
    return make_graph(x, graph.edge_index, graph.y, class_names=[f"c{i}" for i in range(graph.num_classes)])


@pytest.mark.parametrize("sparse", [True, False])
def test_a_graph_comes_back_as_it_was(small_graph: Graph, sparse: bool, tmp_path: Path) -> None:
    graph = with_words(small_graph) if sparse else small_graph
    found = read_mapped(write_mapped(graph, tmp_path / "graph"))
    assert found.on_disk
    assert found.class_names == graph.class_names
    assert found.name == graph.name
    assert isinstance(found.x, SparseMatrix) is sparse
    assert torch.equal(as_dense(found.x), as_dense(graph.x))
    assert torch.equal(found.adjacency.dense(), graph.adjacency.dense())
    assert torch.equal(found.y, graph.y)


@pytest.mark.parametrize(("sparse", "model"), [(True, eg.GCN), (False, eg.GraphSAGE)])
def test_training_from_disk_is_training_from_memory(
    small_graph: Graph, sparse: bool, model: type, tmp_path: Path
) -> None:
    graph = with_words(small_graph) if sparse else small_graph
    write_mapped(graph, tmp_path / "graph")

    def trained(source: object) -> tuple[dict[str, torch.Tensor], list[float]]:
        stream = eg.stream(source, classes_per_task=2, min_class_size=5)
        learner = eg.Learner(model(hidden=5), eg.OnlineCurvature(), epochs=2, batch_size=8, device="cpu")
        accuracies = learner.fit(stream).evaluate(stream).accuracies
        return copy_params(learner.model), accuracies

    (found, accuracies), (plain, plain_accuracies) = trained(tmp_path / "graph"), trained(graph)
    assert accuracies == plain_accuracies
    assert plain
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_dropped_classes_and_unlabelled_nodes_belong_to_no_task(small_graph: Graph, tmp_path: Path) -> None:
    small_graph.y[::11] = -1
    write_mapped(small_graph, tmp_path / "graph")
    order = [[4, 1], [0, 3]]  # classes 2 and 5 are left out
    for found, plain in zip(eg.stream(tmp_path / "graph", order=order), eg.stream(small_graph, order=order)):
        assert torch.equal(as_dense(found.graph.x), as_dense(plain.graph.x))
        assert torch.equal(found.graph.adjacency.dense(), plain.graph.adjacency.dense())
        for part in ("train", "val", "test"):
            assert torch.equal(getattr(found, part), getattr(plain, part))


def test_one_task_of_a_graph_on_disk_is_in_memory_at_a_time(small_graph: Graph, tmp_path: Path) -> None:
    stream = eg.stream(write_mapped(small_graph, tmp_path / "graph"))
    for index in range(len(stream)):
        before = stream._tasks.get(index - 1)  # as somebody's variable holds it
        if before is not None:
            before.graph.cache["made of it"] = torch.ones(1)
        stream[index]
        assert list(stream._tasks) == [index]
        assert before is None or not before.graph.cache


def test_testing_holds_one_graph_at_a_time(small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = eg.stream(write_mapped(small_graph, tmp_path / "graph"))
    learner = eg.Learner(eg.GCN(hidden=4), eg.Finetune(), epochs=1, device="cpu")
    for task in stream:
        learner.learn(task)
    del task
    graphs: list[weakref.ref[Graph]] = []
    alive = []
    plain = eg.Learner.outputs

    def watched(self: eg.Learner, graph: Graph, nodes: torch.Tensor) -> torch.Tensor:
        graphs.append(weakref.ref(graph))
        alive.append(sum(known() is not None for known in graphs))
        return plain(self, graph, nodes)

    monkeypatch.setattr(eg.Learner, "outputs", watched)
    assert len(learner.evaluate(stream).accuracies) == len(stream) == len(alive)
    assert max(alive) == 1


@pytest.mark.parametrize("at_once", [7, 2**22])
def test_blocks_make_the_graph_that_memory_makes(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "ROWS_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    edges = random.integers(0, 40, (2, 300))  # many duplicates and some self-loops
    x, y = random.standard_normal((40, 3)).astype(np.float32), random.integers(0, 4, 40)

    def blocks() -> Iterator[np.ndarray]:
        yield from np.array_split(edges, 5, axis=1)

    folder = write_mapped_blocks(
        tmp_path / "graph", features=np.array_split(x, 3), edges=blocks, y=y, num_features=3, class_names=[0, 1, 2, 3]
    )
    found, plain = read_mapped(folder), make_graph(x, edges, y, undirected=True)
    assert torch.equal(found.adjacency.indptr, plain.adjacency.indptr)
    assert torch.equal(found.adjacency.indices, plain.adjacency.indices)
    assert torch.equal(as_dense(found.x), as_dense(plain.x))
    assert sorted(file.name for file in folder.iterdir()) == [
        "graph.json",
        "indices.npy",
        "indptr.npy",
        "x.npy",
        "y.npy",
    ]


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(EvergraphError, match="2 rows of features but 3 labels"):
        write_mapped_blocks(
            tmp_path / "graph",
            features=[np.zeros((2, 1), dtype=np.float32)],
            edges=lambda: [np.zeros((2, 0), dtype=np.int64)],
            y=np.zeros(3, dtype=np.int64),
            num_features=1,
            class_names=[0],
        )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(small_graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(EvergraphError, match="exists; name a folder that does not"):
        write_mapped(small_graph, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_folders_are_one_line(small_graph: Graph, tmp_path: Path) -> None:
    folder = write_mapped(small_graph, tmp_path / "graph")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    for name, content in {
        "graph.json": b"{}",
        "y.npy": whole["y.npy"][:100],
        "indptr.npy": b"",
        "indices.npy": whole["indices.npy"][:200],
        "x.npy": whole["y.npy"],
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(EvergraphError, match="damaged"):
            read_mapped(folder)
        (folder / name).write_bytes(whole[name])
    read_mapped(folder)


def test_convert_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    done = CliRunner().invoke(make_app(), ["convert", "sbm:nodes=200,classes=4", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    graph = sbm(nodes=200, classes=4)
    assert told == {"folder": str(folder), "nodes": 200, "edges": graph.num_edges}
    assert torch.equal(as_dense(eg.stream(folder).graph.x), as_dense(graph.x))


@pytest.mark.parametrize("options", [[], ["--parts", "2"]])
def test_a_converted_graph_is_everybodys_and_its_command_can_be_pasted(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    folder = tmp_path / "cv 3"
    done = CliRunner().invoke(make_app(), ["convert", "sbm:nodes=60,classes=2", str(folder), *options])
    assert done.exit_code == 0, done.output
    assert folder.stat().st_mode == (tmp_path / "made").stat().st_mode
    command = shlex.split(" ".join(done.stdout.split()).rpartition(": ")[2])
    assert command[:3] in (["evergraph", "run", str(folder)], ["evergraph", "learn", str(folder)])


def test_pages_of_a_mapped_file_can_go_unless_they_were_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "array.npy", np.arange(100_000, dtype=np.float32))
    array = torch.from_numpy(np.load(tmp_path / "array.npy", mmap_mode="c"))
    total = float(array.sum())
    assert release_pages(array) == PAGEMAP.exists()
    assert float(array.sum()) == total
    array[7] = -1.0
    assert not release_pages(array)
    assert float(array[7]) == -1.0
    for own in (torch.ones(100_000), torch.ones(5_000_000), torch.from_numpy(np.arange(10)), torch.ones(0)):
        assert not release_pages(own)
    late = torch.from_numpy(np.load(tmp_path / "array.npy", mmap_mode="c"))
    late[-1] = -1.0  # on the last of its pages, which are looked at a few at a time
    monkeypatch.setattr(mapped_pages, "PAGES_AT_ONCE", 7)
    assert not release_pages(late)
    monkeypatch.setattr(mapped_pages, "PAGEMAP", tmp_path / "not there")
    assert not release_pages(torch.from_numpy(np.load(tmp_path / "array.npy", mmap_mode="c")))


def with_all_that_is_known(graph: Graph) -> Graph:
    """With a split, ids and numbers of nodes, and named features."""
    count = graph.num_nodes
    attributes = {"id": [f"p{i} «é»" for i in reversed(range(count))], "year": np.arange(count) // 3 % 2}
    made = make_graph(graph.x, graph.edge_index, graph.y, attributes=attributes, splits=np.arange(count) % 3)
    return made.altered(feature_names=[f"f{i}" for i in range(graph.num_features)], directed=True)


def test_split_ids_attributes_and_feature_names_come_back(small_graph: Graph, tmp_path: Path) -> None:
    graph = with_all_that_is_known(small_graph)
    found = read_mapped(write_mapped(graph, tmp_path / "graph"))
    assert torch.equal(found.splits, graph.splits)
    assert list(found.attributes) == ["id", "year"]
    for name, known in graph.attributes.items():
        assert torch.equal(found.attributes[name].values, known.values)
        assert found.attributes[name].names == known.names
    assert (found.feature_names, found.directed) == (graph.feature_names, True)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(eg.Task.of(found), part), getattr(eg.Task.of(graph), part))
    for ours, theirs in zip(eg.stream(found, by="year"), eg.stream(graph, by="year"), strict=True):
        assert torch.equal(ours.train, theirs.train)
    assert eg.Learner("analytic").fit([found]).predict(graph, "p3 «é»").nodes.tolist() == [graph.num_nodes - 4]


def test_masks_of_pyg_and_attributes_survive_convert(small_graph: Graph, tmp_path: Path) -> None:
    from torch_geometric.data import Data

    count = small_graph.num_nodes
    masks = {f"{part}_mask": torch.arange(count) % 3 == number for number, part in enumerate(("train", "val", "test"))}
    year = torch.arange(count) % 4
    data = Data(x=small_graph.x, edge_index=small_graph.edge_index, y=small_graph.y, year=year, **masks)
    torch.save(data, tmp_path / "graph.pt")
    result = CliRunner().invoke(make_app(), ["convert", str(tmp_path / "graph.pt"), str(tmp_path / "folder")])
    assert result.exit_code == 0, result.output
    found = eg.Task.of(tmp_path / "folder")
    assert torch.equal(found.train, torch.nonzero(masks["train_mask"]).reshape(-1))
    assert torch.equal(found.graph.attributes["year"].values, year)


def test_a_folder_of_an_earlier_version_still_opens(small_graph: Graph, tmp_path: Path) -> None:
    """Its header knows nothing of attributes, names and directions."""
    folder = write_mapped(small_graph, tmp_path / "graph")
    header = read_record(folder / "graph.json")
    for key in ("directed", "attributes"):
        del header[key]
    write_record(folder / "graph.json", header)
    found = read_mapped(folder)
    assert (found.splits, found.attributes, found.feature_names) == (None, {}, None)
    assert torch.equal(found.y, small_graph.y)


@pytest.mark.parametrize(
    ("key", "value"), [("attributes", "id"), ("feature_names", ["one"]), ("attributes", ["id", "year", "third"])]
)
def test_a_header_that_does_not_fit_is_one_line(small_graph: Graph, key: str, value: object, tmp_path: Path) -> None:
    folder = write_mapped(with_all_that_is_known(small_graph), tmp_path / "graph")
    header = read_record(folder / "graph.json")
    write_record(folder / "graph.json", {**header, key: value})
    with pytest.raises(EvergraphError, match="damaged"):
        read_mapped(folder)


def test_features_of_a_graph_in_parts_keep_their_names(small_graph: Graph, tmp_path: Path) -> None:
    graph = with_all_that_is_known(small_graph)
    found, _ = read_parts(write_parts(graph, tmp_path / "parts", 2))
    assert found.feature_names == graph.feature_names


@pytest.mark.filterwarnings("ignore:heads are as if these")
def test_converted_graphs_with_other_features_edges_or_weights_are_other_data(
    small_graph: Graph, tmp_path: Path
) -> None:
    """They have the same labels, and features are not read to tell them apart."""
    edges = small_graph.adjacency
    weights = torch.ones(edges.nnz)
    weights[:2] = 2.0
    another = edges.indices.clone()
    another[0] = (another[0] + 1) % small_graph.num_nodes
    graphs = {
        "one": small_graph,
        "other features": small_graph.altered(x=as_dense(small_graph.x) + 1),
        "other edges": small_graph.altered(
            adjacency=SparseMatrix(edges.indptr, another, edges.values, edges.num_columns)
        ),
        "other weights": small_graph.altered(
            adjacency=SparseMatrix(edges.indptr, edges.indices, weights, edges.num_columns)
        ),
    }
    folders = {name: write_mapped(graph, tmp_path / name) for name, graph in graphs.items()}
    marks = {eg.Task.of(folder).mark() for folder in folders.values()}
    assert len(marks) == len(graphs)
    kept = {eg.Task.of(folder).without(torch.tensor([3]), keep_in_graph=True).mark() for folder in folders.values()}
    assert len(kept | marks) == 2 * len(graphs)
    learner = eg.Learner("analytic", dtype=torch.float64)
    learner.learn(folders["one"])
    with pytest.raises(EvergraphError, match="is not data that this learner learned from"):
        learner.forget([3], folders["other features"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(folders["other features"])
    for name in ("one", "other features"):
        assert learner.forget([3], folders[name]) == 1
    wanted = eg.Learner("analytic", dtype=torch.float64)
    for name in ("one", "other features"):
        wanted.learn(eg.Task.of(folders[name]).without(torch.tensor([3])))
    found, right = learner.logits(small_graph), wanted.logits(small_graph)
    assert float((found - right).abs().max()) <= 1e-8 * max(1.0, float(right.abs().max()))
