"""What a learner answers: the outputs at the examples asked for, and predictions in the user's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.finite import is_prediction
from evergraph.data import ClassName, Graph, Task, as_graph, with_links
from evergraph.errors import DivergedError, EvergraphError
from evergraph.evaluation import METRICS
from evergraph.methods import View
from evergraph.training.inputs import chosen_examples, is_pairs

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


@dataclass
class Prediction:
    """What each example asked for is predicted to be, in the user's own words. A sequence of them.

    Args:
        nodes: the examples asked for: nodes, graphs or links, as numbers.
        labels: the class of each; with several labels, a list of those that hold; with numbers, the number (or a list).
        probabilities: of each class; with several labels, a column for each; with numbers, the numbers, a column each.
        columns: what the columns are called, where there are columns.
    """

    nodes: Tensor
    labels: list[Any]
    probabilities: Tensor
    columns: list[ClassName] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.labels[index]


def asked(learner: Learner, graph: Graph | Any, nodes: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """The nodes asked for, as numbers, and their outputs."""
    if not learner.num_tasks or learner.model.in_channels is None:
        raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
    graph = as_graph(graph)
    if graph.num_features != learner.model.in_channels:
        raise EvergraphError(
            f"{graph.name} has {graph.num_features} features per node, but the learner was built for "
            f"{learner.model.in_channels}; give it a graph with the features it was trained on"
        )
    if learner.problem.level == "link" and is_pairs(nodes):
        graph, nodes = with_links(graph, nodes), None
    if graph.level != learner.problem.level:
        raise EvergraphError(
            f"{graph.name} has {graph.level}s as examples, and the learner predicts {learner.problem.level}s"
        )
    chosen = chosen_examples(nodes, graph)
    return chosen, learner.outputs(graph, chosen)


@torch.no_grad()
def outputs(learner: Learner, graph: Graph, nodes: Tensor) -> Tensor:
    """What the method predicts, else the model."""
    learner.model.eval()
    view = View(learner.model, learner.problem, graph, nodes, learner.device)
    predicted = learner.method.predict(view)
    predicted = view.outputs() if predicted is None else predicted
    if not is_prediction(predicted):
        raise DivergedError(
            f"{graph.name}: the outputs are not finite numbers, so the model diverged or the features are not "
            f"finite; lower lr (now {learner.training.lr:g}) or the method's strength"
        )
    return predicted


def tested(learner: Learner, task: Task) -> float | None:
    """The metric on a task's test examples among all classes known; None where it has none."""
    if not task.test.numel():
        return None
    truth = learner.problem.targets(task.graph, learner.classes_)[task.test]
    metric = METRICS[learner.problem.metric]
    return metric(learner.outputs(task.graph, task.test), truth, range(len(learner.classes_)))
