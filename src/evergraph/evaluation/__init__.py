"""How good a learner is: metrics on one task's examples, and what is read off the matrix of all tasks."""

from evergraph.evaluation.matrix import (
    SUMMARIES,
    Evaluation,
    Matrix,
    Summary,
    as_array,
    average_anytime,
    average_forgetting,
    average_performance,
    forgetting,
    forward_transfer,
    intransigence,
    learning_accuracy,
    mean_std,
    performance,
    summarize,
)
from evergraph.evaluation.metrics import METRICS, Metric, accuracy, balanced_accuracy
from evergraph.evaluation.significance import Difference, paired_difference

__all__ = [
    "METRICS",
    "SUMMARIES",
    "Difference",
    "Evaluation",
    "Matrix",
    "Metric",
    "Summary",
    "accuracy",
    "as_array",
    "average_anytime",
    "average_forgetting",
    "average_performance",
    "balanced_accuracy",
    "forgetting",
    "forward_transfer",
    "intransigence",
    "learning_accuracy",
    "mean_std",
    "paired_difference",
    "performance",
    "summarize",
]
