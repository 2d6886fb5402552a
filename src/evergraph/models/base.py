"""What every model here has in common, and the wrapper that lets any PyG-style module in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.data.batches import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.reach import measure_hops
from evergraph.sparse import Features, SparseMatrix, as_dense

DENSE_ON_GPU = 2**32  # bytes up to which sparse features are made dense on a GPU

NODES_AT_ONCE = 4096  # nodes in a batch when no gradient is needed

_recorder: list[tuple[Tensor, Features, Tensor]] | None = None


@contextmanager
def recorded_products() -> Iterator[list[tuple[Tensor, Features, Tensor]]]:
    """Within it, every `linear` of a forward pass leaves (weight, input rows, output rows) in the list."""
    global _recorder
    _recorder = []
    try:
        yield _recorder
    finally:
        _recorder = None


def recording() -> bool:
    """Whether products are being recorded: then layers aggregate first, so that a row is a node."""
    return _recorder is not None


def linear(x: Features, weight: Tensor) -> Tensor:
    """X W, the one way in which models here apply a weight matrix."""
    out = x @ weight
    if _recorder is not None:
        _recorder.append((weight, x, out))
    return out


class GraphModel(nn.Module):
    """A node classifier that computes the logits of a batch's seed nodes.

    Input and output sizes may be left open: the learner calls `setup` at the first task. A model says
    which matrix it propagates with (`operator`), what it reads at each node (`inputs`) and how many
    hops of neighbours remain to be gathered after that.
    """

    in_channels: int | None = None
    out_channels: int | None = None

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Make the parameters, from torch's global random numbers. Called once."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        raise NotImplementedError

    def operator(self, graph: Graph) -> SparseMatrix:
        """The propagation matrix over the whole graph."""
        return graph.adjacency

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """What the model reads at each node, and the number of hops it still needs.

        A model may propagate its inputs here, once a graph, and so save a hop at every step;
        `propagate=False` asks it not to, so that a batch shows every layer's edges.
        """
        raise NotImplementedError

    def attention(self, batch: Batch) -> list[Tensor]:
        """Attention-like coefficients of each layer's edges, for methods that protect them."""
        raise EvergraphError(f"{type(self).__name__} has no attention-like coefficients; use GCN or GAT")

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the seeds, `(num_seeds, out_channels)`."""
        raise NotImplementedError

    def features(self, batch: Batch) -> Tensor:
        """What the output layer's weight matrix multiplies at the seeds, for closed-form heads."""
        raise EvergraphError(f"{type(self).__name__} has no linear head; use GCN, GraphSAGE or RandomFeatures")

    def output_weight(self) -> Tensor:
        """The output layer's weight matrix: logits are `features @ output_weight`."""
        raise EvergraphError(f"{type(self).__name__} has no linear head; use GCN, GraphSAGE or RandomFeatures")

    @torch.no_grad()
    def graph_logits(self, graph: Graph, nodes: Tensor, device: torch.device) -> Tensor:
        """Logits at some nodes of a graph, on the CPU, with exact neighbourhoods."""
        cut = neighbourhoods(self, graph, device=device)
        return torch.cat([self(batch).cpu() for batch in cut.batches(nodes.to(device), NODES_AT_ONCE)])

    def input_key(self) -> str:
        """Names everything that `operator` and `inputs` depend on besides the graph."""
        return f"{type(self).__name__} {sorted(self.hyperparameters().items())}"

    def grow(self, out_channels: int) -> None:
        """Add output units; those that exist stay as they are."""
        raise NotImplementedError

    def hyperparameters(self) -> dict[str, Any]:
        """Constructor arguments that make an equal model."""
        return {}

    def forward(self, x: Batch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Logits of a batch's seeds, or PyG-style of all nodes: `model(x, edge_index)`."""
        if isinstance(x, Batch):
            return self.logits(x)
        if edge_index is None:
            raise EvergraphError("a model takes a Batch, or features and edge_index as PyG's models do")
        rows = torch.argsort(edge_index[1], stable=True)
        counts = torch.bincount(edge_index[1], minlength=x.size(0))
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        adjacency = SparseMatrix(indptr, edge_index[0][rows], x.new_ones(rows.numel()), x.size(0))
        graph = Graph(x, adjacency, torch.zeros(x.size(0), dtype=torch.long, device=x.device), [0])
        nodes = torch.arange(x.size(0), device=x.device)
        return self.logits(neighbourhoods(self, graph).batch(nodes))


class ModuleModel(GraphModel):
    """Any PyG-style module `module(x, edge_index) -> logits` as a model.

    Args:
        module: the module; its output size is fixed, so it must cover all classes to come.
        num_hops: how far its predictions look; by default measured, so that a mini-batch gives the very logits
            of the whole graph. (A batch holds the edges that enter its nodes: on a directed graph a module that
            divides by out-degrees, as ChebConv does, sees too few of them.)
    """

    def __init__(self, module: nn.Module, num_hops: int | None = None) -> None:
        super().__init__()
        self.module = module
        self.num_hops = num_hops

    def hyperparameters(self) -> dict[str, Any]:
        """How far it looks; the module itself comes from outside."""
        return {"num_hops": self.num_hops}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Nothing to make: the module comes with its parameters (lazy ones aside, which torch fills)."""
        self.in_channels, self.out_channels = in_channels, out_channels
        if self.num_hops is None:
            self.num_hops = measure_hops(self.module, in_channels)

    def reset_parameters(self) -> None:
        """Ask every part of the module that can draw its parameters anew to do so."""
        for part in self.module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """The features themselves; the module does the rest."""
        assert self.num_hops is not None, "setup comes first"
        return graph.x, self.num_hops

    def forward(self, x: Batch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Logits of a batch's seeds; PyG-style arguments go to the module as they are."""
        return self.logits(x) if isinstance(x, Batch) else self.module(x, edge_index)

    def logits(self, batch: Batch) -> Tensor:
        """The module's output at the seeds."""
        out: Tensor = self.module(as_dense(batch.x), batch.edge_index)
        if self.out_channels is not None and out.size(1) < self.out_channels:
            raise EvergraphError(
                f"{type(self.module).__name__} has {out.size(1)} outputs but the stream has {self.out_channels} "
                "classes; build it with an output for every class to come"
            )
        return out[: batch.num_seeds]

    def grow(self, out_channels: int) -> None:
        """A foreign module's output layer is unknown here."""
        raise EvergraphError(
            f"{type(self.module).__name__} cannot grow by itself; build it with outputs for all classes to come"
        )


def as_model(model: nn.Module) -> GraphModel:
    """The model itself, or a foreign module in its wrapper."""
    if isinstance(model, GraphModel):
        return model
    if not isinstance(model, nn.Module):
        raise EvergraphError(f"a model is a torch module, not {type(model).__name__}; e.g. eg.GCN(hidden=256)")
    return ModuleModel(model)


def neighbourhoods(
    model: GraphModel,
    graph: Graph,
    *,
    y: Tensor | None = None,
    fan_out: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    propagate: bool | None = None,
) -> Neighbourhoods:
    """The batches of `graph` as `model` reads it. Propagated inputs are computed once a graph and kept with it."""
    parameter = next(model.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.float32
    device = torch.device(device) if device is not None else graph.y.device
    key = f"{model.input_key()} {dtype} {device} {propagate}"
    if key not in graph.cache:
        operator = model.operator(graph).to(dtype).to(device)
        x = graph.x.to(dtype).to(device)
        if isinstance(x, SparseMatrix) and device.type == "cuda" and 4 * x.num_rows * x.num_columns < DENSE_ON_GPU:
            x = x.dense()  # dense products are what a GPU is good at, and its memory has room
        typed = Graph(x, graph.adjacency, graph.y, graph.class_names, graph.name)
        x, num_hops = model.inputs(typed, operator, propagate)
        graph.cache[key] = (x.to(device), operator, num_hops)
    x, operator, num_hops = graph.cache[key]
    labels = (graph.y if y is None else y).to(device)
    return Neighbourhoods(x, operator, labels, num_hops, fan_out)


def grown(parameter: Tensor, out_channels: int) -> nn.Parameter:
    """A weight matrix with more columns; the new ones start as small random numbers of the same scale."""
    fresh = parameter.new_empty(parameter.size(0), out_channels)
    nn.init.xavier_uniform_(fresh)
    fresh[:, : parameter.size(1)] = parameter.detach()
    return nn.Parameter(fresh)
