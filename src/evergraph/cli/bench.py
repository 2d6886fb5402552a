"""`evergraph bench`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from evergraph.cli import common


def add_commands(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("bench")(bench_command)


def bench_command(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, smaller graphs.")] = False,
    large: Annotated[bool, typer.Option("--large", help="Also train 2.4M nodes and 60M edges from disk.")] = False,
    json: common.Json = False,
    device: common.Device = "cpu",
    data_root: common.DataRoot = None,
    threads: Annotated[int, typer.Option(help="Threads of torch; 1 is the steadiest.", min=1)] = 1,
) -> None:
    """Measure how fast: every figure a ratio, contenders taking turns, medians. A benchmark, not a test."""
    from evergraph.bench import bench
    from evergraph.learner import pick_device

    found = bench(
        quick=quick,
        large=large,
        device=pick_device(device),
        data_root=data_root,
        threads=threads,
        on_part=lambda part: common.stderr.print(f"measuring: {part} …"),
    )
    if json:
        common.print_json(found)
        return
    console = Console()
    console.print(figure_table(found))
    console.print(
        f"graph: {found['graph']}; device {found['device']}, {found['threads']} thread(s); "
        f"PyG sampler: {found['pyg_sampler']}; {found['seconds']:.0f} s",
        soft_wrap=True,
    )


def figure_table(found: dict[str, Any]) -> Table:
    """The figures that have a meaning of their own, with their targets."""
    from evergraph.bench import TARGETS

    table = Table(title="evergraph bench", title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("what")
    for name in ("value", "target", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, target in TARGETS.items():
        if key in found:
            met = {True: "yes", False: "no", None: ""}[target.met(found[key])]
            value = f"{found[key]:,.0f}" if found[key] >= 1000 else f"{found[key]:.3g}"
            table.add_row(key, target.about, value, str(target), met)
    return table
