"""What stands still of a prototype network: its atoms and what they match, once for all nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evergraph.data.batching import Neighbourhoods

LARGEST = 2**29  # bytes that the atoms of all nodes may take to be kept
AT_ONCE = 2**19  # cosines computed at once, so that they stay in the cache


class Match(NamedTuple):
    """The nearest prototypes of some embeddings.

    Args:
        cosine: with them.
        prototype: their numbers.
        among: how many prototypes, the first ones of a level, they were found among.
    """

    cosine: Tensor
    prototype: Tensor
    among: int

    def of(self, rows: Tensor) -> Match:
        """Those of some rows."""
        return Match(self.cosine[rows], self.prototype[rows], self.among)

    def or_nearer(self, embeddings: Tensor, more: Tensor) -> Match:
        """The nearest among these and further prototypes, which are numbered after them."""
        if not more.size(0):
            return self
        other = nearest(embeddings, more)
        nearer = other.cosine > self.cosine
        prototype = torch.where(nearer, other.prototype + self.among, self.prototype)
        return Match(torch.where(nearer, other.cosine, self.cosine), prototype, self.among + more.size(0))


def nearest(embeddings: Tensor, prototypes: Tensor) -> Match:
    """The prototypes with the largest cosines, for embeddings `(…, dim)`; all vectors have length one."""
    rows = embeddings.flatten(0, -2)
    found = [(part @ prototypes.T).max(1) for part in rows.split(max(1, AT_ONCE // prototypes.size(0)))]
    shape = embeddings.shape[:-1]
    cosine, number = (torch.cat([each[place] for each in found]).view(shape) for place in (0, 1))
    return Match(cosine, number, prototypes.size(0))


@dataclass(eq=False)
class HeldAtoms:
    """The atoms of all nodes of a graph, and their nearest among the prototypes that stand still.

    Args:
        source: cuts the batches whose nodes they are.
        atoms: `(nodes, atoms, dim)`.
        match: None where no prototype stands still.
    """

    source: Neighbourhoods
    atoms: Tensor
    match: Match | None
