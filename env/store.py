"""The store of kernel times: SQLite, keyed by a hash of kernel source, shapes, compiler and device."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from compiler.errors import HlogymError
from env.statistics import Interval

__all__ = ["KernelStore", "KernelTime", "StoreError", "default_store_path"]

SCHEMA_VERSION = 1

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


class StoreError(HlogymError, RuntimeError):
    """A store of kernel times that cannot be opened or written, and why."""


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel.

    Attributes:
        key: what tells this kernel from every other; made by the executable.
        name: for people.
        seconds: of one execution, median with interval.
        samples: how many timings that is of.
        reference_seconds: median of the reference load timed in turns with the kernel; what else the machine was doing
            shows in it.
    """

    key: str
    name: str
    seconds: Interval
    samples: int
    reference_seconds: float


def default_store_path() -> Path:
    """Where times are kept unless told otherwise: the user's cache folder."""
    return Path.home() / ".cache" / "hlogym" / "kernel_times.sqlite"


class KernelStore:
    """Kernel times on disk; several processes may use one file at once.

    Args:
        path: the file, made with its folders when it is not there; ":memory:" keeps nothing.

    Raises:
        StoreError: the file cannot be opened, or a newer hlogym wrote it.
    """

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.path = str(path)
        try:
            if self.path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=30)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot use {self.path} as the store of kernel times: {error}") from error

    def _prepare(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, and this hlogym knows {SCHEMA_VERSION}; name another file"
            )
        with self._db:
            if 0 < version < SCHEMA_VERSION:
                # Times can be measured again, so an old schema is dropped instead of migrated.
                self._db.execute("DROP TABLE IF EXISTS kernel_times")
            self._db.execute(_SCHEMA)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def get(self, keys: Iterable[str]) -> dict[str, KernelTime]:
        """The times known for these keys."""
        found: dict[str, KernelTime] = {}
        for key in dict.fromkeys(keys):
            row = self._db.execute(
                "SELECT name, seconds, low, high, samples, reference_seconds FROM kernel_times WHERE key = ?", (key,)
            ).fetchone()
            if row is not None:
                name, seconds, low, high, samples, reference = row
                found[key] = KernelTime(key, name, Interval(seconds, low, high), samples, reference)
        return found

    def put(self, times: Iterable[KernelTime]) -> None:
        """Keep these times; a time already there for the same key is replaced."""
        now = time.time()
        rows = [
            (t.key, t.name, t.seconds.value, t.seconds.low, t.seconds.high, t.samples, t.reference_seconds, now)
            for t in times
        ]
        try:
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO kernel_times VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StoreError(f"cannot write kernel times to {self.path}: {error}") from error

    def forget(self, keys: Iterable[str]) -> None:
        """Drop these times, so that they are measured again."""
        with self._db:
            self._db.executemany("DELETE FROM kernel_times WHERE key = ?", [(k,) for k in keys])

    def __len__(self) -> int:
        count: int = self._db.execute("SELECT COUNT(*) FROM kernel_times").fetchone()[0]
        return count

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._db.close()

    def __enter__(self) -> KernelStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def program_seconds(times: Mapping[str, KernelTime], executions: Iterable[tuple[str, float]]) -> Interval:
    """Time of a program: the sum over its kernels of the time of one execution, times how often it runs.

    Args:
        times: by key; every key of `executions` is among them.
        executions: (key, executions a call) of each kernel.
    """
    value = low = high = 0.0
    for key, count in executions:
        s = times[key].seconds
        value, low, high = value + s.value * count, low + s.low * count, high + s.high * count
    return Interval(value, low, high)
