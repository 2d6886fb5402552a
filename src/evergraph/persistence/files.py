"""Files and folders that are either complete or absent: atomic writes, hashes, one writer at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from evergraph.errors import EvergraphError, first_line

Found = TypeVar("Found")
SCRATCH = (".*.part", ".tmp??????")  # what a killed writer leaves behind: our names, safetensors' names


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that it is either the old one or the new one, never a partial one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(scratch, "wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            remove_file(scratch)
            raise
    except OSError as error:
        why = first_line(error) if path.parent.is_dir() else f"there is no folder {path.parent}; make it first"
        raise EvergraphError(f"cannot write {path} ({why})") from None
    _sync_folder(path.parent)


def make_folder(folder: Path, advice: str = "name another folder") -> None:
    """Make a folder; raises if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvergraphError(f"cannot write to {folder} ({first_line(error)}); {advice}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; raises if another one is working there."""
    with _locked(folder / ".lock", wait=False):
        yield


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is within this context for the same folder; it cannot be nested.

    For one write at a time, whether or not a process has the folder for itself (`only_writer`).
    """
    with _locked(folder / ".turn", wait=True):
        yield


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[None]:
    """Lock a file. The system releases the lock when this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: the user has to avoid two writers
        yield
        return
    current = False
    while not current:
        try:
            file = open(path, "w")  # noqa: SIM115  # held open as long as the lock
        except OSError as error:
            raise EvergraphError(f"cannot write to {path.parent} ({first_line(error)}); name another folder") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = os.stat(path).st_ino == os.fstat(file.fileno()).st_ino  # its last holder has removed it
            except (BlockingIOError, FileNotFoundError):
                current = False
            except OSError:  # a file system without locks
                current = True
            if current:
                try:
                    yield
                finally:
                    remove_file(path)
        if not current and not wait:
            raise EvergraphError(f"another process is working in {path.parent}; wait for it, or name another folder")


def remove_scratch(folder: Path) -> None:
    """Remove leftovers of killed writers from a folder; only for a holder of its locks (`only_writer`, `in_turn`)."""
    for pattern in SCRATCH:
        for left in folder.glob(pattern):
            remove_file(left)


def remove_file(path: Path) -> None:
    """Remove a file if it exists and can be removed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, if the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def holds_something(folder: Path, besides: str = "") -> bool:
    """Whether a folder has content, at the top or further down, besides what has that name.

    Empty folders and names with a leading dot do not count, since a killed process may leave those.
    """
    if not folder.is_dir():
        return folder.exists()
    named = [path for path in folder.iterdir() if path.name[0] != "." and path.name != besides]
    return any(path.is_symlink() or not path.is_dir() or holds_something(path) for path in named)


@contextmanager
def taken_folder(folder: Path, look: Callable[[], Found], *, advice: str = "name another folder") -> Iterator[Found]:
    """Reserve a folder for this process: make it if it is missing, lock it, and remove it again if it stays empty.

    Args:
        folder: the folder.
        look: returns what is in it, or raises if it belongs to something else. It is called once before the folder is
            locked, so that a foreign folder is not touched, and again afterwards; only the second result counts, since
            another process may have worked there in between.
        advice: appended to error messages.
    """
    look()
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    make_folder(folder, advice)
    try:
        with only_writer(folder):
            found = look()
            with in_turn(folder):
                remove_scratch(folder)
            yield found
    finally:
        with suppress(OSError):  # the first that is not empty stays, and so do its parents
            for path in missing:
                path.rmdir()
