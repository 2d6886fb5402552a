"""The rows of each layer that the examples of a step read, if one pass serves a whole task.

On a GPU a mini-batch is a selection of rows from a pass over all of a task's nodes, whose shapes never change. But it
reads only the neighbours of its seeds, and their neighbours. So these are flagged at every step, and products skip the
others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergraph.core.row_pieces import row_kernel
from evergraph.core.sparse import SparseMatrix

WORTH = 2**19  # skipped entries, of all networks together, below which nothing is gained


class NeededRows:
    """Flags of the nodes within each number of hops of the chosen examples, for one network or several.

    Args:
        layers: the operators of a pass, the first layer's first.
        x: inputs of the pass.
        networks: number of networks, each with examples of its own.
    """

    def __init__(self, layers: Sequence[SparseMatrix], x: SparseMatrix, networks: int) -> None:
        self._operators = layers
        sizes = [layer.num_columns * networks for layer in reversed(layers)]  # of the nodes within one hop, two, …
        self._all = torch.zeros(sum(sizes), dtype=torch.int8, device=layers[0].device)
        self._flags = [part.unflatten(0, (-1, networks)) for part in self._all.split(sizes)]
        readers = [*reversed(self._flags[:-1]), None]  # needed rows of each layer; of the last, the few chosen ones
        self.layers = [
            layer.as_needed(rows, columns) for layer, rows, columns in zip(layers, readers, reversed(self._flags))
        ]
        self.x = x.as_needed(self._flags[-1], None)

    def mark(self, chosen: Tensor) -> None:
        """Flag what these examples, `(networks, examples)`, read, and clear earlier flags."""
        self._all.zero_()
        rows, listed = chosen, True
        for operator, flags in zip(reversed(self._operators), self._flags):
            _mark(flags, rows, operator, listed=listed)
            rows, listed = flags, False

    def saves(self, chosen: Tensor) -> bool:
        """Return whether steps on as many examples as these skip enough to be worth the flags; marks these."""
        self.mark(chosen)
        read = (self.x.counts().unsqueeze(1) * self._flags[-1]).sum()
        return self.x.nnz * chosen.size(0) - int(read) >= WORTH


def _mark(flags: Tensor, rows: Tensor, operator: SparseMatrix, *, listed: bool) -> None:
    """Flag the columns that some rows of an operator read: rows listed for each network, or rows with flags."""
    if flags.is_cuda and row_kernel() is not None:
        from evergraph.core.row_kernel import mark_columns

        return mark_columns(flags, rows.contiguous(), operator.indptr, operator.indices, listed=listed)
    if listed:
        networks = torch.arange(rows.size(0), device=rows.device).unsqueeze(1)
        readers = flags.new_zeros(operator.num_rows, rows.size(0)).index_put_((rows, networks), flags.new_ones(()))
    else:
        readers = rows
    entries = readers.index_select(0, operator.row_of_entry())
    flags.scatter_reduce_(0, operator.indices.long().unsqueeze(1).expand_as(entries), entries, "amax")
