"""What the benchmarks run on: a graph of Coauthor-CS's size, and training steps ready to be timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy import sparse as sp
from torch import Tensor

from evergraph.data.batching import Batch
from evergraph.data.datasets.coauthor import COAUTHOR_CS
from evergraph.data.datasets.official import find_data_root
from evergraph.data.datasets.sbm import sbm
from evergraph.data.graph import Graph, make_graph
from evergraph.data.tasks import Task
from evergraph.methods.base import Context, Method
from evergraph.models.base import GraphModel
from evergraph.problems import NodeClassification
from evergraph.training import Training, train_step
from evergraph.training.optimizers import make_optimizer

SETTINGS = Training(lr=1e-5, batch_size=128)


def coauthor(root: str | Path | None) -> tuple[Graph, str]:
    """Coauthor-CS if its file is available, else a generated graph like it; and a description of which it is."""
    if (find_data_root(root) / COAUTHOR_CS.path).exists():
        return COAUTHOR_CS.load(root), "Coauthor-CS"
    return coauthor_like(), "a generated graph of Coauthor-CS's size and sparsity"


def coauthor_like(nodes: int = 18333, words: int = 6805, seed: int = 0) -> Graph:
    """18,333 nodes in 15 classes, 8.9 neighbours each, 6,805 sparse word counts with about 60 words per node.

    Word frequencies follow 1/rank, and a third of a node's words come from its class's own list.
    """
    classes, length = 15, 64
    edges = sbm(nodes, classes, degree=8.9, homophily=0.8, features=1, seed=seed)
    random = np.random.default_rng(seed)
    frequency = 1.0 / (10.0 + np.arange(words))
    drawn = random.choice(words, (nodes, length), p=frequency / frequency.sum())
    own = (drawn * 7 + 331 * (edges.y.numpy()[:, None] + 1)) % words  # another word order for each class
    columns = np.where(random.random((nodes, length)) < 1 / 3, own, drawn)
    x = sp.csr_matrix(
        (np.ones(columns.size, dtype=np.float32), columns.ravel(), np.arange(0, columns.size + 1, length)),
        shape=(nodes, words),
    )
    return make_graph(x, edges.edge_index, edges.y, name="coauthor-like")


def make_context(model: GraphModel, task: Task, past: int = 0, device: str = "cpu") -> Context:
    """The context of a task as in the training loop, with a model initialized from a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if model.in_channels is None:
            model.setup(task.graph.num_features, task.num_classes)
        model.to(device)
    problem = NodeClassification(torch.tensor(task.class_positions, device=device))
    return Context(
        model=model,
        task=task,
        problem=problem,
        index=past,
        old=torch.tensor([], dtype=torch.long, device=device),
        batcher=problem.batcher(model, task.graph, device=device),
        batch_size=SETTINGS.batch_size,
        generator=torch.Generator().manual_seed(0),
        reduction=SETTINGS.reduction,
        arrived=task,
    )


def remember(method: Method, context: Context, tasks: int) -> Method:
    """Let the method end this number of tasks, with small random changes of the parameters between them."""
    start = [value.detach().clone() for value in context.model.parameters()]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(tasks):
            for value in context.model.parameters():
                value.add_(torch.randn(value.shape, generator=generator).to(value), alpha=1e-3)
            method.end_task(context)
        for value, before in zip(context.model.parameters(), start):
            value.copy_(before)
    return method


class Steps:
    """Training steps, one per call, with batch assembly and optimizer; batches repeat in a fixed order."""

    def __init__(self, context: Context, method: Method) -> None:
        self.context, self.method = context, method
        context.method = method
        self.optimizer = make_optimizer(context.model, SETTINGS)
        method.start_task(context)
        method.prepare(context)
        generator = torch.Generator().manual_seed(2)
        order = torch.randperm(context.task.train.numel(), generator=generator)
        pieces = torch.split(context.train[order.to(context.device)], SETTINGS.batch_size)
        self.pieces: list[Tensor] = [piece for piece in pieces if piece.numel() == SETTINGS.batch_size]
        if not self.pieces:
            self.pieces = [pieces[0]]
        self.done = 0

    def batch(self) -> Batch:
        """The next batch."""
        piece = self.pieces[self.done % len(self.pieces)]
        self.done += 1
        return self.context.batcher.batch(piece)

    def __call__(self) -> object:
        """Take one step."""
        return train_step(self.context, self.method, self.batch(), self.optimizer)
