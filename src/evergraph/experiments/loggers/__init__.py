"""Loggers: TensorBoard, MLflow and Weights & Biases behind one small interface. Each is an optional extra."""

from __future__ import annotations

from collections.abc import Sequence

from evergraph.core.settings import UNDECLARED, settings_of
from evergraph.errors import EvergraphError, first_line
from evergraph.experiments.loggers.base import LOGGERS, Logger, Logging
from evergraph.experiments.loggers.tensorboard import TensorBoardLogger

from evergraph.experiments.loggers.mlflow import MLflowLogger  # isort: skip  # the order in which they are listed
from evergraph.experiments.loggers.wandb import WandbLogger


def make_loggers(names: Sequence[str]) -> list[Logger]:
    """Make loggers by name."""
    return [_made(name, LOGGERS[name]) for name in dict.fromkeys(names)]


def _made(name: str, kind: type[Logger]) -> Logger:
    """Make a logger; raises in one line if its constructor needs something or fails."""
    if needed := [key for key, default in settings_of(kind).items() if default is UNDECLARED]:
        raise EvergraphError(f"--log {name}: its constructor needs {', '.join(needed)}; give each a default")
    try:
        return kind()
    except EvergraphError:
        raise
    except ImportError:
        raise EvergraphError(f"--log {name}: the package is not installed; pip install 'evergraph[{name}]'") from None
    except Exception as error:
        raise EvergraphError(f"--log {name}: cannot start ({first_line(error)})") from None


__all__ = ["LOGGERS", "Logger", "Logging", "MLflowLogger", "TensorBoardLogger", "WandbLogger", "make_loggers"]
