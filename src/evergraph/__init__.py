"""Evergraph: graph neural networks that keep learning when new classes arrive and old data is gone."""

__version__ = "0.1.0"

from evergraph.data import Graph, Task, TaskStream, from_pyg, make_graph, stream
from evergraph.errors import EvergraphError
from evergraph.learner import Learner, Prediction
from evergraph.methods import (
    EMA,
    EWC,
    KFAC,
    MAS,
    METHODS,
    SI,
    TWP,
    Analytic,
    Auto,
    Compose,
    EWCPlusPlus,
    Finetune,
    Joint,
    LwF,
    Method,
    OnlineCurvature,
    OnlineEWC,
    register,
)
from evergraph.models import GAT, GCN, GraphModel, GraphSAGE, RandomFeatures
from evergraph.results import Evaluation
from evergraph.training import Training

__all__ = [
    "EMA",
    "EWC",
    "GAT",
    "GCN",
    "KFAC",
    "MAS",
    "METHODS",
    "SI",
    "TWP",
    "Analytic",
    "Auto",
    "Compose",
    "EWCPlusPlus",
    "Evaluation",
    "EvergraphError",
    "Finetune",
    "Graph",
    "GraphModel",
    "GraphSAGE",
    "Joint",
    "Learner",
    "LwF",
    "Method",
    "OnlineCurvature",
    "OnlineEWC",
    "Prediction",
    "RandomFeatures",
    "Task",
    "TaskStream",
    "Training",
    "from_pyg",
    "make_graph",
    "register",
    "stream",
]
