"""Models: the paper's GCN, GraphSAGE, GAT, random propagation features, and a wrapper for any PyG-style module."""

from evergraph.core.settings import configure
from evergraph.models.base import MODELS, GraphModel, neighbourhoods
from evergraph.models.gcn import GCN
from evergraph.models.sage import GraphSAGE

from evergraph.models.gat import GAT  # isort: skip  # the order here is the order in which models are listed
from evergraph.models.normalized import LayerNormGCN, LayerNormGraphSAGE  # isort: skip
from evergraph.models.module import ModuleModel, as_model
from evergraph.models.random_features import RandomFeatures


def make_model(name: str, **settings: object) -> GraphModel:
    """A model by its name; settings may be text."""
    model: GraphModel = configure(MODELS[name], name, settings)
    return model


__all__ = [
    "GAT",
    "GCN",
    "MODELS",
    "GraphModel",
    "GraphSAGE",
    "LayerNormGCN",
    "LayerNormGraphSAGE",
    "ModuleModel",
    "RandomFeatures",
    "as_model",
    "make_model",
    "neighbourhoods",
]
