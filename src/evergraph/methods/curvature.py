"""The paper's method: regularization with an unbiased online approximation of the full Fisher matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from evergraph.curvature import (
    add_sums,
    apply_output_fisher,
    class_sums,
    forward,
    in_mode,
    mean_batch,
    pick_labels,
    regularizer,
    require_deterministic,
    score,
)
from evergraph.errors import EvergraphError, one_of
from evergraph.methods.base import Context, Method, Step, state
from evergraph.methods.ema import average_with
from evergraph.params import Direction, Displacement, Params, copy_params


@dataclass(repr=False)
class OnlineCurvature(Method):
    """strength/2 Σ_{t<τ} (θ−θ_t)ᵀ F(θ) (θ−θ_t), F the full Fisher matrix at the current θ.

    With D = Σ_t (θ − θ_t) and u_v = J_v D, the gradient is Jᵀc with c_v = strength · H_v u_v: a cotangent
    on the logits, so loss and regularizer share one backward pass. Only Σ_t θ_t is stored, whatever the
    number of tasks. The curvature is held constant when differentiating, as the paper says.

    The paper takes F over the current batch. Those nodes are of the new task; what the old tasks' nodes
    lose is not in it. With nodes="means" F is taken over the mean features of each class learned so far, each
    weighed by its number of nodes: with the label scope `seen` that is what keeps old classes, and what is
    stored for it is one row of features a class.

    Args:
        strength: λ; 0.1 in the paper.
        estimator: `exact` (expectation over labels in closed form; recommended), `sampled` (one label drawn
            a node: the paper's equation «Ours»), `queue` (one gradient a step, M kept: Algorithm 1).
        nodes: `batch` takes F over the nodes of the step (the paper), `means` over the means of the old classes.
        queue_size: M of the queue; 128 in the paper.
        ema: β of the moving average after each task; 0 turns it off (the paper's ablation).
        point: where between θ_t and θ the Fisher is evaluated: 1 is the paper's θ, 0 is EWC's θ_t. Below 1
            every anchor is kept and each costs a product of its own.
        over_tasks: `sum-of-squares` (equation «Ours») has the gradient F D, `square-of-sum` (the batch loss
            and Algorithm 1) has (τ−1) F D.
        over_nodes: `loss` reduces the regularizer over nodes as the loss is reduced; `sum` (equation
            «Ours») and `mean` (the queue divides by |Q|) fix it. The queue always takes the mean unless
            `sum` is asked for.
        anchors: `stored` uses θ_1 … θ_{τ−1}; `previous` uses θ_0 … θ_{τ−2}, as the batch loss writes; `latest`
            uses θ_{τ−1} alone, so that nothing pulls back to a time when later classes were unknown. By
            default `stored` with the batch, `latest` with the means.
        queue_rule: `text` holds at most M gradients; `algorithm` pops only when more than M are held
            before a push, so it can hold M+1.
    """

    name = "curvature"
    family = "Fisher, full, online"
    reference = "Yin, Sun and Wu: Unbiased Online Curvature Approximation for Regularized Graph Continual Learning"

    strength: float = 0.1
    estimator: str = "exact"
    nodes: str = "batch"
    queue_size: int = 128
    ema: float = 0.5
    point: float = 1.0
    over_tasks: str = "sum-of-squares"
    over_nodes: str = "loss"
    anchors: str = ""
    queue_rule: str = "text"
    anchor_sum_: Params = state(dict)
    num_anchors_: int = state(int)
    previous_: Params = state(dict)  # θ_{t−1}, for the moving average and for anchors="previous"
    anchor_list_: list[Params] = state(list)  # for point < 1 alone
    queue_: Params = state(dict)  # a ring of gradients, one row each
    pushed_: int = state(int)
    class_sums_: Params = state(dict)  # for nodes="means" alone: [Σ x, number of nodes] by output unit

    def __post_init__(self) -> None:
        one_of("estimator", self.estimator, ("exact", "sampled", "queue"))
        one_of("over_tasks", self.over_tasks, ("sum-of-squares", "square-of-sum"))
        one_of("over_nodes", self.over_nodes, ("loss", "sum", "mean"))
        one_of("nodes", self.nodes, ("batch", "means"))
        self.anchors = self.anchors or {"batch": "stored", "means": "latest"}[self.nodes]
        one_of("anchors", self.anchors, ("stored", "previous", "latest"))
        one_of("queue_rule", self.queue_rule, ("text", "algorithm"))
        if self.queue_size < 1:
            raise EvergraphError(f"curvature: queue_size={self.queue_size} must be at least 1")
        if not 0 <= self.ema < 1:
            raise EvergraphError(f"curvature: ema={self.ema} must be at least 0 and below 1")
        if not 0 <= self.point <= 1:
            raise EvergraphError(f"curvature: point={self.point} must lie between 0 (θ_t) and 1 (θ)")
        if self.nodes == "means" and (self.estimator == "queue" or self.point < 1):
            raise EvergraphError("curvature: nodes=means needs estimator=exact or sampled, and point=1")
        if self.point < 1 and self.estimator == "queue":
            raise EvergraphError(
                "curvature: the queue's gradients are taken at θ; use estimator=exact or sampled with point<1"
            )
        if self.point < 1 and self.over_tasks == "square-of-sum":
            raise EvergraphError("curvature: over_tasks=square-of-sum needs one Fisher for all tasks; use point=1")

    def grow(self, before: Params, after: Params) -> None:
        """The new units' anchors are their present values."""
        anchors = {name: value * self.num_anchors_ for name, value in after.items()}
        for name, total in self.anchor_sum_.items():
            anchors[name][tuple(slice(size) for size in total.shape)] = total
        self.anchor_sum_ = anchors if self.anchor_sum_ else {}
        super().grow(before, after)

    # one task

    def start_task(self, context: Context) -> None:
        """An empty queue; a model without randomness."""
        self.queue_, self.pushed_ = {}, 0
        if self.anchors == "previous" and not self.num_anchors_:
            self.previous_ = copy_params(context.model)  # θ_0
        if self.strength:
            require_deterministic(context.model, next(context.batches()), training=True)

    def end_task(self, context: Context) -> None:
        """Average the parameters over tasks, then add the result to the anchors."""
        if self.ema and self.num_anchors_:
            average_with(context.model, self.previous_, self.ema)
        now = copy_params(context.model)
        anchor = self.previous_ if self.anchors == "previous" else now
        if self.ema or self.anchors == "previous":
            self.previous_ = now
        if self.anchors == "latest":
            self.anchor_list_, self.anchor_sum_, self.num_anchors_ = [], {}, 0
        if self.point < 1:
            self.anchor_list_ = [*self.anchor_list_, anchor]
        else:
            self.anchor_sum_ = {name: value + self.anchor_sum_.get(name, 0) for name, value in anchor.items()}
        self.num_anchors_ += 1
        self.queue_, self.pushed_ = {}, 0
        if self.nodes == "means":
            units = context.neighbourhoods.y.cpu()
            new = class_sums(context.task.graph.x, units, context.task.train).to(next(iter(now.values())).dtype)
            self.class_sums_ = {"x": add_sums(self.class_sums_.get("x"), new)}

    # one step

    @property
    def active(self) -> bool:
        """Whether there is anything to hold on to."""
        return bool(self.num_anchors_) and self.strength != 0

    def scale(self, num_nodes: int, reduction: str) -> float:
        """The factor on a sum over nodes of H u: strength and the readings of the sums over tasks and nodes."""
        tasks = self.num_anchors_ if self.over_tasks == "square-of-sum" else 1
        mean = (reduction if self.over_nodes == "loss" else self.over_nodes) == "mean"
        return self.strength * tasks / (num_nodes if mean else 1)

    def displacement(self, context: Context) -> Displacement:
        """D = Σ_t (θ − θ_t), from the running sum of anchors alone."""
        return Displacement(context.params, self.num_anchors_, self.anchor_sum_)

    def directions(self, context: Context) -> list[Direction]:
        """D, for the estimators that need J D."""
        if not self.active or self.estimator == "queue" or self.nodes == "means" or self.point < 1:
            return []
        return [self.displacement(context)]

    def logit_cotangent(self, step: Step) -> Tensor | None:
        """c_v = strength · H_v J_v D over the label scope."""
        if not step.tangents:
            return None
        tangent = step.tangents[0][:, step.context.classes]
        pulled = apply_output_fisher(
            step.scoped_logits.detach(), tangent, self._labels, generator=step.context.generator
        )
        return step.widen(self.scale(step.batch.num_seeds, step.context.reduction) * pulled)

    @property
    def _labels(self) -> str:
        return "exact" if self.estimator == "exact" else "sample"

    def penalty(self, step: Step) -> Tensor | None:
        """The regularizer at the class means; the queue's new entry, while the step's graph is alive."""
        if self.active and self.nodes == "means":
            return self._pull_at_means(step)
        if self.active and self.estimator == "queue":
            self._push(step)
        return None

    def _pull_at_means(self, step: Step) -> Tensor:
        """A term whose gradient at the means' logits is n_c · strength · H_c J_c D, n_c the nodes of class c.

        n_c is weighed as the classification loss is: an epoch counts every old node once.
        """
        context = step.context
        sums = self.class_sums_["x"]
        if sums not in context.cache:
            context.cache[sums] = mean_batch(context.model, sums, context.classes.device)
        batch, counts = context.cache[sums]
        with in_mode(context.model, training=False):  # pseudo-nodes shall not move a layer's running statistics
            logits, (tangent,) = forward(context.model, batch, [self.displacement(context)])
        scoped, moved = logits[:, context.classes], tangent[:, context.classes]
        pulled = apply_output_fisher(scoped.detach(), moved, self._labels, generator=context.generator)
        share = step.batch.num_seeds / context.num_train
        weight = self.scale(step.batch.num_seeds, context.reduction) * share * counts
        return (scoped * (weight.unsqueeze(1) * pulled)).sum()

    def _push(self, step: Step) -> None:
        """The gradient of one random node's sampled log-likelihood, into the queue."""
        generator, params = step.context.generator, step.context.params
        node = int(torch.randint(step.batch.num_seeds, (1,), generator=generator))
        logits = step.scoped_logits.detach()[node : node + 1]
        cotangent = torch.zeros_like(step.logits)
        cotangent[node, step.context.classes] = score(logits, pick_labels(logits, "sample", generator=generator))[0]
        grads = torch.autograd.grad(step.logits, list(params.values()), cotangent, retain_graph=True, allow_unused=True)
        # Algorithm 1 pops before a push when more than M are held: M+1 after the push
        capacity = self.queue_size + (1 if self.queue_rule == "algorithm" else 0)
        for (name, value), grad in zip(params.items(), grads):
            if name not in self.queue_:
                self.queue_[name] = value.detach().new_zeros(capacity, *value.shape)
            self.queue_[name][self.pushed_ % capacity] = 0 if grad is None else grad
        self.pushed_ += 1

    def edit_grads(self, step: Step) -> None:
        """For the queue and for points before θ: add the regularizer's gradient itself."""
        if not self.active or (self.estimator != "queue" and self.point == 1):
            return
        pull = self._queue_gradient(step) if self.estimator == "queue" else self._gradient_between(step)
        for name, value in step.context.params.items():
            value.grad = pull[name] if value.grad is None else value.grad.add_(pull[name])

    def _queue_gradient(self, step: Step) -> Params:
        """strength / |Q| Σ_q (g_q · D) g_q."""
        displacement = self.displacement(step.context)
        held = min(self.pushed_, next(iter(self.queue_.values())).size(0))
        scale = self.scale(held, "mean")  # the queue's own equation divides by |Q|, however the loss is reduced
        rows = {name: gradients[:held].flatten(1) for name, gradients in self.queue_.items()}
        inner = torch.stack([rows[name] @ displacement[name].flatten() for name in rows]).sum(0)  # g_q · D
        return {name: (scale * inner @ rows[name]).view_as(displacement[name]) for name in rows}

    def _gradient_between(self, step: Step) -> Params:
        """strength Σ_t F(θ̄_t)(θ − θ_t) with θ̄_t = θ_t + point (θ − θ_t)."""

        def scoped_logits(given: Params) -> Tensor:
            logits: Tensor = functional_call(step.model, given, (step.batch,))
            return logits[:, step.context.classes]

        _, gradient = regularizer(
            scoped_logits, step.context.params, self.anchor_list_,
            point=self.point, labels=self._labels, generator=step.context.generator,
        )  # fmt: skip
        scale = self.scale(step.batch.num_seeds, step.context.reduction)
        return {name: scale * value for name, value in gradient.items()}
