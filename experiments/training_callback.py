"""Beside learning: episodes counted, metrics logged, best plans kept, checkpoints written, time watched."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from agents.checkpoint import save_checkpoint
from env.measurement import MeasurementError
from experiments.best_plans import BestPlans
from experiments.config import TrainConfig
from experiments.failure_watch import FailureWatch
from experiments.interruption import Interruption
from experiments.learners import Learner
from experiments.run_folder import RunFolder
from experiments.tracking import TrackedRun

__all__ = ["TrainingCallback"]


class TrainingCallback(BaseCallback):
    """Of one run of `train`.

    Args:
        run: where files go.
        config: the run's settings.
        learner: what is being trained.
        tracked: where metrics go.
        extra: what the checkpoint resumed from has kept for this object; empty at a start.
        progress: told the number of steps after each.
        interruption: told when the agent is between two updates, where it can be kept.

    Attributes:
        watch: of measurements that fail.
    """

    def __init__(
        self,
        run: RunFolder,
        config: TrainConfig,
        learner: Learner,
        tracked: TrackedRun,
        extra: Mapping[str, Any],
        progress: Callable[[int], None],
        interruption: Interruption,
    ) -> None:
        super().__init__()
        self._run, self._config, self._learner, self._tracked = run, config, learner, tracked
        self._progress, self._interruption = progress, interruption
        self.watch = FailureWatch()
        self._best = BestPlans(run, extra.get("best", {}))
        self._episodes: int = extra.get("episodes", 0)
        self._spent: float = extra.get("seconds", 0.0)
        self._start = time.monotonic()
        self._saved_at: int | None = None
        self._logged_at: int = extra.get("timesteps", 0)
        self._logs: dict[str, list[float]] = {}
        self._failures = 0

    def seconds(self) -> float:
        """Time the run has taken, over all its resumptions."""
        return self._spent + time.monotonic() - self._start

    def out_of_time(self) -> bool:
        """Whether the limit of minutes is reached."""
        return self._config.minutes > 0 and self.seconds() >= 60 * self._config.minutes

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps for this object."""
        return {
            "best": self._best.speedups,
            "episodes": self._episodes,
            "seconds": self.seconds(),
            "timesteps": self.num_timesteps,
            **self._learner.extra(),
        }

    def check_measured(self) -> None:
        """See whether there is anything that the agent can have learned from.

        Raises:
            MeasurementError: rewards are measured times, and not one was measured in the whole run.
        """
        if not self._learner.measured or self._best.speedups:
            return
        if self.watch.failures:
            raise MeasurementError(self.watch.told(f"all {self.watch.failures} measurements of this run have failed"))
        raise MeasurementError(
            f"no episode has ended within {self.num_timesteps} steps, so nothing was measured; "
            "give the run more --timesteps or --minutes"
        )

    # ---- called by Stable-Baselines3

    def _on_step(self) -> bool:
        for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
            if done:
                self._note_episode(info)
        self._progress(self.num_timesteps)
        return not self.out_of_time()

    def _on_rollout_start(self) -> None:
        """Here the update on the rollout before is done, so this is where a checkpoint is whole."""
        if self._saved_at is None:
            self._saved_at = self.num_timesteps
        if self.num_timesteps - self._logged_at >= self._config.n_steps:  # some agents update every few steps
            self._log_update(self.model)
        if self.num_timesteps - self._saved_at >= self._config.checkpoint_every and not self.watch.doubtful:
            save_checkpoint(self.model, self._run.checkpoints, self._learner.features, self.extra())
            self._saved_at = self.num_timesteps
        self._interruption.whole = True
        self._interruption.heed()

    def _on_rollout_end(self) -> None:
        """The update begins, in the middle of which the agent is neither what it was nor what it will be."""
        self._interruption.whole = False

    def finish(self, model: BaseAlgorithm) -> None:
        """Log what the last update left."""
        self.model, self.num_timesteps = model, model.num_timesteps
        self._log_update(model)

    # ---- inside

    def _note_episode(self, info: Mapping[str, Any]) -> None:
        self._episodes += 1
        measurement = info.get("measurement")
        if measurement is not None:
            self._failures += bool(measurement["failure"])
            self.watch.note(info["program"], measurement)
            if measurement["failure"]:
                return
        if "passes" not in info and "plan_json" not in info:  # truncated
            return
        program, speedup = info["program"], float(info["speedup"])
        self._logs.setdefault(program, []).append(math.log(speedup))
        self._best.offer(program, speedup, info.get("plan_json") or json.dumps({"passes": info["passes"]}, indent=1))

    def _log_update(self, model: BaseAlgorithm) -> None:
        if self.num_timesteps == self._logged_at:  # resumed after its last step: there is nothing new
            return
        self._logged_at = self.num_timesteps
        values = [v for logs in self._logs.values() for v in logs]
        means = {p: math.exp(sum(v) / len(v)) for p, v in self._logs.items()}
        point: dict[str, Any] = {
            "timesteps": self.num_timesteps,
            "episodes": self._episodes,
            "seconds": round(self.seconds(), 1),
            "speedup": math.exp(sum(values) / len(values)) if values else None,
            "programs": means,
            "failures": self._failures,
        }
        self._run.add_progress(point)
        losses = {k.replace("/", "."): float(v) for k, v in model.logger.name_to_value.items() if _is_number(v)}
        metrics = {
            "episodes": float(self._episodes),
            "failures": float(self._failures),
            **({"speedup": point["speedup"]} if values else {}),
            **{f"speedup.{p}": s for p, s in means.items()},
            **{f"best.{p}": s for p, s in self._best.speedups.items()},
            **losses,
        }
        self._tracked.metrics(metrics, self.num_timesteps)
        self._logs, self._failures = {}, 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or hasattr(value, "__float__")
