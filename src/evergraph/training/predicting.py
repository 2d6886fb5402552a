"""What a learner answers: the outputs at the examples asked for, and predictions in the user's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.finite import is_prediction
from evergraph.data import ClassName, Graph, Task, as_graph, link_ends, with_links
from evergraph.errors import DivergedError, EvergraphError, tell
from evergraph.evaluation import METRICS
from evergraph.methods import View
from evergraph.training.evidence import strangeness
from evergraph.training.inputs import chosen_examples, chosen_units, example_ids, is_pairs
from evergraph.training.unknown import familiar_of

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
        names: the ids of the examples, where their graph has any.
        ends: the two nodes of each link, source and target, where the examples are links.
        classes: the classes chosen from; `table` has a column for each.
        table: the probability of each of them, a row per example.
        strangeness: how strange each looks, from 0; where unknown classes were asked for.
        unknown: whether each is put aside as of a class never learned; likewise.
    """

    nodes: Tensor
    labels: list[Any]
    probabilities: Tensor
    columns: list[ClassName] | None = None
    names: list[Any] | None = None
    ends: Tensor | None = None
    classes: list[ClassName] | None = None
    table: Tensor | None = None
    strangeness: Tensor | None = None
    unknown: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.labels[index]


def predict(
    learner: Learner,
    graph: Graph | Any,
    nodes: Any,
    classes: Sequence[ClassName] | None,
    unknown: float | None,
    calibrated: bool,
) -> Prediction:
    """See `Learner.predict`."""
    units = chosen_units(classes, learner.classes_)
    graph, chosen = asked(learner, graph, nodes)
    outputs = learner.outputs(graph, chosen)
    found = outputs / learner.temperature if calibrated and learner.problem.kind == "classes" else outputs
    names = [learner.classes_[unit] for unit in units]
    labels, probabilities = learner.problem.read(found, units, names)
    ids = example_ids(graph)
    prediction = Prediction(
        chosen,
        labels,
        probabilities,
        names=None if ids is None else [ids[i] for i in chosen.tolist()],
        ends=link_ends(graph, chosen),
    )
    if learner.problem.kind != "classes":
        if unknown is not None:
            raise EvergraphError(f"unknown={unknown:g} puts unknown classes aside, and {learner.problem.name} has none")
        prediction.columns = names
        return prediction
    prediction.classes, prediction.table = names, learner.problem.probabilities(found, units)
    if unknown is not None:
        familiar = familiar_of(learner.records)
        if familiar is None:
            raise EvergraphError(
                "unknown classes need validation examples, and no task had any; learn with some held out"
            )
        prediction.strangeness = familiar.score(strangeness(learner, graph, chosen, outputs))
        prediction.unknown = prediction.strangeness > familiar.threshold(unknown)
    return prediction


def asked(learner: Learner, graph: Graph | Any, nodes: Any) -> tuple[Graph, Tensor]:
    """The graph, and the examples asked for, as numbers."""
    if not learner.num_tasks or learner.model.in_channels is None:
        raise EvergraphError("the learner has not learned anything yet; call learn(task) first")
    graph = as_graph(graph, numbers=learner.problem.kind == "numbers" and not isinstance(graph, Graph))
    check_features(learner, graph)
    tell_of_directions(learner, graph)
    if learner.problem.level == "link" and is_pairs(nodes):
        graph, nodes = with_links(graph, nodes), None
    if graph.level != learner.problem.level:
        raise EvergraphError(
            f"{graph.name} has {graph.level}s as examples, and the learner predicts {learner.problem.level}s"
        )
    return graph, chosen_examples(nodes, graph)


def check_features(learner: Learner, graph: Graph) -> None:
    """Raise the error for a graph with other features than the learner was built with, by name or by number."""
    known, found = learner.feature_names, graph.feature_names
    if known and found and known != found:
        raise EvergraphError(_other_features(graph.name, found, known))
    if graph.num_features != (learner.model.in_channels or graph.num_features):
        raise EvergraphError(
            f"{graph.name} has {graph.num_features} features per node, but the learner was built for "
            f"{learner.model.in_channels}; give every graph the same features"
        )


def _other_features(name: str, found: list[str], known: list[str]) -> str:
    """The message for features that are called otherwise, or stand in another order."""
    missing = [column for column in known if column not in found]
    further = [column for column in found if column not in known]
    if missing or further:
        parts = [f"no feature {', '.join(map(repr, missing[:4]))}"] if missing else []
        parts += [f"a feature {', '.join(map(repr, further[:4]))} that the learner does not know"] if further else []
        return f"{name}: {' and '.join(parts)}; give the columns it was built with (features=…)"
    place = next(i for i, (a, b) in enumerate(zip(found, known)) if a != b)
    return (
        f"{name}: feature {place} is {found[place]!r}, and the learner was built with {known[place]!r} there; give the "
        "same columns in the same order (features=…)"
    )


def tell_of_directions(learner: Learner, graph: Graph) -> None:
    """Say so where edges are read in one direction and those of the tasks learned were read in both, or vice versa."""
    learned = {entry["directed"] for entry in learner.history if "directed" in entry}
    if graph.num_edges and learned == {not graph.directed}:
        if graph.directed:
            what = "keeps the directions of its edges, and the graphs learned so far did not; leave out"
        else:
            what = "is read with its edges in both directions, and the graphs learned so far kept theirs; add"
        tell(f"{graph.name} {what} undirected=False (--directed) to read them alike")


@torch.no_grad()
def outputs(learner: Learner, graph: Graph, nodes: Tensor) -> Tensor:
    """What the method predicts, else the model."""
    if learner.progress is not None:
        learner.progress.catch_up()
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
