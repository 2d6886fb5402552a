"""Diagonals, Kronecker factors and their kin against loops over single nodes; memory; the guard."""

from collections.abc import Callable

import pytest
import torch
from curvlinops import FisherType, KFACLinearOperator, KFACType
from torch import Tensor, nn
from torch_geometric import nn as pyg

import evergraph as eg
from brute_force import (
    CLASSES,
    FEATURES,
    Setting,
    brute_fisher,
    cases,
    close,
    flat,
    make,
    node_fisher_rows,
    node_gradient,
    node_labels,
    own_cases,
    seeded,
    tiny_graph,
)
from evergraph.core.capabilities import capable
from evergraph.core.features import as_dense
from evergraph.core.recording import recorded_products
from evergraph.core.shortcuts import fast_paths
from evergraph.curvature import (
    LABELS,
    fisher_diagonal,
    kronecker_factors,
    measuring,
    per_example,
    pick_labels,
    random_sign_diagonal,
    require_deterministic,
    squared_batch_gradients,
    sum_of_powers,
)
from evergraph.data.batching import Batch
from evergraph.models import ModuleModel, as_model, neighbourhoods
from evergraph.problems import NodeClassification

every_kind = pytest.mark.parametrize("labels", LABELS)


def picked(setting: Setting, size: int) -> Tensor:
    """The labels that `sample` draws when nodes come in batches of a size."""
    generator = seeded()
    drawn = [
        pick_labels(setting.problem, setting.model(batch), "sample", generator=generator)
        for batch in setting.batches(size)
    ]
    return torch.cat(drawn)


@cases
@every_kind
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
@pytest.mark.parametrize("shortcuts", [True, False], ids=["fast", "plain"])
def test_the_diagonal_is_that_of_the_matrix(
    case: str, labels: str, classes: tuple[int, ...], shortcuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shortcuts and "gcn" not in case:
        pytest.skip("only GCN has a shortcut")
    monkeypatch.setattr(per_example, "EXAMPLES_AT_ONCE", 5)
    setting = make(case, classes)
    with fast_paths(*(("structure",) if shortcuts else ())):
        got = fisher_diagonal(setting.model, setting.batches, setting.problem, labels, seeded())
    by_equations = capable(setting.model, "example_powers") is not None
    drawn = picked(setting, 20 if by_equations else 5) if labels == "sample" else None
    close(flat(got), brute_fisher(setting, labels, drawn).diagonal())


@cases
def test_sums_of_absolute_values(case: str) -> None:
    setting = make(case)
    want = sum(flat(node_gradient(setting, node, lambda z: z.square().sum())).abs() for node in setting.nodes)
    got = sum_of_powers(setting.model, setting.batches, lambda batch, logits: 2 * logits.unsqueeze(1), power=1)
    close(flat(got), want)


@cases
def test_memory_is_bounded_and_does_not_change_the_result(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, real = make(case), torch.vmap
    rows: list[int] = []

    def watched(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def call(cotangents: Tensor) -> tuple[Tensor, ...]:
            rows.append(cotangents.size(0))
            return real(function)(cotangents)

        return call

    def measure(memory: int) -> tuple[Tensor, int]:
        rows.clear()
        with fast_paths():
            found = fisher_diagonal(setting.model, setting.batches, setting.problem, memory=memory)
        return flat(found), max(rows)

    monkeypatch.setattr(torch, "vmap", watched)
    wide, all_rows = measure(2**30)
    assert all_rows == 12 * CLASSES  # all nodes and classes at once
    # a row takes at least its gradients and its logits, twice
    size = 2 * 8 * (sum(value.numel() for value in setting.params.values()) + 12 * CLASSES)
    narrow, few_rows = measure(20 * size)
    assert 1 <= few_rows <= 20
    close(narrow, wide)
    _, least = measure(1)
    assert least == 1


def test_a_hub_narrows_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the graph that a row goes back through, not the model alone."""
    kept: dict[str, int] = {}
    for name, edges in (("sparse", 8), ("dense", 400)):
        setting = make("gat", graph=tiny_graph(edges=edges, nodes=60))
        with per_example.counted_bytes() as sizes:
            setting.model(setting.batch)
        kept[name] = sum(sizes)
    assert kept["dense"] > 3 * kept["sparse"]


# Kronecker factors


def brute_factors(setting: Setting, labels: str) -> dict[str, tuple[Tensor, Tensor]]:
    """K-FAC by its definition: a loop over nodes and labels, rows of each weight's product one by one."""
    names = {id(value): name for name, value in setting.model.named_parameters()}
    rows: dict[str, dict[int, Tensor]] = {}
    outputs: dict[str, Tensor] = {}
    for number, node in enumerate(setting.nodes):
        with recorded_products() as products:
            batch = setting.batcher.batch(node.reshape(1))
            logits = setting.model(batch)[0, setting.scope]
        for weight, x, out, _ in products:
            name = names[id(weight)]
            for position, of in enumerate(batch.nodes[: out.size(0)].tolist()):
                rows.setdefault(name, {})[of] = as_dense(x)[position].detach()
        for share, label in node_labels(setting, number, labels, None):
            grads = torch.autograd.grad(
                logits.log_softmax(0)[label], [product.out for product in products], retain_graph=True
            )
            for (weight, *_), grad in zip(products, grads):
                name = names[id(weight)]
                for g in grad:
                    outputs[name] = outputs.get(name, 0) + share * torch.outer(g, g)
    return {
        name: (
            sum(torch.outer(x, x) for x in rows[name].values()) / len(rows[name]),
            outputs[name] / setting.nodes.numel(),
        )
        for name in outputs
    }


@own_cases
@pytest.mark.parametrize("labels", ["exact", "empirical"])
@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (1, 3)], ids=["all", "two"])
def test_kronecker_factors_by_their_definition(case: str, labels: str, classes: tuple[int, ...]) -> None:
    setting = make(case, classes)
    got = kronecker_factors(setting.model, setting.batches, setting.problem, labels)
    want = brute_factors(setting, labels)
    assert got.keys() == want.keys()
    assert len(got) == setting.model.num_layers
    for name, (inputs, outputs) in want.items():
        close(got[name].inputs, inputs)
        close(got[name].outputs, outputs)


@pytest.mark.parametrize("case", ["gcn", "gat"])
def test_kronecker_factors_do_not_depend_on_batches_or_memory(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from evergraph.curvature import kronecker as module

    setting = make(case)
    want = kronecker_factors(setting.model, setting.batches, setting.problem)
    monkeypatch.setattr(module, "SEEDS_AT_ONCE", 2)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    got = kronecker_factors(setting.model, setting.batches, setting.problem, memory=1)
    for name, factor in want.items():
        close(got[name].inputs, factor.inputs)
        close(got[name].outputs, factor.outputs)


def test_kfac_is_the_fisher_for_one_layer_and_one_node() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = eg.GCN(num_layers=1)
        model.setup(FEATURES, CLASSES)
    model.double()
    problem = NodeClassification(range(CLASSES))
    setting = Setting(tiny_graph(), model, problem.batcher(model, tiny_graph()), problem, torch.tensor([7]))
    factor = kronecker_factors(model, setting.batches, setting.problem)["weights.0"]
    close(torch.kron(factor.inputs, factor.outputs), brute_fisher(setting, "exact"))
    direction = setting.direction()["weights.0"]
    close(factor.apply(direction).flatten(), brute_fisher(setting, "exact") @ direction.flatten())
    # and is not, in general, for several nodes
    setting.nodes = torch.arange(6)
    factor = kronecker_factors(model, setting.batches, setting.problem)["weights.0"]
    fisher = brute_fisher(setting, "exact") / 6
    assert (torch.kron(factor.inputs, factor.outputs) - fisher).abs().max() > 1e-3 * fisher.abs().max()


@pytest.mark.filterwarnings("ignore")
def test_kronecker_factors_against_curvlinops_without_edges() -> None:
    """On a graph without edges a GCN is a perceptron, whose factors curvlinops knows."""
    setting = make("gcn", graph=tiny_graph(edges=0))
    linear = [nn.Linear(FEATURES, 3), nn.Linear(3, CLASSES)]
    for layer, weight in zip(linear, setting.model.weights):
        layer.weight = nn.Parameter(weight[:-1].detach().T.clone())
        layer.bias = nn.Parameter(weight[-1].detach().clone())
    module = nn.Sequential(linear[0], nn.ReLU(), linear[1]).double()
    x = setting.batch.dense_x[:, :-1]
    reference = KFACLinearOperator(
        module, nn.CrossEntropyLoss(reduction="mean"), list(module.parameters()), [(x, setting.batch.y)],
        fisher_type=FisherType.TYPE2, kfac_approx=KFACType.EXPAND, separate_weight_and_bias=False,
    )  # fmt: skip
    factors = kronecker_factors(setting.model, setting.batches, setting.problem)
    d = setting.direction()
    got = [factors[name].apply(d[name]) for name in ("weights.0", "weights.1")]
    vector = torch.cat([torch.cat([part[:-1].T.flatten(), part[-1]]) for part in d.values()])
    want = reference @ vector
    close(torch.cat([torch.cat([part[:-1].T.flatten(), part[-1]]) for part in got]), want)


# shortcuts and estimates


@own_cases
@pytest.mark.parametrize("labels", ["empirical", "pred"])
def test_squared_batch_gradients_are_the_fisher_for_single_nodes_alone(case: str, labels: str) -> None:
    setting = make(case)
    over = (setting.problem, labels)
    fisher = brute_fisher(setting, labels).diagonal()
    close(flat(squared_batch_gradients(setting.model, setting.batches(1), *over)), fisher)
    together = flat(squared_batch_gradients(setting.model, setting.batches(12), *over))
    summed = sum(row for (row,) in node_fisher_rows(setting, labels))
    close(together, summed.square() / 12)
    assert (together <= fisher + 1e-12).all()  # single-node gradients cancel before they are squared
    assert (fisher - together).max() > 0.01 * fisher.max()


def test_at_a_stationary_point_the_shortcut_vanishes_and_the_fisher_does_not() -> None:
    setting = make("gcn-1-layer")
    model = setting.model
    setting.batcher.x[:] = setting.batcher.x[:1]  # equal nodes whose labels are balanced:
    nn.init.zeros_(model.weights[0])  # equal probabilities are the best
    over = (setting.problem, "empirical")
    shortcut = flat(squared_batch_gradients(model, setting.batches(12), *over))
    assert shortcut.sum() < 1e-20
    assert flat(fisher_diagonal(model, setting.batches, *over)).sum() > 1


def test_random_signs_are_unbiased() -> None:
    setting = make("gcn")
    params = dict(setting.model.named_parameters())
    logits = setting.model(setting.batch)
    cotangent = setting.problem.score(logits.detach(), setting.batch.y)
    want = brute_fisher(setting, "empirical").diagonal()
    generator = seeded()
    draws = torch.stack([flat(random_sign_diagonal(logits, params, cotangent, generator)) for _ in range(2000)])
    error = (draws.mean(0) - want).abs()
    assert (error <= 5 * draws.std(0) / 2000**0.5 + 1e-12).all()


# the guard


def test_dropout_is_noticed_in_the_mode_that_counts() -> None:
    model = eg.GCN(hidden=3, dropout=0.5)
    model.setup(FEATURES, CLASSES)
    batch = neighbourhoods(model, tiny_graph()).batch(torch.arange(4))
    require_deterministic(model.train(), batch)  # measured in evaluation mode, where dropout is off
    state = torch.get_rng_state()
    with pytest.raises(eg.EvergraphError, match=r"GCN draws random numbers.*set dropout=0"):
        require_deterministic(model.eval(), batch, training=True)
    assert torch.equal(torch.get_rng_state(), state)  # nobody's random numbers are touched
    assert not model.training
    with measuring(model.train(), batch):
        assert not model.training
    assert model.training


def test_randomness_that_is_not_torchs_is_noticed() -> None:
    class Noisy(nn.Module):
        calls = 0.0

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.calls += 1
            return x[:, :CLASSES] * self.calls

    model = ModuleModel(Noisy(), num_hops=1)
    model.setup(FEATURES, CLASSES)
    batch: Batch = neighbourhoods(model, tiny_graph()).batch(torch.arange(4))
    with pytest.raises(eg.EvergraphError, match="draws random numbers"):
        require_deterministic(model, batch)


def test_the_guard_leaves_running_statistics_alone() -> None:
    model = as_model(pyg.GCN(FEATURES, 3, 2, CLASSES, norm="batch_norm"))
    model.setup(FEATURES, CLASSES)
    model.train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert before
    require_deterministic(model, neighbourhoods(model, tiny_graph()).batch(torch.arange(12)), training=True)
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name]), name
