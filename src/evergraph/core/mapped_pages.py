"""Pages of memory-mapped files: pages that were read belong to the process until it releases them."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
from torch import Tensor

PAGEMAP = Path("/proc/self/pagemap")  # Linux's account of every page
PAGES_AT_ONCE = 2**17  # whose entries fill a megabyte


def release_pages(tensor: Tensor) -> bool:
    """Release the pages of a mapped file to the system, which reads them again on demand; returns whether it did.

    Pages that were written to exist nowhere else: if there are any, all pages stay.

    Args:
        tensor: contiguous, over a mapped file.
    """
    if not PAGEMAP.exists() or not hasattr(mmap, "MADV_DONTNEED") or not tensor.numel():
        return False
    first = tensor.data_ptr()
    begin, end = first // mmap.PAGESIZE * mmap.PAGESIZE, first + tensor.numel() * tensor.element_size()
    if not _as_on_disk(begin, end):
        return False
    length = ctypes.c_size_t(end - begin)
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), length, mmap.MADV_DONTNEED) == 0


def _as_on_disk(begin: int, end: int) -> bool:
    """Return whether no page of the addresses is the process's own: made in memory, or read from a file and written to.

    Entries are one 64-bit number a page: in memory (bit 63) or swapped out (bit 62), of a file (bit 61).
    """
    page, last = begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
    try:
        with PAGEMAP.open("rb", buffering=0) as file:
            file.seek(page * 8)
            while page < last:
                kinds = np.frombuffer(file.read(8 * min(last - page, PAGES_AT_ONCE)), dtype=np.uint64) >> 61
                if not len(kinds) or ((kinds > 1) & (kinds % 2 == 0)).any():
                    return False
                page += len(kinds)
    except OSError:
        return False
    return True
