"""`auto`, or another method, on seven real graphs, three seeds by three random orders, on both test graphs.

Every run learns the whole stream once and is tested on each task's own graph and on the graph of all tasks. A run is
one line of `runs.jsonl`, written when it ends; finished runs are not repeated. The longest runs come first, one thread
each:

    python -m benchmarks.seven_graphs --data-root DATA --out results/seven-graphs --workers 16

Another method, its settings, its model and its training are named as on the command line of `evergraph run`:

    python -m benchmarks.seven_graphs --data-root DATA --out results/seven-graphs-encoder --seeds 1 \\
        --method stand-in-curvature+analytic --set encoder=continual --model sage --model-set dropout=0.5 \\
        --training batch_size=0 --training epochs=100

To choose rules and constants without looking at test nodes: with `--held-out`, a quarter of each class's training nodes
replace the validation nodes, these replace the test nodes, and the test nodes become unlabelled neighbours.

    python -m benchmarks.seven_graphs --data-root DATA --out FOLDER --held-out --seeds 1

With `--ways`, the line of a run of `auto` also has what each way of deciding would give where edges join tasks. With
`--share 0.2`, graphs have a fifth of their nodes, the same ones in every run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from evergraph.cli.parsing import parse_settings

GRAPHS = (
    "corafull-knn",
    "coauthor-cs",
    "amazon-computers",
    "blogcatalog",
    "actor",
    "squirrel-filtered",
    "chameleon-filtered",
)
"""The graphs, those with the longest runs first."""
TEST_GRAPHS = ("task", "seen")
CHOICES = (
    "chosen_",
    "blend_",
    "own_",
    "set_hits_",
    "own_within_",
    "own_explains_",
    "voting_",
    "smoothing_share_",
    "doubt_",
    "drift_",
)
"""Attributes of a method that are recorded in a run's line: what it chose."""

Cell = tuple[str, str, int]
RESULTS = Path("results/seven-graphs")


def cells(graphs: list[str], orders: Iterable[int], seeds: Iterable[int]) -> Iterator[Cell]:
    """Graph, order and seed of every run."""
    yield from itertools.product(graphs, [f"random:{number}" for number in orders], seeds)


@dataclass(frozen=True)
class Contender:
    """A method, its model and its training, as text; what is not given is the method's own.

    Args:
        method: the method's name; `a+b` composes.
        settings: settings of the method.
        model: the model's name.
        model_settings: settings of the model.
        training: settings of the training.
    """

    method: str = "auto"
    settings: dict[str, str] = field(default_factory=dict)
    model: str = ""
    model_settings: dict[str, str] = field(default_factory=dict)
    training: dict[str, str] = field(default_factory=dict)

    def learner(self, seed: int) -> Any:
        """Return an untrained learner."""
        import evergraph as eg
        from evergraph.core.settings_from_text import parse_setting

        method = eg.make_method(self.method, self.settings)
        model = eg.make_model(self.model or method.model, **self.model_settings)
        training = {
            key: parse_setting(eg.Training, key, value, owner="training") for key, value in self.training.items()
        }
        return eg.Learner(model, method, eg.Training(**{**method.training, **training}), seed=seed, device="cpu")

    def row(self) -> dict[str, Any]:
        """The non-empty fields, as recorded in a run's line."""
        return {key: value for key, value in asdict(self).items() if value}

    def key(self) -> str:
        """Text that identifies the contender."""
        return json.dumps(self.row(), sort_keys=True)


def contender_of(row: dict[str, Any]) -> Contender:
    """The contender of a run's line."""
    return Contender(**{f.name: row[f.name] for f in fields(Contender) if f.name in row})


@dataclass(frozen=True)
class Nodes:
    """Which nodes a run has.

    Args:
        held_out: whether its test nodes are left alone.
        share: share of the graph's nodes.
    """

    held_out: bool = False
    share: float = 1.0

    def row(self) -> dict[str, Any]:
        """What a run's line says of them."""
        return {"share": self.share} if self.share < 1 else {}


def stream_of(cell: Cell, data_root: str, nodes: Nodes) -> Any:
    """The stream of a run."""
    import torch

    import evergraph as eg
    from evergraph.data.datasets import DATASETS

    name, order, seed = cell
    if nodes == Nodes():
        return eg.stream(name, data_root=data_root, order=order, seed=seed)
    dataset = DATASETS[name]
    graph, least = dataset.graph(data_root, ""), max(int(nodes.share * dataset.min_class_size), 1)
    if nodes.share < 1:
        mixed = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(7))
        graph = graph.subgraph(mixed[: int(nodes.share * graph.num_nodes)].sort().values)
    if nodes.held_out:
        large = [place for place, size in enumerate(graph.class_sizes().tolist()) if size >= least]
        graph = without_test_nodes(graph, large, seed)
    return eg.TaskStream(graph, dataset.classes_per_task, order=order, seed=seed, min_class_size=least)


def without_test_nodes(graph: Any, classes: list[int], seed: int) -> Any:
    """The graph with test nodes in no split: validation nodes are tested, a quarter of the training nodes validate."""
    import torch

    from evergraph.data.arrangement import split_nodes

    train, val, _ = split_nodes(graph, classes, seed)
    part = torch.full((graph.num_nodes,), -1)
    part[train], part[val] = 0, 2
    for place in classes:
        nodes = train[graph.y[train] == place]
        mixed = nodes[torch.randperm(nodes.numel(), generator=torch.Generator().manual_seed(1_000_003 * seed + place))]
        part[mixed[: nodes.numel() // 4]] = 1
    return graph.altered(splits=part.unsqueeze(1))


def measure(
    cell: Cell, contender: Contender, data_root: str, nodes: Nodes = Nodes(), ways: bool = False
) -> dict[str, Any]:
    """Learn one stream and test the learner; with `ways`, also with each way that may decide where edges join tasks."""
    import torch

    torch.set_num_threads(1)
    graph, order, seed = cell
    stream = stream_of(cell, data_root, nodes)
    start, used = time.perf_counter(), time.process_time()
    learner = contender.learner(seed).fit(stream)
    row: dict[str, Any] = {"graph": graph, "order": order, "seed": seed, **nodes.row(), **contender.row()}
    row["learn_s"] = round(time.perf_counter() - start, 2)
    for test_graph in TEST_GRAPHS:
        start = time.perf_counter()
        row[test_graph] = round(learner.evaluate(stream, test_graph=test_graph).ap, 3)
        row[f"{test_graph}_s"] = round(time.perf_counter() - start, 2)
    row["processor_s"] = round(time.process_time() - used, 1)
    row |= {"kept_bytes": learner.method.kept_bytes(), "keeps": list(learner.method.access.keeps)}
    row["labels"] = labels_used(learner, stream)
    for part in learner.method.parts():
        row.update({key.strip("_"): getattr(part, key) for key in CHOICES if hasattr(part, key)})
        if hasattr(part, "elsewhere"):
            row["elsewhere"] = part.elsewhere()
            if ways:
                row["seen_by_way"] = seen_by_way(learner, part, partial(stream_of, cell, data_root, nodes))
    return row


def seen_by_way(learner: Any, auto: Any, make_stream: Callable[[], Any]) -> dict[str, float]:
    """AP on the graph of all tasks if own features, the vote, or nodes mixed with their neighbours decide there."""
    found = {}
    for way in ("own", "vote", "smooth"):
        auto.elsewhere = lambda way=way: way
        auto._write_elsewhere(learner.model)
        found[way] = round(learner.evaluate(make_stream(), test_graph="seen").ap, 3)  # a new one, without kept scores
    del auto.elsewhere
    return found


def labels_used(learner: Any, stream: Any) -> str:
    """Percentages of labels that training steps and the final head learned from, as text."""
    sizes = [[part.numel() for part in (task.train, task.val, task.test)] for task in stream]
    train, val, test = (sum(column) for column in zip(*sizes))
    both = any(getattr(part, "learn_validation", False) for part in learner.method.parts())
    shares = [train] if any(entry["epochs"] for entry in learner.history) else []
    shares += [train + val] if both else [] if shares else [train]
    return ", ".join(f"{100 * share / (train + val + test):.0f} %" for share in shares)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the runs so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_spread(values: list[float]) -> str:
    """Mean and, of several values, sample standard deviation."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _title(row: dict[str, Any]) -> str:
    """The graph of a run, and its share of the nodes if it has not all of them."""
    return str(row["graph"]) + (f" ({100 * row['share']:.0f} % of it)" if "share" in row else "")


def table(rows: list[dict[str, Any]]) -> str:
    """AP in percent, mean and sample standard deviation over the runs of each graph and contender."""
    lines = [
        "| graph | method | runs | task | seen | decides on seen | labels | MB kept | learning, s | processor, s |"
    ]
    lines.append("|---|---|--:|--:|--:|---|---|--:|--:|--:|")
    for graph, key in dict.fromkeys((_title(row), contender_of(row).key()) for row in rows):
        own = [row for row in rows if (_title(row), contender_of(row).key()) == (graph, key)]
        figures = [[row[name] for row in own] for name in TEST_GRAPHS]
        spread = " | ".join(with_spread(values) for values in figures)
        ways = [row.get("elsewhere", "") for row in own]
        chosen = ", ".join(f"{way} {ways.count(way)}" for way in dict.fromkeys(ways) if way)
        seconds = " | ".join(f"{mean(row[name] for row in own):.0f}" for name in ("learn_s", "processor_s"))
        kept = [row["kept_bytes"] for row in own if "kept_bytes" in row]
        costs = f"{own[-1].get('labels', '')} | {f'{mean(kept) / 1e6:.1f}' if kept else ''}"
        settings = [f"{key}={value}" for key, value in own[0].get("model_settings", {}).items()]
        name = " ".join(filter(None, (own[0]["method"], own[0].get("model", ""), *settings)))
        lines.append(f"| {graph} | {name} | {len(own)} | {spread} | {chosen} | {costs} | {seconds} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a setting of the method")
    parser.add_argument("--model", default="", help="the method's own by default")
    parser.add_argument("--model-set", action="append", metavar="KEY=VALUE", help="a setting of the model")
    parser.add_argument("--training", action="append", metavar="KEY=VALUE", help="a setting of the training")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--first-order", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ways", action="store_true", help="also test each way that may decide where edges join tasks")
    parser.add_argument("--held-out", action="store_true", help="leave the test nodes alone: test validation nodes")
    parser.add_argument("--share", type=float, default=1.0, help="share of each graph's nodes")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    nodes = Nodes(asked.held_out, asked.share)
    if nodes != Nodes() and asked.out == RESULTS:
        parser.error("--held-out and --share test other nodes; name another folder than the results' with --out")
    if not 0 < asked.share <= 1:
        parser.error(f"--share {asked.share}: a share of the nodes is above 0 and at most 1")
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "runs.jsonl"
    parsed = (parse_settings(asked.set), asked.model, parse_settings(asked.model_set, "--model-set"))
    contender = Contender(asked.method, *parsed, parse_settings(asked.training, "--training"))
    contender.learner(0)  # raises before anything runs if it is invalid
    before = [row for row in read(path) if row.get("share", 1.0) == asked.share]
    known = {(row["graph"], row["order"], row["seed"], contender_of(row).key()) for row in before}
    orders = range(asked.first_order, asked.first_order + asked.orders)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    missing = [cell for cell in cells(asked.graphs, orders, seeds) if (*cell, contender.key()) not in known]
    failed = 0
    with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        given = contender, asked.data_root, nodes, asked.ways
        running = {pool.submit(measure, cell, *given): cell for cell in missing}
        for done in as_completed(running):
            if (error := done.exception()) is not None:
                failed += 1
                print(f"{running[done]}: {error!r}", file=sys.stderr, flush=True)
                continue
            with path.open("a") as file:
                file.write(json.dumps(done.result()) + "\n")
    written = table(sorted(read(path), key=lambda row: (GRAPHS.index(row["graph"]), row["order"], row["seed"])))
    (asked.out / "table.md").write_text(written + "\n")
    print(written)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
