"""Programs of `hlogym.jit`: one executable per program and settings, in memory and on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from compiler.api import CompileOptions, compile, load
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.registry import find_backend
from compiler.backends.xla.executable import XlaExecutable
from compiler.errors import HlogymError
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.support.files import folder_lock

__all__ = ["PROGRAMS", "Program", "ProgramCache", "Settings"]

LIMIT = 1 << 30
"""Bytes on disk that programs may take."""
RECENT_SECONDS = 3600
"""Seconds after its last use in which a program on disk is never removed, and between two checks of the limit."""


@dataclass(frozen=True, eq=False)
class Settings:
    """How a function of `hlogym.jit` is compiled, as the arguments of `compile`.

    Attributes:
        decisions: names and values of further arguments of `compile`.
        note: called with each program that is compiled or found, if it is not None.
    """

    backend: str = "cpu"
    policy: Any = None
    plan: CompilationPlan | None = None
    options: CompileOptions | None = None
    decisions: tuple[tuple[str, Any], ...] = ()
    note: Callable[[Program], None] | None = field(default=None, repr=False)

    def derived(self) -> Settings:
        """Return the settings of derivatives and batches, for which no plan was made and which are not noted."""
        return self if self.plan is None and self.note is None else self._derived

    @functools.cached_property
    def _derived(self) -> Settings:
        return replace(self, plan=None, note=None)

    def key(self) -> str | None:
        """Return a string that determines the decisions, or None if objects without a name make them."""
        named = [self.policy, *(value for _, value in self.decisions)]
        if not all(value is None or isinstance(value, str) for value in named):
            return None
        plan = "" if self.plan is None else self.plan.to_json()
        options = asdict(self.options or CompileOptions())
        return "\n".join([self.backend, repr(named), repr(self.decisions), repr(sorted(options.items())), plan])

    def compile(self, module: HloModule) -> CpuExecutable | XlaExecutable:
        """Compile a module."""
        given = {"policy": self.policy, "plan": self.plan, "options": self.options, **dict(self.decisions)}
        executable = compile(module, self.backend, **{k: v for k, v in given.items() if v is not None})
        assert isinstance(executable, CpuExecutable | XlaExecutable)  # noqa: S101
        return executable


@dataclass(eq=False)
class Program:
    """A compiled program.

    Attributes:
        executable: the executable.
        key: what calls from XLA name it by.
        seconds: time that it took to compile or load.
        loaded: whether it comes from the disk.
        settings: how it was compiled; the reference keeps the identity of the settings.
    """

    executable: CpuExecutable | XlaExecutable
    key: int
    seconds: float
    loaded: bool
    settings: Settings


class ProgramCache:
    """The programs of this process by what determines them, and a bounded folder for later processes."""

    def __init__(self) -> None:
        self._programs: weakref.WeakValueDictionary[str, Program] = weakref.WeakValueDictionary()
        self._building: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, text: str, settings: Settings, module: Callable[[], HloModule]) -> Program:
        """Return the program of HLO text; compile it unless it is known here or on disk.

        Args:
            text: HLO text without metadata, which determines the program.
            settings: how to compile it.
            module: returns the module to compile.
        """
        decisions = settings.key()
        key = _digest(text, decisions if decisions is not None else f"settings {id(settings)}")
        with self._only_once(key):
            found = self._programs.get(key)
            if found is None:
                found = self._make(key, settings, module, on_disk=decisions is not None)
                self._programs[key] = found
        return found

    @contextmanager
    def _only_once(self, key: str) -> Iterator[None]:
        """Let one thread at a time compile a program."""
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._building.pop(key, None)

    def _make(self, key: str, settings: Settings, module: Callable[[], HloModule], on_disk: bool) -> Program:
        start = time.perf_counter()
        folder = _folder() / _digest(key, _identity(settings.backend)) if on_disk else None
        executable: CpuExecutable | XlaExecutable | None = None if folder is None else _load(folder)
        loaded = executable is not None
        if executable is None:
            executable = settings.compile(module())
            if folder is not None and isinstance(executable, CpuExecutable):
                _save(executable, folder)
        number = int(key[:15], 16) + 1
        return Program(executable, number, time.perf_counter() - start, loaded, settings)

    def renew_locks(self) -> None:
        """Replace the locks: in a forked child their holders may be threads that do not exist there."""
        self._lock, self._building = threading.Lock(), {}


PROGRAMS = ProgramCache()
os.register_at_fork(after_in_child=PROGRAMS.renew_locks)


# ---- on disk


def _folder() -> Path:
    return toolchain.object_cache().folder / "programs"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


@functools.lru_cache(maxsize=1)
def _sources() -> str:
    """Return a hash of this compiler's source, so that programs of another version are never used."""
    digest = hashlib.sha256()
    package = resources.files("compiler")
    for path in sorted(Path(str(package)).rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".json"):
            digest.update(path.name.encode() + path.read_bytes())
    for name in ("numpy", "ml_dtypes", "onednn-cpu-gomp"):
        with suppress(metadata.PackageNotFoundError):
            digest.update(metadata.version(name).encode())
    return digest.hexdigest()


def _identity(backend: str) -> str:
    """Return what a compiled program depends on besides its text and its settings."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("HLOGYM_ONEDNN")}
    return "\n".join([_sources(), find_backend(backend).machine_key(), repr(sorted(variables.items()))])


def _load(folder: Path) -> CpuExecutable | None:
    if not folder.is_dir():
        return None
    try:
        executable = load(folder)
        os.utime(folder)
    except (HlogymError, OSError):  # damaged, or removed by another process; it is compiled again
        return None
    return executable if isinstance(executable, CpuExecutable) else None


def _save(executable: CpuExecutable, folder: Path) -> None:
    with suppress(HlogymError, OSError):  # a full disk is no reason to fail: the program runs
        executable.save(folder)
        _trim_if_due(folder.parent)


def _trim_if_due(folder: Path) -> None:
    mark = folder / "trimmed"
    if mark.exists() and time.time() - mark.stat().st_mtime < RECENT_SECONDS:
        return
    mark.touch()
    trim(folder, LIMIT)


def trim(folder: Path, limit: int, recent_seconds: float = RECENT_SECONDS) -> int:
    """Remove the programs that were used least recently until the others fit the limit; return their number."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process has removed it
            if path.is_dir():
                size = sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())
                found.append((path.stat().st_mtime, size, path))
    excess, removed = sum(size for _, size, _ in found) - limit, 0
    for used, size, path in sorted(found):
        if excess <= 0 or time.time() - used < recent_seconds:
            break
        with suppress(OSError), folder_lock(path):
            shutil.rmtree(path)
            removed, excess = removed + 1, excess - size
    return removed
