"""Imported by the server that processes are forked from: all that a run imports, at once or when it comes to it."""

from __future__ import annotations

import importlib
from contextlib import suppress

LATER = (  # what is imported where it is needed; what is not installed, or does not work here, is left out
    "evergraph.cli",
    "evergraph.core.chosen_kernel",
    "evergraph.core.layer_kernel",
    "evergraph.core.row_kernel",
    "evergraph.core.softmax_kernel",
    "evergraph.methods.online_curvature.gradient_kernel",
    "evergraph.training.adam_kernel",
)

for name in LATER:
    with suppress(Exception):
        importlib.import_module(name)
