"""Mini-batches of examples over their seed nodes: exact neighbourhoods by default, sampled ones on request.

The nodes of a batch are ordered by their distance from the seeds, seeds first. So one CSR matrix
serves every layer: layer after layer, a shorter prefix of its rows is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from evergraph.core.chosen_rows import chosen_rows
from evergraph.core.needed_rows import NeededRows
from evergraph.core.picked_rows import PickedRows
from evergraph.core.sparse import Features, SparseMatrix, as_dense, sparse_product, take_rows
from evergraph.data.fixed_sampling import distinct
from evergraph.errors import EvergraphError

MARKED = 16  # nodes of the graph for each that is met, up to which all are marked to find the different ones


@dataclass(eq=False)
class Batch:
    """Some examples, the seed nodes that they read, and all that a model needs to compute their outputs.

    Args:
        x: the model's inputs at the batch's nodes.
        operator: row v holds the weights with which v reads its neighbours.
        sizes: `sizes[k]` nodes lie within k hops of the seeds; `sizes[0]` is the number of seeds.
        nodes: the batch's nodes in the graph, seeds first.
        y: the examples' targets, as output units.
        source: where the batch was cut from; None for a batch that was put together in another way.
        members: row e holds the seeds that example e reads; None where examples are the seeds.
        examples: the examples in the graph; None where they are the seeds.
        chosen: the examples asked for, as numbers among those that the batch has; None for all. `y` holds the targets
            of the chosen ones.
        lasting: whether all steps of a task are on this one batch, or on examples chosen of it.
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
    """What the chosen examples read, where a step says; None for all. Batches that are made of this one are whole."""
    _layers: dict[int, SparseMatrix] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_seeds(self) -> int:
        """Number of nodes that the examples read."""
        return self.sizes[0]

    @property
    def num_examples(self) -> int:
        """Number of examples asked for: nodes, graphs or links."""
        if self.chosen is not None:
            return self.chosen.numel()
        return self.sizes[0] if self.members is None else self.members.num_rows

    @property
    def num_hops(self) -> int:
        """Message-passing layers that the batch serves."""
        return len(self.sizes) - 1

    def layer(self, number: int) -> SparseMatrix:
        """The operator of message-passing layer `number` (0 is the first): from its nodes to the next layer's."""
        if number not in self._layers:  # with its transpose, it serves every step on the same batch
            hops = self.num_hops - number
            self._layers[number] = self.operator.top(self.sizes[hops - 1], self.sizes[hops])
        return self._layers[number]

    def read_layer(self, number: int) -> SparseMatrix:
        """The same for a model whose layers read one another and nothing else: at nodes that are needed."""
        return self.layer(number) if self.needed is None else self.needed.layers[number]

    @property
    def read_x(self) -> Features:
        """The inputs, likewise."""
        return self.x if self.needed is None else self.needed.x

    @property
    def asked_for(self) -> Tensor:
        """The examples asked for, as numbers in the graph."""
        return self.of_chosen(self.nodes[: self.num_seeds] if self.examples is None else self.examples)

    def of_chosen(self, rows: Tensor) -> Tensor:
        """Of a row for each example that the batch has, those of the chosen ones."""
        return rows if self.chosen is None else chosen_rows(self.chosen, rows)[0]

    def pair_of_chosen(self, rows: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
        """The same of outputs and their tangent."""
        if self.chosen is None:
            return rows, tangent
        first, second = chosen_rows(self.chosen, rows, tangent)
        assert second is not None
        return first, second

    def choose(self, chosen: Tensor, targets: Tensor, needed: NeededRows | None = None) -> Batch:
        """The same batch, with some of its examples asked for, and what they read where that is known."""
        other = self._with_my_layers(replace(self, chosen=chosen, y=targets))
        other.needed = needed
        return other

    def needs_of(self, networks: int) -> NeededRows:
        """Flags of what examples that are chosen read, each network's own, of sparse inputs."""
        assert isinstance(self.x, SparseMatrix)
        return NeededRows([self.layer(number) for number in range(self.num_hops)], self.x, networks)

    def with_transposes(self) -> Batch:
        """The same batch, with all that the backward pass of a step will ask it for."""
        for number in range(self.num_hops):
            self.layer(number).t()
        if isinstance(self.x, SparseMatrix):
            self.x.t()
        return self

    def for_many_steps(self) -> Batch:
        """The same batch, with its matrices and their transposes made ready for steps that repeat one another."""
        matrices = [self.layer(number) for number in range(self.num_hops)]
        matrices += [self.x] if isinstance(self.x, SparseMatrix) else []
        for matrix in matrices:
            matrix.for_many_products().t().for_many_products()
        if isinstance(self.x, SparseMatrix) and self.x.device.type == "cuda" and self.x.dtype == torch.float32:
            self.x.with_frequent_columns()
        self.lasting = True
        return self

    def with_layers(self, layers: Sequence[SparseMatrix]) -> Batch:
        """The same batch with other operators, the first layer's first."""
        other = replace(self)
        other._layers = dict(enumerate(layers))
        return other

    def whole(self) -> Batch:
        """The same batch with all that it has, for models that read another model's outputs."""
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
        """The inputs as an ordinary tensor."""
        return as_dense(self.x)


class Neighbourhoods:
    """Cuts batches out of one graph.

    Args:
        x: the model's inputs at all nodes.
        operator: the model's propagation matrix over all nodes.
        y: the examples' targets, as output units.
        num_hops: message-passing layers to serve.
        fan_out: neighbours to sample at each hop, from the seeds outwards; None takes all of them.
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
        self._compact: SparseMatrix | None = None  # sparse inputs with indices of 32 bits
        self._position = torch.full((operator.num_rows,), -1, dtype=torch.long, device=y.device)

    def batch(self, examples: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The batch of the given examples."""
        if self.members is None:
            return self._around(examples, self.y[examples], generator)
        members = self.members.rows(examples)
        seeds, place = torch.unique(members.indices, return_inverse=True)
        batch = self._around(seeds, self.y[examples], generator)
        batch.members = SparseMatrix(members.indptr, place, members.values, seeds.numel())
        batch.examples = examples
        return batch

    def _around(self, seeds: Tensor, targets: Tensor, generator: torch.Generator | None) -> Batch:
        """The neighbourhoods of seed nodes."""
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
        """Those of some nodes that are not in the batch yet, each once, in order."""
        position = self._position
        if nodes.device.type == "cpu" and position.numel() <= MARKED * nodes.numel():  # marking is faster than sorting
            marks = torch.zeros_like(position, dtype=torch.bool).index_fill_(0, nodes, True)
            return torch.nonzero(marks.logical_and_(position < 0)).reshape(-1)
        return torch.unique(nodes[position.index_select(0, nodes) < 0])

    def _inputs(self, nodes: Tensor, each_once: bool | None = None) -> Features:
        """The inputs at some nodes; those of sparse ones are read where they stand, else copied, in 32 bits."""
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
        """Ã X at all nodes, computed once."""
        if self._propagated is None:
            self._propagated = sparse_product(self.operator, self.x)
        return self._propagated

    def twin(self) -> Neighbourhoods:
        """The same over the same arrays with a work space of its own, for another thread."""
        return Neighbourhoods(self.x, self.operator, self.y, self.num_hops, self.fan_out, self.members)

    def exact(self) -> Neighbourhoods:
        """The same graph with all neighbours."""
        if self.fan_out is None:
            return self
        return Neighbourhoods(self.x, self.operator, self.y, self.num_hops, members=self.members)

    def batches(
        self, examples: Tensor, batch_size: int | None, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """The examples in consecutive batches; `None` makes one batch of all of them."""
        for piece in torch.split(examples, batch_size or max(examples.numel(), 1)):
            yield self.batch(piece, generator)


def _sample(
    operator: SparseMatrix, rows: Tensor, fan_out: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """At most `fan_out` neighbours of each row, drawn without replacement; a leading self-loop is always kept.

    Returns row pointers, the positions of the entries kept, and the factor on each of their weights that
    makes the weighted sum over the sample an unbiased estimate of the sum over all neighbours. The work
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
    # rows with more neighbours than that: their places take drawn ones
    long = torch.nonzero(others > fan_out).reshape(-1)
    places = (indptr[long] + loop[long]).unsqueeze(1) + torch.arange(fan_out, device=rows.device)
    drawn = distinct(others[long], fan_out, generator).T
    entries[places] = (start[long] + loop[long]).unsqueeze(1) + drawn
    scale = torch.ones(total, dtype=torch.float64, device=rows.device)
    scale[places] = (others[long].double() / fan_out).unsqueeze(1).expand(-1, fan_out)
    return indptr, entries, scale
