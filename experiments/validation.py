"""Evaluation of an agent on validation programs between updates; the best agent so far is exported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EventCallback
from stable_baselines3.common.evaluation import evaluate_policy

from agents.baseline import ProgramBaseline
from agents.vectors import make_vector
from compiler.errors import HlogymError
from experiments.config import TrainConfig
from experiments.console import error_console
from experiments.interruption import Interruption
from experiments.learners import Learner
from experiments.run_folder import RunFolder
from experiments.tracking import TrackedRun
from experiments.training_env import Environment, make_env
from experiments.validation_results import (
    Outcome,
    Rules,
    ValidationResult,
    read_validation,
    unit_of,
    write_validation,
)

__all__ = ["EachProgram", "Validation", "evaluation_callback"]


class EachProgram(gym.Wrapper[Any, Any, Any, Any]):
    """Resets to each program of the suite in turn, so that as many episodes as programs cover all of them.

    Attributes:
        programs: their names.
        outcomes: the latest result on each program, beside that of the compiler's rules.
        unit: what the outcomes are.
    """

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.programs = [p.name for p in env.suite.programs]
        self.outcomes: dict[str, Outcome] = {}
        self.unit = unit_of(env)
        self._environment, self._rules = env, Rules()
        self._next = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a decision, and note the outcome at the end of an episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self.outcomes[info["program"]] = self._rules.outcome(self._environment, info, terminated)
        return observation, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset to the next program."""
        name = self.programs[self._next]
        self._next = (self._next + 1) % len(self.programs)
        return self.env.reset(seed=seed, options={"program": name, **(options or {})})


class Validation:
    """The evaluations of a training run.

    Each one plays an episode on every validation program, with the most probable actions and the reward of the
    training. Their mean return decides which agent is the best.

    Args:
        run: the folder of the run; the best policy is exported to its `best`.
        config: the settings of the run.
        learner: the learner being trained.
        tracked: the MLflow run that receives the results.
        extra: what `extra` returned in the checkpoint resumed from; empty for a new run.
        interruption: signals wait while the best policy is written.
        provenance: returns the provenance to store in the exported policy.

    Attributes:
        callback: evaluates the agent; None if the settings ask for no evaluations.
        speedup: the geometric mean of the latest evaluation over the compiler's rules; None before the first one.
    """

    def __init__(
        self,
        run: RunFolder,
        config: TrainConfig,
        learner: Learner,
        tracked: TrackedRun,
        extra: Mapping[str, Any],
        interruption: Interruption,
        provenance: Callable[[], dict[str, Any]],
    ) -> None:
        self._run, self._learner, self._tracked = run, learner, tracked
        self._interruption, self._provenance = interruption, provenance
        saved = extra.get("validation_best")
        if not isinstance(saved, int | float | None):
            raise TypeError(f"validation_best is {saved!r:.80}")
        known = read_validation(run.validation)  # may be newer than the checkpoint
        means = [m for m in (saved, None if known is None else known[0].mean_return) if m is not None]
        self._best: float | None = max(means, default=None)
        self.callback: EvalCallback | None = None
        self.speedup: float | None = None
        if config.eval_freq > 0:
            self.callback, self._env = evaluation_callback(config, learner, config.eval_freq, self._after)

    def callbacks(self, ends: Callable[[], bool]) -> list[BaseCallback]:
        """Return what evaluates the agent during `learn`.

        Args:
            ends: whether training ends after the present step. The agent is not evaluated then, because `finish`
                evaluates what the last update makes of it.
        """
        return [] if self.callback is None else [_Until(ends, self.callback)]

    def extra(self) -> dict[str, Any]:
        """Return the best mean return so far, for a checkpoint."""
        return {} if self._best is None else {"validation_best": self._best}

    def finish(self) -> None:
        """Evaluate the agent at the end of the training, after its last update.

        A failure is a warning: the training is complete, and its last policy is exported anyway.
        """
        model = self._learner.model
        if self.callback is None:
            return
        evaluate: Callable[..., Any] = evaluate_masked if isinstance(model, MaskablePPO) else evaluate_policy
        try:
            mean, _ = evaluate(model, self.callback.eval_env, len(self._env.programs), deterministic=True, warn=False)
        except HlogymError as error:
            reason = str(error).partition("\n")[0]
            error_console.print(f"warning: the policy was not evaluated on the validation programs: {reason}")
            return
        self._note(model.num_timesteps, float(mean))

    def _after(self, steps: int) -> None:
        """Note the result of an evaluation by the callback."""
        if self.callback is not None:
            self._note(steps, float(self.callback.last_mean_reward))

    def _note(self, steps: int, mean: float) -> None:
        """Note the result of an evaluation, and export the agent if it is the best so far."""
        result = ValidationResult(steps, mean, self._env.unit, dict(self._env.outcomes))
        self.speedup = None if result.speedup is None else result.speedup.value
        before, self._interruption.consistent = self._interruption.consistent, False
        known = read_validation(self._run.validation)
        best = result if known is None else known[0]
        if self._best is None or mean > self._best:
            self._learner.export(self._run.best, {**self._provenance(), "validation": mean})
            self._best, best = mean, result
        write_validation(self._run.validation, best, result)
        self._interruption.consistent = before
        if math.isfinite(mean):
            speedups = {f"eval.speedup.{p}": o.speedup for p, o in result.programs.items() if o.speedup is not None}
            means = {} if self.speedup is None else {"eval.speedup": self.speedup}
            returns = {"eval.mean_reward": mean, "eval.best_mean_reward": self._best}
            self._tracked.metrics({**returns, **means, **speedups}, steps)

    def close(self) -> None:
        """Close the environment."""
        if self.callback is not None:
            self._env.close()


def evaluation_callback(
    config: TrainConfig, learner: Learner, eval_freq: int, after: Callable[[int], object]
) -> tuple[EvalCallback, EachProgram]:
    """Return a callback for `learn` that evaluates the agent on every validation program, and its environment.

    Args:
        config: the settings of the run.
        learner: the learner being trained.
        eval_freq: steps between evaluations.
        after: called with the number of steps after each evaluation; training ends if it returns False.
    """
    measurer = {"measurer": learner.first.measurer} if learner.measured else {}
    env = EachProgram(make_env(config, suite=config.eval_suite, **measurer))
    kind = MaskableEvalCallback if isinstance(learner.model, MaskablePPO) else EvalCallback
    vector = make_vector([lambda: env])
    callback = kind(
        # SB3 warns unless both vectors are of one type; the monitor inside has the returns as they are.
        ProgramBaseline(vector) if isinstance(learner.model.get_env(), ProgramBaseline) else vector,
        callback_after_eval=_Notice(after),
        n_eval_episodes=len(env.programs),
        eval_freq=max(1, eval_freq // learner.vector.num_envs),
        verbose=0,
    )
    return callback, env


class _Notice(BaseCallback):
    """Calls a function with the number of steps; training ends if it returns False."""

    def __init__(self, function: Callable[[int], object]) -> None:
        super().__init__()
        self._function = function

    def _on_step(self) -> bool:
        return self._function(self.num_timesteps) is not False


class _Until(EventCallback):
    """Calls a callback at each step until a condition holds."""

    def __init__(self, condition: Callable[[], bool], callback: BaseCallback) -> None:
        super().__init__(callback)
        self._condition = condition

    def _on_step(self) -> bool:
        return self._condition() or self._on_event()
