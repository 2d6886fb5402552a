"""Split the object that PyG's `InMemoryDataset.save` writes back into the graphs that were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from evergraph.errors import EvergraphError


def saved_objects(saved: Sequence[Any], path: Path) -> Any:
    """Return the PyG object in a saved tuple, or the list of them if it holds several.

    `InMemoryDataset.save` writes `(data, slices, class)`: all graphs joined into one object, and where each of them
    begins in each tensor. Nodes are numbered from 0 within each graph. `slices` is None where there is one graph. Any
    other tuple is the list of its entries.

    Args:
        saved: the tuple; not empty.
        path: the file, for messages.
    """
    from torch_geometric.data import Data
    from torch_geometric.data.separate import separate

    slices = saved[1] if len(saved) > 1 else None
    if slices is not None and not isinstance(slices, Mapping):
        return list(saved)
    data = Data.from_dict(saved[0]) if isinstance(saved[0], dict) else saved[0]
    count = _count(slices, path) if slices else 1
    if count == 1:
        return data
    try:
        return [separate(Data, data, number, slices, decrement=False) for number in range(count)]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        raise _no_slices(path) from None


def _count(slices: Mapping[str, Any], path: Path) -> int:
    """Return the number of graphs: every tensor of slices has one entry for each of them, and one for the end."""
    begins = [value for value in slices.values() if isinstance(value, Tensor)]  # nested values have nested slices
    counts = {value.numel() - 1 for value in begins if value.dim() == 1 and not value.is_floating_point()}
    if len(counts) != 1 or min(counts) < 1 or any(value.dim() != 1 for value in begins):
        raise _no_slices(path)
    return counts.pop()


def _no_slices(path: Path) -> EvergraphError:
    return EvergraphError(
        f"{path}: its slices do not say where each graph begins; save the list of graphs itself: "
        "torch.save(list(dataset), path)"
    )
