"""Files are written atomically, and nothing else in their folder changes."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.support.files import replace_files, write_draft, write_file
from tests.full_disk import full_disk


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "b.txt", "é\n", durable=True)
    write_file(tmp_path / "a" / "c.bin", b"\0\xff")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é\n".encode()
    assert names_in(tmp_path / "a") == ["b.txt", "c.bin"]


def test_the_mode_of_a_replaced_file_is_kept_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "real.txt").chmod(0o640)
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_file(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real.txt").stat().st_mode) == 0o640


def test_what_is_there_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(OSError, match="No space"):
                write_file(target, "new" * 1000, durable=True)
        assert target.read_text() == "old"
        assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("write", [lambda path: write_file(path, "x", durable=True),
                                   lambda path: replace_files(path.parent, {path.name: b"x"})])  # fmt: skip
def test_folders_that_were_made_for_a_file_do_not_stay_without_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    (tmp_path / "mine").mkdir()
    with full_disk(0), pytest.raises(OSError, match="No space"):
        write(tmp_path / "mine" / "new" / "newer" / "a.txt")
    assert names_in(tmp_path / "mine") == []
    write(tmp_path / "mine" / "new" / "newer" / "a.txt")
    assert names_in(tmp_path / "mine" / "new" / "newer") == ["a.txt"]


def test_several_files_are_replaced_together_or_not_at_all(tmp_path: Path) -> None:
    old, new = {"a.txt": b"1", "part/b.txt": b"2"}, {"a.txt": b"3", "part/b.txt": b"4", "other/c.txt": b"5"}
    replace_files(tmp_path / "there", old)
    (tmp_path / "there" / "mine.txt").write_text("mine")
    for folder in ("there", "new"):
        with full_disk(1), pytest.raises(OSError, match="No space"):
            replace_files(tmp_path / folder, new)
    assert names_in(tmp_path) == ["there"]
    assert names_in(tmp_path / "there") == ["a.txt", "mine.txt", "part"]
    assert {name: (tmp_path / "there" / name).read_bytes() for name in old} == old
    replace_files(tmp_path / "there", new)
    assert {name: (tmp_path / "there" / name).read_bytes() for name in new} == new


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "mine", "x")
    assert names_in(tmp_path) == ["mine"]


def test_pipes_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_file(tmp_path / "pipe", "through")
    reader.join(60)
    assert got == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_file(Path(os.devnull), "gone")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_drafts_have_names_of_their_own(tmp_path: Path) -> None:
    drafts = {write_draft(tmp_path, b"x") for _ in range(20)}
    assert len(drafts) == len(names_in(tmp_path)) == 20
