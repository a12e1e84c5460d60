"""What every environment here has: a suite to draw programs from, a reference to compare with, a measurer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np

from compiler.errors import HlogymError
from compiler.fusion.policies import make_policy
from compiler.ir.verifier import verify
from compiler.passes.infrastructure.base import op_count
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.episode import COMPLETION_POLICY, Phase
from env.measurement import Measurement, Measurer, MeasurerOptions, ReferenceFailedError
from env.store import KernelStore, default_store_path
from env.suites import Program, Suite, load_suite

__all__ = ["FAILURE_REWARD", "REFUSED_REWARD", "Base", "CompilerEnv", "Outcome", "ProgramError", "measurement_info"]

FAILURE_REWARD = -1.0
"""For a plan that does not compile, computes something else, crashes or hangs: as if it were 2.7 times slower."""
REFUSED_REWARD = -0.01
"""For an action outside the mask, which does nothing."""

SUSPICIOUS_FAILURES = 8
"""Plans that fail in a row before the reference is measured again, to see whether it is the machine that fails."""
LEAST_SECONDS = 1e-7
"""What a call is taken to last at least: a plan may leave nothing to run."""

ObsType = TypeVar("ObsType")


class ProgramError(HlogymError, ValueError):
    """A program of a suite that cannot be read or compiled: its name, its file, and why."""


@dataclass(frozen=True)
class Outcome:
    """What the end of an episode pays, and why."""

    reward: float
    speedup: float
    plan: CompilationPlan | None
    measurement: Measurement | None = None


class Base:
    """What every episode on a program starts from, and what it is compared with.

    Attributes:
        session: the start of the phases.
        ops: after the default passes, by `op_count`.

    Raises:
        ProgramError: the program cannot be read or compiled.
    """

    def __init__(self, program: Program, backend: str, phases: Sequence[Phase]) -> None:
        self._program = program
        with _naming(program):
            module = parse(program.text(), filename=str(program.path))
            verify(module)
            self._default = CompilationSession(module, backend=backend)
            self._default.run_passes()
        self._policy = "none" if "fusion" in phases else COMPLETION_POLICY
        self.ops = op_count(self._default.module)
        self.session = CompilationSession(module, backend=backend) if "passes" in phases else self._default

    @cached_property
    def _reference(self) -> tuple[CompilationPlan, float]:
        session = self._default.fork()
        with _naming(self._program):
            session.run_fusion_policy(make_policy(self._policy))
        return session.plan, max(session.cost().seconds, 1e-12)  # a program may have nothing left to do

    @property
    def plan(self) -> CompilationPlan:
        """Of the reference: the default passes, and the default fusion where an episode does not decide it."""
        return self._reference[0]

    @property
    def seconds(self) -> float:
        """Of the reference, by the cost model; positive."""
        return self._reference[1]


class CompilerEnv(gym.Env[ObsType, np.int64]):
    """An environment over the programs of a suite.

    Args:
        suite: name of a suite, or a folder of HLO files, or a suite.
        backend: "cpu" or "cuda"; whose device model prices, and what measures.
        measured: pay measured time.
        measurer: shared with others; by default one is made when first needed.
        store: file of kernel times of that one; None: the user's cache folder.
        render_mode: "ansi" or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium declares it so
    phases: ClassVar[tuple[Phase, ...]] = ()

    def __init__(
        self,
        suite: str | Path | Suite,
        backend: str,
        measured: bool,
        measurer: Measurer | None,
        store: str | Path | None,
        render_mode: str | None,
    ) -> None:
        self.suite = suite if isinstance(suite, Suite) else load_suite(suite)
        self.backend, self.measured = backend, measured
        self.render_mode = render_mode
        self._measurer, self._own_measurer, self._store = measurer, measurer is None, store
        self._bases: dict[str, Base] = {}
        self._failures_in_a_row = 0

    def close(self) -> None:
        """End the worker process, if this environment started it."""
        if self._own_measurer and self._measurer is not None:
            self._measurer.close()
            self._measurer = None

    def _draw(self, options: dict[str, Any] | None) -> Program:
        """The program that `options` names, or one of the suite; call `super().reset(seed=seed)` first."""
        name = (options or {}).get("program")
        programs = self.suite.programs
        # Drawn even when one is named, so that the programs after it do not depend on that.
        drawn = programs[int(self.np_random.integers(len(programs)))]
        return drawn if name is None else self.suite.find(str(name))

    def _measuring(self) -> Measurer:
        if self._measurer is None:
            store = KernelStore(default_store_path() if self._store is None else self._store)
            self._measurer = Measurer(store, MeasurerOptions(backend=self.backend))
        return self._measurer

    def check_programs(self, step: Callable[[Program], None] = lambda _: None) -> None:
        """Find out before an agent learns whether each program compiles and, if measured, has a reference time.

        Args:
            step: told each program when its turn comes.

        Raises:
            ProgramError: some programs do not; each is named with its reason.
            MeasurementError: the machine does not let anything be measured.
        """
        faults: list[str] = []
        busy = not self.measured
        for program in self.suite.programs:
            step(program)
            try:
                base = self._base(program)
                if self.measured:
                    busy |= not self._measuring().measure_reference(program, base.plan).idle
            except (ProgramError, ReferenceFailedError) as error:
                faults.append(str(error))
        if faults:
            what = f"{len(faults)} of {len(self.suite.programs)} programs cannot be used"
            raise ProgramError("\n  - ".join([f"{what}; mend them, or take them out of the suite:", *faults]))
        if not busy:
            raise ProgramError(f"no program of {self.suite.name} has a kernel, so there is nothing to measure")

    def _base(self, program: Program) -> Base:
        if program.name not in self._bases:
            self._bases[program.name] = Base(program, self.backend, self.phases)
        return self._bases[program.name]

    def _note_failure(self, program: Program, reference: CompilationPlan) -> None:
        """When plan after plan fails, see whether the reference can still be measured.

        Raises:
            MeasurementError: it cannot, so the plans may not be to blame.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row % SUSPICIOUS_FAILURES == 0:
            self._measuring().verify_reference(program, reference)

    def _measured_outcome(self, program: Program, reference: CompilationPlan, plan: CompilationPlan) -> Outcome:
        """The log of how much faster a plan is than the reference, both measured.

        Raises:
            MeasurementError: the reference cannot be measured, so there is nothing to compare the plan with.
        """
        measurer = self._measuring()
        base = measurer.measure_reference(program, reference)
        result = measurer.measure(program, plan)
        if result.failure == "program":
            raise ReferenceFailedError(f"program {program.name!r} ({program.path}): {result.message}")
        if result.seconds is None:
            self._note_failure(program, reference)
            return Outcome(FAILURE_REWARD, math.exp(FAILURE_REWARD), plan, result)
        self._failures_in_a_row = 0
        speedup = max(base.time.value, LEAST_SECONDS) / max(result.seconds.value, LEAST_SECONDS)
        return Outcome(math.log(speedup), speedup, plan, result)


def measurement_info(measurement: Measurement) -> dict[str, Any]:
    """A measurement as `info` tells it."""
    seconds = measurement.seconds
    return {
        "seconds": math.nan if seconds is None else seconds.value,
        "failure": measurement.failure or "",
        "message": measurement.message,
        "kernels": len(measurement.kernels),
        "new_kernels": measurement.new,
    }


@contextmanager
def _naming(program: Program) -> Iterator[None]:
    """Errors of reading or compiling name the program and its file."""
    try:
        yield
    except (HlogymError, OSError, UnicodeError, RecursionError, MemoryError) as error:
        raise ProgramError(f"program {program.name!r} ({program.path}): {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a program cannot be used, for a person."""
    match error:
        case OSError():
            return f"it cannot be read: {error.strerror or error}"
        case UnicodeError():
            return f"it is not text: {error}"
        case RecursionError():
            return "it is nested too deeply"
        case MemoryError():
            return "it needs more memory than there is"
        case _:
            return str(error)
