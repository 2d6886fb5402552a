"""Mini-batches: exact neighbourhoods, sampled ones, and what is promised of each."""

import pytest
import torch

import evergraph as eg
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Neighbourhoods
from evergraph.data.datasets.sbm import sbm
from evergraph.models.gcn import gcn_operator


@pytest.fixture
def graph() -> eg.Graph:
    return sbm(nodes=200, classes=4, degree=8, features=5, seed=2)


def cut(graph: eg.Graph, num_hops: int, fan_out: tuple[int, ...] | None = None, loops: bool = True) -> Neighbourhoods:
    operator = gcn_operator(graph) if loops else graph.adjacency.to(torch.float64)
    return Neighbourhoods(graph.x.double(), operator, graph.y, num_hops, fan_out)


@pytest.mark.parametrize("marked", [0, 1000])  # neighbours met are sorted, or marked
def test_batches_hold_exactly_the_nodes_within_reach(
    graph: eg.Graph, marked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergraph.data.batching.MARKED", marked)
    seeds = torch.tensor([17, 3, 99])
    batch = cut(graph, 3).batch(seeds)
    assert batch.nodes[:3].tolist() == [17, 3, 99]
    adjacency = graph.adjacency.dense().bool() | torch.eye(200, dtype=torch.bool)
    reached = torch.zeros(200, dtype=torch.bool)
    reached[seeds] = True
    for hops in range(4):
        assert set(batch.nodes[: batch.sizes[hops]].tolist()) == set(reached.nonzero().reshape(-1).tolist())
        reached |= adjacency[reached].any(0)
    assert batch.num_seeds == 3
    assert batch.num_hops == 3
    assert torch.equal(batch.y, graph.y[seeds])
    assert torch.equal(batch.x, graph.x.double()[batch.nodes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sparse_inputs_are_the_nodes_own(graph: eg.Graph, dtype: torch.dtype) -> None:
    x = SparseMatrix.from_dense(graph.x.clamp(min=0).to(dtype))
    batch = Neighbourhoods(x, gcn_operator(graph), graph.y, 2).batch(torch.tensor([17, 3, 99]))
    assert isinstance(batch.x, SparseMatrix)
    assert batch.x.dtype == dtype
    assert torch.equal(batch.x.dense(), x.dense()[batch.nodes])


def test_a_layers_operator_is_the_graphs_own(graph: eg.Graph) -> None:
    batch = cut(graph, 2).batch(torch.arange(10))
    dense = gcn_operator(graph).dense()
    for number, hops in ((0, 2), (1, 1)):
        rows, columns = batch.nodes[: batch.sizes[hops - 1]], batch.nodes[: batch.sizes[hops]]
        assert torch.equal(batch.layer(number).dense(), dense[rows][:, columns])


def test_edge_index_names_the_batchs_own_nodes(graph: eg.Graph) -> None:
    batch = cut(graph, 1, loops=False).batch(torch.tensor([5, 6]))
    edges = {(int(batch.nodes[u]), int(batch.nodes[v])) for u, v in batch.edge_index.T.tolist()}
    expected = {(u, v) for u, v in graph.edge_index.T.tolist() if v in (5, 6)}
    assert edges == expected


def test_batches_cover_the_seeds_in_order(graph: eg.Graph) -> None:
    seeds = torch.randperm(200)[:50]
    sizes, seen = [], []
    for batch in cut(graph, 1).batches(seeds, 16):
        sizes.append(batch.num_seeds)
        seen += batch.nodes[: batch.num_seeds].tolist()
    assert sizes == [16, 16, 16, 2]
    assert seen == seeds.tolist()
    (whole,) = cut(graph, 1).batches(seeds, None)
    assert whole.num_seeds == 50


def test_cutting_leaves_no_trace(graph: eg.Graph) -> None:
    neighbourhoods = cut(graph, 2)
    first = neighbourhoods.batch(torch.arange(5))
    neighbourhoods.batch(torch.arange(50, 90))
    again = neighbourhoods.batch(torch.arange(5))
    assert torch.equal(first.nodes, again.nodes)
    assert torch.equal(first.operator.indices, again.operator.indices)


def test_a_batch_without_hops(graph: eg.Graph) -> None:
    batch = cut(graph, 0).batch(torch.tensor([4, 2]))
    assert batch.sizes == (2,)
    assert batch.operator.nnz == 0


@pytest.mark.parametrize("loops", [True, False])
def test_a_sample_has_at_most_fan_out_neighbours_per_node(graph: eg.Graph, loops: bool) -> None:
    batch = cut(graph, 2, (3, 2), loops).batch(torch.arange(30), torch.Generator().manual_seed(0))
    exact = graph.adjacency.dense().bool()
    target, source = batch.operator.row_of_entry(), batch.operator.indices
    looped = source == target
    neighbours = torch.bincount(target[~looped], minlength=batch.sizes[1])
    degrees = graph.adjacency.counts()[batch.nodes[: batch.sizes[1]]]
    limit = torch.where(torch.arange(batch.sizes[1]) < 30, 3, 2)
    assert torch.equal(neighbours, torch.minimum(degrees, limit))
    assert bool(exact[batch.nodes[target[~looped]], batch.nodes[source[~looped]]].all())  # neighbours of the graph
    pairs = torch.stack([target, source], 1)
    assert pairs.unique(dim=0).size(0) == pairs.size(0)  # without replacement
    if loops:
        assert int(looped.sum()) == batch.sizes[1]  # self-loops are always kept
        weights = gcn_operator(graph)
        own = batch.nodes[target[looped]]
        assert torch.equal(batch.operator.values[looped], weights.dense()[own, own])  # and never reweighted


@pytest.mark.parametrize("loops", [True, False])
def test_sampled_aggregation_is_unbiased(graph: eg.Graph, loops: bool) -> None:
    """E[sampled Ãx] = Ãx, with an error that falls as 1/√n."""
    seeds = torch.arange(40)
    exact_batch = cut(graph, 1, None, loops).batch(seeds)
    exact = exact_batch.layer(0) @ exact_batch.x
    sampler, generator = cut(graph, 1, (2,), loops), torch.Generator().manual_seed(0)
    draws = []
    for _ in range(400):
        batch = sampler.batch(seeds, generator)
        draws.append(batch.layer(0) @ batch.x)
    stack = torch.stack(draws)
    deviation = (stack.mean(0) - exact).abs()
    error = stack.std(0) / 400**0.5
    assert float(stack.std(0).max()) > 0.1  # there is something to average
    assert bool((deviation <= 5 * error + 1e-12).all())
    assert float((deviation / error.clamp(min=1e-12)).square().mean()) < 1.5  # as wide as theory says


def test_all_neighbours_are_likely_to_be_drawn(graph: eg.Graph) -> None:
    node = int(graph.adjacency.counts().argmax())
    degree = int(graph.adjacency.counts()[node])
    sampler, generator = cut(graph, 1, (4,), loops=False), torch.Generator().manual_seed(1)
    counts = torch.zeros(200)
    for _ in range(800):
        counts[sampler.batch(torch.tensor([node]), generator).nodes[1:]] += 1
    drawn = counts[counts > 0] / 800
    assert drawn.numel() == degree
    assert torch.allclose(drawn, torch.full_like(drawn, 4 / degree), atol=0.09)


def test_a_fan_out_that_covers_everything_is_exact(graph: eg.Graph) -> None:
    sampled = cut(graph, 2, (1000, 1000)).batch(torch.arange(20))
    exact = cut(graph, 2).batch(torch.arange(20))
    assert torch.equal(sampled.nodes, exact.nodes)
    assert torch.equal(sampled.operator.dense(), exact.operator.dense())


def test_samples_repeat_by_seed(graph: eg.Graph) -> None:
    sampler = cut(graph, 2, (3, 3))
    first, again, other = (sampler.batch(torch.arange(9), torch.Generator().manual_seed(s)).nodes for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_too_few_fan_outs_are_named(graph: eg.Graph) -> None:
    with pytest.raises(eg.EvergraphError, match=r"fan_out=\[5\] names 1 hops, the model reads 2"):
        cut(graph, 2, (5,))
