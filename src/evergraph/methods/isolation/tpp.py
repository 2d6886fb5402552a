"""Task profiling and prompting (Niu, Pang, Chen and Liu, NeurIPS 2024)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from evergraph.core.capabilities import capability, capable
from evergraph.core.features import Features
from evergraph.core.randomness import uniform
from evergraph.core.settings import BelowOne, NonNegativeInt, Positive
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch
from evergraph.data.graph import Graph
from evergraph.errors import EvergraphError
from evergraph.methods.access import Access
from evergraph.methods.base import METHODS, STEP_HOOKS, Context, Method, Step, View, search_over
from evergraph.methods.state import state
from evergraph.models.base import NODES_AT_ONCE, GraphModel
from evergraph.models.gcn import gcn_operator
from evergraph.models.prompted import PromptedGCN

NEVER = -30.0  # output at units outside the inferred task, where the others are log-probabilities


@METHODS.register
@dataclass(repr=False)
class TPP(Method):
    """An encoder pretrained on the first task, a prompt and a head per task, and inference of the task to predict for.

    Pretraining is contrastive: the embeddings of a node in the batch and in a copy with edges and features dropped
    should be similar, those of different nodes should not (GRACE; Zhu et al., 2020). After that only the task's own
    prompt and head are trained, so nothing is forgotten. A task's profile is the mean of its training nodes' features
    after `smoothing` steps of Laplacian smoothing, D^(−½) Ã^s X; at test time the head of the nearest profile predicts.

    Args:
        inference: whose features are compared with the profiles. `node` compares those of each requested node, smoothed
            over its own neighbourhood, by their cosine. `graph` is the published rule: the mean over *all requested
            nodes* decides for all of them at once. If each task is tested on a graph of its own, that gives the task
            away; for requested nodes of several tasks it is wrong for all tasks but one.
        smoothing: number of smoothing steps s; 3 in the paper.
        pretrain_epochs: epochs of contrastive pretraining before those of the first task.
        drop_edges: share of edges dropped in the copy; 0.2 in the paper's code.
        drop_features: share of features dropped in the copy; 0.3 there.
        temperature: of the contrastive loss; 0.5 there.
    """

    name = "tpp"
    family = "task inference"
    reference = "Niu et al.: Replay-and-Forget-Free Graph Class-Incremental Learning, NeurIPS 2024"
    access = Access(keeps=("statistics",))
    levels = ("node",)
    kinds = ("classes",)
    model = "prompted-gcn"
    alone = "the parameters of learned tasks stand still, so there is nothing for another method to hold"
    training = MappingProxyType({"label_scope": "current", "lr": 0.01})
    search_space = search_over(smoothing=[1, 2, 3, 5])
    hold = ()

    inference: Literal["node", "graph"] = "node"
    smoothing: NonNegativeInt = 3
    pretrain_epochs: NonNegativeInt = 20
    drop_edges: BelowOne = 0.2
    drop_features: BelowOne = 0.3
    temperature: Positive = 0.5
    profiles_: list[Tensor] = state(list)
    units_: list[list[int]] = state(list)  # output units of each task's classes

    def __post_init__(self) -> None:
        if self.inference == "graph":
            self.access = dataclasses.replace(type(self).access, transductive=True)  # type: ignore[misc]

    # learning

    def adapt_model(self, model: GraphModel, task: object) -> None:
        """Add a prompt and a head for the task, unless a resumed run has them already."""
        if capable(model, "add_task") is None:
            raise EvergraphError("tpp needs a model with prompts; use --model prompted-gcn, or leave the model out")
        prompted = cast(PromptedGCN, model)
        if prompted.num_tasks == len(self.profiles_):
            prompted.add_task()

    def epochs(self, context: Context, planned: int) -> int:
        """Return the planned epochs plus those of pretraining, which come first."""
        return planned + self._pretraining(context)

    def _pretraining(self, context: Context) -> int:
        return 0 if self.profiles_ else self.pretrain_epochs

    def loss(self, step: Step) -> Tensor | None:
        """Return the contrastive loss of the batch while pretraining."""
        if step.context.epoch >= self._pretraining(step.context):
            return None
        model, batch = cast(PromptedGCN, step.model), step.batch
        views = (batch, self.perturbed(batch, step.context.generator))
        one, two = (model.project(batch.of_chosen(model.embed(view, 0, trained=True))) for view in views)
        return step.context.reduced(contrast(one, two, self.temperature))

    @capability(rests_on=STEP_HOOKS)
    def steps_can_be_captured(self, context: Context) -> bool:
        """Return True: what to drop is drawn on the device, and dropping does not change shapes."""
        return True

    def phase(self, context: Context) -> bool:
        """Return whether the epoch is one of pretraining."""
        return context.epoch < self._pretraining(context)

    def epoch_counts(self, context: Context) -> bool:
        """Return whether pretraining is over."""
        return not self.phase(context)

    def perturbed(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch with some edges and feature columns dropped; self-loops and the column of ones are kept."""
        operator, x = batch.operator, batch.x
        device = batch.y.device
        kept = uniform((operator.nnz,), device, generator) >= self.drop_edges
        kept |= operator.indices == operator.row_of_entry()
        columns = (uniform((x.size(1),), device, generator) >= self.drop_features).to(x.dtype)
        columns[-1] = 1
        thinned = x.with_values(x.values * columns[x.indices]) if isinstance(x, SparseMatrix) else x * columns
        return dataclasses.replace(batch, x=thinned, operator=operator.with_values(operator.values * kept), source=None)

    def end_task(self, context: Context) -> None:
        """Store the task's profile and its output units."""
        graph, train = context.task.graph, context.task.train
        dtype = next(context.model.parameters()).dtype
        self.profiles_ = [*self.profiles_, profile(graph, train, self.smoothing).to(dtype).to(context.device)]
        self.units_ = [*self.units_, context.batcher.y[context.train].unique().tolist()]

    # prediction

    def predict(self, view: View) -> Tensor:
        """Return log-probabilities within the inferred task."""
        model = cast(PromptedGCN, view.model)
        tasks = self.infer(view.graph, view.nodes)
        width = model.out_channels or 0
        outputs = torch.full((view.nodes.numel(), width), NEVER, dtype=model.heads[0].dtype)
        batcher = view.problem.batcher(model, view.graph, device=view.device)
        for task in tasks.unique().tolist():
            rows = torch.nonzero(tasks == task).reshape(-1)
            units = torch.tensor(self.units_[task])
            for piece in rows.split(NODES_AT_ONCE):
                logits = model.task_logits(batcher.batch(view.nodes[piece].to(view.device)), task).cpu()
                outputs[piece.unsqueeze(1), units] = logits[:, units].log_softmax(1).clamp(min=NEVER + 1)
        return outputs

    def infer(self, graph: Graph, nodes: Tensor) -> Tensor:
        """Return the task of each node: the one with the nearest profile."""
        profiles = torch.stack(self.profiles_).cpu().double()
        products = smoothed_products(graph, profiles, self.smoothing)[nodes]
        if self.inference == "graph":
            if graph.joining is None:  # nodes that join the graph one by one are not averaged with others
                products = products.mean(0, keepdim=True).expand_as(products)
            return (products - profiles.square().sum(1) / 2).argmax(1)  # argmin ‖mean − profile‖²
        return (products / profiles.norm(dim=1).clamp(min=1e-30)).argmax(1)


def contrast(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """Return GRACE's loss of each node, averaged over the views: −log of its twin's share among all nodes of both."""
    one, two = F.normalize(one), F.normalize(two)

    def half(a: Tensor, b: Tensor) -> Tensor:
        between, within = a @ b.T / temperature, a @ a.T / temperature
        others = within.masked_fill(torch.eye(len(a), dtype=torch.bool, device=a.device), -torch.inf)
        return torch.cat([between, others], dim=1).logsumexp(1) - between.diagonal()

    return (half(one, two) + half(two, one)) / 2


def smoother(graph: Graph) -> tuple[SparseMatrix, Tensor]:
    """Return Ã, and D^(−½) as a column, in float64; D are the row sums of A + I, as in Ã."""
    degree = graph.adjacency.to(torch.float64).row_sums() + 1
    return gcn_operator(graph), degree.rsqrt().unsqueeze(1)


def profile(graph: Graph, nodes: Tensor, steps: int) -> Tensor:
    """Return the mean over the nodes of D^(−½) Ã^s X, by s products with a vector."""
    operator, scale = smoother(graph)
    weights = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    weights[nodes] = scale[nodes] / nodes.numel()
    for _ in range(steps):
        weights = operator.t() @ weights
    return _transposed_product(graph.x, weights).squeeze(1)


def smoothed_products(graph: Graph, profiles: Tensor, steps: int) -> Tensor:
    """Return D^(−½) Ã^s X Pᵀ: the products of every node's smoothed features with each profile."""
    operator, scale = smoother(graph)
    products = graph.x.to(torch.float64) @ profiles.T
    for _ in range(steps):
        products = operator @ products
    return scale * products


def _transposed_product(x: Features, dense: Tensor) -> Tensor:
    x = x.to(torch.float64)
    return x.t() @ dense if isinstance(x, SparseMatrix) else x.T @ dense
