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

from compiler.errors import UnknownNameError
from compiler.fusion.actions import FusionAction
from compiler.fusion.features import MAX_CANDIDATES
from compiler.fusion.policies import make_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.episode import COMPLETION_POLICY, Episode, Move, Phase
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.observations import Observation, observation_space, observe
from env.store import KernelStore, default_store_path
from env.suites import Program, Suite, load_suite

__all__ = ["FAILURE_REWARD", "REFUSED_REWARD", "DecisionEnv"]

FAILURE_REWARD = -1.0
"""For a plan that does not compile, computes something else, crashes or hangs: as if it were 2.7 times slower."""
REFUSED_REWARD = -0.01
"""For an action outside the mask, which does nothing."""


class DecisionEnv(gym.Env[Observation, np.int64]):
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

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium declares it so
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
        self.suite = suite if isinstance(suite, Suite) else load_suite(suite)
        self.backend, self.measured, self.max_steps = backend, measured, max_steps
        self.render_mode = render_mode
        self.observation_space = cast("spaces.Space[Observation]", observation_space())
        self.action_space = spaces.Discrete(MAX_CANDIDATES)
        self._measurer, self._own_measurer, self._store = measurer, measurer is None, store
        self._bases: dict[str, _Base] = {}
        self._episode: Episode | None = None
        self._steps = 0

    # ---- Gymnasium's methods

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start on a program: `options={"program": name}`, or one drawn from the suite.

        Raises:
            UnknownNameError: the suite has no such program.
        """
        super().reset(seed=seed)
        name = (options or {}).get("program")
        programs = self.suite.programs
        # Drawn even when one is named, so that the programs after it do not depend on that.
        drawn = programs[int(self.np_random.integers(len(programs)))]
        self._program = drawn if name is None else self._find(str(name))
        base = self._base(self._program)
        self._episode = Episode(base.session.fork(), self.phases)
        self._start = self._potential = math.log(max(self._episode.seconds(), 1e-12))
        self._steps = 0
        return observe(self._episode.graph()), self._info(None, None)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one decision."""
        episode = self._running()
        refused = episode.take(int(action))
        self._steps += 1
        reward = REFUSED_REWARD if refused else self._step_reward()
        terminated = episode.done
        truncated = not terminated and self._steps >= self.max_steps
        outcome: _Outcome | None = None
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

    def close(self) -> None:
        """End the worker process, if this environment started it."""
        if self._own_measurer and self._measurer is not None:
            self._measurer.close()
            self._measurer = None

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

    def _find(self, name: str) -> Program:
        for program in self.suite.programs:
            if program.name == name:
                return program
        raise UnknownNameError("program", name, (p.name for p in self.suite.programs))

    def _base(self, program: Program) -> _Base:
        if program.name not in self._bases:
            self._bases[program.name] = _Base(program, self.backend, self.phases)
        return self._bases[program.name]

    def _step_reward(self) -> float:
        """What the step saved by the cost model; nothing while measurements pay."""
        before, self._potential = self._potential, math.log(max(self._running().seconds(), 1e-12))
        return 0.0 if self.measured else before - self._potential

    def _outcome(self) -> _Outcome:
        base = self._base(self._program)
        plan, seconds = self._running().completed()
        if not self.measured:
            speedup = base.seconds / max(seconds, 1e-12)
            # The steps have been paid the way from the start to here; the end pays what is missing to the speedup.
            return _Outcome(math.log(speedup) - (self._start - self._potential), speedup, plan, None)
        measurer = self._measuring()
        reference = measurer.measure(self._program, base.plan)
        result = measurer.measure(self._program, plan)
        if result.seconds is None or reference.seconds is None:
            return _Outcome(FAILURE_REWARD, math.exp(FAILURE_REWARD), plan, result)
        speedup = reference.seconds.value / result.seconds.value
        return _Outcome(math.log(speedup), speedup, plan, result)

    def _measuring(self) -> Measurer:
        if self._measurer is None:
            store = KernelStore(default_store_path() if self._store is None else self._store)
            self._measurer = Measurer(store, MeasurerOptions(backend=self.backend))
        return self._measurer

    def _info(self, refused: str | None, outcome: _Outcome | None) -> dict[str, Any]:
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
            info["plan_json"] = outcome.plan.to_json()
            if outcome.measurement is not None:
                info["measurement"] = _measurement_info(outcome.measurement)
        return info


class _Outcome:
    """What the end of an episode pays, and why."""

    def __init__(self, reward: float, speedup: float, plan: CompilationPlan, measurement: Measurement | None) -> None:
        self.reward, self.speedup, self.plan, self.measurement = reward, speedup, plan, measurement


class _Base:
    """What every episode on a program starts from, and what it is compared with."""

    def __init__(self, program: Program, backend: str, phases: Sequence[Phase]) -> None:
        module = parse(program.text(), filename=str(program.path))
        default = CompilationSession(module, backend=backend)
        default.run_passes()
        self.session = CompilationSession(module, backend=backend) if "passes" in phases else default
        reference = default.fork()
        reference.run_fusion_policy(make_policy("none" if "fusion" in phases else COMPLETION_POLICY))
        self.plan = reference.plan
        self.seconds = reference.cost().seconds


def _measurement_info(measurement: Measurement) -> dict[str, Any]:
    seconds = measurement.seconds
    return {
        "seconds": math.nan if seconds is None else seconds.value,
        "failure": measurement.failure or "",
        "message": measurement.message,
        "kernels": len(measurement.kernels),
        "new_kernels": measurement.new,
    }
