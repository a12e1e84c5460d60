"""Atomic file writes and size-limited reads.

An existing file keeps its contents until the new ones are completely written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

__all__ = ["DRAFT_PREFIX", "atomic_file", "check_folder", "folder_lock", "made_folder", "read_up_to", "replace_files",
           "write_draft", "write_file"]  # fmt: skip

DRAFT_PREFIX = ".hlogym-draft-"
"""Prefix of unfinished files. A killed process may leave one behind; it is safe to delete."""
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on an existing folder for the duration of the block.

    Other processes and threads wait for the lock. If the file system does not support locks, none is taken.

    Raises:
        OSError: the folder does not exist.
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
def made_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its missing parents for the block, which writes into it.

    If the block raises an exception, those that were created here are removed, as far as they are empty.

    Raises:
        OSError: the folder cannot be created.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


@contextlib.contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing that replaces `path` when the block ends without an exception.

    Missing parent folders are created. Symbolic links are followed, and the mode of an existing file is kept. Pipes and
    devices are written to directly.

    Args:
        path: the file to replace.
        durable: flush the contents to disk before the rename, so that they survive a power loss.

    Raises:
        OSError: the file cannot be written; `path` is then unchanged, and no folder is left that was created for it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_stream(path):
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    draft = _draft_in(target.parent)
    with made_folder(target.parent):
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
    """Write a file atomically, as `atomic_file` does; a `str` is encoded as UTF-8.

    Raises:
        OSError: the file cannot be written; `path` is then unchanged.
    """
    with atomic_file(path, durable=durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_draft(folder: Path, data: bytes, *, durable: bool = False) -> Path:
    """Write a new file with a unique name into a folder and return its path, for the caller to rename.

    Raises:
        OSError: the file cannot be written; nothing is left behind.
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


def replace_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write several files into a folder, which is created if necessary; other files in it are left.

    All are written completely before the first one gets its name, in the order of `files`.

    Args:
        folder: the folder.
        files: contents by path relative to the folder.

    Raises:
        OSError: a file cannot be written; no file is replaced, and a folder that did not exist does not exist.
    """
    draft = _draft_in(folder)
    with made_folder(folder):
        try:
            for name, data in files.items():
                write_file(draft / name, data, durable=True)
            with folder_lock(folder):
                for name in files:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (draft / name).replace(folder / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


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
    """Raise unless files can be written into a folder; the folder itself is not created.

    Raises:
        OSError: files cannot be written there.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    # Write some bytes: creating an empty file succeeds even on a full disk.
    write_draft(there, b"\0" * 4096).unlink()


def read_up_to(path: Path, most: int) -> bytes:
    """Return the contents of a file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read, or is longer than `most` bytes (a device may be endless).
    """
    parts, left = [], most
    # Without O_NONBLOCK, opening a named pipe that has no writer would block forever.
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
