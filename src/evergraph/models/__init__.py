"""Models: the paper's GCN, GraphSAGE, GAT, GIN, PDGNN, random features, and a wrapper for any PyG-style module."""

from evergraph.core.settings import checked
from evergraph.core.settings_from_text import configure, parse_setting
from evergraph.errors import EvergraphError
from evergraph.models.base import MODELS, GraphModel, neighbourhoods
from evergraph.models.gcn import GCN
from evergraph.models.sage import GraphSAGE

from evergraph.models.gat import GAT  # isort: skip  # the order here is the order in which models are listed
from evergraph.models.pdgnn import PDGNN  # isort: skip
from evergraph.models.gin import GIN  # isort: skip
from evergraph.models.normalized import LayerNormGCN, LayerNormGraphSAGE  # isort: skip
from evergraph.models.module import ModuleModel, as_model, level_of
from evergraph.models.random_features import RandomFeatures
from evergraph.models.readout import Paired, Pooled, Readout

from evergraph.models.mixed_features import MixedFeatures  # isort: skip
from evergraph.models.feature_graph import FeatureGraphNetwork  # isort: skip
from evergraph.models.prompted import PromptedGCN  # isort: skip
from evergraph.models.prototype_network import PrototypeNetwork  # isort: skip

READOUTS: dict[str, type[Readout]] = {"pooling": Pooled, "width": Paired}
"""Read-out of a graph's or a link's nodes, by the setting that requests it."""


@checked
def make_model(name: str, **settings: object) -> GraphModel:
    """Make a model by name; settings may be text. `pooling` makes it a graph-level model, `width` a link-level one."""
    own = {key: settings.pop(key) for key in READOUTS if key in settings}
    model: GraphModel = configure(MODELS[name], name, settings)
    if len(own) > 1:
        raise EvergraphError("pooling is for graphs and width for links; give one of them")
    for key, value in own.items():
        return READOUTS[key](model, **{key: parse_setting(READOUTS[key], key, value, owner=name)})
    return model


__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "MODELS",
    "PDGNN",
    "FeatureGraphNetwork",
    "GraphModel",
    "GraphSAGE",
    "LayerNormGCN",
    "LayerNormGraphSAGE",
    "MixedFeatures",
    "ModuleModel",
    "Paired",
    "Pooled",
    "PromptedGCN",
    "PrototypeNetwork",
    "RandomFeatures",
    "Readout",
    "as_model",
    "level_of",
    "make_model",
    "neighbourhoods",
]
