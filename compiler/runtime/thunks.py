"""Thunks: the steps of a compiled program. Each knows the buffers that it reads and writes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.instruction import HloInstruction
from compiler.runtime.buffers import Buffer

R = TypeVar("R")


@dataclass(eq=False)
class Thunk(ABC):
    """One step of a program.

    Attributes:
        name: of the HLO instruction it was made from.
        executions: expected number of executions per call of the program; trip counts of loops are multiplied in.
    """

    name: str
    executions: float = field(default=1.0, kw_only=True)

    @property
    def kind(self) -> str:
        return type(self).__name__.removesuffix("Thunk").lower()

    def reads(self) -> tuple[Buffer, ...]:
        return ()

    def writes(self) -> tuple[Buffer, ...]:
        return ()

    def blocks(self) -> tuple[list[Thunk], ...]:
        """Return the sequences of thunks nested in this one: of a loop its condition and body, else its branches."""
        return ()

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that one execution must move at least, and its floating point operations."""
        return sum(b.size for b in (*self.reads(), *self.writes())), 0

    @abstractmethod
    def accept(self, visitor: ThunkVisitor[R]) -> R:
        """Call the visitor's method for this kind of thunk and return its result."""

    @property
    def key(self) -> str:
        """A hash that is equal for thunks that take equal time on one device."""
        shapes = ",".join(str(b.shape) for b in (*self.reads(), *self.writes()))
        return hashlib.sha256(f"{self.kind}:{self._key_text()}:{shapes}".encode()).hexdigest()[:24]

    def _key_text(self) -> str:
        return ""


@dataclass(eq=False)
class KernelThunk(Thunk):
    """A generated kernel."""

    spec: KernelSpec
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    def reads(self) -> tuple[Buffer, ...]:
        return self.inputs

    def writes(self) -> tuple[Buffer, ...]:
        return self.outputs

    def _key_text(self) -> str:
        return self.spec.symbol

    def traffic(self) -> tuple[int, int]:
        return self.spec.bytes, self.spec.flops

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.kernel(self)


@dataclass(eq=False)
class CopyThunk(Thunk):
    """Bytes from one buffer to another of the same size."""

    source: Buffer
    target: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.target,)

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.copy(self)


@dataclass(eq=False)
class GemmThunk(Thunk):
    """Row-major matrix products, one for each batch: out[b] = op(lhs[b]) op(rhs[b]) by the BLAS.

    `lhs_transposed`: the left operand is stored as K x M.
    """

    lhs: Buffer
    rhs: Buffer
    out: Buffer
    batch: int
    m: int
    n: int
    k: int
    lhs_transposed: bool
    rhs_transposed: bool

    def reads(self) -> tuple[Buffer, ...]:
        return (self.lhs, self.rhs)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def _key_text(self) -> str:
        return f"{self.batch},{self.m},{self.n},{self.k},{self.lhs_transposed},{self.rhs_transposed}"

    def matrices(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Return the operands' arrays (numpy or CuPy) as batches of M x K and K x N matrices, without copies."""
        lhs = lhs.reshape((self.batch, self.k, self.m) if self.lhs_transposed else (self.batch, self.m, self.k))
        rhs = rhs.reshape((self.batch, self.n, self.k) if self.rhs_transposed else (self.batch, self.k, self.n))
        return (
            lhs.swapaxes(1, 2) if self.lhs_transposed else lhs,
            rhs.swapaxes(1, 2) if self.rhs_transposed else rhs,
        )

    def traffic(self) -> tuple[int, int]:
        return super().traffic()[0], 2 * self.batch * self.m * self.n * self.k

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.gemm(self)


@dataclass(eq=False)
class HostThunk(Thunk):
    """An op without a kernel or a library: the interpreter computes it."""

    instruction: HloInstruction
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    def reads(self) -> tuple[Buffer, ...]:
        return self.inputs

    def writes(self) -> tuple[Buffer, ...]:
        return self.outputs

    def _key_text(self) -> str:
        i = self.instruction
        shown = sorted((k, str(v)) for k, v in i.attributes.items() if isinstance(v, int | str | tuple))
        return f"{i.opcode.text}{shown}"

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.host(self)


@dataclass(eq=False)
class WhileThunk(Thunk):
    """Run `condition`; while its predicate holds, run `body`, then `condition` again."""

    predicate: Buffer
    condition: list[Thunk]
    body: list[Thunk]
    trip_count: int | None = None

    def blocks(self) -> tuple[list[Thunk], ...]:
        return (self.condition, self.body)

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.loop(self)


@dataclass(eq=False)
class ConditionalThunk(Thunk):
    """Run one branch: by an s32 index (out of range: the last), or by a predicate (true: the first)."""

    selector: Buffer
    branches: list[list[Thunk]]

    def reads(self) -> tuple[Buffer, ...]:
        return (self.selector,)

    def blocks(self) -> tuple[list[Thunk], ...]:
        return tuple(self.branches)

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.conditional(self)


class ThunkVisitor(ABC, Generic[R]):
    """One method per kind of thunk; a new kind makes every visitor that ignores it an error."""

    @abstractmethod
    def kernel(self, t: KernelThunk) -> R: ...
    @abstractmethod
    def copy(self, t: CopyThunk) -> R: ...
    @abstractmethod
    def gemm(self, t: GemmThunk) -> R: ...
    @abstractmethod
    def host(self, t: HostThunk) -> R: ...
    @abstractmethod
    def loop(self, t: WhileThunk) -> R: ...
    @abstractmethod
    def conditional(self, t: ConditionalThunk) -> R: ...


def kernels_of(thunks: Iterable[Thunk]) -> list[KernelSpec]:
    """Return the generated kernels among these thunks, each once, in order of appearance."""
    return list({t.spec.symbol: t.spec for t in thunks if isinstance(t, KernelThunk)}.values())


def walk(thunks: list[Thunk]) -> Iterator[Thunk]:
    """Yield every thunk in program order; a loop or conditional comes before the thunks nested in it."""
    for t in thunks:
        yield t
        for block in t.blocks():
            yield from walk(block)
