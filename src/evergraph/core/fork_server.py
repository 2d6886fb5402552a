"""Processes that begin with everything imported: forked from a server that imports it once, for all of them.

A new interpreter imports torch for seconds, and with several processes each does. The server has one thread and no
device, so what is forked from it is as good as new. It ends with the program that started it.

Nothing heavy is imported here: the server is started before the program itself imports anything that takes time.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext

PRELOADED = ["evergraph.experiments.engines.preloaded"]


def start() -> bool:
    """Start the server, unless it runs; returns at once, while it imports. False where there is none to be had."""
    if sys.platform != "linux":  # elsewhere libraries do not all bear a fork
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    try:
        resource_tracker.ensure_running()  # which lets signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as the server has it: Ctrl-C is ours
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except OSError:  # no place for its socket
        return False
    return True


def context() -> BaseContext:
    """How processes are started: by the server, else as new interpreters."""
    return multiprocessing.get_context("forkserver" if start() else "spawn")
