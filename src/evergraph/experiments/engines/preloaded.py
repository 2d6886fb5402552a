"""Imported by the server that processes are forked from: what a run imports, kernels that it imports later included."""

from __future__ import annotations

import importlib
from contextlib import suppress

LATER = (  # lazy imports; those that are not installed, or do not work here, are skipped
    "evergraph.cli",
    "evergraph.core.chosen_kernel",
    "evergraph.core.layer_kernel",
    "evergraph.core.row_kernel",
    "evergraph.core.softmax_kernel",
    "evergraph.methods.online_curvature.gradient_kernel",
    "evergraph.training.adam_kernel",
    "evergraph.training.executors.cut_kernel",
)

for name in LATER:
    with suppress(Exception):
        importlib.import_module(name)
