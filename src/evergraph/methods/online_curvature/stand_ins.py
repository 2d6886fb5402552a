"""The curvature regularizer evaluated at stand-ins for the old nodes, which are no longer available."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.params import Params
from evergraph.core.settings import NonNegative, NonNegativeInt
from evergraph.curvature import apply_output_fisher
from evergraph.data.batching import Batch
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Replay, Step, search_over
from evergraph.methods.online_curvature.anchors import AnchoredCurvature, Anchors, labels_of
from evergraph.methods.online_curvature.class_means import add_sums, class_sums, mean_batch
from evergraph.methods.online_curvature.prototypes import add_prototypes, prototype_sums
from evergraph.methods.propagation import tell_if_summed
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class StandInCurvature(AnchoredCurvature):
    """F summed over stand-ins for the old nodes: Σ_s n_s J_sᵀ H_s J_s, n_s the number of nodes that s stands for.

    The nodes of the current batch are of the new task, so their F does not cover what the old tasks' nodes lose. With
    the label scope `seen`, F at stand-ins is what preserves old classes. A stand-in's only neighbour is a copy of
    itself. Its features are the mean over a class learned so far, or over a cluster of it: one row of features is kept
    for each, which the paper counts as replay.

    Args:
        strength: λ.
        over_tasks: as for `batch-curvature`.
        over_nodes: as for `batch-curvature`.
        anchors: `latest` uses only θ_{τ−1}, so that nothing pulls back to a time when later classes were unknown;
            `stored` and `previous` as for `batch-curvature`.
        estimator: `exact` and `sampled` as for `batch-curvature`, with H_s at the current parameters. `integrated`
            averages H_s over the path of the stand-in's outputs since the anchor, from z_s − J_s D to z_s:
            H̄_s J_s D = p(z_s) − p(z_s − J_s D). To second order in D the three agree. But H_s, and with it the pull
            back, vanishes if a stand-in is assigned to a new class with certainty; H̄_s does not.
        prototypes: 0 uses one stand-in per class, the mean of its nodes' features. k ≥ 1 uses k prototypes per
            class: the centres of k-means over the training nodes' features, propagated with GCN's Ã as many steps as
            the model has layers (for other models, hops). A class with fewer nodes keeps each of them. New examples
            of an old class change its mean, or add prototypes of their own.
        from_memory: use the examples in the memory of the replay method that this one is composed with
            (`ssm+curvature`); no stand-in is kept here. The training nodes of a class are divided equally among its
            examples.
    """

    name = "stand-in-curvature"
    besides = "the graph of stand-ins"
    levels = ("node",)
    kinds = ("classes",)
    training = MappingProxyType({**AnchoredCurvature.training, "label_scope": "seen"})
    search_space = search_over(strength=(1e-1, 1e6))
    measures_while_training = False  # stand-ins are run in evaluation mode

    strength: NonNegative = 10.0
    anchors: Anchors = "latest"
    estimator: Literal["exact", "sampled", "integrated"] = "exact"
    prototypes: NonNegativeInt = 32
    from_memory: bool = False
    stand_ins_: Params = state(dict)  # x: [Σ x, number of nodes] per output unit, or per prototype with units

    def __post_init__(self) -> None:
        if self.estimator == "integrated" and self.anchors != "latest":
            raise EvergraphError(
                f"{self.name}: estimator=integrated goes along the way from one anchor; use anchors=latest"
            )

    @property
    def access(self) -> Access:  # type: ignore[override]
        """What is kept here; a memory is declared by the method that keeps it."""
        return Access(("parameters",)) if self.from_memory else Access(("parameters", "prototypes"), old_labels=True)

    def start_task(self, context: Context) -> None:
        """Raise if stand-ins are to come from a memory and there is none."""
        super().start_task(context)
        if self.from_memory and context.capability_of_a_part("stand_ins") is None:
            raise EvergraphError(
                f"{self.name}: there is no memory to take stand-ins from; compose it with a replay method, e.g. "
                "--method ssm+curvature --set nodes=memory"
            )
        if not self.from_memory:
            tell_if_summed(context.model, "stand-ins have one neighbour each", "use gcn, sage or gat")

    def end_task(self, context: Context) -> None:
        """Add the task's anchor, and its nodes to the class sums or their clusters to the prototypes."""
        super().end_task(context)
        if self.from_memory:
            return
        if self.prototypes:
            self.stand_ins_ = add_prototypes(self.stand_ins_, prototype_sums(context, self.prototypes))
            return
        graph, units = context.task.graph, context.batcher.y.cpu()
        dtype = next(context.model.parameters()).dtype
        new = class_sums(graph.x, units, context.task.train).to(dtype)
        self.stand_ins_ = {"x": add_sums(self.stand_ins_.get("x"), new)}

    def replay(self, step: Step) -> list[Replay]:
        """Return the stand-ins, with the cotangent n_s · strength · H_s J_s D at s, n_s its number of nodes.

        n_s is weighted as the loss is: an epoch counts every old node once.
        """
        if not self.active:
            return []
        context = step.context
        batch, counts = self.examples(context)
        share = step.batch.num_examples / context.num_train
        weight = self.scale(step.batch.num_examples, context.reduction) * share * counts

        def cotangent(outputs: Tensor, tangents: list[Tensor]) -> Tensor:
            if self.estimator == "integrated":
                return weight.unsqueeze(1) * context.problem.mean_fisher_product(outputs, tangents[0])
            labels = labels_of(self.estimator)
            pulled = apply_output_fisher(context.problem, outputs, tangents[0], labels, generator=context.generator)
            return weight.unsqueeze(1) * pulled

        return [Replay(batch, directions=[self.displacement(context)], cotangent=cotangent, training=False)]

    def examples(self, context: Context) -> tuple[Batch, Tensor]:
        """Return the stand-ins, and how many nodes each stands for."""
        if self.from_memory:
            memory = context.capability_of_a_part("stand_ins")
            assert memory is not None
            found: tuple[Batch, Tensor] = memory(context)
            return found
        sums = self.stand_ins_["x"]
        if sums not in context.cache:
            context.cache[sums] = mean_batch(context.problem, context.model, sums, context.device)
        made: tuple[Batch, Tensor] = context.cache[sums]
        return made

    @capability(rests_on=("examples",))
    def own_stand_ins(self, context: Context) -> tuple[Batch, Tensor] | None:
        """Return the stand-ins as `examples` does; None if there are none, or they come from a memory."""
        return self.examples(context) if self.stand_ins_ else None

    @capability(rests_on=(*STEP_HOOKS, "further_examples"))
    def steps_depend_on(self, context: Context) -> list[Any] | None:
        """Return an empty list while the regularizer is inactive, else None."""
        return None if self.active else []

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: drawn labels come from the device's own random numbers."""
        return True
