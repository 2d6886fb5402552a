"""Large matrices on a CPU: memory in huge pages.

A new matrix of 200 MB takes 50,000 page faults in pages of 4 KB, a tenth of a second in which other threads wait.
numpy asks the system for huge pages where it has them (`madvise`), torch does not; the memory is the same otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LARGE = 2**22  # bytes from which on numpy asks for huge pages
_KINDS = {torch.float32: np.float32, torch.float64: np.float64}


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """As `torch.empty`."""
    kind = _KINDS.get(dtype)
    if kind is None or (device is not None and device.type != "cpu"):
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(np.empty(tuple(shape), dtype=kind))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """As `torch.zeros`."""
    return empty(shape, dtype, device).zero_()


def rows(matrix: Tensor, places: Tensor) -> Tensor:
    """As `matrix.index_select(0, places)`."""
    if matrix.requires_grad or places.numel() * matrix[:1].nbytes < LARGE:
        return matrix.index_select(0, places)
    found = empty((places.numel(), *matrix.shape[1:]), matrix.dtype, matrix.device)
    return torch.index_select(matrix, 0, places, out=found)


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """As `torch.cat(parts)`, of matrices of one type; a single one that is no part of another is taken as it is."""
    filled = [part for part in parts if part.size(0)] or list(parts[:1])
    if len(filled) == 1 and filled[0].untyped_storage().nbytes() == filled[0].nbytes:
        return filled[0]
    height = sum(part.size(0) for part in filled)
    return torch.cat(filled, out=empty((height, *filled[0].shape[1:]), filled[0].dtype, filled[0].device))
