"""Input scaling of fixed features: columns are brought to similar scales, and narrow inputs get a constant column.

Rows are scaled to unit length as a whole, so a column in euros would outweigh one in years. The scaling of a column is
measured at the first task in which it has more than one value, and fixed from then on; earlier sums stay correct,
since until then the column is read as zero. Scales are powers of two and centres multiples of them, so that they
reveal next to nothing about the nodes that they were measured at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergraph.core.features import Features, as_dense, take_rows, with_column
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import workers
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError

FEW_COLUMNS = 32  # X with at most this many columns is a table, and lifted: a row's length is one number among so few
UPPER_QUARTILE = 1.1503  # of distances from the mean, for Gaussian numbers, in standard deviations
ALIKE = 2.0  # a spread between 1 / ALIKE and ALIKE counts as one
OFF_CENTRE = 2.0  # a column is centred if its median is more spreads than this away from zero
RARE = 0.01  # a column is not scaled up if a smaller share of nodes than this differs from the common value
ZEROS = 0.2  # from this share on, zeros are values and do not stand for missing numbers
FAR = 8.0  # distance from a column's centre, in spreads, beyond which values grow logarithmically
OUTWEIGHS, UNSEEN = 4.0, 8.0  # a column is too large, or too small, by these factors to the median column
SOME = 0.05  # columns are left alone if at most this share of them is off centre or too small
ROWS = 2**14  # most rows of X that are measured

Column = tuple[int, float, float]
"""Number of a column of X, its centre and its scale; scale 0 means unknown: every value so far equals the centre."""


@dataclass(frozen=True)
class InputScaling:
    """s((x_j − centre_j) / scale_j) in the given columns, x_j in all others, and `lift` in one more.

    s(z) is z up to `FAR` and grows logarithmically beyond, with the same slope there: in a row with one extreme value,
    from a heavy tail or a later task, the other columns still count. A column that had only one value so far is read
    as 0 everywhere, so that its scale is still open.

    Args:
        columns: the columns that are scaled.
        lift: the constant in one more column; 0 for no such column.
    """

    columns: tuple[Column, ...] = ()
    lift: float = 0.0

    def apply(self, x: Features) -> Features:
        """Return the scaled features; X itself if there is nothing to do."""
        if self.columns:
            x = as_dense(x)
            numbers = torch.tensor([number for number, _, _ in self.columns], device=x.device)
            centre = x.new_tensor([centre for _, centre, _ in self.columns])
            over = x.new_tensor([1 / scale if scale else 0.0 for _, _, scale in self.columns])
            x = x.index_copy(1, numbers, _drawn_in((x[:, numbers] - centre) * over))
        if not self.lift:
            return x
        return with_column(x, torch.full((x.size(0),), self.lift, dtype=x.dtype, device=x.device))


def _drawn_in(z: Tensor) -> Tensor:
    """Return s(z), see `InputScaling`."""
    far = (z.abs() / FAR).clamp(min=1)
    return torch.where(far > 1, z.sign() * FAR * (1 + far.log()), z)


def parse_columns(columns: bool | Sequence[Sequence[float]]) -> bool | list[Column]:
    """Parse columns from a setting; a bool, which says whether columns are scaled, is returned as it is."""
    if isinstance(columns, bool):
        return columns
    try:
        parsed = [(int(number), float(centre), float(scale)) for number, centre, scale in columns]
        if any(number < 0 or scale < 0 or not math.isfinite(centre + scale) for number, centre, scale in parsed):
            raise ValueError
    except (TypeError, ValueError):
        raise EvergraphError(
            f"scales={columns!r} is not a list of columns, each with its centre and its scale, e.g. [[2, 273, 16]]; "
            "False leaves all columns as they are"
        ) from None
    return parsed


def measured_columns(graph: Graph) -> list[Column]:
    """Measure how to scale the columns of a graph's features; none if they are sparse, all 0 or 1, or comparable."""
    x = _some_rows(graph)
    if x is None or bool(((x == 0) | (x == 1)).all()) or not _unlike(x):
        return []
    found = [_measured(number, values, None) for number, values in enumerate(x.T.contiguous())]
    varies = _varying(graph, [column for column in found if not column[2]])
    return _changed((column[0], 0.0, 1.0) if column[0] in varies else column for column in found)


def _unlike(x: Tensor) -> bool:
    """Whether columns are few, one outweighs the others, or several are off centre or too small beside the others.

    Many columns of one unit are left alone: if one of them is small in the first task's classes, that is information.
    """
    if x.size(1) <= FEW_COLUMNS:
        return True
    x = torch.where(x.isfinite(), x, 0.0)
    size, spread = x.square().mean(0).sqrt(), x.std(0, correction=0)
    there = size > 0
    if not bool(there.any()):
        return True
    typical = size[there].median()
    odd = there & ((spread > 0) & (x.mean(0).abs() > OFF_CENTRE * spread) | (size < typical / UNSEEN))
    return bool((size > OUTWEIGHS * typical).any()) or int(odd.sum()) > SOME * int(there.sum())


def with_scales(columns: Sequence[Column], graph: Graph) -> list[Column]:
    """Fill in unknown scales of columns that can be measured at a graph; centres stay fixed."""
    x = None if all(scale for _, _, scale in columns) else _some_rows(graph)
    if x is None:
        return list(columns)
    found = [column if column[2] else _measured(column[0], x[:, column[0]], column[1]) for column in columns]
    varies = _varying(graph, [column for column in found if not column[2]])
    return _changed((number, centre, 1.0 if number in varies else scale) for number, centre, scale in found)


def _varying(graph: Graph, columns: Sequence[Column]) -> set[int]:
    """Return the columns with a value other than the centre in any row; measuring has looked only at some rows."""
    x = _measured_rows(graph)
    if not columns or isinstance(x, SparseMatrix):
        return set()
    others = [(x[:, number].double() != centre) & x[:, number].isfinite() for number, centre, _ in columns]
    counts = torch.tensor([float(other.sum()) for other in others], dtype=torch.float64)
    total = counts if graph.rows is None else workers().sum([counts])[0]
    return {number for (number, _, _), count in zip(columns, total.tolist()) if count}


def _changed(columns: Iterable[Column]) -> list[Column]:
    """Return the columns that scaling changes."""
    return [column for column in columns if column[1:] != (0.0, 1.0)]


def _measured(number: int, values: Tensor, centre: float | None) -> Column:
    """Measure the centre and scale of a column, or its scale about a given centre.

    The spread is the upper quartile of the distances from the median, in units that make it the standard deviation of
    Gaussian numbers. But it is large enough that at most one in twenty of the non-zero values (zeros may stand for
    missing ones) is more than `FAR` spreads out: a column that is mostly at one end, as pixels are, is not narrow. If a
    fifth of the values is zero, zero is meaningful and is the centre. If most values are the same, the spread is the
    median distance of the others. A column of 0 and 1 stays as it is, and so does one whose spread is about one.
    """
    values = values[values.isfinite()]
    if not centre and bool(values.any()) and bool(((values == 0) | (values == 1)).all()):
        return number, 0.0, 1.0
    middle = centre or 0.0
    if centre is None and int((values == 0).sum()) < ZEROS * values.numel():
        middle = float(values.median())
    away = (values - middle).abs()
    others = away[away > 0]
    if not others.numel():
        return number, middle, 0.0
    quartile, most = _quantile(away, 0.75), _quantile(away[values != 0], 0.95)
    spread = max(quartile / UPPER_QUARTILE, most / FAR) if quartile else float(others.median())
    scale = 2.0 ** round(math.log2(max(spread, 1.0) if others.numel() < RARE * away.numel() else spread))
    if centre is None:
        centre = round(middle / scale) * scale if abs(middle) > OFF_CENTRE * scale else 0.0
    return number, centre, scale if centre or not 1 / ALIKE <= scale <= ALIKE else 1.0


def _quantile(values: Tensor, share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; 0 if there are no values."""
    return float(values.kthvalue(math.ceil(share * values.numel())).values) if values.numel() else 0.0


def typical_entry(graph: Graph, columns: Sequence[Column] = ()) -> float:
    """Return the typical size of X's entries after scaling, as a power of two; 0 if all are zero.

    It is the geometric mean of the non-zero entries, on which a row or a column in millions has little effect, rounded
    up: for Gaussian numbers it is half the standard deviation. For a graph in parts, over all processes' nodes; where
    examples are graphs, over the nodes of labelled examples, since a forgotten example has no label.
    """
    x = InputScaling(tuple(columns)).apply(_measured_rows(graph))
    values = x.values if isinstance(x, SparseMatrix) else x
    logs = values[(values != 0) & values.isfinite()].abs().log2()
    sums = torch.tensor([float(logs.sum(dtype=torch.float64)), float(logs.numel())], dtype=torch.float64)
    total, number = (workers().sum([sums])[0] if graph.rows is not None else sums).tolist()
    return 2.0 ** math.ceil(total / number - 1e-6) if number else 0.0  # so that rounding errors do not decide


def _measured_rows(graph: Graph) -> Features:
    """Return X at all nodes; where examples are graphs, only of labelled ones (a forgotten example has no label)."""
    if graph.members is None:
        return graph.x
    return take_rows(graph.x, graph.members.rows(torch.nonzero(graph.labelled).reshape(-1)).indices)


def _some_rows(graph: Graph) -> Tensor | None:
    """Return up to `ROWS` evenly spaced rows of dense X in float64, over all processes of a graph in parts, or None."""
    x = _measured_rows(graph)
    if isinstance(x, SparseMatrix):
        return None
    start, total = (0, x.size(0)) if graph.rows is None else (graph.rows.start, graph.rows.starts[-1])
    step = max(1, -(-total // ROWS))
    own = torch.arange(x.size(0))[-start % step :: step]
    some = x[own.to(x.device)].to("cpu", torch.float64)
    if graph.rows is None:
        return some
    rows = some.new_zeros(-(-total // step), x.size(1))
    rows[(own + start) // step] = some
    return workers().sum([rows])[0]
