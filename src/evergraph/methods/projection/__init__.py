"""Methods that choose the direction of a step: out of what the past uses, or by the metric of the past."""

from evergraph.methods.projection.gpm import GPM
from evergraph.methods.projection.ncl import NCL

__all__ = ["GPM", "NCL"]
