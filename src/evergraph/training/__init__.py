"""Training: the loop, its settings and executors, the learner, and the driver that saves and resumes it."""

from evergraph.training.learner import Learner, Prediction, default_method, pick_device
from evergraph.training.loop import Progress, train, train_step
from evergraph.training.settings import LABEL_SCOPES, Training

__all__ = [
    "LABEL_SCOPES",
    "Learner",
    "Prediction",
    "Progress",
    "Training",
    "default_method",
    "pick_device",
    "train",
    "train_step",
]
