"""Backends by name: every package in `compiler/backends` that has a `BACKEND`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import compiler.backends
from compiler.backends.backend import Backend
from compiler.errors import ArgumentError, BackendError, UnknownNameError
from compiler.runtime.executable import Executable
from compiler.runtime.program_files import open_program
from compiler.support.untrusted import shown

AUTO = "auto"
"""Stands for the best backend that works on this machine."""


def _found() -> dict[str, Backend]:
    names = sorted(m.name for m in pkgutil.iter_modules(compiler.backends.__path__) if m.ispkg)
    packages = [importlib.import_module(f"{compiler.backends.__name__}.{name}") for name in names]
    return {package.BACKEND.name: package.BACKEND for package in packages}


BACKENDS: Mapping[str, Backend] = _found()


def backend_names() -> tuple[str, ...]:
    """Return what users may name: "auto" and every backend."""
    return (AUTO, *BACKENDS)


def find_backend(name: str) -> Backend:
    """Return the backend of a name; "auto" is the available one of highest priority.

    Raises:
        ArgumentError: the name is no string.
        UnknownNameError: there is no such backend; with the nearest names.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"a backend is named by a string, not by {shown(name)}")
    if name == AUTO:
        return _automatic()
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, backend_names())
    return BACKENDS[name]


def _automatic() -> Backend:
    candidates = sorted((b for b in BACKENDS.values() if b.priority > 0), key=lambda b: -b.priority)
    for backend in candidates[:-1]:
        if backend.why_unavailable() is None:
            return backend
    return candidates[-1]


def load(path: str | Path) -> Executable:
    """Read a program that `Executable.save` wrote; a cpu program needs no compiler.

    Raises:
        SavedProgramError: no such folder, another format, damaged, or built for another kind of processor.
        BackendError: it was saved for a backend that is unknown here.
    """
    with open_program(path) as folder:
        if folder.backend not in BACKENDS:
            raise BackendError(f"{folder.path} was saved for an unknown backend {folder.backend!r}")
        return BACKENDS[folder.backend].load(folder)
