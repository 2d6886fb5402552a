"""Methods that change the direction of a step: orthogonal to old tasks' inputs, or by the metric of past curvature."""

from evergraph.methods.projection.gpm import GPM
from evergraph.methods.projection.ncl import NCL

__all__ = ["GPM", "NCL"]
