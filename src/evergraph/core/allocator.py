"""What the C library does with freed memory.

A training step allocates and frees tensors of several megabytes. glibc returns such blocks to the operating system at
once, which then clears every page of the next one: up to a tenth of a step on a CPU.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

TRIM, PAD, MAPPED = -1, -2, -3  # glibc's names: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
KEPT, AHEAD, LARGEST = 2**28, 2**26, 2**25  # bytes: free memory kept, memory requested ahead, largest block kept


@functools.cache
def keep_freed_memory() -> bool:
    """Keep freed blocks of up to 32 MB for reuse, 256 MB of them at most; returns False if the C library is not glibc.

    Changes nothing if glibc's own variables (`MALLOC_…`, `GLIBC_TUNABLES`) are set.
    """
    if platform.libc_ver()[0] != "glibc" or any(key.startswith(("MALLOC_", "GLIBC_TUNABLES")) for key in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(TRIM, KEPT), mallopt(PAD, AHEAD), mallopt(MAPPED, LARGEST)])
