"""A graph encoder that is trained once, with a separate prompt and head for every task."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evergraph.core.capabilities import Answer, capability
from evergraph.core.features import Features, with_ones
from evergraph.core.recording import linear
from evergraph.core.settings import Depth, NonNegativeInt, PositiveInt
from evergraph.core.sparse import SparseMatrix
from evergraph.data.batching import Batch, Neighbourhoods
from evergraph.data.graph import Graph
from evergraph.models.base import MODELS, Form, GraphModel, unpadded
from evergraph.models.gcn import convolve, gcn_operator
from evergraph.models.weights import draw, grown_with_bias


@MODELS.register(name="prompted-gcn")
class PromptedGCN(GraphModel):
    """A GCN encoder that reads features plus a task's prompt, with a linear head per task (Niu et al., NeurIPS 2024).

    Task t adds to every node's features x the prompt p_t(x) = Σ_j softmax_j(x S_t) v_tj, a mixture of `prompts`
    vectors with weights that depend on the node (GPF-plus; Fang et al., NeurIPS 2023); the first task has none. As the
    first layer is linear, Ã(X + P)W = Ã(XW + softmax(XS)(VW)), so a prompted graph is never materialized. Outputs send
    no gradient to the encoder, which is trained only through `embed(…, trained=True)`.

    Args:
        hidden: width of the encoder's layers and of its output.
        num_layers: number of message-passing layers of the encoder.
        prompts: number of vectors in a task's prompt.
        num_tasks: number of tasks that have prompts and heads.
    """

    def __init__(
        self,
        hidden: PositiveInt = 256,
        num_layers: Depth = 2,
        prompts: PositiveInt = 3,
        num_tasks: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.hidden, self.num_layers, self.prompts, self.num_tasks = hidden, num_layers, prompts, num_tasks
        self.weights, self.projector = nn.ParameterList(), nn.ParameterList()
        self.vectors, self.scores, self.heads = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()

    def setup(self, in_channels: int, out_channels: int) -> None:
        """Glorot-uniform weights, zero biases."""
        self.in_channels, self.out_channels = in_channels, out_channels
        widths = [in_channels, *[self.hidden] * self.num_layers]
        self.weights = nn.ParameterList(_weight(before, self.hidden) for before in widths[:-1])
        sizes = [(self.hidden, 2 * self.hidden), (2 * self.hidden, self.hidden)]
        self.projector = nn.ParameterList(_weight(*size) for size in sizes)
        tasks, self.num_tasks = self.num_tasks, 0
        for _ in range(tasks):
            self.add_task()

    def reset_parameters(self) -> None:
        """Redraw the encoder and remove all tasks."""
        assert self.in_channels is not None
        assert self.out_channels is not None
        self.vectors, self.scores, self.heads = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        self.num_tasks = 0
        self.setup(self.in_channels, self.out_channels)

    @capability(rests_on=("forward", "logits", "task_logits", "embed"))
    def add_task(self) -> None:
        """Add a prompt and a head for one more task."""
        assert self.in_channels is not None
        assert self.out_channels is not None
        kind = {"dtype": self.weights[0].dtype, "device": self.weights[0].device}
        if self.num_tasks:
            self.vectors.append(nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.prompts, self.in_channels))))
            self.scores.append(_weight(self.in_channels, self.prompts))
        self.heads.append(_weight(self.hidden, self.out_channels))
        self.num_tasks += 1
        self.to(**kind)

    def grow(self, out_channels: int) -> None:
        """Add output units to every head; a new unit's bias starts at zero."""
        for number, head in enumerate(self.heads):
            self.heads[number] = grown_with_bias(head, out_channels)
        self.out_channels = out_channels

    def operator(self, graph: Graph) -> SparseMatrix:
        """Return GCN's Ã."""
        return gcn_operator(graph)

    def inputs(self, graph: Graph, operator: SparseMatrix, propagate: bool | None = None) -> tuple[Features, int]:
        """Return [X 1], not propagated, since a prompt depends on a node's own features."""
        return with_ones(graph.x), self.num_layers

    @capability(rests_on=("forward", "logits", "task_logits", "embed", "operator", "inputs"))
    def steps_can_be_captured(self, batcher: Neighbourhoods, form: Form) -> Answer:
        """Steps can be captured on one batch or rows of it."""
        return unpadded(batcher, form, by_weights=True)

    @capability(rests_on=("operator", "inputs"))
    def input_key(self) -> str:
        """What `operator` and `inputs` depend on besides the graph."""
        return f"prompted gcn {self.num_layers}"

    def embed(self, batch: Batch, task: int, trained: bool = False) -> Tensor:
        """Return the encoder's output at the seeds, with a task's prompt."""
        weights = [weight if trained else weight.detach() for weight in self.weights]
        hidden = batch.x @ weights[0]
        if task:
            mixture = (batch.x @ self.scores[task - 1]).softmax(1)
            hidden = hidden + mixture @ (self.vectors[task - 1] @ weights[0][:-1])
        hidden = batch.layer(0) @ hidden
        for number, weight in enumerate(weights[1:], start=1):
            hidden = convolve(batch.layer(number), with_ones(F.relu(hidden)), weight)
        return hidden

    def project(self, embedding: Tensor) -> Tensor:
        """Return what a contrastive loss compares: two layers on top of the encoder, used only for pretraining."""
        first, second = self.projector
        return with_ones(F.elu(with_ones(embedding) @ first)) @ second

    def task_logits(self, batch: Batch, task: int) -> Tensor:
        """Apply a task's head to the encoder's output with the task's prompt."""
        return linear(with_ones(self.embed(batch, task)), self.heads[task])

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of the latest task's head."""
        return self.task_logits(batch, self.num_tasks - 1)


def _weight(before: int, after: int) -> nn.Parameter:
    """Create a weight matrix whose last row is the bias."""
    weight = torch.empty(before + 1, after)
    draw(weight)
    return nn.Parameter(weight)
