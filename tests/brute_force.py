"""The naive answers that curvature and methods are tested against: loops over nodes and classes in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch_geometric import nn as pyg

import evergraph as eg
from evergraph.core.params import Params
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph, make_graph
from evergraph.data.tasks import Task
from evergraph.methods.base import Context, Method
from evergraph.models import ModuleModel, as_model
from evergraph.models.base import GraphModel
from evergraph.problems import NodeClassification
from evergraph.training.step import train_step

FEATURES, CLASSES, NODES = 4, 4, 12


def tiny_graph(seed: int = 0, edges: int = 18, nodes: int = NODES) -> Graph:
    """12 nodes in a random graph, features with some zeros, 4 classes."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((nodes, FEATURES)) * (random.random((nodes, FEATURES)) < 0.8)
    edge_index = random.integers(0, nodes, (2, edges))
    y = np.arange(nodes) % CLASSES
    return make_graph(x.astype(np.float32), edge_index, y, undirected=True, name="tiny")


@dataclass
class Setting:
    """A model in float64, its batches, and the problem: a softmax over the classes in scope."""

    graph: Graph
    model: GraphModel
    batcher: Neighbourhoods
    problem: NodeClassification
    nodes: Tensor
    case: str = ""  # which of `CASES` it is, on the graph that all of them have

    @property
    def scope(self) -> list[int]:
        """The output units of the softmax."""
        assert self.problem.scope is not None
        return self.problem.scope.tolist()

    @property
    def positions(self) -> Tensor:
        """The nodes' true labels, as positions in the scope."""
        return torch.tensor([self.scope.index(unit) for unit in self.batch.y.tolist()])

    @property
    def batch(self) -> Batch:
        return self.batcher.batch(self.nodes)

    @property
    def params(self) -> Params:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def batches(self, size: int) -> Iterator[Batch]:
        return self.batcher.batches(self.nodes, size)

    def function(self, params: Params) -> Tensor:
        """From parameters to all outputs of all nodes."""
        outputs: Tensor = functional_call(self.model, params, (self.batch,))
        return outputs

    def load(self, params: Params) -> None:
        self.model.load_state_dict(params)

    def context(self, reduction: str = "sum", old: tuple[int, ...] = (), batch_size: int | None = None) -> Context:
        """What a method is given: a task whose training nodes are the setting's."""
        none = self.nodes[:0]
        task = Task(0, self.scope, self.graph, self.nodes, none, none, CLASSES)
        return Context(
            model=self.model, task=task, problem=self.problem, index=0, old=torch.tensor(old, dtype=torch.long),
            class_names=[*old, *task.class_names],
            batcher=self.batcher, batch_size=batch_size, generator=seeded(), reduction=reduction, arrived=task,
        )  # fmt: skip

    def direction(self, seed: int = 5) -> Params:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
            for name, value in self.params.items()
        }


Case = Callable[[], torch.nn.Module]
CASES: dict[str, Case] = {
    "gcn": lambda: eg.GCN(hidden=3),
    "gcn-unpropagated": lambda: eg.GCN(hidden=3, propagate_inputs=False),
    "gcn-1-layer": lambda: eg.GCN(num_layers=1),
    "gcn-3-layers": lambda: eg.GCN(hidden=3, num_layers=3),
    "sage": lambda: eg.GraphSAGE(hidden=3),
    "gat": lambda: eg.GAT(hidden=4, heads=2),
    "pyg": lambda: ModuleModel(pyg.GCN(FEATURES, 3, 2, CLASSES), num_hops=3),  # two layers and the degrees at the rim
}
OWN = [name for name in CASES if name != "pyg"]
cases = pytest.mark.parametrize("case", CASES)
own_cases = pytest.mark.parametrize("case", OWN)


def make(case: str, classes: tuple[int, ...] = (0, 1, 2, 3), graph: Graph | None = None) -> Setting:
    """A case set up in float64, over the nodes of the given classes."""
    known, graph = ("", graph) if graph else (case, tiny_graph())
    model = as_model(CASES[case]())
    model.setup(FEATURES, CLASSES)
    model.double().eval()
    problem = NodeClassification(classes)
    batcher = problem.batcher(model, graph)
    nodes = torch.nonzero(torch.isin(graph.y, torch.tensor(classes))).reshape(-1)
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        for value in model.parameters():  # larger than at the start of training, so that no term is negligible
            value.data = torch.randn(value.shape, generator=generator, dtype=torch.float64) * 0.7
        grads = torch.autograd.grad(model(batcher.batch(nodes)).square().sum(), list(model.parameters()))
        if all((grad != 0).double().mean() > 0.6 for grad in grads):  # most units are alive in every layer
            return Setting(graph, model, batcher, problem, nodes, known)
    raise AssertionError(f"{case}: every start has dead layers")


def seeded(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def step_gradient(method: Method, context: Context, batch: Batch | None = None) -> Params:
    """The gradient with which the training loop would move the parameters; they stay where they are."""
    optimizer = torch.optim.SGD(context.model.parameters(), lr=0.0)
    train_step(context, method, batch or next(context.batches()), optimizer)
    return {
        name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
        for name, value in context.model.named_parameters()
    }


def pull(method: Method, context: Context, batch: Batch | None = None) -> Tensor:
    """What a method adds to the loss's gradient."""
    return flat(step_gradient(method, context, batch)) - flat(step_gradient(Method(), context, batch))


def flat(params: Params) -> Tensor:
    return torch.cat([value.flatten() for value in params.values()])


def node_gradient(setting: Setting, node: Tensor, value: Callable[[Tensor], Tensor]) -> Params:
    """∂ value(scoped logits of one node) / ∂θ, from a batch of that node alone."""
    params = dict(setting.model.named_parameters())
    logits = setting.model(setting.batcher.batch(node.reshape(1)))[0, setting.scope]
    grads = torch.autograd.grad(value(logits), list(params.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(params.items(), grads)}


def node_labels(setting: Setting, number: int, labels: str, picked: Tensor | None) -> list[tuple[float, int]]:
    """(weight, label) pairs over which the Fisher of one node sums ∂log p[label] ∂log p[label]ᵀ.

    A label is a position in the scope; `picked` holds output units, as the problem draws them.
    """
    node = setting.nodes[number]
    with torch.no_grad():
        p = setting.model(setting.batcher.batch(node.reshape(1)))[0, setting.scope].softmax(0)
    if labels == "exact":
        return [(float(p[k]), k) for k in range(p.numel())]
    if labels == "empirical":
        return [(1.0, setting.scope.index(int(setting.batcher.y[node])))]
    if labels == "pred":
        return [(1.0, int(p.argmax()))]
    assert picked is not None
    return [(1.0, setting.scope.index(int(picked[number])))]


def node_fisher_rows(setting: Setting, labels: str, picked: Tensor | None = None) -> list[list[Tensor]]:
    """For each node the vectors √weight · ∂log p[label]/∂θ whose outer products are its Fisher matrix.

    Of a case they are worked out once, however many tests compare with them.
    """
    where = [*flat(setting.params).tolist(), *setting.nodes.tolist(), -1, *setting.scope]
    key = (setting.case, labels, *where, *([] if picked is None else picked.tolist()))
    if key not in _ROWS or not setting.case:
        _ROWS[key] = _node_fisher_rows(setting, labels, picked)
    return _ROWS[key]


_ROWS: dict[tuple[object, ...], list[list[Tensor]]] = {}


def _node_fisher_rows(setting: Setting, labels: str, picked: Tensor | None) -> list[list[Tensor]]:
    rows = []
    for number, node in enumerate(setting.nodes):
        rows.append(
            [
                weight**0.5 * flat(node_gradient(setting, node, lambda z, k=label: z.log_softmax(0)[k]))
                for weight, label in node_labels(setting, number, labels, picked)
            ]
        )
    return rows


def brute_fisher(setting: Setting, labels: str, picked: Tensor | None = None) -> Tensor:
    """The full Fisher matrix, summed over nodes, one outer product after another."""
    size = sum(value.numel() for value in setting.params.values())
    total = torch.zeros(size, size, dtype=torch.float64)
    for rows in node_fisher_rows(setting, labels, picked):
        for row in rows:
            total += torch.outer(row, row)
    return total


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to rounding, relative to the size of the whole."""
    a, b = a.detach(), b.detach()
    assert a.shape == b.shape
    scale = float(b.abs().max())
    assert scale > 0, "a comparison with zero proves nothing"
    assert float((a - b).abs().max()) <= tolerance * scale
