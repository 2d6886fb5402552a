"""Random propagation features: a frozen graph encoder with a linear head on top.

With the encoder fixed, the model is linear in its parameters: the curvature of a squared loss is the Gram
matrix of the features, the same at every θ. In this case learning task after task can be exact
(`evergraph.methods.closed_form`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from evergraph.core import large
from evergraph.core.capabilities import capability
from evergraph.core.dense_algebra import product
from evergraph.core.features import Features, take_rows, with_column, with_ones, with_self_loops
from evergraph.core.recording import linear
from evergraph.core.settings import NonNegative, NonNegativeInt, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, GraphModel
from evergraph.models.block_steps import Steps, WordsWithin, column, first_columns, first_rows, pieces_of
from evergraph.models.block_width import USUAL, Limits, first_width, lasting_width
from evergraph.models.feature_blocks import Block, Hashing, Layout, parse_blocks, unit_rows
from evergraph.models.input_scaling import (
    FEW_COLUMNS,
    Column,
    InputScaling,
    measured_columns,
    parse_columns,
    typical_entry,
    with_scales,
)
from evergraph.models.linear_products import Products, linear_products
from evergraph.models.score_pieces import Piece, arriving, reach_of

BLOCKS: tuple[tuple[Any, ...], ...] = ((1, 1.0), (1, 0.5), (2, 1.0), (2, 0.5), (0, 0.5))
AT_HAND = 2**31  # bytes of features that may be computed for a whole graph at once
READS = ("forward", "logits", "operator", "inputs", "features")  # methods that the head's features rest on


_projections: WeakKeyDictionary[GraphModel, tuple[int, Tensor]] = WeakKeyDictionary()  # by model: the seed and W


@MODELS.register(name="random-features")
class RandomFeatures(GraphModel):
    """Blocks of fixed features from several steps of propagation, with a linear head.

    Block (k, b) is ReLU(P_b^k X̂ W) with its rows scaled to unit length before the ReLU: X̂ are the features with
    rows of unit length, W random Gaussian, and P_b = D^(b−1) (A + I) D^(−b): b = ½ is GCN's normalization, b = 1
    divides each neighbour's message by that neighbour's degree, b = 0 takes the mean. Block (k, "others") takes the
    mean over the neighbours without the node itself. A block with a third word, "linear", is P^k X̂ itself with rows of
    unit length, exactly or, if X has more columns than `linear_width`, hashed (`Hashing`).

    Before that, columns of dense features are centred and scaled where necessary (`scales`). Scaling rows to unit
    length discards their length, one number out of as many as X has columns. If these are few, X gets one more column,
    the constant `lift` (`scale_inputs`).

    Args:
        hidden: number of random features, all random blocks together; by default 5,120 of nodes, 1,280 of graphs and
            640 of each end of a link.
        blocks: pairs (k, b), or triples (k, b, "linear").
        linear_width: largest number of columns of a linear block; 0 for as many as the features have.
        kept: which of the blocks are still present; empty for all. Set by methods that drop blocks.
        lift: the constant in X's additional column, 0 for no such column; None to measure it if columns are few.
        scales: whether columns of dense X are scaled: measured, or given as (column, centre, scale) for each that is
            read as (x − centre) / scale; scale 0 reads it as zero until a task has values other than the centre.
        block_width: how many features of each random block are still present, if blocks may be narrowed; 0 if not. Set
            by methods that choose the width.
    """

    reads_edge_weights = True
    default_hidden: ClassVar[int] = 5120
    """Number of random features of nodes if none is given."""

    def __init__(
        self,
        hidden: PositiveInt | None = None,
        blocks: Sequence[Sequence[Any]] = BLOCKS,
        linear_width: NonNegativeInt = 0,
        kept: Sequence[bool] = (),
        lift: NonNegative | None = None,
        scales: bool | Sequence[Sequence[float]] = True,
        block_width: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.hidden, self.linear_width = hidden, linear_width
        self.lift = lift
        self.scales = parse_columns(scales)
        self._measures = (lift is None, scales is True)  # whether another learner measures them again
        self.all_blocks: list[Block] = parse_blocks(blocks)
        self.kept = [bool(keep) for keep in kept] or [True] * len(self.all_blocks)
        width = hidden or self.default_hidden
        if not self.all_blocks or width < self._num_random:
            raise EvergraphError(f"random features: hidden={width} is too narrow for {self._num_random} blocks")
        if len(self.kept) != len(self.all_blocks) or not any(self.kept):
            raise EvergraphError(f"random features: kept={list(kept)} does not say which of the blocks to keep")
        self._width_is_open = hidden is None
        self._divide(width, block_width)
        if block_width and not min(USUAL, self.drawn_width) <= block_width <= self.drawn_width:
            raise EvergraphError(
                f"random features: block_width={block_width} of a block of {self.drawn_width}; "
                f"0 keeps all, and at least {min(USUAL, self.drawn_width)} must be kept"
            )
        self.projection_seed: Tensor

    def _divide(self, hidden: int, block_width: int) -> None:
        """Divide random features among blocks, of which each keeps the first `block_width`; 0 if it is not narrowed."""
        self.drawn_width = hidden // max(self._num_random, 1)
        self.block_width, self._narrowable = block_width or self.drawn_width, bool(block_width)

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are still present."""
        return [block for block, keep in zip(self.all_blocks, self.kept) if keep]

    @capability(rests_on=READS)
    def of_width(self, width: int) -> RandomFeatures:
        """Return a model with `width` random features of the same kinds, which training never changes."""
        blocks = [block.written() for block in self.all_blocks]
        return RandomFeatures(width, blocks, self.linear_width, self.kept, self.lift, self.scales)

    def hyperparameters(self) -> dict[str, object]:
        """Return constructor arguments that make an equal model; `hidden` is None until `setup` if none was given."""
        settings: dict[str, object] = {"hidden": self.hidden, "blocks": [block.written() for block in self.all_blocks]}
        if self.linear_width:
            settings["linear_width"] = self.linear_width
        if self._narrowable:
            settings["block_width"] = self.block_width
        if self.lift is not None:
            settings["lift"] = self.lift
        if self.scales is not True:
            settings["scales"] = self.scales and [list(column) for column in self.scales]
        return settings if all(self.kept) else {**settings, "kept": list(self.kept)}

    @property
    def _num_random(self) -> int:
        """Number of random blocks, including dropped ones."""
        return sum(not block.linear for block in self.all_blocks)

    @property
    def num_hops(self) -> int:
        """Number of propagation steps of the deepest block."""
        return max(block.depth for block in self.blocks)

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Draw the projection; the head starts at zero."""
        if unknown := [number for number, _, _ in self._columns() if number >= in_channels]:
            raise EvergraphError(f"random features: scales names column {unknown[0]}; there are 0 to {in_channels - 1}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.hidden = self.hidden or self.default_hidden
        self.register_buffer("projection_seed", torch.zeros((), dtype=torch.long))
        self.head = nn.Parameter(torch.zeros(sum(self.widths()) + 1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new projection and set the head to zero."""
        self.projection_seed.fill_(int(torch.randint(2**31, (1,))))
        nn.init.zeros_(self.head)

    @property
    def num_columns(self) -> int:
        """Number of columns of X̂: those of X and, if it is lifted, one more."""
        assert self.in_channels is not None
        return self.in_channels + bool(self.lift)

    @property
    def hashing(self) -> Hashing:
        """Sketch of the linear blocks, which may be exact."""
        seed = int(self.projection_seed) if hasattr(self, "projection_seed") else 0
        return Hashing.within(self.num_columns, self.linear_width or self.num_columns, seed)

    def widths(self) -> list[int]:
        """Number of features of each present block."""
        return [self.hashing.width if block.linear else self.block_width for block in self.blocks]

    @property
    def projection(self) -> Tensor:
        """W, drawn from its seed, so that a checkpoint holds only the seed.

        It is drawn in float32, whatever torch's default type, since another type has other random numbers.
        """
        seed, rows = int(self.projection_seed), self.num_columns
        shape = (rows, self.drawn_width * self._num_random)
        drawn_seed, drawn = _projections.get(self, (None, self.head))
        if drawn_seed != seed or drawn.shape != shape or drawn.dtype != self.head.dtype:
            generator = torch.Generator().manual_seed(seed)
            room = large.empty(shape, torch.float32)
            drawn = torch.randn(shape, generator=generator, out=room).mul_(rows**-0.5)
        drawn = drawn.to(self.head.device, self.head.dtype)
        _projections[self] = (seed, drawn)
        return drawn

    def grow(self, out_channels: int) -> None:
        """Add output units with zero weights."""
        wide = self.head.new_zeros(self.head.size(0), out_channels)
        wide[:, : self.head.size(1)] = self.head.detach()
        self.head, self.out_channels = nn.Parameter(wide), out_channels

    # features

    @capability(rests_on=READS)
    def choose_width(self, graph: Graph, limits: Limits) -> None:
        """Choose the width of random blocks for a first graph, if it was not given; this resets the head to zero."""
        if self._width_is_open and self.in_channels is not None and graph.rows is None:
            size = self.head.element_size()
            row, at_hand = graph.num_nodes * size, lambda width: row * width <= AT_HAND
            width = first_width(self.blocks, self.in_channels, graph.num_nodes, limits, at_hand, size)
            if width > self.drawn_width:
                self._draw(width * self._num_random, width)

    @capability(rests_on=READS)
    def set_width(self, settings: Mapping[str, Any]) -> None:
        """Load the width from a model's settings, if none was given to this one; a missing one is to be chosen."""
        hidden = settings.get("hidden")
        if self._width_is_open or hidden is None:
            self._width_is_open = hidden is None
            self._draw(hidden or self.default_hidden, settings.get("block_width", 0))
            self.hidden = hidden

    def _draw(self, hidden: int, block_width: int) -> None:
        """Adopt another number of random features and reset the head to zero."""
        self.hidden = hidden
        self._divide(hidden, block_width)
        self._empty_head()

    @capability(rests_on=READS)
    def scale_inputs(self, graph: Graph) -> None:
        """Measure the input scaling on a graph, except for given values, and reset the head to zero. Called once.

        Columns are brought to similar scales, and narrow inputs get a constant column, as large as a typical entry. On
        rows [x, c] of unit length a random ReLU can have its threshold anywhere, on rows x only at zero: with a single
        column of positive numbers these are all the same. The constant is a power of two too.
        """
        self.hidden = self.hidden or self.default_hidden  # nothing wider was chosen
        lift, scales = self._measures
        self.scales = measured_columns(graph) if scales else self.scales
        if lift and graph.num_features <= FEW_COLUMNS:
            self.lift = typical_entry(graph, self._columns())
        self._empty_head()

    @capability(rests_on=READS)
    def scale_new_columns(self, graph: Graph) -> None:
        """Measure the scales of columns that had a single value in all graphs so far, which changes no earlier sums."""
        if columns := self._columns():
            self.scales = with_scales(columns, graph)

    @capability(rests_on=READS)
    def set_scaling(self, settings: Mapping[str, Any], anew: bool = False) -> None:
        """Load `lift` and `scales` from a model's settings and reset the head to zero; missing ones are to be measured.

        With `anew`, those that were measured for this model are to be measured again, too.
        """
        known = {**settings, **{name: None for name, own in zip(("lift", "scales"), self._measures) if anew and own}}
        self.lift, scales = known.get("lift"), known.get("scales")
        self.scales = True if scales is None else parse_columns(scales)
        self._measures = (self.lift is None, self.scales is True)
        self._empty_head()

    @capability(rests_on=READS)
    def input_scaling(self) -> InputScaling:
        """Return the scaling of X that precedes scaling its rows to unit length."""
        return InputScaling(tuple(self._columns()), self.lift or 0.0)

    def _columns(self) -> list[Column]:
        """Return the columns that are scaled."""
        return self.scales if isinstance(self.scales, list) else []

    def _empty_head(self) -> None:
        self.head = nn.Parameter(self.head.detach().new_zeros(sum(self.widths()) + 1, self.head.size(1)))

    def _own_rows(self, x: Features) -> Features:
        """Return X̂: X with its columns scaled, lifted if there are few, and rows of unit length."""
        return unit_rows(self.input_scaling().apply(x))

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return A + I, unnormalized: each block normalizes it in its own way."""
        return with_self_loops(graph.adjacency)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return the features themselves if they fit into memory; else X̂ with a column of degrees, for batches."""
        if propagate if propagate is not None else self.reads_whole(graph):
            return self.graph_features(graph.x, operator), 0
        return with_column(self._own_rows(graph.x), operator.row_sums()), self.num_hops

    @capability(rests_on=("operator", "inputs", "graph_features"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph, including the projection."""
        return f"random features {self.hyperparameters()} {self.in_channels} {int(self.projection_seed)}"

    @capability(rests_on=READS)
    def graph_features(self, x: Features, operator: SparseMatrix, projected: dict[int, Tensor] | None = None) -> Tensor:
        """Return the features of all nodes of a graph, with a column of ones.

        `projected` caches X̂ W, piece by piece, for further calls with the same X and other operators.
        """
        degree = operator.row_sums().unsqueeze(1)
        nodes, hops = operator.num_rows, self.num_hops
        return self._side_by_side(self._own_rows(x), degree, [operator] * hops, [nodes] * (hops + 1), projected)

    @capability(rests_on=("forward", "logits"))
    def features(self, batch: Batch) -> Tensor:
        """Return the features of a batch's seeds, with a column of ones."""
        if not batch.num_hops:
            assert isinstance(batch.x, Tensor)
            return batch.x
        degree, sizes = column(batch.x, self.num_columns), batch.sizes
        operators = [batch.operator.top(near, far) for near, far in itertools.pairwise(sizes)]
        return self._side_by_side(batch.x, degree, operators, sizes)

    @capability(rests_on=(*READS, "graph_features"))
    def graph_scores(
        self, x: Features, operator: SparseMatrix, weights: Tensor, projected: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Return the features of all nodes times `weights`, block by block: the features are never all in memory."""
        nodes, hops = operator.num_rows, self.num_hops
        steps = Steps(operator.row_sums().unsqueeze(1), [operator] * hops, [nodes] * (hops + 1))
        own, total = self._own_rows(x), weights[-1].repeat(nodes, 1)
        words, room = WordsWithin(own, steps), weights.new_empty(nodes * max(self.widths()))
        for number, part in enumerate(weights[:-1].split(self.widths())):
            block = room[: nodes * part.size(0)].view(nodes, part.size(0))
            self._fill(number, block, own, words, projected)
            total += product(block, part)
        return total

    @capability(rests_on=("graph_scores",))
    def feature_scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return features times `weights`, the same numbers as `graph_scores`."""
        total = weights[-1].repeat(features.size(0), 1)
        for block, part in zip(features[:, :-1].split(self.widths(), dim=1), weights[:-1].split(self.widths())):
            total += product(block, part)
        return total

    @capability(rests_on=("inputs", "graph_scores"))
    def reads_whole(self, graph: Graph) -> bool:
        """Whether the features of a graph fit into memory."""
        return graph.num_nodes * self.head.size(0) * self.head.element_size() <= AT_HAND

    def _side_by_side(
        self,
        x: Features,
        degree: Tensor,
        operators: Sequence[SparseMatrix],
        sizes: Sequence[int],
        projected: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return every block's features at the first `sizes[0]` nodes, and a column of ones.

        `sizes[k]` nodes lie within k steps, and `operators[k]` goes from those within k + 1 steps to those within k. X
        may have one more column, of degrees. Pieces of X̂ W that are already in `projected` are taken from there.
        """
        own = first_columns(x, self.projection.size(0))
        words = WordsWithin(own, Steps(degree, operators, sizes))
        found = large.empty((sizes[0], sum(self.widths()) + 1), self.head.dtype, x.device)
        *parts, ones = found.split([*self.widths(), 1], dim=1)
        ones.fill_(1)
        for number, part in enumerate(parts):
            self._fill(number, part, own, words, projected)
        return found

    def _fill(
        self, number: int, part: Tensor, own: Features, words: WordsWithin, projected: dict[int, Tensor] | None
    ) -> None:
        """Write the features of one block to `part`; `own` is X̂."""
        block, columns, steps = self.blocks[number], self._projected_columns()[number], words.steps
        if block.linear:
            torch.mul(self.hashing.apply(unit_rows(words.of(block, 0))), self._linear_scale, out=part)
            return
        projection = self.projection.to(own.device)
        for piece in pieces_of(columns, own.device):
            if projected is None or piece.start not in projected:
                h = first_rows(own, steps.sizes[block.depth]) @ projection[:, piece]
                if projected is not None:
                    projected[piece.start] = h
            else:
                h = projected[piece.start]
            for near in reversed(range(block.depth)):
                h = steps.of(block, near) @ h
            part[:, piece.start - columns.start : piece.stop - columns.start] = h
        self._activate(part)

    @capability(rests_on=(*READS, "propagated_inputs", "features_from"))
    def propagates_once(self, graph: Graph) -> bool:
        """Whether the features of a graph are too large to be kept, but its propagated inputs are not."""
        column = self.head.element_size() * graph.num_nodes
        dense = not isinstance(graph.x, SparseMatrix) and graph.joining is None and graph.members is None
        if not dense or column * self.head.size(0) <= AT_HAND:
            return False
        propagated = {(depth, balance) for depth, balance in self.propagated_inputs() if depth}
        return column * self.num_columns * len(propagated) <= AT_HAND

    @capability(rests_on=READS)
    def propagated_inputs(self) -> list[tuple[int, float | None]]:
        """Return (k, b) of each block, None for `others`: its features are computed row by row from P_b^k X̂."""
        return [(block.depth, block.balance) for block in self.blocks]

    @capability(rests_on=READS)
    def features_from(self, propagated: Sequence[Features]) -> Tensor:
        """Return the features of some nodes and a column of ones, from their rows of P_b^k X̂ for each block (k, b)."""
        rows = zip(propagated, self.blocks, self._projected_columns())
        return with_ones(torch.cat([self._seen(block, h, columns) for h, block, columns in rows], dim=1))

    def _seen(self, block: Block, h: Features, columns: slice) -> Tensor:
        """Return a block's features from rows of P^k X̂."""
        if block.linear:
            return self.hashing.apply(unit_rows(h)) * self._linear_scale
        return self._activate(h @ self.projection[:, columns])

    @capability(rests_on=READS)
    def feature_blocks(self) -> tuple[list[int], Tensor]:
        """Return the depth of each block, and the block of each feature; -1 for the column of ones."""
        widths = torch.tensor(self.widths())
        block = torch.arange(len(self.blocks)).repeat_interleave(widths)
        return [block.depth for block in self.blocks], torch.cat([block, block.new_full((1,), -1)])

    @capability(rests_on=(*READS, "graph_features"))
    def score_pieces(
        self, x: Features, operator: SparseMatrix, node: int, weights: Tensor
    ) -> tuple[float, list[Piece]]:
        """Return φ_v · weights for one node v as a constant and pieces that are linear in features, in float64.

        The sum is exact. Two things are held fixed at their values for this node: which random features are positive
        (the ReLU), and the length that its rows are scaled by. The constant includes what the `lift` column adds.
        """
        x, operator, weights = x.to("cpu"), operator.to("cpu"), weights.detach().cpu().double()
        projection, pieces, constant = self.projection.cpu(), [], float(weights[-1])
        own_columns = self.num_columns - bool(self.lift)
        parts = weights[:-1].split(self.widths())
        for block, columns, own in zip(self.blocks, self._projected_columns(), parts):
            nodes, reach = reach_of(operator, node, block)
            rows = self._own_rows(take_rows(x, nodes).to(torch.float64))
            arrived = h = arriving(rows, reach)
            if block.linear:
                place, sign = self.hashing.map()
                pull = own[place] * sign * self._linear_scale / float(h.norm().clamp(min=1e-12))
            else:
                drawn = projection[:, columns].double()
                h = h @ drawn
                pull = drawn @ ((h > 0) * own) * self._scale_of(h.reshape(1, -1)).reshape(())
            constant += float(arrived[own_columns:] @ pull[own_columns:])
            pieces.append(Piece(block.depth, nodes, reach, first_columns(rows, own_columns), pull[:own_columns]))
        return constant, pieces

    @capability(rests_on=READS)
    def lay_out(self, kept: Sequence[bool], linear_width: int, block_width: int = 0) -> None:
        """Adopt a layout of blocks and reset the head to zero; a `block_width` of 0 is all that was drawn."""
        self.kept, self.linear_width = [bool(keep) for keep in kept], linear_width
        self.block_width = block_width or self.drawn_width
        self._empty_head()

    @capability(rests_on=READS)
    def feature_layout(self) -> Layout:
        """Return how the features are divided into blocks."""
        usual = max(USUAL, self.default_hidden // max(self._num_random, 1))
        random = any(not block.linear for block in self.blocks)
        return Layout(
            tuple(self.all_blocks),
            tuple(self.kept),
            tuple(self.widths()),
            self.hashing.width,
            self.block_width,
            lasting_width(self.drawn_width) if self._narrowable else self.block_width,
            self._narrowable,
            max(self.block_width / usual, 1.0) if random else 1.0,
        )

    @capability(rests_on=READS)
    def narrow(self, keep: Sequence[bool], linear_width: int, block_width: int = 0) -> Callable[[Tensor, int], Tensor]:
        """Drop blocks and narrow others; return a function that converts sums over features to the new ones.

        A random block keeps its first `block_width` features, at least `USUAL`; 0 leaves it. Linear blocks keep their
        share of the features' energy. The function folds a tensor along the dimension that holds the features.
        """
        before, hashing, first, scale = self.widths(), self.hashing, block_width or self.block_width, self._linear_scale
        self.block_width = first
        rescaled = self._linear_scale / scale
        left = iter(keep)
        self.kept = [was and next(left) for was in self.kept]
        self.linear_width = linear_width
        linear = [block.linear for block, kept in zip(self.all_blocks, self.kept) if kept]
        narrower = self.hashing

        def fold(sums: Tensor, dim: int) -> Tensor:
            *parts, ones = sums.split([*before, 1], dim)
            parts = [part for part, kept in zip(parts, keep) if kept]
            same = hashing.width == narrower.width
            parts = [
                part.narrow(dim, 0, first) if not words else part if same else hashing.fold(narrower, part, dim)
                for part, words in zip(parts, linear)
            ]
            if rescaled != 1:
                parts = [rescaled * part if words else part for part, words in zip(parts, linear)]
            return torch.cat([*parts, ones], dim)

        self.head = nn.Parameter(fold(self.head.detach(), 0))
        return fold

    @capability(rests_on=(*READS, "graph_features"))
    def linear_products(self, graph: Graph, nodes: Tensor, counted: Tensor) -> dict[int, Products]:
        """Return the exact inner products between nodes in dropped linear blocks, by position among all blocks."""
        dropped = [place for place, kept in enumerate(self.kept) if self.all_blocks[place].linear and not kept]
        x, operator = graph.x.to(self.head.dtype), self.operator(graph).to(self.head.dtype)
        x = self.input_scaling().apply(x)
        blocks = [self.all_blocks[place] for place in dropped]
        products = linear_products(x.to(nodes.device), operator.to(nodes.device), blocks, nodes, counted)
        return dict(zip(dropped, (Products(found.between * self._linear_scale**2, found.words) for found in products)))

    def _projected_columns(self) -> list[slice]:
        """Return the columns of the projection that each block reads; a linear block reads none."""
        width, starts = self.block_width, itertools.count(0, self.drawn_width)
        every = [slice(0) if block.linear else slice(start := next(starts), start + width) for block in self.all_blocks]
        return [columns for columns, keep in zip(every, self.kept) if keep]

    @property
    def _energy(self) -> float:
        """Twice the mean square length of a random block's rows, before it is narrowed."""
        return self.drawn_width / max(self._num_random, 1) or 1.0

    @property
    def _linear_scale(self) -> float:
        """Length of a linear block's rows: their square is the mean square length of a random block's rows."""
        return (self.block_width / max(self._num_random, 1) / 2) ** 0.5

    def _activate(self, h: Tensor) -> Tensor:
        """Scale rows to unit length, apply ReLU, and scale so that all random features have mean square length near ½.

        `h` is overwritten.
        """
        scale = self._scale_of(h)
        return h.relu_().mul_(scale)

    def _scale_of(self, h: Tensor) -> Tensor:
        """Return what multiplies each row of a block: its length is measured on features that no narrowing removes."""
        seen = min(USUAL, self.drawn_width) if self._narrowable else self.drawn_width
        length = h[:, :seen].norm(dim=1, keepdim=True) * (self.drawn_width / seen) ** 0.5
        return self._energy**0.5 / length.clamp(min=1e-9)

    @capability(rests_on=("forward", "logits"))
    def output_weight(self) -> Tensor:
        """The head."""
        return self.head

    def logits(self, batch: Batch) -> Tensor:
        """Return the head's scores."""
        return linear(self.features(batch), self.head)
