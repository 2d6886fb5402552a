"""Pictures of results, drawn from what is on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evergraph.errors import EvergraphError, first_line
from evergraph.results import as_array

COLOURS = "cividis"  # reads the same with and without colour vision


def mean_matrix(result: dict[str, Any]) -> np.ndarray:
    """A result's accuracy matrix, averaged over its seeds."""
    return np.mean([as_array(matrix) for matrix in result["matrices"]], axis=0)


def heatmaps(results: Sequence[dict[str, Any]], path: str | Path) -> Path:
    """The accuracy matrices of several runs side by side, on one scale. PNG, PDF or SVG by the path's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(len(results), 4)
    rows = -(-len(results) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns + 0.8, 3.4 * rows), squeeze=False)
    for axis in axes.flat[len(results) :]:
        axis.set_axis_off()
    for axis, result in zip(axes.flat, results):
        matrix = mean_matrix(result)
        image = axis.imshow(np.ma.masked_invalid(matrix), vmin=0, vmax=100, cmap=COLOURS)
        for t, i in np.argwhere(~np.isnan(matrix)):
            colour = "black" if matrix[t, i] > 55 else "white"
            axis.text(i, t, f"{matrix[t, i]:.0f}", ha="center", va="center", color=colour, fontsize=8)
        numbers = range(1, len(matrix) + 1)
        axis.set_xticks(range(len(matrix)), [str(n) for n in numbers])
        axis.set_yticks(range(len(matrix)), [str(n) for n in numbers])
        axis.set_title(f"{result['method']}\nAP {result['ap']['mean']:.1f}   AF {result['af']['mean']:.1f}", fontsize=9)
        axis.set_xlabel("accuracy on task", fontsize=8)
        axis.set_ylabel("after task", fontsize=8)
    figure.suptitle(str(results[0]["stream"]), fontsize=10)
    figure.tight_layout()
    figure.colorbar(image, ax=axes, shrink=0.8, label="accuracy (%)")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise EvergraphError(f"cannot write {path} ({first_line(error)})") from None
    finally:
        plt.close(figure)
    return Path(path)
