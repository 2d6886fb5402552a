"""Problems: what an example, a loss, an output distribution and a prediction are. One file for each distribution."""

from evergraph.data.graph import Graph
from evergraph.problems.base import PROBLEMS, Problem
from evergraph.problems.classification import (
    Classification,
    GraphClassification,
    LinkClassification,
    NodeClassification,
)
from evergraph.problems.labelling import GraphLabelling, Labelling, LinkLabelling, LinkPrediction, NodeLabelling
from evergraph.problems.regression import GraphRegression, LinkRegression, NodeRegression, Regression


def problem_of(graph: Graph) -> str:
    """The problem that a graph's examples and targets suggest where nobody names one."""
    if graph.has_classes:
        return f"{graph.level}-classification"
    if graph.positives_only:
        return LinkPrediction.name
    known = graph.y[~graph.y.isnan()]
    return f"{graph.level}-labelling" if bool(((known == 0) | (known == 1)).all()) else f"{graph.level}-regression"


__all__ = [
    "PROBLEMS",
    "Classification",
    "GraphClassification",
    "GraphLabelling",
    "GraphRegression",
    "Labelling",
    "LinkClassification",
    "LinkLabelling",
    "LinkPrediction",
    "LinkRegression",
    "NodeClassification",
    "NodeLabelling",
    "NodeRegression",
    "Problem",
    "Regression",
    "problem_of",
]
