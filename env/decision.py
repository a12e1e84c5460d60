"""Environments whose actions are the decisions of a compilation session: passes, loops, fusions, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.learned.features.candidates import MAX_CANDIDATES
from compiler.plan import Phase
from compiler.session import CompilationSession
from env.base import CompilerEnv, EnvOptions
from env.baseline import LEAST_ESTIMATE, Baseline
from env.compilation import Compilation
from env.episode import Episode, Move
from env.observations import Observation, observation_space, observe
from env.speedup_measurer import SpeedupMeasurer
from env.suites import Program, Suite

__all__ = ["DecisionEnv"]


class _SessionCompilation(Compilation):
    """The compilation of an `Episode`."""

    def __init__(self, episode: Episode, program: Program, baseline: Baseline, measurer: SpeedupMeasurer) -> None:
        super().__init__(program, baseline, measurer)
        self.episode = episode

    @property
    def phase(self) -> Phase:
        return self.episode.phase

    @property
    def decisions(self) -> Sequence[str]:
        return self.episode.taken

    @property
    def module(self) -> HloModule:
        return self.episode.session.module

    @property
    def seconds(self) -> float:
        return max(self.episode.seconds(), LEAST_ESTIMATE)

    @property
    def complete_seconds(self) -> float:
        # Once fusion has begun, the episode keeps account of the time.
        return self.seconds if self.complete() is self.episode.session else super().complete_seconds

    def _complete(self) -> CompilationSession:
        return self.episode.complete()


class DecisionEnv(CompilerEnv[Observation]):
    """Compile a program, decision by decision.

    Description:
        An episode takes the decisions of the phases that the environment is about, one after the other. What comes
        before and after them takes its default.

    Action space:
        `Discrete(MAX_CANDIDATES)`. Action i is the i-th legal decision of the current step (`moves`). `action_masks()`
        says which actions are legal. An illegal one does nothing and is rewarded with REFUSED_REWARD.

    Observation space:
        A `Dict` of arrays of fixed size: the instructions next to the candidates as a graph, and row i of the
        candidates describes action i. See `env.observations`.

    Rewards:
        See `env.rewards`. By default they are differences of log time: the return of an episode is the log of the
        speedup over the baseline. The baseline is the default passes with loops kept as they are; without fusion if the
        environment fuses, else fused by the default policy. "estimated-time" rewards each step with the log time it
        saves by the cost model; "measured-time" rewards the end of the episode with the log of the measured speedup.

    Starting state:
        A program drawn from the suite, or the one that `reset(options={"program": name})` names.

    Episode end:
        Terminated when every decision has been taken; truncated after `max_steps`.

    Info:
        - program: its name.
        - phase: of the next decision, or "done".
        - plan: decisions so far, as text.
        - speedup: over the baseline, as the reward defines it; estimated, until a measured episode ends.
        - refused: why the action was refused; empty if it was not.
        - plan_json, at the end: the `CompilationPlan`.
        - measurement, at the end if the plan was measured: seconds, failure, message, kernels, new_kernels.

    Version history:
        - v0: the first version.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        max_steps: number of steps after which an episode is truncated.
        options: see `CompilerEnv`.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("loops", "fusion")

    def __init__(
        self, suite: str | Path | Suite = "train", *, max_steps: int = 1000, **options: Unpack[EnvOptions]
    ) -> None:
        super().__init__(suite, **options)
        self.max_steps = max_steps
        self.observation_space = cast("spaces.Space[Observation]", observation_space())
        self.action_space = spaces.Discrete(MAX_CANDIDATES)
        self._steps = 0

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal now, as `sb3_contrib.MaskablePPO` expects it."""
        return np.arange(MAX_CANDIDATES) < len(self.moves)

    @property
    def moves(self) -> Sequence[Move]:
        """The legal decisions now; action i takes the i-th."""
        return tuple(self._episode.moves)

    def why_not(self, action: int | FusionAction) -> str | None:
        """Return why an action, or any fusion, is refused now; None if it is legal."""
        phase = self.compilation.phase
        if isinstance(action, FusionAction):
            return self._episode.session.why_not(action) if phase == "fusion" else f"{phase} are decided first"
        count = len(self._episode.moves)
        return None if 0 <= action < count else f"action {action} is not among the {count} legal ones"

    # ---- called by CompilerEnv

    @property
    def _episode(self) -> Episode:
        return cast(_SessionCompilation, self.compilation).episode

    def _start(self, program: Program) -> Compilation:
        baseline = self.baseline(program)
        self._steps = 0
        episode = Episode(baseline.start.fork(), self.phases)
        return _SessionCompilation(episode, program, baseline, self._measurer)

    def _take(self, action: int) -> str | None:
        self._steps += 1
        return self._episode.take(action)

    def _observe(self) -> Observation:
        return observe(self._episode.graph())

    def _summary(self) -> str:
        return f"{len(self._episode.moves)} legal moves"

    def _is_truncated(self) -> bool:
        return not self._episode.done and self._steps >= self.max_steps

    def _info(self, refused: str | None, ended: bool) -> dict[str, Any]:
        info = super()._info(refused, ended)
        if ended:
            info["plan_json"] = self.plan.to_json()
        return info
