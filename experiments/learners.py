"""Learners: an agent together with its environments, their state in checkpoints, and the policy they export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from agents.checkpoint import InputFeatures
from agents.export import export_policy
from agents.pass_agents import PASS_AGENTS, learned_order, make_pass_agent
from agents.ppo import baseline_of, make_ppo, network_of
from agents.vectors import make_vector, random_states, set_random_states
from compiler.errors import UnknownNameError
from compiler.learned.features import decisions, passes
from compiler.learned.features.pass_slots import PASS_SLOTS
from env.decision import DecisionEnv
from env.pass_order import PassOrderEnv
from env.suites import Program
from env.workers import parse_workers
from experiments.config import TrainConfig
from experiments.console import error_console
from experiments.training_env import Environment, make_env

__all__ = ["AGENTS", "FusionLearner", "Learner", "PassOrderLearner", "make_env", "make_learner"]

AGENTS = ("maskable-ppo", *(a for a in PASS_AGENTS if a != "maskable-ppo"))
"""All of them can learn pass orders; the other environments support only the first."""


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
    def first(self) -> Environment:
        """An environment in this process."""
        ...

    @property
    def vector(self) -> VecEnv:
        """The environments that the agent plays."""
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


def make_learner(config: TrainConfig) -> Learner:
    """Make the learner for a run's settings.

    Raises:
        UnknownNameError: there is no such environment, suite or agent, or the agent does not support the environment.
    """
    own = parse_workers(config.workers)
    # That of this process measures only while the others, in theirs, wait.
    first = make_env(config, workers=replace(own, reserve=config.vec_env != "subproc"))
    if isinstance(first, PassOrderEnv):
        return PassOrderLearner(config, first)
    if config.agent != AGENTS[0]:
        first.close()
        raise UnknownNameError(f"agent (for {config.env})", config.agent, AGENTS[:1])
    return FusionLearner(config, first)


class _Agent:
    """What the learners have in common: an agent on a vector of environments."""

    features: InputFeatures

    def __init__(self, config: TrainConfig, first: Environment) -> None:
        self.first = first
        self.measured, self.programs = first.measured, first.suite.programs
        self.vector = _make_vector(config, first)
        self._random_states = random_states(self.vector)

    def check_programs(self, step: Callable[[Program], None]) -> None:
        """Check all programs; see `CompilerEnv.check_programs`."""
        self.first.check_programs(step)

    def extra(self) -> dict[str, Any]:
        """Return the states of the random generators that draw the programs."""
        # Those of the last checkpoint if the processes cannot answer: a signal to all processes has ended them, too.
        with contextlib.suppress(EOFError, ConnectionError):
            self._random_states = random_states(self.vector)
        return {"env_rngs": self._random_states}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the random generators."""
        set_random_states(self.vector, extra["env_rngs"])

    def close(self) -> None:
        """Close the environments and end their processes."""
        self.vector.close()
        self.first.close()


class FusionLearner(_Agent):
    """MaskablePPO with a pointer network over decision graphs."""

    features = InputFeatures(decisions.FEATURE_VERSION, PASS_SLOTS)

    def __init__(self, config: TrainConfig, first: DecisionEnv) -> None:
        super().__init__(config, first)
        self.model: MaskablePPO = make_ppo(self.vector, config)

    def extra(self) -> dict[str, Any]:
        """Return the running means of the reward baseline and the states of the random generators."""
        return {"means": baseline_of(self.model).means, **super().extra()}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the running means and the random generators."""
        super().restore(extra)
        baseline_of(self.model).means.update(extra["means"])

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write a policy folder for `load_policy`."""
        export_policy(network_of(self.model), folder, provenance)


class PassOrderLearner(_Agent):
    """One of PASS_AGENTS."""

    def __init__(self, config: TrainConfig, first: PassOrderEnv) -> None:
        super().__init__(config, first)
        self.order = first
        self.model = make_pass_agent(config.agent, self.vector, config)
        self.features = InputFeatures(passes.FEATURE_VERSION, first.actions)

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Write a policy folder for `load_pass_order`."""
        learned_order(self.model, self.order, dict(provenance)).save(folder)


def _make_vector(config: TrainConfig, first: Environment) -> VecEnv:
    """Return the environments of an agent; in this process they share what they compile and explore."""
    if config.vec_env == "subproc":
        return make_vector([partial(make_env, config)] * config.environments, "subproc", _warn)
    others = [partial(make_env, config, shared=first) for _ in range(config.environments - 1)]
    return make_vector([lambda: first, *others])


def _warn(text: str) -> None:
    error_console.print(f"warning: {text}", soft_wrap=True)
