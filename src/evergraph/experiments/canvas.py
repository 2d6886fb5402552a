"""What all figures share: panels, colours that can be told apart without colour vision, and files."""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergraph.experiments.matrices import value_limits
from evergraph.persistence.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"  # brightness alone conveys the value
# Okabe and Ito's palette, with yellow and light blue darkened to stand out on white paper
PALETTE = ("#0072b2", "#d55e00", "#007a5a", "#a9468a", "#8a6d00", "#2b8cc4", "#000000", "#7a7a7a")
MARKERS = "osD^vPX*"
DPI = 150
MOST_PANELS = 60  # in a figure with a panel per run; more would be unreadable
MOST_NAMED = 16  # figures with more runs have no legend


def get_ready() -> None:
    """Import matplotlib's backend in a background thread, while runs are in progress."""
    threading.Thread(target=importlib.import_module, args=("matplotlib.backends.backend_agg",), daemon=True).start()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically and return its path."""
    path, buffer = Path(path), io.BytesIO()
    if path.suffix == ".png":  # draw once: `savefig` would draw everything an extra time to find the layout
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure.dpi = DPI
        FigureCanvasAgg(figure).print_png(buffer)
    else:  # without a date, so that equal figures give identical files
        dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:], {})
        figure.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=dated)
    write_atomically(path, buffer.getvalue())
    return path


def fitting(runs: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], str]:
    """The runs that fit into a figure with a panel for each, and a note for its title if some are left out."""
    return runs[:MOST_PANELS], f" (the first {MOST_PANELS} of {len(runs)} runs)" if len(runs) > MOST_PANELS else ""


def panels(number: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, at most four per row."""
    from matplotlib.figure import Figure  # slow to import, so only when something is drawn

    columns = min(number, 4)
    rows = -(-number // columns)
    figure = Figure(figsize=(width * columns + 0.8, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[number:]:
        axis.set_axis_off()
    return figure, axes[:number]


def add_legend(axis: Axes, runs: Sequence[dict[str, Any]]) -> None:
    """Add a legend inside the figure, unless it would leave no room for the plot."""
    if len(runs) <= MOST_NAMED:
        axis.legend(fontsize=8)


def frame(axis: Axes, title: str, x: str, y: str, limits: tuple[float, float] | None) -> None:
    """Set a panel's title and labels, and the limits of its value axis if they are given."""
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    if limits is not None:
        axis.set_ylim(*limits)


def with_headroom(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Limits of the value axis, with room for markers at the top."""
    low, high = value_limits(runs)
    return low, high + 0.03 * (high - low)


def stream_names(runs: Sequence[dict[str, Any]]) -> str:
    """The streams of several runs, as text."""
    return " and ".join(dict.fromkeys(str(run["stream"]) for run in runs))


def shades(values: np.ndarray) -> list[Any]:
    """The colours of values from 0 to 1."""
    from matplotlib import colormaps

    return list(colormaps[COLOURS](values))


def colour_of(number: int) -> str:
    """The colour of a run or method, by its number."""
    return PALETTE[number % len(PALETTE)]


def marker_of(number: int) -> str:
    """The marker of a run or method, by its number."""
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]
