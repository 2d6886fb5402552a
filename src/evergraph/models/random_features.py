"""Random propagation features: a frozen graph encoder, and a linear head on top.

With the encoder fixed, the model is linear in its parameters: the curvature of a squared loss is the Gram
matrix of the features, the same at every θ. It is the case in which learning task after task can be exact
(`evergraph.methods.analytic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.data.batches import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import GraphModel, linear, neighbourhoods
from evergraph.models.foreign_edges import judge_edges
from evergraph.sparse import Features, SparseMatrix, with_column, with_ones, with_self_loops

Block = tuple[int, float]
BLOCKS: tuple[Block, ...] = ((1, 1.0), (1, 0.5), (2, 1.0), (2, 0.5), (0, 0.5))
AT_HAND = 2**31  # bytes of features that may be computed for a whole graph at once
FEW = 0.02  # share of edges between tasks, beyond what training's graphs seem to have, that is taken for none


class RandomFeatures(GraphModel):
    """Blocks of random features, each seen through several steps of propagation.

    Block (k, b) is ReLU(P_b^k X̂ W) with its rows scaled to length one before the ReLU: X̂ are the features with
    rows of length one, W random Gaussian, and P_b = D^(b−1) (A + I) D^(−b): b = ½ is GCN's normalization, b = 1
    divides each neighbour's message by that neighbour's degree, b = 0 takes the mean.

    The head reads the blocks with a step of propagation or more (`auto` chooses others). At test time a graph may
    hold edges between tasks that training never saw, and the deeper a block the more they reach it. So there is a
    second head, the vote: the sum of the head and of one head on the blocks of each smaller depth (what a node's
    own features say, what its neighbours' say), whose softmax is the product of theirs. By the vote on its two
    ends' tasks every edge is judged (`judge_edges`). Where hardly more edges seem to join tasks than in the graphs
    of training (2 % more than the most seen there, `doubt`), the graph is as in training and the head predicts; else
    the vote decides on features computed anew on the graph with weighted edges, where the validation nodes allow
    it (`votes`). Where they say that it helps, the head's probabilities are mixed with the neighbours' (`smooths`),
    over the weighted edges. All this uses the test graph alone.

    Args:
        hidden: number of random features, all blocks together.
        blocks: pairs (k, b).
        agree: judge the edges at test time; off, the graph is taken as it is.
        smoothing: share of the neighbours' probabilities in the prediction, five rounds; 0 never smooths.
        temperature: of the softmax that makes probabilities of least-squares scores.
    """

    def __init__(
        self,
        hidden: int = 5120,
        blocks: Sequence[Sequence[float]] = BLOCKS,
        agree: bool = True,
        smoothing: float = 0.5,
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.blocks: list[Block] = [(int(depth), float(balance)) for depth, balance in blocks]
        if not self.blocks or hidden < len(self.blocks):
            raise EvergraphError(f"random features: hidden={hidden} is too narrow for {len(self.blocks)} blocks")
        self.agree, self.smoothing, self.temperature = agree, smoothing, temperature
        self.block_width = hidden // len(self.blocks)
        self.projection_seed: Tensor
        self.task_of_unit: Tensor
        self.in_head: Tensor
        self.vote: Tensor
        self.votes: Tensor
        self.smooths: Tensor
        self.doubt: Tensor
        self._drawn: tuple[int, Tensor] | None = None

    def hyperparameters(self) -> dict[str, Any]:
        """Constructor arguments that make an equal model."""
        names = ("hidden", "agree", "smoothing", "temperature")
        return {"blocks": [list(block) for block in self.blocks], **{name: getattr(self, name) for name in names}}

    @property
    def num_hops(self) -> int:
        """How far the deepest block looks."""
        return max(depth for depth, _ in self.blocks)

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Draw the projection; the head starts at zero."""
        self.in_channels, self.out_channels = in_channels, out_channels
        width = self.block_width * len(self.blocks)
        self.register_buffer("projection_seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("task_of_unit", torch.full((out_channels,), -1, dtype=torch.long))
        propagated = [depth > 0 or not self.num_hops for depth, _ in self.blocks]
        self.register_buffer("in_head", torch.tensor(propagated))
        self.register_buffer("vote", torch.zeros(width + 1, out_channels))
        self.register_buffer("votes", torch.zeros((), dtype=torch.bool))
        self.register_buffer("smooths", torch.zeros((), dtype=torch.bool))
        self.register_buffer("doubt", torch.zeros(()))
        self.head = nn.Parameter(torch.zeros(width + 1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A new projection and empty heads."""
        self.projection_seed.fill_(int(torch.randint(2**31, (1,))))
        nn.init.zeros_(self.head)
        self.vote.zero_()

    @property
    def projection(self) -> Tensor:
        """W, drawn from its seed: a checkpoint holds the seed alone."""
        assert self.in_channels is not None
        seed = int(self.projection_seed)
        if self._drawn is None or self._drawn[0] != seed:
            generator = torch.Generator().manual_seed(seed)
            shape = (self.in_channels, self.block_width * len(self.blocks))
            self._drawn = (seed, torch.randn(shape, generator=generator) * self.in_channels**-0.5)
        moved = self._drawn[1].to(self.head.device, self.head.dtype)
        self._drawn = (seed, moved)
        return moved

    def input_key(self) -> str:
        """The features depend on the projection too."""
        return f"{super().input_key()} {int(self.projection_seed)}"

    def grow(self, out_channels: int) -> None:
        """More output units, with zero weights."""
        wide = self.head.new_zeros(self.head.size(0), out_channels)
        wide[:, : self.head.size(1)] = self.head.detach()
        more = self.task_of_unit.new_full((out_channels - self.task_of_unit.numel(),), -1)
        self.head, self.task_of_unit = nn.Parameter(wide), torch.cat([self.task_of_unit, more])
        self.vote = nn.functional.pad(self.vote, (0, more.numel()))
        self.out_channels = out_channels

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

    def graph_features(self, x: Features, operator: SparseMatrix) -> Tensor:
        """The features of all nodes of a graph, with a column of ones."""
        degree = operator.row_sums().unsqueeze(1)
        projection = self.projection.to(x.device)
        out = []
        for depth, balance, columns in self._blocks():
            h = unit_rows(x) @ projection[:, columns]
            for _ in range(depth):
                h = degree ** (balance - 1) * (operator @ (degree**-balance * h))
            out.append(self._activate(h))
        return with_ones(torch.cat(out, dim=1))

    def features(self, batch: Batch) -> Tensor:
        """The features of a batch's seeds, with a column of ones."""
        if not batch.num_hops:
            assert isinstance(batch.x, Tensor)
            return batch.x
        assert self.in_channels is not None
        degree = column(batch.x, self.in_channels)
        out = []
        for depth, balance, columns in self._blocks():
            weight = torch.cat([self.projection[:, columns], self.projection.new_zeros(1, self.block_width)])
            h = (batch.x @ weight)[: batch.sizes[depth]]
            for step in range(depth, 0, -1):
                operator = batch.operator.top(batch.sizes[step - 1], batch.sizes[step])
                h = degree[: operator.num_columns] ** -balance * h
                h = degree[: operator.num_rows] ** (balance - 1) * (operator @ h)
            out.append(self._activate(h))
        return with_ones(torch.cat(out, dim=1))

    def rows_of(self, blocks: Sequence[bool] | Tensor) -> Tensor:
        """The rows of the head that belong to the chosen blocks, and the one of the column of ones."""
        chosen = torch.as_tensor(blocks, device=self.head.device).repeat_interleave(self.block_width)
        return torch.nonzero(torch.cat([chosen, chosen.new_ones(1)])).reshape(-1)

    def _blocks(self) -> list[tuple[int, float, slice]]:
        width = self.block_width
        return [(k, b, slice(i * width, (i + 1) * width)) for i, (k, b) in enumerate(self.blocks)]

    def _activate(self, h: Tensor) -> Tensor:
        """Rows of length one, ReLU, and a scale that gives all features together a mean square near one half."""
        length = h.norm(dim=1, keepdim=True).clamp(min=1e-9)
        return h.relu() / length * (self.block_width / len(self.blocks)) ** 0.5

    def output_weight(self) -> Tensor:
        """The head."""
        return self.head

    def logits(self, batch: Batch) -> Tensor:
        """The head's scores."""
        return linear(self.features(batch), self.head)

    # prediction on a whole graph

    @torch.no_grad()
    def graph_logits(self, graph: Graph, nodes: Tensor, device: torch.device) -> Tensor:
        """Logits at `nodes`: plain, and where the graph's features fit into memory, by judged edges."""
        judged = self.agree and int(self.task_of_unit.max()) > 0
        smooths = bool(self.smooths) and self.smoothing > 0
        cut = neighbourhoods(self, graph, device=device)
        if cut.num_hops or not (smooths or judged):
            return super().graph_logits(graph, nodes, device) / self.temperature
        assert isinstance(cut.x, Tensor)
        features = cut.x
        adjacency = graph.adjacency.to(self.head.dtype).to(device)
        weighed, share = self.judge(adjacency, features) if judged else (adjacency, 0.0)
        foreign = share > FEW + float(self.doubt)
        if foreign and (self.votes or not smooths):
            x = graph.x.to(self.head.dtype).to(device)
            if self.votes:  # better features judge better: once more
                weighed, _ = self.judge(adjacency, self.graph_features(x, with_self_loops(weighed)))
            features = self.graph_features(x, with_self_loops(weighed))
        if foreign and self.votes:
            scores = features @ self.vote / self.temperature
        elif smooths:
            scores = self.smooth(weighed if foreign else adjacency, features @ self.head)
        else:
            scores = features @ self.head / self.temperature
        return scores[nodes.to(device)].cpu()

    @torch.no_grad()
    def learn_doubt(self, graph: Graph, cut: Neighbourhoods) -> None:
        """How many edges within a task are taken for others: the largest share in a task's own graph so far."""
        if self.agree and int(self.task_of_unit.max()) > 0 and not cut.num_hops:
            assert isinstance(cut.x, Tensor)
            _, share = self.judge(graph.adjacency.to(self.head.dtype).to(cut.x.device), cut.x)
            self.doubt.fill_(max(share, float(self.doubt)))

    def probabilities(self, scores: Tensor) -> Tensor:
        """Softmax over the units in use."""
        unused = self.task_of_unit < 0
        return (scores / self.temperature).masked_fill(unused, -torch.inf).softmax(1)

    def judge(self, adjacency: SparseMatrix, features: Tensor) -> tuple[SparseMatrix, float]:
        """The edges weighed by the vote on their ends' tasks, and the share of edges between tasks."""
        p = self.probabilities(features @ self.vote)
        tasks = p.new_zeros(p.size(0), int(self.task_of_unit.max()) + 1)
        tasks.index_add_(1, self.task_of_unit.clamp(min=0), p)
        return judge_edges(adjacency, tasks)

    def smooth(self, adjacency: SparseMatrix, scores: Tensor, rounds: int = 5) -> Tensor:
        """Log of Z after Z ← (1 − s) p + s · (mean of Z over a node and its neighbours)."""
        mean = with_self_loops(adjacency)
        mean = mean.with_values(mean.values / mean.row_sums()[mean.row_of_entry()])
        p = self.probabilities(scores)
        mixed = p
        for _ in range(rounds):
            mixed = (1 - self.smoothing) * p + self.smoothing * (mean @ mixed)
        return mixed.clamp(min=1e-30).log()


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
