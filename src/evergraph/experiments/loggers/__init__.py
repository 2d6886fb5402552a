"""Loggers: TensorBoard, MLflow and Weights & Biases behind one small interface. Each is an optional extra."""

from __future__ import annotations

from collections.abc import Sequence

from evergraph.errors import EvergraphError
from evergraph.experiments.loggers.base import LOGGERS, Logger, Logging
from evergraph.experiments.loggers.tensorboard import TensorBoardLogger

from evergraph.experiments.loggers.mlflow import MLflowLogger  # isort: skip  # the order in which they are listed
from evergraph.experiments.loggers.wandb import WandbLogger


def make_loggers(names: Sequence[str]) -> list[Logger]:
    """Make loggers by name."""
    loggers = []
    for name in dict.fromkeys(names):
        kind = LOGGERS[name]
        try:
            loggers.append(kind())
        except ImportError:
            raise EvergraphError(
                f"--log {name}: the package is not installed; pip install 'evergraph[{name}]'"
            ) from None
    return loggers


__all__ = ["LOGGERS", "Logger", "Logging", "MLflowLogger", "TensorBoardLogger", "WandbLogger", "make_loggers"]
