"""The environment that all ids share: decisions of a compilation as actions, log speedups as rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.fusion.actions import FusionAction
from compiler.learned.features.candidates import MAX_CANDIDATES
from compiler.plan import CompilationPlan
from env.base import FAILURE_REWARD, REFUSED_REWARD, CompilerEnv, Outcome, measurement_info
from env.episode import Episode, Move, Phase
from env.measurement import Measurer
from env.observations import Observation, observation_space, observe
from env.suites import Suite

__all__ = ["FAILURE_REWARD", "REFUSED_REWARD", "DecisionEnv"]


class DecisionEnv(CompilerEnv[Observation]):
    """Compile one program, decision by decision.

    Action i is the i-th legal move of the moment (`moves`), which the observation describes in row i of its
    candidates; `action_masks` says how many there are. An action beyond them does nothing, costs REFUSED_REWARD, and
    `info["refused"]` says why.

    Rewards are differences of log time, so the return of an episode is the log of the speedup over the reference: the
    default passes with loops as they are, without fusion where the episode fuses, and fused by the default policy
    where it decides something else. With the cost model each step is paid what it saves (potential-based shaping);
    measured, everything is paid at the end.

    `info`: program, phase, plan (decisions so far), speedup (by the cost model until the end; the measured one after),
    refused, and at the end plan_json and, when measured, measurement.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        backend: "cpu" or "cuda"; whose device model prices, and what measures.
        measured: pay measured time.
        max_steps: an episode is truncated after so many.
        measurer: shared with others; by default one is made when first needed.
        store: file of kernel times of that one; None: the user's cache folder.
        render_mode: "ansi" or None.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("loops", "fusion")

    def __init__(
        self,
        suite: str | Path | Suite = "train",
        backend: str = "cpu",
        measured: bool = False,
        max_steps: int = 1000,
        measurer: Measurer | None = None,
        store: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(suite, backend, measured, measurer, store, render_mode)
        self.max_steps = max_steps
        self.observation_space = cast("spaces.Space[Observation]", observation_space())
        self.action_space = spaces.Discrete(MAX_CANDIDATES)
        self._episode: Episode | None = None
        self._steps = 0

    # ---- Gymnasium's methods

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start on a program: `options={"program": name}`, or one drawn from the suite.

        Raises:
            UnknownNameError: the suite has no such program.
            ProgramError: the program cannot be read or compiled.
        """
        super().reset(seed=seed)
        self._program = self._draw(options)
        base = self._base(self._program)
        self._episode = Episode(base.session.fork(), self.phases)
        self._start = self._potential = math.log(max(self._episode.seconds(), 1e-12))
        self._steps = 0
        return observe(self._episode.graph()), self._info(None, None)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one decision.

        Raises:
            MeasurementError: measured, and the program's reference cannot be measured, so there is no reward.
        """
        episode = self._running()
        refused = episode.take(int(action))
        self._steps += 1
        reward = REFUSED_REWARD if refused else self._step_reward()
        terminated = episode.done
        truncated = not terminated and self._steps >= self.max_steps
        outcome: Outcome | None = None
        if terminated:
            outcome = self._outcome()
            reward += outcome.reward
        return observe(episode.graph()), reward, terminated, truncated, self._info(refused, outcome)

    def render(self) -> str | None:
        """The decisions so far, as text."""
        if self.render_mode != "ansi" or self._episode is None:
            return None
        lines = [f"{self._program.name}: {len(self._episode.moves)} legal moves"]
        return "\n".join([*lines, *(f"  {n + 1}. {t}" for n, t in enumerate(self._episode.taken))])

    # ---- more

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now; what MaskablePPO asks for."""
        return np.arange(MAX_CANDIDATES) < len(self._running().moves)

    @property
    def moves(self) -> Sequence[Move]:
        """The legal moves now; action i does the i-th."""
        return tuple(self._running().moves)

    @property
    def plan(self) -> CompilationPlan:
        """The plan of a compilation that goes on from here with the defaults."""
        return self._running().completed()[0]

    def why_not(self, action: int | FusionAction) -> str | None:
        """Why an action, or any fusion, is refused now; None when it is legal."""
        episode = self._running()
        if isinstance(action, FusionAction):
            return (
                episode.session.why_not(action) if episode.phase == "fusion" else f"{episode.phase} are decided first"
            )
        count = len(episode.moves)
        return None if 0 <= action < count else f"action {action} is not among the {count} legal ones"

    # ---- inside

    def _running(self) -> Episode:
        if self._episode is None:
            raise gym.error.ResetNeeded("call reset before the first step")
        return self._episode

    def _step_reward(self) -> float:
        """What the step saved by the cost model; nothing while measurements pay."""
        before, self._potential = self._potential, math.log(max(self._running().seconds(), 1e-12))
        return 0.0 if self.measured else before - self._potential

    def _outcome(self) -> Outcome:
        base = self._base(self._program)
        plan, seconds = self._running().completed()
        if not self.measured:
            speedup = base.seconds / max(seconds, 1e-12)
            # The steps have been paid the way from the start to here; the end pays what is missing to the speedup.
            return Outcome(math.log(speedup) - (self._start - self._potential), speedup, plan)
        return self._measured_outcome(self._program, base.plan, plan)

    def _info(self, refused: str | None, outcome: Outcome | None) -> dict[str, Any]:
        episode = self._running()
        base = self._base(self._program)
        info: dict[str, Any] = {
            "program": self._program.name,
            "phase": episode.phase or "done",
            "plan": list(episode.taken),
            "speedup": base.seconds / max(episode.seconds(), 1e-12) if outcome is None else outcome.speedup,
            "refused": refused or "",
        }
        if outcome is not None:
            if outcome.plan is not None:
                info["plan_json"] = outcome.plan.to_json()
            if outcome.measurement is not None:
                info["measurement"] = measurement_info(outcome.measurement)
        return info
