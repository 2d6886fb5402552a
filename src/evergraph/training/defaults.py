"""What a learner takes where nothing is named: its method and its device."""

from __future__ import annotations

import os

import torch

from evergraph.core.workers import workers
from evergraph.data import Graph
from evergraph.errors import EvergraphError
from evergraph.models import MODELS
from evergraph.problems import PROBLEMS, LinkPrediction, NodeClassification

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # what protects a model of one's own where no method is named
DEFAULT_CLOSED_FORM = "analytic"  # graphs or links with classes, pairs that are linked or not, numbers that are known
DEFAULT_ELSEWHERE = "curvature"


def default_method(model: str | None, problem: str = NodeClassification.name, *, all_known: bool = False) -> str:
    """The method where none is named.

    Nodes with classes: `auto`, or for a model that it cannot choose blocks of what protects any model. Graphs and links
    with classes, links to predict, and numbers that are known of every example: the closed form, with a model of its
    own. Elsewhere, where some targets may not be known, and for other models the paper's regularizer.
    """
    kind = PROBLEMS[problem]
    own = model is None or (model in MODELS and hasattr(MODELS[model], "feature_layout"))
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_METHOD if own else DEFAULT_FOR_A_MODEL
    closed = kind.kind == "classes" or problem == LinkPrediction.name or (kind.kind == "numbers" and all_known)
    return DEFAULT_CLOSED_FORM if closed and own else DEFAULT_ELSEWHERE


def targets_known(graph: Graph) -> bool:
    """Whether all columns of labels or numbers are known of every example that has any."""
    return not graph.has_classes and not bool(graph.y[graph.labelled].isnan().any())


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; of several processes together each takes a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in {"cpu", "cuda"} and not name.startswith("cuda:"):
        raise EvergraphError(f"unknown device {name!r}; choose one of: auto, cpu, cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EvergraphError("device cuda: this machine has no usable GPU; use --device cpu or auto")
    if name == "cuda" and workers().size > 1:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return torch.device(name)
