"""Notice that tensors were edited in place, or replaced, since something was computed from them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Contents:
    """The contents of some tensors at one moment, by torch's count of each tensor's edits; nothing is read or copied.

    Edits that torch does not count go unnoticed: those through NumPy or `.data`, and those of inference tensors.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known = [(tensor, _edits(tensor)) for tensor in tensors]

    def are_those_of(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these are the same tensors, unedited since."""
        now = list(tensors)
        return len(now) == len(self._known) and all(
            tensor is known and _edits(tensor) == edits for tensor, (known, edits) in zip(now, self._known)
        )


def _edits(tensor: Tensor) -> int:
    """Number of times that a tensor, or a view of it, was edited in place."""
    return 0 if tensor.is_inference() else tensor._version
