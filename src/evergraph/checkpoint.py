"""Saving and loading state that cannot execute code: a JSON tree beside one safetensors file.

A checkpoint is a folder with `learner.json` (the tree, a format version, the name and the hash of the
tensor file) and that tensor file. A save writes a new tensor file first and replaces `learner.json` last,
in one atomic step; so at any moment, whatever happens, the folder holds one whole checkpoint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergraph.data.files import file_hash
from evergraph.errors import EvergraphError, first_line

FORMAT = 1
INDEX = "learner.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either the old one or the new one, never half of it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise EvergraphError(f"cannot write {path} ({first_line(error)})") from None


def save_tree(folder: str | Path, tree: dict[str, Any]) -> None:
    """Save a tree of dictionaries, lists, plain values and tensors."""
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, "", tensors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / f".tensors.{os.getpid()}.part"
        try:
            save_file(tensors, scratch)
            with open(scratch, "rb+") as file:
                os.fsync(file.fileno())
            digest = file_hash(scratch)
            final = folder / f"tensors-{digest[:16]}.safetensors"
            os.replace(scratch, final)
        finally:
            scratch.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise EvergraphError(f"cannot write a checkpoint to {folder} ({first_line(error)})") from None
    index = {"format": FORMAT, "tensors": final.name, "sha256": digest, "tree": skeleton}
    write_atomically(folder / INDEX, json.dumps(index))
    for old in folder.glob("tensors-*.safetensors"):
        if old != final:
            old.unlink(missing_ok=True)


def load_tree(folder: str | Path) -> dict[str, Any]:
    """The tree saved in a folder, checked against its hash."""
    folder = Path(folder)
    index_path = folder / INDEX
    if not index_path.is_file():
        raise EvergraphError(f"{folder} holds no checkpoint (no {INDEX} in it)")
    try:
        index = json.loads(index_path.read_text(encoding="utf-8"))
        found = int(index["format"])
        name, digest, skeleton = str(index["tensors"]), index["sha256"], index["tree"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise EvergraphError(f"{index_path} is damaged or not an evergraph checkpoint ({first_line(error)})") from None
    if found > FORMAT:
        raise EvergraphError(
            f"{folder}: checkpoint format {found} is newer than this evergraph's ({FORMAT}); upgrade it"
        )
    path = folder / Path(name).name
    if not path.is_file() or file_hash(path) != digest:
        raise EvergraphError(f"{path}: missing or damaged (its hash is not the one in {INDEX})")
    try:
        return _unflatten(skeleton, load_file(path))
    except (SafetensorError, KeyError, OSError) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree with tensors replaced by their names; non-string keys keep their type."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if isinstance(value, dict):
        items = [[key, _flatten(item, f"{path}/{key}", tensors)] for key, item in value.items()]
        return {"$items": items}
    if isinstance(value, (list, tuple)):
        return [_flatten(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, float) and not torch.isfinite(torch.tensor(value)):
        return {"$float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise EvergraphError(
        f"cannot save a {type(value).__name__} at {path or 'the top'}; state is tensors and plain values"
    )


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$float" in value:
            return float(value["$float"])
        return {key: _unflatten(item, tensors) for key, item in value["$items"]}
    return value
