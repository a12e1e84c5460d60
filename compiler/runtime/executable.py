"""The interface of compiled programs, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from compiler.analysis.cost_model import CostModel
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.plan import CompilationPlan
from compiler.runtime.explanation import Explanation
from compiler.runtime.memory import ProgramMemory, contiguous_argument
from compiler.runtime.thunks import Thunk
from compiler.support.display import counted, html_table, text_table, time_text
from compiler.support.safe_names import one_line
from compiler.support.untrusted import as_integer, short_repr

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ThunkTime:
    """The time of one thunk, a row of a profile.

    Attributes:
        name: name of the HLO instruction that the thunk computes.
        kind: kind of the thunk.
        seconds: duration of one execution.
        executions: number of executions per call of the program.
        bytes: minimum memory traffic of one execution.
        flops: floating point operations of one execution.
    """

    name: str
    kind: str
    seconds: float
    executions: float
    bytes: int
    flops: int

    @property
    def total(self) -> float:
        """Return the seconds per call of the program."""
        return self.seconds * self.executions


class Profile(list[ThunkTime]):
    """The times of the thunks of a program, in program order."""

    @property
    def seconds(self) -> float:
        """The seconds per call of all thunks."""
        return sum(row.total for row in self)

    def __repr__(self) -> str:
        if not self:
            return "<Profile: no thunks>"
        most = max(self, key=lambda row: row.total)
        share = most.total / self.seconds if self.seconds else 0.0
        return (
            f"<Profile: {counted(len(self), 'thunk')}, {time_text(self.seconds)} per call, "
            f"{share:.0%} of it in {one_line(most.name)}>"
        )

    def __str__(self) -> str:
        return f"{self!r:.300}"[1:-1] + "\n" + text_table(_PROFILE, self._rows())

    def _repr_html_(self) -> str:
        return html_table(f"{self!r:.300}"[1:-1], _PROFILE, self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        """Return rows of text, the longest times first."""
        whole = self.seconds or 1.0
        return [
            (
                r.name, r.kind, f"{r.executions:g}", time_text(r.seconds), f"{r.total / whole:.0%}",
                f"{r.bytes / r.seconds / 1e9:.1f}" if r.seconds else "-",
                f"{r.flops / r.seconds / 1e9:.1f}" if r.seconds else "-",
            )
            for r in sorted(self, key=lambda row: -row.total)
        ]  # fmt: skip


_PROFILE = ("step", "kind", "runs per call", "time per run", "share", "GB/s", "GFLOP/s")


@dataclass(frozen=True, slots=True)
class ThunkSamples:
    """Timings of one thunk inside the program.

    Attributes:
        executions: executions per call of the program, counted.
        seconds: duration of one execution, the mean of each call of the program that was timed.
    """

    executions: float
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the calls of an executable run.

    Attributes:
        flush_denormals: whether subnormal numbers count as zero in kernels, as in programs of XLA. The caller's setting
            is restored after the call.
        num_threads: number of threads that run a parallel loop, at most HLOGYM_NUM_THREADS; None means no other limit.
    """

    flush_denormals: bool = False
    num_threads: int | None = None


@runtime_checkable
class Configurable(Protocol):
    """An executable whose calls have options."""

    call_options: CallOptions


@runtime_checkable
class Estimated(Protocol):
    """An executable whose explanation shows times of a cost model that it is given.

    Attributes:
        make_costs: returns the cost model of a plan; None: the analytic one.
    """

    make_costs: Callable[[CompilationPlan | None], CostModel] | None


class Executable(Protocol):
    """A compiled program.

    Attributes:
        backend: name of the backend that the program was compiled for.
        module: the HLO module after all passes and fusion.
        plan: the compilation decisions.
        kernels: the distinct generated kernels.
        thunks: all thunks in program order, including nested ones.
        memory: the memory that a call holds, or None if it is not known in advance.
    """

    backend: str
    module: HloModule
    plan: CompilationPlan | None

    @property
    def kernels(self) -> list[KernelSpec]: ...
    @property
    def thunks(self) -> list[Thunk]: ...
    @property
    def memory(self) -> ProgramMemory | None: ...
    def __call__(self, *arrays: Any) -> list[Any]: ...
    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]: ...
    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]: ...
    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]: ...
    def explain(self) -> Explanation: ...
    def save(self, path: str | Path) -> None: ...


def check_repeats(repeats: int) -> None:
    """Raise ArgumentError unless a number of timed executions is a positive integer."""
    if (as_integer(repeats) or 0) < 1:
        raise ArgumentError(f"repeats is a number of timed executions, at least 1, not {short_repr(repeats)}")


def parameter_leaves(module: HloModule) -> list[Shape]:
    """Return the shapes of the arrays that a call takes, in order."""
    return [s for p in module.entry.parameter_shapes for s in p.leaves() if s.is_array]


def check_signature(given: Sequence[tuple[Any, tuple[int, ...]]], shapes: Sequence[Shape]) -> None:
    """Raise ArgumentError (a TypeError) unless the (dtype, dimensions) of the arguments match the shapes."""
    if len(given) != len(shapes):
        wanted = ", ".join(map(str, shapes))
        raise ArgumentError(f"the program takes {len(shapes)} argument(s) ({wanted}), {len(given)} given")
    for n, ((dtype, dimensions), s) in enumerate(zip(given, shapes, strict=True)):
        if dtype != s.dtype or tuple(dimensions) != s.dimensions:
            shown = f"{np.dtype(dtype).name}[{','.join(map(str, dimensions))}]"
            order = "" if np.dtype(dtype).isnative else " in the byte order of another machine"
            raise ArgumentError(f"argument {n}: expected {s} (numpy {s.dtype.name}), given {shown}{order}")


def check_arguments(arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Array]:
    """Return the arguments as contiguous numpy arrays; raise ArgumentError as `check_signature` does."""
    given = [_as_array(a, n) for n, a in enumerate(arrays)]
    check_signature([(a.dtype, a.shape) for a in given], shapes)
    return [contiguous_argument(a, n) for n, a in enumerate(given)]


def _as_array(value: Any, number: int) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:  # raised for tensors of PyTorch and for nested lists
        raise ArgumentError(f"argument {number}: numpy cannot read a {type(value).__name__}: {e}") from e


def profile_thunks(thunks: Sequence[Thunk], samples: Sequence[ThunkSamples]) -> Profile:
    """Return the median time of each thunk with its bytes and flops."""
    rows = Profile()
    for t, found in zip(thunks, samples, strict=True):
        rows.append(ThunkTime(t.name, t.kind, float(np.median(found.seconds)), found.executions, *t.traffic()))
    return rows
