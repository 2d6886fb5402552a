"""The graphs that need no download."""

import math
import subprocess
import sys
import tracemalloc

import pytest
import torch

import evergraph as eg
from evergraph.data.datasets.digits import digits
from evergraph.data.datasets.sbm import sbm
from evergraph.data.files import fingerprint


def test_digits_is_scikit_learns_data_with_its_nearest_neighbours() -> None:
    graph = digits()
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert float(graph.x.max()) == 1.0
    assert float(graph.x.min()) >= 0
    # every node is joined to its 8 nearest neighbours, by brute force
    distance = torch.cdist(graph.x.double(), graph.x.double())
    distance.fill_diagonal_(torch.inf)
    ninth = distance.topk(9, largest=False).values[:, 8]
    adjacency = graph.adjacency.dense().bool()
    assert bool(adjacency[distance < ninth.unsqueeze(1) - 1e-6].all())
    assert torch.equal(adjacency, adjacency.T)
    source, target = graph.edge_index
    assert float((graph.y[source] == graph.y[target]).float().mean()) > 0.9  # a graph worth learning on


def test_digits_is_the_same_graph_on_every_machine() -> None:
    """47 digits have neighbours as near as their eighth, and rounding must not choose among them."""
    assert fingerprint(digits()) == "1e6cec7edcb85c98c67aa42cdddbcf70c5f881dd91f64d0e350445ba950bab6f"
    with pytest.raises(eg.EvergraphError, match="neighbours=1797 must be below 1797"):
        digits(neighbours=1797)


def test_sbm_is_the_same_bit_for_bit_and_differs_by_seed() -> None:
    first, again, other = sbm(nodes=500, seed=3), sbm(nodes=500, seed=3), sbm(nodes=500, seed=4)
    assert torch.equal(first.x, again.x)
    assert fingerprint(first) == fingerprint(again)
    assert not torch.equal(first.x, other.x)
    assert fingerprint(first) != fingerprint(other)


def test_sbm_does_not_depend_on_global_random_numbers() -> None:
    torch.manual_seed(0)
    first = sbm(nodes=100)
    torch.manual_seed(1)
    assert torch.equal(first.x, sbm(nodes=100).x)


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.8, 1.0])
def test_sbm_has_the_degree_and_homophily_asked_for(homophily: float) -> None:
    graph = sbm(nodes=20_000, classes=7, degree=12, homophily=homophily, features=3)
    assert graph.num_edges / graph.num_nodes == pytest.approx(12, rel=0.01)
    source, target = graph.edge_index
    share = float((graph.y[source] == graph.y[target]).float().mean())
    assert share == pytest.approx(homophily, abs=4 * math.sqrt(0.25 / (graph.num_edges / 2)))
    assert torch.equal(graph.adjacency.t().indices.long(), graph.adjacency.indices)  # undirected


def test_sbm_features_are_class_means_of_the_norm_asked_for_plus_unit_noise() -> None:
    graph = sbm(nodes=40_000, classes=3, features=16, signal=5.0)
    for position in range(3):
        own = graph.x[graph.y == position]
        assert float(own.mean(0).norm()) == pytest.approx(5.0, abs=0.05)
        assert float((own - own.mean(0)).pow(2).mean()) == pytest.approx(1.0, abs=0.02)


def test_sbm_node_numbers_say_nothing_about_the_class() -> None:
    graph = sbm(nodes=20_000, classes=4)
    first, second = graph.y[:10_000], graph.y[10_000:]
    assert torch.allclose(torch.bincount(first) / 1e4, torch.bincount(second) / 1e4, atol=0.03)


@pytest.mark.parametrize("classes", [1, 30])
def test_sbm_at_its_limits(classes: int) -> None:
    graph = sbm(nodes=30, classes=classes, degree=3, homophily=0.2)
    assert graph.class_sizes().min() >= 1
    assert graph.num_classes == classes
    assert sbm(nodes=30, degree=0).num_edges == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"nodes": 3, "classes": 4},
        {"classes": 0},
        {"degree": -1.0},
        {"degree": math.nan},
        {"degree": math.inf},
        {"homophily": 1.5},
        {"homophily": math.nan},
        {"features": 0},
        {"signal": math.inf},
        {"seed": -1},
    ],
)
def test_impossible_sbm(settings: dict) -> None:
    with pytest.raises(eg.EvergraphError, match=r"is impossible|must be a (finite|whole) number"):
        sbm(**settings)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sbm:nodes=many", "nodes='many' must be a whole number"),
        ("sbm:colour=3", "unknown sbm setting 'colour'; choose one of: nodes, classes"),
        ("sbm:homophily=2", "homophily=2.0 must be"),
        ("sbm:degree=nan", "degree=nan must be"),
        ("digits:nodes=3", "digits takes no settings"),
    ],
)
def test_bad_settings_in_a_streams_name(source: str, message: str) -> None:
    with pytest.raises(eg.EvergraphError, match=message):
        eg.stream(source)


def test_sbm_by_name_equals_sbm_by_function() -> None:
    named = eg.stream("sbm:nodes=300,classes=4,degree=3,homophily=0.5,features=7,signal=2,seed=9").graph
    assert torch.equal(named.x, sbm(300, 4, 3, 0.5, 7, 2, 9).x)


def test_memory_stays_within_a_few_times_the_graph() -> None:
    """A tenth of the size the package promises: 1 million nodes, 10 million edges in a few GB."""
    tracemalloc.start()
    graph = sbm(nodes=100_000, classes=20, degree=20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert graph.num_edges / 2 == pytest.approx(1_000_000, rel=0.002)
    assert peak < 300e6


@pytest.mark.slow
def test_a_million_nodes_and_ten_million_edges_in_a_few_gigabytes() -> None:
    code = (
        "import resource; from evergraph.data.datasets.sbm import sbm\n"
        "graph = sbm(nodes=1_000_000, classes=20, degree=20)\n"
        "print(graph.num_edges // 2, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    edges, kilobytes = map(int, done.stdout.split())
    assert edges == pytest.approx(10_000_000, rel=0.001)
    assert kilobytes < 4 * 2**20
