"""The settings of a training run: the command line's, and those that a file may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from agents.settings import PointerSettings
from compiler.errors import HlogymError, UnknownNameError
from compiler.learned.pass_order import MOST_APPLICATIONS
from compiler.learned.pointer_network import MAX_SIZE

__all__ = ["ConfigError", "TrainConfig"]


class ConfigError(HlogymError, ValueError):
    """A setting that cannot be read."""


@dataclass(frozen=True)
class TrainConfig(PointerSettings):
    """Everything a run depends on; stored with it as JSON, so that it can be continued."""

    suite: str = "train"  # suite name, or a folder of HLO files
    env: str = "hlogym/FusionMeasured-v0"  # environment id, with or without the namespace
    agent: str = "maskable-ppo"  # pass orders are also learned by a2c and dqn; searches need no training
    timesteps: int = 20_000  # environment steps in all
    minutes: float = 0.0  # stop after this much time, over all resumptions; 0: no limit
    backend: str = "auto"  # what measures: cpu, cuda, or cuda where there is one

    checkpoint_every: int = 512  # steps between checkpoints, rounded up to whole updates
    reward: str = ""  # op-count, estimated-time or measured-time; empty: the default of the environment's id

    # Pass orders only; the agent's settings then start from other values, see `defaults_for`.
    budget: int = 150  # applications of passes an episode has
    step_cost: float = 0.0  # taken off the reward of each application
    environments: int = 16  # how many episodes run side by side, where nothing is measured

    def to_json(self) -> dict[str, Any]:
        """As a run's folder has it."""
        return asdict(self)

    @staticmethod
    def defaults_for(env: str) -> TrainConfig:
        """What settings start from for an environment."""
        if "PassOrder" not in env:
            return TrainConfig(env=env)
        return TrainConfig(
            env=env, suite="jax/train,train", timesteps=300_000, checkpoint_every=16384, rollout=2048, batch=256,
            epochs=6, learning_rate=5e-4, gamma=0.995, entropy=0.01, hidden=256,
        )  # fmt: skip

    def check(self) -> None:
        """Find out before the work what no training can use.

        Raises:
            ConfigError: a setting out of its bounds.
        """
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:  # not a number is in no bounds
                raise ConfigError(f"setting {name!r} must be from {least:g} to {most:g}, not {value:g}")
        if self.agent == "maskable-ppo" and self.rollout % self.batch == 1:
            raise ConfigError(
                f"a rollout of {self.rollout} leaves a batch of one, which has no spread to be normalised by; "
                "change rollout or batch"
            )

    def with_backend(self, backend: str) -> TrainConfig:
        """The same on another backend."""
        return replace(self, backend=backend)

    def changed(self, settings: Sequence[str]) -> TrainConfig:
        """With settings changed that are given as `name=value`.

        Raises:
            UnknownNameError: no setting of that name. ConfigError: not `name=value`, or no such value.
        """
        kinds: dict[str, Callable[[str], Any]] = {f.name: type(getattr(self, f.name)) for f in fields(TrainConfig)}
        values: dict[str, Any] = {}
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"cannot read {text!r} as a setting; write name=value")
            if name not in kinds:
                raise UnknownNameError("setting", name, kinds)
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ConfigError(
                    f"setting {name!r} takes a {type(getattr(self, name)).__name__}, got {value!r}"
                ) from None
        return replace(self, **values)

    @staticmethod
    def from_json(data: Mapping[str, Any], where: str = "the settings") -> TrainConfig:
        """Fields that this version does not know are left out, and those that are missing take their defaults.

        Raises:
            ConfigError: a value is of another type than its setting; `where` it stands.
        """
        known = {f.name: type(getattr(_DEFAULTS, f.name)) for f in fields(TrainConfig)}
        values: dict[str, Any] = {}
        for name, value in data.items():
            kind = known.get(name)
            if kind is float and type(value) is int:
                value = float(value)
            if kind is not None and type(value) is not kind:
                raise ConfigError(f"{where}: {name} must be of type {kind.__name__}, not {value!r:.80}")
            if kind is not None:
                values[name] = value
        return TrainConfig(**values)


_DEFAULTS = TrainConfig()
_TINY, _HUGE = 1e-12, 1e12
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "rollout": (2, 10_000_000), "batch": (2, 10_000_000), "epochs": (1, 10_000), "learning_rate": (_TINY, 1),
    "gamma": (0, 1), "gae_lambda": (0, 1), "clip": (_TINY, _HUGE), "entropy": (0, _HUGE), "value": (0, _HUGE),
    "max_grad_norm": (_TINY, _HUGE), "exploration": (0, 1), "hidden": (1, MAX_SIZE), "rounds": (1, MAX_SIZE),
    "prior": (-_HUGE, _HUGE), "seed": (0, (1 << 32) - 1), "timesteps": (1, _HUGE), "minutes": (0, _HUGE),
    "checkpoint_every": (1, _HUGE), "budget": (1, MOST_APPLICATIONS), "step_cost": (-_HUGE, _HUGE),
    "environments": (1, 10_000),
}  # fmt: skip
"""A policy of other sizes could be trained, and not be loaded."""
