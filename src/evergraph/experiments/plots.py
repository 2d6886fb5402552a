"""Figures of results, drawn from files on disk, in colours that can be told apart without colour vision."""

from __future__ import annotations

import importlib
import io
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergraph.evaluation import SUMMARIES, as_array, average_performance, decimal_places, mean_std
from evergraph.experiments.comparison import stream_titles
from evergraph.experiments.labels import labels
from evergraph.experiments.metric_titles import common_metric, describe_metric
from evergraph.persistence.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = "cividis"  # brightness alone conveys the value
# Okabe and Ito's palette, with yellow and light blue darkened to stand out on white paper
PALETTE = ("#0072b2", "#d55e00", "#007a5a", "#a9468a", "#8a6d00", "#2b8cc4", "#000000", "#7a7a7a")
MARKERS = "osD^vPX*"
PERCENT = (0.0, 100.0)
DPI = 150
MOST_PANELS = 60  # in a figure with a panel per run; more would be unreadable
MOST_NAMED = 16  # figures with more runs have no legend
TITLE_WIDTH = 44  # characters in a line of a panel's title


def get_ready() -> None:
    """Import matplotlib's backend in a background thread, while runs are in progress."""
    threading.Thread(target=importlib.import_module, args=("matplotlib.backends.backend_agg",), daemon=True).start()


def value_limits(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Limits of the scale that several results share: 0 to 100 for percentages, else the range of the values."""
    if all(describe_metric(run)["unit"] == "%" for run in runs):
        return PERCENT
    values = np.concatenate([as_array(matrix).ravel() for run in runs for matrix in run["matrices"]])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else PERCENT
    return (low, high) if low < high else (low, low + 1)


def mean_matrix(result: dict[str, Any]) -> np.ndarray:
    """A result's accuracy matrix, averaged over its seeds."""
    return np.mean([as_array(matrix) for matrix in result["matrices"]], axis=0)


def change_matrix(matrix: Any) -> np.ndarray:
    """Entry [t, i]: the change on task i since it was learned, M[t, i] − M[i, i]; NaN before it was learned."""
    array = as_array(matrix)
    return np.where(np.tri(len(array), dtype=bool), array - np.diag(array), np.nan)


def anytime_curve(matrices: Sequence[Any]) -> list[dict[str, float]]:
    """AP after each task: mean and standard deviation over the seeds' matrices."""
    number = len(matrices[0])
    return [mean_std([average_performance(matrix, after) for matrix in matrices]) for after in range(number)]


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


def draw(name: str, runs: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Save one of the report's figures as PNG and PDF; save nothing if the runs have no data for it."""
    figure = FIGURES[name](runs)
    if figure is None:
        return []
    figure.draw_without_rendering()  # computes the layout once for both files
    figure.set_layout_engine("none")
    return [save(figure, folder / f"{name}.{ending}") for ending in ("png", "pdf")]


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


def draw_heatmaps(runs: Sequence[dict[str, Any]]) -> Figure:
    """The metric on each task (columns) after each task (rows); results of one metric share a scale."""
    runs, more = _fitting(runs)
    scales = _scales(runs)
    figure, axes = _panels(len(runs), 3.4 if len(scales) == 1 else 4.2, 3.6)
    for axis, run in zip(axes, runs):
        scale = scales[describe_metric(run)["name"]]
        image = _draw_heatmap(axis, run, scale)
        if len(scales) > 1:
            figure.colorbar(image, ax=axis, shrink=0.8, label=scale.title)
    if len(scales) == 1:
        figure.colorbar(image, ax=axes, shrink=0.8, label=scale.title)
    figure.suptitle(_streams(runs) + more, fontsize=10)
    return figure


def draw_tasks(runs: Sequence[dict[str, Any]]) -> Figure:
    """Accuracy on each task over time: each line begins where its task was learned."""
    runs, more = _fitting(runs)
    figure, axes = _panels(len(runs), 3.4, 2.8)
    title = common_metric(runs)["title"]
    for axis, run in zip(axes, runs):
        matrix = mean_matrix(run)
        shades = np.linspace(0, 0.85, len(matrix))
        for i, colour in enumerate(_shade(shades)):
            after = np.arange(i, len(matrix))
            axis.plot(after + 1, matrix[i:, i], color=colour, marker=MARKERS[i % len(MARKERS)], markersize=4)
            axis.annotate(str(i + 1), (len(matrix), matrix[-1, i]), (4, 0), textcoords="offset points", fontsize=7)
        _frame(axis, run["label"], "after task", title, _with_headroom(runs))
        axis.set_xticks(range(1, len(matrix) + 1, 1 + len(matrix) // 16))
    figure.suptitle(f"{_streams(runs)}: each line is a task{more}", fontsize=10)
    return figure


def draw_anytime(runs: Sequence[dict[str, Any]]) -> Figure:
    """AP after each task, the mean over the tasks so far, with its standard deviation over seeds."""
    figure, (axis,) = _panels(1, 6.4, 4)
    for position, run in enumerate(runs):
        number = run.get("style", position)
        curve = anytime_curve(run["matrices"])
        mean, spread = (np.array([point[key] for point in curve]) for key in ("mean", "std"))
        after = np.arange(1, len(curve) + 1)
        axis.fill_between(after, mean - spread, mean + spread, color=_colour(number), alpha=0.15, linewidth=0)
        axis.plot(after, mean, color=_colour(number), marker=_marker(number), markersize=5, label=run["label"])
    longest = max(len(run["matrices"][0]) for run in runs)
    axis.set_xticks(range(1, longest + 1, 1 + longest // 16))
    label = f"{SUMMARIES['ap'].title} on the tasks so far: {common_metric(runs)['title']}"
    _frame(axis, _streams(runs), "after task", label, _with_headroom(runs))
    _legend(axis, runs)
    return figure


def draw_plane(runs: Sequence[dict[str, Any]]) -> Figure:
    """Stability against plasticity: AF (0: no forgetting) and AP, one point per run, with error bars over seeds."""
    figure, (axis,) = _panels(1, 6.4, 4.4)
    for position, run in enumerate(runs):
        number = run.get("style", position)
        af, ap = run["metrics"]["af"], run["metrics"]["ap"]
        axis.errorbar(
            af["mean"], ap["mean"], xerr=af["std"], yerr=ap["std"], color=_colour(number), marker=_marker(number),
            markersize=7, capsize=3, linestyle="none", label=run["label"],
        )  # fmt: skip
    axis.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
    ap, af = (SUMMARIES[key].title for key in ("ap", "af"))
    about = f"{af}: average forgetting (0 is none, negative is forgetting)"
    _frame(axis, _streams(runs), about, f"{ap}: {common_metric(runs)['title']}", None)
    _legend(axis, runs)
    return figure


def draw_learning(runs: Sequence[dict[str, Any]]) -> Figure | None:
    """Training loss (dashed: validation loss) over all epochs: one line per seed; dotted lines separate the tasks."""
    shown, more = _fitting([run for run in runs if run["curves"]])
    if not shown:
        return None
    figure, axes = _panels(len(shown), 3.4, 2.6)
    for axis, run in zip(axes, shown):
        for number, curve in enumerate(run["curves"]):
            steps = np.array(curve["step"])
            for key, style in (("loss", "-"), ("validation_loss", "--")):
                if key in curve:
                    values = np.array([np.nan if value is None else value for value in curve[key]])
                    axis.plot(steps, values, style, color=_colour(number), linewidth=0.9, alpha=0.8)
        tasks = np.array(run["curves"][0]["task"])
        for start in np.array(run["curves"][0]["step"])[1:][np.diff(tasks) != 0]:
            axis.axvline(start - 0.5, color="0.7", linewidth=0.7, linestyle=":")
        _frame(axis, run["label"], "epoch, over all tasks", "loss per node", None)
    figure.suptitle(f"{_streams(runs)}: training loss{more}", fontsize=10)
    return figure


def draw_cost(runs: Sequence[dict[str, Any]]) -> Figure | None:
    """AP against the bytes kept after the last task, on a log scale: a panel per stream and test graph."""
    counted = [run for run in runs if run.get("kept_bytes") is not None]
    if not counted:
        return None
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in counted:
        panels.setdefault((str(run["stream"]), str(run["protocol"].get("test_graph", ""))), []).append(run)
    methods = list(dict.fromkeys(run["method"] for run in counted))
    positive = [run["kept_bytes"] for run in counted if run["kept_bytes"]] or [1]
    nothing = 10.0 ** (np.floor(np.log10(min(positive))) - 1)  # x position of runs that keep nothing
    figure, axes = _panels(len(panels), 3.8, 3.2)
    for axis, ((stream, test_graph), members) in zip(axes, panels.items()):
        for number, method in enumerate(methods):
            own = sorted((run for run in members if run["method"] == method), key=lambda run: run["kept_bytes"])
            ap = [run["metrics"]["ap"] for run in own]
            axis.errorbar(
                [run["kept_bytes"] or nothing for run in own], [value["mean"] for value in ap],
                yerr=[value["std"] for value in ap], color=_colour(number), marker=_marker(number), markersize=6,
                capsize=2, linewidth=0.9, linestyle="-" if len(own) > 1 else "none", label=method,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(nothing / 2, max(positive) * 3)
        leak = members[0].get("leak")
        title = f"{stream}, test graph {test_graph}" + (f"\nleak score {leak['mean']:.1f}" if leak else "")
        label = f"{SUMMARIES['ap'].title}: {common_metric(runs)['title']}"
        _frame(axis, title, f"bytes kept ({nothing:.0e} stands for none)", label, None)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
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
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(describe_metric(run)["name"], []).append(run)
    scales = {}
    for name, members in groups.items():
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


FIGURES: dict[str, Callable[[Sequence[dict[str, Any]]], Figure | None]] = {
    "heatmaps": draw_heatmaps,
    "tasks": draw_tasks,
    "anytime": draw_anytime,
    "plane": draw_plane,
    "cost": draw_cost,
    "learning": draw_learning,
}
"""The report's figures by name."""


def _fitting(runs: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], str]:
    """The runs that fit into a figure with a panel for each, and a note for its title if some are left out."""
    return runs[:MOST_PANELS], f" (the first {MOST_PANELS} of {len(runs)} runs)" if len(runs) > MOST_PANELS else ""


def _panels(number: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, at most four per row."""
    from matplotlib.figure import Figure  # slow to import, so only when something is drawn

    columns = min(number, 4)
    rows = -(-number // columns)
    figure = Figure(figsize=(width * columns + 0.8, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[number:]:
        axis.set_axis_off()
    return figure, axes[:number]


def _legend(axis: Axes, runs: Sequence[dict[str, Any]]) -> None:
    """Add a legend inside the figure, unless it would leave no room for the plot."""
    if len(runs) <= MOST_NAMED:
        axis.legend(fontsize=8)


def _frame(axis: Axes, title: str, x: str, y: str, limits: tuple[float, float] | None) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    if limits is not None:
        axis.set_ylim(*limits)


def _with_headroom(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Limits of the value axis, with room for markers at the top."""
    low, high = value_limits(runs)
    return low, high + 0.03 * (high - low)


def _streams(runs: Sequence[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(str(run["stream"]) for run in runs))


def _shade(values: np.ndarray) -> list[Any]:
    from matplotlib import colormaps

    return list(colormaps[COLOURS](values))


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _marker(number: int) -> str:
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]
