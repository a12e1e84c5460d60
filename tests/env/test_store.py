"""The store of measured plans keeps, replaces and forgets times, and refuses files it cannot use."""

import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import env.store
from env.gate import Verdict
from env.isolated import python_command
from env.statistics import Interval
from env.store import PlanStore, PlanTime, StoreError, default_store_path

NOW = time.time()


def _time(key: str, seconds: float, age: float = 0.0) -> PlanTime:
    each = Interval(seconds, seconds * 0.9, seconds * 1.1)
    return PlanTime(key, "add", Verdict(Interval(1.25, 1.2, 1.3), each.scaled(1.25), each, True, 9), 1e-4, NOW - age)


def test_times_survive_closing(tmp_path: Path) -> None:
    with PlanStore(tmp_path / "deep" / "t.sqlite") as store:
        store.put(_time("a", 1.0), _time("b", 2.0))
        store.put(_time("a", 3.0))
    with PlanStore(tmp_path / "deep" / "t.sqlite") as store:
        assert [store.get(k) for k in "abc"] == [_time("a", 3.0), _time("b", 2.0), None]


def test_old_times_expire(tmp_path: Path) -> None:
    with PlanStore(tmp_path / "t.sqlite", keep_seconds=1e7) as store:
        store.put(_time("young", 1.0, age=5e6), _time("old", 1.0, age=1.5e7), _time("of tomorrow", 1.0, age=-1e8))
        assert store.get("young") is not None
        assert store.get("old") is None
        assert store.get("of tomorrow") is None  # the clock was wrong then, or is now


def test_times_of_an_earlier_version_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE kernel_times (key TEXT)")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with PlanStore(path) as store:
        store.put(_time("a", 1.0))
        assert store.get("a") == _time("a", 1.0)


def test_two_open_stores_see_each_other(tmp_path: Path) -> None:
    with PlanStore(tmp_path / "t.sqlite") as one, PlanStore(tmp_path / "t.sqlite") as two:
        one.put(_time("a", 1.0))
        assert two.get("a") == _time("a", 1.0)


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="schema version 99"):
        PlanStore(path)


def test_an_unusable_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match="cannot use"):
        PlanStore(path)


def _filled(path: Path, count: int = 2000) -> Path:
    with PlanStore(path) as store:
        store.put(*(_time(f"{i:05d}-{'x' * 40}", 1.0) for i in range(count)))
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
    with pytest.raises(StoreError, match=r"t\.sqlite") as caught, PlanStore(path) as store:
        [store.get(f"{i:05d}-{'x' * 40}") for i in range(2000)]
        store.put(*(_time(f"{i:05d}-new", 1.0) for i in range(2000)))
    assert "move it away" in str(caught.value)
    assert path.read_bytes() == damaged


def test_damage_while_it_is_open_is_a_clear_error(tmp_path: Path) -> None:
    path = _filled(tmp_path / "t.sqlite")
    with PlanStore(path) as store:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
        with pytest.raises(StoreError, match="cannot read"):
            [store.get(f"{i:05d}-{'x' * 40}") for i in range(2000)]
        with pytest.raises(StoreError, match="cannot write"):
            store.put(*(_time(f"{i:05d}-new", 1.0) for i in range(2000)))


def test_a_store_that_another_process_has_locked_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.store, "BUSY_SECONDS", 0.2)
    path = _filled(tmp_path / "t.sqlite", 1)
    with PlanStore(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for attempt in (lambda: store.put(_time("b", 1.0)), lambda: PlanStore(path)):
            with pytest.raises(StoreError, match="another process has locked it"):
                attempt()
        other.execute("ROLLBACK")
        other.close()
        store.put(_time("b", 1.0))
        assert store.get("b") == _time("b", 1.0)


def test_a_store_that_cannot_be_written_is_reported_on_opening(tmp_path: Path) -> None:
    path = _filled(tmp_path / "t.sqlite", 1)
    with PlanStore(path) as store:
        store._db.execute("PRAGMA query_only = 1")  # as for a file without the right to write
        with pytest.raises(StoreError, match="cannot write to"):
            store.put(_time("b", 1.0))
    for place in (tmp_path, tmp_path / "t.sqlite" / "deeper.sqlite", tmp_path / "a\0b"):
        with pytest.raises(StoreError, match="cannot use"):
            PlanStore(place)


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    with PlanStore(_filled(tmp_path / "t.sqlite", 1)) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="free space"):
            store.put(*(_time(f"{i:05d}", 1.0) for i in range(2000)))
        assert store.get("00000") is None


@pytest.mark.parametrize("version", [0, 2])
def test_a_database_of_another_program_is_not_changed(tmp_path: Path, version: int) -> None:
    path = tmp_path / "mine.sqlite"
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE thesis (text TEXT)" if version == 0 else "CREATE TABLE plan_times (mine TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another database"):
        PlanStore(path)
    assert path.read_bytes() == before


def test_rows_that_cannot_be_times_are_ignored(tmp_path: Path) -> None:
    with PlanStore(tmp_path / "t.sqlite") as store:
        changes = (
            "seconds = 'fast'", "base_low = 9e999", "speedup = -1.0", "blocks = 'many'", "program = x'00'",
            "speedup = 1e300, speedup_high = 1e301", "speedup_low = 2 * speedup_high", "seconds_high = seconds / 2",
            "base = 50 * base, base_high = 50 * base_high",
        )  # fmt: skip
        keys = "abcdefghi"
        store.put(*(_time(k, 1.0) for k in (*keys, "z")))
        for key, change in zip(keys, changes, strict=True):
            store._db.execute(f"UPDATE plan_times SET {change} WHERE key = '{key}'")  # noqa: S608
        assert [store.get(k) for k in keys] == [None] * len(keys)
        assert store.get("z") == _time("z", 1.0)
        store.put(_time("a", 2.0))
        assert store.get("a") == _time("a", 2.0)


_WRITER = """
import sys, time
from env.gate import Verdict
from env.statistics import Interval
from env.store import PlanStore, PlanTime

each = Interval(1.0, 1.0, 1.0)
with PlanStore(sys.argv[1]) as store:
    for n in range(100000):
        key = f"{sys.argv[2]} {n}"
        store.put(PlanTime(key, "p", Verdict(each, each, each, True, 9), 0.0, time.time()))
        print(key, flush=True)
"""


def test_writers_that_are_killed_lose_no_record(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    PlanStore(path).close()
    writers = [
        subprocess.Popen(python_command(_WRITER, str(path), str(n)), stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    said = []
    for writer in writers:
        assert writer.stdout is not None
        said += [writer.stdout.readline() for _ in range(20)]
        writer.kill()
        said += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.wait()
    with PlanStore(path) as store:
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert [line for line in said if store.get(line.strip()) is None] == []


def test_the_default_path_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_store_path().is_relative_to(tmp_path)
