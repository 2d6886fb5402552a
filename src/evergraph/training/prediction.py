"""Predictions in terms of the user's own names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergraph.data import ClassName
from evergraph.errors import EvergraphError, counted, first_line

ROWS, CLASSES = 5, 8  # shown


@dataclass(repr=False)
class Prediction:
    """Predictions for the examples asked for, in terms of the user's own names; a sequence of labels.

    Args:
        nodes: indices of the examples asked for: nodes, graphs or links.
        labels: predicted class of each example; for several labels, a list of those that hold; for regression, the
            number (or a list of numbers).
        probabilities: probability of each predicted class; for several labels, a column per label; for regression, the
            predicted numbers, a column each.
        columns: names of the columns of `probabilities`, where it has columns.
        names: ids of the examples, where their graph has ids.
        ends: source and target node of each link, where the examples are links.
        classes: the classes chosen from; `table` has a column for each.
        table: probability of each of these classes, a row per example.
        strangeness: how strange each example looks, near 0 for the most familiar and near 1 for strangers; only where
            unknown classes were asked for.
        unknown: whether each example is flagged as one of a class never learned; likewise.
        level: what an example is: `node`, `graph` or `link`.
    """

    nodes: Tensor
    labels: list[Any]
    probabilities: Tensor
    columns: list[ClassName] | None = None
    names: list[Any] | None = None
    ends: Tensor | None = None
    classes: list[ClassName] | None = None
    table: Tensor | None = None
    strangeness: Tensor | None = None
    unknown: Tensor | None = None
    level: str = "node"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.labels[index]

    def as_columns(self, *, all_classes: bool = False) -> dict[str, list[Any]]:
        """The columns of a table with a row per example: `node`, `class` and `probability`, or each number or label.

        Args:
            all_classes: add a column with the probability of each class.
        """
        columns: dict[str, list[Any]] = {self.level: self.nodes.tolist() if self.names is None else self.names}
        if self.ends is not None:
            columns |= dict(zip(("source", "target"), self.ends.T.tolist()))
        if self.columns is not None:  # several labels or numbers: a column for each
            values = self.probabilities.T.tolist()
            return columns | {str(name): values[i] for i, name in enumerate(self.columns)}
        mixed = len({type(name) for name in self.labels}) > 1
        labels = [str(name) for name in self.labels] if mixed else self.labels
        columns |= {"class": labels, "probability": self.probabilities.tolist()}
        if self.strangeness is not None and self.unknown is not None:
            columns |= {"strangeness": self.strangeness.tolist()}
            columns |= {"unknown": ["yes" if aside else "no" for aside in self.unknown.tolist()]}
        if all_classes and self.table is not None and self.classes is not None:
            columns |= {f"p({name})": self.table[:, i].tolist() for i, name in enumerate(self.classes)}
        return columns

    def to_frame(self, *, all_classes: bool = False) -> Any:
        """A pandas data frame with these columns."""
        try:
            import pandas
        except ImportError as error:
            raise EvergraphError(f"to_frame needs pandas ({first_line(error)}); pip install pandas") from None
        return pandas.DataFrame(self.as_columns(all_classes=all_classes))

    def __repr__(self) -> str:
        sizes = Counter(map(repr, self.labels)).most_common() if self.columns is None else []
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes[:CLASSES])
        more = f", and {len(sizes) - CLASSES} more" if len(sizes) > CLASSES else ""
        if self.unknown is not None:
            more += f"; {int(self.unknown.sum()):,} flagged as unknown"
        lines = [f"Prediction({counted(len(self), self.level)}{': ' * bool(listed)}{listed}{more})"]
        columns = self.as_columns()
        rows = [
            list(columns),
            *(list(map(_short, row)) for row in zip(*(values[:ROWS] for values in columns.values()))),
        ]
        widths = [max(map(len, cells)) for cells in zip(*rows)]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows if len(self)]
        return "\n".join([*lines, *(["…"] if len(self) > ROWS else [])])


def _short(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
