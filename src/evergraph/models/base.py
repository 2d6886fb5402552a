"""What every model here has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from evergraph import registry
from evergraph.core.capabilities import Answer, No, capable
from evergraph.core.settings import Checked, settings_of
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import Features, SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.parts import PartNeighbourhoods

MODELS: registry.Registry[type[GraphModel]] = registry.models

DENSE_ON_GPU = 2**32  # bytes up to which sparse features are made dense on a GPU
SPARSE_ON_GPU = 0.02, 2**22, 5 * 2**18  # but not where entries are so small a share of so many numbers, and so few
Form = Literal["whole", "rows", "padded"]
"""How a step that is captured reads its examples: all in one batch, some rows of such a batch's outputs, or in batches
that are padded to one shape."""
SAMPLED = No("sampled neighbourhoods have no fixed number of edges")  # an answer to `steps_can_be_captured`
NODES_AT_ONCE = 4096  # nodes in a batch when no gradient is needed


class GraphModel(nn.Module, metaclass=Checked):
    """Computes the outputs of a batch's seed nodes.

    Input and output sizes may be left open: the learner calls `setup` at the first task. A model says
    which matrix it propagates with (`operator`), what it reads at each node (`inputs`) and how many
    hops of neighbours remain to be gathered after that.

    What a model can do beyond that it declares as a capability (`evergraph.core.capabilities`), which a subclass
    loses when it overrides what the capability rests on:

    - `joint_forward(batch, direction)`: outputs and their tangent in one pass;
    - `example_powers(batch, cotangents, power)`: sums of powers of single-node gradients;
    - `features(batch)` and `output_weight()`: a linear head, `outputs = features @ output_weight`;
    - `feature_blocks()` and `graph_features(…)`: features that fall into blocks by depth of propagation;
    - `propagated_inputs()` and `features_from(…)`: features as a function, node by node, of inputs propagated before;
      `propagates_once(graph)`: whether a graph is to be read so;
    - `scale_inputs(graph)`: measure how inputs are scaled; `scale_new_columns(graph)`: those that were the same at all
      nodes so far; `input_scaling()`: how they are; `set_scaling(settings)`: take up that of another model;
    - `first_layer(batch)`: the matrices that stand before the first weight matrix in the first layer's output;
      `after_first_layer(batch, hidden)`: the outputs from what that layer has put out; `last_layer(batch)`: P, where
      they are P [σ(H) 1] W of it;
    - `self_edges()`: a node that is its own neighbour is read as one with a neighbour like it;
    - `widen(units)`: hidden layers grow, and outputs stay as they are until the new units are trained;
    - `multiplies_sparse_inputs()`: it reads inputs as they are, by products with weights alone, whose cost is that of
      the entries where inputs are sparse;
    - `attention(batch)`: attention-like coefficients of every layer's edges;
    - `steps_can_be_captured(batcher, form)`: a training step is the same kernels every time, in one of the forms of
      `Form`;
    - `steps_can_be_stacked()`: a step may be that of several models at once, their parameters side by side
      (`vmap`); `standing_product(batch, direction)`: what of it stands still during a task;
    - `leaves_out_rows()`: its passes compute nothing at nodes that a batch's chosen examples do not read;
    - `input_key()`: models with one key read one graph in the same way, and may share what was propagated.
    """

    level: ClassVar[str] = "node"
    """What its outputs belong to: `node`, `graph` or `link`."""
    in_channels: int | None = None
    out_channels: int | None = None
    reads_edge_weights: bool = False
    """Whether the weights of edges have a part in its outputs; a learner says so where they have none."""

    @property
    def encoder(self) -> GraphModel:
        """The model of the nodes: itself, or what a read-out is built on."""
        return self

    def readout(self) -> dict[str, Any]:
        """Settings of the read-out; nothing for a model of nodes."""
        return {}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Make the parameters, from torch's global random numbers. Called once."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        raise NotImplementedError

    def start_over(self) -> None:
        """Forget what was learned: `reset_parameters`, but for what is frozen, which stays as it is bit for bit.

        Where all parameters of a part are frozen, its buffers are too.
        """
        frozen: list[Tensor] = [value for value in self.parameters() if not value.requires_grad]
        for part in self.modules():
            own = list(part.parameters())
            if own and not any(value.requires_grad for value in own):
                frozen += part.buffers(recurse=False)
        before = [value.detach().clone() for value in frozen]
        self.reset_parameters()
        with torch.no_grad():
            for value, old in zip(frozen, before):
                value.copy_(old)

    def operator(self, graph: Graph) -> SparseMatrix:
        """The propagation matrix over the whole graph."""
        return graph.adjacency

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """What the model reads at each node, and the number of hops it still needs.

        A model may propagate its inputs here, once per graph, and so save a hop at every step;
        `propagate=False` asks it not to, so that a batch shows every layer's edges.
        """
        raise NotImplementedError

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the seeds, `(num_seeds, out_channels)`."""
        raise NotImplementedError

    def grow(self, out_channels: int) -> None:
        """Add output units; those that exist stay as they are."""
        raise NotImplementedError

    def hyperparameters(self) -> dict[str, Any]:
        """Constructor arguments that make an equal model: those that the object keeps under their own names."""
        names = (name for name in settings_of(type(self)) if hasattr(self, name))
        return {name: getattr(self, name) for name in names}

    def forward(self, x: Batch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Logits of a batch's seeds, or PyG-style of all nodes: `model(x, edge_index)`."""
        if isinstance(x, Batch):
            return x.of_chosen(self.logits(x))
        if edge_index is None:
            raise EvergraphError("a model takes a Batch, or features and edge_index as PyG's models do")
        rows = torch.argsort(edge_index[1], stable=True)
        counts = torch.bincount(edge_index[1], minlength=x.size(0))
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        adjacency = SparseMatrix(indptr, edge_index[0][rows], x.new_ones(rows.numel()), x.size(0))
        graph = Graph(x, adjacency, torch.zeros(x.size(0), dtype=torch.long, device=x.device), [0])
        nodes = torch.arange(x.size(0), device=x.device)
        return self.logits(neighbourhoods(self, graph).batch(nodes))


def neighbourhoods(
    model: GraphModel,
    graph: Graph,
    *,
    y: Tensor | None = None,
    fan_out: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    propagate: bool | None = None,
) -> Neighbourhoods:
    """The batches of `graph` as `model` reads it. Propagated inputs are computed once per graph and kept with it."""
    parameter = next(model.parameters(), None)
    dtype = parameter.dtype if parameter is not None else torch.float32
    device = torch.device(device) if device is not None else graph.y.device
    plain = propagate is None and fan_out is None and device.type == "cpu"
    once = capable(model, "propagates_once") if plain else None
    if graph.rows is not None or (once is not None and once(graph)):
        return PartNeighbourhoods(model, graph, graph.y if y is None else y, dtype)
    cache, key = _kept_inputs(model, graph, dtype, device, propagate)
    if key not in cache:
        operator = model.operator(graph).to(dtype).to(device)
        x = graph.x.to(dtype).to(device)
        if isinstance(x, SparseMatrix) and device.type == "cuda" and not stays_sparse(model, x):
            x = x.dense()  # dense products are what a GPU is good at, and its memory has room
        typed = graph.altered(x=x)
        x, num_hops = model.inputs(typed, operator, propagate)
        cache[key] = (x.to(device), operator, num_hops)
    x, operator, num_hops = cache[key]
    labels = (graph.y if y is None else y).to(device)
    members = None if graph.members is None else graph.members.to(dtype).to(device)
    return Neighbourhoods(x, operator, labels, num_hops, fan_out, members)


def _kept_inputs(
    model: GraphModel, graph: Graph, dtype: torch.dtype, device: torch.device, propagate: bool | None
) -> tuple[dict[Any, Any], str]:
    """Where a model's inputs are kept with a graph, and under which key."""
    shared = capable(model, "input_key")  # a model without one shares its inputs with no other
    cache = graph.cache if shared else graph.private_cache.setdefault(model, {})
    key = f"{shared() if shared else sorted(model.hyperparameters().items())} {dtype} {device} {propagate}"
    return cache, key if device.type == "cpu" or fast("sparse") else f"{key} dense"


def known_inputs(model: GraphModel, graph: Graph, device: torch.device) -> Features | None:
    """What `neighbourhoods` has computed of the whole graph and kept with it; None where it has not."""
    cache, key = _kept_inputs(model, graph, next(model.parameters()).dtype, device, None)
    x, _, num_hops = cache.get(key, (None, None, 0))
    return None if num_hops else x


def stays_sparse(model: GraphModel, x: SparseMatrix) -> bool:
    """Whether sparse inputs stay as they are on a GPU.

    An entry read from the cache costs as much as some fifty numbers of a product on tensor cores. And with sparse
    inputs a step is a pass over the whole task, where a padded batch reads dense rows of its own: hence the limit on
    entries.
    """
    share, least, most = SPARSE_ON_GPU
    numbers = x.num_rows * x.num_columns
    very = x.nnz <= min(share * numbers, most) and numbers >= least
    multiplies = capable(model.encoder, "multiplies_sparse_inputs") is not None
    return 4 * numbers >= DENSE_ON_GPU or (very and multiplies and fast("sparse"))


def unpadded(batcher: Neighbourhoods, form: Form, *, by_weights: bool = False) -> Answer:
    """What most models answer to `steps_can_be_captured`: on one batch or rows of it, with exact neighbourhoods.

    Args:
        batcher: makes the batches.
        form: how a step reads its examples.
        by_weights: whether the model goes by the operator's weights alone, so that an edge of weight 0 is none: then
            neighbours may be sampled (`evergraph.data.fixed_sampling`).
    """
    if form == "padded":
        return No("its batches are not padded")
    return by_weights or batcher.fan_out is None or SAMPLED


def grown(parameter: Tensor, out_channels: int) -> nn.Parameter:
    """A weight matrix with more columns; the new ones start as small random numbers of the same scale."""
    fresh = parameter.new_empty(parameter.size(0), out_channels)
    nn.init.xavier_uniform_(fresh)
    fresh[:, : parameter.size(1)] = parameter.detach()
    return nn.Parameter(fresh, requires_grad=parameter.requires_grad)
