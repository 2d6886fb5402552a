"""Replay methods: they keep examples of earlier tasks and train on them again, or let them judge a step."""

from evergraph.methods.replay.reservoir import Reservoir

__all__ = ["Reservoir"]
