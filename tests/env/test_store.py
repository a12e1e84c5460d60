"""The store of kernel times keeps and replaces times, and refuses files it cannot use."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import env.store
from env.statistics import Interval
from env.store import KernelStore, KernelTime, StoreError, default_store_path, program_seconds


def _time(key: str, seconds: float) -> KernelTime:
    return KernelTime(key, "add", Interval(seconds, seconds * 0.9, seconds * 1.1), 9, 1e-4)


def test_times_survive_closing(tmp_path: Path) -> None:
    with KernelStore(tmp_path / "deep" / "t.sqlite") as store:
        store.put([_time("a", 1.0), _time("b", 2.0)])
        store.put([_time("a", 3.0)])
    with KernelStore(tmp_path / "deep" / "t.sqlite") as store:
        assert store.get(["a", "b", "c"]) == {"a": _time("a", 3.0), "b": _time("b", 2.0)}


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


def _filled(path: Path, count: int = 2000) -> Path:
    with KernelStore(path) as store:
        store.put(_time(f"{i:05d}-{'x' * 40}", 1.0) for i in range(count))
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],  # truncated
        lambda data: data[:50],
        lambda data: data[:100] + b"\xff" * (len(data) - 100),
        lambda data: b"\0" * len(data),
        lambda data: (
            data[:4096] + bytes(b ^ 0xA5 for b in data[4096:])
        ),  # the first page, which opening reads, is whole
    ],
)
def test_a_damaged_file_is_reported_and_not_changed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = _filled(tmp_path / "t.sqlite")
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"t\.sqlite") as caught, KernelStore(path) as store:
        store.get([f"{i:05d}-{'x' * 40}" for i in range(2000)])
        store.put(_time(f"{i:05d}-new", 1.0) for i in range(2000))
    assert "move it away" in str(caught.value)
    assert path.read_bytes() == damaged


def test_damage_while_it_is_open_is_a_clear_error(tmp_path: Path) -> None:
    path = _filled(tmp_path / "t.sqlite")
    with KernelStore(path) as store:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
        with pytest.raises(StoreError, match="cannot read"):
            store.get([f"{i:05d}-{'x' * 40}" for i in range(2000)])
        with pytest.raises(StoreError, match="cannot write"):
            store.put(_time(f"{i:05d}-new", 1.0) for i in range(2000))


def test_a_store_that_another_process_has_locked_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.store, "BUSY_SECONDS", 0.2)
    path = _filled(tmp_path / "t.sqlite", 1)
    with KernelStore(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for attempt in (lambda: store.put([_time("b", 1.0)]), lambda: store.get(["a"]), lambda: KernelStore(path)):
            with pytest.raises(StoreError, match="another process has locked it"):
                attempt()
        other.execute("ROLLBACK")
        other.close()
        store.put([_time("b", 1.0)])
        assert store.get(["b"]) == {"b": _time("b", 1.0)}


def test_a_store_that_cannot_be_written_is_reported_on_opening(tmp_path: Path) -> None:
    path = _filled(tmp_path / "t.sqlite", 1)
    with KernelStore(path) as store:
        store._db.execute("PRAGMA query_only = 1")  # as for a file without the right to write
        with pytest.raises(StoreError, match="cannot write kernel times"):
            store.put([_time("b", 1.0)])
    for place in (tmp_path, tmp_path / "t.sqlite" / "deeper.sqlite", tmp_path / "a\0b"):
        with pytest.raises(StoreError, match="cannot use"):
            KernelStore(place)


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    with KernelStore(_filled(tmp_path / "t.sqlite", 1)) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="free space"):
            store.put(_time(f"{i:05d}", 1.0) for i in range(2000))
        assert store.get(["00000"]) == {}


@pytest.mark.parametrize("version", [0, 1])
def test_a_database_of_another_program_is_not_changed(tmp_path: Path, version: int) -> None:
    path = tmp_path / "mine.sqlite"
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE thesis (text TEXT)" if version == 0 else "CREATE TABLE kernel_times (mine TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another database"):
        KernelStore(path)
    assert path.read_bytes() == before


def test_rows_that_cannot_be_times_are_ignored(tmp_path: Path) -> None:
    with KernelStore(tmp_path / "t.sqlite") as store:
        store.put(_time(k, 1.0) for k in "abcdef")
        changes = ("seconds = 'fast'", "low = 9e999", "high = -1.0", "samples = 'many'", "name = x'00'")
        for key, change in zip("abcde", changes, strict=True):
            store._db.execute(f"UPDATE kernel_times SET {change} WHERE key = '{key}'")  # noqa: S608
        assert store.get("abcdef") == {"f": _time("f", 1.0)}
        store.put([_time("a", 2.0)])
        assert store.get("a") == {"a": _time("a", 2.0)}


def test_the_default_path_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_store_path().is_relative_to(tmp_path)
