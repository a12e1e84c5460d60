"""A cache of compiled programs for functions that are traced again in every process: in memory and on disk.

A program on disk is a folder that `Executable.save` wrote, named after a hash of all that determines it: the program,
the machine, this version of the compiler and the decisions that were requested. A folder that cannot be read is
replaced. The folders used least recently are removed once there are more than LIMIT.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from compiler.api import compile as compile_program
from compiler.api import load
from compiler.backends.cpu import toolchain
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.fusion.protocol import FusionPolicy
from compiler.ir import HloModule
from compiler.learned.fusion_policy import load_policy
from compiler.runtime.executable import Executable
from compiler.support.lru_dict import LruDict
from compiler.support.paths import is_folder

__all__ = ["LIMIT", "Policy", "cached_program", "compiler_sources", "forget_programs"]

Policy = FusionPolicy | str | Path | None
LIMIT = 500
"""Programs that are kept on disk."""
_IN_MEMORY = 200
_FORMAT = "1"

_programs: LruDict[str, Executable] = LruDict(_IN_MEMORY)
_lock = threading.Lock()


def cached_program(module: HloModule, backend: str = "cpu", policy: Policy = None, on_disk: bool = True) -> Executable:
    """Return the executable of a module, compiled only if it is neither in memory nor on disk.

    Args:
        module: the program.
        backend: as in `compile`.
        policy: decides fusion: a name, the folder of an exported policy, a FusionPolicy, or None for the default.
            Programs of a FusionPolicy are not cached, because nothing identifies its decisions.
        on_disk: whether to read and write the cache on disk.
    """
    if not isinstance(policy, str | Path | None):
        return compile_program(module, backend, fusion_policy=policy)
    folder = Path(policy) if policy is not None and is_folder(policy) else None

    def build() -> Executable:
        return compile_program(module, backend, fusion_policy=load_policy(folder) if folder else _name(policy))

    target = find_backend(backend)
    key = _digest(
        _FORMAT, module.fingerprint(), repr(sorted((k, str(v)) for k, v in module.header.items())), target.name,
        target.machine_key(), _compiler_version(), _policy_key(folder) if folder else repr(policy),
        os.environ.get("HLOGYM_ONEDNN", ""),
    )  # fmt: skip
    with _lock:
        found = _programs.get(key)
        if found is None:
            found = _from_disk(key, build) if on_disk and target.name == "cpu" else build()
            _programs[key] = found
        return found


def forget_programs() -> None:
    """Drop the programs in memory; those on disk stay."""
    with _lock:
        for key in list(_programs):
            _programs.pop(key)


def _name(policy: Policy) -> FusionPolicy | str | None:
    return str(policy) if isinstance(policy, Path) else policy


def _from_disk(key: str, build: Callable[[], Executable]) -> Executable:
    programs = toolchain.object_cache().folder / "programs"
    folder = programs / key
    if folder.is_dir():
        with suppress(HlogymError, OSError):
            found = load(folder)
            os.utime(folder)
            return found
    made = build()
    with suppress(HlogymError, OSError):  # a full or read-only disk is no reason to fail
        programs.mkdir(parents=True, exist_ok=True)
        made.save(folder)
        _remove_oldest(programs)
    return made


def _remove_oldest(programs: Path) -> None:
    folders = sorted((p for p in programs.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for folder in folders[:-LIMIT]:
        shutil.rmtree(folder, ignore_errors=True)


def _policy_key(folder: Path) -> str:
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return _digest(*(f"{p.name}:{hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files))


def compiler_sources() -> dict[Path, Path]:
    """Return the files of the compiler's sources by their paths in its package, in an order that does not change."""
    root = Path(__file__).parent
    sources = sorted(p for kind in ("*.py", "*.c", "*.h", "*.cuh") for p in root.rglob(kind))
    return {p.relative_to(root): p for p in sources}


@functools.lru_cache(maxsize=1)
def _compiler_version() -> str:
    """Return a hash that changes with the sources of the compiler, so that a changed compiler compiles again."""
    states = ((name, path.stat()) for name, path in compiler_sources().items())
    return _digest(np.__version__, *(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in states))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
