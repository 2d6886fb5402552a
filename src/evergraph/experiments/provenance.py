"""What a result may depend on besides its settings: package versions, plug-in files and the device."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from evergraph.core.workers import workers
from evergraph.errors import tell
from evergraph.evaluation import METRICS
from evergraph.experiments.specification import RunSpec
from evergraph.methods import METHODS, parts_of, preferred_model
from evergraph.models import MODELS
from evergraph.persistence.files import file_hash
from evergraph.problems import PROBLEMS
from evergraph.registry import plugin_files
from evergraph.version import __version__


def versions(spec: RunSpec | None = None) -> dict[str, str]:
    """Versions of everything a result may depend on; for a run, also a hash of each plug-in file that it uses."""
    return {**_versions(), **({} if spec is None else _plugins_of(spec))}


def tell_changed(spec: RunSpec, earlier: Mapping[str, str], place: str | Path) -> None:
    """Note plug-in files of a run that are no longer as they were, given the versions that it was run with."""
    for name, mark in _plugins_of(spec).items():
        if earlier.get(name, mark) != mark:
            tell(f"{place}: {name} has changed since this was run; name another folder with --out to run it anew")


def _plugins_of(spec: RunSpec) -> dict[str, str]:
    """The files given by `--plugin` that hold a run's method, model, problem or metric: the hash of each, by name."""
    entries: list[object] = [METHODS[part] for part in parts_of(spec.method)]
    entries += [MODELS[spec.model or preferred_model(spec.method)], PROBLEMS.get(spec.problem)]
    entries += [getattr(METRICS.get(spec.metric), "function", None)]
    modules = {one.__module__ for entry in entries for one in getattr(entry, "__mro__", [entry]) if one is not None}
    files = {getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {Path(path).name: file_hash(path)[:12] for path in plugin_files() if path in files and Path(path).is_file()}


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
