"""Thunks: the steps of a compiled program, with the buffers that they read and write."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.instruction import HloInstruction
from compiler.runtime.buffers import Buffer

R = TypeVar("R")


@dataclass(eq=False)
class Thunk(ABC):
    """One step of a compiled program.

    Attributes:
        name: name of the HLO instruction that it computes.
        executions: expected number of executions per call of the program, with the trip counts of enclosing loops.
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
        """Return the nested sequences of thunks: condition and body of a loop, or the branches of a conditional."""
        return ()

    def traffic(self) -> tuple[int, int]:
        """Return the minimum bytes of memory traffic and the floating point operations of one execution."""
        return sum(b.size for b in (*self.reads(), *self.writes())), 0

    @abstractmethod
    def accept(self, visitor: ThunkVisitor[R]) -> R:
        """Call the visitor's method for this kind of thunk and return its result."""

    @property
    def key(self) -> str:
        """Return a hash that is equal for thunks with the same execution time on the same device."""
        shapes = ",".join(str(b.shape) for b in (*self.reads(), *self.writes()))
        return hashlib.sha256(f"{self.kind}:{self._key_text()}:{shapes}".encode()).hexdigest()[:24]

    def _key_text(self) -> str:
        return ""


@dataclass(eq=False)
class KernelThunk(Thunk):
    """The launch of a generated kernel."""

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
    """A copy of one buffer to another of the same size."""

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
    """A batch of row-major matrix products computed by BLAS: out[b] = op(lhs[b]) op(rhs[b]).

    Attributes:
        batch, m, n, k: number of products and their sizes.
        lhs_transposed: whether the left operand is stored as k x m.
        rhs_transposed: whether the right operand is stored as n x k.
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
        """Return the operands' arrays (numpy or CuPy) as batches of m x k and k x n matrices, without copies."""
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
class LibraryThunk(Thunk):
    """A call of a library that computes a whole instruction, such as a convolution with bias and activation.

    Attributes:
        operation: the operation as JSON data in the backend's terms.
        inputs: the arrays that it reads, in the library's order.
        out: the result.
        scratch: temporary memory of the call, if it needs any.
        flops: number of floating point operations.
    """

    operation: Mapping[str, Any]
    inputs: tuple[Buffer, ...]
    out: Buffer
    scratch: Buffer | None
    flops: int

    def reads(self) -> tuple[Buffer, ...]:
        return self.inputs

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,) if self.scratch is None else (self.out, self.scratch)

    def _key_text(self) -> str:
        return json.dumps(self.operation, sort_keys=True)

    def traffic(self) -> tuple[int, int]:
        return sum(b.size for b in (*self.inputs, self.out)), self.flops

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.library(self)


@dataclass(eq=False)
class HostThunk(Thunk):
    """An op that the interpreter evaluates, because neither a kernel nor a library supports it."""

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
    """A loop: run `condition`, and while its predicate holds, run `body` and `condition` again."""

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
    """A conditional: an s32 index selects a branch (out of range: the last), or a predicate (true: the first)."""

    selector: Buffer
    branches: list[list[Thunk]]

    def reads(self) -> tuple[Buffer, ...]:
        return (self.selector,)

    def blocks(self) -> tuple[list[Thunk], ...]:
        return tuple(self.branches)

    def accept(self, visitor: ThunkVisitor[R]) -> R:
        return visitor.conditional(self)


class ThunkVisitor(ABC, Generic[R]):
    """A visitor with one abstract method per kind of thunk, so that no visitor can miss a kind."""

    @abstractmethod
    def kernel(self, t: KernelThunk) -> R: ...
    @abstractmethod
    def copy(self, t: CopyThunk) -> R: ...
    @abstractmethod
    def gemm(self, t: GemmThunk) -> R: ...
    @abstractmethod
    def library(self, t: LibraryThunk) -> R: ...
    @abstractmethod
    def host(self, t: HostThunk) -> R: ...
    @abstractmethod
    def loop(self, t: WhileThunk) -> R: ...
    @abstractmethod
    def conditional(self, t: ConditionalThunk) -> R: ...


def kernels_of(thunks: Iterable[Thunk]) -> list[KernelSpec]:
    """Return the distinct generated kernels of these thunks, in order of first use."""
    return list({t.spec.symbol: t.spec for t in thunks if isinstance(t, KernelThunk)}.values())


def walk(thunks: list[Thunk]) -> Iterator[Thunk]:
    """Yield every thunk in program order, a loop or conditional before the thunks nested in it."""
    for t in thunks:
        yield t
        for block in t.blocks():
            yield from walk(block)
