"""Read arrays and sparse matrices that were saved as pickles, without running anything that a pickle may request."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from evergraph.errors import EvergraphError, first_line
from evergraph.persistence.reading import DAMAGE, regular_file


class _State:
    """Placeholder for a saved matrix: holds its attributes and does nothing with them."""


def _empty(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """Return an array to be filled; a plain one, whatever the pickle requests."""
    return np.ndarray(shape, "b")


KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): _State,
    ("scipy.sparse._csr", "csr_matrix"): _State,
}
"""The only names that these pickles may use: those needed to build arrays."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the object for a known name; raise an error for any other."""
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return KNOWN[module, name]


def read_pickled_npz(path: Path) -> dict[str, Any]:
    """Read the arrays of an npz file, and its CSR matrices (saved as arrays of one object each)."""
    regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _read_array(archive.read(name)) for name in archive.namelist()}
    except (*DAMAGE, pickle.UnpicklingError, AttributeError) as error:
        raise EvergraphError(f"{path}: damaged, or not an npz file of matrices ({first_line(error)})") from None


def _read_array(content: bytes) -> Any:
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    _, _, dtype = reader(stream)
    if not dtype.hasobject:
        return np.load(io.BytesIO(content), allow_pickle=False)
    state = vars(_Reader(stream).load().item())
    return sp.csr_matrix((state["data"], state["indices"], state["indptr"]), shape=state["_shape"])
