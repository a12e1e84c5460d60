"""The cache of compiled shared objects on disk, which is content-addressed.

objects/<hash>.so    a shared object; its name is the hash of its content
<index>/<key>        a file that contains such a hash; the key is derived from the source of the object

<index>/<key> of the index "features" is a note, for example what a compiler supports.

An object is stored once, even if several keys lead to it. Files are written under a temporary name and renamed, so that
processes and threads may share a cache without locks. The content of an object is compared with its name before it is
used; a damaged object counts as missing and is built again.

The cache is bounded: from time to time, the objects that were used least recently are removed until the others fit. An
object that was used within the last hour stays, because another process may be about to load it. The time of the last
use is the file's modification time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import BackendError

__all__ = ["ObjectCache", "content_hash"]

_HASH = re.compile(r"[0-9a-f]{64}")
_DRAFT = ".draft-"
_OF_DISKS = frozenset(
    os.strerror(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)
)
STALE_SECONDS = 24 * 3600
"""Age in seconds at which an unfinished draft is removed."""
DEFAULT_LIMIT = 2 << 30
"""Bytes on disk that objects may take by default."""
RECENT_SECONDS = 3600
"""Seconds after its last use in which an object is never removed, and between two checks of the limit."""


def content_hash(data: bytes) -> str:
    """Return the hash that names an object: SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class ObjectCache:
    """A folder of compiled shared objects.

    Attributes:
        folder: the folder.
        limit: bytes on disk that the objects may take, except for those that are in use.
    """

    folder: Path
    limit: int = DEFAULT_LIMIT

    @property
    def objects(self) -> Path:
        """Return the folder of the objects themselves."""
        return self.folder / "objects"

    def find(self, index: str, key: str) -> Path | None:
        """Return the object recorded for a key of an index, or None if it is missing or damaged."""
        return self.find_all(index, (key,)).get(key)

    def find_all(self, index: str, keys: Iterable[str]) -> dict[str, Path]:
        """Return the objects recorded for keys of an index, by key, without those that are missing or damaged."""
        digests = {key: self._recorded_digest(index, key) for key in keys}
        objects = {digest: self.object(digest) for digest in set(digests.values())}
        return {key: path for key, digest in digests.items() if (path := objects[digest]) is not None}

    def _recorded_digest(self, index: str, key: str) -> str:
        try:
            return (self.folder / index / key).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def object(self, digest: str) -> Path | None:
        """Return the object with a content hash, or None if it is missing or damaged."""
        if not _HASH.fullmatch(digest):
            return None
        path = self.objects / f"{digest}.so"
        try:
            whole = content_hash(path.read_bytes()) == digest
            if whole and time.time() - path.stat().st_mtime > RECENT_SECONDS / 4:
                os.utime(path)
        except OSError:
            return None
        return path if whole else None

    def store(self, data: bytes) -> Path:
        """Store an object and return its path; raise BackendError if the cache cannot be written."""
        digest = content_hash(data)
        path = self.object(digest) or self._write(self.objects / f"{digest}.so", data)
        self._trim_if_due()
        return path

    def record(self, index: str, key: str, path: Path) -> None:
        """Record an object under a key of an index; raise BackendError if the cache cannot be written."""
        self._write(self.folder / index / key, path.stem.encode())

    def note(self, index: str, key: str) -> str:
        """Return the note for a key of an index, or an empty string if there is none."""
        return self._recorded_digest(index, key)

    def write_note(self, index: str, key: str, text: str) -> None:
        """Write a note for a key of an index; raise BackendError if the cache cannot be written."""
        self._write(self.folder / index / key, text.encode())

    def draft_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for a build; raise BackendError if the cache cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=self.folder, prefix=_DRAFT)
        except OSError as error:
            raise self._unwritable(error) from error

    def remove_stale_drafts(self) -> None:
        """Remove the temporary files that killed processes have left behind."""
        limit = time.time() - STALE_SECONDS
        for folder in (self.folder, self.objects, *self.folder.glob("kernels-*")):
            for draft in folder.glob(f"{_DRAFT}*"):
                with suppress(OSError):
                    if draft.stat().st_mtime < limit:
                        _remove_draft(draft)

    def _trim_if_due(self) -> None:
        """Call `trim` unless this or another process has done so recently."""
        mark = self.folder / "trimmed"
        with suppress(OSError):
            if mark.exists() and time.time() - mark.stat().st_mtime < RECENT_SECONDS:
                return
            mark.touch()
            self.trim()

    def trim(self) -> int:
        """Remove the objects that were used least recently until the others fit the limit; return their number."""
        found = []
        for path in self.objects.glob("*.so"):
            with suppress(OSError):  # another process has removed it
                status = path.stat()
                found.append((status.st_mtime, status.st_blocks * 512, path))
        excess = sum(size for _, size, _ in found) - self.limit
        removed = set()
        for used, size, path in sorted(found):
            if excess <= 0 or time.time() - used < RECENT_SECONDS:
                break
            with suppress(OSError):
                path.unlink()
                removed.add(path.stem)
                excess -= size
        if removed:
            self._remove_entries(removed)
        return len(removed)

    def _remove_entries(self, digests: set[str]) -> None:
        """Remove the index entries of removed objects."""
        for folder in (self.folder / "sources", *self.folder.glob("kernels-*")):
            for entry in folder.glob("*"):
                if self._recorded_digest(folder.name, entry.name) in digests:
                    with suppress(OSError):
                        entry.unlink()

    def _write(self, path: Path, data: bytes) -> Path:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=path.parent, prefix=_DRAFT)
            draft = Path(name)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
                draft.replace(path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._unwritable(error) from error
        return path

    def _unwritable(self, error: OSError) -> BackendError:
        return self.failed("write compiled kernels to", error.strerror)

    def failed(self, what: str, why: str | None) -> BackendError:
        """Return the error of something that cannot be done in the folder, with what helps if its disk is full."""
        advice = "; free some space there, or set HLOGYM_CACHE to another folder" if why in _OF_DISKS else ""
        return BackendError(f"cannot {what} {self.folder}: {why}{advice}")


def _remove_draft(draft: Path) -> None:
    """Remove a draft, which is a file or the folder of a build."""
    if draft.is_dir():
        for file in draft.iterdir():
            file.unlink()
        draft.rmdir()
    else:
        draft.unlink()
