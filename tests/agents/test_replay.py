"""The replay buffer of a DQN in a checkpoint: nothing is lost, and damage is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN

from agents.checkpoint import CheckpointError, InputFeatures, load_checkpoint, save_checkpoint
from agents.pass_agents import make_pass_agent
from agents.settings import LearningSettings
from env.pass_order import PassOrderEnv
from tests.env.small_programs import write_suite

SMALL = LearningSettings(n_steps=64, batch_size=32, hidden=16, seed=3)
FEATURES = InputFeatures(1, ("dce", "cse"))
NAMES = ("observations", "next_observations", "actions", "rewards", "dones")


def agent(folder: Path) -> DQN:
    made = make_pass_agent("dqn", [PassOrderEnv(folder, reward="op-count", max_steps=7) for _ in range(2)], SMALL)
    assert isinstance(made, DQN)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "small")


def rows(model: DQN) -> Any:
    buffer = model.replay_buffer
    assert buffer is not None
    return {name: getattr(buffer, name)[: buffer.size()].copy() for name in NAMES}, buffer.pos, buffer.full


def test_a_resumed_agent_has_the_experience_and_samples_the_same_batches(folder: Path, tmp_path: Path) -> None:
    model = agent(folder)
    model.learn(120)
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    assert {p.suffix for p in saved.iterdir()} == {".json", ".npz", ".safetensors"}
    other = agent(folder)
    load_checkpoint(other, saved, FEATURES)
    (one, *where), (two, *there) = rows(model), rows(other)
    assert where == there == [60, False]
    for name in NAMES:
        np.testing.assert_array_equal(one[name], two[name])
    assert other.replay_buffer is not None
    # The episodes that were running end where the buffer ends.
    assert ((other.replay_buffer.timeouts[59] == 1) | (other.replay_buffer.dones[59] == 1)).all()
    assert other._n_calls == model._n_calls


def test_a_full_buffer_is_restored_with_its_position(folder: Path, tmp_path: Path) -> None:
    model, other = agent(folder), agent(folder)
    for made in (model, other):
        buffer = made.replay_buffer
        assert buffer is not None
        buffer.buffer_size = 10
        for name in (*NAMES, "timeouts"):
            setattr(buffer, name, getattr(buffer, name)[:10])
    model.learn(32)
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    load_checkpoint(other, saved, FEATURES)
    (one, *where), (two, *there) = rows(model), rows(other)
    assert where == there == [6, True]
    for name in NAMES:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_damage_is_one_clear_error(folder: Path, tmp_path: Path, damage: str) -> None:
    model = agent(folder)
    model.learn(20)
    saved = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    file = saved / "replay.npz"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:200])
    else:
        np.savez(file, observations=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match="cannot resume from"):
        load_checkpoint(agent(folder), saved, FEATURES)
