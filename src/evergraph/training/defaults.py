"""What a learner takes where nothing is named: its method and its device."""

from __future__ import annotations

import os

import torch

from evergraph.core.workers import workers
from evergraph.errors import EvergraphError
from evergraph.models import MODELS
from evergraph.problems import PROBLEMS, LinkPrediction, NodeClassification

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # what protects a model of one's own where no method is named
DEFAULT_CLOSED_FORM = "analytic"  # where examples are graphs or links with classes, or pairs that are linked or not
DEFAULT_ELSEWHERE = "curvature"


def default_method(model: str | None, problem: str = NodeClassification.name) -> str:
    """The method where none is named.

    Nodes with classes: `auto`, or for a model that it cannot choose blocks of what protects any model. Graphs and links
    with classes, and links to predict: the closed form, with a model of its own. Elsewhere, where some targets may not
    be known, and for other models the paper's regularizer.
    """
    kind = PROBLEMS[problem]
    own = model is None or (model in MODELS and hasattr(MODELS[model], "feature_layout"))
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_METHOD if own else DEFAULT_FOR_A_MODEL
    all_known = kind.kind == "classes" or problem == LinkPrediction.name
    return DEFAULT_CLOSED_FORM if all_known and own else DEFAULT_ELSEWHERE


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
