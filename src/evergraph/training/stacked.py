"""Stacked training: the parameters of several jobs side by side in single tensors, and one step for all of them.

The seeds of a run train on one graph, each on its own nodes, in its own order and from its own initial parameters. So
do runs whose settings differ only in what steps do not read, such as the decay of a moving average after a task, or in
factors, such as a strength. A step for all of them takes as many kernels as a step for one, only wider: one pass over
the graph with all weights side by side (`vmap` over the loop's own objective), one backward pass, one optimizer. Each
job reaches the same result as when trained alone, to float tolerance.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from evergraph.core.capabilities import capable
from evergraph.core.features import Features
from evergraph.core.finite import nan_unless_finite
from evergraph.core.params import Params
from evergraph.core.pulled import pull_back
from evergraph.core.randomness import drawing_for
from evergraph.core.settings import is_zero
from evergraph.core.shortcuts import fast, full_precision
from evergraph.core.sparse import SparseMatrix
from evergraph.core.workers import workers
from evergraph.data.batching import Batch
from evergraph.methods.base import STEP_HOOKS, Context, Method, Step
from evergraph.models.base import GraphModel
from evergraph.models.fixed_products import given_rows
from evergraph.training.adam import pulled_while_moving
from evergraph.training.executors import cuda_graphs
from evergraph.training.executors.recording import RecordingExecutor
from evergraph.training.executors.whole import is_small, rows_needed
from evergraph.training.member import Member, OptimizerState
from evergraph.training.settings import Training

DEVICES = frozenset({"cuda"})  # where one step for all members is faster than a step for each
WIDER = 4  # a pass over the whole task may read at most this many times the rows of padded batches

Objective = Callable[[Context, Method, Batch], tuple[Tensor, Tensor, Step]]
"""The loop's objective: returns the value that a step minimizes, the loss of each example, and the step."""


def may_be_stacked(model: GraphModel, method: Method, settings: Training) -> bool:
    """Whether training can be stacked, as far as that is known before there is a task."""
    by_model = capable(model, "steps_can_be_stacked")
    declared = all(capable(part, "steps_can_be_stacked") is not None for part in method.parts())
    watched = settings.patience or settings.average_last  # these need the parameters after each epoch
    able = declared and by_model is not None and bool(by_model())
    return able and fast("stack") and not (watched or settings.class_balanced or settings.fan_out)


def sort_of(member: Member) -> Hashable | None:
    """Key that members must share to be stacked; None for one that must be trained alone."""
    context, method, settings = member.context, member.method, member.settings
    model, batcher = context.model, context.batcher
    begun = member.progress.epoch or member.progress.optimizer is not None
    if context.device.type not in DEVICES or workers().size > 1 or begun:
        return None
    frozen = len(context.params) < len(list(model.parameters()))
    if frozen or not may_be_stacked(model, method, settings):
        return None
    claim = capable(method, "steps_can_be_stacked")
    if claim is None or not claim(context):
        return None
    graph = context.task.graph
    if graph.on_disk or graph.rows is not None or not _one_pass_pays(context) or len(method.directions(context)) > 1:
        return None
    scope = () if context.problem.scope is None else tuple(context.problem.scope.tolist())
    marks = tuple(_mark(part) for part in (batcher.x, batcher.operator, batcher.y))
    state = [[_shape(getattr(part, name)) for name in part.step_state] for part in method.parts()]
    settled = (settings, member.epochs, context.num_train, scope, marks)
    return (*stacking_key(model, method), str(state), _shapes(model), *settled)


def stacking_key(model: GraphModel, method: Method) -> tuple[Hashable, ...]:
    """The part of `sort_of` that is known before there is a task: the model, and what steps run and read."""
    hooks = (_hooks(method), *(_steps_of(part) for part in method.parts()))
    return (type(model), str(model.hyperparameters()), *hooks)


def _hooks(method: Method) -> tuple[Any, ...]:
    return tuple(getattr(type(method), hook) for hook in STEP_HOOKS)


def _steps_of(part: Method) -> Hashable:
    """What the steps of one part run and read: the class and all settings, unless the class declares which it reads."""
    settings, own = part.hyperparameters(), vars(type(part))
    if (read := own.get("step_settings")) is None:
        return type(part), str(settings)
    fixed = {name: settings[name] for name in read if name not in _factors(part)}
    ours = type(part).__module__.startswith("evergraph.")  # other classes may override what our hooks call
    zero = tuple(is_zero(settings[name]) for name in _factors(part))
    return _hooks(part) if ours else type(part), part.step_state, str(fixed), zero


def _factors(part: Method) -> tuple[str, ...]:
    """The `step_factors` that the part's own class declares."""
    declared: tuple[str, ...] = vars(type(part)).get("step_factors", ())
    return declared


def _one_pass_pays(context: Context) -> bool:
    """Whether one pass over the whole task costs no more than its batches."""
    batcher, size = context.batcher, context.batch_size
    if size is None:
        return True
    padded = size * batcher.operator.nnz // max(batcher.operator.num_rows, 1)
    return is_small(batcher) and (isinstance(batcher.x, SparseMatrix) or batcher.operator.num_rows <= WIDER * padded)


def _mark(features: Features) -> int:
    """A checksum of a matrix."""
    mark = 0
    parts = (features,) if isinstance(features, Tensor) else features.parts()
    for part in parts:
        mark = zlib.crc32(part.detach().cpu().contiguous().numpy().data, mark)
    return mark


def _shapes(model: nn.Module) -> tuple[Any, ...]:
    return tuple((name, tuple(value.shape), value.dtype) for name, value in model.named_parameters())


def _shape(value: Any) -> Any:
    """Replace the tensors of a state tree by their shapes, which must agree between stacked members."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return tuple(value.shape) if isinstance(value, Tensor) else value


# Matrices are stacked along their second dimension, so that the columns of all members form one wide matrix, uncopied.


def _dim(value: Tensor) -> int:
    """Dimension along which members are stacked, given one member's tensor."""
    return 1 if value.dim() > 1 else 0


def _stacked(values: list[Any]) -> Any:
    """Stack trees of tensors into one tree; entries that are not tensors are equal in all trees."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [_stacked(list(items)) for items in zip(*values)]
    return torch.stack(values, _dim(first)) if isinstance(first, Tensor) else first


def _dims(value: Any) -> Any:
    """Dimension along which members are stacked, for each tensor of a member's tree."""
    if isinstance(value, dict):
        return {key: _dims(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dims(item) for item in value]
    return _dim(value) if isinstance(value, Tensor) else None


def _member_of(value: Any, dims: Any, number: int) -> Any:
    """Copy one member's tree out of the stacked one."""
    if isinstance(value, dict):
        return {key: _member_of(item, dims[key], number) for key, item in value.items()}
    if isinstance(value, list):
        return [_member_of(item, dim, number) for item, dim in zip(value, dims)]
    return value.select(dims, number).clone() if isinstance(value, Tensor) else value


class Stack(nn.Module):
    """The stacked parameters of several members, and the stacked state that their steps read.

    Args:
        members: members with the same key (`sort_of`).
    """

    def __init__(self, members: list[Member]) -> None:
        super().__init__()
        self.members = members
        first = members[0]
        self.context, self.method = first.context, first.method
        params = [member.context.params for member in members]
        self.names = list(params[0])
        self.dims = {name: _dim(params[0][name]) for name in self.names}
        stacked = (torch.stack([own[name].detach() for own in params], self.dims[name]) for name in self.names)
        self.side_by_side = nn.ParameterList(map(nn.Parameter, stacked))
        self.nodes = torch.cat([member.context.train for member in members]).unique()
        self.whole = self.context.batcher.batch(self.nodes).for_many_steps()
        self.needed = rows_needed(self.context, self.whole, len(members))
        for member in members:
            member.method.for_many_steps(member.context, self.whole)
        self.state, self.state_dims = self._states()
        self.standing = self._standing()
        own = [member.device_numbers for member in members]
        self.generators = [generator for generator in own if generator is not None]

    def values(self) -> Params:
        """Stacked parameters by name."""
        return dict(zip(self.names, self.side_by_side))

    def _states(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Stacked state that the steps of each part of the method read, and the dimensions it is stacked along."""
        states, dims = [], []
        for parts in zip(*(member.method.parts() for member in self.members)):
            differing = [name for name in _factors(parts[0]) if len({getattr(part, name) for part in parts}) > 1]
            owned = [part.stacked_state(differing, self.side_by_side[0]) for part in parts]
            states.append(_stacked(owned))
            dims.append(_dims(owned[0]))
        return states, dims

    def _standing(self) -> Tensor | None:
        """Products that stay constant during the task, stacked; None if there are none."""
        claim, products = capable(self.context.model, "standing_product"), list[Tensor]()
        for member in self.members:
            for direction in member.method.directions(member.context):
                product = None if claim is None else claim(self.whole, direction)
                products += [] if product is None else [product]
        return torch.stack(products, 1) if products else None

    def objective(self, of_one: Objective, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Objective and summed loss of each member, over its own rows of one shared pass.

        Args:
            of_one: the loop's objective, for one member.
            rows: `(members, examples)`.
        """

        def of_member(
            params: Params, state: list[dict[str, Any]], standing: Tensor | None, chosen: Tensor, wanted: Tensor
        ) -> tuple[Tensor, Tensor]:
            with self._as_one(params, state), given_rows(standing):
                value, per_example, _ = of_one(
                    self.context, self.method, self.whole.choose(chosen, wanted, self.needed)
                )
                return value, nan_unless_finite(value, per_example.detach().sum())

        if self.needed is not None:
            self.needed.mark(rows)
        wanted = self.whole.y.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        dims = (self.dims, self.state_dims, None if self.standing is None else 1, 0, 0)
        with drawing_for(self.generators) if self.generators else nullcontext():
            found: tuple[Tensor, Tensor] = torch.vmap(of_member, dims)(
                self.values(), self.state, self.standing, rows, wanted
            )
        return found

    def edit_grads(self, losses: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Call the method's hook once, with everything stacked, unless the optimizer does its work during its step."""
        with full_precision(self.context.device), self._as_one(self.values(), self.state):
            if not pulled_while_moving(self.context, self.method, optimizer):
                self.method.edit_grads(Step(self.context, self.whole, losses, losses))

    @contextmanager
    def _as_one(self, params: Params, state: list[dict[str, Any]]) -> Iterator[None]:
        """Within this context, the first member's model and method have the given parameters and state."""
        with ExitStack() as put_back:
            put_back.enter_context(with_parameters(self.context.model, params))
            for part, own in zip(self.method.parts(), state):
                put_back.callback(vars(part).update, {name: getattr(part, name) for name in own})
                vars(part).update(own)
            yield

    def taken_out(self, optimizer: torch.optim.Optimizer) -> Callable[[int], OptimizerState]:
        """Return a function that copies a member's current parameters to its model and returns its optimizer state."""

        @torch.no_grad()
        def take_out(number: int) -> OptimizerState:
            member = self.members[number]
            own, state = member.context.params, OptimizerState()
            for part, stacked, dims in zip(member.method.parts(), self.state, self.state_dims):
                for name in part.step_writes:
                    setattr(part, name, _member_of(stacked[name], dims[name], number))
            for name, value in self.values().items():
                dim = self.dims[name]
                own[name].copy_(value.select(dim, number))
                kept = optimizer.state.get(value, {})
                if kept and all(part is not None for part in kept.values()):
                    state[name] = {
                        key: (part.select(dim, number) if part.dim() else part).clone() for key, part in kept.items()
                    }
            return state

        return take_out


@contextmanager
def with_parameters(model: GraphModel, params: Mapping[str, Tensor]) -> Iterator[None]:
    """Within this context, the model's parameters are replaced by the given tensors."""
    split = [name.rpartition(".") for name in params]
    places: list[tuple[dict[str, Any], str]] = [
        (model.get_submodule(owner)._parameters, leaf) for owner, _, leaf in split
    ]
    before = [owner[leaf] for owner, leaf in places]
    try:
        for (owner, leaf), value in zip(places, params.values()):
            owner[leaf] = value
        yield
    finally:
        for (owner, leaf), parameter in zip(places, before):
            owner[leaf] = parameter


class StackedExecutor(RecordingExecutor):
    """Steps all members at once, on rows of one pass over the examples of all of them; captured on a GPU.

    Args:
        stack: the members.
        optimizer: updates the stack's parameters.
        objective: the loop's objective, for one member.
    """

    stacked = True

    def __init__(self, stack: Stack, optimizer: torch.optim.Optimizer, objective: Objective) -> None:
        super().__init__(stack.context, lambda batch: batch.y.sum())
        self.stack, self.optimizer, self.objective = stack, optimizer, objective
        if stack.generators:
            self.capture = lambda step: cuda_graphs.cuda_graph_of(step, stack.generators)
        context, nodes = stack.context, stack.nodes
        self._row = torch.full((context.batcher.y.size(0),), -1, dtype=torch.long, device=context.device)
        self._row[nodes] = torch.arange(nodes.numel(), device=context.device)
        self._rows: dict[int, Tensor] = {}  # the buffer that the recorded step of each size reads rows from

    def batches(self, seeds: Tensor) -> Iterator[Tensor]:
        """Rows of the shared pass, `(members, examples)`: all, in each task's own order, or consecutive pieces."""
        if self.context.batch_size is None:
            seeds = torch.stack([member.context.train for member in self.stack.members])
        return iter(torch.split(self._row[seeds], self.context.batch_size or max(seeds.size(1), 1), dim=1))

    def step(self, batch: Tensor) -> Tensor:
        """Take one step for all members, captured once it is warm; returns the summed loss of each."""
        size = batch.size(1)
        if size not in self._rows:
            self._rows[size] = torch.empty_like(batch)
        rows = self._rows[size].copy_(batch)
        return self.replay(size, lambda: partial(self._step_of, rows)) if self.captures else self._step_of(rows)

    def _step_of(self, rows: Tensor) -> Tensor:
        values, losses = self.stack.objective(self.objective, rows)
        self.optimizer.zero_grad(set_to_none=True)
        pull_back(values.sum())
        self.stack.edit_grads(losses, self.optimizer)
        self.optimizer.step()
        return losses

    def how(self) -> str:
        """How steps were carried out, and for how many members at once."""
        return f"{super().how()}, {len(self.stack.members)} as one"
