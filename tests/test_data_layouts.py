"""Published collections, in small files of their own layouts: nothing is downloaded here."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import evergraph as eg
from evergraph.data import DATASETS
from evergraph.data.datasets.bitcoin import read_ratings
from evergraph.data.datasets.collections import read_countries, read_masked_npz, read_ogb_graphs, read_tu
from evergraph.data.datasets.official import OfficialGraph, read_ogb_folder
from evergraph.data.datasets.ogb import read_collab, read_molecules, read_proteins
from evergraph.data.download import Published, record

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Weights only load"),
    pytest.mark.filterwarnings("ignore:.*are in several masks"),
    pytest.mark.filterwarnings("ignore:.*edge_attr is not used"),
    pytest.mark.filterwarnings("ignore:.*has no known hash"),
]


def table(folder: Path, **tables: object) -> Path:
    """csv.gz files, as OGB has them; `_` in a keyword stands for `-` where the file has one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        text = "\n".join(",".join(map(str, np.atleast_1d(row))) for row in np.asarray(rows).tolist())
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_tu(tmp_path: Path) -> None:
    files = {
        "A": "1, 2\n2, 1\n3, 4\n4, 3",
        "graph_indicator": "1\n1\n2\n2\n2",
        "graph_labels": "3\n7",
        "node_attributes": "0.0, 1.0\n2.0, 1.0\n4.0, 1.0\n2.0, 1.0\n2.0, 1.0",
        "node_labels": "0\n1\n1\n0\n0",
    }
    for name, text in files.items():
        (tmp_path / f"SMALL_{name}.txt").write_text(text)
    graphs = read_tu(tmp_path)
    (tmp_path / "SMALL_edge_labels.txt").write_text("1\n1\n2\n2")
    with pytest.warns(eg.EvergraphWarning, match="SMALL: the labels of its edges are not used"):
        read_tu(tmp_path)
    assert graphs.level == "graph"
    assert graphs.class_names == [3, 7]
    assert graphs.members.counts().tolist() == [2, 3]
    assert graphs.num_features == 4  # two attributes, two kinds of nodes
    assert graphs.x[:, 2:].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0], [1, 0]]
    (tmp_path / "SMALL_A.txt").unlink()
    with pytest.raises(eg.EvergraphError, match=r"SMALL_A\.txt is missing"):
        read_tu(tmp_path)


def test_ogb_graphs(tmp_path: Path) -> None:
    folder = table(
        tmp_path / "raw",
        **{"num-node-list": [2, 3], "num-edge-list": [1, 2], "edge": [[0, 1], [0, 1], [1, 2]],
           "node-feat": np.arange(10).reshape(5, 2), "edge-feat": [[1.0], [2.0], [4.0]], "graph-label": [1, 0]},
    )  # fmt: skip
    with pytest.warns(eg.EvergraphWarning, match="the features of its edges are not used"):
        molecules = read_molecules(folder)
    assert molecules.y.tolist() == [[1.0], [0.0]]
    assert molecules.attributes["atoms"].values.tolist() == [2, 3]
    assert molecules.edge_index.max() == 4
    classes = read_ogb_graphs(folder, columns=False, features_of_edges=True)
    assert classes.y.tolist() == [1, 0]
    assert classes.x.reshape(-1).tolist() == [1, 1, 2, 3, 4]


def test_ogb_proteins_years_and_collaborations(tmp_path: Path) -> None:
    proteins = read_proteins(
        table(tmp_path / "a", **{"edge": [[0, 1], [1, 2]], "edge-feat": [[1.0], [3.0]], "node_species": [9, 9, 4],
                                 "node-label": [[0, 1], [1, 1], [0, 0]]})
    )  # fmt: skip
    assert proteins.x.reshape(-1).tolist() == [1, 2, 3]
    stream = eg.stream(proteins, by="domain")
    assert stream.task_names == ["4", "9"]
    assert stream.problem == "node-labelling"
    papers = read_ogb_folder(
        table(tmp_path / "b", **{"edge": [[0, 1]], "node-feat": [[1.0], [2.0]], "node-label": [0, 1],
                                 "node_year": [2013, 2019]})
    )  # fmt: skip
    assert papers.attributes["year"].values.tolist() == [2013, 2019]
    collab = read_collab(
        table(
            tmp_path / "c", **{"edge": [[0, 1], [1, 2]], "edge_year": [2001, 2002], "node-feat": [[1.0], [2.0], [3.0]]}
        )
    )
    with pytest.warns(eg.EvergraphWarning, match=r"\(edge_weight\) is not used"):
        read_collab(table(tmp_path / "c", edge_weight=[1, 3]))
    assert collab.positives_only
    assert collab.attributes["time"].values.tolist() == [2001, 2002]


def test_heterophilous_npz_with_masks(tmp_path: Path) -> None:
    masks = np.eye(4, dtype=bool)[:2]
    np.savez(
        tmp_path / "g.npz", node_features=np.eye(4), node_labels=[0, 1, 0, 1], edges=[[0, 1], [2, 3]],
        train_masks=masks, val_masks=masks[:, ::-1], test_masks=~masks & ~masks[:, ::-1],
    )  # fmt: skip
    graph = read_masked_npz(tmp_path / "g.npz")
    assert graph.splits.T.tolist() == [[0, 2, 2, 1], [2, 0, 1, 2]]
    assert graph.num_edges == 4


def test_countries_from_both_layouts(tmp_path: Path) -> None:
    (tmp_path / "musae_DE_edges.csv").write_text("from,to\n0,1\n1,2\n")
    (tmp_path / "musae_DE_features.json").write_text(json.dumps({"0": [0, 4], "1": [1], "2": []}))
    rows = ["id,days,mature,views,partner,new_id", "7,1,True,3,False,1", "8,1,False,3,False,0", "9,1,True,3,False,2",
            "9,1,True,3,False,2"]  # the French file has rows that come twice  # fmt: skip
    (tmp_path / "musae_DE_target.csv").write_text("\n".join(rows))
    x, adjacency = sp.csr_matrix(np.eye(2, 3, dtype=np.float32)), sp.csr_matrix([[0, 1], [1, 0]])
    parts = {f"{key}_{part}": getattr(matrix, part) for key, matrix in (("adj", adjacency), ("attr", x))
             for part in ("data", "indices", "indptr", "shape")}  # fmt: skip
    np.savez(tmp_path / "ES.npz", labels=[0, 1], **parts)
    graph = read_countries(tmp_path, ("DE", "ES"))
    assert graph.num_nodes == 5
    assert graph.num_features == 5
    assert graph.y.tolist() == [0, 1, 1, 0, 1]
    assert graph.attributes["domain"].names == ["DE", "ES"]
    assert not {tuple(sorted(e)) for e in graph.edge_index.T.tolist()} - {(0, 1), (1, 2), (3, 4)}
    with pytest.raises(eg.EvergraphError, match=r"must hold FR\.npz or the MUSAE files"):
        read_countries(tmp_path, ("FR",))


def test_ratings(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("6,2,4,1289241911.7\n2,6,-10,1289241941.5\n9,2,-3,1289241950\n9,6,1,1289241960\n")
    links = read_ratings(tmp_path / "r.csv")
    assert [links.class_names[position] for position in links.y] == ["3 to 4", "−10", "−9 to −1", "1"]
    assert links.members.indices.view(-1, 2).tolist() == [[1, 0], [0, 1], [2, 0], [2, 1]]


def test_planetoid_through_pyg(tmp_path: Path) -> None:
    """Files as the Planetoid repository has them; PyG reads them, and its masks come along."""
    raw = tmp_path / "Cora" / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    count, tests = 600, list(range(540, 600))
    features = sp.csr_matrix(random.random((count, 3)).round())
    labels = np.eye(2, dtype=np.int64)[np.arange(count) % 2]
    parts = {
        "x": features[:10], "tx": features[540:], "allx": features[:540], "y": labels[:10], "ty": labels[540:],
        "ally": labels[:540], "graph": {node: [(node + 1) % count] for node in range(count)},
    }  # fmt: skip
    for name, value in parts.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, tests)))
    stream = eg.stream("cora", data_root=tmp_path, classes_per_task=1)
    assert len(stream) == 2
    assert stream[0].train.numel() == 180  # 60/20/20 where nothing else is asked for
    given = eg.stream("cora", data_root=tmp_path, classes_per_task=2, split="given")
    assert given[0].train.numel() == 10
    (tmp_path / "PubMed" / "raw").mkdir(parents=True)
    for name in (*parts, "test.index"):
        (tmp_path / "PubMed" / "raw" / f"ind.pubmed.{name}").write_bytes(b"not a pickle")
    with pytest.raises(eg.EvergraphError, match="pubmed: PyG's Planetoid could not fetch or read it"):
        eg.stream("pubmed", data_root=tmp_path)


def test_other_sets_through_pyg(tmp_path: Path) -> None:
    """WikiCS, ZINC and superpixels, in small files as their publishers have them."""
    raw = tmp_path / "WikiCS" / "raw"
    raw.mkdir(parents=True)
    masks = [[number < 20 for number in range(40)] for _ in range(3)]
    wiki = {"features": np.eye(40, 5).tolist(), "labels": [number % 4 for number in range(40)],
            "links": [[(number + 1) % 40] for number in range(40)], "train_masks": masks, "val_masks": masks,
            "stopping_masks": masks, "test_mask": masks[0]}  # fmt: skip
    (raw / "data.json").write_text(json.dumps(wiki))
    stream = eg.stream("wikics", data_root=tmp_path)
    assert (len(stream), stream.graph.num_nodes, stream.graph.num_edges) == (2, 40, 80)

    raw = tmp_path / "ZINC" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "val", "test"):
        molecules = [
            {"atom_type": torch.arange(2 + number % 4), "bond_type": torch.ones(2 + number % 4, 2 + number % 4),
             "logP_SA_cycle_normalized": torch.tensor([number / 7])} for number in range(12)
        ]  # fmt: skip
        (raw / f"{part}.pickle").write_bytes(pickle.dumps(molecules))
        (raw / f"{part}.index").write_text(",".join(map(str, range(8))) + "\n")
    stream = eg.stream("zinc", data_root=tmp_path)
    assert (stream.problem, len(stream), stream.num_features) == ("graph-regression", 4, 28)
    assert [(task.train.numel(), task.val.numel(), task.test.numel()) for task in stream] == [(2, 2, 2)] * 4

    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    image = {"x": torch.rand(3, 1), "pos": torch.rand(3, 2), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    parts = [[{**image, "y": torch.tensor([number % 10])} for number in range(20)] for _ in range(3)]
    torch.save(parts, raw / "MNIST_v2.pt")
    stream = eg.stream("mnist-superpixels", data_root=tmp_path)
    assert (stream.problem, len(stream), stream.num_features) == ("graph-classification", 5, 3)
    assert [task.test.numel() for task in stream] == [4] * 5


def test_what_is_at_hand(tmp_path: Path) -> None:
    assert DATASETS["digits"].at_hand(tmp_path)
    assert not DATASETS["letter-med"].at_hand(tmp_path)
    (tmp_path / "Letter-med" / "raw").mkdir(parents=True)
    assert DATASETS["letter-med"].at_hand(tmp_path)


def test_a_download_without_a_known_hash_says_so(tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_text("6,2,4,1289241911.7\n2,6,-10,1289241941.5\n")
    ratings = OfficialGraph("few", "few/raw/few.csv", (2, 64, 6), source.as_uri(), read=read_ratings)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.warns(eg.EvergraphWarning, match="has no known hash to compare with"):
        assert ratings.load(root).num_examples == 2
    (root / "few/raw/few.csv").write_text("6,2,4,1289241911.7\n2,6,9,1289241941.5\n")
    with pytest.raises(eg.EvergraphError, match="its SHA-256 is not the one in"):  # kept once, it cannot change
        ratings.load(root)
    with pytest.raises(eg.EvergraphError, match=r"\(2, 64, 6\) nodes, features, classes, but few has \(3, 64, 6\)"):
        dataclasses.replace(ratings, path="again/few.csv", counts=(3, 64, 6)).load(root)


def test_several_files_and_a_pickle_that_is_only_matrices(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    root.mkdir()
    matrices = {"adj_matrix": sp.csr_matrix([[0, 1], [1, 0]]), "node_attr": sp.csr_matrix(np.eye(2, dtype=np.float32))}
    objects = {}
    for key, matrix in matrices.items():
        objects[key] = np.empty((), object)
        objects[key][()] = matrix
    np.savez(source / "two.npz", node_label=np.array([7, 3]), **objects)
    (source / "note.txt").write_text("hello")
    files = {
        path.name: Published(path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest()) for path in source.iterdir()
    }
    few = OfficialGraph(
        "few", "few/raw", (2, 2, 2), read=lambda folder: read_masked_npz(folder / "two.npz"), files=files
    )
    assert few.checked_by == "hash"
    graph = few.load(root)
    assert graph.y.tolist() == [1, 0]
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert len((root / "SHA256SUMS").read_text().splitlines()) == 2
    wrong = {**files, "note.txt": files["note.txt"]._replace(sha256="0" * 64)}
    with pytest.raises(eg.EvergraphError, match="nothing was kept"):
        dataclasses.replace(few, path="other/raw", files=wrong).load(root)
    assert not (root / "other").exists()
    objects["adj_matrix"][()] = Path("anything else")
    np.savez(tmp_path / "bad.npz", node_label=np.array([7, 3]), **objects)
    with pytest.raises(eg.EvergraphError, match=r"not an npz file of matrices \(it names pathlib"):
        read_masked_npz(tmp_path / "bad.npz")


def test_what_pyg_reads_may_not_change_once_it_is_recorded(tmp_path: Path) -> None:
    raw = tmp_path / "ZINC" / "raw"
    raw.mkdir(parents=True)
    (raw / "train.pickle").write_bytes(b"one")
    record(tmp_path, raw)
    (raw / "train.pickle").write_bytes(b"two")
    with pytest.raises(eg.EvergraphError, match="its SHA-256 is not the one in"):
        eg.stream("zinc", data_root=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twitch", "letter-med", "enzymes", "bitcoin-otc", "blogcatalog", "actor",
                                  "squirrel-filtered", "chameleon-filtered"])  # fmt: skip
def test_real_streams_learn(real_data: Path, name: str) -> None:
    stream = eg.stream(name, data_root=real_data)
    learner = eg.Learner(eg.GCN(hidden=16), "finetune", epochs=2, batch_size=512, lr=0.01, device="cpu")
    for task in stream:
        first, last = learner.learn(task)
        assert last["loss"] < first["loss"] or last["loss"] == 0 == len(task.class_names) - 1  # nothing to tell apart
    assert all(np.isfinite(learner.evaluate(stream).accuracies))
    assert torch.isfinite(learner.logits(stream[0].graph, stream[0].test)).all()
