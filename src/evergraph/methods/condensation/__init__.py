"""Condensation methods, which keep synthetic nodes optimized to act like a task's own."""

# isort: off
from evergraph.methods.condensation.cat import CaT
from evergraph.methods.condensation.puma import PUMA
from evergraph.methods.condensation.delome import DeLoMe
# isort: on

__all__ = ["PUMA", "CaT", "DeLoMe"]
