"""The paper's figures, drawn from results on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergraph.experiments.canvas import COLOURS, PALETTE, save
from evergraph.experiments.matrices import mean_matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def final_rows(results: dict[str, dict[str, Any]], path: Path) -> Path:
    """Figure 1: the final model's accuracy on every task, one row per method, all on one scale."""
    values = np.stack([mean_matrix(result)[-1] for result in results.values()])
    figure = _figure(1.1 * values.shape[1] + 3.2, 0.42 * len(values) + 1.4)
    axis = figure.subplots()
    image = axis.imshow(values, vmin=0, vmax=100, cmap=COLOURS, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if value > 55 else "white"
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(values.shape[1]), [f"task {i + 1}" for i in range(values.shape[1])])
    axis.set_yticks(range(len(results)), list(results))
    figure.colorbar(image, ax=axis, label="accuracy after the last task (%)")
    figure.tight_layout()
    return save(figure, path)


Lines = dict[str, dict[str, dict[str, Any]]]
"""The results of a study: for each row of the table, one result per value of the setting."""


def study(title: str, key: str, streams: dict[str, Lines], path: Path) -> Path:
    """Plot AP and AF against a setting: a line per table row, with the spread over seeds; a column per stream."""
    rows, columns = (1, 2) if len(streams) == 1 else (2, len(streams))
    figure = _figure(4.3 * columns, 3.4 * rows, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    panels = [(stream, measure) for measure in ("ap", "af") for stream in streams]
    for axis, (stream, measure) in zip(axes.flat, panels):
        lines = streams[stream]
        for number, (name, results) in enumerate(lines.items()):
            means = [result[measure]["mean"] for result in results.values()]
            spread = [result[measure]["std"] for result in results.values()]
            style = "-" if "with EMA" in name or len(lines) == 1 else "--"
            colour = PALETTE[number % max(len(lines) // 2, 3) % len(PALETTE)]
            axis.errorbar(
                range(len(means)),
                means,
                yerr=spread,
                fmt=f"o{style}",
                color=colour,
                capsize=3,
                markersize=4,
                label=name,
            )
        values = [float(value) for value in next(iter(lines.values()))]
        axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set_xlabel(key)
        axis.set_ylabel(f"{measure.upper()} (%)")
        axis.set_title(stream if len(streams) > 1 else "", fontsize=9)
    if len(next(iter(streams.values()))) > 1:
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, handlelength=4)  # shows dashes
    figure.suptitle(title, fontsize=10)
    return save(figure, path)


def _figure(width: float, height: float, **settings: Any) -> Figure:
    from matplotlib.figure import Figure  # not pyplot: importing it takes as long as drawing a figure

    return Figure(figsize=(width, height), **settings)
