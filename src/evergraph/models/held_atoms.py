"""Precomputed atoms of a prototype network and their matches, for all nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.data.batching import Neighbourhoods

LARGEST = 2**29  # the atoms of all nodes are kept if they take at most this many bytes
AT_ONCE = 2**19  # cosines computed at once, so that they stay in the cache


class Match(NamedTuple):
    """The nearest prototypes of some embeddings.

    Args:
        cosine: cosine of each embedding with its nearest prototype.
        prototype: number of the nearest prototype.
        among: number of prototypes, the first ones of a level, that were searched.
    """

    cosine: Tensor
    prototype: Tensor
    among: int

    def of(self, rows: Tensor) -> Match:
        """Return the matches of some rows."""
        return Match(self.cosine[rows], self.prototype[rows], self.among)

    def or_nearer(self, embeddings: Tensor, more: Tensor) -> Match:
        """Return the nearest among these and the prototypes `more`, which are numbered after them."""
        if not more.size(0):
            return self
        other = nearest(embeddings, more)
        nearer = other.cosine > self.cosine
        prototype = torch.where(nearer, other.prototype + self.among, self.prototype)
        return Match(torch.where(nearer, other.cosine, self.cosine), prototype, self.among + more.size(0))


def nearest(embeddings: Tensor, prototypes: Tensor) -> Match:
    """Return the prototypes with the largest cosines, for embeddings `(…, dim)`; all vectors have unit length."""
    rows = embeddings.flatten(0, -2)
    found = [(part @ prototypes.T).max(1) for part in rows.split(max(1, AT_ONCE // prototypes.size(0)))]
    shape = embeddings.shape[:-1]
    cosine, number = (torch.cat([each[place] for each in found]).view(shape) for place in (0, 1))
    return Match(cosine, number, prototypes.size(0))


@dataclass(eq=False)
class HeldAtoms:
    """The atoms of all nodes of a graph, and their nearest among the fixed prototypes.

    Args:
        source: makes the batches of the graph.
        atoms: `(nodes, atoms, dim)`.
        match: the nearest fixed prototypes; None if no prototype is fixed.
    """

    source: Neighbourhoods
    atoms: Tensor
    match: Match | None
