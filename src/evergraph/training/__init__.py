"""Training: the loop, its settings and executors, the learner, and the driver that saves and resumes it."""

from evergraph.training.defaults import default_method, pick_device, targets_known
from evergraph.training.learner import Learner
from evergraph.training.loop import train
from evergraph.training.member import Progress
from evergraph.training.prediction import Prediction
from evergraph.training.settings import LABEL_SCOPES, Training
from evergraph.training.step import train_step
from evergraph.training.why import Explanation

__all__ = [
    "LABEL_SCOPES",
    "Explanation",
    "Learner",
    "Prediction",
    "Progress",
    "Training",
    "default_method",
    "pick_device",
    "targets_known",
    "train",
    "train_step",
]
