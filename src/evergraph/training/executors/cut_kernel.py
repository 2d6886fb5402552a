"""Triton kernel that makes a padded batch in one launch, in place of some twenty operations of `padded_batch`.

Imported only where Triton is available.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # rows of a batch per program
WIDEST = 256  # feature columns that a program copies at once


@triton.jit
def cut_rows(  # type: ignore[no-untyped-def]
    seeds, indptr, indices, values, features, source, matrix, out, count, capacity, columns,
    batch: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Write the sources of a tile of edges into the seeds, their features, and their seeds × edges matrix columns."""
    e = tl.program_id(0) * rows + tl.arange(0, rows)
    b = tl.arange(0, batch)
    there, inside = b < count, e < capacity
    node = tl.load(seeds + b, mask=there, other=0)
    start = tl.load(indptr + node, mask=there, other=0)
    edges = (tl.load(indptr + node + 1, mask=there, other=0) - start).to(tl.int32)
    end = tl.cumsum(edges, 0)
    seed = tl.sum((end[:, None] <= e[None, :]).to(tl.int32), axis=0)  # not a valid seed beyond the last edge
    present = e < tl.sum(edges, axis=0)
    mine = b[:, None] == seed[None, :]
    begin = tl.sum(tl.where(mine, start[:, None], 0), axis=0)
    before = tl.sum(tl.where(mine, (end - edges)[:, None], 0), axis=0)
    entry = tl.where(present, begin + e - before, 0)
    node = tl.load(indices + entry, mask=present, other=0).to(tl.int64)
    tl.store(source + e, node, mask=inside)
    weight = tl.load(values + entry, mask=present, other=0.0)
    column = tl.where(mine & present[None, :], weight[None, :], 0.0)
    tl.store(matrix + b[:, None] * capacity + e[None, :], column, mask=there[:, None] & inside[None, :])
    for first in range(0, columns, width):
        c = first + tl.arange(0, width)
        copied = inside[:, None] & (c < columns)[None, :]
        read = tl.load(features + node[:, None] * columns + c[None, :], mask=copied, other=0.0)
        tl.store(out + e[:, None].to(tl.int64) * columns + c[None, :], read, mask=copied)


def launch(
    seeds: Tensor, operator: tuple[Tensor, Tensor, Tensor], capacity: int, features: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the source of each row (0 for padding), the dense matrix from rows to seeds, and the sources' features.

    Args:
        seeds: the seed nodes; few enough for every program to read all of them.
        operator: row pointers, columns and entries.
        capacity: number of rows; at least the number of edges into the seeds.
        features: features of all nodes, contiguous.
    """
    indptr, indices, values = operator
    count = seeds.numel()
    source = indices.new_empty(capacity, dtype=torch.long)
    matrix = values.new_empty(count, capacity)
    columns = features.size(1)
    out = features.new_empty(capacity, columns)
    kernel: Any = cut_rows
    with torch.cuda.device_of(matrix):
        kernel[(triton.cdiv(capacity, ROWS),)](
            seeds, indptr, indices, values, features, source, matrix, out, count, capacity, columns,
            batch=max(16, triton.next_power_of_2(count)), rows=ROWS,
            width=min(max(16, triton.next_power_of_2(columns)), WIDEST),
        )  # fmt: skip
    return source, matrix, out
