"""Files of hyperparameters in the manner of RL Zoo, schedules, and the defaults they change."""

from pathlib import Path

import pytest

from agents.schedules import schedule
from compiler.errors import UnknownNameError
from experiments.config import ConfigError, TrainConfig
from experiments.hyperparameters import read_hyperparameters, write_hyperparameters

FUSION = TrainConfig.defaults_for("hlogym/Fusion-v0")


def written(folder: Path, text: str) -> Path:
    file = folder / "h.yaml"
    file.write_text(text)
    return file


def test_settings_of_an_environment_override_those_of_all(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "default:\n  batch_size: 32\n  hidden: 8\n"
        "hlogym/Fusion-v0:\n  batch_size: 16\n  n_timesteps: !!float 1e5\n  n_envs: 4\n  learning_rate: lin_3e-4\n"
        "  clip_range: 0.1\n  n_steps: 1e3\nPassOrder-v0:\n  hidden: 99\n",
    )
    config = read_hyperparameters(file, FUSION)
    assert (config.batch_size, config.hidden, config.total_timesteps, config.environments) == (16, 8, 100_000, 4)
    assert (config.learning_rate, config.learning_rate_schedule) == (3e-4, "linear")
    assert (config.clip_range, config.clip_range_schedule, config.n_steps) == (0.1, "constant", 1000)
    assert read_hyperparameters(file, TrainConfig(env="hlogym/PassOrder-v0")).hidden == 99


@pytest.mark.parametrize("order", [("clip_range", "clip_range_schedule"), ("clip_range_schedule", "clip_range")])
def test_a_schedule_and_its_value_may_be_in_any_order(tmp_path: Path, order: tuple[str, str]) -> None:
    values = {"clip_range": "0.1", "clip_range_schedule": "linear"}
    text = "hlogym/Fusion-v0:\n" + "".join(f"  {name}: {values[name]}\n" for name in order)
    config = read_hyperparameters(written(tmp_path, text), FUSION)
    assert (config.clip_range, config.clip_range_schedule) == (0.1, "linear")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hlogym/Unroll-v0: {hidden: 8}", "has no settings for hlogym/Fusion-v0, only for hlogym/Unroll-v0"),
        ("hlogym/Fusion-v0: {hidden: wide}", "'hidden' takes an integer, got 'wide'"),
        ("hlogym/Fusion-v0: {policy_kwargs: {net_arch: 3}}", "policy_kwargs must be a number or a string"),
        ("- 1", "must map ids of environments to settings"),
        ("a: [", "is not YAML"),
        ("hlogym/Fusion-v0: {n_envs: 1, n_envs: 2}", "has 'n_envs' twice"),
        ("hlogym/Fusion-v0: {n_envs: 1, environments: 2}", "environments is set twice, under two names"),
        ("hlogym/Fusion-v0: {n_envs: 1}\nFusion-v0: {n_envs: 2}", "has settings for Fusion-v0 twice"),
        ("hlogym/Fusion-v0: {env: hlogym/Unroll-v0}", "the environment is the name of the section"),
        (
            "hlogym/Fusion-v0: {learning_rate: lin_1e-3, learning_rate_schedule: constant}",
            "learning_rate=lin_1e-3 and learning_rate_schedule=constant contradict each other",
        ),
        ("hlogym/Fusion-v0: !!python/object/apply:os.system [echo]", "is not YAML"),
    ],
)
def test_faults_of_a_file_are_one_message(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"h\.yaml") as raised:
        read_hyperparameters(written(tmp_path, text), FUSION)
    assert message in str(raised.value)


def test_an_unknown_setting_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="learning_rate") as caught:
        read_hyperparameters(written(tmp_path, "default: {lerning_rate: 1}"), FUSION)
    assert caught.value.__notes__ == [f"It is in {tmp_path / 'h.yaml'}: default."]
    with pytest.raises(ConfigError, match="cannot read"):
        read_hyperparameters(tmp_path / "none.yaml", FUSION)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_hyperparameters(tmp_path / "h.yaml", "hlogym/Fusion-v0", {"gamma": 0.99, "n_steps": 64, "agent": "a2c"})
    config = read_hyperparameters(tmp_path / "h.yaml", FUSION)
    assert (config.gamma, config.n_steps, config.agent) == (0.99, 64, "a2c")


def test_schedules() -> None:
    assert [schedule(0.4, "linear")(r) for r in (1.0, 0.5, 0.0)] == [0.4, 0.2, 0.0]
    assert [schedule(0.4, "constant")(r) for r in (1.0, 0.5, 0.0)] == [0.4, 0.4, 0.4]
    with pytest.raises(UnknownNameError, match=r"learning_rate_schedule.*linear"):
        TrainConfig(learning_rate_schedule="liner").check()


def test_rewards_at_the_end_of_an_episode_are_not_discounted() -> None:
    for env in ("Fusion-v0", "FusionMeasured-v0", "CompileMeasured-v0", "PassOrderMeasured-v0"):
        config = TrainConfig.defaults_for(f"hlogym/{env}")
        assert (config.gamma, config.gae_lambda) == (1.0, 1.0)
    dense = TrainConfig.defaults_for("hlogym/PassOrder-v0")
    assert (dense.gamma, dense.gae_lambda) == (0.995, 0.95)
