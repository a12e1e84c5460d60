"""Policy folders: other people's files stay, and a kill never leaves a mixture that passes for a policy."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.errors import PolicyError
from compiler.learned.policy_folder import (
    copy_policy_folder,
    describe_policy,
    is_policy_folder,
    read_policy_folder,
    write_policy_folder,
)
from tests.full_disk import full_disk

ROOT = Path(__file__).resolve().parents[2]
KIND, VERSION = "hlogym-test-policy", 3


def weights(value: float) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    return {"w": np.full((2, 3), value, np.float32)}


def write(folder: Path, value: float) -> None:
    write_policy_folder(folder, {"format": KIND, "feature_version": VERSION, "value": value}, weights(value))


def read(folder: Path) -> float:
    """The value of a policy, which its two files must agree on."""
    description, arrays = read_policy_folder(folder, KIND, VERSION)
    assert (arrays["w"] == description["value"]).all()
    return float(description["value"])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


FOREIGN = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}',
    '{"format": "cedar"}', "[]", "", "not json", "[" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_a_policy_of_something_else_is_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "ours").mkdir()
    write(tmp_path / "ours", 1)
    folder = tmp_path / "iam"
    folder.mkdir()
    (folder / "policy.json").write_text(text)
    (folder / "notes.md").write_text("mine")
    before = contents(folder)
    assert not is_policy_folder(folder)
    with pytest.raises(PolicyError, match="no policy folder"):
        write(folder, 2)
    with pytest.raises(PolicyError, match="no policy folder"):
        copy_policy_folder(tmp_path / "ours", folder)
    assert contents(folder) == before


def test_two_policies_written_at_the_same_time(tmp_path: Path) -> None:
    for n in range(30):
        folder = tmp_path / str(n)
        write(folder, 0)
        begin = threading.Barrier(2)

        def replace(value: float, folder: Path = folder, begin: threading.Barrier = begin) -> None:
            begin.wait()
            write(folder, value)

        threads = [threading.Thread(target=replace, args=(v,)) for v in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read(folder) in (1, 2)


def test_files_beside_a_policy_stay(tmp_path: Path) -> None:
    write(tmp_path / "p", 1)
    others = {"README.md": b"mine", "notebook.ipynb": b"{}", "policy.safetensors.bak": b"x", "sub/deep.txt": b"y"}
    for name, data in others.items():
        (tmp_path / "p" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "p" / name).write_bytes(data)
    write(tmp_path / "p", 2)
    write(tmp_path / "q", 3)
    copy_policy_folder(tmp_path / "q", tmp_path / "p")
    assert read(tmp_path / "p") == 3
    left = contents(tmp_path / "p")
    assert {k: v for k, v in left.items() if k in others} == others
    assert set(left) - set(others) == {"policy.json", "policy.safetensors"}


def test_a_copy_brings_the_policy_alone(tmp_path: Path) -> None:
    write(tmp_path / "p", 1)
    (tmp_path / "p" / "secret.txt").write_text("mine")
    copy_policy_folder(tmp_path / "p", tmp_path / "new" / "q")
    assert read(tmp_path / "new" / "q") == 1
    assert set(contents(tmp_path / "new" / "q")) == {"policy.json", "policy.safetensors"}
    copy_policy_folder(tmp_path / "p", tmp_path / "p")
    assert read(tmp_path / "p") == 1


def test_a_link_in_the_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "p", 1)
    shared = tmp_path / "shared.safetensors"
    (tmp_path / "p" / "policy.safetensors").rename(shared)
    (tmp_path / "p" / "policy.safetensors").symlink_to(shared)
    before = shared.read_bytes()
    assert read(tmp_path / "p") == 1
    write(tmp_path / "p", 2)
    assert shared.read_bytes() == before
    assert read(tmp_path / "p") == 2


def test_folders_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    for folder, reason in (("file", "no folder"), ("file/p", "cannot write"), ("mine", "no policy folder")):
        with pytest.raises(PolicyError, match=reason):
            write(tmp_path / folder, 1)
    assert contents(tmp_path) == {"file": b"mine", "mine/thesis.tex": b"mine"}


KILLED_ANYWHERE = """
import os, sys
from pathlib import Path
from tests.learned.test_policy_folder import write
import compiler.support.files, compiler.learned.policy_folder

folder, old_version = Path(sys.argv[1]), sys.argv[2] == "old version"
step = 0
while True:
    target = folder / str(step)
    if sys.argv[2] != "nothing":
        write(target, 1)
        if old_version:
            text = (target / "policy.json").read_text().splitlines()
            (target / "policy.json").write_text("\\n".join(t for t in text if "sha256" not in t).replace("1,", "1"))
    child = os.fork()
    if child == 0:
        left = step
        def dying(function):
            def call(*arguments, **named):
                global left
                left -= 1
                if left < 0:
                    os._exit(9)
                return function(*arguments, **named)
            return call
        Path.replace = dying(Path.replace)
        Path.mkdir = dying(Path.mkdir)
        Path.unlink = dying(Path.unlink)
        os.fsync = dying(os.fsync)
        write(target, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    step += 1
    if os.waitstatus_to_exitcode(status) == 0:
        break
print(step)
"""


@pytest.mark.parametrize("before", ["nothing", "a policy", "old version"])
def test_a_kill_at_any_moment_leaves_one_policy_or_a_clear_error(tmp_path: Path, before: str) -> None:
    command = [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path), before]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    assert count > 5
    seen = set()
    for step in range(count):
        folder = tmp_path / str(step)
        try:
            seen.add(read(folder))
        except PolicyError as error:
            assert "policy" in str(error)
            seen.add(-1.0)
        write(folder, 3)  # and whatever was left is no obstacle
        assert read(folder) == 3
    assert seen >= ({2.0, -1.0} if before == "nothing" else {1.0, 2.0})


def test_weights_of_another_policy_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "p", 1)
    write(tmp_path / "q", 2)
    (tmp_path / "q" / "policy.safetensors").replace(tmp_path / "p" / "policy.safetensors")
    with pytest.raises(PolicyError, match="does not hold the weights"):
        read(tmp_path / "p")
    with pytest.raises(PolicyError, match="does not hold the weights"):
        copy_policy_folder(tmp_path / "p", tmp_path / "r")


def test_a_full_disk_leaves_the_old_policy(tmp_path: Path) -> None:
    write(tmp_path / "p", 1)
    before = contents(tmp_path / "p")
    for files in (0, 1):
        with full_disk(files), pytest.raises(PolicyError, match="No space left"):
            write(tmp_path / "p", 2)
        assert contents(tmp_path / "p") == before
        with full_disk(files), pytest.raises(PolicyError, match="No space left"):
            write(tmp_path / "new" / "q", 2)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": None}, "does not describe"), ({"format": ["hlogym-"]}, "does not describe"),
        ({"format": "hlogym-other"}, "instead of"), ({"feature_version": True}, "version True"),
        ({"feature_version": 3.0}, "version 3.0"), ({"provenance": []}, "provenance"),
        ({"provenance": {"programs": 3}}, "programs"), ({"provenance": {"programs": [3]}}, "programs"),
        ({"weights_sha256": 3}, "does not hold"),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path / "p", 1)
    file = tmp_path / "p" / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(PolicyError, match=message):
        read(tmp_path / "p")


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"format": "\xff"}', b'{"format": 1, "format": 2}', b'{"a": 1e999}']
)
def test_unreadable_descriptions_are_refused(tmp_path: Path, text: bytes) -> None:
    write(tmp_path / "p", 1)
    (tmp_path / "p" / "policy.json").write_bytes(text)
    with pytest.raises(PolicyError, match=r"policy\.json"):
        read(tmp_path / "p")
    with pytest.raises(PolicyError, match=r"policy\.json"):
        describe_policy(tmp_path / "p")


def header(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "incomplete"), (b"\xff" * 8, "header is longer"), (header(b"[" * 100_000), "deeper"),
        (header(b"[]"), "object"), (header(b'{"w": 3}'), "data_offsets"), (header(b'{"w": {}}'), "data_offsets"),
        (header(b'{"w": {"data_offsets": [0, true]}}'), "impossible"),
        (header(b'{"w": {"data_offsets": [0, -4]}}'), "impossible"),
        (header(b'{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'), "shape"),
        (
            header(b'{"w": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}'),
            "incomplete",
        ),
        (header(b'{"w": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}') + b"\0" * 8, "F64"),
        (header(b'{"w": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}') + b"\0\0\xc0\x7f", "NaN"),
        (header(b'{"w": {"dtype": "F32", "shape": [' + b"0," * 99 + b'0], "data_offsets": [0, 0]}}'), "usable"),
        (header(b"{}") + b"rest", "after the last"),
    ],
)  # fmt: skip
def test_damaged_weights_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    write(tmp_path / "p", 1)
    (tmp_path / "p" / "policy.safetensors").write_bytes(data)
    with pytest.raises(PolicyError, match=message) as caught:
        read(tmp_path / "p")
    assert "policy.safetensors" in str(caught.value)
