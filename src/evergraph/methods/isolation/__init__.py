"""Methods that give tasks their own parameters, prompts or prototypes, or make examples independent of their graph."""

from evergraph.methods.isolation.pi_gnn import PIGNN
from evergraph.methods.isolation.tpp import TPP

from evergraph.methods.isolation.hpn import HPN  # isort: skip
from evergraph.methods.isolation.fgn import FGN  # isort: skip

__all__ = ["FGN", "HPN", "PIGNN", "TPP"]
