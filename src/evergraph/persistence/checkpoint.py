"""Saving and loading state that cannot execute code: a JSON tree beside one safetensors file.

A checkpoint is a folder with `learner.json` (the tree, a format version, the name of the tensor file, the
hashes of both) and that tensor file. A save writes a new tensor file first and replaces `learner.json`
last, in one atomic step; so at any moment, whatever happens, the folder holds one complete checkpoint. Saves into one
folder take turns, so that none removes the tensors of another.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from contextlib import suppress
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evergraph.errors import EvergraphError, first_line, shown
from evergraph.persistence.files import file_hash, in_turn, make_folder, remove_file, remove_scratch
from evergraph.persistence.reading import MissingFileError, exists, read_json, regular_file, unaltered, write_record

FORMAT = 2
INDEX = "learner.json"
KIND = "evergraph checkpoint"
TENSORS = "tensors-*.safetensors"


def save_tree(folder: str | Path, tree: dict[str, Any]) -> None:
    """Save a tree of containers, plain values and tensors. The previous one stays until this is complete."""
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, "", tensors)
    make_folder(folder)
    with in_turn(folder):
        _write(folder, skeleton, tensors)


def _write(folder: Path, skeleton: Any, tensors: dict[str, Tensor]) -> None:
    """Write the tensors, then the index that names them, then remove what it does not name."""
    scratch = folder / f".tensors.{os.getpid()}.part"
    try:
        try:
            scratch.touch()
            mode = scratch.stat().st_mode  # as for other new files; safetensors would let nobody else read it
            save_file(tensors, scratch)
            with suppress(OSError):
                scratch.chmod(mode)
            with open(scratch, "rb+") as file:
                os.fsync(file.fileno())
            digest = file_hash(scratch)
            final = folder / f"tensors-{digest[:16]}.safetensors"
            os.replace(scratch, final)
        except BaseException:
            remove_file(scratch)
            raise
    except (OSError, SafetensorError) as error:
        raise EvergraphError(f"cannot write a checkpoint to {folder} ({first_line(error)})") from None
    index = {
        "kind": KIND,
        "format": FORMAT,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tensors": {"file": final.name, "sha256": digest},
        "tree": skeleton,
    }
    try:
        write_record(folder / INDEX, index)
    finally:
        _sweep(folder)


def load_tree(folder: str | Path) -> dict[str, Any]:
    """Load the tree saved in a folder, checked against its hashes."""
    folder = Path(folder)
    index = read_index(folder)
    while True:
        path = folder / Path(str(index["tensors"]["file"])).name
        try:
            return _read_tree(index, path)
        except MissingFileError:
            # another process's save may have removed the tensor file just after the index was read
            newer = read_index(folder)
            if newer == index:
                raise EvergraphError(f"{path}: missing, so the checkpoint is damaged; restore it from a copy") from None
            index = newer


def _read_tree(index: dict[str, Any], path: Path) -> dict[str, Any]:
    """Combine the tree of an index with the tensors of a file, whose hash must match the index."""
    try:
        if file_hash(regular_file(path)) != index["tensors"]["sha256"]:
            raise EvergraphError(f"{path}: damaged (its hash is not the one in {INDEX}); restore it from a copy")
        tree: dict[str, Any] = _unflatten(index["tree"], load_file(path))
    except EvergraphError:
        raise
    except FileNotFoundError:
        raise MissingFileError(f"no file {path}") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise EvergraphError(f"{path}: damaged ({first_line(error)})") from None
    return tree


def no_checkpoint(folder: Path) -> EvergraphError:
    """Return the error for a folder without a checkpoint."""
    if not exists(folder):
        return EvergraphError(f"there is no folder {folder}; name one that holds a learner")
    return EvergraphError(f"{folder} holds no checkpoint (there is no {INDEX} in it)")


def read_index(folder: str | Path) -> dict[str, Any]:
    """Read a checkpoint's index, with its tree still flat: cheap, and enough to describe it."""
    folder = Path(folder)
    path = folder / INDEX
    if not exists(path):
        raise no_checkpoint(folder)
    index = read_json(path)
    if not isinstance(index, dict) or index.get("kind") != KIND or not isinstance(index.get("format"), int):
        raise EvergraphError(f"{path} is not an evergraph checkpoint; name a folder that Learner.save wrote")
    if index["format"] > FORMAT:
        raise EvergraphError(
            f"{folder}: checkpoint format {index['format']} is newer than this evergraph's ({FORMAT}); "
            "upgrade evergraph to read it"
        )
    if index["format"] < FORMAT:
        raise EvergraphError(
            f"{folder}: checkpoint format {index['format']} is of evergraph 0.1, which this version cannot continue; "
            "use 0.1 for it, or learn anew"
        )
    return unaltered(index, path)


def read_plain(folder: str | Path, key: str) -> Any:
    """Read a plain value at the top of a checkpoint's tree from its index alone; None if the tree has no such key."""
    tree = read_index(folder).get("tree")
    return dict(tree["$items"]).get(key) if isinstance(tree, dict) and "$items" in tree else None


def remove_tree(folder: str | Path) -> None:
    """Remove a checkpoint, its index first, so that no partial one is ever found."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    with in_turn(folder):
        remove_file(folder / INDEX)
        _sweep(folder)
    with suppress(OSError):
        folder.rmdir()


def _sweep(folder: Path) -> None:
    """Remove files that the current index does not name: older tensor files, and leftovers of killed writers."""
    used = None
    with suppress(EvergraphError):
        used = read_index(folder)["tensors"]["file"]
    if used is None and (folder / INDEX).exists():
        return  # an index that cannot be read: touch nothing
    for old in folder.glob(TENSORS):
        if old.name != used:
            remove_file(old)
    remove_scratch(folder)


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Replace the tensors of a tree by their names, and collect them; everything keeps its type, keys too.

    An ordered dictionary (a module's `state_dict`) is loaded as a dictionary, which is ordered too, and a tensor's size
    as the tuple that it is.
    """
    if isinstance(value, Tensor) and value.layout == torch.strided:
        while path in tensors:  # {"a/b": …} beside {"a": {"b": …}}
            path += "'"
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if type(value) in (dict, OrderedDict):
        for key in value:
            if not isinstance(key, (str, int, float, type(None))) or key in (inf, -inf) or key != key:
                raise _cannot_save(path, f"with a key {shown(key)} of type {type(key).__name__}")
        return {"$items": [[key, _flatten(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if type(value) in (list, tuple, torch.Size):
        items = [_flatten(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, float) and not isfinite(value):
        return {"$float": repr(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _cannot_save(path, f"{'sparse, ' * isinstance(value, Tensor)}of type {type(value).__name__}")


def _cannot_save(path: str, what: str) -> EvergraphError:
    return EvergraphError(
        f"cannot save {path or 'the top'}, {what}; state is dense tensors and plain values, in lists, tuples and "
        "dictionaries with plain keys"
    )


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$float" in value:
            return float(value["$float"])
        if "$tuple" in value:
            return tuple(_unflatten(item, tensors) for item in value["$tuple"])
        return {key: _unflatten(item, tensors) for key, item in value["$items"]}
    return value
