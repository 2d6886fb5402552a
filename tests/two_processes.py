"""What processes do together, compared with what one does alone. Started by test_distributed.py.

Each writes one JSON object: for each name the largest difference, relative to 1 + |value|, or an error.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import evergraph as eg
import test_conformance as conformance
from evergraph.core import shared_memory
from evergraph.core.features import as_dense
from evergraph.core.shared_memory import MemoryFile
from evergraph.core.workers import ConnectionLostError, Workers, join_workers, workers
from evergraph.data.datasets.sbm import sbm
from evergraph.data.parts import read_parts, task_of_parts, write_parts
from evergraph.errors import EvergraphWarning
from evergraph.models import parts as models_parts
from evergraph.models import random_features
from evergraph.models.parts import propagated
from evergraph.training import epoch_end
from evergraph.training.executors import divided
from evergraph.training.member import Progress
from test_problems_end_to_end import SMALL, STREAMS

torch.set_num_threads(1)


class Normalized(nn.Module):
    """A foreign module whose outputs depend on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = pyg.GCNConv(5, 4), nn.BatchNorm1d(4), pyg.GCNConv(4, 6)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x, edge_index)).relu(), edge_index)
        return out


def plain(method: str = "curvature", model: eg.GraphModel | nn.Module | None = None, **more: object) -> eg.Learner:
    settings = {**conformance.PROTOCOL, **more}
    return eg.Learner(model or eg.GCN(hidden=5), method, dtype=torch.float64, **settings)


def foreign(make: Callable[[], nn.Module]) -> eg.ModuleModel:
    """A module that was made outside, with the same parameters every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return eg.ModuleModel(make())


def on_stream(make: Callable[[], eg.Learner], tasks: int = 2) -> Callable[[], eg.Learner]:
    return lambda: conformance.learned(make(), tasks)


def resumed() -> eg.Learner:
    """Stopped in the middle of the second task, and loaded again."""
    learner = conformance.learned(plain(), 1)

    class StoppedError(Exception):
        pass

    def stop(progress: Progress, epochs: int) -> None:
        raise StoppedError

    with contextlib.suppress(StoppedError):
        learner.learn(conformance.tasks(learner)[1], stop)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(folder)
        again = eg.Learner.load(folder, device="cpu")
    for task in conformance.tasks(again)[1:]:
        again.learn(task)
    return again


def on_problem(name: str) -> eg.Learner:
    """Examples are nodes, graphs or links, with classes, labels or numbers."""
    settings = {**SMALL, "batch_size": 9, "epochs": 1}
    of = eg.Learner(eg.GCN(hidden=4), "curvature", problem=name, dtype=torch.float64, **settings)
    return of.fit(STREAMS[name]())


def method(name: str, tasks: int) -> Callable[[], eg.Learner]:
    make = conformance.SUITE[name]
    return on_stream(lambda: conformance.learner(make(), "gcn", dtype=torch.float64, epochs=1), tasks)


VARIANTS = {f"method {name}": method(name, 3) for name in conformance.SUITE}
"""Every method and its variants, on a task more."""
OF_EVERY_KIND = ("joint", "curvature", "stand-in-curvature", "ewc", "si", "kfac", "lwf", "twp", "ema", "reservoir",
                 "gem", "gpm", "pi-gnn", "tpp", "hpn", "cat", "analytic", "auto")  # fmt: skip
"""Methods that do different things in a step, at a task's start or at its end; all of them are among the variants."""
CASES: dict[str, Callable[[], eg.Learner]] = {
    **{f"method {name}": method(name, 2) for name in OF_EVERY_KIND},
    # where a gradient is zero but for rounding, Adam divides it by its own size; SGD does not
    "model gat": on_stream(lambda: plain(model=eg.GAT(hidden=4, heads=2), optimizer="sgd", reduction="mean")),
    "model sage": on_stream(lambda: plain(model=eg.GraphSAGE(hidden=4))),
    "model gin": on_stream(lambda: plain("ewc", eg.GIN(hidden=4))),
    "model foreign": on_stream(lambda: plain("mas", foreign(lambda: pyg.GCN(5, 4, 2, 6)))),
    "model normalized by batch": on_stream(lambda: plain("finetune", foreign(Normalized))),
    "last batch of one": on_stream(lambda: plain(batch_size=3)),
    "batches of one": on_stream(lambda: plain("ewc", batch_size=1, epochs=1)),
    "full batch, mean, early stopping": on_stream(lambda: plain("lwf", batch_size=0, reduction="mean", patience=1)),
    "class balanced": on_stream(lambda: plain("ema+ewc", class_balanced=True)),
    **{f"problem {name}": partial(on_problem, name) for name in STREAMS},
    "resumed": resumed,
}
DRAWS: dict[str, Callable[[], eg.Learner]] = {
    "dropout": on_stream(lambda: plain("ewc", eg.GCN(hidden=5, dropout=0.5))),
    "sampled neighbours": on_stream(lambda: plain("finetune", fan_out=(2, 2))),
}
"""Shares draw numbers of their own, so the result is another one; but all processes have the same."""


def values(learner: eg.Learner) -> list[torch.Tensor]:
    same = learner.problem.level == "node" and learner.model.in_channels == conformance.GRAPH.num_features
    logits = learner.logits(conformance.GRAPH) if same else torch.zeros(1)
    state = learner.method.state_dict()
    counts = torch.tensor(numbers(state), dtype=torch.float64)
    return [*learner.model.state_dict().values(), *conformance.tensors(state), counts, logits]


def numbers(state: object) -> list[float]:
    """The plain numbers in a state: counts, sizes, choices."""
    if isinstance(state, dict):
        return [number for value in state.values() for number in numbers(value)]
    if isinstance(state, (list, tuple)):
        return [number for value in state for number in numbers(value)]
    return [float(state)] if isinstance(state, (bool, int, float)) else []


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    assert [tensor.shape for tensor in one] == [tensor.shape for tensor in other]
    gaps = [((a.double() - b.double()).abs() / (1 + a.double().abs())).max() for a, b in zip(one, other) if a.numel()]
    return float(torch.stack(gaps).max())


ALIKE = sbm(nodes=203, classes=6, degree=4, features=7, signal=3.0, seed=1)
LARGE = ALIKE.altered(x=ALIKE.x * torch.tensor([1, 1000, 1, 1e-3, 1, 8, 1]) + torch.tensor([0, 0, 99, 0, 0, 290, 0]))
WEIGHTED = LARGE.altered(
    adjacency=LARGE.adjacency.with_values(
        torch.rand(LARGE.adjacency.nnz, generator=torch.Generator().manual_seed(2)).add_(0.5)
    )
)
"""The same graph with weights that are others from node to node and back."""


CLOSED_FORMS: dict[str, Callable[[], tuple[eg.GraphModel, eg.Method]]] = {
    "analytic": lambda: (eg.RandomFeatures(hidden=20), eg.Analytic()),
    "auto": lambda: (eg.MixedFeatures(hidden=42), eg.Auto()),
}


def closed_form(method: str, tasks: Iterable[eg.Task]) -> eg.Learner:
    learner = eg.Learner(*CLOSED_FORMS[method](), dtype=torch.float64, device="cpu")
    for task in tasks:
        learner.learn(task)
    return learner


def names_of_tasks() -> list[list[eg.data.ClassName]]:
    return [LARGE.class_names[:2], LARGE.class_names[2:]]


def one_process(method: str, graph: eg.Graph, folder: Path) -> list[torch.Tensor]:
    """The graph as a whole, too large for its features to be kept: its propagated features, its head, its outputs."""
    write_parts(graph, folder, 5)
    whole = graph.altered(splits=read_parts(folder)[0].splits)
    at_hand, random_features.AT_HAND = random_features.AT_HAND, 0
    learner = closed_form(method, (eg.Task.of(whole, names) for names in names_of_tasks()))
    head, outputs = learner.model.head.detach(), learner.logits(graph)
    random_features.AT_HAND = at_hand
    return [features_of(learner, whole), head, outputs]


def features_of(learner: eg.Learner, graph: eg.Graph) -> torch.Tensor:
    """What is propagated, side by side."""
    assert isinstance(learner.model, eg.RandomFeatures)
    found = propagated(graph, learner.model.propagated_inputs(), torch.float64, learner.model.input_scaling())
    return torch.cat([as_dense(features) for features in found], dim=1)


def in_parts(method: str, folder: Path) -> tuple[list[torch.Tensor], int]:
    """The same graph in five parts, one to three of them in a process; and the bytes that were sent."""
    graph, own = read_parts(folder)
    assert len(own) < 5
    learner = closed_form(method, (task_of_parts(graph, names, i) for i, names in enumerate(names_of_tasks())))
    outputs = learner.outputs(graph, torch.arange(graph.num_nodes))
    assert graph.rows is not None

    def whole(own: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(LARGE.num_nodes, own.size(1), dtype=own.dtype)
        rows[graph.rows.start : graph.rows.start + graph.num_nodes] = own
        return workers().sum([rows])[0]

    features = whole(features_of(learner, graph))
    return [features, learner.model.head.detach(), whole(outputs)], graph.cache["bytes_sent"]


def on_machines(*ranks: list[int]) -> Callable[[Workers], tuple[list[list[int]], type[MemoryFile]]]:
    """As if the processes were on several machines."""
    return lambda group: (list(ranks), MemoryFile)


def refuse(*ranks: int) -> Callable[..., None]:
    """A call that fails in some processes, and does nothing in the others."""

    def call(*_: object) -> None:
        if workers().rank in ranks:
            raise OSError(errno.ENOSPC, "No space left on device")

    return call


WAYS: dict[str, tuple[object, str, object]] = {
    "shared": (shared_memory, "FOLDER", "/nowhere"),
    "shared by name": (shared_memory.MemoryFile, "_open", refuse(0, 1, 2)),
    "sent": (shared_memory, "fast", lambda name: False),
    "no memory to share": (shared_memory.os, "posix_fallocate", refuse(1)),
    "two machines": (shared_memory, "machines", on_machines([0, 1], [2])),
    "two machines in turn": (shared_memory, "machines", on_machines([0, 2], [1])),
}
"""How rows get from one process to the others: what is replaced by what, so that they do."""


ONE_EACH = {"analytic": [("plain", "shared")], "auto": [("weighted", "two machines")]}
"""By method: graphs and ways besides those that the weighted graph goes by."""
FEWER_WAYS = {
    "analytic": [*ONE_EACH["analytic"], ("plain", "two machines in turn")],
    "auto": [*ONE_EACH["auto"], ("plain", "shared"), ("weighted", "sent")],
}
"""Likewise, more of them."""


def parts(folder: Path, fewer_ways: dict[str, list[tuple[str, str]]]) -> dict[str, list[float]]:
    """A graph without weights, and one with, over as many processes as there are, by every way.

    Of each the largest difference of features, the largest of heads and outputs, bytes sent and lines said.
    """
    graphs = {"plain": LARGE, "weighted": WEIGHTED}
    cases = {f"{method} {name}": (method, name) for method in CLOSED_FORMS for name in graphs}
    asked = {"analytic plain", "analytic weighted"} | {
        f"{how} {name}" for how in fewer_ways for name, _ in fewer_ways[how]
    }
    cases = {case: cases[case] for case in cases if case in asked}
    alone = {}
    if os.environ["RANK"] == "0":
        alone = {case: one_process(how, graphs[name], folder / case) for case, (how, name) in cases.items()}
    alone = join_workers().everywhere(alone)
    models_parts.COLUMNS_AT_ONCE, models_parts.COLUMNS_SHOWN = 3, 4  # of seven
    found = {"weights": [difference(alone["analytic plain"], alone["analytic weighted"])]}
    tried = [("analytic weighted", way) for way in WAYS]
    tried += [(f"{method} {graph}", way) for method in CLOSED_FORMS for graph, way in fewer_ways[method]]
    for case, way in tried:
        owner, attribute, other = WAYS[way]
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", EvergraphWarning)
            patch.setattr(owner, attribute, other)
            together, sent = in_parts(cases[case][0], folder / case)
        gaps = [difference(alone[case][:1], together[:1]), difference(alone[case][1:], together[1:])]
        found[f"{way}, {case}"] = [*gaps, sent, sum(line.category is EvergraphWarning for line in said)]
    return found


def compare(folder: Path, cases: dict[str, Callable[[], eg.Learner]]) -> dict[str, float | str]:
    """Every case alone, in the first process, then together in both."""
    alone = {name: values(make()) for name, make in cases.items()} if os.environ["RANK"] == "0" else {}
    group, seen = join_workers(), []
    alone = group.everywhere(alone)
    own = divided.DividedBatch.own
    divided.DividedBatch.own = lambda batch: (seen.append((batch.num_own, batch.num_examples)), own(batch))[1]  # type: ignore[method-assign,func-returns-value]
    found: dict[str, float | str] = {}
    for name, make in cases.items():
        seen.clear()
        try:
            found[name] = difference(alone[name], values(make()))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        found[f"{name}: share"] = sum(mine for mine, _ in seen) / max(sum(all_ for _, all_ in seen), 1)
    for name, make in DRAWS.items():
        mine = values(make())
        first = group.everywhere([tensor.clone() for tensor in mine])
        found[name] = difference(mine, first)
    return found


def lose(folder: Path) -> dict[str, str]:
    """The second process stops answering."""
    group = join_workers(timeout=timedelta(seconds=3))
    if group.rank:
        time.sleep(60)
    try:
        group.sum([torch.ones(3)])
    except ConnectionLostError as error:
        return {"said": str(error)}
    return {"said": ""}


def stop(folder: Path) -> dict[str, int]:
    """Early stopping where the second process rounds validation losses in another way: to other decisions."""
    group = join_workers(timeout=timedelta(seconds=30))
    calls = itertools.count()
    losses = epoch_end.losses_of
    with pytest.MonkeyPatch.context() as patch:
        if group.rank:
            patch.setattr(epoch_end, "losses_of", lambda *given: losses(*given) + next(calls))
        learner = conformance.learned(plain("finetune", patience=1, epochs=5, lr=1e-4), 1)
    return {"epochs": learner.history[0]["epochs"]}


def main(what: str, folder: Path) -> None:
    """One of the processes."""
    whats = {"compare": partial(compare, cases=CASES), "variants": partial(compare, cases=VARIANTS)}
    whats |= {"parts": partial(parts, fewer_ways=ONE_EACH), "parts in more ways": partial(parts, fewer_ways=FEWER_WAYS)}
    report = {**whats, "lose": lose, "stop": stop}[what](folder)
    (folder / f"{workers().rank}.json").write_text(json.dumps(report))
