"""Problems: what an example, a loss, an output distribution and a prediction are. One file each."""

from evergraph.problems.base import PROBLEMS, Problem
from evergraph.problems.node_classification import NodeClassification

__all__ = ["PROBLEMS", "NodeClassification", "Problem"]
