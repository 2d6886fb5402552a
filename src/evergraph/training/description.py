"""Description of a checkpoint, read without building the learner, so that it works for foreign models too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergraph.errors import EvergraphError, first_line
from evergraph.methods import METHODS, make_method
from evergraph.methods.access import Access
from evergraph.methods.state import count_bytes
from evergraph.persistence.checkpoint import INDEX, load_tree, read_index, read_plain
from evergraph.persistence.reading import exists
from evergraph.persistence.run_files import RUN
from evergraph.problems import PROBLEMS
from evergraph.training.card import learner_card
from evergraph.training.driver import unfinished_task
from evergraph.training.snapshot import method_title


def describe(folder: str | Path) -> dict[str, Any]:
    """Describe the learner saved in a folder as plain values, for people and for JSON."""
    folder = Path(folder)
    if not (folder / INDEX).exists() and (folder / RUN).exists():
        raise EvergraphError(f"{folder} is a run's folder, not a learner's; see `evergraph report {folder}`")
    begun = unfinished_task(folder)
    if begun and not (folder / INDEX).exists():
        raise EvergraphError(f"{folder}: its first task is not finished; go on with `evergraph learn`")
    index, tree = read_index(folder), load_tree(folder)
    try:
        records = tree.get("records") or [{} for _ in tree["history"]]
        return {
            "evergraph": tree["evergraph"],
            "format": index["format"],
            "saved": index["saved"],
            "model": {"name": tree["model"]["name"], **tree["model"]["hyperparameters"]},
            "features": tree["model"]["channels"][0],
            "scaled_columns": _scaled_columns(tree),
            "outputs": tree["model"]["channels"][1],
            "parameters": sum(value.numel() for value in tree["model"]["state"].values()),
            "method": {"name": method_title(tree["method"]), **_hyperparameters(tree["method"])},
            "method_state_bytes": count_bytes(tree["method"]["state"]),
            "problem": tree["problem"],
            "training": tree["training"],
            "seed": tree["seed"],
            "classes": tree["classes"],
            "tasks": [
                {**task, "test_accuracy": accuracy, **_told(record)}
                for task, accuracy, record in zip(tree["history"], tree["first_accuracies"], records)
            ],
            "card": learner_card(records, _access(tree["method"], tree["problem"]), tree["method"].get("state", {})),
            "in_mid_task": tree["progress"] is not None,
            "unfinished_task": begun,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise EvergraphError(f"{folder}: the checkpoint does not fit this evergraph ({first_line(error)})") from None


def problem_learned(folder: str | Path) -> str | None:
    """Name of the problem of the learner saved in a folder; None if there is no learner."""
    return read_plain(folder, "problem") if exists(Path(folder) / INDEX) else None


def _scaled_columns(tree: dict[str, Any]) -> list[str]:
    """Describe how columns are scaled, in words."""
    names, scales = tree.get("feature_names"), tree["model"]["hyperparameters"].get("scales") or []
    return [
        f"{names[column] if names else column}: "
        + (f"(x − {centre:g}) / {scale:g}" if scale else f"not read yet, {centre:g} everywhere so far")
        for column, centre, scale in scales
    ]


def _told(record: dict[str, Any]) -> dict[str, Any]:
    """The parts of a task's record that are meant for people."""
    told: dict[str, Any] = {key: record[key] for key in ("learned", "graph", "examples") if key in record}
    sizes = {"class_sizes": {str(name): size for name, size in record["classes"]}} if "classes" in record else {}
    return {**told, **sizes, "forgotten": record.get("forgotten_examples", 0)}


def _access(method: dict[str, Any], problem: str) -> Access | None:
    """What the method declares that it keeps; None if the method is not registered."""
    parts = method.get("compose", [method])
    if any(part["name"] not in METHODS for part in parts):
        return None
    level = PROBLEMS[problem].level
    return Access.union(make_method(part["name"], part["hyperparameters"]).access_at(level) for part in parts)


def _hyperparameters(method: dict[str, Any]) -> dict[str, Any]:
    if "compose" in method:
        return {f"{method_title(part)}.{k}": v for part in method["compose"] for k, v in _hyperparameters(part).items()}
    return dict(method["hyperparameters"])
