"""Runs: a stream, a method and seeds, with the results in a folder. Resumable, never half-finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evergraph.core.settings import checked
from evergraph.data import TaskStream
from evergraph.evaluation import METRICS, mean_std, summarize
from evergraph.experiments.loggers.base import Logger, Logging
from evergraph.experiments.provenance import describe_device, versions
from evergraph.experiments.run_folder import Rows, check_folder, check_same_graph, finished_result, write_new
from evergraph.experiments.seed_run import OnProgress, SeedRun, seed_is_done, task_contents
from evergraph.experiments.specification import RunSpec
from evergraph.experiments.told import other_test_nodes
from evergraph.persistence.files import make_folder, only_writer, taken_folder
from evergraph.persistence.reading import write_record
from evergraph.persistence.run_files import RESULT
from evergraph.training import Learner, pick_device
from evergraph.training.side_by_side import together
from evergraph.training.snapshot import model_name


@checked
def run(
    spec: RunSpec,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    on_seed: Callable[[int], None] | None = None,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Run a specification into a folder and return its result, which is also written to `result.json` there.

    The folder has `run.json` (the specification and the versions) from the start; for each seed
    `seed-N/matrix.json`, `seed-N/log.csv` and, until the seed is done, a checkpoint; and `result.json`
    only when everything is done. With `resume` an interrupted run continues where it stopped and reaches
    the same numbers as an uninterrupted one.

    Args:
        spec: the specification to run.
        out: the folder; a new one, or that of the same run with `resume`.
        data_root: folder of the datasets.
        resume: continue an interrupted run.
        on_progress: called after every epoch.
        on_seed: called with every seed that is done.
        loggers: additional destinations of the numbers.
    """
    folder = Path(out)
    with taken_folder(folder, lambda: check_folder(folder, spec, resume), advice="name another with --out"):
        return finish_run(spec, folder, data_root=data_root, on_progress=on_progress, on_seed=on_seed, loggers=loggers)


def finish_run(
    spec: RunSpec,
    folder: Path,
    *,
    data_root: str | Path | None = None,
    on_progress: OnProgress | None = None,
    on_seed: Callable[[int], None] | None = None,
    loggers: Sequence[Logger] = (),
    first: TaskStream | None = None,
) -> dict[str, Any]:
    """Do the rest of a run, in a folder that the caller has checked and locked.

    `first` is the stream of the first seed, if it has already been made.
    """
    if (done := finished_result(folder, spec, data_root)) is not None:
        return done
    # check all input before anything is written
    device = pick_device(spec.device)
    spec.check()
    first = first or spec.make_stream(spec.seeds[0], data_root)
    learner = spec.learner_for(first)
    with Logging(loggers) as logging:
        mark = write_new(folder, spec, first)
        logging.start(folder, {**spec.as_dict(), "hyperparameters": learner.method.hyperparameters()})

        def finish_seed(number: int, seed: int) -> dict[str, Any]:
            at_hand = number == 0 or seed_is_done(folder, seed)  # a finished seed needs no stream of its own
            tasks = first if at_hand else spec.make_stream(seed, data_root)
            check_same_graph(spec.source, tasks.graph_mark, first.graph_mark, folder)
            one = SeedRun(spec, folder / f"seed-{seed}", tasks, seed, number, on_progress, logging, mark).finish()
            if "task_classes" not in one:  # finished by an earlier version
                one["task_classes"] = task_contents(first if number == 0 else spec.make_stream(seed, data_root))
            if on_seed is not None:
                on_seed(seed)
            return one

        seeds = [partial(finish_seed, number, seed) for number, seed in enumerate(spec.seeds)]
        # loggers need one seed after another; results that are only read need no device
        in_turn = loggers or all(seed_is_done(folder, seed) for seed in spec.seeds)
        results = [seed() for seed in seeds] if in_turn else together(seeds, device)
        result = {**_result(spec, folder, first, learner, device, results), "run": mark, "graph": first.graph_mark}
        write_record(folder / RESULT, result, indent=1)
        logging.finish(result)
    return result


def run_seed(spec: RunSpec, out: str | Path, seed: int, *, data_root: str | Path | None = None) -> None:
    """Run one seed into the run's folder, for parallel processes; `finish_run` then finds it done."""
    folder, seed_folder = Path(out), Path(out) / f"seed-{seed}"
    check_folder(folder, spec, resume=True)
    spec.check()
    tasks = spec.make_stream(seed, data_root)
    spec.learner_for(tasks)
    make_folder(folder, "name another with --out")
    mark = write_new(folder, spec, tasks)
    make_folder(seed_folder)
    with only_writer(seed_folder), Logging(()) as logging:
        SeedRun(spec, seed_folder, tasks, seed, spec.seeds.index(seed), None, logging, mark).finish()


def _result(
    spec: RunSpec,
    folder: Path,
    first: TaskStream,
    learner: Learner,
    device: torch.device,
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of `result.json`."""
    metric = spec.metric or learner.problem.metric
    access = learner.method.access_at(learner.problem.level)
    classes = [result["task_classes"] for result in results]
    trained = any(result["log"] for result in results)  # a closed form has no epochs and so no training settings

    def tested(test_graph: str, matrices: list[Rows]) -> dict[str, Any]:
        scores = [result["leak"][test_graph] for result in results if test_graph in result.get("leak", {})]
        leak = {**mean_std(scores), "values": scores, "chance": 100 / len(first)} if scores else None
        reads = other_test_nodes(access, test_graph, learner.problem.level)
        return {**_measures(matrices, metric), "leak": leak, "test_nodes_read": reads}

    return {
        "stream": spec.source,
        "method": spec.method,
        "hyperparameters": learner.method.hyperparameters(),
        "model": {"name": model_name(learner.model), **learner.model.hyperparameters()},
        "protocol": {
            **first.protocol(),
            **(spec.training.protocol() if trained else {}),
            **({"pieces": spec.pieces} if spec.pieces else {}),
            "problem": learner.problem.name,
            "metric": metric,
        },
        "seeds": spec.seeds,
        **tested(first.test_graph, [result["matrix"] for result in results]),
        "also_tested": {
            name: tested(name, [result["also_tested"][name] for result in results]) for name in spec.also_test
        },
        "validation": [result["validation"] for result in results],
        "task_classes": classes[0] if all(own == classes[0] for own in classes) else [],
        "seed_task_classes": classes,
        "access": access.as_dict(),
        "kept_bytes": [result["kept_bytes"] for result in results],
        "model_bytes": [result.get("model_bytes", []) for result in results],
        "steps": [result.get("steps", []) for result in results],
        "seconds": sum(result["seconds"] for result in results),
        "device": describe_device(device),
        "versions": versions(spec),
        "run_dir": str(folder),
    }


def _measures(matrices: list[Rows], metric: str) -> dict[str, Any]:
    """All summaries of the seeds' matrices, and the matrices themselves."""
    summaries = summarize(matrices, higher_is_better=METRICS[metric].higher_is_better)
    headline = {name: {key: summaries[name][key] for key in ("mean", "std")} for name in ("ap", "af")}
    return {**headline, "metrics": summaries, "matrices": matrices}
