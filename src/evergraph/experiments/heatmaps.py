"""Heatmaps of accuracy matrices."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergraph.evaluation import SUMMARIES, decimal_places
from evergraph.experiments.canvas import COLOURS, fitting, panels, save, stream_names
from evergraph.experiments.comparison import stream_titles
from evergraph.experiments.labels import labels
from evergraph.experiments.matrices import by_metric, mean_matrix, value_limits
from evergraph.experiments.metric_titles import describe_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

TITLE_WIDTH = 44  # characters in a line of a panel's title


def heatmaps(results: Sequence[dict[str, Any]], path: str | Path) -> Path:
    """Save the accuracy matrices of several results, on one test graph each, as PNG, PDF or SVG (by suffix).

    A panel's title is the method, with what distinguishes the result from others of the method, as in the report.
    """
    titles = stream_titles(str(result["stream"]) for result in results)
    runs = [{**result, "stream": titles[str(result["stream"])]} for result in results]
    labelled = [
        {**run, "label": label, "metrics": {key: run[key] for key in ("ap", "af")}}
        for run, label in zip(runs, labels(runs))
    ]
    return save(draw_heatmaps(labelled), path)


def draw_heatmaps(runs: Sequence[dict[str, Any]]) -> Figure:
    """The metric on each task (columns) after each task (rows); results of one metric share a scale."""
    runs, more = fitting(runs)
    scales = _scales(runs)
    figure, axes = panels(len(runs), 3.4 if len(scales) == 1 else 4.2, 3.6)
    for axis, run in zip(axes, runs):
        scale = scales[describe_metric(run)["name"]]
        image = _draw_heatmap(axis, run, scale)
        if len(scales) > 1:
            figure.colorbar(image, ax=axis, shrink=0.8, label=scale.title)
    if len(scales) == 1:
        figure.colorbar(image, ax=axes, shrink=0.8, label=scale.title)
    figure.suptitle(stream_names(runs) + more, fontsize=10)
    return figure


@dataclass(frozen=True)
class _Scale:
    """The scale of one metric's heatmaps.

    Args:
        title: the metric's title.
        quantity: the title without its unit.
        low: the value of the darkest colour.
        high: the value of the brightest colour.
        cell_digits: decimal places in a cell, which has room for few.
        digits: decimal places of AP and AF.
    """

    title: str
    quantity: str
    low: float
    high: float
    cell_digits: int
    digits: int


def _scales(runs: Sequence[dict[str, Any]]) -> dict[str, _Scale]:
    """The scale of each metric in the results, by its name."""
    scales = {}
    for name, members in by_metric(runs).items():
        metric = describe_metric(members[0])
        values = [value for run in members for value in mean_matrix(run).ravel()]
        in_cell = decimal_places(values, metric["unit"], percent=0, significant=2)
        digits = decimal_places(values, metric["unit"])
        scales[name] = _Scale(metric["title"], metric["quantity"], *value_limits(members), in_cell, digits)
    return scales


def _draw_heatmap(axis: Axes, run: dict[str, Any], scale: _Scale) -> AxesImage:
    """One run's mean matrix, with its numbers if there is room for them."""
    matrix = mean_matrix(run)
    image = axis.imshow(np.ma.masked_invalid(matrix), vmin=scale.low, vmax=scale.high, cmap=COLOURS)
    for t, i in np.argwhere(~np.isnan(matrix)) if len(matrix) <= 15 else []:
        colour = "black" if matrix[t, i] > scale.low + 0.55 * (scale.high - scale.low) else "white"
        number = f"{matrix[t, i]:z.{scale.cell_digits}f}"
        written = axis.text(i, t, number, ha="center", va="center", color=colour, fontsize=8)
        written.set_in_layout(False)  # it lies inside its panel
    every = range(0, len(matrix), 1 + len(matrix) // 16)
    for ticks in (axis.set_xticks, axis.set_yticks):
        ticks(list(every), [str(number + 1) for number in every])
    means = [f"{SUMMARIES[key].title} {run['metrics'][key]['mean']:z.{scale.digits}f}" for key in ("ap", "af")]
    label = textwrap.fill(run["label"], TITLE_WIDTH, break_on_hyphens=False)
    axis.set_title(f"{label}\n{'   '.join(means)}", fontsize=9)
    axis.set_xlabel(f"{scale.quantity} on task", fontsize=8)
    axis.set_ylabel("after task", fontsize=8)
    return image
