"""Models: the paper's GCN, GraphSAGE, GAT, and a wrapper for any PyG-style module."""

from evergraph.errors import unknown
from evergraph.models.base import GraphModel, ModuleModel, as_model, neighbourhoods
from evergraph.models.gat import GAT
from evergraph.models.gcn import GCN
from evergraph.models.random_features import RandomFeatures
from evergraph.models.sage import GraphSAGE

MODELS: dict[str, type[GraphModel]] = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT, "random-features": RandomFeatures}


def make_model(name: str, **hyperparameters: object) -> GraphModel:
    """A model by its name."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name](**hyperparameters)


__all__ = [
    "GAT",
    "GCN",
    "MODELS",
    "GraphModel",
    "GraphSAGE",
    "ModuleModel",
    "RandomFeatures",
    "as_model",
    "make_model",
    "neighbourhoods",
]
