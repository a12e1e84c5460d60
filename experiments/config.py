"""The settings of a training run, from the command line or from the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from agents.schedules import SCHEDULES
from agents.settings import PointerSettings
from agents.vectors import VECTORS
from compiler.errors import HlogymError, UnknownNameError
from compiler.learned.pass_order import MOST_APPLICATIONS
from compiler.learned.pointer_network import MAX_SIZE
from env.workers import parse_workers

__all__ = ["FORMER_NAMES", "ConfigError", "TrainConfig"]


class ConfigError(HlogymError, ValueError):
    """A setting that cannot be read."""


@dataclass(frozen=True)
class TrainConfig(PointerSettings):
    """All settings of a training run; stored in the run's folder as JSON, so that the run can be resumed."""

    suite: str = "train"  # suite name, or a folder of HLO files
    env: str = "hlogym/FusionMeasured-v0"  # environment id, with or without the namespace
    agent: str = "maskable-ppo"  # pass orders are also learned by a2c and dqn
    total_timesteps: int = 20_000  # environment steps in total
    minutes: float = 0.0  # time limit in minutes, summed over all resumptions; 0: no limit
    backend: str = "auto"  # where kernels are measured: cpu, cuda, or auto (cuda if there is a GPU)

    checkpoint_every: int = 512  # steps between checkpoints, rounded up to whole updates
    reward: str = ""  # op-count, estimated-time or measured-time; empty: the default of the environment id
    environments: int = 1  # number of environments that the agent plays at once
    workers: str = "local"  # where plans are measured: local, or a Ray cluster: ray, ray://HOST:PORT
    vec_env: str = "dummy"  # dummy: one after the other in this process; subproc: each in a process of its own
    eval_suite: str = "validation"  # programs on which the agent is evaluated between updates
    eval_freq: int = 4096  # steps between evaluations; the best agent is exported as `best`. 0: none
    registered_model: str = "auto"  # name in MLflow's model registry; auto: by the environment, none: not registered

    # For PassOrder only; its defaults of the other settings are in `defaults_for`.
    budget: int = 150  # pass applications per episode
    step_cost: float = 0.0  # subtracted from the reward of each pass application

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a run's folder stores them."""
        return asdict(self)

    @staticmethod
    def defaults_for(env: str) -> TrainConfig:
        """Return the default settings for an environment.

        Pass orders are rewarded step by step unless they are measured, which is what gamma and gae_lambda below 1 are
        for: they reduce the variance of long episodes.
        """
        if "PassOrder" not in env:
            return TrainConfig(env=env)
        made = TrainConfig(
            env=env, suite="jax/train,train", total_timesteps=300_000, checkpoint_every=16384, n_steps=2048,
            batch_size=256, n_epochs=6, learning_rate=5e-4, ent_coef=0.01, hidden=256, eval_suite="jax/validation",
            eval_freq=32768,
        )  # fmt: skip
        return (
            made
            if "Measured" in env or "Emulated" in env
            else replace(made, environments=16, gamma=0.995, gae_lambda=0.95)
        )

    def check(self) -> None:
        """Raise an error if a setting is out of its bounds.

        Raises:
            ConfigError: a setting is out of its bounds, or two settings contradict each other.
            UnknownNameError: a setting has a value that is not among its choices.
            WorkersError: `workers` cannot be read.
        """
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:  # NaN is within no bounds
                raise ConfigError(f"setting {name!r} must be from {least:g} to {most:g}, not {value:g}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UnknownNameError(f"value of {name}", getattr(self, name), choices)
        parse_workers(self.workers)
        if self.agent == "maskable-ppo" and self.n_steps % self.batch_size == 1:
            raise ConfigError(
                f"n_steps={self.n_steps} and batch_size={self.batch_size} leave a batch of one, whose advantages "
                "cannot be normalized; change one of them"
            )

    @property
    def plan_reward(self) -> str:
        """Name of the reward: that of the settings, or else that of the environment."""
        kind = next((k for k in ("Measured", "Emulated") if k in self.env), "Estimated")
        return self.reward or f"{kind.lower()}-time"

    def with_backend(self, backend: str) -> TrainConfig:
        """Return the same settings for another backend."""
        return replace(self, backend=backend)

    def changed(self, settings: Sequence[str]) -> TrainConfig:
        """Return a copy with the settings given as `name=value` replaced.

        Raises:
            UnknownNameError: there is no setting of that name.
            ConfigError: an argument is not of the form `name=value`, or its value has the wrong type.
        """
        kinds: dict[str, Callable[[str], Any]] = {f.name: type(getattr(self, f.name)) for f in fields(TrainConfig)}
        values: dict[str, Any] = {}
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"cannot read {text!r} as a setting; write name=value")
            name = FORMER_NAMES.get(name, name)
            if name not in kinds:
                raise UnknownNameError("setting", name, kinds)
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ConfigError(
                    f"setting {name!r} takes {_KINDS[type(getattr(self, name))]}, got {value!r}"
                ) from None
        return replace(self, **values)

    @staticmethod
    def from_json(data: Mapping[str, Any], where: str = "the settings") -> TrainConfig:
        """Read settings; unknown ones are ignored, and missing ones take their defaults.

        Raises:
            ConfigError: a value is of another type than its setting; the message begins with `where`.
        """
        known = {f.name: type(getattr(_DEFAULTS, f.name)) for f in fields(TrainConfig)}
        values: dict[str, Any] = {}
        for given, value in data.items():
            name = FORMER_NAMES.get(given, given)
            if name != given and name in data:
                continue
            kind = known.get(name)
            if kind is float and type(value) is int:
                value = float(value)
            if kind is not None and type(value) is not kind:
                raise ConfigError(f"{where}: {given} must be of type {kind.__name__}, not {value!r:.80}")
            if kind is not None:
                values[name] = value
        return TrainConfig(**values)


_KINDS: Mapping[type, str] = {int: "an integer", float: "a number", str: "text"}
FORMER_NAMES: Mapping[str, str] = {
    "rollout": "n_steps", "batch": "batch_size", "epochs": "n_epochs", "clip": "clip_range", "entropy": "ent_coef",
    "value": "vf_coef", "exploration": "exploration_fraction", "timesteps": "total_timesteps",
    "n_timesteps": "total_timesteps", "n_envs": "environments",
}  # fmt: skip
"""Former names of settings and those of RL Zoo; run folders, files and the command line may use them."""
_CHOICES: Mapping[str, Sequence[str]] = {
    "vec_env": VECTORS, "learning_rate_schedule": SCHEDULES, "clip_range_schedule": SCHEDULES,
}  # fmt: skip
_DEFAULTS = TrainConfig()
_TINY, _HUGE = 1e-12, 1e12
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "n_steps": (2, 10_000_000), "batch_size": (2, 10_000_000), "n_epochs": (1, 10_000), "learning_rate": (_TINY, 1),
    "gamma": (0, 1), "gae_lambda": (0, 1), "clip_range": (_TINY, _HUGE), "ent_coef": (0, _HUGE), "vf_coef": (0, _HUGE),
    "max_grad_norm": (_TINY, _HUGE), "exploration_fraction": (0, 1), "hidden": (1, MAX_SIZE), "rounds": (1, MAX_SIZE),
    "prior": (-_HUGE, _HUGE), "seed": (0, (1 << 32) - 1), "total_timesteps": (1, _HUGE), "minutes": (0, _HUGE),
    "checkpoint_every": (1, _HUGE), "budget": (1, MOST_APPLICATIONS), "step_cost": (-_HUGE, _HUGE),
    "environments": (1, 10_000), "eval_freq": (0, _HUGE),
}  # fmt: skip
"""Smallest and largest values. Larger networks could be trained, but their policies could not be loaded."""
