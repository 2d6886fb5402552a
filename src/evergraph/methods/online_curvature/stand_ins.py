"""The curvature regularizer at stand-ins for the old nodes, which are gone."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.params import Params
from evergraph.curvature import apply_output_fisher
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Replay, Step
from evergraph.methods.online_curvature.anchors import AnchoredCurvature, labels_of
from evergraph.methods.online_curvature.class_means import add_sums, class_sums, mean_batch
from evergraph.methods.state import state


@METHODS.register
@dataclass(repr=False)
class StandInCurvature(AnchoredCurvature):
    """F summed over the mean features of each class learned so far, each weighed by its number of nodes.

    The nodes of the current batch are of the new task; what the old tasks' nodes lose is not in their F. With the
    label scope `seen`, F at stand-ins is what keeps old classes; one row of features per class is kept for it.

    Args:
        strength: λ.
        over_tasks: as for `batch-curvature`.
        over_nodes: as for `batch-curvature`.
        anchors: `latest` uses θ_{τ−1} alone, so that nothing pulls back to a time when later classes were unknown;
            `stored` and `previous` as for `batch-curvature`.
        estimator: as for `batch-curvature`.
    """

    name = "stand-in-curvature"
    access = Access(keeps=("parameters", "prototypes"), old_labels=True)
    training = MappingProxyType({"label_scope": "seen", "weight_decay": 0.0})
    measures_while_training = False  # stand-ins are seen in evaluation mode

    strength: float = 10.0
    anchors: str = "latest"
    estimator: str = "exact"
    class_sums_: Params = state(dict)  # [Σ x, number of nodes] by output unit

    def __post_init__(self) -> None:
        super().__post_init__()
        labels_of(self.estimator)

    def end_task(self, context: Context) -> None:
        """Add the task's nodes to the sums of their classes."""
        super().end_task(context)
        graph, units = context.task.graph, context.batcher.y.cpu()
        dtype = next(context.model.parameters()).dtype
        new = class_sums(graph.x, units, context.task.train).to(dtype)
        self.class_sums_ = {"x": add_sums(self.class_sums_.get("x"), new)}

    def replay(self, step: Step) -> list[Replay]:
        """The stand-ins, with the cotangent n_c · strength · H_c J_c D at class c's, n_c its number of nodes.

        n_c is weighed as the loss is: an epoch counts every old node once.
        """
        if not self.active:
            return []
        context, sums = step.context, self.class_sums_["x"]
        if sums not in context.cache:
            context.cache[sums] = mean_batch(context.problem, context.model, sums, context.device)
        batch, counts = context.cache[sums]
        share = step.batch.num_seeds / context.num_train
        weight = self.scale(step.batch.num_seeds, context.reduction) * share * counts

        def cotangent(outputs: Tensor, tangents: list[Tensor]) -> Tensor:
            labels = labels_of(self.estimator)
            pulled = apply_output_fisher(context.problem, outputs, tangents[0], labels, generator=context.generator)
            return weight.unsqueeze(1) * pulled

        return [Replay(batch, directions=[self.displacement(context)], cotangent=cotangent, training=False)]

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Drawn labels come from a generator on the CPU."""
        return self.estimator == "exact"
