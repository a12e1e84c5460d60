"""Thunks: the steps an executable takes. Each knows the buffers it reads and writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.instruction import HloInstruction
from compiler.runtime.buffers import Buffer


@dataclass(eq=False)
class Thunk:
    """One step.

    Attributes:
        name: of the HLO instruction it stands for.
        executions: expected runs a call of the program, loops counted with their trip counts.
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

    @property
    def key(self) -> str:
        """Equal for thunks that take equal time on one device."""
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


@dataclass(eq=False)
class CopyThunk(Thunk):
    """Bytes from one buffer to another of the same size."""

    source: Buffer
    target: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.source,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.target,)


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


@dataclass(eq=False)
class WhileThunk(Thunk):
    """Run `condition`; while its predicate holds, run `body`, then `condition` again."""

    predicate: Buffer
    condition: list[Thunk]
    body: list[Thunk]
    trip_count: int | None = None


@dataclass(eq=False)
class ConditionalThunk(Thunk):
    """Run one branch: by an s32 index (out of range: the last), or by a predicate (true: the first)."""

    selector: Buffer
    branches: list[list[Thunk]]

    def reads(self) -> tuple[Buffer, ...]:
        return (self.selector,)


def kernels_of(thunks: Iterable[Thunk]) -> list[KernelSpec]:
    """Generated kernels among these thunks, each once, in their order."""
    return list({t.spec.symbol: t.spec for t in thunks if isinstance(t, KernelThunk)}.values())


def walk(thunks: list[Thunk]) -> Iterator[Thunk]:
    """Every thunk, in the order of the program; loops and branches before what is in them."""
    for t in thunks:
        yield t
        if isinstance(t, WhileThunk):
            yield from walk(t.condition)
            yield from walk(t.body)
        elif isinstance(t, ConditionalThunk):
            for b in t.branches:
                yield from walk(b)
