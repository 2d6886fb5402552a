"""Gradient projection memory (Saha, Garg and Roy, ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.features import as_dense, take_rows
from evergraph.core.params import Params, named_params
from evergraph.core.recording import recorded_products
from evergraph.core.settings import Bounds, NonNegative, PositiveInt
from evergraph.curvature import measuring
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, search_over
from evergraph.methods.kronecker import require_shown_layers
from evergraph.methods.projection.inner_products import inner_products, watch_first_layer
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class GPM(Method):
    """Take steps orthogonal to old tasks' inputs: if BᵀΔW = 0, a layer's output for inputs in span(B) is unchanged.

    The inputs of a layer are the rows that its weight multiplies; in a graph layer they are propagated, so a row
    covers a node and its neighbours. After each task B grows by the leading left singular vectors of the new inputs'
    component outside span(B), as few as needed for B to capture `threshold` of the inputs' squared norm. The component
    in span(B) is removed from gradients and also from steps, since Adam scales single entries, which turns a step back
    into span(B). So BᵀW keeps its value at the start of the task, whatever the optimizer, weight decay and other
    methods do.

    Parameters that multiply no rows (attention vectors) are frozen from the second task on.

    Args:
        threshold: share of the inputs' squared norm that the basis captures after the first task; 0.97 in the paper's
            ten-task runs.
        threshold_step: added to `threshold` for every later task; 0.003 there.
        samples: number of examples drawn from a task, and of rows taken from each layer's inputs, to compute the basis.
        head: `project` treats the output layer like any other, so that neither old nor new units change their output
            for old inputs; `tasks` is the paper's head per task: old classes' units are frozen, new ones are free.
    """

    name = "gpm"
    family = "projection"
    reference = "Saha, Garg and Roy: Gradient Projection Memory for Continual Learning, ICLR 2021"
    access = Access(keeps=("statistics",))
    reads_layers = True
    training = MappingProxyType({"label_scope": "seen"})
    search_space = search_over(threshold=[0.9, 0.95, 0.97, 0.99, 0.999])
    hold = ("threshold",)

    threshold: Annotated[float, Bounds(above=0, at_most=1)] = 0.97
    threshold_step: NonNegative = 0.003
    samples: PositiveInt = 300
    head: Literal["project", "tasks"] = "project"
    basis_: Params = state(dict)  # orthonormal columns, by weight; no entry for frozen parameters
    held_: Params = state(dict)  # BᵀW at the start of the task; values of frozen parameters
    num_tasks_: int = state(int)

    def start_task(self, context: Context) -> None:
        """Store what must not change during the task."""
        require_shown_layers(context, self.name, "ewc")
        now = {name: value.detach() for name, value in named_params(context.model).items()}
        if self.num_tasks_:
            self.held_ = {
                n: self.basis_[n].T @ value if n in self.basis_ else value.clone() for n, value in now.items()
            }
            if self.head == "tasks":
                name = head_name(context)
                self.basis_ = {key: basis for key, basis in self.basis_.items() if key != name}
                self.held_[name] = now[name][:, context.old].clone()

    def observe(self, step: Step) -> None:
        """Record the gradient at the first layer's output, which gives Bᵀ∇ of the first weight."""
        if self.num_tasks_:
            watch_first_layer(self, step)

    def edit_grads(self, step: Step) -> None:
        """Project the gradients: ∇ ← ∇ − B Bᵀ∇."""
        for name, value in step.context.params.items():
            if value.grad is not None and name in self.basis_ and self.num_tasks_:
                basis = self.basis_[name]
                value.grad.addmm_(basis, inner_products(step, name, basis, value.grad), alpha=-1)

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Restore the held values: W ← W − B (BᵀW − held)."""
        if not self.num_tasks_:
            return
        for name, value in step.context.params.items():
            held = self.held_[name]
            if name in self.basis_:
                basis = self.basis_[name]
                value.addmm_(basis, basis.T @ value - held, alpha=-1)
            elif held.shape == value.shape:
                value.copy_(held)
            else:
                value[:, step.context.old] = held

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: a step computes two thin matrix products per weight, twice."""
        return True

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Extend the basis of each layer by the directions that the task's inputs need."""
        share = min(self.threshold + self.threshold_step * self.num_tasks_, 1.0)
        for name, rows in layer_inputs(context, self.samples).items():
            self.basis_[name] = grown_basis(self.basis_.get(name), rows, share)
        self.num_tasks_ += 1


def layer_inputs(context: Context, samples: int) -> Params:
    """Return, by trained weight, at most `samples` of its input rows for at most `samples` training examples."""
    names = {id(value): name for name, value in context.params.items()}
    order = torch.randperm(context.num_train, generator=context.generator)[:samples].to(context.device)
    batch = context.batcher.exact().batch(context.train[order])
    with measuring(context.model, batch), recorded_products() as products:
        context.model(batch)
    found = {}
    for product in products:
        if id(product.weight) not in names:  # frozen
            continue
        chosen = torch.randperm(product.rows.size(0), generator=context.generator)[:samples].to(context.device)
        found[names[id(product.weight)]] = as_dense(take_rows(product.rows, chosen))
    return found


def grown_basis(basis: Tensor | None, rows: Tensor, share: float) -> Tensor:
    """Extend the basis by as few orthonormal columns as capture the given share of the rows' squared norm."""
    exact = rows.double()
    before = exact.new_zeros(exact.size(1), 0) if basis is None else basis.double()
    inside = (exact @ before).square().sum()
    rest = exact - (exact @ before) @ before.T
    _, values, directions = torch.linalg.svd(rest, full_matrices=False)
    needed = share * exact.square().sum() - inside
    held = values.square().cumsum(0)
    number = int((held < needed * (1 - 1e-12)).sum()) + 1 if float(needed) > 0 else 0
    number = min(number, int((values > 1e-7 * exact.norm()).sum()), exact.size(1) - before.size(1))
    if not number:
        return before.to(rows.dtype)
    columns = torch.linalg.qr(torch.cat([before, directions[:number].T], dim=1)).Q
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))  # the sign of a column is arbitrary
    return (columns * largest.sign()).to(rows.dtype).contiguous()  # as in a checkpoint: bitwise equal products


def head_name(context: Context) -> str:
    """Return the name of the weight matrix that computes the outputs."""
    with torch.no_grad(), recorded_products() as products:
        context.model(next(context.batches(1)))
    return next(name for name, value in context.model.named_parameters() if value is products[-1].weight)
