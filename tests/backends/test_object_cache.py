"""The object cache: shared by processes and threads, and never a source of damaged objects."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cpu import toolchain as cpu
from compiler.backends.cpu.object_cache import ObjectCache, content_hash
from compiler.errors import BackendError

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
HloModule scaled
ENTRY main {{
  x = f32[100] parameter(0)
  c = f32[] constant({factor})
  b = f32[100] broadcast(c), dimensions={{}}
  ROOT r = f32[100] multiply(x, b)
}}
"""
X = np.arange(100, dtype=np.float32)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectCache:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    return cpu.object_cache()


def run(factor: int) -> None:
    (out,) = compile(PROGRAM.format(factor=factor))(X)
    np.testing.assert_array_equal(out, X * factor)


def test_an_object_is_stored_once_under_the_hash_of_its_content(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    path = cache.store(b"code")
    cache.record("sources", "a", path)
    cache.record("sources", "b", cache.store(b"code"))
    assert path.stem == content_hash(b"code")
    assert cache.find_all("sources", ["a", "b", "c"]) == {"a": path, "b": path}


@pytest.mark.parametrize("digest", ["", "0123", "../../etc/passwd", "\xff", "a" * 64])
def test_an_invalid_index_entry_counts_as_missing(digest: str, tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.record("sources", "key", cache.store(b"code"))
    (tmp_path / "sources" / "key").write_text(digest, encoding="latin-1")
    assert cache.find("sources", "key") is None


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [empty, cut, flip, Path.unlink])
def test_damaged_objects_are_built_again(damage: Callable[[Path], object], cache: ObjectCache) -> None:
    run(5)
    # The runtime stays loaded in this process, but the code of the program has been unloaded.
    runtime = cpu.toolchain().runtime()
    for path in cache.objects.glob("*.so"):
        if path != runtime:
            damage(path)
    run(5)
    assert all(cache.object(p.stem) == p for p in cache.objects.glob("*.so"))


def test_a_relative_cache_folder_is_relative_to_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLOGYM_CACHE", "kept/here")
    run(6)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(6)
    assert list((tmp_path / "kept" / "here" / "objects").glob("*.so"))
    assert list((tmp_path / "elsewhere" / "kept" / "here" / "objects").glob("*.so"))


def test_threads_may_compile_one_program_concurrently(cache: ObjectCache) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work() -> None:
        try:
            start.wait()
            run(7)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert not list(cache.folder.rglob(".draft-*"))


def test_processes_may_compile_one_program_concurrently(cache: ObjectCache) -> None:
    code = "from tests.backends.test_object_cache import run; run(8); run(9)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT) for _ in range(6)]
    assert [p.wait() for p in running] == [0] * 6


def test_a_full_disk_is_reported_and_leaves_no_drafts(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    run(10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(BackendError, match=r"cannot write compiled kernels to .*No space left on device"):
        run(11)
    monkeypatch.undo()
    monkeypatch.setenv("HLOGYM_CACHE", str(cache.folder))
    run(11)
    assert not list(cache.folder.rglob(".draft-*"))


def test_drafts_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.store(b"code")
    old, new = tmp_path / ".draft-old", cache.objects / ".draft-new"
    old.mkdir()
    (old / "kernel.c").write_text("int x;")
    new.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.remove_stale_drafts()
    assert not old.exists()
    assert new.exists()


# ---- the limit


def filled(folder: Path, limit: int) -> tuple[ObjectCache, list[Path]]:
    """Return a cache of six objects of 8 KiB, the last of which was used last, all some days ago."""
    cache = ObjectCache(folder, limit)
    paths = [cache.store(bytes([n]) * 8192) for n in range(6)]
    for n, path in enumerate(paths):
        cache.record("sources", f"s{n}", path)
        cache.record("kernels-x", f"k{n}", path)
        age_path(path, 86400 * (10 - n))
    return cache, paths


def age_path(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_objects_used_least_recently_are_removed(tmp_path: Path) -> None:
    cache, paths = filled(tmp_path, 3 * 8192)
    assert cache.trim() == 3
    assert [p.exists() for p in paths] == [False] * 3 + [True] * 3
    assert sorted(p.name for p in (tmp_path / "sources").iterdir()) == ["s3", "s4", "s5"]
    assert sorted(p.name for p in (tmp_path / "kernels-x").iterdir()) == ["k3", "k4", "k5"]
    assert cache.trim() == 0


def test_a_use_protects_an_object(tmp_path: Path) -> None:
    cache, paths = filled(tmp_path, 0)
    assert cache.find("sources", "s0") == paths[0]
    assert cache.trim() == 5
    assert cache.find("kernels-x", "k0") == paths[0]


def test_a_cache_within_its_limit_is_kept(tmp_path: Path) -> None:
    cache, paths = filled(tmp_path, 6 * 8192)
    assert cache.trim() == 0
    assert all(p.exists() for p in paths)


def test_the_limit_is_checked_when_an_object_is_stored_but_not_every_time(tmp_path: Path) -> None:
    cache, paths = filled(tmp_path, 0)
    cache.store(b"new")  # the first object was stored just now, which checked the limit
    assert all(p.exists() for p in paths)
    age_path(tmp_path / "trimmed", 7200)
    new = cache.store(b"newer")
    assert not any(p.exists() for p in paths)
    assert new.exists()


@pytest.mark.parametrize(("text", "size"), [("", 2 << 30), ("500M", 500 << 20), ("4g", 4 << 30), ("1000", 1000)])
def test_the_limit_is_read_from_the_environment(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE_SIZE", text)
    assert cpu.object_cache().limit == size


@pytest.mark.parametrize("text", ["-1", "many", "1.5G", "3 GB"])
def test_a_malformed_limit_is_reported(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE_SIZE", text)
    with pytest.raises(BackendError, match="HLOGYM_CACHE_SIZE"):
        cpu.object_cache()


def test_a_program_runs_while_other_processes_empty_the_cache(cache: ObjectCache) -> None:
    compiled = [compile(PROGRAM.format(factor=n)) for n in range(2, 5)]
    for path in cache.objects.iterdir():
        age_path(path, 7200)
    assert ObjectCache(cache.folder, 0).trim() > 0
    for n, exe in enumerate(compiled):
        np.testing.assert_array_equal(exe(X)[0], X * (n + 2))
    run(3)
