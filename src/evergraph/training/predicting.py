"""Outputs and predictions of a learner at the examples asked for, in terms of the user's own names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evergraph.core.finite import is_prediction
from evergraph.data import ClassName, Graph, Task, as_graph, link_ends, with_links
from evergraph.errors import DivergedError, EvergraphError, counted, tell
from evergraph.evaluation import METRICS
from evergraph.methods import View
from evergraph.training.evidence import strangeness
from evergraph.training.inputs import chosen_examples, chosen_units, example_ids, is_pairs
from evergraph.training.known_links import with_known_links
from evergraph.training.parts import accuracy_on_parts
from evergraph.training.prediction import Prediction
from evergraph.training.unknown import familiar_of, in_words

if TYPE_CHECKING:
    from evergraph.training.learner import Learner


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
        level=graph.level,
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
            reason = learner.method.no_validation if learner.method.trains_on_validation else "no task had any"
            raise EvergraphError(f"unknown classes need validation examples, and {reason}; learn with some held out")
        prediction.strangeness = familiar.score(strangeness(learner, graph, chosen, outputs))
        threshold = familiar.threshold(unknown)
        if math.isinf(threshold):
            tell(f"unknown classes: {in_words(threshold, unknown)}; learn with more held out, or raise the rate")
        prediction.unknown = prediction.strangeness > threshold
    return prediction


def asked(learner: Learner, graph: Graph | Any, nodes: Any) -> tuple[Graph, Tensor]:
    """Return the graph, with its known links as edges where examples are links, and the examples asked for."""
    check_learned(learner)
    graph = as_graph(graph, numbers=learner.problem.kind == "numbers" and not isinstance(graph, Graph))
    check_features(learner, graph)
    tell_of_directions(learner, graph)
    pairs = learner.problem.level == "link" and is_pairs(nodes)
    if pairs:
        graph, nodes = with_links(graph, nodes), None
    if graph.level != learner.problem.level:
        raise EvergraphError(
            f"{graph.name} has {graph.level}s as examples, and the learner predicts {learner.problem.level}s"
        )
    chosen = chosen_examples(nodes, graph)
    return graph if pairs else with_known_links(learner, graph, chosen), chosen


def check_learned(learner: Learner) -> None:
    """Raise if a learner has not learned a task yet."""
    if not learner.num_tasks or learner.model.in_channels is None:
        raise EvergraphError("the learner has not learned anything yet; let it learn a task first")


def check_features(learner: Learner, graph: Graph) -> None:
    """Raise if the names or the number of a graph's features differ from those the learner was built with."""
    known, found = learner.feature_names, graph.feature_names
    if known and found and known != found:
        raise EvergraphError(_other_features(graph.name, found, known))
    if graph.num_features != (learner.model.in_channels or graph.num_features):
        raise EvergraphError(
            f"{graph.name} has {counted(graph.num_features, 'feature')} per node, but the learner was built for "
            f"{learner.model.in_channels}; give every graph the same features"
        )


def _other_features(name: str, found: list[str], known: list[str]) -> str:
    """Error message for features that have different names or are in a different order."""
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
    """Warn if edges are read in one direction, and those of the tasks learned so far in both, or vice versa."""
    learned = {entry["directed"] for entry in learner.history if "directed" in entry}
    if graph.num_edges and learned == {not graph.directed}:
        if graph.directed:
            what = "keeps the directions of its edges, and the graphs learned so far did not; leave out"
        else:
            what = "is read with its edges in both directions, and the graphs learned so far kept theirs; add"
        tell(f"{graph.name} {what} undirected=False (--directed) to read them alike")


@torch.no_grad()
def outputs(learner: Learner, graph: Graph, nodes: Tensor) -> Tensor:
    """Outputs predicted by the method, or by the model if the method leaves that to it."""
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
    """Return the metric on a task's test examples, among all known classes; None if it has none or is undefined.

    Of a graph in parts, each process tests its own nodes.
    """
    if task.graph.rows is not None:
        return accuracy_on_parts(learner, task.graph, task.test)
    if not task.test.numel():
        return None
    truth = learner.problem.targets(task.graph, learner.classes_)[task.test]
    metric = METRICS[learner.problem.metric]
    value = metric(learner.outputs(task.graph, task.test), truth, range(len(learner.classes_)))
    return value if math.isfinite(value) else None
