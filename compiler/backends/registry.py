"""The registry of backends: it contains the `BACKEND` of every package in `compiler/backends`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import compiler.backends
from compiler.backends.backend import Backend
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.errors import ArgumentError, BackendError, UnknownNameError
from compiler.runtime.executable import Executable
from compiler.runtime.program_files import open_program
from compiler.support.untrusted import short_repr

AUTO = "auto"
"""The name of the best backend that works on this machine."""


def _discover() -> dict[str, Backend]:
    names = sorted(m.name for m in pkgutil.iter_modules(compiler.backends.__path__) if m.ispkg)
    packages = [importlib.import_module(f"{compiler.backends.__name__}.{name}") for name in names]
    return {package.BACKEND.name: package.BACKEND for package in packages}


BACKENDS: Mapping[str, Backend] = _discover()


def backend_names() -> tuple[str, ...]:
    """Return the names that users may pass: "auto" and the name of every backend."""
    return (AUTO, *BACKENDS)


def find_backend(name: str) -> Backend:
    """Return the backend of a name; "auto" is the available one of highest priority.

    Raises:
        ArgumentError: the name is not a string.
        UnknownNameError: there is no such backend; the message suggests similar names.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a backend must be a string, not {short_repr(name)}")
    if name == AUTO:
        return _automatic()
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, backend_names())
    return BACKENDS[name]


def build_target(backend: Backend) -> BuildTarget:
    """Return what kernels of a backend are checked for; for one that compiles none, C with its defaults."""
    if backend.language is None:
        return C_TARGET
    return BuildTarget(backend.language, backend.default_schedule, backend.name)


def _automatic() -> Backend:
    candidates = sorted((b for b in BACKENDS.values() if b.priority > 0), key=lambda b: -b.priority)
    for backend in candidates[:-1]:
        if backend.why_unavailable() is None:
            return backend
    return candidates[-1]


def load(path: str | Path) -> Executable:
    """Load a program that `Executable.save` wrote; a cpu program loads without a C compiler.

    Raises:
        SavedProgramError: the folder does not exist, has another format, is damaged, or was built for another kind of
            processor.
        BackendError: the program was saved for an unknown backend.
    """
    with open_program(path) as folder:
        if folder.backend not in BACKENDS:
            raise BackendError(f"{folder.path} was saved for an unknown backend {folder.backend!r}")
        return BACKENDS[folder.backend].load(folder)
