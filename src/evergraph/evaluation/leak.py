"""Task leakage: how often a trivial rule identifies the task that a test query belongs to, whatever the method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def nearest_profile(products: Tensor, squared_lengths: Tensor) -> Tensor:
    """Index of the profile p_t nearest to each query q in Euclidean distance; the first one on ties.

    ‖q − p_t‖² = ‖q‖² − 2 q·p_t + ‖p_t‖², and ‖q‖² is the same for all profiles: the queries themselves are not needed.

    Args:
        products: q·p_t, one row per query and one column per profile.
        squared_lengths: ‖p_t‖².
    """
    return (squared_lengths - 2 * products).argmin(1)


def share_named(products: Sequence[Tensor], squared_lengths: Tensor) -> float:
    """Mean over tasks i of the percent of queries in `products[i]` whose nearest profile is that of task i."""
    named = [(nearest_profile(rows, squared_lengths) == task).double().mean() for task, rows in enumerate(products)]
    return 100 * float(torch.stack(named).mean())
