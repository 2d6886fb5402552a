"""Models: equal to the formulas, to PyG's layers, and to themselves in every way of batching."""

from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

import evergraph as eg
from evergraph.data.datasets.sbm import sbm
from evergraph.models import LayerNormGCN, LayerNormGraphSAGE, ModuleModel, as_model, neighbourhoods
from evergraph.models.base import GraphModel

pytestmark = pytest.mark.filterwarnings("ignore:.*given in one direction and are read in both")

CHANNELS = (6, 5)
MODELS: dict[str, Callable[[], GraphModel]] = {
    "gcn": lambda: eg.GCN(hidden=16),
    "gcn-3": lambda: eg.GCN(hidden=16, num_layers=3),
    "gcn-1": lambda: eg.GCN(num_layers=1),
    "gcn-plain": lambda: eg.GCN(hidden=16, propagate_inputs=False),
    "gcn-propagated": lambda: eg.GCN(hidden=16, propagate_inputs=True),
    "sage": lambda: eg.GraphSAGE(hidden=16),
    "sage-3": lambda: eg.GraphSAGE(hidden=16, num_layers=3),
    "gcn-layer-norm": lambda: LayerNormGCN(hidden=16, num_layers=3),
    "sage-layer-norm": lambda: LayerNormGraphSAGE(hidden=16),
    "gat": lambda: eg.GAT(hidden=16, heads=4),
    "gat-3": lambda: eg.GAT(hidden=16, heads=2, num_layers=3),
    "pdgnn": lambda: eg.PDGNN(hidden=16),
}
GRAPHS = ("dense", "sparse", "directed")


class Stack(nn.Module):
    """Two layers of anyone's."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(CHANNELS[0], 8), layer(8, CHANNELS[1])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Propagated(nn.Module):
    """APPNP: a linear map and five steps of propagation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.steps = nn.Linear(*CHANNELS), pyg.APPNP(5, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.steps(self.linear(x), edge_index)


FOREIGN: dict[str, tuple[Callable[[], nn.Module], int]] = {  # and the hops they look
    "pyg-gcn": (lambda: pyg.GCN(6, 8, 2, 5), 3),
    "pyg-gat": (lambda: pyg.GAT(6, 8, 2, 5), 2),
    "pyg-sage": (lambda: pyg.GraphSAGE(6, 8, 2, 5), 2),
    "pyg-gin": (lambda: pyg.GIN(6, 8, 2, 5), 2),
    "pyg-gcn-jk": (lambda: pyg.GCN(6, 8, 3, 5, jk="cat"), 4),
    "gatv2": (lambda: Stack(pyg.GATv2Conv), 2),
    "sgc": (lambda: Stack(lambda i, o: pyg.SGConv(i, o, K=2)), 5),
    "cheb": (lambda: Stack(lambda i, o: pyg.ChebConv(i, o, K=3)), 6),
    "appnp": (Propagated, 6),
}


@pytest.fixture(scope="module")
def graphs() -> dict[str, eg.Graph]:
    graph = sbm(nodes=120, classes=5, degree=5, features=6, seed=3)
    x = graph.x.double()
    thin = sp.csr_matrix((x * (x.abs() > 1)).numpy())
    one_way = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    return {
        "dense": eg.make_graph(x, graph.edge_index, graph.y),
        "sparse": eg.make_graph(thin, graph.edge_index, graph.y),
        "directed": eg.make_graph(x, one_way, graph.y),
    }


def built(make: Callable[[], nn.Module]) -> GraphModel:
    torch.manual_seed(1)
    model = as_model(make())
    model.setup(*CHANNELS)
    for parameter in model.parameters():  # biases start at zero, where many mistakes cannot be seen
        nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def dense_x(graph: eg.Graph) -> Tensor:
    return graph.x if isinstance(graph.x, Tensor) else graph.x.dense()


def batched(model: GraphModel, graph: eg.Graph, size: int | None, **options: object) -> Tensor:
    with torch.no_grad():
        cut = neighbourhoods(model, graph, **options)
        return torch.cat([model(batch) for batch in cut.batches(torch.arange(graph.num_nodes), size)])


def dense_gcn(model: eg.GCN, graph: eg.Graph) -> Tensor:
    """H ← Ã [X 1] W̃, X ← ReLU(H): the paper's equations, written with full matrices."""
    with_loops = graph.adjacency.dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)
    scale = torch.diag(with_loops.sum(1).rsqrt())
    operator = scale @ with_loops @ scale
    hidden = dense_x(graph)
    for number, weight in enumerate(model.weights):
        if number:
            hidden = hidden.relu()
        hidden = operator @ torch.cat([hidden, torch.ones(graph.num_nodes, 1, dtype=torch.float64)], 1) @ weight
    return hidden


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", ["gcn", "gcn-3", "gcn-1", "gcn-plain", "gcn-propagated"])
def test_gcn_equals_the_dense_formula(graphs: dict[str, eg.Graph], kind: str, name: str) -> None:
    model = built(MODELS[name])
    torch.testing.assert_close(batched(model, graphs[kind], 16), dense_gcn(model, graphs[kind]))


@pytest.mark.parametrize("kind", GRAPHS)
def test_gcn_equals_pygs_layers_with_the_bias_propagated(graphs: dict[str, eg.Graph], kind: str) -> None:
    """The paper's bias is a row of the weight matrix and is propagated as the weights are; PyG adds its own after."""
    model, graph = built(MODELS["gcn"]), graphs[kind]
    layers = [pyg.GCNConv(*shape, bias=False).double() for shape in ((7, 16), (17, 5))]
    hidden = dense_x(graph)
    for layer, weight in zip(layers, model.weights):
        layer.lin.weight.data = weight.data.T.clone()
        hidden = hidden if layer is layers[0] else hidden.relu()
        ones = torch.ones(graph.num_nodes, 1, dtype=torch.float64)
        hidden = layer(torch.cat([hidden, ones], 1), graph.edge_index)
    torch.testing.assert_close(batched(model, graph, 16), hidden)


@pytest.mark.parametrize("kind", GRAPHS)
def test_pdgnn_is_an_mlp_over_propagated_features(graphs: dict[str, eg.Graph], kind: str) -> None:
    model, graph = built(lambda: eg.PDGNN(hidden=16, steps=3, mlp_layers=3)), graphs[kind]
    with_loops = graph.adjacency.dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)
    scale = torch.diag(with_loops.sum(1).rsqrt())
    hidden = torch.linalg.matrix_power(scale @ with_loops @ scale, 3) @ dense_x(graph)
    for number, weight in enumerate(model.weights):
        hidden = (hidden.relu() if number else hidden) @ weight[:-1] + weight[-1]
    torch.testing.assert_close(batched(model, graph, 16), hidden)
    torch.testing.assert_close(batched(model, graph, 16, propagate=False), hidden)


@pytest.mark.parametrize("kind", GRAPHS)
def test_sage_equals_pygs_mean_layers(graphs: dict[str, eg.Graph], kind: str) -> None:
    model, graph = built(MODELS["sage"]), graphs[kind]
    hidden = dense_x(graph)
    for number, (weight, shape) in enumerate(zip(model.weights, ((6, 16), (16, 5)))):
        layer = pyg.SAGEConv(*shape, aggr="mean").double()
        own, mean, bias = weight.data.split([shape[0], shape[0], 1])
        layer.lin_r.weight.data, layer.lin_l.weight.data, layer.lin_l.bias.data = own.T, mean.T, bias[0]
        hidden = layer(hidden.relu() if number else hidden, graph.edge_index)
    torch.testing.assert_close(batched(model, graph, 16), hidden)


@pytest.mark.parametrize("kind", GRAPHS)
def test_gat_equals_pygs_layers(graphs: dict[str, eg.Graph], kind: str) -> None:
    """Attention weights sum to one over a node's neighbours, so a bias before and after them is the same;
    before them it also enters the scores, which PyG's layer shows when the ones are an input column."""
    model, graph = built(MODELS["gat"]), graphs[kind]
    hidden = dense_x(graph)
    for number, (weight, source, target) in enumerate(zip(model.weights, model.sources, model.targets)):
        heads, width = source.shape
        layer = pyg.GATConv(weight.size(0), width, heads, bias=False).double()
        layer.lin.weight.data = weight.data.T.clone()
        layer.att_src.data, layer.att_dst.data = source.data.unsqueeze(0), target.data.unsqueeze(0)
        hidden = nn.functional.elu(hidden) if number else hidden
        ones = torch.ones(graph.num_nodes, 1, dtype=torch.float64)
        hidden = layer(torch.cat([hidden, ones], 1), graph.edge_index)
    torch.testing.assert_close(batched(model, graph, 16), hidden)


@pytest.mark.parametrize("kind", GRAPHS)
def test_layer_norm_is_the_formula(kind: str, graphs: dict[str, eg.Graph]) -> None:
    """Ã [σ(LN(Ã [X 1] W¹)) 1] W² with dense matrices, the normalization written out."""
    model, graph = built(lambda: LayerNormGCN(hidden=16)), graphs[kind]
    with torch.no_grad():
        for value in model.norms[0].parameters():  # other than one and zero
            value.add_(torch.linspace(0, 1, 16, dtype=value.dtype))
    first, second = model.weights
    operator = model.operator(graph).dense()
    ones = torch.ones(graph.num_nodes, 1, dtype=torch.float64)
    hidden = operator @ torch.cat([dense_x(graph), ones], 1) @ first
    centred = hidden - hidden.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    active = (scaled * model.norms[0].weight + model.norms[0].bias).relu()
    wanted = operator @ torch.cat([active, ones], 1) @ second
    torch.testing.assert_close(batched(model, graph, 16), wanted)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_batches_full_batch_and_pyg_style_agree(graphs: dict[str, eg.Graph], kind: str, name: str) -> None:
    model, graph = built(MODELS[name]), graphs[kind]
    whole = batched(model, graph, None)
    torch.testing.assert_close(batched(model, graph, 7), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(batched(model, graph, 7, propagate=False), whole, rtol=1e-12, atol=1e-12)
    called = model(dense_x(graph), graph.edge_index)
    torch.testing.assert_close(called.detach(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_modules_in_batches_equal_themselves_on_the_graph(graphs: dict[str, eg.Graph], name: str) -> None:
    make, hops = FOREIGN[name]
    model = built(make)
    assert isinstance(model, ModuleModel)
    assert model.num_hops == hops
    for kind in GRAPHS[: 2 if name == "cheb" else 3]:  # ChebConv divides by out-degrees, which batches do not hold
        graph = graphs[kind]
        with torch.no_grad():
            whole = model.module(dense_x(graph), graph.edge_index)
            assert torch.equal(model(dense_x(graph), graph.edge_index), whole)
        torch.testing.assert_close(batched(model, graph, 7), whole, rtol=1e-12, atol=1e-12)


def test_two_foreign_modules_on_one_graph_do_not_share_their_reach(graphs: dict[str, eg.Graph]) -> None:
    graph = graphs["dense"]
    shallow, deep = built(lambda: pyg.GIN(6, 8, 1, 5)), built(lambda: pyg.GIN(6, 8, 3, 5))
    for model in (shallow, deep):
        with torch.no_grad():
            whole = model.module(graph.x, graph.edge_index)
        torch.testing.assert_close(batched(model, graph, 5), whole, rtol=1e-12, atol=1e-12)


class EverythingAtOnce(nn.Module):
    """Looks at all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(*CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


def test_a_module_that_looks_everywhere_has_to_say_how_far() -> None:
    with pytest.raises(eg.EvergraphError, match=r"depends on nodes more than 16 hops away.*num_hops=2"):
        as_model(EverythingAtOnce()).setup(*CHANNELS)
    model = ModuleModel(EverythingAtOnce(), num_hops=1)
    model.setup(*CHANNELS)
    assert model.num_hops == 1


def test_a_module_of_another_kind_is_refused() -> None:
    with pytest.raises(eg.EvergraphError, match=r"Linear: could not find out how many hops it looks"):
        as_model(nn.Linear(3, 2)).setup(3, 2)
    with pytest.raises(eg.EvergraphError, match="a model is a torch module, not str"):
        as_model("gcn")
    with pytest.raises(eg.EvergraphError, match="Learner: model=7 must be None or of type Module"):
        eg.Learner(7)


def test_measuring_the_reach_changes_nothing() -> None:
    module = pyg.GCN(6, 8, 2, 5, norm="batch_norm", dropout=0.5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    as_model(module).setup(*CHANNELS)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training


def test_a_module_with_too_few_outputs_is_named(small_stream: eg.TaskStream) -> None:
    learner = eg.Learner(pyg.GCN(8, 8, 2, 4), epochs=1)
    with pytest.raises(eg.EvergraphError, match="GCN has 4 outputs but the stream has 6 classes"):
        learner.learn(small_stream[0])


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_sampled_neighbourhoods_train_and_are_exact_when_wide(graphs: dict[str, eg.Graph], name: str) -> None:
    model, graph = built(MODELS[name]), graphs["dense"]
    exact = batched(model, graph, 16)
    torch.testing.assert_close(batched(model, graph, 16, fan_out=(200, 200)), exact, rtol=1e-12, atol=1e-12)
    torch.manual_seed(0)
    assert not torch.allclose(batched(model, graph, 16, fan_out=(2, 2)), exact)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["gcn-plain", "sage"])
def test_one_sampled_layer_is_unbiased(graphs: dict[str, eg.Graph], kind: str, name: str) -> None:
    """A model that is linear in what it samples: the mean of many sampled logits is the exact one."""
    graph = graphs[kind]
    make = {"gcn-plain": lambda: eg.GCN(num_layers=1, propagate_inputs=False), "sage": MODELS["sage"]}[name]
    model = built(make)  # GraphSAGE's first layer is exact, its second is linear in the sampled mean
    exact = batched(model, graph, None)
    torch.manual_seed(0)
    draws = torch.stack([batched(model, graph, None, fan_out=(2, 2)) for _ in range(200)])
    error = draws.std(0) / 200**0.5
    assert float(draws.std(0).max()) > 0.1
    assert bool(((draws.mean(0) - exact).abs() <= 5.5 * error + 1e-12).all())


@pytest.mark.parametrize("name", MODELS)
def test_growing_keeps_the_old_outputs(graphs: dict[str, eg.Graph], name: str) -> None:
    model, graph = built(MODELS[name]), graphs["dense"]
    before = batched(model, graph, None)
    model.grow(9)
    after = batched(model, graph, None)
    assert after.shape == (graph.num_nodes, 9)
    assert model.out_channels == 9
    if not name.startswith("gat"):  # the last layer's attention is over all its outputs, so it moves a little
        torch.testing.assert_close(after[:, :5], before, rtol=1e-12, atol=1e-12)
    assert float(after[:, 5:].std()) > 0


def test_a_foreign_module_cannot_grow() -> None:
    model = built(FOREIGN["pyg-gcn"][0])
    with pytest.raises(eg.EvergraphError, match="cannot grow by itself"):
        model.grow(9)


@pytest.mark.parametrize("name", MODELS)
def test_hyperparameters_make_an_equal_model(name: str) -> None:
    model = MODELS[name]()
    again = type(model)(**model.hyperparameters())
    assert again.hyperparameters() == model.hyperparameters()


def test_the_papers_gcn_is_the_default() -> None:
    model = eg.GCN()
    model.setup(100, 15)
    assert [tuple(weight.shape) for weight in model.weights] == [(101, 256), (257, 15)]
    assert all(float(weight.detach()[-1].abs().max()) == 0 for weight in model.weights)  # biases start at zero


def test_bad_models_are_named() -> None:
    with pytest.raises(eg.EvergraphError, match="8 heads do not divide hidden=10"):
        eg.GAT(hidden=10)
    with pytest.raises(eg.EvergraphError, match="unknown model 'mlp'; choose one of: gcn, sage, gat"):
        eg.models.make_model("mlp")
    with pytest.raises(eg.EvergraphError, match="features and edge_index"):
        built(MODELS["gcn"])(torch.zeros(3, 6))
