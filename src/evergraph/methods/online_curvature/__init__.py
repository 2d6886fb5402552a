"""The paper's method, split by idea: over the batch, from a queue, at stand-ins, between anchors and now."""

from evergraph.methods.online_curvature.batch import BatchCurvature
from evergraph.methods.online_curvature.between import InterpolatedCurvature
from evergraph.methods.online_curvature.online import OnlineCurvature
from evergraph.methods.online_curvature.queue import QueueCurvature
from evergraph.methods.online_curvature.stand_ins import StandInCurvature

__all__ = ["BatchCurvature", "InterpolatedCurvature", "OnlineCurvature", "QueueCurvature", "StandInCurvature"]
