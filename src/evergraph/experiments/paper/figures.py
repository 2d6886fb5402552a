"""The paper's figures, drawn from results on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evergraph.experiments.plots import COLOURS, PALETTE, mean_matrix


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


def study(title: str, key: str, lines: dict[str, dict[str, dict[str, Any]]], path: Path) -> Path:
    """AP and AF against a hyper-parameter, one line per row of the table, with the spread over seeds."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.4))
    for axis, measure in zip(axes, ("ap", "af")):
        for number, (name, results) in enumerate(lines.items()):
            values = [float(value) for value in results]
            means = [result[measure]["mean"] for result in results.values()]
            spread = [result[measure]["std"] for result in results.values()]
            style = "--" if "without EMA" in name else "-"
            colour = PALETTE[number % max(len(lines) // 2, 3) % len(PALETTE)]
            axis.errorbar(
                values, means, yerr=spread, fmt=f"o{style}", color=colour, capsize=3, markersize=4, label=name
            )
        axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.minorticks_off()
        axis.set_xlabel(key)
        axis.set_ylabel(f"{measure.upper()} (%)")
    if len(lines) > 1:
        axes[0].legend(fontsize=7)
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
