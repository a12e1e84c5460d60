"""The store of kernel times: SQLite, keyed by a hash of kernel source, shapes, compiler and device."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from compiler.errors import HlogymError
from env.statistics import Interval

__all__ = ["KernelStore", "KernelTime", "StoreError", "default_store_path"]

SCHEMA_VERSION = 1
BUSY_SECONDS = 10.0
"""How long another process may lock the file; a transaction here takes milliseconds."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernel_times (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    seconds REAL NOT NULL,
    low REAL NOT NULL,
    high REAL NOT NULL,
    samples INTEGER NOT NULL,
    reference_seconds REAL NOT NULL,
    measured_at REAL NOT NULL
) WITHOUT ROWID
"""
_COLUMNS = ("key", "name", "seconds", "low", "high", "samples", "reference_seconds", "measured_at")


class StoreError(HlogymError, RuntimeError):
    """A store of kernel times that cannot be opened or written, and why."""


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel.

    Attributes:
        key: identifies the kernel; made by the executable.
        name: for display.
        seconds: median time of one execution, with its interval.
        samples: number of timings.
        reference_seconds: median time of the reference load that was interleaved with the kernel; shows how busy the
            machine was.
    """

    key: str
    name: str
    seconds: Interval
    samples: int
    reference_seconds: float


def default_store_path() -> Path:
    """Return the default file of kernel times, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hlogym" / "kernel_times.sqlite"


class KernelStore:
    """Kernel times on disk; several processes may use one file at once.

    A damaged file is neither repaired nor moved, because it may not be the file that was meant; the error says what to
    do. Every method raises StoreError if the file cannot be used, after about ten seconds at most.

    Args:
        path: the file, which is created with its folders if it does not exist; ":memory:" keeps times in memory.

    Raises:
        StoreError: the file cannot be opened or written, is damaged, belongs to another program, or was written by a
            newer hlogym.
    """

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.path = str(path)
        try:
            if self.path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot use {self.path} as the store of kernel times: {error.strerror}; "
                "set XDG_CACHE_HOME to a folder that can be written"
            ) from error
        with self._errors("use"):
            self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this hlogym knows {SCHEMA_VERSION}; choose another file"
            )
        names = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        tables = {name for name in names if not name.startswith("sqlite_")}  # SQLite keeps some of its own
        columns = tuple(row[1] for row in self._db.execute("PRAGMA table_info(kernel_times)"))
        other = (tables and version == 0) or (version == SCHEMA_VERSION and columns != _COLUMNS)
        if other or tables - {"kernel_times"}:
            raise StoreError(f"{self.path} is another database, not a store of kernel times")
        # Locks the file for writing, which fails at once if that is not possible.
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if version == SCHEMA_VERSION:
                return
            # Times can be measured again, so an old schema is dropped instead of migrated.
            self._db.execute("DROP TABLE IF EXISTS kernel_times")
            self._db.execute(_SCHEMA)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:  # a mistake of the caller, such as use after close
            raise
        except (sqlite3.Error, ValueError) as error:  # ValueError: a path with a null character
            raise StoreError(
                f"cannot {doing} {self.path}, the store of kernel times: {error}; {self._advice(error)}"
            ) from error

    def _advice(self, error: Exception) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bits give details
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return "another process has locked it: end that process, or wait for it"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return "it is damaged, or no store of kernel times: move it away, and kernels are measured again"
            case sqlite3.SQLITE_FULL:
                return "free space on the disk"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
                return "make it writable, or set XDG_CACHE_HOME to a folder that is"
        return "move it away, and kernels are measured again"

    def get(self, keys: Iterable[str]) -> dict[str, KernelTime]:
        """Return the known times for these keys; rows that cannot be times are left out.

        Raises:
            StoreError: the file cannot be read.
        """
        found: dict[str, KernelTime] = {}
        with self._errors("read"):
            for key in dict.fromkeys(keys):
                row = self._db.execute(
                    "SELECT name, seconds, low, high, samples, reference_seconds FROM kernel_times WHERE key = ?",
                    (key,),
                ).fetchone()
                if row is not None and _is_time(row):
                    name, seconds, low, high, samples, reference = row
                    found[key] = KernelTime(key, name, Interval(seconds, low, high), samples, reference)
        return found

    def put(self, times: Iterable[KernelTime]) -> None:
        """Store these times; a stored time of the same key is replaced.

        Raises:
            StoreError: the file cannot be written.
        """
        now = time.time()
        rows = [
            (t.key, t.name, t.seconds.value, t.seconds.low, t.seconds.high, t.samples, t.reference_seconds, now)
            for t in times
        ]
        with self._errors("write kernel times to"), self._db:
            self._db.executemany("INSERT OR REPLACE INTO kernel_times VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._db.close()

    def __enter__(self) -> KernelStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_time(row: tuple[Any, ...]) -> bool:
    """Check whether a row is as `put` wrote it; the disk or another program may have changed it."""
    name, *seconds, samples, reference = row
    numbers = (*seconds, reference)
    return (
        isinstance(name, str)
        and isinstance(samples, int)
        and all(isinstance(n, float) and math.isfinite(n) and n >= 0 for n in numbers)
    )


def program_seconds(times: Mapping[str, KernelTime], executions: Iterable[tuple[str, float]]) -> Interval:
    """Return the time of a program: the sum over its kernels of the time per execution times the executions per call.

    Args:
        times: times by key; has every key of `executions`.
        executions: (key, executions per call) of each kernel.
    """
    value = low = high = 0.0
    for key, count in executions:
        s = times[key].seconds
        value, low, high = value + s.value * count, low + s.low * count, high + s.high * count
    return Interval(value, low, high)
