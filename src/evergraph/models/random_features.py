"""Random propagation features: a frozen graph encoder, and a linear head on top.

With the encoder fixed, the model is linear in its parameters: the curvature of a squared loss is the Gram
matrix of the features, the same at every θ. It is the case in which learning task after task can be exact
(`evergraph.methods.closed_form`).
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import capability
from evergraph.core.recording import linear
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import Features, SparseMatrix, take_rows, with_column, with_ones, with_self_loops
from evergraph.data.batching import Batch
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, GraphModel
from evergraph.models.score_pieces import Piece, arriving, reach_of

Block = tuple[int, float]
BLOCKS: tuple[Block, ...] = ((1, 1.0), (1, 0.5), (2, 1.0), (2, 0.5), (0, 0.5))
AT_HAND = 2**31  # bytes of features that may be computed for a whole graph at once
READS = ("forward", "logits", "operator", "inputs", "features")  # what the head's features rest on


_projections: WeakKeyDictionary[GraphModel, tuple[int, Tensor]] = WeakKeyDictionary()  # by model: the seed, and W


@MODELS.register(name="random-features")
class RandomFeatures(GraphModel):
    """Blocks of random features, each seen through several steps of propagation, under a linear head.

    Block (k, b) is ReLU(P_b^k X̂ W) with its rows scaled to length one before the ReLU: X̂ are the features with
    rows of length one, W random Gaussian, and P_b = D^(b−1) (A + I) D^(−b): b = ½ is GCN's normalization, b = 1
    divides each neighbour's message by that neighbour's degree, b = 0 takes the mean.

    Args:
        hidden: number of random features, all blocks together.
        blocks: pairs (k, b).
    """

    reads_edge_weights = True

    def __init__(self, hidden: PositiveInt = 5120, blocks: Sequence[Sequence[float]] = BLOCKS) -> None:
        super().__init__()
        self.hidden = hidden
        try:
            self.blocks: list[Block] = [(int(depth), float(balance)) for depth, balance in blocks]
        except (TypeError, ValueError):
            raise EvergraphError(
                f"random features: blocks={blocks!r} is not a list of pairs (depth, balance)"
            ) from None
        if not self.blocks or hidden < len(self.blocks):
            raise EvergraphError(f"random features: hidden={hidden} is too narrow for {len(self.blocks)} blocks")
        self.block_width = hidden // len(self.blocks)
        self.projection_seed: Tensor

    @capability(rests_on=READS)
    def of_width(self, width: int) -> RandomFeatures:
        """A model with fewer or more features of the same kinds; training changes none of them."""
        return RandomFeatures(width, self.blocks)

    def hyperparameters(self) -> dict[str, object]:
        """Constructor arguments that make an equal model."""
        return {"hidden": self.hidden, "blocks": [list(block) for block in self.blocks]}

    @property
    def num_hops(self) -> int:
        """How far the deepest block looks."""
        return max(depth for depth, _ in self.blocks)

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Draw the projection; the head starts at zero."""
        self.in_channels, self.out_channels = in_channels, out_channels
        self.register_buffer("projection_seed", torch.zeros((), dtype=torch.long))
        self.head = nn.Parameter(torch.zeros(self.block_width * len(self.blocks) + 1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A new projection and an empty head."""
        self.projection_seed.fill_(int(torch.randint(2**31, (1,))))
        nn.init.zeros_(self.head)

    @property
    def projection(self) -> Tensor:
        """W, drawn from its seed: a checkpoint holds the seed alone."""
        assert self.in_channels is not None
        seed = int(self.projection_seed)
        drawn_seed, drawn = _projections.get(self, (None, self.head))
        if drawn_seed != seed:
            generator = torch.Generator().manual_seed(seed)
            shape = (self.in_channels, self.block_width * len(self.blocks))
            drawn = torch.randn(shape, generator=generator) * self.in_channels**-0.5
        drawn = drawn.to(self.head.device, self.head.dtype)
        _projections[self] = (seed, drawn)
        return drawn

    def grow(self, out_channels: int) -> None:
        """More output units, with zero weights."""
        wide = self.head.new_zeros(self.head.size(0), out_channels)
        wide[:, : self.head.size(1)] = self.head.detach()
        self.head, self.out_channels = nn.Parameter(wide), out_channels

    # features

    def operator(self, graph: Graph) -> SparseMatrix:
        """A + I, unnormalized: the blocks normalize each in its own way."""
        return with_self_loops(graph.adjacency)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """The features themselves where they fit into memory; else X̂ beside the degrees, for batches."""
        size = graph.num_nodes * self.head.size(0) * self.head.element_size()
        if propagate if propagate is not None else size <= AT_HAND:
            return self.graph_features(graph.x, operator), 0
        return with_column(unit_rows(graph.x), operator.row_sums()), self.num_hops

    @capability(rests_on=("operator", "inputs", "graph_features"))
    def input_key(self) -> str:
        """The features depend on the projection too."""
        return f"random features {self.hidden} {self.blocks} {self.in_channels} {int(self.projection_seed)}"

    @capability(rests_on=READS)
    def graph_features(self, x: Features, operator: SparseMatrix) -> Tensor:
        """The features of all nodes of a graph, with a column of ones."""
        degree = operator.row_sums().unsqueeze(1)
        projection = self.projection.to(x.device)
        parts = []
        for depth, balance, columns in self._blocks():
            h = unit_rows(x) @ projection[:, columns]
            for _ in range(depth):
                h = degree ** (balance - 1) * (operator @ (degree**-balance * h))
            parts.append(self._activate(h))
        return with_ones(torch.cat(parts, dim=1))

    @capability(rests_on=("forward", "logits"))
    def features(self, batch: Batch) -> Tensor:
        """The features of a batch's seeds, with a column of ones."""
        if not batch.num_hops:
            assert isinstance(batch.x, Tensor)
            return batch.x
        assert self.in_channels is not None
        degree = column(batch.x, self.in_channels)
        parts = []
        for depth, balance, columns in self._blocks():
            weight = torch.cat([self.projection[:, columns], self.projection.new_zeros(1, self.block_width)])
            h = (batch.x @ weight)[: batch.sizes[depth]]
            for step in range(depth, 0, -1):
                operator = batch.operator.top(batch.sizes[step - 1], batch.sizes[step])
                h = degree[: operator.num_columns] ** -balance * h
                h = degree[: operator.num_rows] ** (balance - 1) * (operator @ h)
            parts.append(self._activate(h))
        return with_ones(torch.cat(parts, dim=1))

    @capability(rests_on=(*READS, "propagated_inputs", "features_from"))
    def propagates_once(self, graph: Graph) -> bool:
        """Whether the features of a graph are too large to be kept, and its propagated inputs are not."""
        column = self.head.element_size() * graph.num_nodes
        dense = not isinstance(graph.x, SparseMatrix) and graph.joining is None and graph.members is None
        if not dense or column * self.head.size(0) <= AT_HAND:
            return False
        return column * graph.num_features * sum(depth > 0 for depth, _ in self.propagated_inputs()) <= AT_HAND

    @capability(rests_on=READS)
    def propagated_inputs(self) -> list[Block]:
        """(k, b) of each block: its features are those of P_b^k X̂, row by row."""
        return list(self.blocks)

    @capability(rests_on=READS)
    def features_from(self, propagated: Sequence[Features]) -> Tensor:
        """The features of some nodes, with a column of ones, from their rows of P_b^k X̂ for each block (k, b)."""
        pairs = zip(propagated, self._blocks())
        return with_ones(torch.cat([self._activate(x @ self.projection[:, columns]) for x, (*_, columns) in pairs], 1))

    @capability(rests_on=READS)
    def feature_blocks(self) -> tuple[list[int], Tensor]:
        """The depth of each block, and the block of each feature; -1 for the column of ones."""
        block = torch.arange(len(self.blocks)).repeat_interleave(self.block_width)
        return [depth for depth, _ in self.blocks], torch.cat([block, block.new_full((1,), -1)])

    @capability(rests_on=(*READS, "graph_features"))
    def score_pieces(
        self, x: Features, operator: SparseMatrix, node: int, weights: Tensor
    ) -> tuple[float, list[Piece]]:
        """φ_v · weights as a constant and pieces that are linear in features, in float64, for one node v.

        The sum is exact. What is held as it is at this node: which random features are positive there (the ReLU), and
        the length that its rows are scaled by.
        """
        x, operator, weights = x.to("cpu"), operator.to("cpu"), weights.detach().cpu().double()
        projection, pieces = self.projection.cpu().double(), []
        for depth, balance, columns in self._blocks():
            nodes, reach = reach_of(operator, node, depth, balance)
            rows = unit_rows(take_rows(x, nodes).to(torch.float64))
            h = arriving(rows, reach) @ projection[:, columns]
            scale = (self.block_width / len(self.blocks)) ** 0.5 / float(h.norm().clamp(min=1e-9))
            pull = projection[:, columns] @ ((h > 0) * weights[columns]) * scale
            pieces.append(Piece(depth, nodes, reach, rows, pull))
        return float(weights[-1]), pieces

    def _blocks(self) -> list[tuple[int, float, slice]]:
        width = self.block_width
        return [(k, b, slice(i * width, (i + 1) * width)) for i, (k, b) in enumerate(self.blocks)]

    def _activate(self, h: Tensor) -> Tensor:
        """Rows of length one, ReLU, and a scale that gives all features together a mean square near one half."""
        length = h.norm(dim=1, keepdim=True).clamp(min=1e-9)
        return h.relu() / length * (self.block_width / len(self.blocks)) ** 0.5

    @capability(rests_on=("forward", "logits"))
    def output_weight(self) -> Tensor:
        """The head."""
        return self.head

    def logits(self, batch: Batch) -> Tensor:
        """The head's scores."""
        return linear(self.features(batch), self.head)


def unit_rows(x: Features) -> Features:
    """X with rows of length one; empty rows stay empty."""
    if not isinstance(x, SparseMatrix):
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    length = x.with_values(x.values.square()).row_sums().sqrt().clamp(min=1e-12)
    return x.with_values(x.values / length[x.row_of_entry()])


def column(x: Features, number: int) -> Tensor:
    """One column of a feature matrix, `(rows, 1)`."""
    if not isinstance(x, SparseMatrix):
        return x[:, number : number + 1]
    unit = torch.zeros(x.num_columns, 1, dtype=x.dtype, device=x.device)
    unit[number] = 1
    return x @ unit
