"""MaskablePPO with the pointer policy: it learns, repeats itself, and continues from a checkpoint."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO

from agents.checkpoint import CheckpointError, InputFeatures, latest_checkpoint, load_checkpoint, save_checkpoint
from agents.policy import PointerPolicy
from agents.ppo import make_ppo, network_of
from agents.search import STRATEGIES, Starts, find_plan
from agents.searches import SEARCHES
from agents.settings import PointerSettings
from compiler.errors import UnknownNameError
from compiler.learned.features.candidates import MAX_CANDIDATES, SAVING_COLUMN
from env.environments import FusionEnv
from env.measurement import Measurer, MeasurerOptions
from env.suites import load_suite
from tests.env.small_programs import write_suite

FEATURES = InputFeatures(1, ())
SMALL = PointerSettings(n_steps=32, batch_size=16, n_epochs=2, hidden=16, rounds=1)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite")


def weights(model: MaskablePPO) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in network_of(model).state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


def test_the_same_seed_learns_the_same(suite: Path) -> None:
    found = []
    for _ in range(2):
        model = make_ppo(FusionEnv(suite), SMALL)  # seeds the generators that learning draws from
        model.learn(64)
        found.append(weights(model))
    assert same(*found)


def test_linear_schedules_end_at_zero_however_long_the_last_rollout(suite: Path) -> None:
    """Stable-Baselines3 rounds the steps up to whole rollouts; a negative learning rate would unlearn."""
    settings = PointerSettings(
        **{**SMALL.__dict__, "learning_rate_schedule": "linear", "clip_range_schedule": "linear"}
    )
    model = make_ppo(FusionEnv(suite), settings)
    model.learn(40)
    assert model.num_timesteps == 64
    rates = [group["lr"] for group in model.policy.optimizer.param_groups]
    assert rates == [0.0]
    assert settings.clip_ranges()(-0.6) == 0.0
    assert settings.learning_rates()(0.5) == pytest.approx(settings.learning_rate / 2)


def test_the_untrained_policy_follows_the_cost_model(suite: Path) -> None:
    env = FusionEnv(suite)
    model = make_ppo(env, SMALL)
    observation, _ = env.reset(options={"program": "chain"})
    action, _ = model.predict(observation, deterministic=True, action_masks=env.action_masks())
    rows = observation["candidates"].reshape(MAX_CANDIDATES, -1)[: len(env.moves), SAVING_COLUMN]
    assert int(action) == int(np.argmax(rows))


def test_masked_actions_are_never_taken(suite: Path) -> None:
    env = FusionEnv(suite)
    model = make_ppo(env, SMALL)
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        action, _ = model.predict(observation, action_masks=env.action_masks())
        assert env.action_masks()[int(action)]
        observation, _, terminated, _, info = env.step(int(action))
        assert info["refused"] == ""
        if terminated:
            observation, _ = env.reset()


def test_a_policy_for_decisions_says_which_environments_have_them(suite: Path) -> None:
    env = gym.make("hlogym/PassOrder-v0", suite=suite)
    with pytest.raises(
        TypeError, match=r"the observation of a decision, which .* have, not Box.*MlpPolicy for PassOrder"
    ):
        MaskablePPO(PointerPolicy, env)


def test_a_checkpoint_gives_everything_back(suite: Path, tmp_path: Path) -> None:
    model = make_ppo(FusionEnv(suite), SMALL)
    model.learn(64)
    save_checkpoint(model, tmp_path / "c", FEATURES, {"best": {"chain": 2.0}})
    other = make_ppo(FusionEnv(suite), PointerSettings(**{**SMALL.__dict__, "seed": 9}))
    found = latest_checkpoint(tmp_path / "c")
    assert found is not None
    assert load_checkpoint(other, found, FEATURES) == {"best": {"chain": 2.0}}
    assert other.num_timesteps == 64
    assert same(weights(model), weights(other))
    moments = [m.policy.optimizer.state_dict()["state"] for m in (model, other)]
    assert moments[0].keys() == moments[1].keys()
    for i, slots in moments[0].items():
        for slot, value in slots.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[1][i][slot]))


def test_half_written_checkpoints_are_not_seen(suite: Path, tmp_path: Path) -> None:
    model = make_ppo(FusionEnv(suite), SMALL)
    (tmp_path / "c" / ".draft-1").mkdir(parents=True)
    assert latest_checkpoint(tmp_path / "c") is None
    first = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    assert latest_checkpoint(tmp_path / "c") == first


def test_a_damaged_checkpoint_is_one_error(suite: Path, tmp_path: Path) -> None:
    model = make_ppo(FusionEnv(suite), SMALL)
    path = save_checkpoint(model, tmp_path / "c", FEATURES, {})
    (path / "tensors.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="cannot resume"):
        load_checkpoint(model, path, FEATURES)
    other = make_ppo(FusionEnv(suite), PointerSettings(**{**SMALL.__dict__, "hidden": 8}))
    whole = save_checkpoint(model, tmp_path / "d", FEATURES, {})
    with pytest.raises(CheckpointError, match="cannot resume"):
        load_checkpoint(other, whole, FEATURES)


def test_every_strategy_finds_a_plan(suite: Path) -> None:
    program = load_suite(suite).find("chain")
    starts = Starts("cpu")
    policy = None
    with Measurer(options=MeasurerOptions(rounds=2)) as measurer:
        for strategy in STRATEGIES:
            if strategy.startswith("learned"):
                with pytest.raises(UnknownNameError):
                    find_plan(strategy, starts, program, measurer, 2, policy)
                continue
            found = find_plan(strategy, starts, program, measurer, 2, policy)
            assert found is not None
            assert found.measurements == (2 if strategy in SEARCHES else 0)


@pytest.mark.slow
def test_it_learns_without_the_prior(suite: Path) -> None:
    (suite / "loop.hlo").unlink()

    def mean_return(model: MaskablePPO) -> float:
        env = FusionEnv(suite)
        total = 0.0
        for seed in range(10):
            observation, _ = env.reset(seed=seed)
            done = False
            while not done:
                action, _ = model.predict(observation, action_masks=env.action_masks())
                observation, reward, done, _, _ = env.step(int(action))
                total += reward
        return total / 10

    settings = PointerSettings(n_steps=64, batch_size=32, n_epochs=6, hidden=32, prior=0.0, learning_rate=3e-3)
    model = make_ppo(FusionEnv(suite), settings)
    before = mean_return(model)
    model.learn(1024)
    assert mean_return(model) > before + 0.1
