"""Defaults of a learner: its method and its device."""

from __future__ import annotations

import os

import torch

from evergraph.core.workers import workers
from evergraph.data import Graph
from evergraph.errors import EvergraphError
from evergraph.models import MODELS
from evergraph.problems import PROBLEMS, LinkPrediction, NodeClassification

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # protects a model of the user's own
DEFAULT_CLOSED_FORM = "analytic"  # graphs or links with classes, link prediction, numbers known for every example
DEFAULT_ELSEWHERE = "curvature"


def default_method(model: str | None, problem: str = NodeClassification.name, *, all_known: bool = False) -> str:
    """Return the method to use if none is named.

    Nodes with classes: `auto`, or, for a model whose blocks `auto` cannot choose, the method that protects any model.
    Graphs and links with classes, link prediction, and numbers known for every example: the closed form, with its own
    model. Otherwise, where some targets may be unknown, and for other models: the paper's regularizer.
    """
    kind = PROBLEMS[problem]
    own = model is None or (model in MODELS and hasattr(MODELS[model], "feature_layout"))
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_METHOD if own else DEFAULT_FOR_A_MODEL
    closed = kind.kind == "classes" or problem == LinkPrediction.name or (kind.kind == "numbers" and all_known)
    return DEFAULT_CLOSED_FORM if closed and own else DEFAULT_ELSEWHERE


def targets_known(graph: Graph) -> bool:
    """Whether all labels or numbers are known for every example that has any."""
    return not graph.has_classes and not bool(graph.y[graph.labelled].isnan().any())


def pick_device(name: str) -> torch.device:
    """Return the device; `auto` is CUDA if available, and each of several processes takes a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in {"cpu", "cuda"} and not name.startswith("cuda:"):
        raise EvergraphError(f"unknown device {name!r}; choose one of: auto, cpu, cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EvergraphError("device cuda: this machine has no usable GPU; use --device cpu or auto")
    if name == "cuda" and workers().size > 1:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return torch.device(name)
