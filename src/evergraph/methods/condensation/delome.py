"""DeLoMe (Niu, Pang and Chen, ECAI 2024): replay of lossless synthetic nodes, with a debiased loss."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from evergraph.core.capabilities import capability
from evergraph.core.settings import NonNegative, PositiveInt
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, search_over
from evergraph.methods.class_shares import adjusted
from evergraph.methods.condensation.condensed_memory import CondensedMemory
from evergraph.methods.memory import ReplayMethod, Weighting
from evergraph.methods.memory.condensation import GradientMatching


@METHODS.register
@dataclass(repr=False)
class DeLoMe(CondensedMemory, ReplayMethod):
    """Replay synthetic nodes that yield the same gradients as a task's nodes, with logits adjusted by frequencies.

    At the end of a task its training nodes are condensed: under random networks, the gradient of each class's mean
    cross entropy is matched between synthetic and real nodes (`GradientMatching`). They are replayed with the far more
    numerous nodes of later tasks, so the loss reads z_c + debiasing · log(π_c), π_c the share of class c in all that is
    trained on (see `logit-adjustment`).

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: synthetic nodes per class if `memory` is empty.
        networks: random networks drawn for each task; 800 in its paper.
        updates: steps of the synthetic nodes under each network; 1 in its paper.
        width: hidden units of a random network; 256 in its paper.
        condensation_lr: Adam's learning rate on the features of the synthetic nodes, in standard deviations of
            each feature.
        start: initial features of a synthetic node: those of a random training node, `propagated` to the depth of the
            model, or the node's own `features`, as in its paper.
        strength: factor on the loss of the replayed nodes; 0 is fine-tuning, without debiasing.
        weighting: weight of replayed nodes relative to the task's, as for `reservoir`; its paper uses `examples` (each
            counts 1).
        replay_size: synthetic nodes drawn from the memory at each step; 0 uses all of them.
        debiasing: τ, factor on the logarithm of the shares; 0 for none, 1 in its paper.
    """

    name = "delome"
    reference = "Niu, Pang and Chen: Graph Continual Learning with Debiased Lossless Memory Replay, ECAI 2024"
    training = MappingProxyType(
        {"label_scope": "seen", "batch_size": 0, "epochs": 100, "lr": 5e-3, "weight_decay": 5e-4, "reduction": "mean"}
    )
    search_space = search_over(strength=(0.1, 10.0), condensation_lr=(3e-3, 0.3), debiasing=[0.0, 0.5, 1.0, 1.5])
    matching = GradientMatching

    updates: PositiveInt = 1
    width: PositiveInt = 32
    weighting: Weighting = "examples"
    debiasing: NonNegative = 1.0

    def loss_outputs(self, context: Context, outputs: Tensor) -> Tensor:
        """Adjust the outputs by how often each class is trained on."""
        return adjusted(context, outputs, self.debiasing) if self.strength else outputs

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True, as for replay: the adjustment is one addition."""
        return True
