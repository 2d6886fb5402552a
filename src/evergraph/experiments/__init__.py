"""Experiments: specifications, runs on disk, cells run in parallel, the paper, reports, plots and loggers."""

from evergraph.experiments.loggers import LOGGERS, Logger, make_loggers
from evergraph.experiments.report import write_report
from evergraph.experiments.run import run
from evergraph.experiments.run_folder import read_result
from evergraph.experiments.specification import RunSpec

__all__ = ["LOGGERS", "Logger", "RunSpec", "make_loggers", "read_result", "run", "write_report"]
