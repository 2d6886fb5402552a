"""C kernels for the slowest operations of a training step on a CPU (`steps.c`), compiled at their first use.

The compiler is the one that torch.compile and Triton use too (`CC`, else `cc`, `gcc` or `clang`). The compiled library
is kept in the user's cache folder, for this processor and this version of the source. Without a compiler, or if it
fails, torch and scipy do the same work.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergraph.core.shortcuts import fast
from evergraph.errors import first_line, tell

FLAGS = (
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-w",
)
REALS = {torch.float32: ("float", "sqrtf"), torch.float64: ("double", "sqrt")}
LINE = 64  # bytes of a cache line, as in `steps.c`
LINES = 2  # cache lines of columns that are multiplied at once: their sums just fill the registers
MARK = ".sha256"  # suffix of the file with a library's hash
INDICES = {torch.int32: "int32_t", torch.int64: "int64_t"}
WORTH_A_THREAD = 2**20  # multiplications from which on work is shared among threads

_lock = threading.Lock()


Pull = tuple[Tensor, Tensor, float]
"""Anchor, importance and strength of a quadratic penalty with gradient strength · importance · (θ − anchor)."""


class Kernels:
    """The functions of `steps.c` for one type of numbers and one of indices.

    Args:
        library: path of the compiled library.
    """

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.reach.restype = ctypes.c_int64

    def multiply(
        self, matrix: tuple[Tensor, Tensor, Tensor], dense: Tensor, num_rows: int, picked: Tensor | None = None
    ) -> Tensor:
        """Return A W, or the product of the picked rows of A with W.

        Args:
            matrix: A's row pointers, columns and values.
            dense: W.
            num_rows: number of rows of the product.
            picked: the rows of A, int64; all of them by default.
        """
        out = dense.new_empty(num_rows, dense.size(1))
        rows, parts = _at(picked), [_at(part) for part in matrix]
        width, to, source = ctypes.c_int64(dense.size(1)), _at(out), _at(dense)

        def some(first: int, last: int) -> None:
            self._library.multiply(ctypes.c_int64(first), ctypes.c_int64(last), rows, *parts, source, width, to)

        _in_threads(some, num_rows, matrix[1].numel() * dense.size(1))
        return out

    def multiply_flipped(
        self, flipped: tuple[Tensor, Tensor, Tensor], dense: Tensor, num_rows: int, place: Tensor, longest: int
    ) -> Tensor:
        """Return (picked rows of A)ᵀ G.

        Args:
            flipped: Aᵀ's row pointers, columns and values.
            dense: G.
            num_rows: number of rows of the product.
            place: the row of G for each row of A, or −1; int32.
            longest: largest number of entries in a row of Aᵀ.
        """
        out = dense.new_empty(num_rows, dense.size(1))
        where, parts = _at(place), [_at(part) for part in flipped]
        width, to, source, most = ctypes.c_int64(dense.size(1)), _at(out), _at(dense), ctypes.c_int64(longest)

        def some(first: int, last: int) -> None:
            ends = ctypes.c_int64(first), ctypes.c_int64(last)
            if self._library.multiply_flipped(*ends, where, *parts, source, width, to, most):
                raise MemoryError(f"no memory for {longest} entries")

        _in_threads(some, num_rows, flipped[1].numel() * dense.size(1))
        return out

    def places(self, picked: Tensor, num_rows: int) -> Tensor:
        """Return the place of each of `num_rows` rows among those picked, int32; −1 if it is not picked."""
        place = torch.empty(num_rows, dtype=torch.int32)
        self._library.places(ctypes.c_int64(num_rows), ctypes.c_int64(picked.numel()), _at(picked), _at(place))
        return place

    def transpose(self, matrix: tuple[Tensor, Tensor, Tensor], num_columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return row pointers, columns and values of Aᵀ; entries of a row keep their order."""
        indptr, indices, values = matrix
        out = indptr.new_empty(num_columns + 1), torch.empty_like(indices), torch.empty_like(values)
        sizes = ctypes.c_int64(indptr.numel() - 1), ctypes.c_int64(num_columns)
        self._library.transpose(*sizes, *map(_at, matrix), *map(_at, out))
        return out

    def neighbourhoods(
        self, matrix: tuple[Tensor, Tensor, Tensor], seeds: Tensor, hops: int, position: Tensor
    ) -> tuple[Tensor, tuple[int, ...], tuple[Tensor, Tensor, Tensor], bool]:
        """Return the nodes within `hops` of the seeds, their number within each hop, and the rows of all but the last.

        The last result is whether all nodes are distinct: a repeated seed is listed repeatedly.

        Args:
            matrix: row pointers, columns and values of an operator.
            seeds: nodes.
            hops: number of hops, at least 1.
            position: workspace, int64, −1 for every node before and after the call.
        """
        indptr, indices, values = matrix
        seeds = seeds.long().contiguous()
        most = position.numel() + seeds.numel()  # seeds may be repeated
        nodes, sizes = torch.empty(most, dtype=torch.long), torch.empty(hops + 2, dtype=torch.long)
        count = ctypes.c_int64(position.numel())
        graph = [_at(part) for part in matrix]
        around = _at(seeds), ctypes.c_int64(seeds.numel()), ctypes.c_int64(hops), _at(position), _at(nodes), _at(sizes)
        entries = self._library.reach(count, *graph[:2], *around)
        if entries < 0:
            raise IndexError(f"seeds from {int(seeds.min())} to {int(seeds.max())} among {position.numel()} nodes")
        *within, repeated = sizes.tolist()
        found = tuple(within)
        out = indptr.new_empty(found[-2] + 1), indices.new_empty(entries), values.new_empty(entries)
        ends = ctypes.c_int64(found[-2]), ctypes.c_int64(found[-1])
        self._library.cut(*ends, _at(nodes), *graph, _at(position), *map(_at, out))
        return nodes[: found[-1]].clone(), found, out, not repeated

    def activate(
        self, matrix: tuple[Tensor, Tensor, Tensor], hidden: Tensor, moved: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return P [max(H, 0) 1] and P (Ḣ where H > 0), the latter None without Ḣ.

        Args:
            matrix: P's row pointers, columns and values.
            hidden: H.
            moved: Ḣ.
        """
        rows, width = matrix[0].numel() - 1, hidden.size(1)
        out, moved_out = hidden.new_empty(rows, width + 1), None if moved is None else hidden.new_empty(rows, width)
        where, to = [_at(part) for part in (*matrix, hidden, moved)], (_at(out), _at(moved_out))

        def some(first: int, last: int) -> None:
            ends = ctypes.c_int64(first), ctypes.c_int64(last)
            self._library.activate(*ends, *where, ctypes.c_int64(width), *to)

        _in_threads(some, rows, matrix[1].numel() * width)
        return out, moved_out

    def activate_back(self, flipped: tuple[Tensor, Tensor, Tensor], dense: Tensor, hidden: Tensor) -> Tensor:
        """Return Pᵀ G where H > 0, else 0; `flipped` holds the parts of Pᵀ."""
        out, width = torch.empty_like(hidden), ctypes.c_int64(hidden.size(1))
        where, to = [_at(part) for part in (*flipped, dense, hidden)], _at(out)

        def some(first: int, last: int) -> None:
            self._library.activate_back(ctypes.c_int64(first), ctypes.c_int64(last), *where, width, to)

        _in_threads(some, hidden.size(0), flipped[1].numel() * hidden.size(1))
        return out

    def pull(self, grad: Tensor, param: Tensor, anchor: Tensor, importance: Tensor, strength: float) -> None:
        """Add strength · importance · (param − anchor) to a gradient."""
        where = [_at(part) for part in (grad, param, anchor, importance)]

        def some(first: int, last: int) -> None:
            self._library.pull(ctypes.c_int64(first), ctypes.c_int64(last), *where, ctypes.c_double(strength))

        _in_threads(some, grad.numel(), grad.numel())

    def adam(
        self,
        param: Tensor,
        grad: Tensor,
        averages: tuple[Tensor, Tensor],
        settings: tuple[float, ...],
        quadratic: Pull | None = None,
    ) -> None:
        """Update a parameter and its two averages in place.

        Args:
            param: the parameter.
            grad: its gradient.
            averages: running averages of gradients and of their squares.
            settings: rate / (1 − β₁ᵗ), β₁, β₂, √(1 − β₂ᵗ), ε and the weight decay.
            quadratic: a quadratic penalty whose gradient is not yet included in `grad`.
        """
        anchor, importance, strength = quadratic or (None, None, 0.0)
        where = [_at(part) for part in (param, grad, *averages, anchor, importance)]
        numbers = [ctypes.c_double(one) for one in (*settings, strength)]

        def some(first: int, last: int) -> None:
            self._library.adam(ctypes.c_int64(first), ctypes.c_int64(last), *where, *numbers)

        _in_threads(some, param.numel(), param.numel())

    def add_product(
        self,
        out: np.ndarray,
        matrix: np.ndarray,
        columns: np.ndarray,
        flipped: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Out += A X and, with `flipped` = (F, Y), F += Aᵀ Y too, reading A once.

        X, Y, out and F are padded as `few_columns` pads them; the rows of A are contiguous, and A may be in float32.
        """
        step, narrow = ctypes.c_int64(matrix.strides[0] // matrix.itemsize), matrix.itemsize < columns.itemsize
        numbers = (columns.shape[1] * columns.itemsize // LINE, *matrix.shape, int(narrow))
        sizes = (ctypes.c_int64(number) for number in numbers)
        further = (None, None) if flipped is None else (address(flipped[1]), address(flipped[0]))
        self._library.times(*sizes, address(matrix), step, address(columns), address(out), *further)

    def product(self, matrix: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
        """Write A X to `out`, which has the type of both; the rows of A are contiguous.

        A narrow product reads each number of A once, where a general one copies A into another order first.
        """
        for start in range(0, columns.shape[1], LINES * LINE // columns.itemsize):
            some = slice(start, start + LINES * LINE // columns.itemsize)
            few = few_columns(columns[:, some], columns.dtype)
            assert few is not None
            found = np.zeros((len(matrix), few.shape[1]), dtype=few.dtype)
            self.add_product(found, matrix, few)
            out[:, some] = found[:, : out[:, some].shape[1]]

    def solve(self, factor: np.ndarray, columns: np.ndarray) -> None:
        """Overwrite B, padded by `few_columns`, with (L Lᵀ)⁻¹ B; L is read from the lower triangle of `factor`.

        The factor may be a leading part of a larger one.
        """
        sizes = (ctypes.c_int64(number) for number in (columns.shape[1] * columns.itemsize // LINE, len(factor)))
        step = ctypes.c_int64(factor.strides[0] // factor.itemsize)
        self._library.solve(*sizes, address(factor), step, address(columns))


def few_columns(columns: np.ndarray, kind: np.dtype[Any]) -> np.ndarray | None:
    """Return a copy padded with columns of zeros to whole cache lines; None if a row takes more than four."""
    numbers = LINE // kind.itemsize
    lines = -(-columns.shape[1] // numbers)
    if not 1 <= lines <= 4:
        return None
    found = np.zeros((len(columns), lines * numbers), dtype=kind)
    found[:, : columns.shape[1]] = columns
    return found


def kernels_over(*tensors: Tensor) -> Kernels | None:
    """Return the kernels for elementwise work on these tensors; None if they are not laid out alike in memory."""
    first = tensors[0]
    alike = all(tensor.dtype == first.dtype and tensor.shape == first.shape for tensor in tensors)
    plain = alike and readable(*tensors) and not torch._C._functorch.is_functorch_wrapped_tensor(first)
    return kernels(first.dtype, torch.int32) if plain else None


def readable(*tensors: Tensor) -> bool:
    """Return whether kernels can read these tensors: on a CPU and contiguous."""
    return all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Return a pointer to an array's first number."""
    return ctypes.c_void_p(array.ctypes.data)


def _in_threads(work: Callable[[int, int], None], size: int, cost: int) -> None:
    """Run `work` over 0 to `size`, in as many threads as torch has if the cost is worth it, one thread per row."""
    threads = torch.get_num_threads() if cost >= WORTH_A_THREAD else 1
    if threads == 1:
        work(0, size)
        return
    ends = [size * part // threads for part in range(threads + 1)]
    list(_pool(os.getpid(), threads).map(work, ends[:-1], ends[1:]))


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the threads of this process, since a forked one has none of its parent's."""
    return ThreadPoolExecutor(threads)


def kernels(dtype: torch.dtype, index: torch.dtype) -> Kernels | None:
    """Return the compiled kernels for these types; None if there are none, or the shortcut is off."""
    return _kernels(dtype, index) if fast("compiled") else None


def _kernels(dtype: torch.dtype, index: torch.dtype) -> Kernels | None:
    with _lock:  # two threads must not compile at once
        return _compiled(dtype, index) if dtype in REALS and index in INDICES else None


@functools.cache
def _compiled(dtype: torch.dtype, index: torch.dtype) -> Kernels | None:
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        return None
    source = (files("evergraph.core") / "steps.c").read_text(encoding="utf-8")
    real, root = REALS[dtype]
    command = [*compiler.split(), *FLAGS, f"-DREAL={real}", f"-DSQRT={root}", f"-DINDEX={INDICES[index]}"]
    mark = hashlib.sha256("\n".join([*command, source, platform.machine(), _processor()]).encode()).hexdigest()[:20]
    try:
        return _loaded(command, source, f"steps-{mark}.so")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        tell(f"the C kernels cannot be compiled ({first_line(error)}); torch's are used")
        return None


def _loaded(command: list[str], source: str, name: str) -> Kernels:
    """Load the library of this name from the cache folder, or compile it and keep it there if possible."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evergraph"
    if _is_whole(kept / name):
        return Kernels(kept / name)
    with tempfile.TemporaryDirectory(prefix="evergraph-") as scratch:
        (Path(scratch) / "steps.c").write_text(source, encoding="utf-8")
        made = Path(scratch) / name
        subprocess.run(
            [*command, "-o", str(made), str(Path(scratch) / "steps.c"), "-lm"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        try:
            kept.mkdir(parents=True, exist_ok=True)
            whole = made.read_bytes()
            _put(kept / name, whole)
            _put(kept / f"{name}{MARK}", hashlib.sha256(whole).hexdigest().encode())
        except OSError:
            return Kernels(made)  # it stays loaded when its file is deleted
        return Kernels(kept / name)


def _put(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _is_whole(library: Path) -> bool:
    """Return whether a library is present as it was written: a truncated one would crash Python."""
    try:
        mark = library.with_name(f"{library.name}{MARK}").read_text(encoding="utf-8")
        return hashlib.sha256(library.read_bytes()).hexdigest() == mark
    except (OSError, UnicodeDecodeError):
        return False


def _processor() -> str:
    """Return what distinguishes processors that share a cache folder: `-march=native` is for one of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
