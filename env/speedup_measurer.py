"""Measured speedups of plans over the default plan of their program."""

from __future__ import annotations

from pathlib import Path

from compiler.errors import OptionError, UnbuildableFusionError
from compiler.plan import CompilationPlan
from compiler.support.paths import given_path
from compiler.support.untrusted import short_repr
from env.measurement import Measurement, Measurer, MeasurerOptions, ReferenceFailedError
from env.store import default_store_path
from env.suites import Program
from env.workers import LOCAL, Workers

__all__ = ["SpeedupMeasurer"]

SUSPICIOUS_FAILURES = 8
"""After so many failed plans in a row, the default plan is measured again to see whether the machine is at fault."""


class SpeedupMeasurer:
    """Measures plans against the default plan of their program, which is what `compile` does without arguments.

    Args:
        backend: "cpu" or "cuda"; what a measurer that is made here measures on.
        measurer: one to share; None: one is made when it is first needed, and `close` closes it.
        store: file of times for the measurer that is made here; None: the one in the user's cache folder.
        workers: where the measurer that is made here measures; it uses one of them.
    """

    def __init__(
        self, backend: str, measurer: Measurer | None, store: str | Path | None, workers: Workers = LOCAL
    ) -> None:
        if not isinstance(measurer, Measurer | None):
            raise TypeError(f"measurer must be a Measurer, got {short_repr(measurer)}")
        if store is not None:
            given_path(store, "the store of measured plans", OptionError)
        self._backend, self._store, self._workers = backend, store, workers
        self._measurer, self._is_shared = measurer, measurer is not None
        self._failures_in_a_row = 0

    @property
    def measurer(self) -> Measurer:
        """The measurer; it is made here if there is none yet."""
        if self._measurer is None:
            store = default_store_path() if self._store is None else self._store
            self._measurer = self._workers.measurer(store, MeasurerOptions(backend=self._backend))
        return self._measurer

    def close(self) -> None:
        """End the worker process, unless the measurer is shared."""
        if not self._is_shared and self._measurer is not None:
            self._measurer.close()
            self._measurer = None

    def measure(self, program: Program, plan: CompilationPlan) -> tuple[Measurement, float | None]:
        """Measure a plan and return its speedup over the default plan with it; None if the plan fails.

        A difference that does not pass the gate is a speedup of 1.

        Raises:
            MeasurementError: the default plan cannot be measured, so there is nothing to compare the plan with.
            UnbuildableFusionError: a fusion that was offered as legal cannot be built.
        """
        self.measurer.measure_reference(program)
        result = self.measurer.measure(program, plan)
        if result.failure == "program":
            raise ReferenceFailedError(f"{program.label}: {result.message}")
        if result.failure == "unbuildable":
            raise UnbuildableFusionError(f"{program.label}: {result.message}")
        if result.seconds is None:
            self._note_failure(program)
            return result, None
        self._failures_in_a_row = 0
        return result, result.speedup

    def _note_failure(self, program: Program) -> None:
        """Measure the default plan again when plan after plan fails.

        Raises:
            MeasurementError: the default plan fails too, so the plans may not be to blame.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row % SUSPICIOUS_FAILURES == 0:
            self.measurer.verify_reference(program)
