"""Environments whose actions are the decisions of a compilation session: passes, loops, fusions, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from compiler.default_fusion import Completion
from compiler.errors import OptionError, UnknownNameError
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule
from compiler.learned.features.candidates import MAX_CANDIDATES
from compiler.passes.infrastructure.registry import pass_texts
from compiler.plan import PHASES, CompilationPlan, Phase
from compiler.session import CompilationSession
from compiler.support.untrusted import short_repr
from env.arguments import checked_count, checked_flag
from env.base import CompilerEnv, EnvOptions
from env.baseline import LEAST_ESTIMATE, Baseline
from env.compilation import Compilation
from env.episode import Episode, Move, Offers
from env.observations import Observation, observation_space, observe
from env.speedup_measurer import SpeedupMeasurer
from env.states import DecisionMemory, DecisionState, DecisionStates
from env.suites import Program, Suite

__all__ = ["DecisionEnv"]


class _SessionCompilation(Compilation):
    """The compilation of an episode over `DecisionStates`; facts about a state are kept in its notes."""

    def __init__(self, states: DecisionStates, program: Program, baseline: Baseline, measurer: SpeedupMeasurer) -> None:
        super().__init__(program, baseline, measurer)
        self.states, self.state = states, states.root
        self.taken: list[str] = []

    @property
    def episode(self) -> Episode:
        """The compilation at the current state."""
        return self.states.episode(self.state)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def decisions(self) -> Sequence[str]:
        return self.taken

    @property
    def module(self) -> HloModule:
        return self.episode.session.module

    @property
    def seconds(self) -> float:
        return max(self.state.seconds, LEAST_ESTIMATE)

    @property
    def complete_seconds(self) -> float:
        return max(self._completion.seconds, LEAST_ESTIMATE)

    @property
    def plan(self) -> CompilationPlan:
        return self._completion.plan

    @property
    def _completion(self) -> Completion:
        notes = self.state.notes
        if "completion" not in notes:
            episode = self.episode
            # Once fusion has begun, the episode keeps account of the time.
            begun = Completion(episode.session.plan, self.state.seconds) if episode.is_fusing else None
            notes["completion"] = begun or episode.default_completion()
        found: Completion = notes["completion"]
        return found

    @property
    def plan_json(self) -> str:
        """The plan as JSON."""
        notes = self.state.notes
        if "plan_json" not in notes:
            notes["plan_json"] = self.plan.to_json()
        found: str = notes["plan_json"]
        return found

    def take(self, index: int) -> str | None:
        """Take a decision; return None, or the reason why it is refused."""
        following = self.states.take(self.state, index)
        if isinstance(following, str):
            return following
        self.taken.append(self.state.text(index))
        self.state = following
        return None

    def complete(self) -> CompilationSession:
        # Another episode may have moved the compilation since.
        return self._complete() if self.episode.is_fusing else super().complete()

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
        speedup over the baseline. The baseline is the default passes, with loops kept as they are if the environment
        decides them; without fusion if it fuses, else fused by the default policy. "estimated-time" rewards each step
        with the log time it saves by the cost model; "measured-time" rewards the end with the log of the measured
        speedup over what `compile` does by default.

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
        splits: whether fissions and moves, which take fusions apart or change what they compute, are among the actions.
        passes: the passes to choose from, in a list or separated by commas; None: all.
        phases: the phases that the environment decides, joined by + as in "passes+loops"; None: those of its class.
        automatic: whether passes that no decision asks for run by themselves, as they do in `compile`: those of the
            default pipeline before the episode, if it does not decide passes, and after loops have changed. If not, an
            episode starts from the program as it is written, and so does the baseline.
        shared: another environment, whose compiled programs, explored states and measurer this one uses too.
        options: see `CompilerEnv`.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("loops", "fusion")

    def __init__(
        self,
        suite: str | Path | Suite = "train",
        *,
        max_steps: int = 1000,
        splits: bool = False,
        passes: str | Sequence[str] | None = None,
        phases: str | None = None,
        automatic: bool = True,
        shared: DecisionEnv | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        super().__init__(suite, shared=shared, **options)
        if phases is not None:
            self.phases = _phases(phases)  # type: ignore[misc]
        self.max_steps, self.automatic = checked_count("max_steps", max_steps), checked_flag("automatic", automatic)
        self.offers = Offers(checked_flag("splits", splits), None if passes is None else pass_texts(passes))
        self.observation_space = cast("spaces.Space[Observation]", observation_space())
        self.action_space = spaces.Discrete(MAX_CANDIDATES)
        self._steps = 0
        alike = shared is not None and (shared.offers, shared.phases, shared.automatic) == (
            self.offers,
            self.phases,
            automatic,
        )
        same = shared if alike else None  # else other states are reached
        self._memory: DecisionMemory = DecisionMemory() if same is None else same._memory
        self._memory.users += 1
        self._states: dict[str, DecisionStates] = {} if same is None else same._states

    @property
    def _decides(self) -> tuple[Any, ...]:
        """What states depend on, besides their program."""
        return self.phases, self.offers, self.automatic

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal now, as `sb3_contrib.MaskablePPO` expects it."""
        mask = np.zeros(MAX_CANDIDATES, np.bool_)
        mask[: self._state.count] = True
        return mask

    @property
    def moves(self) -> Sequence[Move]:
        """The legal decisions now; action i takes the i-th."""
        return self._session_compilation.states.moves(self._state)

    @property
    def names(self) -> Sequence[str]:
        """The legal decisions now as text; unlike `moves`, this needs no compilation in a state that was met before."""
        return [self._state.text(n) for n in range(self._state.count)]

    def why_not(self, action: int | FusionAction) -> str | None:
        """Return why an action, or any fusion, is refused now; None if it is legal."""
        phase = self.compilation.phase
        if isinstance(action, FusionAction):
            session = self._session_compilation.episode.session
            return session.why_not(action) if phase == "fusion" else f"{phase} are decided first"
        count = self._state.count
        return None if 0 <= action < count else f"action {action} is not among the {count} legal ones"

    # ---- called by CompilerEnv

    @property
    def _session_compilation(self) -> _SessionCompilation:
        return cast(_SessionCompilation, self.compilation)

    @property
    def _state(self) -> DecisionState:
        return self._session_compilation.state

    def states(self, program: Program) -> DecisionStates:
        """Return the states of a program, which all episodes on it share."""
        if program.name not in self._states:
            baseline = self.baseline(program)
            self._states[program.name] = DecisionStates(
                program.name, baseline.start, self.phases, self._memory, self.offers, baseline.default_loops
            )
        return self._states[program.name]

    def _start(self, program: Program) -> Compilation:
        self._steps = 0
        return _SessionCompilation(self.states(program), program, self.baseline(program), self._measurer)

    def _take(self, action: int) -> str | None:
        self._steps += 1
        return self._session_compilation.take(action)

    def _observe(self) -> Observation:
        return observe(self._state.graph)

    def _summary(self) -> str:
        return f"{self._state.count} legal moves"

    def _is_truncated(self) -> bool:
        return not self._state.done and self._steps >= self.max_steps

    def _info(self, refused: str | None, ended: bool) -> dict[str, Any]:
        info = super()._info(refused, ended)
        if ended:
            info["plan_json"] = self._session_compilation.plan_json
        return info


def _phases(text: str) -> tuple[Phase, ...]:
    """Return phases joined by + in the order of compilation.

    Raises:
        UnknownNameError: there is no such phase.
        OptionError: they are no string.
    """
    known = PHASES[:-1]
    if not isinstance(text, str):
        raise OptionError(f'phases are names joined by +, such as "passes+loops", not {short_repr(text)}')
    names = text.split("+")
    for name in names:
        if name not in known:
            raise UnknownNameError("phase", name, known)
    return tuple(p for p in known if p in names)
