"""The files of an untrusted folder, read once: plain files of JSON and safetensors, none of them too large."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from compiler.errors import HlogymError, PolicyError
from compiler.learned.weights import parse_weights
from compiler.support.json_reading import parse_object
from compiler.support.untrusted import is_name, short_repr

__all__ = ["EntryError", "checksum", "read_snapshot"]

MOST_FILES = 20_000
MOST_FILE_BYTES = 16 << 20
MOST_BYTES = 256 << 20
MOST_LEVELS = 4
JSON, WEIGHTS = ".json", ".safetensors"


class EntryError(HlogymError, ValueError):
    """An entry that is refused; the message says which file or program, and why."""


def read_snapshot(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder by their relative paths, in the order of the paths.

    Whatever is done with the entry is done with these bytes, so that files cannot change between check and use.

    Raises:
        EntryError: it is no folder; or something in it is a link, no plain file, neither JSON nor safetensors, too
            large or too deep; or there are too many files.
    """
    if folder.is_symlink() or not folder.is_dir():
        what = "a link" if folder.is_symlink() else "a file" if folder.exists() else "missing"
        raise EntryError(f"{folder} is {what}; an entry is a folder with entry.json")
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    for path in _files(folder, folder, 1):
        name = path.relative_to(folder).as_posix()
        if len(found) == MOST_FILES:
            raise EntryError(f"{folder} has more than {MOST_FILES:,} files")
        if not is_name(name) or path.suffix not in (JSON, WEIGHTS):
            raise EntryError(f"{folder} contains {short_repr(name)}; an entry contains only {JSON} and {WEIGHTS} files")
        found[name] = _read(path, f"{folder}/{name}", min(left, MOST_FILE_BYTES))
        left -= len(found[name])
        _check_content(found[name], f"{folder}/{name}")
    return dict(sorted(found.items()))


def _files(folder: Path, top: Path, level: int) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise EntryError(f"cannot read {folder}: {error.strerror}") from error
    for path in inside:
        shown = f"{top}: {short_repr(path.relative_to(top).as_posix())}"
        if path.is_symlink():
            raise EntryError(f"{shown} is a link; an entry contains plain files only")
        if path.is_dir():
            if level == MOST_LEVELS:
                raise EntryError(f"{shown} is a folder {MOST_LEVELS} levels deep; entries are less deep")
            yield from _files(path, top, level + 1)
        else:
            yield path


def _read(path: Path, shown: str, most: int) -> bytes:
    """Return the contents of a plain file of at most `most` bytes, without following links or waiting for pipes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise EntryError(f"cannot read {shown}: {reason}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EntryError(f"{shown} is no plain file")
        data = file.read(most + 1)
    if len(data) > most:
        raise EntryError(
            f"{shown} is too large: a file of an entry has at most {MOST_FILE_BYTES >> 20} MiB, "
            f"and an entry {MOST_BYTES >> 20} MiB"
        )
    return data


def _check_content(data: bytes, shown: str) -> None:
    if shown.endswith(JSON):
        parse_object(data, shown, EntryError)
        return
    try:
        parse_weights(data, shown)
    except PolicyError as error:
        raise EntryError(str(error)) from error


def checksum(files: Mapping[str, bytes]) -> str:
    """Return a SHA-256 of the paths and contents of files, which does not depend on their order."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()
