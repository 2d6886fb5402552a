"""Which shortcuts are taken. Each gives the results of the plain path to its tolerance, and each can be turned off.

- `bags`: float32 products with a sparse matrix on a CPU run as embedding bags (FBGEMM's kernels).
- `compiled`: products with a sparse matrix, batches, transposes and Adam on a CPU run in C kernels, compiled at
  their first use if there is a compiler (`evergraph.core.compiled`).
- `blas`: dense symmetric products and ridge solutions on a CPU run in scipy's BLAS and LAPACK, factorized in float32
  and refined in float64 (`evergraph.core.dense_algebra`).
- `anchors`: the first layer at the anchors, which are constant during a task, is computed once per task.
- `structure`: what follows from a model's equations: Fisher diagonals of a two-layer GCN without a gradient per node,
  gradients in a queue as factors, products with the first layer's gradient from what reaches that layer, constant
  atoms of a prototype network.
- `capture`: training steps on a GPU are recorded once as a CUDA graph and replayed.
- `sparse`: very sparse inputs stay sparse on a GPU if the model multiplies them as they are, and the sparse
  matrices of a repeated step have a kernel of their own (`evergraph.core.row_pieces`).
- `frequent`: columns of these inputs with many entries are multiplied as one dense block, by tensor cores and
  accurate to 16 bits (`evergraph.core.frequent_columns`); no effect without `tf32`.
- `stack`: seeds of one run that train side by side on a GPU take their steps together, with stacked parameters.
- `adam`: Adam's step on a GPU takes one kernel for every two of a few parameters (`evergraph.training.adam`).
- `fused`: on a GPU a layer after an activation, cross entropy, divergences and Fisher products take one kernel each
  (`evergraph.core.activated_layer`, `evergraph.core.fused_softmax`).
- `tf32`: float32 products of a training step on a GPU, except for what methods do to gradients, round their factors to
  10 bits (a relative error of about 1e-3) and sum in float32, on its tensor cores; all other shortcuts are equal to
  float tolerance.
- `shared`: processes on one machine read each other's rows of a graph in parts from shared memory.

`EVERGRAPH_FAST=none` turns all of them off from outside; `EVERGRAPH_FAST=bags,capture` leaves only those two on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from evergraph.errors import one_of, unknown

FAST_PATHS = (
    "bags", "compiled", "blas", "anchors", "structure", "capture", "sparse", "frequent", "stack", "adam", "fused",
    "tf32", "shared",
)  # fmt: skip


SWITCHES = "EVERGRAPH_FAST"  # environment variable that names the shortcuts to take

_on: set[str] | None = None  # None until first used


def _from_environment() -> set[str]:
    text = os.environ.get(SWITCHES, "all")
    names = {"all": FAST_PATHS, "none": ()}.get(text, text.split(","))
    for name in names:
        if name not in FAST_PATHS:
            raise unknown(f"fast path in {SWITCHES}", name, ("all", "none", *FAST_PATHS))
    return set(names)


def fast(name: str) -> bool:
    """Return whether the shortcut is taken."""
    global _on
    if _on is None:
        _on = _from_environment()
    return name in _on


@contextmanager
def fast_paths(*names: str) -> Iterator[None]:
    """Take only the named shortcuts within the context: `with fast_paths():` takes none."""
    global _on
    before, _on = _on, {one_of("fast path", name, FAST_PATHS) for name in names}
    try:
        yield
    finally:
        _on = before


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU by tensor cores within the context, if the shortcut `tf32` is taken."""
    with _products("high") if device.type == "cuda" and fast("tf32") else nullcontext():
        yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU unrounded within the context: for pulls with large factors, where it shows."""
    with _products("highest") if device.type == "cuda" else nullcontext():
        yield


def rounded_products() -> bool:
    """Return whether float32 products on a GPU are computed by tensor cores, however torch was configured."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Set the precision of torch's float32 products within the context, by torch's older name for it.

    torch has an older and a newer setting, and refuses to read the older one if the newer one contradicts it: then the
    newer one is restored.
    """
    backends: Any = torch.backends  # torch's type stubs are incomplete
    newer = {products: products.fp32_precision for products in (backends.cuda.matmul, backends.mkldnn.matmul)}
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = ""
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older)
        else:
            for products, before in newer.items():
                products.fp32_precision = before
