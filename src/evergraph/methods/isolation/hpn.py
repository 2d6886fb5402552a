"""Hierarchical prototype networks (Zhang, Song and Tao, TPAMI 2022): how their prototypes are created and trained."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, No, capability, capable
from evergraph.core.features import with_ones
from evergraph.core.settings import BelowOne, Bounds, NonNegative
from evergraph.core.shortcuts import fast
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, View, search_over
from evergraph.methods.state import state
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.models.held_atoms import Match
from evergraph.models.prototype_network import LEVELS, PrototypeNetwork


@METHODS.register
@dataclass(repr=False)
class HPN(Method):
    """Match atoms, nodes and classes to the nearest prototype, and create a new prototype if none is near.

    After the first part of a task's epochs, after each step, an embedding whose cosine with every prototype of its
    level is below 1 − threshold becomes a prototype itself, and the head learns from matched prototypes. The loss is
    the head's cross entropy on prototypes

        + cross entropy of a head on the embeddings + distance · Σ_levels mean ‖embedding − matched prototype‖²
        + diversity · mean squared cosine between the columns of different extractors.

    The first mean is over a node's atoms; on the other levels a node has one embedding. The extractors and the
    prototypes of earlier tasks are frozen, so that old nodes keep matching the same prototypes. For every atom
    prototype it is recorded which classes matched it, and with which atom.

    Args:
        prediction: `prototypes` predicts the class c with the largest Σ_i max cos(a_i, p), over a node's atoms a_i and
            the prototypes p that nodes of c matched with their i-th atom; `head` is the paper's linear head on matched
            prototypes, which a new task's classes overwrite unless the task is known.
        extractors: `random` ones serve all tasks; those of the `first-task` learn to classify it, and are then frozen.
            The paper's code trains some for every task and is told the task at prediction time.
        threshold: minimum distance (1 − cosine) from all prototypes at which an embedding becomes one; 0.2 in the
            paper's code.
        embedding_share: share of a task's epochs before prototypes are created; 35 of 90 there.
        distance: weight of the distance to matched prototypes.
        diversity: weight of the similarity between extractors.
    """

    name = "hpn"
    family = "prototypes"
    reference = "Zhang, Song and Tao: Hierarchical Prototype Networks for Continual Graph Representation, TPAMI 2022"
    access = Access(keeps=("prototypes",), old_labels=True)
    levels = ("node",)
    kinds = ("classes",)
    model = "prototype-network"
    reads_layers = True
    training = MappingProxyType({"weight_decay": 0.0, "lr": 0.01})
    search_space = search_over(threshold=(0.05, 0.5), distance=(0.01, 10.0), diversity=(1e-3, 1.0))
    hold = ()

    prediction: Literal["prototypes", "head"] = "prototypes"
    extractors: Literal["random", "first-task"] = "random"
    threshold: Annotated[float, Bounds(above=0, below=2)] = 0.1
    embedding_share: BelowOne = 0.4
    distance: NonNegative = 1.0
    diversity: NonNegative = 0.1
    matched_: list[Tensor] = state(list)  # per atom of a node: a mask (prototypes, output units) of matches
    before_: list[int] = state(list)  # number of prototypes of earlier tasks, per level
    prototype_bytes_: int = state(int)
    tasks_: int = state(int)

    def adapt_model(self, model: GraphModel, task: object) -> None:
        """Raise if the model has no prototypes."""
        network(model)

    def epochs(self, context: Context, planned: int) -> int:
        """Record the first epoch in which prototypes are created."""
        context.cache["first epoch with prototypes"] = int(self.embedding_share * planned)
        return planned

    def epoch_counts(self, context: Context) -> bool:
        """Return whether prototypes of the task are being created."""
        return bool(context.epoch >= context.cache["first epoch with prototypes"])

    def penalty(self, step: Step) -> Tensor:
        """Return the embeddings' own cross entropy, their distance to prototypes, and the extractors' similarity."""
        model = network(step.model)
        embeddings, matched = levels_of(step)
        outputs = with_ones(embeddings[0].flatten(1)) @ model.embedding_head
        gaps = [(one - other).square().sum(-1).mean(1) for one, other in zip(embeddings, matched)]
        per_example = step.problem.loss(outputs, step.batch.y) + self.distance * torch.stack(gaps).sum(0)
        alike = step.context.cache.get("likeness")
        if alike is None:
            alike = likeness(model.own, model.node_extractors) + likeness(model.around, model.structure_extractors)
            if not self.extractors_learn:  # constant during the task
                step.context.cache["likeness"] = alike = alike.detach()
        return step.context.reduced(per_example + self.diversity * alike)

    @property
    def extractors_learn(self) -> bool:
        """Whether the extractors are trained on this task."""
        return self.extractors == "first-task" and not self.tasks_

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> Answer:
        """Return `No`: how many prototypes are created depends on values."""
        return No("hpn makes prototypes one by one, as the values before ask for")

    def prepare(self, context: Context) -> None:
        """Store what is frozen: the extractors, unless they learn this task, and the prototypes of earlier tasks."""
        model = network(context.model)
        learns = self.extractors_learn
        counts = [0 if learns else len(model.own), 0 if learns else len(model.around), *self.before_]
        fixed = zip((model.own, model.around, *model.prototypes), counts)
        context.cache["fixed"] = [value.detach()[:count].clone() for value, count in fixed]
        if not learns and fast("structure"):
            model.hold(context.batcher, self.before_[0] if self.before_ else 0)

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        """Restore what is frozen, and create prototypes from embeddings of the batch that are near no existing one."""
        model = network(step.model)
        for value, held in zip((model.own, model.around, *model.prototypes), step.context.cache["fixed"]):
            value[: len(held)] = held
        if not self.epoch_counts(step.context):
            return
        embeddings, known = model.atoms(step.batch), model.held_match(step.batch)
        for level in range(len(LEVELS)):  # each level reads the updated prototypes of the one below
            if level:
                embeddings, known = model.above(level, model.match(level - 1, embeddings, known)), None
            known = model.nearest(level, embeddings, known)
            establish(model, level, embeddings.flatten(0, 1), self.threshold, known)

    @torch.no_grad()
    def end_task(self, context: Context) -> None:
        """Record which classes match which atom prototypes."""
        model = network(context.model)
        model.let_go()
        shape = (int(model.established[0]), model.out_channels or 0)
        matched = [torch.zeros(shape, dtype=torch.bool, device=context.device) for _ in range(model.num_atoms)]
        for before, now in zip(self.matched_, matched):
            now[: before.size(0), : before.size(1)] = before
        for batch in context.batches(NODES_AT_ONCE):
            if (found := model.nearest(0, model.atoms(batch))) is not None:
                for prototypes, now in zip(found.prototype.T, matched):
                    now[prototypes, batch.y] = True
        self.matched_ = matched
        self.before_ = model.established.tolist()
        self.prototype_bytes_ = sum(self.before_) * model.dim * model.own.element_size()
        self.tasks_ += 1

    def kept_bytes(self) -> int:
        """Return the bytes of all prototypes, which are parameters of the model, and of the classes they matched."""
        return super().kept_bytes() + self.prototype_bytes_

    def predict(self, view: View) -> Tensor | None:
        """Return the similarity of a node's atoms to the prototypes of each class; None for the head's outputs."""
        model = network(view.model)
        if self.prediction == "head" or not self.matched_[0].size(0):
            return None
        batcher = view.problem.batcher(model, view.graph, device=view.device)
        units = torch.nonzero(self.matched_[0].any(0)).reshape(-1).tolist()
        outputs = []
        for batch in batcher.batches(view.nodes.to(view.device), NODES_AT_ONCE):
            cosines = model.atoms(batch) @ model.known(0)[: self.matched_[0].size(0)].T
            scores = cosines.new_full((batch.num_examples, model.out_channels or 0), -float(model.num_atoms))
            for unit in units:
                near = [cosine[:, own[:, unit]].max(1).values for cosine, own in zip(cosines.unbind(1), self.matched_)]
                scores[:, unit] = torch.stack(near).sum(0)
            outputs.append(scores.cpu())
        return torch.cat(outputs)


def network(model: GraphModel) -> PrototypeNetwork:
    """Return the model as a prototype network; raise if it is not one."""
    if capable(model, "levels") is None:
        raise EvergraphError("hpn needs a model of prototypes; use --model prototype-network, or leave the model out")
    return cast(PrototypeNetwork, model)


def levels_of(step: Step) -> tuple[list[Tensor], list[Tensor]]:
    """Return the embeddings of a step's examples on all levels and their matches, from the step's own pass."""
    made = [layer.out for layer in step.layers]
    if len(made) == 2 * len(LEVELS) and made[0].size(0) == step.batch.num_examples:
        return made[: len(LEVELS)], made[len(LEVELS) :]
    model = network(step.model)  # if processes share a step, each has only its own part
    return model.levels(model.atoms(step.batch), model.held_match(step.batch))


def establish(
    model: PrototypeNetwork, level: int, embeddings: Tensor, threshold: float, known: Match | None = None
) -> None:
    """Turn embeddings into prototypes, one by one, until each has one with a cosine of at least 1 − threshold.

    `known` holds the nearest existing prototype of each embedding.
    """
    count = int(model.established[level])
    known = model.nearest(level, embeddings) if known is None else known
    far = embeddings.norm(dim=1) > 0
    if known is not None:
        far &= known.cosine.flatten() < 1 - threshold
    left = embeddings[far]
    while left.size(0) and count < model.capacity:
        model.prototypes[level][count] = left[0]
        count += 1
        left = left[1:][left[1:] @ left[0] < 1 - threshold]
    model.established[level] = count


def likeness(weight: Tensor, extractors: int) -> Tensor:
    """Return the mean squared cosine between columns of different extractors, which are adjacent column blocks."""
    if extractors < 2:
        return weight.new_zeros(())
    columns = F.normalize(weight, dim=0)
    block = torch.arange(extractors, device=weight.device).repeat_interleave(weight.size(1) // extractors)
    apart = (block.unsqueeze(0) != block.unsqueeze(1)).to(weight.dtype)
    return ((columns.T @ columns).square() * apart).sum() / apart.sum()
