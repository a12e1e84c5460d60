"""The part that all environments share: programs from a suite, a reward, and Gymnasium's methods."""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from compiler.backends.registry import find_backend
from compiler.errors import OptionError, UnknownNameError
from compiler.plan import CompilationPlan, Phase
from compiler.support.gc_pause import gc_less_often, gc_paused
from compiler.support.untrusted import short_repr
from env.arguments import checked_flag, checked_render_mode
from env.baseline import Baseline, ProgramError
from env.compilation import Compilation, PlanFailedError
from env.measurement import Measurement, Measurer, ReferenceFailedError
from env.rewards import Reward, finite_number, make_reward
from env.speedup_measurer import SpeedupMeasurer
from env.suites import Program, Suite, load_suite
from env.workers import Workers, parse_workers

__all__ = ["REFUSED_REWARD", "CompilerEnv", "EnvOptions"]

REFUSED_REWARD = -0.01
"""For an action outside the mask, which does nothing."""

ObsType = TypeVar("ObsType")


class EnvOptions(TypedDict, total=False):
    """The keyword arguments of every environment; `CompilerEnv` describes them."""

    backend: str
    measured: bool
    reward: Reward | str | None
    measurer: Measurer | None
    store: str | Path | None
    workers: str | Workers
    render_mode: str | None


def _whole(action: object) -> int:
    """Return an action as an integer."""
    try:
        return operator.index(action.item() if isinstance(action, np.ndarray) and action.size == 1 else action)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"an action is an integer, not {short_repr(action)}") from None


def _option(options: dict[str, Any] | None) -> object:
    """Return the program that the options of `reset` name; None if they name none."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise TypeError(f'options must be a dict such as {{"program": "softmax"}}, got {short_repr(options)}')
    for name in options:
        if name != "program":
            raise UnknownNameError("option of reset", str(name), ["program"])
    return options.get("program")


class CompilerEnv(gym.Env[ObsType, np.int64], ABC):
    """An environment over the programs of a suite.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        backend: "cpu" or "cuda"; its device model estimates times, and it is what plans are measured on.
        measured: shorthand for reward="measured-time".
        reward: a `Reward`, or a name in `REWARDS`; None: "measured-time" if `measured`, else "estimated-time".
        measurer: one that is shared with others; None: one is made when it is first needed.
        store: file of times for the measurer that is made; None: the one in the user's cache folder.
        workers: where the measurer that is made measures: "local", a Ray cluster (see `env.workers`), or a `Workers`.
        render_mode: "ansi": `render` returns text; "rgb_array": a picture, [height, width, 3] uint8; or None.
        shared: another environment of the same kind, backend and suite, whose compiled programs, explored states and
            measurer this one uses too. Both must run in the same thread.

    Attributes:
        reward: what the agent is rewarded for.

    Raises:
        UnknownNameError: no such suite, backend, reward or render mode.
        WorkersError: `workers` cannot be read.
        OptionError: `shared` is of another kind, backend or suite.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - Gymnasium declares it so
    phases: ClassVar[tuple[Phase, ...]] = ()
    automatic: bool = True
    step_cost: float = 0.0
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Return an environment that remembers its arguments."""
        made = super().__new__(cls)
        made._arguments = arguments, {k: v for k, v in options.items() if k != "shared"}
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a copy is made (by pickle, for another process): a new environment with the same arguments.

        It has to be reset first, as any new environment; the current episode and what has been compiled are not copied.
        """
        arguments, options = self._arguments
        return functools.partial(type(self), *arguments, **options), (), {"spec": self.spec}

    def __init__(
        self,
        suite: str | Path | Suite = "train",
        backend: str = "cpu",
        measured: bool = False,
        reward: Reward | str | None = None,
        measurer: Measurer | None = None,
        store: str | Path | None = None,
        workers: str | Workers = "local",
        render_mode: str | None = None,
        shared: CompilerEnv[Any] | None = None,
    ) -> None:
        default = "measured-time" if checked_flag("measured", measured) else "estimated-time"
        self.reward = make_reward(default if reward is None else reward)
        self.reward.check_backend(find_backend(backend).name)
        gc_less_often()
        if shared is not None and not isinstance(shared, CompilerEnv):
            raise TypeError(f"shared must be an environment of hlogym, got {short_repr(shared)}; see env.unwrapped")
        if not isinstance(suite, str | Path | Suite):
            raise TypeError(f"suite must be a name, a folder or a Suite, got {short_repr(suite)}")
        self.suite = suite if isinstance(suite, Suite) else load_suite(suite)
        self.backend, self.render_mode = backend, checked_render_mode(render_mode, self.metadata["render_modes"])
        if shared is not None:
            self._check_alike(shared)
        own = SpeedupMeasurer(
            backend, measurer, store, workers if isinstance(workers, Workers) else parse_workers(workers)
        )
        self._measurer: SpeedupMeasurer = own if shared is None else shared._measurer
        self._owns_measurer = shared is None
        self._baselines: dict[tuple[str, tuple[Phase, ...], bool], Baseline] = (
            {} if shared is None else shared._baselines
        )
        self._compilation: Compilation | None = None
        self._speedup = math.nan
        self._speedups: list[float] = []

    # ---- Gymnasium's methods

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Start on a program: `options={"program": name}`, or one drawn from the suite.

        Raises:
            UnknownNameError: the suite has no such program, or there is no such option.
            ProgramError: the program cannot be read or compiled.
        """
        super().reset(seed=seed)
        self._compilation = self._start(self._draw(options))
        self.reward.reset(self._compilation)
        self._speedup = self.reward.speedup(self._compilation)
        self._speedups = [self._speedup]
        return self._observe(), self._info(None, False)

    def step(self, action: np.int64 | int) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Take a decision; an action outside the mask is refused.

        Raises:
            TypeError: the action is not an integer.
            RewardError: the reward is no finite number.
            MeasurementError: the reward is measured, and the default plan of the program cannot be measured.
        """
        with gc_paused():
            return self._step(_whole(action))

    def _step(self, action: int) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        compilation = self.compilation
        refused = self._take(action)
        reward = REFUSED_REWARD if refused is not None else self._reward_decision(compilation)
        if refused is None:
            self._speedups.append(self._speedup)
        terminated = compilation.done
        info = self._info(refused, ended=terminated and refused is None)
        return self._observe(), reward, terminated, self._is_truncated(), info

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """Return the episode as the render mode says: text, or a picture [height, width, 3]; None without a mode.

        Raises:
            ResetNeeded: `reset` was not called yet.
        """
        if self.render_mode == "ansi":
            lines = [f"{self.compilation.program.name}: {self._summary()}"]
            return "\n".join([*lines, *(f"  {n + 1}. {t}" for n, t in enumerate(self.compilation.decisions))])
        if self.render_mode == "rgb_array":
            from env.picture import draw_episode  # importing Matplotlib takes a second

            return draw_episode(self.compilation, self._speedups, self._summary())
        return None

    def close(self) -> None:
        """End the worker process, if this environment started it."""
        if self._owns_measurer:
            self._measurer.close()

    # ---- what the environments differ in

    @abstractmethod
    def _start(self, program: Program) -> Compilation:
        """Start an episode on a program and return its compilation."""

    @abstractmethod
    def _take(self, action: int) -> str | None:
        """Take a decision; return None, or the reason why the action is refused, in which case nothing changes."""

    @abstractmethod
    def _observe(self) -> ObsType:
        """Return the observation of the current step."""

    @abstractmethod
    def _summary(self) -> str:
        """Return the state of the episode in a few words, for `render`."""

    @abstractmethod
    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are legal now, as `sb3_contrib.MaskablePPO` expects it."""

    def _is_truncated(self) -> bool:
        """Check whether the episode has used up its steps without an end."""
        return False

    # ---- more

    @property
    def measured(self) -> bool:
        """Whether plans are measured."""
        return self.reward.measured

    @property
    def measurer(self) -> Measurer:
        """The measurer of plans; it is made if there is none yet."""
        return self._measurer.measurer

    @property
    def compilation(self) -> Compilation:
        """The compilation of the current episode.

        Raises:
            ResetNeeded: `reset` was not called yet.
        """
        if self._compilation is None:
            raise gym.error.ResetNeeded("call reset before the first step")
        return self._compilation

    @property
    def plan(self) -> CompilationPlan:
        """The plan of a compilation that takes the decisions so far and continues with the defaults."""
        return self.compilation.plan

    def random_state(self) -> dict[str, Any]:
        """Return the state of the random generator that draws programs, as JSON; for checkpoints."""
        return dict(self.np_random.bit_generator.state)

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Restore what `random_state` returned."""
        self.np_random.bit_generator.state = state

    def baseline(self, program: Program) -> Baseline:
        """Return the default compilation of a program; each program is compiled once.

        Raises:
            ProgramError: the program cannot be read or compiled.
        """
        key = program.name, self.phases, self.automatic
        if key not in self._baselines:
            self._baselines[key] = Baseline(program, self.backend, self.phases, self.automatic)
        return self._baselines[key]

    def check_programs(self, step: Callable[[Program], None] = lambda _: None) -> None:
        """Check before training that each program compiles and, if measured, that its baseline can be measured.

        Args:
            step: called with each program before it is checked.

        Raises:
            ProgramError: some programs cannot be used; the message has each with its reason.
            MeasurementError: nothing can be measured on this machine.
        """
        faults: list[str] = []
        busy = not self.measured
        for program in self.suite.programs:
            step(program)
            try:
                self.baseline(program)
                if self.measured:
                    busy |= not self.measurer.measure_reference(program).idle
            except (ProgramError, ReferenceFailedError) as error:
                faults.append(str(error))
        if faults:
            what = f"{len(faults)} of {len(self.suite.programs)} programs cannot be used"
            raise ProgramError("\n  - ".join([f"{what}; fix them, or remove them from the suite:", *faults]))
        if not busy:
            raise ProgramError(f"no program of {self.suite.name} has a kernel, so there is nothing to measure")

    # ---- inside

    def _check_alike(self, other: CompilerEnv[Any]) -> None:
        """Raise OptionError if what another environment has compiled is of no use here."""
        for what, own, its in (
            ("class", type(self).__name__, type(other).__name__),
            ("backend", self.backend, other.backend),
            ("suite", self.suite, other.suite),
        ):
            if own != its:
                names = (x.name if isinstance(x, Suite) else x for x in (its, own))
                raise OptionError("shared has another {}: {}, not {}".format(what, *names))

    def _draw(self, options: dict[str, Any] | None) -> Program:
        """Return the program that `options` names, or one drawn from the suite."""
        name = _option(options)
        programs = self.suite.programs
        # Drawn even when one is named, so that the programs after it do not depend on that.
        drawn = programs[int(self.np_random.integers(len(programs)))]
        return drawn if name is None else self.suite.find(str(name))

    def _reward_decision(self, compilation: Compilation) -> float:
        """Return the reward of a decision that was taken, and note the speedup that `info` reports."""
        reward = 0.0
        try:
            reward = finite_number(self.reward.step(compilation), self.reward, "step") - self.step_cost
            if compilation.done:
                reward += finite_number(self.reward.finish(compilation), self.reward, "finish")
            self._speedup = self.reward.speedup(compilation)
        except PlanFailedError as error:
            failure = finite_number(self.reward.failure(error.measurement), self.reward, "failure")
            self._speedup = math.exp(failure)
            reward += failure
        return reward

    def _info(self, refused: str | None, ended: bool) -> dict[str, Any]:
        """Return `info`.

        Args:
            refused: why the action was refused; None if it was taken.
            ended: whether the action was the last one of the episode.
        """
        compilation = self.compilation
        info: dict[str, Any] = {
            "program": compilation.program.name,
            "phase": compilation.phase,
            "plan": list(compilation.decisions),
            "speedup": self._speedup,
            "refused": refused or "",
        }
        if ended and compilation.measurement is not None:
            info["measurement"] = _measurement_info(compilation.measurement)
        return info


def _measurement_info(measurement: Measurement) -> dict[str, Any]:
    seconds = measurement.seconds
    return {
        "seconds": math.nan if seconds is None else seconds.value,
        "failure": measurement.failure or "",
        "message": measurement.message,
        "kernels": measurement.thunks,
        "new_kernels": measurement.new,
    }
