"""A dense block times rows of a matrix, on tensor cores: the Triton kernel.

Imported where Triton is at hand; `evergraph.core.frequent_columns` says what it is for.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, DEPTH = 128, 128, 32  # of the product that a program has; and of the factors, what it reads at once


@triton.jit
def block_product(  # type: ignore[no-untyped-def]
    out, block, dense, where, num_rows, inner, columns, gathers: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
    depth: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A tile of B · dense[where], added to what is there; or, not gathering, of B · dense, put at rows `where`."""
    r = tl.program_id(1) * rows + tl.arange(0, rows)
    c = tl.program_id(0) * width + tl.arange(0, width)
    k = tl.arange(0, depth)
    there, inside = r < num_rows, c < columns
    total = tl.zeros((rows, width), dtype=tl.float32)
    for first in range(0, inner, depth):
        e = first + k
        known = e < inner
        b = tl.load(block + r[:, None].to(tl.int64) * inner + e[None, :], mask=there[:, None] & known[None, :], other=0.0)
        source = e
        if gathers:
            source = tl.load(where + e, mask=known, other=0)
        d = tl.load(
            dense + source[:, None].to(tl.int64) * columns + c[None, :], mask=known[:, None] & inside[None, :], other=0.0
        )
        total = tl.dot(b, d, total, input_precision=precision)
    target = r
    if not gathers:
        target = tl.load(where + r, mask=there, other=0)
    place = out + target[:, None].to(tl.int64) * columns + c[None, :]
    if gathers:
        total += tl.load(place, mask=there[:, None] & inside[None, :], other=0.0)
    tl.store(place, total, mask=there[:, None] & inside[None, :])


def launch(out: Tensor, block: Tensor, dense: Tensor, where: Tensor, *, gathers: bool, precision: str, tile=None, warps=8, stages=3) -> None:
    """See the kernel; all float32 and without gaps."""
    num_rows, inner = block.shape
    columns = dense.size(1)
    rows, width, depth = tile or (ROWS, COLUMNS, DEPTH)
    kernel: Any = block_product
    with torch.cuda.device_of(out):
        kernel[(triton.cdiv(columns, width), triton.cdiv(num_rows, rows))](
            out, block, dense, where, num_rows, inner, columns, gathers=gathers, rows=rows, width=width, depth=depth,
            precision=precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip
