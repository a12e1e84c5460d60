"""Paths that users give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from compiler.errors import ArgumentError
from compiler.support.untrusted import short_repr

__all__ = ["given_path", "is_file", "is_folder"]


def given_path(value: object, what: str, error: Callable[[str], Exception]) -> Path:
    """Return a path that a user gave.

    Args:
        value: a string or a path object.
        what: what is there, with its article, for messages.
        error: the exception to raise for a string that is no path.

    Raises:
        ArgumentError: it is neither a string nor a path object.
        error: the string is empty, or has characters that no path has.
    """
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{what} is given by its path, a string or a pathlib.Path, not {short_repr(value)}")
    path = os.fsdecode(value)
    if not path or "\0" in path or not _is_encodable(path):
        raise error(f"{short_repr(path)} is not a valid path for {what}")
    return Path(path)


def is_folder(path: str | Path) -> bool:
    """Check whether a path is that of a folder; False for one that is too long, which `Path.is_dir` refuses."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    """Check whether a path is that of a file; False for one that is too long, which `Path.is_file` refuses."""
    return os.path.isfile(path)  # noqa: PTH113


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
