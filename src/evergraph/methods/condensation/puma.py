"""PUMA (Liu et al., 2023): CaT with unlabelled nodes, wide encoders, and training from scratch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from evergraph.core.settings import Fraction, NonNegativeInt, PositiveInt
from evergraph.curvature import in_mode
from evergraph.methods.base import METHODS, Context, search_over
from evergraph.methods.condensation.cat import CaT
from evergraph.methods.memory import Piece, Replayed
from evergraph.models.base import NODES_AT_ONCE, GraphModel

PSEUDO_LABEL_LR = 5e-3  # of the network that assigns pseudo-labels


@METHODS.register
@dataclass(repr=False)
class PUMA(CaT):
    """CaT that also condenses unlabelled nodes, with few wide encoders and a model trained from scratch at every task.

    A task is condensed twice. After the first time a network is trained on the memory; where it is confident, its
    prediction becomes the label of an unlabelled node, and the synthetic nodes are optimized to match these nodes too.
    Pseudo-labels are assigned to nodes of the task's graph that are neither training *nor test* nodes: unlabelled
    nodes and validation nodes, whose own labels are not read.

    Args:
        memory: the budget of the whole memory: `2MB` or a number of bytes, or `1%` of the nodes met so far.
        per_class: synthetic nodes per class if `memory` is empty.
        networks: random encoders drawn for each task, both times.
        updates: steps of the synthetic nodes under each encoder.
        width: hidden units of an encoder; 4,096 in its paper.
        condensation_lr: Adam's learning rate on the features of the synthetic nodes, in standard deviations of
            each feature.
        start: initial features of a synthetic node: those of a random training node, `propagated` to the depth of the
            model, or the node's own `features`, as in its paper.
        from_scratch: reset the parameters at every task.
        pseudo_label_epochs: training epochs of the network that assigns pseudo-labels; 0 for no pseudo-labels.
        confidence: minimum probability at which its prediction is used.
    """

    name = "puma"
    reference = (
        "Liu et al.: PUMA: Efficient Continual Graph Learning for Node Classification with Graph Condensation, 2023"
    )
    training = MappingProxyType(
        {"label_scope": "seen", "batch_size": 0, "epochs": 200, "lr": 1e-3, "weight_decay": 5e-4, "reduction": "mean"}
    )

    search_space = search_over(condensation_lr=(3e-3, 0.3), networks=[0, 10, 40], confidence=[0.5, 0.7, 0.9])

    networks: NonNegativeInt = 10
    updates: PositiveInt = 10
    width: PositiveInt = 512
    from_scratch: bool = True
    pseudo_label_epochs: NonNegativeInt = 100
    confidence: Fraction = 0.9

    def collect(self, context: Context) -> Piece:
        """Condense the task by its labels, then also by pseudo-labels."""
        labelled = super().collect(context)
        nodes = unlabelled(context)
        if not self.pseudo_label_epochs or not nodes.numel():
            return labelled
        teacher = self.teacher(context, [*self.pieces(), labelled])
        nodes, pseudo_labels = self.pseudo_labelled(context, teacher, nodes)
        mine = torch.isin(pseudo_labels, labelled.units)  # nodes pseudo-labelled as an old class are of no use here
        real = self.seen_as(context, torch.cat([context.task.train, nodes[mine]]))
        real_units = torch.cat([self.units(context), pseudo_labels[mine]])
        assert isinstance(labelled.x, Tensor)
        return self.condensed(context, labelled.x, labelled.units, real, real_units)

    def teacher(self, context: Context, pieces: list[Piece]) -> GraphModel:
        """Train a network like the model from scratch on the memory."""
        model = copy.deepcopy(context.model)
        model.start_over()
        memory = Replayed.of(context, pieces, self.class_sizes_)
        batch = memory.batch
        optimizer = torch.optim.Adam(model.parameters(), lr=PSEUDO_LABEL_LR)
        with in_mode(model, training=True):
            for _ in range(self.pseudo_label_epochs):
                optimizer.zero_grad()
                memory.problem.loss(model(batch), batch.y).mean().backward()
                optimizer.step()
        return model.eval()

    @torch.no_grad()
    def pseudo_labelled(self, context: Context, teacher: GraphModel, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes at which the teacher is confident, and its predicted classes."""
        batches = context.batcher.exact().batches(nodes.to(context.device), NODES_AT_ONCE)
        outputs = torch.cat([teacher(batch).cpu() for batch in batches])
        best = context.problem.probabilities(outputs, range(context.num_seen)).max(1)
        sure = best.values >= self.confidence
        return nodes[sure], best.indices[sure]


def unlabelled(context: Context) -> Tensor:
    """Return the nodes of the task's graph that are neither training nor test nodes, of this task or an earlier one."""
    task = context.task
    free = torch.ones(task.graph.num_nodes, dtype=torch.bool)
    if task.joined:  # other nodes with a label are earlier tasks'
        free = ~task.graph.labelled
        free[task.val] = True
    free[torch.cat([task.train, task.test])] = False
    return torch.nonzero(free).reshape(-1)
