"""The store of kernel times keeps, replaces, refuses."""

import sqlite3
from pathlib import Path

import pytest

from env.statistics import Interval
from env.store import KernelStore, KernelTime, StoreError, program_seconds


def _time(key: str, seconds: float) -> KernelTime:
    return KernelTime(key, "add", Interval(seconds, seconds * 0.9, seconds * 1.1), 9, 1e-4)


def test_times_survive_closing(tmp_path: Path) -> None:
    with KernelStore(tmp_path / "deep" / "t.sqlite") as store:
        store.put([_time("a", 1.0), _time("b", 2.0)])
        store.put([_time("a", 3.0)])
    with KernelStore(tmp_path / "deep" / "t.sqlite") as store:
        assert len(store) == 2
        assert store.get(["a", "b", "c"]) == {"a": _time("a", 3.0), "b": _time("b", 2.0)}
        store.forget(["a"])
        assert store.get(["a"]) == {}


def test_two_open_stores_see_each_other(tmp_path: Path) -> None:
    with KernelStore(tmp_path / "t.sqlite") as one, KernelStore(tmp_path / "t.sqlite") as two:
        one.put([_time("a", 1.0)])
        assert two.get(["a"]) == {"a": _time("a", 1.0)}


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema version 99"):
        KernelStore(path)


def test_an_unusable_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match="cannot use"):
        KernelStore(path)


def test_program_time_counts_executions() -> None:
    total = program_seconds({"a": _time("a", 1.0), "b": _time("b", 2.0)}, [("a", 10.0), ("b", 1.0), ("a", 1.0)])
    assert total.value == pytest.approx(13.0)
    assert total.low < total.value < total.high
