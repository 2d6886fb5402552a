"""The report's figures, drawn from results on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergraph.evaluation import SUMMARIES
from evergraph.experiments.canvas import (
    MARKERS,
    add_legend,
    colour_of,
    fitting,
    frame,
    marker_of,
    panels,
    save,
    shades,
    stream_names,
    with_headroom,
)
from evergraph.experiments.heatmaps import draw_heatmaps
from evergraph.experiments.matrices import anytime_curve, by_metric, mean_matrix
from evergraph.experiments.metric_titles import common_metric, describe_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(name: str, runs: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Save one of the report's figures as PNG and PDF; save nothing if the runs have no data for it."""
    figure = FIGURES[name](runs)
    if figure is None:
        return []
    figure.draw_without_rendering()  # computes the layout once for both files
    figure.set_layout_engine("none")
    return [save(figure, folder / f"{name}.{ending}") for ending in ("png", "pdf")]


def draw_tasks(runs: Sequence[dict[str, Any]]) -> Figure:
    """Accuracy on each task over time: each line begins where its task was learned."""
    runs, more = fitting(runs)
    figure, axes = panels(len(runs), 3.4, 2.8)
    alike = by_metric(runs)
    for axis, run in zip(axes, runs):
        metric = describe_metric(run)
        matrix = mean_matrix(run)
        for i, colour in enumerate(shades(np.linspace(0, 0.85, len(matrix)))):
            after = np.arange(i, len(matrix))
            axis.plot(after + 1, matrix[i:, i], color=colour, marker=MARKERS[i % len(MARKERS)], markersize=4)
            axis.annotate(str(i + 1), (len(matrix), matrix[-1, i]), (4, 0), textcoords="offset points", fontsize=7)
        frame(axis, run["label"], "after task", metric["title"], with_headroom(alike[metric["name"]]))
        axis.set_xticks(range(1, len(matrix) + 1, 1 + len(matrix) // 16))
    figure.suptitle(f"{stream_names(runs)}: each line is a task{more}", fontsize=10)
    return figure


def draw_anytime(runs: Sequence[dict[str, Any]]) -> Figure:
    """AP after each task, the mean over the tasks so far, with its standard deviation over seeds."""
    figure, (axis,) = panels(1, 6.4, 4)
    for position, run in enumerate(runs):
        number = run.get("style", position)
        curve = anytime_curve(run["matrices"])
        mean, spread = (np.array([point[key] for point in curve]) for key in ("mean", "std"))
        after = np.arange(1, len(curve) + 1)
        axis.fill_between(after, mean - spread, mean + spread, color=colour_of(number), alpha=0.15, linewidth=0)
        axis.plot(after, mean, color=colour_of(number), marker=marker_of(number), markersize=5, label=run["label"])
    longest = max(len(run["matrices"][0]) for run in runs)
    axis.set_xticks(range(1, longest + 1, 1 + longest // 16))
    label = f"{SUMMARIES['ap'].title} on the tasks so far: {common_metric(runs)['title']}"
    frame(axis, stream_names(runs), "after task", label, with_headroom(runs))
    add_legend(axis, runs)
    return figure


def draw_plane(runs: Sequence[dict[str, Any]]) -> Figure:
    """Stability against plasticity: AF (0: no forgetting) and AP, one point per run, with error bars over seeds."""
    figure, (axis,) = panels(1, 6.4, 4.4)
    for position, run in enumerate(runs):
        number = run.get("style", position)
        af, ap = run["metrics"]["af"], run["metrics"]["ap"]
        axis.errorbar(
            af["mean"], ap["mean"], xerr=af["std"], yerr=ap["std"], color=colour_of(number), marker=marker_of(number),
            markersize=7, capsize=3, linestyle="none", label=run["label"],
        )  # fmt: skip
    axis.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
    ap, af = (SUMMARIES[key].title for key in ("ap", "af"))
    about = f"{af}: average forgetting (0 is none, negative is forgetting)"
    frame(axis, stream_names(runs), about, f"{ap}: {common_metric(runs)['title']}", None)
    add_legend(axis, runs)
    return figure


def draw_learning(runs: Sequence[dict[str, Any]]) -> Figure | None:
    """Training loss (dashed: validation loss) over all epochs: one line per seed; dotted lines separate the tasks."""
    shown, more = fitting([run for run in runs if run["curves"]])
    if not shown:
        return None
    figure, axes = panels(len(shown), 3.4, 2.6)
    for axis, run in zip(axes, shown):
        for number, curve in enumerate(run["curves"]):
            steps = np.array(curve["step"])
            for key, style in (("loss", "-"), ("validation_loss", "--")):
                if key in curve:
                    values = np.array([np.nan if value is None else value for value in curve[key]])
                    axis.plot(steps, values, style, color=colour_of(number), linewidth=0.9, alpha=0.8)
        tasks = np.array(run["curves"][0]["task"])
        for start in np.array(run["curves"][0]["step"])[1:][np.diff(tasks) != 0]:
            axis.axvline(start - 0.5, color="0.7", linewidth=0.7, linestyle=":")
        frame(axis, run["label"], "epoch, over all tasks", "loss per node", None)
    figure.suptitle(f"{stream_names(runs)}: training loss{more}", fontsize=10)
    return figure


def draw_cost(runs: Sequence[dict[str, Any]]) -> Figure | None:
    """AP against the bytes kept after the last task, on a log scale: a panel per stream and test graph."""
    counted = [run for run in runs if run.get("kept_bytes") is not None]
    if not counted:
        return None
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in counted:
        groups.setdefault((str(run["stream"]), str(run["protocol"].get("test_graph", ""))), []).append(run)
    methods = list(dict.fromkeys(run["method"] for run in counted))
    positive = [run["kept_bytes"] for run in counted if run["kept_bytes"]] or [1]
    nothing = 10.0 ** (np.floor(np.log10(min(positive))) - 1)  # x position of runs that keep nothing
    figure, axes = panels(len(groups), 3.8, 3.2)
    for axis, ((stream, test_graph), members) in zip(axes, groups.items()):
        for number, method in enumerate(methods):
            own = sorted((run for run in members if run["method"] == method), key=lambda run: run["kept_bytes"])
            ap = [run["metrics"]["ap"] for run in own]
            axis.errorbar(
                [run["kept_bytes"] or nothing for run in own], [value["mean"] for value in ap],
                yerr=[value["std"] for value in ap], color=colour_of(number), marker=marker_of(number), markersize=6,
                capsize=2, linewidth=0.9, linestyle="-" if len(own) > 1 else "none", label=method,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(nothing / 2, max(positive) * 3)
        leak = members[0].get("leak")
        title = f"{stream}, test graph {test_graph}" + (f"\nleak score {leak['mean']:.1f}" if leak else "")
        label = f"{SUMMARIES['ap'].title}: {common_metric(members)['title']}"
        frame(axis, title, f"bytes kept ({nothing:.0e} stands for none)", label, None)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Sequence[dict[str, Any]]], Figure | None]] = {
    "heatmaps": draw_heatmaps,
    "tasks": draw_tasks,
    "anytime": draw_anytime,
    "plane": draw_plane,
    "cost": draw_cost,
    "learning": draw_learning,
}
"""The report's figures by name."""
