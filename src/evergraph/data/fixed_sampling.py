"""Neighbour sampling into matrices of fixed size, so that a step that samples can be captured."""

from __future__ import annotations

import torch
from torch import Tensor

from evergraph.core.randomness import uniform
from evergraph.core.sparse import SparseMatrix


def sampled_rows(operator: SparseMatrix, fan_out: int, generator: torch.Generator | None) -> SparseMatrix:
    """Sample at most `fan_out` neighbours of each row without replacement; a leading self-loop is always kept.

    Weights are scaled so that a row's weighted sum is an unbiased estimate of the sum over all of its neighbours. Every
    row has `fan_out` + 1 entries, whatever is drawn; unused ones have weight 0. So this suits models that depend on
    the weights, not those that depend on which edges exist. Nothing here synchronizes with the device.
    """
    rows = torch.arange(operator.num_rows, device=operator.device)
    start, counts = operator.indptr[:-1], operator.counts()
    first = operator.indices[start.clamp(max=max(operator.nnz - 1, 0))]
    loop = ((counts > 0) & (first == rows)).long()
    others = counts - loop
    place = torch.arange(fan_out, device=operator.device).unsqueeze(1).expand(-1, operator.num_rows)
    long = others > fan_out
    drawn = torch.where(long, distinct(others.clamp(min=fan_out), fan_out, generator), place)
    entry = torch.cat([start.unsqueeze(0), start + loop + drawn]).clamp(max=max(operator.nnz - 1, 0))
    scale = torch.where(long, others / fan_out, 1.0).to(operator.dtype)
    present = torch.cat([loop.unsqueeze(0) > 0, place < others])
    factor = torch.cat([torch.ones_like(scale).unsqueeze(0), scale.unsqueeze(0).expand(fan_out, -1)])
    values = torch.where(present, operator.values[entry] * factor, 0)
    columns = torch.where(present, operator.indices[entry].long(), 0)
    indptr = torch.arange(operator.num_rows + 1, device=operator.device) * (fan_out + 1)
    return SparseMatrix(indptr, columns.T.reshape(-1), values.T.reshape(-1), operator.num_columns)


def distinct(sizes: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
    """Draw, for each size n, a column of `number` different integers below n, all choices equally likely (Floyd)."""
    numbers = uniform((number, sizes.numel()), sizes.device, generator, torch.float64)
    drawn = torch.empty_like(numbers, dtype=torch.long)
    for turn in range(number):
        last = sizes - number + turn  # largest integer that can be drawn in this turn
        pick = (numbers[turn] * (last + 1)).long()
        met = (drawn[:turn] == pick).any(0)
        drawn[turn] = torch.where(met, last, pick)
    return drawn
