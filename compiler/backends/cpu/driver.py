"""The driver's table: all thunks of a program as steps with jumps, which steps.c runs, so that a call is one C call."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler.backends.cpu.lapack_routines import KIND as LAPACK
from compiler.backends.cpu.loop_functions import LoopFunction
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    LibraryThunk,
    Thunk,
    ThunkVisitor,
    WhileThunk,
    walk,
)

__all__ = ["BEGIN_HOST", "Driver", "StepTable", "make_driver"]

BEGIN_HOST = -1
"""Number of the step with which a program with host ops begins, instead of the number of one of them."""

_TABLES = (BufferKind.TEMPORARY, BufferKind.PARAMETER, BufferKind.OUTPUT, BufferKind.CONSTANT)
"""The owners of memory by the number of their table of addresses; temporaries have offsets in the arena instead."""


class StepKind(enum.IntEnum):
    """The kinds of steps, in the order of steps.c."""

    KERNEL = 0
    COPY = 1
    GEMM = 2
    HOST = 3
    LEAVE_UNLESS = 4
    JUMP = 5
    SWITCH = 6
    LIBRARY = 7
    LOOP = 8
    END = 9


class Operand(ctypes.Structure):
    """`struct operand` of steps.c."""

    _fields_ = [("table", ctypes.c_int64), ("at", ctypes.c_int64)]  # ctypes requires a list


class Step(ctypes.Structure):
    """`struct step` of steps.c."""

    jump: int
    _fields_ = [  # ctypes requires a list
        *((name, ctypes.c_int32) for name in ("kind", "number", "operand", "count", "jump", "flag")),
        ("size", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("batch", "m", "n", "k", "lhs_transposed", "rhs_transposed")),
    ]


class StepTable(ctypes.Structure):
    """`struct steps` of steps.c."""

    _fields_ = [  # ctypes requires a list
        ("steps", ctypes.c_void_p),
        ("operands", ctypes.c_void_p),
        ("jumps", ctypes.c_void_p),
        ("operand_count", ctypes.c_int32),
        ("calls_blas", ctypes.c_int32),
    ]


@dataclass
class Driver:
    """The steps of a program and what they refer to.

    Attributes:
        steps, operands, jumps: the tables of steps.c.
        kernels: symbols of the kernels in the order of their table.
        host: host thunks by the number that the driver passes to the callback.
        library: library calls in the order of their table of steps.
        calls_blas: whether a step calls BLAS.
        calls_lapack: whether a kernel calls LAPACK.
        owners: number of the thunk, in the order of `walk`, that each step belongs to; -1 for the others.
    """

    steps: list[Step] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    jumps: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    host: list[HostThunk] = field(default_factory=list)
    library: list[LibraryThunk] = field(default_factory=list)
    calls_blas: bool = False
    calls_lapack: bool = False
    owners: list[int] = field(default_factory=list)

    def table(self) -> tuple[StepTable, list[object]]:
        """Return the table for C and the objects that it refers to, which must live as long as it does."""
        steps = (Step * len(self.steps))(*self.steps)
        operands = (Operand * max(1, len(self.operands)))(*self.operands)
        jumps = (ctypes.c_int32 * max(1, len(self.jumps)))(*self.jumps)
        addresses = ctypes.addressof(steps), ctypes.addressof(operands), ctypes.addressof(jumps)
        limits = self.calls_blas or self.calls_lapack
        return StepTable(*addresses, len(self.operands), limits), [steps, operands, jumps]


def make_driver(thunks: Sequence[Thunk], functions: Mapping[Thunk, LoopFunction] | None = None) -> Driver:
    """Return the driver of a program whose temporaries have arena offsets.

    Args:
        thunks: the thunks of the program.
        functions: the functions of the loops that have one. A run without times calls them in place of the steps.
    """
    every = list(walk(list(thunks)))
    maker = _Maker({id(t): n for n, t in enumerate(every)}, functions or {})
    if any(isinstance(t, HostThunk) for t in every):
        maker.emit(StepKind.HOST, number=BEGIN_HOST)
    maker.sequence(thunks)
    maker.emit(StepKind.END)
    return maker.driver


class _Maker(ThunkVisitor[None]):
    """A visitor that appends the steps of thunks, with one method per kind of thunk."""

    def __init__(self, numbers: Mapping[int, int], functions: Mapping[Thunk, LoopFunction]) -> None:
        self.driver = Driver()
        self._numbers = numbers
        self._functions = functions
        self._owner = -1
        self._slots: dict[str, int] = {}

    def emit(self, kind: StepKind, buffers: Sequence[Buffer] = (), number: int = 0, **values: int) -> Step:
        """Append a step and return it."""
        first = len(self.driver.operands)
        for b in buffers:
            b = b.resolve()
            self.driver.operands.append(Operand(_TABLES.index(b.kind), b.index))
        step = Step(kind=kind, number=number, operand=first, count=len(buffers), **values)
        self.driver.steps.append(step)
        self.driver.owners.append(self._owner)
        return step

    @property
    def here(self) -> int:
        """Return the number of the next step."""
        return len(self.driver.steps)

    def sequence(self, thunks: Sequence[Thunk]) -> None:
        """Append the steps of thunks."""
        outer = self._owner
        for t in thunks:
            self._owner = self._numbers[id(t)]
            t.accept(self)
        self._owner = outer

    def kernel(self, t: KernelThunk) -> None:
        self.emit(StepKind.KERNEL, [*t.inputs, *t.outputs], self._slot(t.spec.symbol))
        self.driver.calls_lapack |= t.spec.kind == LAPACK

    def _slot(self, symbol: str) -> int:
        """Return the number of a function in the table of kernels."""
        slot = self._slots.setdefault(symbol, len(self._slots))
        if slot == len(self.driver.kernels):
            self.driver.kernels.append(symbol)
        return slot

    def copy(self, t: CopyThunk) -> None:
        self.emit(StepKind.COPY, [t.target, t.source], size=t.source.shape.byte_size)

    def gemm(self, t: GemmThunk) -> None:
        self.driver.calls_blas = True
        self.emit(
            StepKind.GEMM, [t.lhs, t.rhs, t.out], t.out.shape.element_type.byte_size, batch=t.batch, m=t.m, n=t.n,
            k=t.k, lhs_transposed=t.lhs_transposed, rhs_transposed=t.rhs_transposed,
        )  # fmt: skip

    def library(self, t: LibraryThunk) -> None:
        buffers = [*t.inputs, t.out] if t.scratch is None else [*t.inputs, t.out, t.scratch]
        size = 0 if t.scratch is None else t.scratch.size
        self.emit(StepKind.LIBRARY, buffers, len(self.driver.library), size=size)
        self.driver.library.append(t)

    def host(self, t: HostThunk) -> None:
        self.emit(StepKind.HOST, [*t.inputs, *t.outputs], len(self.driver.host))
        self.driver.host.append(t)

    def loop(self, t: WhileThunk) -> None:
        function = self._functions.get(t)
        whole = None
        if function is not None:
            whole = self.emit(StepKind.LOOP, function.buffers, self._slot(function.spec.symbol))
        start = self.here
        self.sequence(t.condition)
        test = self.emit(StepKind.LEAVE_UNLESS, [t.predicate])
        self.sequence(t.body)
        self.emit(StepKind.JUMP, jump=start)
        test.jump = self.here
        if whole is not None:
            whole.jump = self.here

    def conditional(self, t: ConditionalThunk) -> None:
        jumps, count = self.driver.jumps, len(t.branches)
        first = len(jumps)
        jumps += [0] * count
        self.emit(
            StepKind.SWITCH, [t.selector], count, jump=first, flag=t.selector.shape.element_type is T.PRED
        )  # fmt: skip
        ends = []
        for n, branch in enumerate(t.branches):
            jumps[first + n] = self.here
            self.sequence(branch)
            ends.append(self.emit(StepKind.JUMP))
        for end in ends:
            end.jump = self.here
