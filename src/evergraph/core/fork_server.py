"""Processes that start with everything imported: forked from a server that imports it once for all of them.

A new interpreter takes seconds to import torch, and with several processes each of them does. The server has one thread
and no device, so processes forked from it are as good as new. It ends with the program that started it.

Nothing heavy is imported here: the server is started before the program itself imports anything slow.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext

PRELOADED = ["evergraph.experiments.engines.preloaded"]


def start() -> bool:
    """Start the server unless it is running; returns at once, while it imports. False if it cannot be started."""
    if sys.platform != "linux":  # elsewhere not all libraries survive a fork
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    try:
        resource_tracker.ensure_running()  # first, since it unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the server: Ctrl-C is ours
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except OSError:  # no place for its socket
        return False
    return True


def context() -> BaseContext:
    """Return the context that starts processes: from the server, else as new interpreters."""
    return multiprocessing.get_context("forkserver" if start() else "spawn")
