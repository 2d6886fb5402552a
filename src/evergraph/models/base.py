"""Base class of all models, and how they read graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from evergraph import registry
from evergraph.core.capabilities import Answer, No, capable
from evergraph.core.features import Features
from evergraph.core.settings import Checked, settings_kept
from evergraph.core.shortcuts import fast
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError, lacks
from evergraph.models.parts import PartNeighbourhoods

MODELS: registry.Registry[type[GraphModel]] = registry.models

DENSE_ON_GPU = 2**32  # bytes up to which sparse features are made dense on a GPU
SPARSE_ON_GPU = 0.02, 2**22, 5 * 2**18  # stay sparse up to this density, from this size on, up to this many entries
OUTPUTS = ("forward", "logits")  # methods that compute a model's outputs, which most capabilities rest on
Form = Literal["whole", "rows", "padded"]
"""How a captured step reads its examples: all in one batch, as some rows of such a batch's outputs, or in batches
padded to one shape."""
SAMPLED = No("sampled neighbourhoods have no fixed number of edges")  # an answer to `steps_can_be_captured`
NODES_AT_ONCE = 4096  # nodes in a batch when no gradient is needed
MEASURED_AT_ONCE = 2048  # nodes in a batch whose validation loss, or whose embeddings, are measured


class GraphModel(nn.Module, metaclass=Checked):
    """Base class of models that compute the outputs of a batch's seed nodes.

    Input and output sizes may be left open: the learner calls `setup` at the first task. A model defines
    which matrix it propagates with (`operator`), what it reads at each node (`inputs`) and how many
    hops of neighbours it still needs after that.

    Anything else that a model can do is declared as a capability (`evergraph.core.capabilities`), which a subclass
    loses when it overrides a method that the capability rests on:

    - `joint_forward(batch, direction)`: outputs and their tangent in one pass;
    - `example_powers(batch, cotangents, power)`: sums of powers of single-node gradients;
    - `features(batch)` and `output_weight()`: a linear head, `outputs = features @ output_weight`;
    - `feature_blocks()` and `graph_features(…)`: features that are grouped into blocks by depth of propagation;
    - `propagated_inputs()` and `features_from(…)`: features computed node by node from inputs propagated beforehand;
      `propagates_once(graph)`: whether to read a graph this way;
    - `choose_width(graph, limits)`: choose the number of fixed features for a first graph, if nobody gave it;
      `set_width(settings)`: load another model's choice;
    - `scale_inputs(graph)`: measure the scaling of inputs; `scale_new_columns(graph)`: measure columns that had the
      same value at all nodes so far; `input_scaling()`: the current scaling; `set_scaling(settings)`: load another
      model's scaling;
    - `first_layer(batch)`: the matrices that multiply the first weight matrix from the left in the first layer;
      `after_first_layer(batch, hidden)`: the outputs, given that layer's output H; `last_layer(batch)`: P, if the
      outputs are P [σ(H) 1] W;
    - `self_edges()`: a self-loop acts like a neighbour with the same features and neighbours;
    - `reads_neighbours_apart()`: neighbours have weights of their own, apart from those of the node;
      `sums_neighbours()`: they are added up, so that what is read grows with their number;
    - `widen(units)`: add hidden units without changing the outputs until the new units are trained;
    - `multiplies_sparse_inputs()`: inputs are only multiplied by weights, so that the cost for sparse inputs is
      proportional to their entries;
    - `attention(batch)`: attention-like coefficients of every layer's edges;
    - `steps_can_be_captured(batcher, form)`: a training step runs the same kernels every time, in one of the forms of
      `Form`;
    - `steps_can_be_stacked()`: one step can train several models at once, with their parameters stacked (`vmap`);
      `standing_product(batch, direction)`: the product in it that stays constant during a task;
    - `leaves_out_rows()`: its passes skip nodes that a batch's chosen examples do not read;
    - `input_key()`: models with the same key read a graph in the same way, and may share propagated inputs.
    """

    level: ClassVar[str] = "node"
    """What its outputs belong to: `node`, `graph` or `link`."""
    in_channels: int | None = None
    out_channels: int | None = None
    reads_edge_weights: bool = False
    """Whether edge weights affect its outputs; if not, a learner warns about weights that are ignored."""

    @property
    def encoder(self) -> GraphModel:
        """The node-level model: itself, or the one that a read-out is built on."""
        return self

    def readout(self) -> dict[str, Any]:
        """Settings of the read-out; empty for a node-level model."""
        return {}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Create the parameters, using torch's global random state. Called once."""
        raise lacks(self, "setup")

    def reset_parameters(self) -> None:
        """Redraw all parameters."""
        raise lacks(self, "reset_parameters")

    def start_over(self) -> None:
        """Forget what was learned: call `reset_parameters`, but restore frozen parameters bit for bit.

        If all parameters of a submodule are frozen, its buffers are too.
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
        """Return the propagation matrix over the whole graph."""
        return graph.adjacency

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return what the model reads at each node, and the number of hops it still needs.

        A model may propagate its inputs here, once per graph, and so save a hop at every step;
        `propagate=False` prevents this, so that a batch contains every layer's edges.
        """
        raise lacks(self, "inputs")

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of the seeds, `(num_seeds, out_channels)`."""
        raise lacks(self, "logits")

    def grow(self, out_channels: int) -> None:
        """Add output units; existing ones stay unchanged."""
        raise lacks(self, "grow")

    def hyperparameters(self) -> dict[str, Any]:
        """Return constructor arguments that make an equal model, stored as attributes of the same names.

        A registered model, which loads by its name, has to store all of them.
        """
        return settings_kept(self, all_of_them=MODELS.name_of(type(self)) is not None)

    def forward(self, x: Batch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Return the logits of a batch's seeds or, called like a PyG model as `model(x, edge_index)`, of all nodes."""
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


MODELS.accept(subclasses_of=GraphModel)


def neighbourhoods(
    model: GraphModel,
    graph: Graph,
    *,
    y: Tensor | None = None,
    fan_out: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    propagate: bool | None = None,
) -> Neighbourhoods:
    """Return the batcher of `graph` for `model`. Propagated inputs are computed once and cached with the graph."""
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
            x = x.dense()  # a GPU is good at dense products, and its memory suffices
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
    """Return the cache that holds a model's inputs for a graph, and their key in it."""
    shared = capable(model, "input_key")  # a model without a key shares its inputs with no other
    cache = graph.cache if shared else graph.private_cache.setdefault(model, {})
    key = f"{shared() if shared else sorted(model.hyperparameters().items())} {dtype} {device} {propagate}"
    return cache, key if device.type == "cpu" or fast("sparse") else f"{key} dense"


def known_inputs(model: GraphModel, graph: Graph, device: torch.device) -> Features | None:
    """Return the inputs that `neighbourhoods` has cached with the graph if they need no more hops; None otherwise."""
    cache, key = _kept_inputs(model, graph, next(model.parameters()).dtype, device, None)
    x, _, num_hops = cache.get(key, (None, None, 0))
    return None if num_hops else x


def stays_sparse(model: GraphModel, x: SparseMatrix) -> bool:
    """Whether sparse inputs stay sparse on a GPU.

    Reading an entry from the cache costs as much as some fifty numbers of a product on tensor cores. Also, with sparse
    inputs a step is a pass over the whole task, whereas a padded batch reads only its own dense rows: hence the limit
    on entries.
    """
    share, least, most = SPARSE_ON_GPU
    numbers = x.num_rows * x.num_columns
    very = x.nnz <= min(share * numbers, most) and numbers >= least
    multiplies = capable(model.encoder, "multiplies_sparse_inputs") is not None
    return 4 * numbers >= DENSE_ON_GPU or (very and multiplies and fast("sparse"))


def unpadded(batcher: Neighbourhoods, form: Form, *, by_weights: bool = False) -> Answer:
    """Answer `steps_can_be_captured` for most models: yes on one batch or rows of it, with exact neighbourhoods.

    Args:
        batcher: makes the batches.
        form: how a step reads its examples.
        by_weights: whether the model depends only on the operator's weights, so that edges of weight 0 have no effect:
            then neighbours may be sampled (`evergraph.data.fixed_sampling`).
    """
    if form == "padded":
        return No("its batches are not padded")
    return by_weights or batcher.fan_out is None or SAMPLED


def grown(parameter: Tensor, out_channels: int) -> nn.Parameter:
    """Return a weight matrix with more columns; the new ones start as small random numbers of the same scale."""
    fresh = parameter.new_empty(parameter.size(0), out_channels)
    nn.init.xavier_uniform_(fresh)
    fresh[:, : parameter.size(1)] = parameter.detach()
    return nn.Parameter(fresh, requires_grad=parameter.requires_grad)
