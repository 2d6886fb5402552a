"""Pages of memory-mapped files: pages that were read belong to the process until it releases them."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from torch import Tensor

SMAPS = Path("/proc/self/smaps")  # Linux's account of every mapping


def release_pages(tensor: Tensor) -> bool:
    """Release the pages of a mapped file to the system, which reads them again on demand; returns whether it did.

    Pages that were written to exist nowhere else: if there are any, all pages stay.

    Args:
        tensor: contiguous, over a mapped file.
    """
    if not SMAPS.exists() or not hasattr(mmap, "MADV_DONTNEED") or not tensor.numel():
        return False
    first = tensor.data_ptr()
    begin, end = first // mmap.PAGESIZE * mmap.PAGESIZE, first + tensor.numel() * tensor.element_size()
    if not _as_on_disk(begin, end):
        return False
    length = ctypes.c_size_t(end - begin)
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), length, mmap.MADV_DONTNEED) == 0


def _as_on_disk(begin: int, end: int) -> bool:
    """Return whether the addresses lie within one mapping of a file, none of whose pages was written to."""
    within, own = False, dict[str, int]()
    try:
        lines = SMAPS.read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        head, *rest = line.split()
        if "-" in head and not head.endswith(":"):  # first and last address, permissions, offset, device, inode, file
            first, last = (int(address, 16) for address in head.split("-"))
            within = first <= begin and end <= last and len(rest) >= 5 and rest[4].startswith("/")
        elif within and head in ("Anonymous:", "Swap:"):  # private pages, written to: in memory, or swapped out
            own[head] = int(rest[0])
    return len(own) == 2 and not any(own.values())
