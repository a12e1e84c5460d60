"""Run folders: valid names, folders of other programs, and damaged files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import UnknownNameError
from experiments.config import ConfigError, TrainConfig
from experiments.results import ResultError
from experiments.run_folder import RunFolder, all_runs, find_run, new_run, read_progress, unfinished_run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "", ".", "..", "/x", "-x", ".x", "con", "a\nb", "x" * 300])
def test_an_invalid_folder_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ResultError, match="--name"):
        new_run(tmp_path / "runs", name, TrainConfig())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r [1] $x$", "é", "Run"])
def test_other_names_are_accepted(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path, name, TrainConfig(seed=4))
    assert run.path == tmp_path / name
    assert find_run(tmp_path, name).config().seed == 4


@pytest.mark.parametrize("text", ["", "{}", '{"suite": '])
def test_a_run_without_its_settings_is_not_said_to_be_resumable(tmp_path: Path, text: str) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    (run.path / "config.json").write_text(text)
    assert unfinished_run(tmp_path, "r") is None
    with pytest.raises(ResultError, match=r"not a run: its config.json has no settings of one; choose another --name"):
        new_run(tmp_path, "r", TrainConfig())


def test_a_damaged_state_says_what_the_file_is_for(tmp_path: Path) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    (run.path / "state.json").write_text('{"run_id"')
    with pytest.raises(
        ResultError, match=r"state.json: not JSON.*; without this file, the training continues as a new"
    ):
        unfinished_run(tmp_path, "r")


def test_plan_files_stay_in_the_run_folder_for_any_program_name(tmp_path: Path) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    names = ("../../evil", "/etc/passwd", "..", "a/b", "a b", "A", "a", "con", "x" * 300, "", "softmax")
    files = [run.plan_file(n) for n in names]
    assert all(f.resolve().parent == run.plans.resolve() for f in files)
    assert len({str(f).casefold() for f in files}) == len(names)
    assert run.plan_file("softmax").name == "softmax.json"


FOREIGN: tuple[dict[str, Any] | list[Any], ...] = (
    {"model_type": "bert", "hidden_size": 768}, {}, [], {"env": "x", "agent": "y"},
)  # fmt: skip


def test_folders_of_other_programs_are_not_runs(tmp_path: Path) -> None:
    for n, config in enumerate(FOREIGN):
        (tmp_path / f"model-{n}").mkdir()
        (tmp_path / f"model-{n}" / "config.json").write_text(json.dumps(config))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text("[" * 100_000)
    (tmp_path / "notes" / "progress.jsonl").write_text("mine")
    before = contents(tmp_path)
    assert all_runs(tmp_path) == []
    assert unfinished_run(tmp_path, None) is None
    for name in ("model-0", "notes", str(tmp_path / "model-0")):
        with pytest.raises(UnknownNameError):
            find_run(tmp_path, name)
    for name in ("model-0", "notes"):
        with pytest.raises(ResultError, match=r"is not a run: its config\.json"):
            new_run(tmp_path, name, TrainConfig())
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("thesis", "file"):
        with pytest.raises(ResultError, match="is not a run"):
            new_run(tmp_path, name, TrainConfig())
    assert contents(tmp_path) == {**before, "thesis/text.tex": b"mine", "file": b"mine"}
    (tmp_path / "empty").mkdir()
    assert new_run(tmp_path, "empty", TrainConfig()).name == "empty"


def test_runs_that_start_in_the_same_second_get_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "fusion-1")
    names = [new_run(tmp_path, None, TrainConfig(seed=n)).name for n in range(3)]
    assert names == ["fusion-1", "fusion-1-2", "fusion-1-3"]
    assert [find_run(tmp_path, n).config().seed for n in names] == [0, 1, 2]


@pytest.mark.parametrize("text", [b"", b"[]", b"[" * 100_000, b"\xff", b'{"finished": false, "finished": true}'])
def test_one_damaged_run_does_not_hide_the_others(tmp_path: Path, text: bytes) -> None:
    good = new_run(tmp_path, "good", TrainConfig())
    good.write_state({"run_id": "abc", "finished": False})
    damaged = new_run(tmp_path, "damaged", TrainConfig())
    (damaged.path / "state.json").write_bytes(text)
    assert unfinished_run(tmp_path, None) == good
    assert find_run(tmp_path, "abc") == good
    with pytest.raises(ResultError, match=r"state\.json"):
        unfinished_run(tmp_path, "damaged")


@pytest.mark.parametrize(
    "changes", [{"total_timesteps": "many"}, {"total_timesteps": True}, {"suite": 3}, {"gamma": None}, {"seed": 1.5}]
)
def test_a_setting_of_the_wrong_type_raises_one_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = new_run(tmp_path, "r", TrainConfig())
    file = run.path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ConfigError, match=r"config\.json"):
        run.config()


def test_an_integer_is_accepted_for_a_float_setting() -> None:
    assert TrainConfig.from_json({"gamma": 1}).gamma == 1.0


def test_malformed_lines_of_the_learning_curve_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    lines = (
        b'{"timesteps": 1, "speedup": 1.5}', b"[" * 100_000, b"3", b"{}", b'{"timesteps": "2"}', b"\xff",
        b'{"timesteps": 3, "speedup": "fast"}', b'{"timesteps": 4, "speedup": NaN}', b"",
        b'{"timesteps": 5}', b'{"time',
    )  # fmt: skip
    file.write_bytes(b"\n".join(lines))
    assert [p["timesteps"] for p in read_progress(file)] == [1, 5]
    file.write_text('{"timesteps": 1}\n{"timesteps": 2, "seconds": "long"}\n')
    assert read_progress(file) == [{"timesteps": 1, "speedup": None, "episodes": None, "seconds": None}]
    assert read_progress(tmp_path / "nowhere.jsonl") == []


def test_a_write_error_is_reported(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    with pytest.raises(ResultError, match="cannot write"):
        run.add_progress({"timesteps": 1})


@pytest.mark.parametrize(
    "setting",
    [
        "n_steps=0", "n_steps=-5", "batch_size=0", "batch_size=1", "hidden=0", "hidden=100000", "rounds=0",
        "n_epochs=0", "learning_rate=nan", "learning_rate=0", "gamma=inf", "gamma=2", "clip_range=0", "ent_coef=nan",
        "seed=-1", "minutes=-1", "seed=4294967296", "total_timesteps=0", "checkpoint_every=0", "budget=0",
        "step_cost=nan", "environments=0",
    ],
)  # fmt: skip
def test_settings_out_of_bounds_are_rejected(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        TrainConfig().changed([setting]).check()


def test_a_batch_of_one_is_rejected_if_advantages_are_normalized() -> None:
    config = TrainConfig().changed(["n_steps=33", "batch_size=16"])
    with pytest.raises(ConfigError, match="batch of one"):
        config.check()
    for fine in (["n_steps=32", "batch_size=16"], ["agent=a2c", "n_steps=33", "batch_size=16"]):
        TrainConfig().changed(fine).check()
    for env in ("hlogym/Fusion-v0", "hlogym/PassOrder-v0"):
        TrainConfig.defaults_for(env).check()
