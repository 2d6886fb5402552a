"""Check user-given targets and class names, and convert them to the package's types."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.data.arrays import as_array
from evergraph.errors import EvergraphError, NumbersError, shown, tell

ClassName = str | int
MOST_CLASSES = 1_000_000  # a larger label is a mistake (a node number, a hash), not a class
GAPS = 100  # labels below this one are positions, whatever gaps they leave; larger ones may be names (years)


def targets_and_names(
    y: Any,
    count: int,
    class_names: Sequence[ClassName] | Mapping[Any, Any] | None,
    name: str,
    columns: bool = False,
    level: str = "node",
) -> tuple[Tensor, list[ClassName]]:
    """Check and convert the targets of examples and the names of their classes or columns.

    `level` says what an example is, for messages.
    """
    if isinstance(class_names, (set, frozenset)):
        raise EvergraphError(f"{name}: class_names are a set, which has no order; give a list, or {{label: name}}")
    values = None if y is None else _truth_values(as_array(y), as_classes=class_names is None and not columns)
    if values is not None and values.dtype.kind in "OUS":
        return _text_labels(values, count, class_names, name)
    if values is None or not (columns or _several(values)):
        return _classes(_labels(values, count, name, level, named=class_names is not None), class_names, name)
    values = values.reshape(-1, 1) if values.ndim == 1 else values
    fits = values.ndim == 2 and values.shape[0] == count and values.dtype.kind in "fiub"
    if not fits or np.isinf(values.astype(np.float32)).any():
        raise EvergraphError(
            f"{name}: targets of shape {values.shape} and type {values.dtype} for {count} examples; "
            "give a row of finite numbers for each, NaN where one is not known"
        )
    labels = torch.as_tensor(values.astype(np.float32))
    rows = labels[~labels.isnan().all(1)]
    if min(rows.shape) > 1 and bool(((rows == 0) | (rows == 1)).all() and (rows.sum(1) == 1).all()):
        tell(
            f"{name}: every row of y has a single 1, and its {labels.size(1)} columns are read as labels; if these are "
            "classes, give y.argmax(1)"
        )
    names: list[ClassName] = list(range(labels.size(1))) if class_names is None else _names(class_names, name)
    if len(names) != labels.size(1):
        raise EvergraphError(f"{name}: {labels.size(1)} columns of targets but {len(names)} names; give one for each")
    return labels, names


def _truth_values(values: np.ndarray, *, as_classes: bool) -> np.ndarray:
    """Return one truth value per example as the class `False` or `True`, else as 0 or 1; other values as they are."""
    if values.dtype.kind not in "bO" or values.shape not in {(values.size,), (values.size, 1)}:
        return values
    listed = values.reshape(-1).tolist()
    if not is_truth(listed):
        return values
    if as_classes:
        return np.array(["" if is_missing(value) else str(bool(value)) for value in listed], dtype=object)
    return np.array([np.nan if is_missing(value) else float(value) for value in listed]).reshape(values.shape)


def is_truth(values: Iterable[Any]) -> bool:
    """Whether values are truth values, some of which may be missing."""
    known = [isinstance(value, (bool, np.bool_)) for value in values if not is_missing(value)]
    return bool(known) and all(known)


def is_missing(value: Any) -> bool:
    """Whether a single value stands for none: None, NaN, or what pandas has for them."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, Decimal) and value.is_nan())
        or type(value).__name__ in {"NAType", "NaTType"}
    )


def _several(values: np.ndarray) -> bool:
    """Whether targets are columns of labels or numbers; a single column of whole numbers holds classes."""
    if values.ndim != 2 or values.shape[1] != 1:
        return values.ndim == 2
    return has_fractions(values)


def has_fractions(values: np.ndarray) -> bool:
    """Whether some values are finite numbers that are not whole: numbers to predict, not classes."""
    return values.dtype.kind == "f" and bool((values[np.isfinite(values)] % 1).any())


def _labels(y: Any, num_nodes: int, name: str, level: str, *, named: bool) -> Tensor:
    """Check and convert labels: one integer per node, -1 or more; classes that are `named` are 0, 1, 2, …"""
    if y is None:
        return torch.full((num_nodes,), -1)
    values = as_array(y).reshape(-1)
    _check_count(values, num_nodes, name)
    given = bool((values == -1).any()) if values.dtype.kind in "fi" else False
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    if values.dtype.kind not in "fiub" or (values.dtype.kind == "f" and not (values == np.floor(values)).all()):
        fix = (
            "Learner(problem='node-regression'), --problem node-regression; numbers=True in from_tables, "
            "columns=True in make_graph"
        )
        raise NumbersError(
            f"{name}: labels are not whole numbers; give positions in class_names, -1 for no label; numbers to predict "
            f"are another problem: {fix if level == 'node' else f'columns=True in make_{level}s'}"
        )
    largest = max(values.min(), values.max(), key=abs) if values.dtype.kind in "fu" and values.size else 0
    if abs(largest) >= 2**63:
        raise EvergraphError(f"{name}: label {largest:g} is out of range; labels are 0, 1, 2, … or -1 for none")
    labels = torch.as_tensor(values.astype(np.int64))
    if int(labels.min()) < -1:
        raise EvergraphError(f"{name}: label {int(labels.min())} is out of range; labels are 0, 1, 2, … or -1 for none")
    if given and not named and torch.unique(labels).tolist() == [-1, 1]:  # two classes are often labelled like this
        unlabelled = int((labels < 0).sum())
        tell(
            f"{name}: labels are -1 and 1, and -1 stands for no label ({unlabelled:,} of {num_nodes:,} have none); if "
            "these are two classes, call them 0 and 1, or by names"
        )
    return labels


def _check_count(values: np.ndarray, num_nodes: int, name: str) -> None:
    if values.size != num_nodes:
        several = "; a list of graphs with a label each is a task: eg.Task.of([…])" if values.size == 1 else ""
        raise EvergraphError(
            f"{name}: {num_nodes} rows of features but {values.size} labels; give one label per node{several}"
        )


def _text_labels(
    values: np.ndarray, count: int, class_names: Sequence[ClassName] | Mapping[Any, Any] | None, name: str
) -> tuple[Tensor, list[ClassName]]:
    """Convert labels that are class names; classes are numbered in the order of `class_names`, else alphabetically."""
    values = values.reshape(-1)
    _check_count(values, count, name)
    labels = [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]
    labels = ["" if value is None or value != value else value for value in labels]
    if odd := [value for value in labels if not isinstance(value, str)]:
        raise EvergraphError(f"{name}: labels mix text and {shown(odd[0])}; give all as text, or all as whole numbers")
    names = sorted({*labels} - {""}) if class_names is None else _names(class_names, name)
    if pair := nearly_alike(names, names):
        tell(f"{name}: {pair[0]!r} and {pair[1]!r} are two classes; if they are one, write its name in one way")
    position = {str(entry): number for number, entry in enumerate(names)}
    if missing := [value for value in labels if value and value not in position]:
        raise EvergraphError(f"{name}: label {shown(missing[0])} is not one of the class names: {shown(names)}")
    return torch.tensor([position.get(value, -1) for value in labels], dtype=torch.long), list(names)


def nearly_alike(names: Iterable[Any], others: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return a name and another one that differ only in surrounding spaces or case; None if there are none."""
    known = {str(other).strip().casefold(): other for other in others}
    pairs = ((name, known.get(str(name).strip().casefold(), name)) for name in names)
    return next(((name, other) for name, other in pairs if str(name) != str(other)), None)


def as_known(names: Iterable[ClassName], known: Sequence[ClassName]) -> list[ClassName]:
    """Return names as they are known: 10 for '10', and the other way round, since a table's other labels decide which.

    Where 0 and 1 are the only classes known, they are 'False' and 'True', which were called so in earlier versions. A
    name that is not known in any form stays as it is.
    """
    exact, by_text = set(known), {str(name): name for name in known}
    if exact <= {0, 1, "False", "True"}:
        by_text = {str(bool(name)): name for name in exact & {0, 1}} | by_text
    return [name if name in exact else by_text.get(str(name), name) for name in names]


def _by_label(class_names: Mapping[Any, Any], name: str) -> dict[int, Any]:
    """Return names by label, from {label: name} or {name: label}."""
    pairs = list(class_names.items())
    for turn in (lambda pair: pair, lambda pair: pair[::-1]):
        by_label = dict(map(turn, pairs)) if all(_whole(turn(pair)[0]) for pair in pairs) else None
        if by_label is not None and len(by_label) == len(pairs) and pairs:
            number = {int(label): entry for label, entry in by_label.items()}
            if min(number) >= 0 and max(number) < MOST_CLASSES:
                return number
    raise EvergraphError(
        f"{name}: class_names {str(class_names)[:60]} is not a list, {{label: name}} or {{name: label}}; "
        "labels are 0, 1, 2, …"
    )


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _classes(
    labels: Tensor, class_names: Sequence[ClassName] | Mapping[Any, Any] | None, name: str
) -> tuple[Tensor, list[ClassName]]:
    """Return labels as positions, and one unique name per class; by default the label numbers."""
    largest = int(labels.max())
    if class_names is not None and not isinstance(class_names, Mapping):
        names = _names(class_names, name)
        _check_largest(largest, len(names), name)
        return labels, names
    if class_names is None and largest >= MOST_CLASSES:
        raise EvergraphError(
            f"{name}: label {largest} is out of range; number the classes 0, 1, 2, … without large gaps, or give their "
            "names as text"
        )
    by_label = {}
    if class_names is not None:
        by_label = _by_label(class_names, name)
        _check_largest(largest, max(by_label) + 1, name)
    used = torch.nonzero(torch.bincount(labels[labels >= 0])).reshape(-1).tolist()
    places = _places({*used, *by_label})
    if by_label and (unnamed := [label for label in places if label not in by_label]):
        tell(f"{name}: class_names has no name for label {unnamed[0]}, which is called {unnamed[0]!r}")
    if len(places) <= largest:
        labels = torch.where(labels < 0, -1, torch.searchsorted(torch.tensor(places), labels))
    return labels, _names([by_label.get(label, label) for label in places], name)


def _check_largest(label: int, count: int, name: str) -> None:
    if label >= count:
        raise EvergraphError(
            f"{name}: label {label} is out of range: there are {count} class names; labels must be 0 to {count - 1}, "
            "or -1 for none"
        )


def _places(labels: Collection[int]) -> list[int]:
    """Return the labels that have a position: those up to the largest or, if most of these are unused, only the used.

    So a gap of a few classes leaves every label its own position, and years take no more positions than there are.
    """
    largest = max(labels, default=-1)
    return list(range(largest + 1)) if largest < max(GAPS, 2 * len(labels)) else sorted(labels)


def _names(class_names: Any, name: str) -> list[ClassName]:
    """Return the names of classes or columns as a list, after checking that they are unique."""
    if isinstance(class_names, Mapping):
        by_label = _by_label(class_names, name)
        class_names = [by_label.get(label, label) for label in _places(by_label)]
    if isinstance(class_names, (str, bytes)) or not isinstance(class_names, Iterable):
        raise EvergraphError(f"{name}: class_names={shown(class_names)} is not a list of names")
    if isinstance(class_names, (np.ndarray, Tensor)):
        class_names = as_array(class_names).reshape(-1).tolist()
    names: list[ClassName] = [entry.item() if isinstance(entry, np.generic) else entry for entry in class_names]
    if odd := [entry for entry in names if isinstance(entry, bool) or not isinstance(entry, (str, int))]:
        raise EvergraphError(f"{name}: a class is called {shown(odd[0])}; names are text or whole numbers")
    twice = [text for text, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise EvergraphError(f"{name}: two classes are called {twice[0]!r}; give every class a name of its own")
    return names
