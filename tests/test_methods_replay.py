"""Replay methods against their definitions: projections, samplers, subgraphs, vectors and weights, done naively."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, minimize
from torch import Tensor
from torch.func import functional_call

import evergraph as eg
from brute_force import (
    Setting,
    brute_fisher,
    close,
    flat,
    make,
    node_gradient,
    pull,
    seeded,
    step_gradient,
    tiny_graph,
)
from evergraph.core.features import as_dense
from evergraph.core.sparse import SparseMatrix
from evergraph.data.datasets.sbm import sbm
from evergraph.errors import EvergraphError
from evergraph.methods.memory import Budget, Piece, joined
from evergraph.methods.memory.ricci import EdgeCurvature
from evergraph.methods.memory.samplers import covered, influences, mean_distance, nearest_to_mean, strangers_within
from evergraph.methods.memory.subgraphs import drawn_neighbours, with_neighbours
from evergraph.methods.replay.gem import projection

pytestmark = pytest.mark.filterwarnings("ignore:.*was learned already")

# projections


@pytest.mark.parametrize(("tasks", "seed"), list(itertools.product([1, 2, 5], range(4))))
def test_gems_projection_solves_the_quadratic_programme(tasks: int, seed: int) -> None:
    """The primal, solved by scipy; and the products are non-negative."""
    random = np.random.default_rng(seed)
    rows, gradient = random.standard_normal((tasks, 8)), random.standard_normal(8)
    gradient -= 2 * rows.T @ random.random(tasks)  # so that something is violated
    move = projection(torch.tensor(rows), torch.tensor(gradient))
    assert move is not None
    projected = gradient + move.numpy()
    assert (rows @ projected >= -1e-8 * np.abs(rows @ gradient).max()).all()
    naive = minimize(
        lambda x: 0.5 * ((x - gradient) ** 2).sum(),
        gradient,
        jac=lambda x: x - gradient,
        constraints={"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.allclose(projected, naive.x, atol=1e-6)


def test_gem_leaves_a_gradient_alone_that_nobody_objects_to() -> None:
    rows = torch.eye(3, dtype=torch.float64)
    assert projection(rows, torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)) is None


def test_gems_margin_is_added_to_the_dual() -> None:
    rows, gradient = torch.tensor([[1.0, 0.0]]), torch.tensor([-1.0, 3.0])
    assert torch.allclose(gradient + projection(rows, gradient, margin=0.5), torch.tensor([0.5, 3.0]))


def test_gems_margin_means_the_same_under_both_reductions() -> None:
    found = {}
    for reduction in ("sum", "mean"):
        setting, method = make("gcn"), eg.GEM(per_class=2, margin=0.5)
        context = replace(remembering(method, setting, tasks=3), reduction=reduction)
        plain, ours = flat(step_gradient(eg.Finetune(), context)), flat(step_gradient(method, context))
        gradients = torch.stack([naive_memory_gradient(method, setting, piece) for piece in method.pieces()])
        scale = context.num_train if reduction == "sum" else 1
        close(ours, plain + scale * projection(gradients, plain / scale, margin=0.5), tolerance=1e-8)
        found[reduction] = ours
    close(found["sum"], context.num_train * found["mean"], tolerance=1e-8)


def test_gem_with_dependent_gradients() -> None:
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    gradient = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert torch.allclose(gradient + projection(rows, gradient), torch.tensor([0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(("tasks", "size", "rank"), [(10, 6, 6), (5, 1000, 2), (20, 5000, 8)])
def test_gem_with_dependent_gradients_in_single_precision(tasks: int, size: int, rank: int) -> None:
    """As in training, where tasks that are alike have gradients that are nearly so."""
    for seed in range(5):
        generator = seeded(seed)
        rows = torch.randn(tasks, rank, generator=generator) @ torch.randn(rank, size, generator=generator)
        gradient = torch.randn(size, generator=generator)
        move = projection(rows, gradient)
        moved = gradient if move is None else gradient + move
        assert float((rows @ moved).min()) > -1e-4 * float(rows.norm(dim=1).max() * gradient.norm())


def test_gem_learns_tasks_that_come_again() -> None:
    stream = eg.TaskStream(sbm(nodes=80, classes=4, features=6, seed=2), 2)
    learner = eg.Learner(eg.GCN(hidden=8), eg.GEM(per_class=1000), epochs=3, lr=0.05, batch_size=0, device="cpu")
    for number in (0, 1, 0, 1):
        learner.learn(stream[number])
    assert learner.num_tasks == 4


@pytest.mark.parametrize("case", ["sage", "gcn"])
def test_a_node_kept_without_edges_is_read_as_one_among_its_like(case: str) -> None:
    """GraphSAGE reads a twin where it would read zeros; GCN, which reads the node itself, finds what it did before."""
    setting, method = make(case), eg.Reservoir(per_class=2)
    context = setting.context()
    method.end_task(context)
    replayed = method.replayed(context)
    assert replayed is not None
    found = setting.model(replayed.batch)
    x = torch.cat([as_dense(piece.x) for piece in method.pieces()])
    twins, both = torch.arange(x.size(0)), 2 * x.size(0)
    pairs = SparseMatrix(torch.arange(both + 1), torch.arange(both).roll(x.size(0)), torch.ones(both), both)
    graph = eg.Graph(torch.cat([x, x]), pairs, torch.zeros(both, dtype=torch.long), [0], "twins")
    close(found, setting.model(setting.problem.batcher(setting.model, graph).batch(twins)))


@pytest.mark.parametrize("name", ["cat", "gdumb", "er-gnn", "gem"])
def test_the_memory_trains_graphsages_weights_of_neighbours(name: str) -> None:
    """They had kept their random start in methods that train on the memory alone."""
    stream = eg.TaskStream(sbm(nodes=120, classes=4, features=6, seed=1), 2)
    method = eg.make_method(name, {"per_class": "4"})
    learner = eg.Learner(eg.GraphSAGE(hidden=8), method, epochs=2, lr=0.05, weight_decay=0.0, device="cpu")
    learner.learn(stream[0])
    assert isinstance(learner.method, eg.MemoryMethod)
    graph, examples, units = joined(learner.method.pieces(), learner.model)
    batch = learner.problem.batcher(learner.model, graph, targets=units).batch(examples)
    loss = torch.nn.functional.cross_entropy(learner.model(batch), batch.y)
    grads = torch.autograd.grad(loss, list(learner.model.parameters()))
    assert all(bool(grad[grad.size(0) // 2 : -1].any()) for grad in grads)


@pytest.mark.parametrize("name", ["reservoir", "stand-in-curvature"])
def test_a_model_that_sums_over_neighbours_is_told_that_they_are_missing(name: str) -> None:
    stream = eg.TaskStream(sbm(nodes=80, classes=4, features=6, seed=1), 2)
    settings = {"per_class": "4"} if name == "reservoir" else {"prototypes": "2"}
    learner = eg.Learner(eg.GIN(hidden=8), eg.make_method(name, settings), epochs=1, device="cpu")
    with pytest.warns(eg.EvergraphWarning, match="GIN sums over neighbours"):
        learner.fit(stream)


def test_the_mean_distance_is_that_between_different_rows() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0]])
    assert mean_distance(x, seeded(), pairs=200_000) == pytest.approx(2.0, rel=0.01)
    assert mean_distance(x[:1], seeded()) == 0.0


def remembering(method: eg.MemoryMethod, setting: Setting, tasks: int) -> eg.Context:
    """A method with examples of so many tasks, of one class each; some object to a step towards the last class."""
    context = setting.context()
    for _ in range(tasks):
        method.end_task(context)
    method.per_class = 100
    units = [1, 2, 0][:tasks]
    method.keep([Piece(piece.x, torch.full_like(piece.units, unit)) for unit, piece in zip(units, method.pieces())])
    context.batcher.y = torch.full_like(context.batcher.y, 3)
    return context


def naive_memory_gradient(method: eg.MemoryMethod, setting: Setting, piece: Piece) -> Tensor:
    """The gradient of the mean loss on one piece, from a graph of its own."""
    graph, examples, _ = joined([piece], eg.GCN())
    batch = setting.problem.batcher(setting.model, graph).batch(examples)
    loss = setting.problem.loss(setting.model(batch), piece.units).mean()
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(setting.model.parameters()))])


def test_gems_step_raises_no_old_tasks_loss() -> None:
    setting, method = make("gcn"), eg.GEM(per_class=2, margin=0.0)
    context = remembering(method, setting, tasks=3)
    plain, ours = flat(step_gradient(eg.Finetune(), context)), flat(step_gradient(method, context))
    gradients = torch.stack([naive_memory_gradient(method, setting, piece) for piece in method.pieces()])
    assert float((gradients @ plain).min()) < -1e-3
    assert float((gradients @ ours).min()) > -1e-8 * float(gradients.norm() * ours.norm())
    close(ours, plain + projection(gradients, plain))


def test_a_gem_is_gem_with_one_constraint() -> None:
    setting = make("gcn")
    gem, a_gem = eg.GEM(per_class=2, margin=0.0), eg.AGEM(per_class=2)
    context = remembering(gem, setting, tasks=1)
    a_gem.load_state_dict(gem.state_dict())
    plain, ours = flat(step_gradient(eg.Finetune(), context)), flat(step_gradient(gem, context))
    assert float((ours - plain).norm()) > 0.01
    close(flat(step_gradient(a_gem, context)), ours, tolerance=1e-8)


def test_a_gem_with_several_tasks_judges_by_their_mean() -> None:
    setting, method = make("gcn"), eg.AGEM(per_class=2)
    context = remembering(method, setting, tasks=2)
    everything = Piece(torch.cat([p.x for p in method.pieces()]), torch.cat([p.units for p in method.pieces()]))
    mean = naive_memory_gradient(method, setting, everything)
    plain = flat(step_gradient(eg.Finetune(), context))
    close(flat(step_gradient(method, context)), plain - (plain @ mean).clamp(max=0) / (mean @ mean) * mean)


# replay in a step


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ["er-gnn", "ssm", "tem", "reservoir"])
def test_the_pull_is_the_weighted_loss_on_the_memory(name: str, reduction: str) -> None:
    setting, method = make("gcn"), eg.make_method(name, {"per_class": 2, "strength": 0.7})
    context = setting.context(reduction)
    method.end_task(context)
    (piece,) = method.pieces()
    graph, examples, targets = joined([piece], eg.GCN())
    units = targets[examples]
    batch = setting.problem.batcher(setting.model, graph).batch(examples)
    losses = setting.problem.loss(setting.model(batch), units)
    if method.weighting == "sets":  # ER-GNN's β: |M|/(|D|+|M|) on the task's sum and the rest on the memory's
        beta = units.numel() / (12 + units.numel())
        total = (1 - beta) / beta * losses.sum()
    else:
        total = (12 / (4 * torch.bincount(units)[units]) * losses).sum()
    grads = torch.autograd.grad(0.7 * total, list(setting.model.parameters()))
    want = torch.cat([grad.flatten() for grad in grads]) / (12 if reduction == "mean" else 1)
    close(pull(method, context), want)


def test_drawn_examples_have_the_whole_memorys_pull_as_their_mean() -> None:
    setting, method = make("gcn"), eg.Reservoir(per_class=2)
    context = setting.context()
    method.end_task(context)
    whole = pull(method, context)
    method.replay_size = 3
    draws = torch.stack([pull(method, context) for _ in range(250)])
    error = (draws.mean(0) - whole).norm()
    assert error < 5 * draws.std(0).norm() / 250**0.5
    assert draws.std(0).norm() > 0.1 * whole.norm()


def test_a_reservoir_holds_every_node_with_equal_probability() -> None:
    """Three tasks of different sizes, a memory of 6: each of the 30 nodes is in it with probability 1/5."""
    generator, hits, runs = seeded(1), torch.zeros(30), 1000
    names = torch.arange(30.0).unsqueeze(1)
    for _ in range(runs):
        kept: list[Piece] = []
        for part in torch.arange(30).split([4, 18, 8]):
            key = torch.rand(part.numel(), generator=generator)
            order = key.argsort()
            new = Piece(names[part[order]], torch.zeros(part.numel(), dtype=torch.long), key=key[order])
            kept = Budget(share=0.2).fit("test", [*kept, new], 30, 3)
        hits[torch.cat([piece.x for piece in kept]).long().reshape(-1)] += 1
    assert int(hits.sum()) == 6 * runs
    deviations = (hits - runs / 5) / (runs * 0.2 * 0.8) ** 0.5
    assert float(deviations.abs().max()) < 4


@pytest.mark.parametrize("seed", range(3))
def test_a_reservoir_counts_classes_met_and_not_those_that_chance_has_kept(seed: int) -> None:
    stream = eg.TaskStream(sbm(nodes=120, classes=6, features=8), 2)
    learner, sizes = eg.Learner(eg.GCN(hidden=4), eg.Reservoir(per_class=1), epochs=1, seed=seed, device="cpu"), []
    for task in stream:
        learner.learn(task)
        sizes.append(sum(piece.num_examples for piece in learner.method.pieces()))
    assert sizes == [2, 4, 6]


def test_weights_are_numbers_of_the_models_own_type() -> None:
    setting, method = make("gcn"), eg.ERGNN(per_class=3)
    context = setting.context()
    method.end_task(context)
    replayed = replace(method.replayed(context), units=torch.zeros(7, dtype=torch.long))
    classes = context.batcher.y[context.train].unique().numel()
    want = torch.full((7,), context.num_train / (classes * 7), dtype=torch.float64)
    assert not torch.equal(want.float().double(), want)  # a float32 would be seen
    assert torch.equal(replayed.weights(context, "classes"), want)


def test_gdumb_trains_a_new_model_on_the_memory_alone() -> None:
    stream = eg.TaskStream(sbm(nodes=120, classes=4, features=8, signal=3.0), 2)
    learner = eg.Learner(eg.GCN(hidden=8), eg.GDumb(per_class=3), epochs=1, device="cpu")
    seen: list[tuple[int, Tensor]] = []
    method = learner.method
    data = method.training_data

    def watched(context: eg.Context) -> eg.Task | None:
        task = data(context)
        seen.append((task.train.numel(), copy.deepcopy(dict(context.model.named_parameters()))["weights.0"]))
        return task

    method.training_data = watched
    learner.fit(stream)
    assert [number for number, _ in seen] == [6, 12]
    assert not torch.equal(seen[1][1], learner.model.weights[0])
    assert learner.history[-1]["epochs"] == 1


# samplers


def test_er_gnn_keeps_the_nodes_nearest_to_the_mean() -> None:
    """The nearest, not the farthest."""
    x = torch.randn(9, 4, generator=seeded(), dtype=torch.float64)
    mean = sum(x) / 9
    assert nearest_to_mean(x).tolist() == sorted(range(9), key=lambda row: float((x[row] - mean).norm()))


def test_coverage_counts_strangers() -> None:
    x, others = torch.randn(7, 3, generator=seeded(1)), torch.randn(11, 3, generator=seeded(2))
    naive = [sum(float((row - other).norm()) < 1.5 for other in others) for row in x]
    assert strangers_within(x, others, 1.5).tolist() == naive
    assert len(set(naive)) > 2


def test_coverage_measures_distances_far_from_zero() -> None:
    x, others = (1000 + 0.1 * torch.randn(60, 8, generator=seeded(seed)) for seed in (1, 2))
    distances = (x.double().unsqueeze(1) - others.double()).norm(dim=2)
    radius = float(distances.median())
    assert strangers_within(x, others, radius).tolist() == (distances < radius).sum(1).tolist()


@pytest.mark.parametrize("space", ["features", "embeddings"])
@pytest.mark.parametrize("sampler", ["mean-of-feature", "coverage", "influence"])
def test_er_gnn_chooses_within_each_class_of_the_whole_task(sampler: str, space: str) -> None:
    """Positions are those of the task's nodes, not of a part of them."""
    setting, method = make("gcn"), eg.ERGNN(per_class=2, sampler=sampler, space=space, radius=1.5)
    context = setting.context()
    method.end_task(context)
    (piece,) = method.pieces()
    for unit in range(4):
        nodes = torch.nonzero(setting.graph.y == unit).reshape(-1)
        wanted = method.rank(context, nodes, 2)
        kept = piece.x[piece.units == unit].float()
        assert torch.equal(kept, setting.graph.x[wanted])
        if sampler == "coverage" and space == "features":
            x, others = setting.graph.x[nodes], setting.graph.x[setting.graph.y != unit]
            counts = {int(node): int((torch.cdist(row[None], others) < 1.5).sum()) for node, row in zip(nodes, x)}
            assert sorted(counts[int(node)] for node in wanted) == sorted(counts.values())[:2]


def test_influences_are_koh_and_liangs() -> None:
    setting = make("gcn")
    function = partial(_outputs, setting)
    values = influences(
        function, setting.params, setting.problem, setting.batch.y, (function, setting.batch.y), 0.3, iterations=200
    )
    fisher = brute_fisher(setting, "exact") / 12
    gradients = torch.stack(
        [
            flat(node_gradient(setting, node, lambda z, k=int(label): -z.log_softmax(0)[k]))
            for node, label in zip(setting.nodes, setting.positions)
        ]
    )
    hessian = fisher + 0.3 * torch.eye(len(fisher), dtype=torch.float64)
    close(values, gradients @ torch.linalg.solve(hessian, gradients.sum(0)) / 12, tolerance=1e-5)


def _outputs(setting: Setting, params: dict[str, Tensor]) -> Tensor:
    outputs: Tensor = functional_call(setting.model, params, (setting.batch,))
    return outputs


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_covered_counts_the_nodes_within_so_many_hops(hops: int) -> None:
    graph = tiny_graph()
    neighbours = {v: set(graph.adjacency.rows(torch.tensor([v])).indices.tolist()) for v in range(12)}
    naive = []
    for node in range(12):
        reached = {node}
        for _ in range(hops):
            reached |= {other for one in reached for other in neighbours[one]}
        naive.append(len(reached))
    assert covered(graph.adjacency, hops).tolist() == naive


# subgraphs and vectors


def test_a_memory_of_all_neighbours_gives_the_outputs_of_the_whole_graph() -> None:
    """Three hops: two that a GCN reads, and one more for the degrees at the rim."""
    setting = make("gcn")
    nodes = torch.tensor([5, 2, 9])
    everyone = lambda node, neighbours, number: neighbours  # noqa: E731
    piece = with_neighbours(setting.graph, nodes, setting.graph.y[nodes], (99, 99, 99), everyone, torch.float64)
    graph, examples, targets = joined([piece], eg.GCN())
    outputs = setting.model(setting.problem.batcher(setting.model, graph).batch(examples))
    assert torch.allclose(outputs, setting.model(setting.batcher.batch(nodes)))
    assert torch.equal(targets[examples], setting.graph.y[nodes])


def test_a_subgraph_keeps_the_weights_of_its_edges() -> None:
    """The whole neighbourhood again, of a graph with weights, after examples have left and after it was packed."""
    plain = tiny_graph()
    weights = torch.rand(plain.num_edges, generator=torch.Generator().manual_seed(0)) + 0.5
    setting = make("gcn", graph=plain.altered(adjacency=plain.adjacency.with_values(weights)))
    nodes = torch.tensor([5, 2, 9])
    everyone = lambda node, neighbours, number: neighbours  # noqa: E731
    piece = with_neighbours(setting.graph, nodes, setting.graph.y[nodes], (99, 99, 99), everyone, torch.float64)
    graph, examples, _ = joined([Piece.unpack(piece.take(torch.tensor([0, 1])).pack())], eg.GCN())
    outputs = setting.model(setting.problem.batcher(setting.model, graph).batch(examples))
    assert torch.allclose(outputs, setting.model(setting.batcher.batch(nodes[:2])))
    assert not torch.allclose(outputs, setting.model(setting.problem.batcher(setting.model, plain).batch(nodes[:2])))


@pytest.mark.parametrize("name", ["ssm", "sem"])
def test_a_subgraph_has_so_many_neighbours_at_each_hop_and_all_edges_between_them(name: str) -> None:
    setting, method = (
        make("gcn", graph=tiny_graph(edges=40)),
        eg.make_method(name, {"per_class": 1, "neighbours": "2,1"}),
    )
    method.end_task(setting.context())
    (piece,) = method.pieces()
    assert piece.num_examples == 4
    assert 4 < piece.num_nodes <= 4 * (1 + 2 + 2)
    position = [int((setting.graph.x.double() == row).all(1).nonzero()) for row in piece.x]
    dense = setting.graph.adjacency.dense()[position][:, position]
    kept = torch.zeros_like(dense)
    kept[piece.edge_index[1].long(), piece.edge_index[0].long()] = 1
    assert torch.equal(kept, dense)
    for example, seed in enumerate(piece.seeds.tolist()):
        assert int(piece.owner[seed]) <= example
        brought = int((piece.owner == example).sum())
        assert brought <= 1 + 2 + 2


def test_neighbours_are_drawn_by_their_weights_and_those_wanted_first_come_first() -> None:
    context, neighbours = make("gcn").context(), torch.tensor([1, 4, 7, 8])
    weights = torch.zeros(12, dtype=torch.float64)
    weights[neighbours] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    pick = drawn_neighbours(context, weights)
    counts = torch.zeros(12)
    for _ in range(4000):
        counts[pick(0, neighbours, 1)] += 1
    assert torch.allclose(counts[neighbours] / 4000, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.03)
    first = torch.zeros(12, dtype=torch.float64)
    first[4] = 1
    pick = drawn_neighbours(context, weights, first)
    for _ in range(20):
        drawn = pick(0, neighbours, 2).tolist()
        assert drawn[0] == 4
        assert drawn[1] in (1, 7, 8)


def test_sem_keeps_the_neighbours_of_highest_curvature() -> None:
    setting = make("gcn", graph=tiny_graph(edges=40))
    curvature = EdgeCurvature(setting.graph.adjacency)
    for kind, measure in (("bound", bound_of(curvature)), ("ollivier", curvature.ollivier)):
        pick = eg.SEM(curvature=kind).pick(setting.context())
        for node in range(12):
            neighbours = setting.graph.adjacency.rows(torch.tensor([node])).indices
            values = [measure(node, int(other)) for other in neighbours]
            chosen = [measure(node, int(other)) for other in pick(node, neighbours, 2)]
            assert sorted(chosen, reverse=True) == sorted(values, reverse=True)[:2]


@pytest.mark.parametrize("neighbours", [(3, 1), (1, 3), (2, 1, 1)])
def test_sem_keeps_the_neighbours_of_highest_curvature_at_every_hop(neighbours: tuple[int, ...]) -> None:
    """Nodes with no more neighbours than another hop takes, too: the best of them is kept, not the first."""
    setting = make("gcn", graph=tiny_graph(seed=2, edges=18))
    context, bound = setting.context(), bound_of(EdgeCurvature(setting.graph.adjacency))
    method = eg.SEM(neighbours=neighbours)
    pieces = [method.store(context, node.reshape(1)) for node in setting.nodes]
    for seed, piece in zip(setting.nodes.tolist(), pieces):
        kept, frontier = {seed}, {seed}
        for number in neighbours:
            outer = set[int]()
            for node in frontier:
                around = setting.graph.adjacency.rows(torch.tensor([node])).indices.tolist()
                outer |= set(sorted(around, key=lambda other, node=node: (-bound(node, other), other))[:number])
            kept, frontier = kept | outer, outer
        found = [int((setting.graph.x.double() == row).all(1).nonzero()) for row in piece.x.double()]
        assert set(found) == kept


def bound_of(curvature: EdgeCurvature) -> Callable[[int, int], float]:
    """Jost and Liu's bound at one edge, by its definition."""

    def bound(node: int, other: int) -> float:
        mine, theirs = (set(curvature.neighbours(end).tolist()) for end in (node, other))
        small, large = sorted((len(mine), len(theirs)))
        common, rest = len(mine & theirs), 1 - 1 / small - 1 / large
        naive = -max(rest - common / small, 0) - max(rest - common / large, 0) + common / large
        assert float(curvature.bound(node, np.array([other]))[0]) == pytest.approx(naive)
        return naive

    return bound


def edges_of(*pairs: tuple[int, int]) -> EdgeCurvature:
    number = max(max(pair) for pair in pairs) + 1
    return EdgeCurvature(eg.make_graph(np.zeros((number, 1)), np.array(pairs).T, undirected=True).adjacency)


def test_curvature_of_known_graphs() -> None:
    complete = edges_of(*itertools.combinations(range(5), 2))
    assert complete.ollivier(0, 3) == pytest.approx(3 / 4)  # (n − 2)/(n − 1)
    assert float(complete.bound(0, np.array([3]))[0]) == pytest.approx(3 / 4)
    cycle = edges_of((0, 1), (1, 2), (2, 3), (3, 0))
    assert cycle.ollivier(0, 1) == pytest.approx(0)
    tree = edges_of((0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7))
    for node, other in [(0, 1), (0, 2), (1, 4)]:  # the bound is exact on trees
        assert tree.ollivier(node, other) == pytest.approx(tree.bound(node, np.array([other]))[0])
    assert tree.ollivier(0, 1) == pytest.approx(-2 * (1 - 1 / 3 - 1 / 5))


def test_ollivier_is_what_moving_the_neighbours_costs_and_jost_and_liu_bound_it() -> None:
    adjacency = tiny_graph(edges=40).adjacency
    curvature, dense = EdgeCurvature(adjacency), adjacency.dense().numpy()
    distance = np.full(dense.shape, np.inf)
    power, reached = np.eye(12), np.zeros_like(dense, dtype=bool)
    for steps in range(12):  # the first power of A with an entry
        new = (power > 0) & ~reached
        distance[new], reached = steps, reached | new
        power = power @ dense
    gaps = []
    for node, other in np.argwhere(dense > 0):
        mine, theirs = np.flatnonzero(dense[node]), np.flatnonzero(dense[other])
        cost = distance[np.repeat(mine, theirs.size)][:, np.repeat(theirs, mine.size)]  # equal masses, so an assignment
        naive = 1 - cost[linear_sum_assignment(cost)].sum() / cost.shape[0]
        exact = curvature.ollivier(node, other)
        assert exact == pytest.approx(naive)
        gaps.append(exact - curvature.bound(node, np.array([other]))[0])
    assert min(gaps) > -1e-9
    assert max(gaps) > 0.01


def test_tem_remembers_outputs_exactly_with_a_model_that_propagates_without_parameters() -> None:
    graph = tiny_graph()
    model = eg.PDGNN(hidden=5, steps=2)
    model.setup(4, 4)
    model.double()
    setting = make("gcn")
    batcher = setting.problem.batcher(model, graph)
    context = setting.context()
    context.model, context.batcher = model, batcher
    method = eg.TEM(per_class=3)
    method.end_task(context)
    replayed = method.replayed(context)
    in_memory = model(replayed.batch)
    in_graph = model(batcher.batch(torch.arange(12)))
    for outputs, unit in zip(in_memory, replayed.batch.y):
        rows = in_graph[graph.y == unit]
        assert float((rows - outputs).abs().max(1).values.min()) < 1e-12
    assert int(replayed.batch.operator.nnz) == 0  # no neighbour is kept


# composition: the memory as the stand-ins of the curvature regularizer


def test_the_curvature_over_a_memory_is_the_fisher_matrix_of_its_examples() -> None:
    setting = make("gcn")
    memory, curvature = (
        eg.SSM(per_class=2, strength=0.0, label_neighbours=False),
        eg.StandInCurvature(strength=0.3, from_memory=True),
    )
    method = eg.Compose(memory, curvature)
    context = setting.context()
    context.method = method
    method.start_task(context)
    method.end_task(context)
    anchor = setting.params
    setting.load({name: value + 0.1 * setting.direction()[name] for name, value in anchor.items()})
    displacement = flat({name: value - anchor[name] for name, value in setting.params.items()})
    replayed = memory.replayed(context)
    there = Setting(setting.graph, setting.model, replayed.batcher, setting.problem, replayed.examples)
    assert replayed.stands_for.tolist() == [1.5] * 8  # three nodes of each class, two of which are kept
    close(pull(method, context), 0.3 * 1.5 * brute_fisher(there, "exact") @ displacement)


def test_without_a_memory_there_is_nothing_to_stand_in() -> None:
    stream = eg.TaskStream(sbm(nodes=60, classes=4, features=5), 2)
    with pytest.raises(EvergraphError, match="compose it with a replay method"):
        eg.Learner(eg.GCN(hidden=4), eg.OnlineCurvature(nodes="memory"), epochs=1).learn(stream[0])
    composed = eg.make_method("ssm+curvature", {"nodes": "memory", "ema": "0"})
    learner = eg.Learner(eg.GCN(hidden=4), composed, epochs=1).fit(stream)
    assert learner.method.access.keeps == ("parameters", "real nodes", "graphs")
    assert not [
        name for name in learner.method.state_dict() if "stand_ins_" in name and learner.method.state_dict()[name]
    ]


# what is refused


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: eg.Reservoir(per_class=0), "Reservoir: per_class=0 must be a whole number of at least 1"),
        (lambda: eg.Reservoir(memory="much"), "reservoir: memory='much' is not an amount"),
        (lambda: eg.GDumb(memory=3.5), "GDumb: memory=3.5 must be text or a whole number"),
        (lambda: eg.GEM(margin=-1), "GEM: margin=-1 must be a finite number of at least 0"),
        (lambda: eg.AGEM(replay_size=-1), "AGEM: replay_size=-1 must be a whole number of at least 0"),
        (lambda: eg.TEM(weighting="all"), "TEM: weighting='all' must be one of: classes, nodes, sets, examples"),
        (lambda: eg.ERGNN(damping=0.0), "ERGNN: damping=0.0 must be a finite number above 0"),
        (lambda: eg.ERGNN(radius=-1.0), "ERGNN: radius=-1.0 must be a finite number of at least 0"),
        (lambda: eg.ERGNN(sampler="best"), "ERGNN: sampler='best' must be one of: mean-of-feature, coverage, "),
        (
            lambda: eg.SSM(neighbours=(3, -1)),
            r"SSM: neighbours=\(3, -1\) must be a list, each item a whole number",
        ),
        (lambda: eg.SEM(curvature="none"), "SEM: curvature='none' must be one of: bound, ollivier"),
        (lambda: eg.make_method("ssm", {"neighbours": "3,x"}), "ssm: neighbours='3,x' must be a list"),
    ],
)
def test_bad_settings_are_refused(make_one: object, message: str) -> None:
    with pytest.raises(EvergraphError, match=message):
        make_one()  # type: ignore[operator]


# from the command line


def test_memory_is_an_option_of_every_command_that_runs_a_method(evergraph, tmp_path, without_pictures) -> None:
    small = ["--epochs", "1", "--hidden", "8", "--json"]
    stream = "sbm:nodes=80,classes=4,features=6"
    status, out, _ = evergraph("run", stream, "--method", "ssm", "--memory", "1KB", *small, "--out", tmp_path / "run")
    assert status == 0
    assert '"memory": "1KB"' in out
    status, _, said = evergraph("run", stream, "--method", "ewc", "--memory", "1KB", *small, "--out", tmp_path / "ewc")
    assert status == 2
    assert said.count("\n") == 1
    assert "--memory: ewc keeps no examples" in said
    status, _, said = evergraph(
        "run", stream, "--method", "ssm", "--memory", "many", *small, "--out", tmp_path / "many"
    )
    assert status == 2
    assert "memory='many' is not an amount" in said
    status, out, _ = evergraph(
        "compare", stream, "--methods", "finetune,reservoir", "--memory", "1KB", "--seeds", "1", *small,
        "--out", tmp_path / "compare",
    )  # fmt: skip
    assert status == 0
