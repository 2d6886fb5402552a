"""Attributes and published splits: what is known about examples besides features and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.data.arrays import as_array
from evergraph.errors import EvergraphError, tell


@dataclass(eq=False)
class Attribute:
    """A value known for every example besides its features: a year, a country, a timestamp.

    Args:
        values: one number per example.
        names: names that the numbers 0, 1, 2, … stand for; None if they are just numbers.
    """

    values: Tensor
    names: list[str] | None = None


def read_attributes(given: Mapping[str, Any], count: int, name: str) -> dict[str, Attribute]:
    """Check and convert attributes: one number, truth value or name per example."""
    known = {}
    for key, values in given.items():
        if isinstance(values, Attribute):
            known[key] = values
            continue
        array = as_array(values).reshape(-1)
        if array.size != count:
            raise EvergraphError(f"{name}: {array.size} values of {key!r} for {count} examples; give one for each")
        if array.dtype.kind == "b":
            known[key] = Attribute(torch.as_tensor(array.astype(np.int64)), ["False", "True"])
        elif array.dtype.kind in "fi" or (array.dtype.kind == "u" and int(array.max(initial=0)) < 2**63):
            # torch has few operations for unsigned numbers
            known[key] = Attribute(torch.as_tensor(array.astype(np.int64) if array.dtype.kind == "u" else array))
        else:
            names, codes = np.unique(array.astype(str), return_inverse=True)
            known[key] = Attribute(torch.as_tensor(codes.astype(np.int64)), names.tolist())
    return known


def read_splits(given: Any, count: int, name: str) -> Tensor | None:
    """Check and convert splits: 0, 1, 2 or -1 for each example, one column per split."""
    if given is None:
        return None
    splits = torch.as_tensor(as_array(given)).long()
    splits = splits.unsqueeze(1) if splits.dim() == 1 else splits
    if splits.size(0) != count:
        raise EvergraphError(f"{name}: a split of {splits.size(0)} examples, but there are {count}")
    return splits


def masks_as_splits(data: Any, count: int, name: str) -> Tensor | None:
    """Convert PyG's `train_mask`, `val_mask` and `test_mask` (one column per split, if there are several) to splits."""
    given = {part: getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")}
    masks = {part: torch.as_tensor(mask) for part, mask in given.items() if mask is not None}
    if not masks:
        return None
    for part, mask in masks.items():
        if mask.dtype != torch.bool:
            kind = str(mask.dtype).removeprefix("torch.")
            raise EvergraphError(
                f"{name}: {part}_mask is of type {kind}; a mask holds True/False for each of the {count} examples "
                f"(for 0 and 1: {part}_mask == 1)"
            )
        if mask.dim() not in (1, 2) or mask.size(0) != count:
            raise EvergraphError(
                f"{name}: {part}_mask has shape {tuple(mask.shape)}; a mask holds True/False for each of the {count} "
                "examples"
            )
        masks[part] = mask.unsqueeze(1) if mask.dim() == 1 else mask
    columns = max(mask.size(1) for mask in masks.values())
    if any(mask.size(1) not in (1, columns) for mask in masks.values()):
        shapes = " and ".join(f"{part}_mask has shape {tuple(mask.shape)}" for part, mask in masks.items())
        raise EvergraphError(f"{name}: {shapes}; give all masks as many columns, one per split, or a single one")
    masks = {part: mask.expand(-1, columns) for part, mask in masks.items()}
    if "train" not in masks:
        given_names = " and ".join(f"{part}_mask" for part in masks)
        tell(f"{name}: there is no train_mask; what is outside {given_names} is trained on")
        masks["train"] = ~torch.stack(list(masks.values())).any(0)
    if twice := int((torch.stack([mask.long() for mask in masks.values()]).sum(0) > 1).any(1).sum()):
        tell(f"{name}: {twice:,} examples are in several masks; of train, val and test the first counts")
    splits = torch.full((count, columns), -1)
    for number, part in reversed(list(enumerate(("train", "val", "test")))):
        if part in masks:
            splits[masks[part]] = number
    return splits


def tell_of_edge_features(objects: Sequence[Any], name: str, *, weighed: bool = True) -> None:
    """Warn if PyG objects have `edge_attr`, which no model here reads.

    Args:
        objects: a single object, or one per graph.
        name: their name in messages.
        weighed: whether `edge_weight` is read instead, so that the warning can suggest it.
    """
    having = [one for one in objects if getattr(one, "edge_attr", None) is not None]
    if not having or (weighed and all(getattr(one, "edge_weight", None) is not None for one in having)):
        return
    way_out = "put one weight per edge into edge_weight to propagate with it" if weighed else "put what it says into x"
    tell(f"edge_attr is not used; {way_out}", name)


def extra_values(data: Any, count: int) -> dict[str, Any]:
    """Return the object's other tensors, arrays and lists that hold `count` numbers, truth values or names, by name."""
    known = {"x", "edge_index", "edge_attr", "edge_weight", "y", "class_names", "feature_names", "batch", "ptr"}
    known |= {"train_mask", "val_mask", "test_mask", "adj_t"}
    keys = data.keys() if callable(getattr(data, "keys", None)) else vars(data)
    found = {str(key): data[key] for key in keys if key not in known} if hasattr(data, "__getitem__") else {}
    return {key: value for key, value in found.items() if _one_each(value, count)}


def _one_each(value: Any, count: int) -> bool:
    """Whether a tensor, an array or a list has one number, truth value or name for each of `count` examples."""
    if isinstance(value, (list, tuple)):
        return len(value) == count and all(isinstance(one, (str, int, float, np.generic)) for one in value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return value.shape == (count,) and all(isinstance(one, str) for one in value.tolist())
    shapes = {(count,), (count, 1)}
    return isinstance(value, (Tensor, np.ndarray)) and value.shape in shapes
