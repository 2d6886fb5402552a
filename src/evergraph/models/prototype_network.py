"""Hierarchical prototype networks (Zhang, Song and Tao, TPAMI 2022): prototypes of atoms, nodes and classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, No, capability
from evergraph.core.features import Features, with_ones
from evergraph.core.recording import linear, noted
from evergraph.core.settings import PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.models.base import MODELS, Form, GraphModel
from evergraph.models.held_atoms import LARGEST, HeldAtoms, Match, nearest
from evergraph.models.sage import mean_operator
from evergraph.models.weights import draw, grown_with_bias

LEVELS = ("atom", "node", "class")
HOPS = 2


@MODELS.register(name="prototype-network")
class PrototypeNetwork(GraphModel):
    """Represents a node by the prototypes it matches on three levels, with a linear head.

    Atoms: linear projections of a node's features, and of the mean features of its neighbours one and two hops away,
    each scaled to unit length. Every atom is replaced by the atom prototype with the largest cosine. The matched atoms
    give a node embedding, which is matched to node prototypes; these give a class embedding, matched to class
    prototypes. The head reads all matched prototypes. If a level has no prototypes yet, embeddings pass through.

    Args:
        dim: width of atoms and of the embeddings of nodes and classes.
        node_extractors: number of atoms extracted from a node's own features.
        structure_extractors: number of atoms extracted from its neighbours' features, at each distance.
        capacity: largest number of prototypes of each level.
    """

    def __init__(
        self,
        dim: PositiveInt = 16,
        node_extractors: PositiveInt = 4,
        structure_extractors: PositiveInt = 4,
        capacity: PositiveInt = 4000,
    ) -> None:
        super().__init__()
        self.dim, self.capacity = dim, capacity
        self.node_extractors, self.structure_extractors = node_extractors, structure_extractors
        self.established: Tensor
        self.held: HeldAtoms | None = None

    @property
    def num_atoms(self) -> int:
        """Number of atoms of a node."""
        return self.node_extractors + HOPS * self.structure_extractors

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases, no prototypes."""
        self.in_channels, self.out_channels = in_channels, out_channels
        width, dim = self.num_atoms * self.dim, self.dim
        self.own = nn.Parameter(torch.empty(in_channels, self.node_extractors * dim))
        self.around = nn.Parameter(torch.empty(in_channels, self.structure_extractors * dim))
        self.to_node = nn.Parameter(torch.empty(width + 1, dim))
        self.to_class = nn.Parameter(torch.empty(dim + 1, dim))
        self.embedding_head = nn.Parameter(torch.empty(width + 1, out_channels))
        self.head = nn.Parameter(torch.empty(width + 2 * dim + 1, out_channels))
        self.prototypes = nn.ParameterList(nn.Parameter(torch.empty(self.capacity, dim)) for _ in LEVELS)
        self.register_buffer("established", torch.zeros(len(LEVELS), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform weights, zero biases, no prototypes."""
        for weight in (self.own, self.around):
            nn.init.xavier_uniform_(weight)
        for weight in (self.to_node, self.to_class, self.embedding_head, self.head):
            draw(weight)
        for rows in self.prototypes:
            nn.init.zeros_(rows)
        self.established.zero_()

    def grow(self, out_channels: int) -> None:
        """Add output units; a new unit's bias starts at zero."""
        for name in ("embedding_head", "head"):
            setattr(self, name, grown_with_bias(getattr(self, name), out_channels))
        self.out_channels = out_channels

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return the mean over neighbours."""
        return mean_operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return the features themselves, and two hops."""
        return graph.x, HOPS

    @capability(rests_on=("operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps cannot be captured."""
        return No("the number of prototypes that embeddings are matched with is read back at every step")

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return "prototype network"

    def atoms(self, batch: Batch) -> Tensor:
        """Return the atoms of each seed, of unit length: `(seeds, atoms, dim)`."""
        if (held := self._held_for(batch)) is not None:
            return held.atoms[batch.nodes[: batch.sizes[0]]]
        seeds, near = batch.sizes[0], batch.sizes[1]
        own, around = (batch.x @ self.own)[:seeds], batch.x @ self.around
        one = batch.layer(1) @ around[:near]
        two = batch.layer(1) @ (batch.layer(0) @ around)
        return self._as_atoms(own, one, two)

    def _as_atoms(self, *parts: Tensor) -> Tensor:
        return F.normalize(torch.cat(parts, dim=1).unflatten(1, (self.num_atoms, self.dim)), dim=-1)

    @torch.no_grad()
    def hold(self, batcher: Neighbourhoods, count: int) -> None:
        """Precompute the atoms of all nodes of a graph, and their matches among the first `count` atom prototypes.

        The extractors and these prototypes must stay fixed until `let_go`. Nothing is precomputed if it takes too much
        memory or if neighbours are sampled.
        """
        self.held = None
        width = self.num_atoms * self.dim
        if batcher.fan_out is not None or batcher.operator.num_rows * width * self.own.element_size() > LARGEST:
            return
        around = batcher.operator @ (batcher.x @ self.around)
        atoms = self._as_atoms(batcher.x @ self.own, around, batcher.operator @ around)
        match = nearest(atoms, F.normalize(self.prototypes[0][:count], dim=1)) if count else None
        self.held = HeldAtoms(batcher, atoms, match)

    def let_go(self) -> None:
        """Discard what `hold` has precomputed."""
        self.held = None

    def _held_for(self, batch: Batch) -> HeldAtoms | None:
        return self.held if self.training and self.held is not None and self.held.source is batch.source else None

    def held_match(self, batch: Batch) -> Match | None:
        """Return what each seed's atoms match among the fixed prototypes; None if it is not precomputed."""
        held = self._held_for(batch)
        return None if held is None or held.match is None else held.match.of(batch.nodes[: batch.sizes[0]])

    @capability(rests_on=("forward", "logits", "atoms", "match", "above"))
    def levels(self, atoms: Tensor, known: Match | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Return the embeddings of all three levels, and what they match, from atoms: `(examples, vectors, dim)` each.

        `known` is what the atoms match among the first prototypes.
        """
        embeddings, matched = [atoms], [self.match(0, atoms, known)]
        for level in (1, 2):
            embeddings.append(self.above(level, matched[-1]))
            matched.append(self.match(level, embeddings[-1]))
        return embeddings, matched

    def above(self, level: int, below: Tensor) -> Tensor:
        """Return the embedding of a level, of unit length, from what was matched on the level below."""
        weight = (self.to_node, self.to_class)[level - 1]
        return F.normalize(with_ones(below.flatten(1)) @ weight, dim=-1).unsqueeze(1)

    def match(self, level: int, embeddings: Tensor, known: Match | None = None) -> Tensor:
        """Return the prototype nearest to each embedding, of unit length; the embedding itself if there is none."""
        found = self.nearest(level, embeddings, known)
        if found is None:
            return embeddings
        chosen = self.prototypes[level].index_select(0, found.prototype.flatten()).view_as(embeddings)
        return F.normalize(chosen, dim=-1)

    def known(self, level: int, start: int = 0) -> Tensor:
        """Return the prototypes of a level, of unit length, from number `start` on."""
        return F.normalize(self.prototypes[level][start : int(self.established[level])], dim=1)

    def nearest(self, level: int, embeddings: Tensor, known: Match | None = None) -> Match | None:
        """Return the prototypes with the largest cosines; None if there are none.

        `known` is the match among the first prototypes, so that only the others are compared.
        """
        rest = self.known(level, known.among if known is not None else 0).detach()
        if known is not None:
            return known.or_nearer(embeddings.detach(), rest)
        return nearest(embeddings.detach(), rest) if rest.size(0) else None

    def logits(self, batch: Batch) -> Tensor:
        """Apply the head to all matched prototypes; `noted` records the embeddings of all levels, then the matches."""
        embeddings, matched = self.levels(self.atoms(batch), self.held_match(batch))
        for level in (*embeddings, *matched):
            noted(level)
        return linear(with_ones(torch.cat([level.flatten(1) for level in matched], dim=1)), self.head)
