"""Conversion of a learner to a tree of plain values and tensors and back, for `Learner.save` and `Learner.load`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evergraph.core.capabilities import capable
from evergraph.errors import EvergraphError, first_line
from evergraph.methods import METHODS, Compose, Method, make_method
from evergraph.methods.state import with_tensors
from evergraph.models import MODELS, GraphModel, as_model, make_model
from evergraph.training.member import Progress
from evergraph.training.settings import Training
from evergraph.version import __version__

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


def learner_state(learner: Learner) -> dict[str, Any]:
    """Return everything that the learner's future depends on."""
    progress = None if learner.progress is None else learner.progress.state()  # brings the model up to date
    return {
        "evergraph": __version__,
        "torch": torch.__version__,
        "model": {
            "name": model_name(learner.model),
            "hyperparameters": learner.model.hyperparameters(),
            "channels": [learner.model.in_channels, learner.model.out_channels],
            "state": dict(learner.model.state_dict()),
            "frozen": [name for name, value in learner.model.named_parameters() if not value.requires_grad],
        },
        "method": {**learner.method.description(), "state": learner.method.state_dict()},
        "problem": learner.problem.name,
        "training": asdict(learner.training),
        "classes": learner.classes_,
        "num_classes": learner.num_classes,
        "num_tasks": learner.num_tasks,
        "first_accuracies": learner.first_accuracies,
        "history": learner.history,
        "records": learner.records,
        "feature_names": learner.feature_names,
        "notes": learner.notes,
        "seed": learner.seed,
        "dtype": None if learner.dtype is None else str(learner.dtype).removeprefix("torch."),
        "random_state": learner.random_state,
        "method_random_state": learner.generator.get_state(),
        "optimizer": learner.optimizer_state,
        "progress": None if progress is None else {**progress, "task_mark": learner.task_mark},
    }


def restore(
    kind: type[Learner],
    path: str | Path,
    tree: dict[str, Any],
    model: nn.Module | None,
    method: Method | None,
    device: str,
) -> Learner:
    """Rebuild the learner that a tree describes; the caller's model and method take the place of unknown ones."""
    try:
        saved = tree["model"]
        built = _make_model(saved) if model is None else as_model(model)
        chosen = _make_method(tree["method"]) if method is None else _same_method(tree["method"], method)
        training, problem = Training(**tree["training"]), tree["problem"]
        dtype = None if tree.get("dtype") is None else getattr(torch, tree["dtype"])
        learner = kind(built, chosen, training, problem=problem, device=device, dtype=dtype, seed=tree["seed"])
        if saved["channels"][0] is not None:
            _fill(learner.model, saved)
            learner.model.to(learner.device)
        learner.method.load_state_dict(_to_device(tree["method"]["state"], learner.device))
        for name in ("num_classes", "num_tasks", "notes"):
            setattr(learner, name, tree[name])
        for name in ("first_accuracies", "history"):
            setattr(learner, name, list(tree[name]))
        learner.records = list(tree.get("records") or ({"mark": "", "tested": {}} for _ in tree["history"]))
        learner.classes_, learner.feature_names = list(tree["classes"]), tree.get("feature_names")
        learner.random_state = tree["random_state"]
        learner.optimizer_state = _to_device(tree["optimizer"], learner.device)
        learner.generator.set_state(tree["method_random_state"])
        if tree["progress"] is not None:
            progress = _to_device(tree["progress"], learner.device)
            learner.task_mark = progress.pop("task_mark")
            learner.progress = Progress(**progress)
    except EvergraphError as error:
        raise EvergraphError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, RuntimeError, IndexError, AssertionError) as error:
        raise EvergraphError(f"{path}: the checkpoint does not fit this evergraph ({first_line(error)})") from None
    return learner


def model_name(model: GraphModel) -> str:
    """The model's registered name, else the name of its class; for a wrapped module, of the module's class."""
    model = model.encoder
    return MODELS.name_of(type(model)) or type(getattr(model, "module", model)).__name__


def method_title(described: dict[str, Any]) -> str:
    """Title of a method from its description: `curvature`, or `ewc+ema` for a composed one."""
    if "compose" in described:
        return "+".join(method_title(part) for part in described["compose"])
    return str(described["name"])


def _make_model(saved: dict[str, Any]) -> GraphModel:
    if saved["name"] not in MODELS:
        raise EvergraphError(
            f"its model {saved['name']} is not evergraph's own; load the file that registers it with --plugin FILE.py, "
            "or pass Learner.load(path, model=…)"
        )
    return make_model(saved["name"], **saved["hyperparameters"])


def _make_method(saved: dict[str, Any]) -> Method:
    if "compose" in saved:
        return Compose(*(_make_method(part) for part in saved["compose"]))
    if saved["name"] not in METHODS:
        raise EvergraphError(
            f"its method {saved['name']!r} is unknown; load the file that registers it with --plugin FILE.py, or pass "
            "Learner.load(path, method=…)"
        )
    return make_method(saved["name"], saved["hyperparameters"])


def _same_method(saved: dict[str, Any], method: Method) -> Method:
    """Return the caller's method if it is the saved one (hyper-parameters may differ); raise otherwise."""
    wanted = method_title(saved)
    if wanted != method.title:
        raise EvergraphError(f"it was learned with method {wanted!r}, which {method.title!r} cannot go on with")
    return method


def _fill(model: GraphModel, saved: dict[str, Any]) -> None:
    """Give a model the saved size, dtype and parameters."""
    if model.in_channels is None:
        model.setup(*saved["channels"])
    if [model.in_channels, model.out_channels] != saved["channels"]:
        sizes = [model.in_channels, model.out_channels]
        raise EvergraphError(f"its model has {saved['channels']} inputs and outputs, the one given {sizes}")
    for load in (capable(model, "set_width"), capable(model, "set_scaling")):
        if load is not None:
            load(saved["hyperparameters"])  # may have been chosen or measured, so the caller's model may not have it
    state = saved["state"]
    types = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(types) == 1:
        model.to(types.pop())
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]) or first_line(error)
        raise EvergraphError(f"its parameters do not fit the model {model_name(model)} ({reason[:160]})") from None
    for name in saved.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)


def _to_device(tree: Any, device: torch.device) -> Any:
    """Move the tensors of a tree to a device."""
    return with_tensors(tree, lambda tensor: tensor.to(device))
