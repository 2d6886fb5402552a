"""Triton kernels that pick chosen rows of one or two tables on a GPU, and put gradients back.

Imported only if Triton is available; `evergraph.core.chosen_rows` documents what they compute. Networks are stacked
along the middle dimension of every table, and each has chosen rows of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 256  # copied by each program


@triton.jit
def pick(  # type: ignore[no-untyped-def]
    out, other_out, table, other, chosen, size, count, units, row, network, other_row, other_network,
    paired: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    """out[m, e, c] = table[chosen[m, e], m, c] for the program's numbers; if paired, also from another table."""
    i = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = i < size
    example, c = i // units, i % units
    m = example // count
    r = tl.load(chosen + example, mask=inside, other=0)
    tl.store(out + i, tl.load(table + r * row + m * network + c, mask=inside, other=0.0), mask=inside)
    if paired:
        read = tl.load(other + r * other_row + m * other_network + c, mask=inside, other=0.0)
        tl.store(other_out + i, read, mask=inside)


@triton.jit
def put_back(  # type: ignore[no-untyped-def]
    out, gradient, chosen, size, count, units, networks, example_stride, network_stride, numbers: tl.constexpr
):  # fmt: skip
    """out[chosen[m, e], m, c] += gradient[m, e, c] for the program's numbers."""
    i = tl.program_id(0).to(tl.int64) * numbers + tl.arange(0, numbers)
    inside = i < size
    example, c = i // units, i % units
    m, e = example // count, example % count
    r = tl.load(chosen + example, mask=inside, other=0)
    g = tl.load(gradient + m * network_stride + e * example_stride + c, mask=inside, other=0.0)
    tl.atomic_add(out + (r * networks + m) * units + c, g, mask=inside)


def picked(table: Tensor, other: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the chosen rows of each table, `(networks, examples, units)`.

    Args:
        table: `(rows, networks, units)`, contiguous along the last dimension.
        other: likewise, or None.
        chosen: `(networks, examples)`, contiguous.
    """
    units = table.size(2)
    out = table.new_empty(*chosen.shape, units)
    other_out = None if other is None else torch.empty_like(out)
    second = table if other is None else other
    kernel: Any = pick
    with torch.cuda.device_of(table):
        kernel[(triton.cdiv(out.numel(), NUMBERS),)](
            out, out if other_out is None else other_out, table, second, chosen, out.numel(), chosen.size(1), units,
            *table.stride()[:2], *second.stride()[:2], paired=other is not None, numbers=NUMBERS, num_warps=4,
        )  # fmt: skip
    return out, other_out


def put(gradient: Tensor, chosen: Tensor, rows: int) -> Tensor:
    """Return the gradient at a table of `rows` rows, given that at its chosen rows, `(networks, examples, units)`."""
    networks, count, units = gradient.shape
    out = gradient.new_zeros(rows, networks, units)
    kernel: Any = put_back
    with torch.cuda.device_of(gradient):
        kernel[(triton.cdiv(gradient.numel(), NUMBERS),)](
            out, gradient, chosen, gradient.numel(), count, units, networks, gradient.stride(1), gradient.stride(0),
            numbers=NUMBERS, num_warps=4,
        )  # fmt: skip
    return out
