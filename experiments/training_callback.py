"""The callback of a training run: metrics, best plans, checkpoints and the time limit."""

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
from experiments.system_metrics import SystemMetrics
from experiments.tracking import TrackedRun

__all__ = ["TrainingCallback"]


class TrainingCallback(BaseCallback):
    """A Stable-Baselines3 callback for one training run.

    Args:
        run: the folder of the run.
        config: the settings of the run.
        learner: the learner being trained.
        tracked: the MLflow run that receives the metrics.
        extra: the state of this callback in the checkpoint resumed from; empty for a new run.
        progress: called with the number of steps after each step.
        interruption: its `consistent` is True between updates, when the agent can be saved.
        more_state: returns further JSON to store in a checkpoint.

    Attributes:
        watch: counts failed measurements.
        speedup: the mean over the latest rollout with complete episodes, as the environment reports it; None before.
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
        more_state: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        super().__init__()
        self._more_state = more_state
        self._run, self._config, self._learner, self._tracked = run, config, learner, tracked
        self._progress, self._interruption = progress, interruption
        self.watch = FailureWatch()
        self.speedup: float | None = None
        self._best = BestPlans(run, extra.get("best", {}))
        self._episodes: int = extra.get("episodes", 0)
        self._spent: float = extra.get("seconds", 0.0)
        self._start = time.monotonic()
        self._system = SystemMetrics(run.path)
        self._saved_at: int | None = None
        self._logged_at: int = extra.get("timesteps", 0)
        self._logs: dict[str, list[float]] = {}
        self._failures = 0

    def seconds(self) -> float:
        """Return the seconds that the run has taken, summed over all resumptions."""
        return self._spent + time.monotonic() - self._start

    def out_of_time(self) -> bool:
        """Return whether the time limit is reached."""
        return self._config.minutes > 0 and self.seconds() >= 60 * self._config.minutes

    def extra(self) -> dict[str, Any]:
        """Return the state of this callback and of the learner, to be stored in a checkpoint."""
        return {
            "best": self._best.speedups,
            "episodes": self._episodes,
            "seconds": self.seconds(),
            "timesteps": self.num_timesteps,
            **self._learner.extra(),
            **self._more_state(),
        }

    def check_measured(self) -> None:
        """Check that the agent had at least one measurement to learn from, if its rewards are measured times.

        Raises:
            MeasurementError: no measurement of the run succeeded.
        """
        if not self._learner.measured or self._best.speedups:
            return
        if self.watch.failures:
            raise MeasurementError(
                self.watch.message(f"all {self.watch.failures} measurements of this run have failed")
            )
        raise MeasurementError(
            f"no episode has ended within {self.num_timesteps} steps, so nothing was measured; "
            "increase --timesteps or --minutes"
        )

    # ---- called by Stable-Baselines3

    def _on_step(self) -> bool:
        for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True):
            if done:
                self._note_episode(info)
        self._progress(self.num_timesteps)
        return not self.out_of_time()

    def _on_rollout_start(self) -> None:
        """Log and write a checkpoint; the update on the previous rollout is complete here."""
        if self._saved_at is None:
            self._saved_at = self.num_timesteps
        if self.num_timesteps - self._logged_at >= self._config.n_steps:  # some agents update every few steps
            self._log_update(self.model)
        if self.num_timesteps - self._saved_at >= self._config.checkpoint_every and not self.watch.doubtful:
            save_checkpoint(self.model, self._run.checkpoints, self._learner.features, self.extra())
            self._saved_at = self.num_timesteps
        self._interruption.consistent = True
        self._interruption.raise_pending()

    def _on_rollout_end(self) -> None:
        """Defer signals; during the update that begins now, the agent's parameters are inconsistent."""
        self._interruption.consistent = False

    def finish(self, model: BaseAlgorithm) -> None:
        """Log the metrics of the last update."""
        self.model, self.num_timesteps = model, model.num_timesteps
        self._log_update(model)

    # ---- internal

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
        if self.num_timesteps == self._logged_at:  # resumed after the last step, so there is nothing to log
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
        self.speedup = point["speedup"] or self.speedup
        losses = {k.replace("/", "."): float(v) for k, v in model.logger.name_to_value.items() if _is_number(v)}
        metrics = {
            "episodes": float(self._episodes),
            "failures": float(self._failures),
            **({"speedup": point["speedup"]} if values else {}),
            **{f"speedup.{p}": s for p, s in means.items()},
            **{f"best.{p}": s for p, s in self._best.speedups.items()},
            **self._episode_means(model),
            **self._system.read(),
            **losses,
        }
        self._tracked.metrics(metrics, self.num_timesteps)
        self._logs, self._failures = {}, 0

    @staticmethod
    def _episode_means(model: BaseAlgorithm) -> dict[str, float]:
        """Return the means over the latest hundred episodes, which the monitor has noted."""
        latest = model.ep_info_buffer or ()
        names = {"rollout.ep_rew_mean": "r", "rollout.ep_len_mean": "l"}
        return {name: sum(e[key] for e in latest) / len(latest) for name, key in names.items()} if latest else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or hasattr(value, "__float__")
