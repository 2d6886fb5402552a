"""`evergraph bench`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from evergraph.cli import flags, printing
from evergraph.errors import EvergraphError
from evergraph.persistence.files import write_atomically
from evergraph.persistence.reading import as_json


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command("bench")(bench_command)


def bench_command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, smaller graphs.")] = False,
    large: Annotated[bool, typer.Option("--large", help="Also train 2.4M nodes and 60M edges from disk.")] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="Measure several processes alone: training, and the closed form on a graph in parts."
        ),
    ] = False,
    nodes: Annotated[int, typer.Option(help="With --distributed: nodes of the largest graph.", min=1000)] = 10_000_000,
    processes: Annotated[
        str, typer.Option(help="With --distributed: numbers of processes, comma-separated.")
    ] = "1,2,4,8",
    training: Annotated[bool, typer.Option(help="With --distributed: measure training steps too.")] = True,
    seconds: Annotated[
        float | None,
        typer.Option(help="With --distributed: start no run, and keep none, after this many seconds.", min=1),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="With --distributed: a .json file of the figures, written after every run.")
    ] = None,
    json: flags.Json = False,
    device: flags.Device = "cpu",
    data_root: flags.DataRoot = None,
    threads: Annotated[int, typer.Option(help="Threads of torch; 1 is the steadiest.", min=1)] = 1,
) -> None:
    """Measure speed on this machine, from a clone of the repository: ratios of medians over alternating runs."""
    from evergraph.training import pick_device

    if distributed:
        _distributed(640_000 if quick else nodes, processes, training, json, seconds, save)
        return
    if seconds is not None or save is not None:
        raise EvergraphError("--seconds and --save are for --distributed; --json prints the figures")
    figures = _benchmarks().bench(
        quick=quick,
        large=large,
        device=pick_device(device),
        data_root=data_root,
        threads=threads,
        on_part=lambda part: printing.stderr.print(f"measuring: {part} …"),
    )
    if json:
        printing.print_json(figures)
        return
    console = printing.console()
    console.print(figure_table(figures))
    if "steps_over_plain" in figures or "gpu_steps_over_plain" in figures:
        console.print(step_table(figures))
    console.print(
        f"graph: {figures['graph']}; device {figures['device']}, {figures['threads']} thread(s); "
        f"PyG sampler: {figures['pyg_sampler']}; {figures['seconds']:.0f} s",
        soft_wrap=True,
    )


def _distributed(
    nodes: int, processes: str, training: bool, json: bool, seconds: float | None, save: Path | None
) -> None:
    """Measure several processes; print the runs, the figures and the cost model's prediction of each run."""
    try:
        counts = sorted({int(number) for number in processes.split(",")})
    except ValueError:
        raise EvergraphError(f"--processes {processes!r} is not a list of numbers; e.g. 1,2,4,8") from None
    if counts[0] < 1 or nodes // counts[-1] < 1000:
        raise EvergraphError(f"--processes {processes}: give positive numbers, and at least 1000 nodes for each")
    _benchmarks()
    measure = importlib.import_module("benchmarks.distributed").distributed_figures

    def keep(figures: dict[str, Any]) -> None:
        if save is not None:
            write_atomically(save, as_json(figures))

    figures: dict[str, Any] = measure(
        nodes=nodes,
        counts=counts,
        training=training,
        seconds=seconds,
        on_part=lambda part: printing.stderr.print(f"measuring: {part} …"),
        on_figures=keep,
    )
    for missing in figures["missing"]:
        printing.stderr.print(f"missing: {missing}", soft_wrap=True)
    if json:
        printing.print_json(figures)
        return
    table = Table(title="closed form over a graph in parts", title_justify="left")
    columns = ("scaling", "processes", "nodes", "seconds", "read", "propagate", "sums", "test", "peak MB", "sent MB")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for run in figures["runs"]:
        phases = [f"{run[f'{name}_seconds']:.1f}" for name in columns[4:8]]
        numbers = [f"{run['seconds']:.1f}", *phases, f"{run['peak_mb']:,.0f}", f"{run['sent_mb']:,.0f}"]
        table.add_row(run["scaling"], str(run["processes"]), f"{run['nodes']:,}", *numbers)
    console = printing.console()
    console.print(table)
    for name, value in figures.items():
        if isinstance(value, float):
            console.print(f"{name}: {value:.3g}", soft_wrap=True)
    clocks = {"model": "wall", "model_own": "processor time"}
    for clock, row in ((clocks[model], row) for model in clocks for row in figures[model].get("runs", ())):
        console.print(
            f"cost model, {clock}, {row['processes']} processes, {row['nodes']:,} nodes: {row['said']:.1f} s said, "
            f"{row['took']:.1f} s measured ({row['error']:+.0%}); {row['mb_said']:,.0f} MB said, "
            f"{row['mb_took']:,.0f} MB measured ({row['mb_error']:+.0%})",
            soft_wrap=True,
        )


def figure_table(figures: dict[str, Any]) -> Table:
    """Table of the figures that have a target, with their meanings."""
    table = Table(title="evergraph bench", title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("what")
    for name in ("value", "target", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, target in _benchmarks().TARGETS.items():
        if key in figures:
            held = None if target.full_size and figures.get("quick") else target.met(figures[key])
            met = {True: "yes", False: "no", None: ""}[held]
            value = f"{figures[key]:,.0f}" if figures[key] >= 1000 else f"{figures[key]:.3g}"
            table.add_row(key, target.about, value, str(target), met)
    return table


def step_table(figures: dict[str, Any]) -> Table:
    """Table of every method's step time over the plain step, and what the method additionally runs by definition."""
    bound = _benchmarks().MOST_OVER_PLAIN
    columns = [name for name in ("steps_over_plain", "gpu_steps_over_plain") if name in figures]
    table = Table(title=f"steps over the plain step (at most {bound} where nothing runs besides)", title_justify="left")
    for name in ("method", *("on the GPU" if name.startswith("gpu") else "on a CPU" for name in columns)):
        table.add_column(name, no_wrap=True)
    table.add_column("runs besides")
    besides = figures.get("steps_run_besides") or figures.get("gpu_steps_run_besides", {})
    for method in figures[columns[0]]:
        ratios = [f"{figures[name][method]:.2f}" for name in columns]
        eager = figures.get("gpu_steps_eager", {}).get(method)
        above = [column for column in columns if method in figures.get(column.replace("over_plain", "above"), ())]
        more = [
            besides.get(method, ""),
            f"above {bound}, with nothing besides" if above else "",
            f"on the GPU {eager}" if eager else "",
        ]
        table.add_row(method, *ratios, "; ".join(filter(None, more)))
    return table


def _benchmarks() -> Any:
    """Import the benchmarks, which are part of the repository and not of the installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "__init__.py").is_file():
        raise EvergraphError("the benchmarks come with the repository, not with the package; run this from a clone")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module("benchmarks.suite")
