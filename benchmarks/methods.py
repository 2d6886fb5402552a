"""Time of each method's training step over the plain one, on a stream's second task, with assembly and optimizer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.setting import coauthor
from benchmarks.timing import alternate
from evergraph.data.streams import TaskStream
from evergraph.methods import METHODS, make_method
from evergraph.methods.base import Method
from evergraph.models import make_model
from evergraph.training.executors import executor_for
from evergraph.training.learner import Learner
from evergraph.training.learning import make_context
from evergraph.training.optimizers import make_optimizer
from evergraph.training.step import train_step

MOST_OVER_PLAIN = 1.6  # most plain steps that a method's step may cost, unless it runs another network or graph
WITHOUT_STEPS = ("analytic", "auto")  # closed forms
SHORT: Mapping[str, Mapping[str, Any]] = {
    # work between tasks is not measured here, so it is kept short; so are phases with their own steps
    "cat": {"networks": 2},
    "puma": {"networks": 2},
    "delome": {"networks": 2},
    "tpp": {"pretrain_epochs": 0},
    "pi-gnn": {"rectify_epochs": 0},
    "hpn": {"embedding_share": 0.0},
}
FILLING: Mapping[str, int] = {"queue-curvature": 128}  # steps until a method's state has its full size
PLAIN_MODEL: Mapping[str, Mapping[str, Any]] = {"prompted-gcn": {"num_tasks": 2}}  # made by `tpp` task by task


class SecondTaskSteps:
    """Steps on the second task of a stream, one per call, executed as in the training loop."""

    def __init__(self, stream: TaskStream, method: Method, model: str, device: str, **settings: Any) -> None:
        learner = Learner(make_model(model, **settings), method, epochs=1, batch_size=128, device=device)
        learner.learn(stream[0])
        learner.classes_ = [*learner.classes_, *stream[1].class_names]
        method.adapt_model(learner.model, stream[1])
        learner.model.to(device)
        context = make_context(learner, stream[1], stream[1])
        method.start_task(context)
        if (data := method.training_data(context)) is not None:
            context = make_context(learner, data, stream[1])
        method.prepare(context)
        method.epochs(context, 1)
        learner.model.train()
        optimizer = make_optimizer(learner.model, learner.training)
        self.executor = executor_for(context, method, partial(train_step, context, method, optimizer=optimizer))
        generator = torch.Generator().manual_seed(0)
        self.seeds = context.train[torch.randperm(context.num_train, generator=generator).to(context.device)]
        self._batches = iter(())
        for _ in range(3):  # on a GPU every shape is run, watched, then captured
            for batch in self.executor.batches(self.seeds):
                self.executor.step(batch)
                if context.device.type != "cuda":
                    break
        for _ in range(FILLING.get(method.name, 0)):
            self()

    def __call__(self) -> object:
        """Take one step, starting a new epoch at the end of the last."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = self.executor.batches(self.seeds)
            batch = next(self._batches)
        return self.executor.step(batch)


def method_figures(
    stream: TaskStream,
    seconds: float,
    device: torch.device,
    on_method: Callable[[str, float], None] | None = None,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure `steps_over_plain`, a ratio for each method.

    `steps_run_besides` says what methods by definition run besides one pass; `steps_above` names the methods above
    `MOST_OVER_PLAIN` that run nothing besides.

    Args:
        stream: a stream with new classes in each task.
        seconds: time for which a method and the plain step take turns.
        device: where to measure.
        on_method: called with each method and its ratio.
        only: the methods to measure; all by default.
    """
    names = list(only) or [name for name in METHODS if name not in WITHOUT_STEPS]
    ratios: dict[str, float] = {}
    eager: dict[str, str] = {}
    for model in dict.fromkeys(METHODS[name].model for name in names):
        plain = SecondTaskSteps(stream, Method(), model, device.type, **PLAIN_MODEL.get(model, {}))
        for name in (name for name in names if METHODS[name].model == model):
            steps = SecondTaskSteps(stream, make_method(name, SHORT.get(name, {})), model, device.type)
            found = alternate({"plain": plain, "method": steps}, seconds=seconds, device=device)
            ratios[name] = found["method"] / found["plain"]
            if on_method is not None:
                on_method(name, ratios[name])
            if device.type == "cuda" and (how := steps.executor.how()) != "captured":
                eager[name] = how
    besides = {name: more for name in names if (more := make_method(name).besides)}
    above = [name for name, ratio in ratios.items() if ratio > MOST_OVER_PLAIN and name not in besides]
    found = {"steps_over_plain": ratios, "steps_run_besides": besides, "steps_above": above}
    return found | ({"steps_eager": eager} if eager else {})


def gpu_method_figures(stream: TaskStream, seconds: float, device: torch.device) -> dict[str, Any]:
    """The same on a GPU, with the prefix `gpu_`."""
    return {f"gpu_{name}": value for name, value in method_figures(stream, seconds, device).items()}


def main() -> None:
    """Measure and print the table, method by method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="all by default")
    parser.add_argument("--data-root", help="folder of the datasets")
    parser.add_argument("--seconds", type=float, default=4.0, help="for which a method and the plain step take turns")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    graph, which = coauthor(asked.data_root)
    print(which)

    def show(name: str, ratio: float) -> None:
        print(f"{name:24s}{ratio:6.2f}  {make_method(name).besides}", flush=True)

    method_figures(TaskStream(graph, 3), asked.seconds, torch.device("cpu"), show, asked.methods)


if __name__ == "__main__":
    main()
