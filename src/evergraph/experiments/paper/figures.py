"""The paper's figures, drawn from results on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evergraph.experiments.plots import COLOURS, mean_matrix


def final_rows(results: dict[str, dict[str, Any]], path: Path) -> Path:
    """Figure 1: the final model's accuracy on every task, one row per method, all on one scale."""
    plt = _pyplot()
    values = np.stack([mean_matrix(result)[-1] for result in results.values()])
    figure, axis = plt.subplots(figsize=(1.1 * values.shape[1] + 3.2, 0.42 * len(values) + 1.4))
    image = axis.imshow(values, vmin=0, vmax=100, cmap=COLOURS, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if value > 55 else "white"
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(values.shape[1]), [f"task {i + 1}" for i in range(values.shape[1])])
    axis.set_yticks(range(len(results)), list(results))
    figure.colorbar(image, ax=axis, label="accuracy after the last task (%)")
    figure.tight_layout()
    return _save(figure, path)


def study(title: str, key: str, results: dict[str, dict[str, Any]], path: Path) -> Path:
    """AP and AF against a hyper-parameter, with the spread over seeds."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3))
    positions = range(len(results))
    for axis, measure in zip(axes, ("ap", "af")):
        means = [result[measure]["mean"] for result in results.values()]
        spread = [result[measure]["std"] for result in results.values()]
        axis.bar(positions, means, yerr=spread, width=0.6, color="#2f5d8a", capsize=4)
        axis.set_xticks(positions, list(results))
        axis.set_xlabel(key)
        axis.set_ylabel(f"{measure.upper()} (%)")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    return _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    _pyplot().close(figure)
    return path
