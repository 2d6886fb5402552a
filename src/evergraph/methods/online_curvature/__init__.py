"""The paper's method, by where F is evaluated: over the batch, from a queue, at stand-ins, or between anchors and θ."""

from evergraph.methods.online_curvature.batch import BatchCurvature
from evergraph.methods.online_curvature.between import InterpolatedCurvature
from evergraph.methods.online_curvature.online import OnlineCurvature
from evergraph.methods.online_curvature.queue import QueueCurvature
from evergraph.methods.online_curvature.stand_ins import StandInCurvature

__all__ = ["BatchCurvature", "InterpolatedCurvature", "OnlineCurvature", "QueueCurvature", "StandInCurvature"]
