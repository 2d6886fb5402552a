"""Download official files: complete and with the right hash, or not at all."""

from __future__ import annotations

import gzip
import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from evergraph.errors import EvergraphError, first_line, tell
from evergraph.persistence.files import file_hash, in_turn, write_atomically
from evergraph.persistence.reading import DAMAGE, MissingFileError, read_text

LISTING = "SHA256SUMS"
TIMEOUT = 60.0  # seconds without a response


class Published(NamedTuple):
    """A file at its official address; its hash is empty if unknown."""

    url: str
    sha256: str = ""


def check_listed(root: Path, path: Path) -> None:
    """Compare a file, or the files of a folder, with the data root's SHA256SUMS, if it lists them."""
    listed = _read_listing(root)
    for file in _files(path):
        expected = listed.get(file.relative_to(root).as_posix())
        if expected is not None and file_hash(file) != expected:
            raise EvergraphError(
                f"{file}: its SHA-256 is not the one in {root / LISTING}; the file is damaged or was changed, "
                "fetch it again"
            )


@contextmanager
def downloaded(url: str, sha256: str, root: Path, *, known_content: bool = False) -> Iterator[Path]:
    """Download a file, or the files of an archive as a folder, to a scratch folder under `root`, and check it.

    The scratch folder is always removed afterwards; `keep` moves its content into place. If no hash is known
    (`sha256` is empty) a warning says so, unless the content is checked after reading (`known_content`); what was
    kept is then in SHA256SUMS and cannot change unnoticed: trust on first use.
    """
    with _scratch(url, root) as folder:
        target = folder / "download"
        _fetch(url, sha256, target, root, known_content)
        try:
            if url.endswith(".zip"):
                target = _unzip_raw(target, folder / "raw")
            elif url.endswith(".gz"):
                target = _gunzip(target, folder / "unpacked")
        except DAMAGE as error:
            raise EvergraphError(
                f"{url}: what arrived cannot be unpacked ({first_line(error)}); nothing was kept, try again"
            ) from None
        yield target


@contextmanager
def downloaded_files(files: Mapping[str, Published], root: Path) -> Iterator[Path]:
    """Like `downloaded`, for several files, keyed by their names in one folder."""
    with _scratch(next(iter(files.values())).url, root) as folder:
        target = folder / "raw"
        target.mkdir()
        for name, file in files.items():
            _fetch(file.url, file.sha256, target / name, root)
        yield target


@contextmanager
def _scratch(url: str, root: Path) -> Iterator[Path]:
    """Provide a temporary folder under `root`."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".download-", dir=root)
    except OSError as error:
        raise EvergraphError(
            f"cannot store {url} in {root} ({first_line(error)}); "
            "name a folder that has the file, or that can be written, with --data-root or EVERGRAPH_DATA"
        ) from None
    with scratch as folder:
        yield Path(folder)


def _fetch(url: str, sha256: str, target: Path, root: Path, known_content: bool = False) -> None:
    """Download one file; raise unless it is complete and has the right hash."""
    try:
        _copy(url, target)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise EvergraphError(
            f"the download of {url} failed ({first_line(error)}); "
            "set --data-root or EVERGRAPH_DATA to a folder that has the file"
        ) from None
    except OSError as error:
        raise EvergraphError(f"cannot store {url} in {root} ({first_line(error)})") from None
    arrived = file_hash(target)
    if not sha256 and not known_content:
        tell(f"{url} has no known hash to compare with; what arrived has SHA-256 {arrived}, kept in {root / LISTING}")
    elif sha256 and arrived != sha256:
        raise EvergraphError(
            f"{url}: what arrived has SHA-256 {arrived[:16]}…, not {sha256[:16]}…; nothing was kept, try again"
        )


def keep(loaded: Path, root: Path, path: Path) -> None:
    """Move a download to its place under the data root, and its hashes to SHA256SUMS."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        loaded.rename(path)
        record(root, path)
    except OSError as error:
        raise EvergraphError(f"cannot store the download as {path} ({first_line(error)})") from None


def record(root: Path, path: Path) -> None:
    """Write the hashes of a file, or of the files of a folder, to the data root's SHA256SUMS."""
    found = {file.relative_to(root).as_posix(): file_hash(file) for file in _files(path)}
    with in_turn(root):  # other processes may list theirs
        listed = _read_listing(root) | found
        write_atomically(root / LISTING, "".join(f"{digest}  {name}\n" for name, digest in listed.items()))


def _copy(url: str, target: Path) -> None:
    """Stream a URL to a file; a connection that ends early is an error."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as source, open(target, "wb") as sink:
        while block := source.read(1 << 20):
            sink.write(block)
        expected = source.headers.get("Content-Length")
        if expected is not None and sink.tell() != int(expected):
            raise ConnectionError(f"only {sink.tell()} of {expected} bytes arrived")


def _unzip_raw(archive: Path, raw: Path) -> Path:
    """Extract the `raw` folder of an OGB archive, or all files of another; only the last part of a path is trusted."""
    raw.mkdir()
    with zipfile.ZipFile(archive) as files:
        names = [member for member in files.namelist() if not member.endswith("/")]
        for member in [member for member in names if "/raw/" in member] or names:
            (raw / Path(member).name).write_bytes(files.read(member))
    return raw


def _gunzip(archive: Path, target: Path) -> Path:
    with gzip.open(archive) as packed, open(target, "wb") as plain:
        shutil.copyfileobj(packed, plain)
    return target


def _files(path: Path) -> list[Path]:
    """Return the file itself, or the files in the folder."""
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def _read_listing(root: Path) -> dict[str, str]:
    """Return file → hash, as `sha256sum` writes them; empty if there is no listing."""
    try:
        lines = read_text(root / LISTING).splitlines()
    except MissingFileError:
        return {}
    pairs = [line.split(maxsplit=1) for line in lines]
    return {pair[1].strip().lstrip("*"): pair[0].lower() for pair in pairs if len(pair) == 2}
