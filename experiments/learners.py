"""Learners: an agent together with its environments, their state in checkpoints, and the policy they export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import gymnasium as gym
from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm

import env as environments
from agents.checkpoint import InputFeatures
from agents.export import export_policy
from agents.pass_agents import PASS_AGENTS, learned_order, make_pass_agent
from agents.ppo import baseline_of, make_ppo, network_of
from compiler.errors import UnknownNameError
from compiler.learned.features import decisions, passes
from compiler.learned.features.pass_slots import PASS_SLOTS
from env.decision import DecisionEnv
from env.pass_order import PassOrderEnv
from env.suites import Program
from experiments.config import TrainConfig

__all__ = ["AGENTS", "FusionLearner", "Learner", "PassOrderLearner", "make_env", "make_learner"]

AGENTS = ("maskable-ppo", *(a for a in PASS_AGENTS if a != "maskable-ppo"))
"""All of them can learn pass orders; the other environments support only the first."""
Environment: TypeAlias = DecisionEnv | PassOrderEnv


class Learner(Protocol):
    """An agent and its environments in one training run."""

    @property
    def model(self) -> BaseAlgorithm:
        """The agent."""
        ...

    @property
    def features(self) -> InputFeatures:
        """The meaning of the agent's inputs; a checkpoint is loaded only if its input features are the same."""
        ...

    @property
    def measured(self) -> bool:
        """Whether rewards are measured times, which are cached in the store of kernel times."""
        ...

    @property
    def programs(self) -> Sequence[Program]:
        """The training programs; their files may have changed since they were read."""
        ...

    def check_programs(self, step: Callable[[Program], None]) -> None:
        """Check all programs; see `CompilerEnv.check_programs`."""
        ...

    def extra(self) -> dict[str, Any]:
        """Return the JSON state that a checkpoint stores beside the agent's tensors."""
        ...

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the state that `extra` returned."""
        ...

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write the agent's policy in the format that the compiler loads."""
        ...

    def close(self) -> None:
        """Close the environments and their worker processes."""
        ...


def make_env(config: TrainConfig, **more: Any) -> Environment:
    """Make an environment with a run's settings.

    Args:
        config: the settings of the run.
        more: further keyword arguments of the environment.

    Raises:
        UnknownNameError: there is no such environment, suite or reward.
    """
    known = {f"{n}{m}-v0" for n in environments.ENVIRONMENTS for m in ("", "Measured")}
    short = config.env.removeprefix("env:").removeprefix("hlogym/")
    if short not in known:
        raise UnknownNameError("environment", config.env, (f"hlogym/{n}" for n in known))
    if short.startswith("PassOrder"):
        more = {"max_steps": config.budget, "step_cost": config.step_cost, **more}
    reward = config.reward or None
    made = gym.make(f"hlogym/{short}", suite=config.suite, backend=config.backend, reward=reward, **more)
    return cast(Environment, made.unwrapped)


def make_learner(config: TrainConfig) -> Learner:
    """Make the learner for a run's settings.

    Raises:
        UnknownNameError: there is no such environment, suite or agent, or the agent does not support the environment.
    """
    first = make_env(config)
    if isinstance(first, PassOrderEnv):
        return PassOrderLearner(config, first)
    if config.agent != AGENTS[0]:
        first.close()
        raise UnknownNameError(f"agent (for {config.env})", config.agent, AGENTS[:1])
    return FusionLearner(config, first)


class FusionLearner:
    """MaskablePPO with a pointer network over decision graphs."""

    features = InputFeatures(decisions.FEATURE_VERSION, PASS_SLOTS)

    def __init__(self, config: TrainConfig, environment: DecisionEnv) -> None:
        self.environment = environment
        self.model: MaskablePPO = make_ppo(environment, config)
        self.measured, self.programs = environment.measured, environment.suite.programs

    def check_programs(self, step: Callable[[Program], None]) -> None:
        """Check all programs; see `CompilerEnv.check_programs`."""
        self.environment.check_programs(step)

    def extra(self) -> dict[str, Any]:
        """Return the running means of the reward baseline and the state of the environment's random generator."""
        return {"means": baseline_of(self.model).means, "env_rng": self.environment.np_random.bit_generator.state}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the running means and the random generator."""
        self.environment.np_random.bit_generator.state = extra["env_rng"]
        baseline_of(self.model).means.update(extra["means"])
        self.model.get_env()._reset_seeds()  # type: ignore[union-attr]  # otherwise the first reset reseeds it

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write a policy folder for `load_policy`."""
        export_policy(network_of(self.model), folder, provenance)

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()


class PassOrderLearner:
    """One of PASS_AGENTS with several environments that share their graphs of explored states."""

    def __init__(self, config: TrainConfig, first: PassOrderEnv) -> None:
        # Kernels that run at the same time would disturb each other's measurements.
        count = 1 if first.measured else config.environments
        others = [cast(PassOrderEnv, make_env(config, shared=first)) for _ in range(count - 1)]
        self.environments = [first, *others]
        self.model = make_pass_agent(config.agent, self.environments, config)
        self.features = InputFeatures(passes.FEATURE_VERSION, first.actions)
        self.measured, self.programs = first.measured, first.suite.programs

    def check_programs(self, step: Callable[[Program], None]) -> None:
        """Check all programs; see `CompilerEnv.check_programs`. The environments share the results."""
        self.environments[0].check_programs(step)

    def extra(self) -> dict[str, Any]:
        """Return the states of the environments' random generators."""
        return {"env_rngs": [e.np_random.bit_generator.state for e in self.environments]}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the random generators; the replay buffer of a DQN is not stored and fills again."""
        for environment, state in zip(self.environments, extra["env_rngs"], strict=True):
            environment.np_random.bit_generator.state = state
        self.model.get_env()._reset_seeds()  # type: ignore[union-attr]  # otherwise the first reset reseeds them

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write a policy folder for `load_pass_order`."""
        learned_order(self.model, self.environments[0], dict(provenance)).save(folder)

    def close(self) -> None:
        """Close the environments."""
        for environment in self.environments:
            environment.close()
