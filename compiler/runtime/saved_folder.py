"""The folder of a saved program: replaced atomically when it is written, checked when it is read.

manifest.json       names the current contents, with size and SHA-256 of each of their files
contents-<hash>/    the files; the hash is that of the table in the manifest

New contents are written to a temporary folder and renamed; replacing the manifest then makes them current. Files that
are in use are never written to, and only files that one of our manifests lists are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import HlogymError
from compiler.support.files import folder_lock, made_folder

__all__ = ["Contents", "SavedProgramError", "read_folder", "write_folder"]

FORMAT = 7
MANIFEST = "manifest.json"
_BLOCK = 1 << 20
MAX_ATTEMPTS = 20
"""Maximum number of attempts to read a folder that other processes save to meanwhile."""


class SavedProgramError(HlogymError, ValueError):
    """The folder contains no saved program, a damaged one, or one that cannot run on this machine."""


@dataclass(frozen=True)
class Contents:
    """The verified files of a saved program.

    Attributes:
        folder: folder of the program.
        files: content of each file by name, in memory, because the folder may be saved to at any time.
        digests: SHA-256 of each file by name.
    """

    folder: Path
    files: Mapping[str, bytes]
    digests: Mapping[str, str]

    def data(self, name: str) -> bytes:
        """Return the content of a file; raise SavedProgramError if the program has no file of that name."""
        if name not in self.files:
            raise SavedProgramError(f"{self.folder} is damaged: it has no {name}; save the program again")
        return self.files[name]


# ---- writing


def write_folder(folder: Path, files: Mapping[str, Callable[[Path], object]]) -> None:
    """Replace the contents of the folder by these files.

    Args:
        folder: created if necessary. A program saved there before is replaced; unrelated files are kept.
        files: for each file name a function that writes the file to a path.

    Raises:
        SavedProgramError: the folder cannot be written, or contains a manifest.json that hlogym did not write.
    """
    try:
        _manifest_to_replace(folder)
        with made_folder(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".draft-") as draft:
            table = _write_files(Path(draft) / "contents", files)
            contents = folder / _contents_name(table)
            manifest = Path(draft) / MANIFEST
            manifest.write_text(_manifest_text(contents.name, table), encoding="utf-8")
            _flush(manifest)
            with folder_lock(folder):
                before = _manifest_to_replace(folder)
                _move(Path(draft) / "contents", contents)
                manifest.replace(folder / MANIFEST)
                if before.get("contents") != contents.name:
                    _remove_contents(folder, before)
    except OSError as e:
        raise SavedProgramError(f"cannot write to {folder}: {e.strerror}; choose another folder") from e


def _manifest_to_replace(folder: Path) -> Mapping[str, object]:
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "format" not in found:
        raise SavedProgramError(f"{path} was not written by hlogym; save the program to another folder")
    return found


def _write_files(folder: Path, files: Mapping[str, Callable[[Path], object]]) -> dict[str, dict[str, object]]:
    folder.mkdir()
    table: dict[str, dict[str, object]] = {}
    for name, write in sorted(files.items()):
        path = folder / name
        write(path)
        _flush(path)
        table[name] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    return table


def _move(source: Path, target: Path) -> None:
    """Rename a folder; if the target exists, which then had the same files, replace these and keep any others."""
    if not target.is_dir():
        source.rename(target)
        return
    for file in source.iterdir():
        file.replace(target / file.name)


def _remove_contents(folder: Path, manifest: Mapping[str, object]) -> None:
    """Remove the files that an outdated manifest lists, and their folder if it is empty then."""
    name, table = manifest.get("contents"), manifest.get("files")
    if not isinstance(name, str) or not isinstance(table, dict) or name != _contents_name(table):
        return
    for file in table:
        with suppress(OSError):
            (folder / name / Path(file).name).unlink()
    with suppress(OSError):
        (folder / name).rmdir()


def _manifest_text(contents: str, table: Mapping[str, object]) -> str:
    return json.dumps({"format": FORMAT, "contents": contents, "files": table}, indent=1) + "\n"


def _contents_name(table: Mapping[str, object]) -> str:
    return f"contents-{hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]}"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# ---- reading


def read_folder(folder: Path) -> Contents:
    """Read the current contents of a folder, verify the checksum of every file, and return them.

    Raises:
        SavedProgramError: there is no saved program, it has another format, or it is damaged.
    """
    for _ in range(MAX_ATTEMPTS):
        text, version = _read_manifest(folder)
        try:
            return _check(folder, text)
        except SavedProgramError:
            if _read_manifest(folder)[1] == version:
                raise
        # Another program was saved here in the meantime; read that one.
    return _check(folder, _read_manifest(folder)[0])


def _read_manifest(folder: Path) -> tuple[str, tuple[int, int]]:
    """Return the manifest and a version that changes whenever it is replaced, even by an identical one."""
    try:
        with (folder / MANIFEST).open(encoding="utf-8") as file:
            state = os.fstat(file.fileno())
            return file.read(), (state.st_ino, state.st_mtime_ns)
    except OSError as e:
        raise SavedProgramError(f"{folder} is not a saved program: {e.strerror}: {MANIFEST}") from e
    except UnicodeDecodeError as e:
        raise SavedProgramError(f"{folder}/{MANIFEST} is not text: {e.reason} at byte {e.start}") from e


def _check(folder: Path, text: str) -> Contents:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SavedProgramError(f"{folder}/{MANIFEST} is not JSON: {e}") from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SavedProgramError(f"{folder} has another format than {FORMAT}; save the program again")
    table, name = data.get("files"), data.get("contents")
    # The name is the hash of the table, so a modified table is detected.
    if not isinstance(table, dict) or name != _contents_name(table):
        raise SavedProgramError(f"{folder} is damaged: {MANIFEST} was changed; save the program again")
    found: dict[str, bytes] = {}
    for file, facts in table.items():
        path = folder / name / file
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size == facts["bytes"] else b""
        except OSError as e:
            raise SavedProgramError(f"{folder} is damaged: {name}/{file}: {e.strerror}; save the program again") from e
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise SavedProgramError(
                f"{folder} is damaged: {name}/{file} is not what was saved ({size} of {facts['bytes']} bytes); "
                "save the program again"
            )
        found[file] = data
    return Contents(folder, found, {file: facts["sha256"] for file, facts in table.items()})
