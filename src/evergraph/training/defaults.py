"""What a learner takes where nothing is named: its method and its device."""

from __future__ import annotations

import torch

from evergraph.errors import EvergraphError
from evergraph.methods import METHODS
from evergraph.problems import PROBLEMS, NodeClassification

DEFAULT_METHOD = "auto"
DEFAULT_FOR_A_MODEL = "stand-in-curvature"  # what protects a model of one's own where no method is named
DEFAULT_FOR_GRAPHS = "analytic"  # where examples are graphs with classes
DEFAULT_ELSEWHERE = "curvature"


def default_method(model: str | None, problem: str = NodeClassification.name) -> str:
    """The method where none is named.

    Nodes with classes: `auto`, or for a model that is not its own what protects any model. Graphs with classes: the
    closed form, with a model of its own. Elsewhere the paper's regularizer.
    """
    kind, own = PROBLEMS[problem], model is None or model == METHODS[DEFAULT_METHOD].model
    if kind.kind == "classes" and kind.level == "node":
        return DEFAULT_METHOD if own else DEFAULT_FOR_A_MODEL
    return DEFAULT_FOR_GRAPHS if kind.kind == "classes" and kind.level == "graph" and own else DEFAULT_ELSEWHERE


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in {"cpu", "cuda"} and not name.startswith("cuda:"):
        raise EvergraphError(f"unknown device {name!r}; choose one of: auto, cpu, cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EvergraphError("device cuda: this machine has no usable GPU; use --device cpu or auto")
    return torch.device(name)
