"""The state of emission: open loops, the statements in them, and the names of what has been computed.

`EmissionState` knows how statements nest and where a value may be computed; `emit.Emitter` adds how the value of each
op is computed. Reductions and selects between regions are emitted by modules that need the state alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen import scalar
from compiler.codegen.index import Index, Int, Runtime, Var
from compiler.codegen.loop_ir import LoopKind
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

STATEMENT_LIMIT = 6000
"""A kernel with more statements than this is refused."""

Memo: TypeAlias = dict[tuple[HloInstruction, Index], tuple[str, ...]]
"""Names of values by instruction and index."""


@dataclass
class Frame:
    """An open loop (or a guard, or the kernel's top level) and the statements gathered in it."""

    var: Var | None
    is_guard: bool = False
    kind: LoopKind | None = None
    stmts: list[lir.Stmt] = field(default_factory=list)
    memo: Memo = field(default_factory=dict)
    helpers: dict[Hashable, str] = field(default_factory=dict)


class EmissionState(ABC):
    """The kernel as far as it has been emitted.

    Attributes:
        fused: the computation that becomes a kernel.
        limit: most statements of the kernel.
        frames: open loops and guards, the outermost first.
        inputs: names of array arguments by parameter.
        groups: for a reduction, all reductions that share its loop.
        bound: parameters of called computations -> the operands they are bound to.
        sources: instructions whose elements come from elsewhere, such as the carried state of a loop.
        floor: no code is emitted outside of the frame with this number.
    """

    def __init__(self, fused: HloComputation, limit: int = STATEMENT_LIMIT) -> None:
        self.fused = fused
        self.limit = limit
        self.frames: list[Frame] = [Frame(None)]
        self.inputs: dict[HloInstruction, str] = {}
        self.groups: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
        self.bound: dict[HloInstruction, HloInstruction] = {}
        self.sources: dict[HloInstruction, Callable[[Index], str]] = {}
        self.floor = 0
        self._runtime_frame: dict[str, int] = {}
        self._count = 0

    @abstractmethod
    def values(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Return the names of the scalars `i[index]`: one, or several for a variadic reduce; emit what they need."""

    @abstractmethod
    def row_ended(self) -> None:
        """Note that a loop over a whole row has ended."""

    # ---- values

    def value(self, i: HloInstruction, index: Index) -> str:
        """Name of the scalar `i[index]`."""
        return self.values(i, index)[0]

    def known(self, i: HloInstruction, index: Index) -> tuple[str, ...] | None:
        """Names of `i[index]` if it has been computed where the code stands now."""
        for frame in self.frames:
            found = frame.memo.get((i, index))
            if found is not None:
                return found
        return None

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """The name that `make` gives to a helper value, made once where the code stands now."""
        name = self.helper(key)
        if name is None:
            name = self.frames[-1].helpers[key] = make()
        return name

    def helper(self, key: Hashable) -> str | None:
        """The name of a helper value if it has been made where the code stands now."""
        return next((f.helpers[key] for f in self.frames if key in f.helpers), None)

    def tuple_of(self, element: HloInstruction) -> HloInstruction:
        """The tuple that a get-tuple-element takes from, called computations entered."""
        whole = element.operands[0]
        return self.enter(whole) if whole.opcode in (Opcode.FUSION, Opcode.CALL) else whole

    def element(self, element: HloInstruction) -> HloInstruction | None:
        """The instruction a get-tuple-element stands for; None when it is one result of several of one op."""
        whole = self.tuple_of(element)
        return whole.operands[element.attributes["index"]] if whole.opcode is Opcode.TUPLE else None

    def enter(self, call: HloInstruction) -> HloInstruction:
        """Root of a called computation, its parameters bound to the operands."""
        called: HloComputation = call.called_computations()[0]
        for p, o in zip(called.parameters, call.operands, strict=True):
            if self.bound.setdefault(p, o) is not o:
                raise UnsupportedError(f"%{called.name} is called from two places in one kernel")
        return called.root

    def input_name(self, parameter: HloInstruction) -> str:
        """Name of the array argument that stands for a parameter."""
        return self.inputs.setdefault(parameter, f"p{parameter.parameter_number}")

    def inline(self, computation: HloComputation, args: Sequence[str]) -> tuple[str, ...]:
        """Code of a scalar computation (a reducer) on the given scalars."""
        names: dict[HloInstruction, str] = {}
        for i in computation.post_order():
            t = i.shape.element_type
            if i.opcode is Opcode.PARAMETER:
                names[i] = args[i.parameter_number or 0]
            elif i.opcode is Opcode.CONSTANT:
                names[i] = self.let(t, lir.Constant(scalar.constant_text(i.value.value.flat[0], t)))
            elif i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY):
                names[i] = names[i.operands[0]]
            elif i.opcode is not Opcode.TUPLE:
                names[i] = self.apply(t, scalar.template_of(i), *(names[o] for o in i.operands))
        root = computation.root
        if root.opcode is Opcode.TUPLE:
            return tuple(names[o] for o in root.operands)
        return (names[root],)

    # ---- names, frames, statements

    def fresh(self, prefix: str) -> str:
        self._count += 1
        if self._count > self.limit:
            raise UnsupportedError(f"the kernel would have more than {self.limit} statements")
        return f"{prefix}{self._count}"

    def add(self, statement: lir.Stmt) -> None:
        self.frames[-1].stmts.append(statement)

    def let(self, t: T, value: lir.Expr) -> str:
        name = self.fresh("v")
        self.add(lir.Let(name, t, value))
        return name

    def apply(self, t: T, template: str, *args: str) -> str:
        return self.let(t, lir.Apply(template, args))

    @contextmanager
    def loop(
        self,
        var: Var,
        kind: LoopKind,
        reductions: Sequence[lir.Reduction] = (),
        base: Int | None = None,
        limit: int | None = None,
    ) -> Iterator[None]:
        """Statements emitted inside become the loop's body."""
        frame = Frame(var, kind=kind)
        self.frames.append(frame)
        yield
        self.frames.pop()
        self.add(lir.For(var, kind, tuple(frame.stmts), tuple(reductions), base, limit))

    @contextmanager
    def loops(
        self, vars_: Sequence[Var], kinds: Sequence[LoopKind], reductions: Sequence[lir.Reduction] = ()
    ) -> Iterator[None]:
        """A nest; loops of one iteration are left out. `reductions` belong to the innermost loop."""
        todo = [(v, k) for v, k in zip(vars_, kinds, strict=True) if v.extent != 1]
        frames = []
        for v, k in todo:
            frames.append(Frame(v, kind=k))
            self.frames.append(frames[-1])
        yield
        for n, (v, k) in enumerate(reversed(todo)):
            frame = self.frames.pop()
            self.add(lir.For(v, k, tuple(frame.stmts), tuple(reductions) if n == 0 else ()))

    @contextmanager
    def guard(self) -> Iterator[Frame]:
        """Statements emitted inside are gathered for a branch and stay there."""
        frame = Frame(None, is_guard=True)
        self.frames.append(frame)
        yield frame
        self.frames.pop()

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Emit in an outer frame; the inner ones are put back afterwards."""
        inner = self.frames[depth + 1 :]
        del self.frames[depth + 1 :]
        yield
        self.frames.extend(inner)

    def depth_of(self, index: Index) -> int:
        """The outermost frame in which code for `index` may stand."""
        needed = ix.variables_of(index)
        for depth in range(len(self.frames) - 1, 0, -1):
            frame = self.frames[depth]
            if frame.is_guard or (frame.var is not None and frame.var in needed):
                return depth
            if any(isinstance(v, Runtime) and self._runtime_frame[v.name] == depth for v in needed):
                return depth
            if depth == self.floor:
                return depth
        return 0

    # ---- indices at run time

    def index_name(self, value: Int) -> str:
        """Name of an index as a 64-bit integer."""
        return self.let(T.S64, lir.IndexValue(value))

    def all_of(self, conditions: Sequence[str]) -> str:
        """A pred scalar that holds where every one of these does."""
        if not conditions:
            return self.let(T.PRED, lir.Constant("1"))
        return self.apply(T.PRED, "(" + " & ".join(f"{{{k}}}" for k in range(len(conditions))) + ")", *conditions)

    def start(self, operand: HloInstruction, index: Index, high: int) -> Int:
        """A run-time start index, clamped to 0..high."""
        if high <= 0:
            return ix.const(0)
        raw = self.value(operand, index)
        if operand.shape.element_type.is_signed:
            text = f"({{0}} < 0 ? 0 : {{0}} > {high} ? {high} : {{0}})"
        else:
            text = f"({{0}} > {high}u ? {high} : {{0}})"
        with self.at_depth(self.depth_of(index)):
            name = self.once((raw, high), lambda: self.apply(T.S64, text, raw))
            return ix.of(self.runtime(name, 0, high))

    def runtime(self, name: str, low: int, high: int) -> Runtime:
        """A let of an open loop, for use in indices."""
        self._runtime_frame.setdefault(name, len(self.frames) - 1)
        return Runtime(name, low, high)
