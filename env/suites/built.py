"""Load the suite "corpus" from the folder that it was built in: one folder with a manifest for each split."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from compiler.support.json_reading import read_object
from env.suites.input_specs import input_spec_from_json
from env.suites.locations import programs_folder
from env.suites.programs.listing import frozen_hash, read_listing
from env.suites.sealing import SealedError, require_open
from env.suites.suite import ManifestError, Program, Suite

__all__ = ["PROGRAM_SUITES", "find_built", "is_built", "load_built"]

PROGRAM_SUITES = ("corpus", "corpus/train", "corpus/validation", "corpus/test")
"""The built suite and its splits; "corpus" is train and validation."""
SPLITS = ("train", "validation", "test")


def is_built(folder: Path | None = None) -> bool:
    """Check whether the suite was built."""
    return all(_manifest(folder or programs_folder(), split).is_file() for split in SPLITS)


def load_built(name: str, folder: Path | None = None) -> Suite:
    """Return the built suite or a split of it.

    Args:
        name: one of PROGRAM_SUITES.
        folder: where it was built (default: the user's cache folder).

    Raises:
        ManifestError: it was not built.
        SealedError: test programs are loaded without being opened, or are not the frozen ones.
    """
    where = folder or programs_folder()
    if not is_built(where):
        raise ManifestError(f'the suite "corpus" is not built in {where}; build it with: hlogym suites build')
    split = name.partition("/")[2]
    programs = []
    for part in (split,) if split else ("train", "validation"):
        entries = _entries(where, part)
        if part == "test":
            _check_frozen(where, entries)
        programs += [_program(where, e) for e in entries]
    return Suite(name, tuple(programs))


def find_built(name: str) -> Program | None:
    """Return a built program by name, or None if there is no such program.

    Raises:
        SealedError: it is a test program and not open.
    """
    if not is_built():
        return None
    where = programs_folder()
    for split in SPLITS:
        for entry in _entries(where, split):
            if entry["name"] == name:
                if split == "test":
                    require_open(name, 1, "")
                return _program(where, entry)
    return None


def _check_frozen(folder: Path, entries: list[dict[str, Any]]) -> None:
    _, frozen, versions = read_listing()
    found = frozen_hash((e["family"], e["name"], e["fingerprint"]) for e in entries)
    if found != frozen:
        made = ", ".join(f"{k} {v}" for k, v in versions.items())
        raise SealedError(
            f"the test programs in {folder} are not the frozen ones (hash {found[:12]}, frozen {frozen[:12]}); build "
            f"them again with the versions that the list names ({made}): hlogym suites build"
        )
    if changed := [e["name"] for e in entries if _fingerprint(folder / e["split"] / e["file"]) != e["fingerprint"]]:
        raise SealedError(f"{len(changed)} test programs in {folder} were changed after they were built: {changed[0]}")
    require_open("corpus/test", len(entries), frozen)


def _fingerprint(path: Path) -> str:
    """Return the fingerprint of a built program; its file holds its canonical text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32] if path.is_file() else "missing"


def _manifest(folder: Path, split: str) -> Path:
    return folder / split / "manifest.json"


def _entries(folder: Path, split: str) -> list[dict[str, Any]]:
    manifest = _manifest(folder, split)
    return _read_entries(manifest, manifest.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_entries(manifest: Path, changed: int) -> list[dict[str, Any]]:
    del changed  # part of the key
    entries = read_object(manifest, ManifestError).get("programs")
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise ManifestError(f"{manifest} has no list of programs; build it again with: hlogym suites build")
    return entries


def _program(folder: Path, entry: dict[str, Any]) -> Program:
    return Program(
        name=entry["name"],
        suite="corpus",
        split=entry["split"],
        path=folder / entry["split"] / entry["file"],
        description=entry["description"],
        inputs=tuple(input_spec_from_json(spec) for spec in entry["inputs"]),
        chaotic=entry.get("chaotic", False),
        family=entry["family"],
    )
