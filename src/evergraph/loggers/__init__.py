"""Loggers: TensorBoard, MLflow, Weights & Biases, through one small interface. Each is an extra to install."""

from __future__ import annotations

from collections.abc import Sequence

from evergraph.errors import EvergraphError, unknown
from evergraph.loggers.base import Logger, Logging
from evergraph.loggers.mlflow import MLflowLogger
from evergraph.loggers.tensorboard import TensorBoardLogger
from evergraph.loggers.wandb import WandbLogger

LOGGERS: dict[str, type[Logger]] = {kind.name: kind for kind in (TensorBoardLogger, MLflowLogger, WandbLogger)}


def make_loggers(names: Sequence[str]) -> list[Logger]:
    """Loggers by their names."""
    made = []
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        try:
            made.append(LOGGERS[name]())
        except ImportError:
            raise EvergraphError(
                f"--log {name}: the package is not installed; pip install 'evergraph[{name}]'"
            ) from None
    return made


__all__ = ["LOGGERS", "Logger", "Logging", "MLflowLogger", "TensorBoardLogger", "WandbLogger", "make_loggers"]
