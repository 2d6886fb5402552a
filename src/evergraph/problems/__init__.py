"""Problems: what an example, a loss, an output distribution and a prediction are. One file for each distribution."""

from evergraph.data.examples import problem_of
from evergraph.problems.base import PROBLEMS, Problem
from evergraph.problems.classification import (
    Classification,
    GraphClassification,
    LinkClassification,
    NodeClassification,
)
from evergraph.problems.labelling import GraphLabelling, Labelling, LinkLabelling, LinkPrediction, NodeLabelling
from evergraph.problems.regression import GraphRegression, LinkRegression, NodeRegression, Regression

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
