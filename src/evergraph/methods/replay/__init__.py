"""Replay methods, which keep examples of earlier tasks and train on them again, or constrain steps by them."""

# isort: off
from evergraph.methods.replay.reservoir import Reservoir
from evergraph.methods.replay.gdumb import GDumb
from evergraph.methods.replay.er_gnn import ERGNN
from evergraph.methods.replay.ssm import SSM
from evergraph.methods.replay.sem import SEM
from evergraph.methods.replay.tem import TEM
from evergraph.methods.replay.gem import GEM
from evergraph.methods.replay.a_gem import AGEM
# isort: on

__all__ = ["AGEM", "ERGNN", "GEM", "SEM", "SSM", "TEM", "GDumb", "Reservoir"]
