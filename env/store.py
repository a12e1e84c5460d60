"""The store of measured plans: SQLite, keyed by program, compiled code, machine, host and compiler."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from compiler.errors import HlogymError
from env.gate import Verdict
from env.statistics import Interval

__all__ = ["PlanStore", "PlanTime", "StoreError", "TimeStore", "default_store_path"]

SCHEMA_VERSION = 2
BUSY_SECONDS = 10.0
"""How long another process may lock the file; a transaction here takes milliseconds."""

KEEP_SECONDS = 7 * 24 * 3600.0
"""Age at which a time has expired: the machine, its load and its libraries change."""

MOST_APART = 10.0
"""Most by which a speedup, a mean over pairs of blocks, may differ from the ratio of both times, which are medians."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS plan_times (
    key TEXT PRIMARY KEY,
    program TEXT NOT NULL,
    speedup REAL NOT NULL,
    speedup_low REAL NOT NULL,
    speedup_high REAL NOT NULL,
    base REAL NOT NULL,
    base_low REAL NOT NULL,
    base_high REAL NOT NULL,
    seconds REAL NOT NULL,
    seconds_low REAL NOT NULL,
    seconds_high REAL NOT NULL,
    counts INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    load REAL NOT NULL,
    measured_at REAL NOT NULL
) WITHOUT ROWID
"""
_COLUMNS = (
    "key", "program", "speedup", "speedup_low", "speedup_high", "base", "base_low", "base_high", "seconds",
    "seconds_low", "seconds_high", "counts", "blocks", "load", "measured_at",
)  # fmt: skip


class StoreError(HlogymError, RuntimeError):
    """A store of measured plans that cannot be opened or written, and why."""


@dataclass(frozen=True)
class PlanTime:
    """A plan measured against the default plan of its program.

    Attributes:
        key: identifies the program, the compiled code of both plans, the machine and its host.
        program: name of the program, for display.
        verdict: what the measurement found.
        load: median seconds of the reference load that ran between the blocks; shows how busy the machine was.
        measured_at: seconds since the epoch.
    """

    key: str
    program: str
    verdict: Verdict
    load: float
    measured_at: float


class TimeStore(Protocol):
    """Where a measurer keeps times: a file of its own, or one that another process owns."""

    def get(self, key: str) -> PlanTime | None:
        """Return what is known under a key; None if nothing is, or if it has expired."""
        ...

    def put(self, *found: PlanTime) -> None:
        """Store measurements, all or none of them."""
        ...

    def close(self) -> None:
        """Close the store; closing twice is harmless."""
        ...


def default_store_path() -> Path:
    """Return the default file of measured plans, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hlogym" / "plan_times.sqlite"


class PlanStore:
    """Measured plans on disk; several processes may use one file at once.

    A damaged file is neither repaired nor moved, because it may not be the file that was meant; the error says what to
    do. Every method raises StoreError if the file cannot be used, after about ten seconds at most.

    Args:
        path: the file, which is created with its folders if it does not exist; ":memory:" keeps times in memory.
        keep_seconds: age at which times have expired.

    Raises:
        StoreError: the file cannot be opened or written, is damaged, belongs to another program, or was written by a
            newer hlogym.
    """

    def __init__(self, path: str | Path = ":memory:", keep_seconds: float = KEEP_SECONDS) -> None:
        self.path, self._keep = str(path), keep_seconds
        try:
            if self.path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot use {self.path} as the store of measured plans: {error.strerror}; "
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
        columns = tuple(row[1] for row in self._db.execute("PRAGMA table_info(plan_times)"))
        other = (tables and version == 0) or (version == SCHEMA_VERSION and columns != _COLUMNS)
        if other or tables - {"plan_times", "kernel_times"}:
            raise StoreError(f"{self.path} is another database, not a store of measured plans")
        if version != SCHEMA_VERSION:
            # A log beside the file, so that several writers and readers rarely wait for each other. A transaction is in
            # the log or leaves nothing, even if its process is killed.
            self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        # Locks the file for writing, which fails at once if that is not possible.
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if version == SCHEMA_VERSION:
                return
            # Times can be measured again, so an old schema is dropped instead of migrated.
            self._db.execute("DROP TABLE IF EXISTS kernel_times")  # of version 1
            self._db.execute("DROP TABLE IF EXISTS plan_times")
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
                f"cannot {doing} {self.path}, the store of measured plans: {error}; {self._advice(error)}"
            ) from error

    def _advice(self, error: Exception) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bits give details
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return "another process has locked it: end that process, or wait for it"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return "it is damaged, or no store of measured plans: move it away, and plans are measured again"
            case sqlite3.SQLITE_FULL:
                return "free space on the disk"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
                return "make it writable, or set XDG_CACHE_HOME to a folder that is"
        return "move it away, and plans are measured again"

    def get(self, key: str) -> PlanTime | None:
        """Return what is known under a key; None if nothing is, if it has expired, or if it cannot be a time.

        Raises:
            StoreError: the file cannot be read.
        """
        with self._errors("read"):
            found = self._db.execute(f"SELECT {', '.join(_COLUMNS)} FROM plan_times WHERE key = ?", (key,))  # noqa: S608
            row = found.fetchone()
        if row is None or not _is_time(row) or not 0 <= time.time() - row[-1] < self._keep:
            return None
        key, program, *numbers, counts, blocks, load, measured_at = row
        speedup, base, seconds = (Interval(*numbers[i : i + 3]) for i in (0, 3, 6))
        return PlanTime(key, program, Verdict(speedup, base, seconds, bool(counts), blocks), load, measured_at)

    def put(self, *found: PlanTime) -> None:
        """Store measurements, all or none of them; one of the same key is replaced.

        Raises:
            StoreError: the file cannot be written.
        """
        rows = [_row(f) for f in found]
        marks = ", ".join("?" * len(_COLUMNS))
        with self._errors("write to"), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO plan_times VALUES ({marks})", rows)  # noqa: S608

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._db.close()

    def __enter__(self) -> PlanStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _row(found: PlanTime) -> tuple[str | float, ...]:
    v = found.verdict
    numbers = (x for i in (v.speedup, v.default, v.seconds) for x in (i.value, i.low, i.high))
    return found.key, found.program, *numbers, int(v.counts), v.blocks, found.load, found.measured_at


def _is_time(row: tuple[Any, ...]) -> bool:
    """Check whether a row is as `put` wrote it; the disk or another program may have changed it."""
    _, program, *numbers, counts, blocks, load, measured_at = row
    positive = all(isinstance(n, float) and math.isfinite(n) and n > 0 for n in numbers)
    others = all(isinstance(n, float) and math.isfinite(n) and n >= 0 for n in (load, measured_at))
    if not (positive and others and isinstance(program, str) and counts in (0, 1) and isinstance(blocks, int)):
        return False
    speedup, base, seconds = (Interval(*numbers[i : i + 3]) for i in (0, 3, 6))
    ordered = all(i.low <= i.value <= i.high for i in (speedup, base, seconds))
    return ordered and 1 / MOST_APART <= speedup.value * seconds.value / base.value <= MOST_APART
