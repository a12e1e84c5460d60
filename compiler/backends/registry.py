"""The registry of backends: the `BACKEND` of every package in `compiler/backends`, and those of entry points."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import compiler.backends
from compiler.backends.backend import Backend
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.errors import ArgumentError, BackendError, UnknownNameError
from compiler.runtime.executable import Executable
from compiler.runtime.program_files import open_program
from compiler.support.plugins import extension_names, find_extension, missing
from compiler.support.untrusted import short_repr

GROUP = "hlogym.backends"
"""The group of entry points with backends of other distributions."""
_MEMBERS = ("name", "language", "priority", "optional", "default_schedule", "device_model", "why_unavailable",
            "machine_key", "library_refusal", "build", "load")  # fmt: skip
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
        ExtensionError: the backend of another distribution cannot be used.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a backend must be a string, not {short_repr(name)}")
    if name == AUTO:
        return _automatic()
    if (found := known_backend(name)) is None:
        raise UnknownNameError("backend", name, (*backend_names(), *extension_names(GROUP)))
    return found


def known_backend(name: str) -> Backend | None:
    """Return the backend of a name, ours or one that another distribution declares in the group hlogym.backends.

    Returns:
        The backend, or None if there is none. "auto" is no backend, and never selects one of another distribution.

    Raises:
        ExtensionError: the backend of another distribution cannot be used.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    found: Backend | None = find_extension(GROUP, name, lacks_of_backend(name))
    return found


def lacks_of_backend(name: str) -> Callable[[Any], str | None]:
    """Return a function that checks an object: it returns what keeps it from being the backend of that name."""

    def lacks(backend: Any) -> str | None:
        if (reason := missing(backend, _MEMBERS, "Backend")) is not None:
            return reason
        if backend.name != name:
            return f"its `name` is {short_repr(backend.name)}, so plans could not name it; declare it by that name"
        return None

    return lacks


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
        if (backend := known_backend(folder.backend)) is None:
            raise BackendError(f"{folder.path} was saved for an unknown backend {folder.backend!r}")
        return backend.load(folder)
