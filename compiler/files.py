"""Writes files whole or not at all: what stood there stays until the new contents are on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

__all__ = ["DRAFT_PREFIX", "write_draft", "write_file"]

DRAFT_PREFIX = ".hlogym-draft-"
"""How names of files begin that are not finished; a kill may leave one behind, which anybody may remove."""
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


def write_file(path: Path, data: str | bytes, *, durable: bool = False) -> None:
    """Write a file whole or not at all; its folder is made.

    A symbolic link is followed, the mode of a file that is replaced is kept. A pipe or a device is written to as it
    stands.

    Args:
        path: the file.
        data: its contents; text becomes UTF-8.
        durable: wait until the disk has it, so that the file also survives a loss of power.

    Raises:
        OSError: it cannot be written; then nothing has changed.
    """
    raw = data.encode() if isinstance(data, str) else data
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_stream(path):
        with path.open("wb") as file:
            file.write(raw)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = write_draft(target.parent, raw, durable=durable)
    try:
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_draft(folder: Path, data: bytes, *, durable: bool = False) -> Path:
    """Write a file of a name nobody uses into a folder, for the caller to rename; on an error it is gone.

    Raises:
        OSError: it cannot be written.
    """
    draft = folder / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    return draft


def _is_stream(path: Path) -> bool:
    return path.as_posix().startswith(_STREAMS) or (path.exists() and not path.is_file())
