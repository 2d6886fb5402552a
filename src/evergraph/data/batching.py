"""Mini-batches of examples over their seed nodes: exact neighbourhoods by default, sampled ones on request.

The nodes of a batch are ordered by their distance from the seeds, seeds first. So one CSR matrix
serves every layer: each layer needs a shorter prefix of its rows than the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from evergraph.core.chosen_rows import chosen_rows
from evergraph.core.features import Features, as_dense, sparse_product, take_rows
from evergraph.core.needed_rows import NeededRows
from evergraph.core.picked_rows import PickedRows
from evergraph.core.sparse import SparseMatrix
from evergraph.data.fixed_sampling import distinct
from evergraph.errors import EvergraphError

MARKED = 16  # up to this many graph nodes per neighbour read, duplicates are found by marking instead of sorting


@dataclass(eq=False)
class Batch:
    """Some examples, the seed nodes that they read, and all that a model needs to compute their outputs.

    Args:
        x: the model's inputs at the batch's nodes.
        operator: row v holds the weights with which v reads its neighbours.
        sizes: `sizes[k]` nodes lie within k hops of the seeds; `sizes[0]` is the number of seeds.
        nodes: the batch's nodes, as numbers in the graph, seeds first.
        y: the examples' targets, as output units.
        source: the `Neighbourhoods` that made the batch; None for a batch built in another way.
        members: row e holds the seeds that example e reads; None where examples are the seeds.
        examples: the examples, as numbers in the graph; None where they are the seeds.
        chosen: the requested examples, as positions among the batch's examples; None for all. `y` holds the targets
            of the chosen ones.
        lasting: whether all steps of a task use this batch, or examples chosen from it.
    """

    x: Features
    operator: SparseMatrix
    sizes: tuple[int, ...]
    nodes: Tensor
    y: Tensor
    source: Neighbourhoods | None = None
    members: SparseMatrix | None = None
    examples: Tensor | None = None
    chosen: Tensor | None = None
    lasting: bool = False
    needed: NeededRows | None = field(default=None, init=False, repr=False)
    """Rows that the chosen examples read, if a step sets them; None for all. Batches made from this one have None."""
    _layers: dict[int, SparseMatrix] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_seeds(self) -> int:
        """Number of nodes that the examples read."""
        return self.sizes[0]

    @property
    def num_examples(self) -> int:
        """Number of requested examples: nodes, graphs or links."""
        if self.chosen is not None:
            return self.chosen.numel()
        return self.sizes[0] if self.members is None else self.members.num_rows

    @property
    def num_hops(self) -> int:
        """Number of message-passing layers that the batch serves."""
        return len(self.sizes) - 1

    def layer(self, number: int) -> SparseMatrix:
        """Return the operator of message-passing layer `number` (from 0), from its nodes to the next layer's."""
        if number not in self._layers:  # cached, with its transpose, for every step on the same batch
            hops = self.num_hops - number
            self._layers[number] = self.operator.top(self.sizes[hops - 1], self.sizes[hops])
        return self._layers[number]

    def read_layer(self, number: int) -> SparseMatrix:
        """Like `layer`, but only at needed nodes; for models whose layers read nothing but one another."""
        return self.layer(number) if self.needed is None else self.needed.layers[number]

    @property
    def read_x(self) -> Features:
        """Inputs, only at needed nodes."""
        return self.x if self.needed is None else self.needed.x

    @property
    def asked_for(self) -> Tensor:
        """Requested examples, as numbers in the graph."""
        return self.of_chosen(self.nodes[: self.num_seeds] if self.examples is None else self.examples)

    def of_chosen(self, rows: Tensor) -> Tensor:
        """Select the chosen examples' rows from one row per example of the batch."""
        return rows if self.chosen is None else chosen_rows(self.chosen, rows)[0]

    def pair_of_chosen(self, rows: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """Like `of_chosen`, for outputs and their tangent."""
        if self.chosen is None:
            return rows, tangent
        first, second = chosen_rows(self.chosen, rows, tangent)
        assert second is not None
        return first, second

    def choose(self, chosen: Tensor, targets: Tensor, needed: NeededRows | None = None) -> Batch:
        """Return the same batch with only some examples requested, and the rows they read if known."""
        other = self._with_my_layers(replace(self, chosen=chosen, y=targets))
        other.needed = needed
        return other

    def needs_of(self, networks: int) -> NeededRows:
        """Return flags for the rows that each network's chosen examples read; inputs must be sparse."""
        assert isinstance(self.x, SparseMatrix)
        return NeededRows([self.layer(number) for number in range(self.num_hops)], self.x, networks)

    def with_transposes(self) -> Batch:
        """Return this batch after computing all transposes that a backward pass needs."""
        for number in range(self.num_hops):
            self.layer(number).t()
        if isinstance(self.x, SparseMatrix):
            self.x.t()
        return self

    def for_many_steps(self) -> Batch:
        """Return this batch after preparing its matrices and their transposes for many repeated steps."""
        matrices = [self.layer(number) for number in range(self.num_hops)]
        matrices += [self.x] if isinstance(self.x, SparseMatrix) else []
        for matrix in matrices:
            matrix.for_many_products().t().for_many_products()
        if isinstance(self.x, SparseMatrix) and self.x.device.type == "cuda" and self.x.dtype == torch.float32:
            self.x.with_frequent_columns()
        self.lasting = True
        return self

    def with_layers(self, layers: Sequence[SparseMatrix]) -> Batch:
        """Return the same batch with other operators, the first layer's first."""
        other = replace(self)
        other._layers = dict(enumerate(layers))
        return other

    def whole(self) -> Batch:
        """Return the same batch with all its examples, for models that read another model's outputs."""
        return self if self.chosen is None else self._with_my_layers(replace(self, chosen=None))

    def _with_my_layers(self, other: Batch) -> Batch:
        other._layers = self._layers
        return other

    @property
    def edge_index(self) -> Tensor:
        """PyG's edge list over the batch's nodes."""
        return torch.stack([self.operator.indices, self.operator.row_of_entry()])

    @property
    def dense_x(self) -> Tensor:
        """Inputs as a dense tensor."""
        return as_dense(self.x)


class Neighbourhoods:
    """Makes the batches of one graph.

    Args:
        x: the model's inputs at all nodes.
        operator: the model's propagation matrix over all nodes.
        y: the examples' targets, as output units.
        num_hops: number of message-passing layers to serve.
        fan_out: number of neighbours to sample at each hop, from the seeds outwards; None takes all of them.
        members: row e holds the nodes that example e reads; None where examples are the nodes.
    """

    def __init__(
        self,
        x: Features,
        operator: SparseMatrix,
        y: Tensor,
        num_hops: int,
        fan_out: Sequence[int] | None = None,
        members: SparseMatrix | None = None,
    ) -> None:
        if fan_out is not None and len(fan_out) < num_hops:
            raise EvergraphError(
                f"fan_out={list(fan_out)} names {len(fan_out)} hops, the model reads {num_hops}; "
                "give one number per hop"
            )
        self.x, self.operator, self.y = x, operator, y
        self.num_hops, self.fan_out, self.members = num_hops, fan_out, members
        self._propagated: Features | None = None
        self._compact: SparseMatrix | None = None  # sparse inputs with 32-bit indices
        self._position = torch.full((operator.num_rows,), -1, dtype=torch.long, device=y.device)

    def batch(self, examples: Tensor, generator: torch.Generator | None = None) -> Batch:
        """Return the batch of the given examples."""
        if self.members is None:
            return self._around(examples, self.y[examples], generator)
        members = self.members.rows(examples)
        seeds, place = torch.unique(members.indices, return_inverse=True)
        batch = self._around(seeds, self.y[examples], generator)
        batch.members = SparseMatrix(members.indptr, place, members.values, seeds.numel())
        batch.examples = examples
        return batch

    def _around(self, seeds: Tensor, targets: Tensor, generator: torch.Generator | None) -> Batch:
        """Return the batch of the given seed nodes, with their neighbourhoods."""
        compiled = self.operator.kernels() if self.fan_out is None and self.num_hops else None
        if compiled is not None and seeds.device.type == "cpu":
            around = compiled.neighbourhoods(self.operator.parts(), seeds.contiguous(), self.num_hops, self._position)
            all_nodes, within, rows, each_once = around
            operator = SparseMatrix(*rows, all_nodes.numel())
            return Batch(self._inputs(all_nodes, each_once), operator, within, all_nodes, targets, self)
        position, nodes, sizes = self._position, [seeds], [seeds.numel()]
        pointers, columns, weights = [torch.zeros(1, dtype=torch.long, device=seeds.device)], [], []
        position[seeds] = torch.arange(seeds.numel(), device=seeds.device)
        frontier, entries_before = seeds, 0
        for hop in range(self.num_hops):
            if self.fan_out is None:
                indptr, entries = self.operator.entries_of(frontier)
                values = self.operator.values.index_select(0, entries)
            else:
                indptr, entries, scale = _sample(self.operator, frontier, self.fan_out[hop], generator)
                values = self.operator.values.index_select(0, entries) * scale.to(self.operator.dtype)
            neighbours = self.operator.indices.index_select(0, entries)
            frontier = self._new(neighbours)
            position[frontier] = torch.arange(sizes[-1], sizes[-1] + frontier.numel(), device=seeds.device)
            pointers.append(indptr[1:] + entries_before)
            entries_before += entries.numel()
            columns.append(neighbours)
            weights.append(values)
            nodes.append(frontier)
            sizes.append(sizes[-1] + frontier.numel())
        all_nodes = torch.cat(nodes)
        if self.num_hops:
            places = position.index_select(0, torch.cat(columns))
            operator = SparseMatrix(torch.cat(pointers), places, torch.cat(weights), sizes[-1])
        else:
            empty = seeds.new_zeros(0)
            operator = SparseMatrix(seeds.new_zeros(sizes[0] + 1), empty, self.operator.values[:0], sizes[0])
        position[all_nodes] = -1
        return Batch(self._inputs(all_nodes), operator, tuple(sizes), all_nodes, targets, self)

    def _new(self, nodes: Tensor) -> Tensor:
        """Return those of `nodes` that are not in the batch yet, without duplicates, in ascending order."""
        position = self._position
        if nodes.device.type == "cpu" and position.numel() <= MARKED * nodes.numel():  # marking is faster than sorting
            marks = torch.zeros_like(position, dtype=torch.bool).index_fill_(0, nodes, True)
            return torch.nonzero(marks.logical_and_(position < 0)).reshape(-1)
        return torch.unique(nodes[position.index_select(0, nodes) < 0])

    def _inputs(self, nodes: Tensor, each_once: bool | None = None) -> Features:
        """Return the inputs at some nodes; sparse rows are read in place if possible, else copied (32-bit indices)."""
        x = self.x
        suited = isinstance(x, SparseMatrix) and x.device.type == "cpu" and x.nnz < 2**31
        if not suited or x.dtype not in (torch.float32, torch.float64):
            return take_rows(x, nodes)
        assert isinstance(x, SparseMatrix)
        if self._compact is None:
            self._compact = SparseMatrix(x.indptr.int(), x.indices.int(), x.values, x.num_columns)
        if each_once is None:
            each_once = nodes.unique().numel() == nodes.numel()
        if each_once and self._compact.kernels() is not None:
            return PickedRows(self._compact, nodes)
        rows = self._compact.to_scipy()[nodes.numpy()]
        indptr, indices, values = (torch.from_numpy(part) for part in (rows.indptr, rows.indices, rows.data))
        return SparseMatrix(indptr, indices, values, x.num_columns)

    def propagated(self) -> Features:
        """Return Ã X at all nodes, computed once."""
        if self._propagated is None:
            self._propagated = sparse_product(self.operator, self.x)
        return self._propagated

    def twin(self) -> Neighbourhoods:
        """Return a copy that shares the arrays but has its own work space, for another thread."""
        return Neighbourhoods(self.x, self.operator, self.y, self.num_hops, self.fan_out, self.members)

    def exact(self) -> Neighbourhoods:
        """Return a copy that takes all neighbours instead of sampling."""
        if self.fan_out is None:
            return self
        return Neighbourhoods(self.x, self.operator, self.y, self.num_hops, members=self.members)

    def batches(
        self, examples: Tensor, batch_size: int | None, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield the examples in consecutive batches; `batch_size=None` makes one batch of all of them."""
        for piece in torch.split(examples, batch_size or max(examples.numel(), 1)):
            yield self.batch(piece, generator)


def _sample(
    operator: SparseMatrix, rows: Tensor, fan_out: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample at most `fan_out` neighbours of each row without replacement; a leading self-loop is always kept.

    Returns row pointers, the positions of the kept entries, and the factor on each of their weights that
    makes the weighted sum over the sample an unbiased estimate of the sum over all neighbours. The cost
    does not grow with the rows' lengths.
    """
    start = operator.indptr[rows]
    counts = operator.indptr[rows + 1] - start
    first = operator.indices[start.clamp(max=max(operator.nnz - 1, 0))] if operator.nnz else rows
    loop = ((counts > 0) & (first == rows)).long()
    others = counts - loop
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.long, device=rows.device)
    torch.cumsum(others.clamp(max=fan_out) + loop, 0, out=indptr[1:])
    kept, total = indptr[1:] - indptr[:-1], int(indptr[-1])
    entries = torch.arange(total, device=rows.device)
    entries += torch.repeat_interleave(start - indptr[:-1], kept, output_size=total)
    # rows with more than `fan_out` neighbours get drawn ones
    long = torch.nonzero(others > fan_out).reshape(-1)
    places = (indptr[long] + loop[long]).unsqueeze(1) + torch.arange(fan_out, device=rows.device)
    drawn = distinct(others[long], fan_out, generator).T
    entries[places] = (start[long] + loop[long]).unsqueeze(1) + drawn
    scale = torch.ones(total, dtype=torch.float64, device=rows.device)
    scale[places] = (others[long].double() / fan_out).unsqueeze(1).expand(-1, fan_out)
    return indptr, entries, scale
