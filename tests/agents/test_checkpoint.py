"""Checkpoints: whole or not there, other people's files stay, damage is one clear error."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from sb3_contrib import MaskablePPO

import agents.checkpoint
from agents.checkpoint import CheckpointError, InputFeatures, latest_checkpoint, load_checkpoint, save_checkpoint
from agents.ppo import make_ppo
from agents.settings import PointerSettings
from env.environments import FusionEnv
from tests.env.small_programs import write_suite

FEATURES = InputFeatures(2, ("dce", "cse"))


@pytest.fixture
def model(tmp_path: Path) -> MaskablePPO:
    suite = write_suite(tmp_path / "suite")
    return make_ppo(FusionEnv(suite), PointerSettings(n_steps=16, batch_size=16, hidden=8, rounds=1))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_others_keep_beside_checkpoints_stays(model: MaskablePPO, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    others = {
        "step-1/notes.txt": b"mine", "step-by-step.md": b"mine", "step-0000000001/mine.txt": b"mine",
        ".draft-mine/thesis.tex": b"mine", "step-9999999999/state.json": b"{}", "notes.txt": b"mine",
    }  # fmt: skip
    for name, data in others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.utime(folder / ".draft-mine", (0, 0))
    for n in range(1, 6):
        model.num_timesteps = n
        save_checkpoint(model, folder, FEATURES, {"n": n})
    (folder / "step-0000000004" / "mine.txt").write_bytes(b"mine")
    for n in (6, 7):
        model.num_timesteps = n
        saved = save_checkpoint(model, folder, FEATURES, {"n": n})
    assert latest_checkpoint(folder) == saved
    left = contents(folder)
    expected = {**others, "step-0000000004/mine.txt": b"mine"}
    assert {k: v for k, v in left.items() if k in expected} == expected
    made = {str(Path(k).parent) for k in left.keys() - expected.keys()}
    assert made == {"step-0000000006", "step-0000000007"}


def test_the_same_step_again_does_not_lose_the_first(
    model: MaskablePPO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.num_timesteps = 5
    first = save_checkpoint(model, tmp_path / "c", FEATURES, {"n": 1})
    replaced: list[bool] = []
    real = Path.replace

    def watched(self: Path, target: Path) -> Path:
        replaced.append(first.is_dir())
        return real(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    second = save_checkpoint(model, tmp_path / "c", FEATURES, {"n": 2})
    assert replaced == [True]
    assert latest_checkpoint(tmp_path / "c") == second
    assert load_checkpoint(model, second, FEATURES) == {"n": 2}
    model.num_timesteps = 6
    third = save_checkpoint(model, tmp_path / "c", FEATURES, {"n": 3})
    assert latest_checkpoint(tmp_path / "c") == third


def _no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _no_room_for_tensors(*_: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [
        (os, "fsync", _no_room),
        (Path, "write_text", _no_room),
        (Path, "replace", _no_room),
        (agents.checkpoint, "save_file", _no_room_for_tensors),
    ],
)
def test_a_full_disk_is_one_error_and_keeps_what_is_there(
    model: MaskablePPO,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    failing: Callable[..., None],
) -> None:
    model.num_timesteps = 1
    first = save_checkpoint(model, tmp_path / "c", FEATURES, {"n": 1})
    before = contents(tmp_path / "c")
    model.num_timesteps = 2
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing)
        with pytest.raises(CheckpointError, match="No space left"):
            save_checkpoint(model, tmp_path / "c", FEATURES, {"n": 2})
    assert contents(tmp_path / "c") == before
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [first.name]


def test_drafts_that_a_kill_left_are_removed_when_they_are_old(model: MaskablePPO, tmp_path: Path) -> None:
    for name, age in ((".draft-old", 10_000_000.0), (".draft-new", 0.0)):
        draft = tmp_path / "c" / name
        draft.mkdir(parents=True)
        (draft / "tensors.safetensors").write_bytes(b"half")
        if age:
            os.utime(draft, (age, age))
    save_checkpoint(model, tmp_path / "c", FEATURES, {})
    assert not (tmp_path / "c" / ".draft-old").exists()
    assert (tmp_path / "c" / ".draft-new").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[" * 100_000, b"[]", b"{}", b"\xff", b'{"timesteps": 1, "timesteps": 2}',
        b'{"timesteps": 1e999, "updates": 1, "extra": {}}',
    ],
)  # fmt: skip
def test_a_damaged_state_is_one_error(model: MaskablePPO, tmp_path: Path, text: bytes) -> None:
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    (saved / "state.json").write_bytes(text)
    with pytest.raises(CheckpointError, match="cannot resume from"):
        load_checkpoint(model, saved, FEATURES)


@pytest.mark.parametrize(
    "changes",
    [
        {"timesteps": "1"}, {"timesteps": True}, {"updates": None}, {"extra": []}, {"numpy": []}, {"numpy": {}},
        {"numpy": {"position": 10**30, "has_gauss": 0, "cached": 0.0}},
        {"numpy": {"position": "x", "has_gauss": 0, "cached": 0.0}},
    ],
)  # fmt: skip
def test_values_of_other_types_are_one_error(model: MaskablePPO, tmp_path: Path, changes: dict[str, Any]) -> None:
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, **changes}))
    with pytest.raises(CheckpointError, match="cannot resume from"):
        load_checkpoint(model, saved, FEATURES)


def test_tensors_of_another_file_are_one_error(model: MaskablePPO, tmp_path: Path) -> None:
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    for data in (b"", b"\xff" * 100, (2).to_bytes(8, "little") + b"{}"):
        (saved / "tensors.safetensors").write_bytes(data)
        with pytest.raises(CheckpointError, match="cannot resume from"):
            load_checkpoint(model, saved, FEATURES)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ({"version": 1, "passes": ["dce", "cse"]}, "feature version 1, this is version 2"),
        ({"version": 2, "passes": ["dce", "dead"]}, r"\(new: cse; gone: dead\)"),
        ({"version": 2, "passes": ["cse", "dce"]}, "another order"),
        ({"version": 2}, "earlier version"),
        (None, "earlier version"),
    ],
)
def test_a_checkpoint_of_other_features_is_refused_and_changes_nothing(
    model: MaskablePPO, tmp_path: Path, stored: object, reason: str
) -> None:
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "timesteps": 99, "features": stored}))
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(model, saved, FEATURES)
    assert model.num_timesteps == 0
