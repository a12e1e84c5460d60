"""What every environment here has: a suite to draw programs from, a reference to compare with, a measurer to pay by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from compiler.fusion.policies import make_policy
from compiler.passes.base import op_count
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.episode import COMPLETION_POLICY, Phase
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.store import KernelStore, default_store_path
from env.suites import Program, Suite, load_suite

__all__ = ["FAILURE_REWARD", "REFUSED_REWARD", "Base", "CompilerEnv", "Outcome", "measurement_info"]

FAILURE_REWARD = -1.0
"""For a plan that does not compile, computes something else, crashes or hangs: as if it were 2.7 times slower."""
REFUSED_REWARD = -0.01
"""For an action outside the mask, which does nothing."""

ObsType = TypeVar("ObsType")


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
    """

    def __init__(self, program: Program, backend: str, phases: Sequence[Phase]) -> None:
        module = parse(program.text(), filename=str(program.path))
        self._default = CompilationSession(module, backend=backend)
        self._default.run_passes()
        self._policy = "none" if "fusion" in phases else COMPLETION_POLICY
        self.ops = op_count(self._default.module)
        self.session = CompilationSession(module, backend=backend) if "passes" in phases else self._default

    @cached_property
    def _reference(self) -> tuple[CompilationPlan, float]:
        session = self._default.fork()
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

    def _measured_outcome(self, program: Program, reference: CompilationPlan, plan: CompilationPlan) -> Outcome:
        """The log of how much faster a plan is than the reference, both measured."""
        measurer = self._measuring()
        base = measurer.measure(program, reference)
        result = measurer.measure(program, plan)
        if result.seconds is None or base.seconds is None:
            return Outcome(FAILURE_REWARD, math.exp(FAILURE_REWARD), plan, result)
        speedup = base.seconds.value / result.seconds.value
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
