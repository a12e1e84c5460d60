"""`hlogym/PassOrder-v0` and its measured twin: which pass runs next, until the agent stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, Unpack, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.analysis.cost_model import CostModel, module_seconds
from compiler.default_fusion import default_completion, fuse_by_default
from compiler.ir import HloModule
from compiler.learned.features.passes import LIMIT, Vector, observation_size
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_states import PassGraph, PassState, StateMemory, default_pass_actions
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.registry import pass_texts
from compiler.plan import CompilationPlan, Phase
from compiler.session import CompilationSession
from compiler.support.lru_dict import LruDict
from env.arguments import checked_cost, checked_count, checked_flag
from env.base import CompilerEnv, EnvOptions
from env.baseline import LEAST_ESTIMATE, Baseline
from env.compilation import Compilation
from env.speedup_measurer import SpeedupMeasurer
from env.suites import Program, Suite

__all__ = ["PassOrderEnv"]

STATE_BYTES = 32 << 20
"""Explored states that each environment keeps, by estimate; environments that share them keep so much each."""
FINISHED = 500
"""Number of modules after all passes for which the plan of the rest and its estimate are kept."""
_Finished: TypeAlias = tuple[CompilationPlan, float]


class _PassCompilation(Compilation):
    """The compilation of a `PassEpisode`.

    Facts about a state are kept in its notes, so that they are not computed again when another episode reaches it.
    """

    def __init__(
        self,
        episode: PassEpisode,
        cost_model: CostModel,
        defaults: HloPass,
        program: Program,
        baseline: Baseline,
        measurer: SpeedupMeasurer,
        finished: LruDict[tuple[str, str], _Finished],
    ) -> None:
        super().__init__(program, baseline, measurer)
        self.episode, self._defaults, self._finished = episode, defaults, finished
        self._cost_model = cost_model

    @property
    def phase(self) -> Phase:
        return "done" if self.episode.done else "passes"

    @property
    def decisions(self) -> Sequence[str]:
        return [self.episode.graph.actions[a] for a in self.episode.taken]

    @property
    def module(self) -> HloModule:
        return self.episode.state.module

    @property
    def ops(self) -> int:
        return self.episode.state.ops

    @property
    def seconds(self) -> float:
        notes = self.episode.state.notes
        if "seconds" not in notes:
            notes["seconds"] = self.episode.state.read(lambda m: module_seconds(m, self._cost_model))
        seconds: float = notes["seconds"]
        return max(seconds, LEAST_ESTIMATE)

    @property
    def plan(self) -> CompilationPlan:
        plan, defaults, _ = self._whole()
        # Another episode may have come to this state by other passes.
        return replace(plan, passes=(*self.episode.effective(), *defaults))

    @property
    def complete_seconds(self) -> float:
        return self._whole()[2]

    def _whole(self) -> tuple[CompilationPlan, tuple[str, ...], float]:
        """Return the plan of the whole compilation, the default passes in it, and its estimated time."""
        notes = self.episode.state.notes
        if "completed" not in notes:
            end, defaults = self._after_passes()
            # Many orders lead to one module once the default passes have run.
            key = self.program.name, end.key
            found = self._finished.get(key)
            if found is None:
                done = default_completion(self._before_fusion(end, defaults))
                found = self._finished[key] = done.plan, max(done.seconds, LEAST_ESTIMATE)
            notes["completed"] = found[0], defaults, found[1]
        whole: tuple[CompilationPlan, tuple[str, ...], float] = notes["completed"]
        return whole

    def _complete(self) -> CompilationSession:
        session = self._before_fusion(*self._after_passes())
        fuse_by_default(session)
        return session

    def _after_passes(self) -> tuple[PassState, tuple[str, ...]]:
        """Return the state after the default passes, and those of them that changed something."""
        return self.episode.graph.run(self.episode.state, self._defaults)

    def _before_fusion(self, end: PassState, defaults: tuple[str, ...]) -> CompilationSession:
        """Return the session of the whole compilation after the passes of the episode, the default ones and loops."""
        session = self.baseline.start.fork()
        passes = (*self.episode.effective(), *defaults)
        end.read(lambda module: session.take_passes(module, passes))
        session.run_loop_policy()
        return session


class PassOrderEnv(CompilerEnv[Vector]):
    """Choose which pass runs next, one sweep at a time, until the agent stops.

    Description:
        A pass order is chosen in place of the default one. The compilation then continues as `compile` does: with the
        default passes, loops inside one kernel where that is possible, and the default fusion.

    Action space:
        `Discrete(n + 1)`. Action i runs pass `actions[i]`, the last action stops. A pass that changes nothing is no
        error, but it uses up one of the `max_steps` applications; `action_masks()` leaves out the passes that this
        episode has seen to change nothing in the current state.

    Observation space:
        A `Box`, a vector of numbers; see `compiler.learned.features.passes`.

    Rewards:
        See `env.rewards`. All of them are logarithms, so the return of an episode is the log of a ratio.

        - "op-count": the op count before a step to the one after it; in all, of the start to the end. What follows the
          stop does not count.
        - "estimated-time" (default): the same of the cost model's time of the unfused program, and at the end what is
          missing to the estimated speedup over the baseline, which is what `compile` makes by default.
        - "measured-time": nothing until the end, then the measured speedup over the baseline.

    Starting state:
        A program drawn from the suite, or the one that `reset(options={"program": name})` names.

    Episode end:
        Terminated when the agent stops, when every pass is known to change nothing, or when the applications are used
        up, which the observation shows, so it is no truncation.

    Info:
        - program: its name.
        - phase: "passes" or "done".
        - plan: passes so far.
        - ops: op count now.
        - speedup: over the baseline, as the reward defines it (a ratio of op counts for "op-count"); estimated, until a
          measured episode ends.
        - refused: why the action was refused; empty if it was not.
        - passes, at the end: those that changed something.
        - plan_json, at the end: the `CompilationPlan`; not for "op-count".
        - measurement, at the end if the plan was measured: seconds, failure, message, kernels, new_kernels.

    Version history:
        - v0: the first version.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        passes: the passes to choose from, in a list or separated by commas; None: those of the default pipeline, each
            as a single sweep.
        max_steps: applications per episode.
        step_cost: subtracted from the reward of each step.
        verified: check the module after each pass that changed it.
        shared: another environment, whose compiled programs, measurer and, with the same passes, explored states this
            one uses too.
        options: see `CompilerEnv`.

    Raises:
        UnknownNameError: no such suite, pass or reward.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("passes",)

    def __init__(
        self,
        suite: str | Path | Suite = "train",
        *,
        passes: str | Sequence[str] | None = None,
        max_steps: int = 150,
        step_cost: float = 0.0,
        verified: bool = False,
        shared: PassOrderEnv | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        super().__init__(suite, shared=shared, **options)
        self.actions = default_pass_actions() if passes is None else pass_texts(passes)
        self.max_steps, self.step_cost = checked_count("max_steps", max_steps), checked_cost(step_cost)
        self.verified = checked_flag("verified", verified)
        size = observation_size(len(self.actions))
        self.observation_space = cast("spaces.Space[Vector]", spaces.Box(-LIMIT, LIMIT, (size,), np.float32))
        self.action_space = spaces.Discrete(len(self.actions) + 1)
        self._memory: StateMemory = StateMemory(0) if shared is None else shared._memory
        self._memory.limit += STATE_BYTES
        alike = shared is not None and (shared.actions, shared.verified) == (self.actions, verified)
        self._graphs: dict[str, PassGraph] = shared._graphs if shared is not None and alike else {}
        self._shared: tuple[CostModel, HloPass] | None = None
        self._finished: LruDict[tuple[str, str], _Finished] = LruDict(FINISHED)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are worth trying now, as `sb3_contrib.MaskablePPO` expects it."""
        return self._episode.mask()

    def graph(self, program: Program) -> PassGraph:
        """Return the states of a program, which all episodes on it share."""
        if program.name not in self._graphs:
            module = self.baseline(program).start.module
            self._graphs[program.name] = PassGraph(module, self.actions, self.verified, self._memory)
        return self._graphs[program.name]

    # ---- called by CompilerEnv

    @property
    def _episode(self) -> PassEpisode:
        return cast(_PassCompilation, self.compilation).episode

    def _start(self, program: Program) -> Compilation:
        baseline, episode = self.baseline(program), PassEpisode(self.graph(program), self.max_steps)
        if self._shared is None:
            self._shared = CostModel(baseline.start.device), baseline.start.default_passes
        return _PassCompilation(episode, *self._shared, program, baseline, self._measurer, self._finished)

    def _take(self, action: int) -> str | None:
        refused = self._episode.refusal(action)
        if refused is None:
            self._episode.take(action)
        return refused

    def _observe(self) -> Vector:
        return self._episode.observation()

    def _summary(self) -> str:
        return f"{self._episode.graph.root.ops} ops at first, {self._episode.state.ops} now"

    def _info(self, refused: str | None, ended: bool) -> dict[str, Any]:
        info = super()._info(refused, ended)
        info["ops"] = self._episode.state.ops
        if ended:
            info["passes"] = self._episode.effective()
        if ended and self.reward.completes:
            info["plan_json"] = self.plan.to_json()
        return info
