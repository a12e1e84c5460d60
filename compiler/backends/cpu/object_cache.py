"""Built shared objects on disk: each kept once under the hash of its content, found by what it was built from.

objects/<hash>.so    a shared object, named by its content
<index>/<key>        a text file that holds such a hash: what was built from the source that the key stands for

Files are written under a temporary name and renamed, so that processes and threads may share a cache. An object is
compared with its name before it is used: one that was cut short counts as missing and is built again.
"""

from __future__ import annotations

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
STALE_SECONDS = 24 * 3600
"""Age at which a draft that nobody finished is removed."""


def content_hash(data: bytes) -> str:
    """The name of an object by its content: SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class ObjectCache:
    """A folder of built shared objects."""

    folder: Path

    @property
    def objects(self) -> Path:
        """Folder of the objects themselves."""
        return self.folder / "objects"

    def find(self, index: str, key: str) -> Path | None:
        """The object kept for a key of an index; None when there is none, or it is damaged."""
        return self.find_all(index, (key,)).get(key)

    def find_all(self, index: str, keys: Iterable[str]) -> dict[str, Path]:
        """The objects kept for these keys, by key; those that are missing or damaged are left out."""
        digests = {key: self._noted(index, key) for key in keys}
        objects = {digest: self.object(digest) for digest in set(digests.values())}
        return {key: path for key, digest in digests.items() if (path := objects[digest]) is not None}

    def _noted(self, index: str, key: str) -> str:
        try:
            return (self.folder / index / key).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def object(self, digest: str) -> Path | None:
        """The object with this content; None when there is none, or it is damaged."""
        if not _HASH.fullmatch(digest):
            return None
        path = self.objects / f"{digest}.so"
        try:
            whole = content_hash(path.read_bytes()) == digest
        except OSError:
            return None
        return path if whole else None

    def keep(self, data: bytes) -> Path:
        """Store an object by its content; BackendError when the cache cannot be written."""
        digest = content_hash(data)
        return self.object(digest) or self._write(self.objects / f"{digest}.so", data)

    def note(self, index: str, key: str, path: Path) -> None:
        """Let an object be found by a key from now on; BackendError when the cache cannot be written."""
        self._write(self.folder / index / key, path.stem.encode())

    def draft_folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder to build in."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=self.folder, prefix=_DRAFT)
        except OSError as error:
            raise self._unwritable(error) from error

    def remove_stale_drafts(self) -> None:
        """Remove what processes that were killed have left half-written."""
        limit = time.time() - STALE_SECONDS
        for place in (self.folder, self.objects, *self.folder.glob("kernels-*")):
            for draft in place.glob(f"{_DRAFT}*"):
                with suppress(OSError):
                    if draft.stat().st_mtime < limit:
                        _remove_draft(draft)

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
        return BackendError(
            f"cannot write built kernels to {self.folder}: {error.strerror}; free some space there, or name another "
            "folder by HLOGYM_CACHE"
        )


def _remove_draft(draft: Path) -> None:
    """Remove a draft: a file, or a folder in which a compiler ran."""
    if draft.is_dir():
        for file in draft.iterdir():
            file.unlink()
        draft.rmdir()
    else:
        draft.unlink()
