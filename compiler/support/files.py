"""Files written whole or not at all, and read up to a limit.

What stood in the place of a file stays until the new contents are on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["DRAFT_PREFIX", "check_folder", "read_up_to", "sole_writer", "whole_file", "write_draft", "write_file"]

DRAFT_PREFIX = ".hlogym-draft-"
"""How names of files begin that are not finished; a kill may leave one behind, which anybody may remove."""
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in such a block for the folder, which must exist.

    A file system without locks is taken for one that has no other writers.

    Raises:
        OSError: there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of what is at the path when the block ends, and only if it ends well.

    Its folder is made. A symbolic link is followed, the mode of a file that is replaced is kept. A pipe or a device is
    written to as it stands.

    Args:
        path: the file.
        durable: wait until the disk has it, so that the file also survives a loss of power.

    Raises:
        OSError: it cannot be written; then nothing has changed.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_stream(path):
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_in(target.parent)
    try:
        with draft.open("xb") as file:
            yield file
            _settle(file, durable)
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        _drop(draft)
        raise


def write_file(path: Path, data: str | bytes, *, durable: bool = False) -> None:
    """Write a file whole or not at all, as `whole_file` does; text becomes UTF-8.

    Raises:
        OSError: it cannot be written; then nothing has changed.
    """
    with whole_file(path, durable=durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_draft(folder: Path, data: bytes, *, durable: bool = False) -> Path:
    """Write a file of a name nobody uses into a folder, for the caller to rename; on an error it is gone.

    Raises:
        OSError: it cannot be written.
    """
    draft = _draft_in(folder)
    try:
        with draft.open("xb") as file:
            file.write(data)
            _settle(file, durable)
    except BaseException:
        _drop(draft)
        raise
    return draft


def _draft_in(folder: Path) -> Path:
    return folder / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"


def _settle(file: IO[bytes], durable: bool) -> None:
    file.flush()
    if durable:
        os.fsync(file.fileno())


def _drop(draft: Path) -> None:
    with contextlib.suppress(OSError):
        draft.unlink()


def check_folder(folder: Path) -> None:
    """Find out before the work whether files can be written into a folder, without making it.

    Raises:
        OSError: they cannot.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    # Some bytes, because a full disk still takes empty files.
    write_draft(there, b"\0" * 4096).unlink()


def read_up_to(path: Path, most: int) -> bytes:
    """The contents of a file.

    Raises:
        OSError: it cannot be read, or is longer than `most` bytes (a device may have no end).
    """
    parts, left = [], most
    # A named pipe that nobody writes to would be waited for for ever.
    patience = 0 if path.as_posix().startswith(_STREAMS) else getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | patience)) as file:
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and patience:
            raise OSError(errno.EINVAL, "it is a named pipe", str(path))
        while part := file.read(min(left + 1, 1 << 20)):
            left -= len(part)
            if left < 0:
                raise OSError(errno.EFBIG, f"longer than {most} bytes", str(path))
            parts.append(part)
    return b"".join(parts)


def _is_stream(path: Path) -> bool:
    return path.as_posix().startswith(_STREAMS) or (path.exists() and not path.is_file())
