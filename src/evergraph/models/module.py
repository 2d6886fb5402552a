"""Wrapper that makes any PyG-style module a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, as_dense
from evergraph.core.settings import NonNegativeInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.models.base import Form, GraphModel, unpadded
from evergraph.models.receptive_field import examples_stay_apart, measure_hops


class ModuleModel(GraphModel):
    """Wraps any PyG-style module `module(x, edge_index) -> logits` as a model.

    Parameters that require no gradient are frozen: no method changes them. Methods that learn every task from scratch
    (`joint`, `gdumb`, `puma`) redraw submodules that have `reset_parameters`, and restore everything else, such as a
    bare `nn.Parameter`, to its values before the first task.

    Args:
        module: the module; its output size is fixed, so it must cover all classes to come.
        num_hops: number of hops that its predictions depend on; by default measured, so that a mini-batch gives
            exactly the logits of the whole graph. (A batch holds the edges that enter its nodes: on a directed graph a
            module that divides by out-degrees, as ChebConv does, sees too few of them.)
    """

    def __init__(self, module: nn.Module, num_hops: NonNegativeInt | None = None) -> None:
        super().__init__()
        self.module = module
        self.num_hops = num_hops
        self.initial = nn.Module()  # values before the first task that cannot be redrawn; saved with the rest

    def hyperparameters(self) -> dict[str, Any]:
        """Return `num_hops`; the module itself is given by the user."""
        return {"num_hops": self.num_hops}

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Measure hops and store initial values; the module has its parameters (lazy ones are filled by torch)."""
        self.in_channels, self.out_channels = in_channels, out_channels
        if self.num_hops is None:
            self.num_hops = measure_hops(self.module, in_channels)
        for name, value in self._not_drawn().items():
            self.initial.register_buffer(name.replace(".", "/"), value.detach().clone())

    def _not_drawn(self) -> dict[str, Tensor]:
        """Return buffers and trainable parameters outside of all submodules that can redraw theirs."""
        parts = [part.state_dict(keep_vars=True).values() for part in self.module.modules() if _draws_anew(part)]
        drawn = {id(value) for values in parts for value in values}
        return {
            name: value
            for name, value in self.module.state_dict(keep_vars=True).items()
            if id(value) not in drawn and (value.requires_grad or not isinstance(value, nn.Parameter))
        }

    def reset_parameters(self) -> None:
        """Redraw every submodule that can; restore the rest to its values before the first task."""
        for part in self.module.modules():
            if _draws_anew(part):
                part.reset_parameters()  # type: ignore[operator]
        now = self.module.state_dict()
        for name, value in self.initial.named_buffers():
            now[name.replace("/", ".")].copy_(value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load a checkpoint's initial values too."""
        prefix_of_initial = f"{prefix}initial."
        for key, value in state_dict.items():
            if key.startswith(prefix_of_initial):
                self.initial.register_buffer(key.removeprefix(prefix_of_initial), torch.empty_like(value))
        super()._load_from_state_dict(state_dict, prefix, *more)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return the features themselves; the module does the rest."""
        assert self.num_hops is not None, "setup comes first"
        return graph.x, self.num_hops

    @capability(rests_on=("forward", "logits", "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch, as far as is known; on rows of it if examples do not mix in a trial.

        A module that makes Python wait for the device is detected when a step is watched.
        """
        exact = unpadded(batcher, form)
        return exact if not exact or form == "whole" else examples_stay_apart(self, batcher)

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"module {self.num_hops}"

    def forward(self, x: Batch | Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Return the logits of a batch's seeds; PyG-style arguments are passed to the module."""
        return x.of_chosen(self.logits(x)) if isinstance(x, Batch) else self.module(x, edge_index)

    def logits(self, batch: Batch) -> Tensor:
        """Return the module's output at the seeds."""
        out: Tensor = self.module(as_dense(batch.x), batch.edge_index)
        if self.out_channels is not None and out.size(1) < self.out_channels:
            raise EvergraphError(
                f"{type(self.module).__name__} has {out.size(1)} outputs but the stream has {self.out_channels} "
                "classes; build it with an output for every class to come"
            )
        return out[: batch.num_seeds]

    def grow(self, out_channels: int) -> None:
        """Raise an error: the output layer of a foreign module is unknown."""
        raise EvergraphError(
            f"{type(self.module).__name__} cannot grow by itself; build it with outputs for all classes to come"
        )


def _draws_anew(part: nn.Module) -> bool:
    return callable(getattr(part, "reset_parameters", None))


def as_model(model: nn.Module | Any) -> GraphModel:
    """Return the model itself, or wrap a foreign module."""
    if isinstance(model, GraphModel):
        return model
    if not isinstance(model, nn.Module):
        raise EvergraphError(f"a model is a torch module, not {type(model).__name__}; e.g. eg.GCN(hidden=256)")
    return ModuleModel(model)


def level_of(model: object) -> str:
    """Return what a model's outputs belong to; a name, None or a foreign module counts as a node-level model."""
    return model.level if isinstance(model, GraphModel) else "node"
