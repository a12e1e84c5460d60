"""`hlogym/PassOrder-v0` and its measured twin: which pass runs next, until it stops and the defaults go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.analysis.cost_model import CostModel, module_cost
from compiler.errors import UnknownNameError
from compiler.fusion.policies import make_policy
from compiler.learned.features.passes import LIMIT, Vector, observation_size
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_states import PassGraph, PassState, StateMemory, default_pass_actions
from compiler.passes.infrastructure.registry import make_pass, make_passes, pass_text
from compiler.plan import CompilationPlan
from env.base import REFUSED_REWARD, Base, CompilerEnv, Outcome, measurement_info
from env.episode import COMPLETION_POLICY, Phase
from env.measurement import Measurer
from env.suites import Program, Suite

__all__ = ["PassOrderEnv", "PassReward"]

STATE_BYTES = 32 << 20
"""Explored states that each environment keeps, by estimate; environments that share them keep so much each."""
PassReward: TypeAlias = Literal["op-count", "cost", "measured"]


class PassOrderEnv(CompilerEnv[Vector]):
    """Which pass runs next, one sweep at a time, until it stops; then the default pipeline and fusion by defaults.

    Action i runs `actions[i]`, the last action stops. A pass that changes nothing is no mistake, it costs one of the
    `max_steps` applications; `action_masks` leaves out those that this episode has seen to be idle in this state.
    An episode ends at a stop, when every pass is idle, or when the applications are used up (which the observation
    tells, so it is an end and no truncation).

    The observation is a vector; `compiler.learned.features.passes` says what is in it.

    Rewards, all of them logarithms, so that an episode's return is the log of a ratio:

    - "op-count": of the op count before a step and after it; in all, of the start to the end. Here nothing comes after
      the stop;
    - "cost": the same of the cost model's time of the unfused program, and at the end what is missing to the estimated
      speedup of the fused program over the default passes, fused (potential-based shaping of that speedup);
    - "measured": nothing until the end, then the measured speedup over the default passes, fused.

    `info`: program, phase, plan (passes so far), ops, speedup (for "op-count" the ratio of the op count after the
    default passes to the one now, else of times, estimated until the end), refused, applications (how many passes have
    run and how many were remembered, over all episodes); at the end passes (those that changed something), plan_json
    and, when measured, measurement.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        backend: "cpu" or "cuda"; whose device model prices, and what measures.
        measured: pay measured time; the same as reward="measured".
        reward: what is paid; None: "cost", or "measured" if `measured`.
        passes: texts of the passes to choose from, separated by commas or in a list; None: those of the default
            pipeline, one sweep an application.
        max_steps: applications an episode has.
        step_cost: taken off the reward of each step.
        verified: check the module after each pass that changed it.
        measurer: shared with others; by default one is made when first needed.
        store: file of kernel times of that one; None: the user's cache folder.
        render_mode: "ansi" or None.
        shared: another environment with the same passes and backend, whose explored states this one uses too.

    Raises:
        UnknownNameError: no such suite, pass or reward.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("passes",)

    def __init__(
        self,
        suite: str | Path | Suite = "train",
        backend: str = "cpu",
        measured: bool = False,
        reward: PassReward | None = None,
        passes: str | Sequence[str] | None = None,
        max_steps: int = 150,
        step_cost: float = 0.0,
        verified: bool = False,
        measurer: Measurer | None = None,
        store: str | Path | None = None,
        render_mode: str | None = None,
        shared: PassOrderEnv | None = None,
    ) -> None:
        reward = reward or ("measured" if measured else "cost")
        if reward not in get_args(PassReward):
            raise UnknownNameError("reward", reward, get_args(PassReward))
        super().__init__(suite, backend, reward == "measured", measurer, store, render_mode)
        self.reward: PassReward = reward
        self.actions = _texts(passes)
        self.max_steps, self.step_cost, self.verified = max_steps, step_cost, verified
        size = observation_size(len(self.actions))
        self.observation_space = cast("spaces.Space[Vector]", spaces.Box(-LIMIT, LIMIT, (size,), np.float32))
        self.action_space = spaces.Discrete(len(self.actions) + 1)
        self._memory: StateMemory = StateMemory(0) if shared is None else shared._memory
        self._memory.limit += STATE_BYTES
        if shared is not None:
            self._bases = shared._bases
        self._graphs: dict[str, PassGraph] = {} if shared is None else shared._graphs
        self._episode: PassEpisode | None = None
        self._cost_model: CostModel | None = None

    # ---- Gymnasium's methods

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start on a program: `options={"program": name}`, or one drawn from the suite.

        Raises:
            UnknownNameError: the suite has no such program.
            ProgramError: the program cannot be read or compiled.
        """
        super().reset(seed=seed)
        self._program = self._draw(options)
        self._episode = PassEpisode(self.graph(self._program), self.max_steps)
        self._start = self._potential(self._episode.state)
        return self._episode.observation(), self._info(None, None)

    def step(self, action: np.int64 | int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Run a pass, or stop.

        Raises:
            MeasurementError: measured, and the program's reference cannot be measured, so there is no reward.
        """
        episode, action = self._running(), int(action)
        refused = episode.refusal(action)
        if refused is not None:
            return episode.observation(), REFUSED_REWARD, episode.done, False, self._info(refused, None)
        before = self._potential(episode.state)
        after = self._potential(episode.take(action))
        reward = after - before - self.step_cost
        outcome = self._outcome(after) if episode.done else None
        if outcome is not None:
            reward += outcome.reward
        return episode.observation(), reward, outcome is not None, False, self._info(None, outcome)

    def render(self) -> str | None:
        """The passes so far, as text."""
        if self.render_mode != "ansi" or self._episode is None:
            return None
        episode = self._episode
        lines = [f"{self._program.name}: {episode.graph.root.ops} ops at first, {episode.state.ops} now"]
        return "\n".join([*lines, *(f"  {n + 1}. {self.actions[a]}" for n, a in enumerate(episode.taken))])

    # ---- more

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are worth trying now; what MaskablePPO asks for."""
        return self._running().mask()

    def graph(self, program: Program) -> PassGraph:
        """The states of a program; shared by all episodes on it."""
        if program.name not in self._graphs:
            module = self._base(program).session.module
            self._graphs[program.name] = PassGraph(module, self.actions, self.verified, self._memory)
        return self._graphs[program.name]

    @property
    def plan(self) -> CompilationPlan:
        """The plan of a compilation that goes on from here with the defaults."""
        return self._completed()[0]

    # ---- inside

    def _running(self) -> PassEpisode:
        if self._episode is None:
            raise gym.error.ResetNeeded("call reset before the first step")
        return self._episode

    def _potential(self, state: PassState) -> float:
        """Minus the log of what is to become small."""
        if self.reward == "op-count":
            return -math.log(max(state.ops, 1))
        if self.reward == "measured":
            return 0.0
        seconds: float | None = state.notes.get("seconds")
        if seconds is None:
            if self._cost_model is None:
                self._cost_model = CostModel(self._base(self._program).session.device)
            seconds = state.notes["seconds"] = module_cost(state.module, self._cost_model).seconds
        return -math.log(max(seconds, 1e-12))

    def _outcome(self, potential: float) -> Outcome:
        base, episode = self._base(self._program), self._running()
        if self.reward == "op-count":
            return Outcome(0.0, max(base.ops, 1) / max(episode.state.ops, 1), None)
        plan, seconds = self._completed()
        if self.reward == "measured":
            return self._measured_outcome(self._program, base.plan, plan)
        speedup = base.seconds / max(seconds, 1e-12)
        # The steps have been paid the way from the start to here; the end pays what is missing to the speedup.
        return Outcome(math.log(speedup) - (potential - self._start), speedup, plan)

    def _completed(self) -> tuple[CompilationPlan, float]:
        """The plan of a compilation with the passes so far, and its estimated seconds."""
        episode = self._running()
        known: tuple[CompilationPlan, tuple[str, ...], float] | None = episode.state.notes.get("completed")
        if known is None:
            session = self._base(self._program).session.fork()
            session.run_passes(episode.effective())
            own = len(session.plan.passes)
            session.run_passes()
            session.run_fusion_policy(make_policy(COMPLETION_POLICY))
            plan = session.plan
            known = episode.state.notes["completed"] = plan, plan.passes[own:], session.cost().seconds
        plan, defaults, seconds = known
        # Another episode may have come to this state by other passes.
        return replace(plan, passes=(*episode.effective(), *defaults)), seconds

    def _info(self, refused: str | None, outcome: Outcome | None) -> dict[str, Any]:
        episode, base = self._running(), self._base(self._program)
        info: dict[str, Any] = {
            "program": self._program.name,
            "phase": "done" if episode.done else "passes",
            "plan": [self.actions[a] for a in episode.taken],
            "ops": episode.state.ops,
            "speedup": self._estimate(base) if outcome is None else outcome.speedup,
            "refused": refused or "",
        }
        if outcome is not None:
            info["passes"] = episode.effective()
            if outcome.plan is not None:
                info["plan_json"] = outcome.plan.to_json()
            if outcome.measurement is not None:
                info["measurement"] = measurement_info(outcome.measurement)
        return info

    def _estimate(self, base: Base) -> float:
        state = self._running().state
        if self.reward == "op-count":
            return max(base.ops, 1) / max(state.ops, 1)
        return math.nan if self.reward == "measured" else base.seconds / math.exp(-self._potential(state))


def _texts(passes: str | Sequence[str] | None) -> tuple[str, ...]:
    if passes is None:
        return default_pass_actions()
    found = make_passes(passes) if isinstance(passes, str) else map(make_pass, passes)
    return tuple(pass_text(p) for p in found)
