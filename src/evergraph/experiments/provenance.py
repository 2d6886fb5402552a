"""What a result may depend on besides its settings: package versions and the device."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from evergraph.core.workers import workers
from evergraph.version import __version__


def versions() -> dict[str, str]:
    """Versions of everything a result may depend on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    """Look the versions up once: they do not change within a process."""
    known_versions = {"evergraph": __version__, "python": platform.python_version()}
    for package in ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn"):
        try:
            known_versions[package] = version(package)
        except PackageNotFoundError:
            known_versions[package] = "missing"
    return known_versions


def describe_device(device: torch.device) -> str:
    """Describe the device, with the number of processes that share the work if there are several."""
    number = workers().size
    together = f", {number} processes" if number > 1 else ""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)}{together})"
    return f"cpu ({torch.get_num_threads()} threads{together})"
