"""The default compilation of a program, which an environment starts from and compares with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from compiler.default_fusion import default_completion, fuse_by_default
from compiler.errors import HlogymError
from compiler.fusion.policies import make_policy
from compiler.ir.verifier import verify
from compiler.passes.infrastructure.base import op_count
from compiler.plan import CompilationPlan, Phase
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import Program

__all__ = ["LEAST_ESTIMATE", "Baseline", "ProgramError"]

LEAST_ESTIMATE = 1e-12
"""Lower bound of estimated seconds, because a program may have nothing left to compute."""


TIDYING = ("tuple-simplifier", "dce")
"""Passes after a loop was changed, without those that improve the program."""


class ProgramError(HlogymError, ValueError):
    """A program of a suite that cannot be read or compiled: its name, its file, and why."""


class Baseline:
    """The default compilation of a program.

    Args:
        program: what to compile.
        backend: "cpu" or "cuda".
        phases: what the environment decides. The baseline fuses by default unless fusion is among them. Loops are
            kept if they are among them; if not, they run as in `compile`, inside one kernel where that is possible.
        automatic: whether the default passes run; if not, the baseline is the program as it is written, with loops
            kept and, unless the environment decides fusion, fused by the default policy.

    Attributes:
        start: session that episodes start from; before the passes if the environment decides those, else after the
            default passes. Loops have been decided in it if the environment decides nothing before and about them.
        default_loops: whether episodes have to run the default loop policy once what comes before loops is decided.
        ops: number of instructions after the default passes, by `op_count`.

    Raises:
        ProgramError: the program cannot be read or compiled.
    """

    def __init__(self, program: Program, backend: str, phases: Sequence[Phase], automatic: bool = True) -> None:
        self._program = program
        with _naming(program):
            module = parse(program.text(), filename=str(program.path))
            verify(module)
            self._default = CompilationSession(module, backend=backend, cleanup=None if automatic else TIDYING)
            if automatic:
                self._default.run_passes()
            self.ops = op_count(self._default.module)
            decides_loops = not automatic or "loops" in phases
            self.default_loops = not decides_loops and not {"passes", "expansions"}.isdisjoint(phases)
            self.start = self._default
            if automatic and "passes" in phases:
                self.start = CompilationSession(module, backend=backend)
            elif self.default_loops:
                self.start = self._default.fork()
            if not decides_loops:
                self._default.run_loop_policy()
        self._fuses = "fusion" not in phases

    def complete(self) -> CompilationSession:
        """Return a session that has taken every decision of the baseline.

        Raises:
            ProgramError: the program cannot be compiled.
        """
        session = self._default.fork()
        with _naming(self._program):
            if self._fuses:
                fuse_by_default(session)
            else:
                session.run_fusion_policy(make_policy("none"))
        return session

    @cached_property
    def _result(self) -> tuple[CompilationPlan, float]:
        if not self._fuses:
            session = self.complete()
            return session.plan, max(session.cost().seconds, LEAST_ESTIMATE)
        with _naming(self._program):
            done = default_completion(self._default)
        return done.plan, max(done.seconds, LEAST_ESTIMATE)

    @property
    def plan(self) -> CompilationPlan:
        """The default passes, and the default fusion where an episode does not decide it."""
        return self._result[0]

    @property
    def seconds(self) -> float:
        """Estimated time of the baseline by the cost model, at least LEAST_ESTIMATE."""
        return self._result[1]


@contextmanager
def _naming(program: Program) -> Iterator[None]:
    """Raise errors of reading or compiling as a ProgramError with the name and the file of the program."""
    try:
        yield
    except (HlogymError, OSError, UnicodeError, RecursionError, MemoryError) as error:
        raise ProgramError(f"{program.label}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
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
