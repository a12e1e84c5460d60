"""The state of code emission: the open loops, their statements, and the names of the values computed so far.

`EmissionState` tracks how statements nest and in which loop a value may be computed; its subclass `emit.Emitter` adds
how to compute each op. The modules that emit reductions and selects between regions depend on the state alone.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from compiler.codegen.lowering.float_bounds import FloatBounds
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest import scalar_ops
from compiler.codegen.nest.index import Index, IndexExpr, Runtime, Var
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

NARROW_INTEGERS = frozenset({T.S2, T.U2, T.S4, T.U4, T.S8, T.U8, T.S16, T.U16})
"""Integers of fewer bits than the floats from which they are converted."""
STATEMENT_LIMIT = 6000
"""Maximum number of statements in a kernel."""

Memo: TypeAlias = dict[tuple[HloInstruction, int], tuple[str, ...]]
"""The names of the values of an instruction at an index, which is given by its `EmissionState.number`."""


@dataclass
class Frame:
    """An open loop or reduction, an open branch (a guard) or the top level of the kernel, with its statements."""

    vars: tuple[Var, ...] = ()
    is_guard: bool = False
    stmts: list[lir.Stmt] = field(default_factory=list)
    memo: Memo = field(default_factory=dict)
    helpers: dict[int, str] = field(default_factory=dict)


class EmissionState(ABC):
    """The part of a kernel that has been emitted so far.

    Attributes:
        fused: the computation that becomes a kernel.
        limit: maximum number of statements.
        frames: open loops and guards, the outermost first.
        inputs: names of array arguments by parameter.
        groups: for each reduction, all reductions that share its loop.
        bound: the operand that each parameter of a called computation is bound to.
        sources: functions that read the elements of instructions defined outside the kernel's computation, such as
            the carried state of a loop.
        hoist_limit: number of the outermost frame into which code may be hoisted.
        runs_from: number of the outermost frame whose loops repeat a reduction that is emitted inside; it cannot be
            hoisted out of those before.
        loops_once: whether short reductions that are computed once may be loops.
    """

    def __init__(self, fused: HloComputation, limit: int = STATEMENT_LIMIT) -> None:
        self.fused = fused
        self.limit = limit
        self.frames: list[Frame] = [Frame()]
        self.inputs: dict[HloInstruction, str] = {}
        self.groups: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
        self.bound: dict[HloInstruction, HloInstruction] = {}
        self.sources: dict[HloInstruction, Callable[[Index], str]] = {}
        self.hoist_limit = 0
        self.runs_from = 0
        self.loops_once = False
        self._runtime_frame: dict[str, int] = {}
        self._wide: dict[str, str] = {}
        self._literals: dict[str, float | int] = {}
        self._counts: dict[str, IndexExpr] = {}
        self._bounds = FloatBounds()
        self._count = 0
        self._numbers: dict[Hashable, int] = {}

    @abstractmethod
    def values(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Emit the computation of `i[index]` and return its names: one, or several for a variadic reduce."""

    # ---- values

    def value(self, i: HloInstruction, index: Index) -> str:
        """Emit the computation of `i[index]` and return the name of the scalar."""
        return self.values(i, index)[0]

    def number(self, key: Hashable) -> int:
        """Return a number that stands for an index, or for a key of helper values, in all frames.

        It takes long to hash what has index expressions, and there are many frames inside of branches.
        """
        return self._numbers.setdefault(key, len(self._numbers))

    def known(self, i: HloInstruction, index: Index) -> tuple[str, ...] | None:
        """Return the names of `i[index]` if it has been computed in an open frame, otherwise None."""
        key = i, self.number(index)
        for frame in self.frames:
            found = frame.memo.get(key)
            if found is not None:
                return found
        return None

    def remember(self, i: HloInstruction, index: Index, names: tuple[str, ...]) -> None:
        """Note that `i[index]` has been computed in the innermost frame."""
        self.frames[-1].memo[i, self.number(index)] = names

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """Return the name of a helper value; call `make` to emit it unless an open frame has it already."""
        name = self.helper(key)
        if name is None:
            name = make()
            self.frames[-1].helpers[self.number(key)] = name
        return name

    def helper(self, key: Hashable) -> str | None:
        """Return the name of a helper value if an open frame has it, otherwise None."""
        number = self.number(key)
        for frame in self.frames:
            found = frame.helpers.get(number)
            if found is not None:
                return found
        return None

    def tuple_of(self, element: HloInstruction) -> HloInstruction:
        """Return the tuple operand of a get-tuple-element; for a fusion or call, the root of its computation."""
        whole = element.operands[0]
        return self.enter(whole) if whole.opcode in (Opcode.FUSION, Opcode.CALL) else whole

    def element(self, element: HloInstruction) -> HloInstruction | None:
        """Return the instruction that a get-tuple-element selects, or None if one op yields several results."""
        whole = self.tuple_of(element)
        return whole.operands[element.attributes["index"]] if whole.opcode is Opcode.TUPLE else None

    def enter(self, call: HloInstruction) -> HloInstruction:
        """Bind the parameters of a called computation to the operands of the call and return its root."""
        called: HloComputation = call.called_computations()[0]
        for p, o in zip(called.parameters, call.operands, strict=True):
            if self.bound.setdefault(p, o) is not o:
                raise UnsupportedError(f"%{called.name} is called from two places in one kernel")
        return called.root

    def input_name(self, parameter: HloInstruction) -> str:
        """Return the name of the array argument for a parameter."""
        return self.inputs.setdefault(parameter, f"p{parameter.parameter_number}")

    def inline(self, computation: HloComputation, args: Sequence[str]) -> tuple[str, ...]:
        """Emit a scalar computation, such as a reducer, on the given scalars and return the names of its results."""
        names: dict[HloInstruction, str] = {}
        for i in computation.post_order():
            t = i.shape.element_type
            if i.opcode is Opcode.PARAMETER:
                names[i] = args[i.parameter_number or 0]
            elif i.opcode is Opcode.CONSTANT:
                names[i] = self.constant(i.value.value.flat[0], t)
            elif i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST, Opcode.COPY):
                names[i] = names[i.operands[0]]
            elif i.opcode is not Opcode.TUPLE:
                names[i] = self.apply(scalar_ops.scalar_op_of(i), *(names[o] for o in i.operands))
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

    def constant(self, value: Any, t: T) -> str:
        """Emit a literal, given as a Python or NumPy scalar."""
        literal = scalar_ops.literal_of(value, t)
        name = self.let(t, lir.Constant(literal))
        self._literals[name] = literal
        if t.is_float:
            self._bounds.set_literal(name, literal)
        return name

    def apply(self, op: ScalarOp, *args: str) -> str:
        """Emit a scalar op and return its name; a combination with the identity is the other operand."""
        if scalar_ops.has_exact_identity(op):
            for this, other in (args, args[::-1]):
                if self._literals.get(this) == scalar_ops.identity_of(op.opcode, op.type):
                    return other
        if op.opcode is Opcode.CONVERT and op.type.is_float and op.result in NARROW_INTEGERS:
            return self._rounded(op, args[0])
        if op.opcode is Opcode.CONVERT and op.result.is_float and args[0] in self._wide:
            op, args = scalar_ops.conversion(T.S32, op.result), (self._wide[args[0]],)
        name = self.let(op.result, lir.Apply(self._known_in_range(op, args[0]), args))
        self._bounds.set_result(name, op, args)
        count = self._count_of(op, args)
        if count is not None:
            self._counts[name] = count
        return name

    def _count_of(self, op: ScalarOp, args: Sequence[str]) -> IndexExpr | None:
        """Return the index that an op on integers computes from indices and literals, or None if it may wrap around."""
        if not op.type.is_integer or not op.result.is_integer or self._counts.keys().isdisjoint(args):
            return None
        known = [self._counts[a] for a in args if a in self._counts]
        if len(args) == 2 and len(known) == 1:
            literal = next((self._literals[a] for a in args if a in self._literals), None)
            if literal is None:
                return None
            known.insert(int(args[0] in self._counts), ix.const(int(literal)))
        count = _calculated(op.opcode, known)
        low = -(1 << op.result.bits - 1) if op.result.is_signed else 0
        if count is None or count.range[0] < low or count.range[1] >= low + (1 << op.result.bits):
            return None
        return count

    def _known_in_range(self, op: ScalarOp, value: str) -> ScalarOp:
        """Return a conversion of a float to an integer without tests if the value needs none; other ops as they are."""
        if op.opcode is not Opcode.CONVERT or not op.type.is_float or not op.result.is_integer:
            return op
        return replace(op, in_range=self._bounds.fit(value, op.result))

    def _rounded(self, op: ScalarOp, value: str) -> str:
        """Emit a conversion of a float to a narrow integer, bounded as an integer of 32 bits.

        A quantized value is converted back as that integer: masks of narrow lanes would take most of the time.
        """
        t = op.result
        low, high = (-(2 ** (t.bits - 1)), 2 ** (t.bits - 1) - 1) if t.is_signed else (0, 2**t.bits - 1)
        wide = self.apply(scalar_ops.conversion(op.type, T.S32), value)
        bounds = () if self._bounds.fit(value, t) else ((Opcode.MAXIMUM, low), (Opcode.MINIMUM, high))
        for opcode, bound in bounds:
            wide = self.let(T.S32, lir.Apply(scalar_ops.binary(opcode, T.S32), (wide, self.constant(bound, T.S32))))
        name = self.let(t, lir.Apply(scalar_ops.conversion(T.S32, t), (wide,)))
        self._wide[name] = wide
        return name

    @contextmanager
    def loop(self, var: Var, kind: LoopKind) -> Iterator[None]:
        """Open a loop: the statements emitted inside the context become its body."""
        frame = Frame((var,))
        self.frames.append(frame)
        yield
        self.frames.pop()
        self.add(lir.For(var, kind, tuple(frame.stmts)))

    @contextmanager
    def while_loop(self) -> Iterator[Callable[[str], None]]:
        """Open a loop that runs while a pred holds.

        The statements emitted before the yielded function is called with the name of the pred are the test.
        """
        frame, found = Frame(), list[tuple[str, int]]()
        self.frames.append(frame)

        def test(condition: str) -> None:
            found.append((condition, len(frame.stmts)))

        yield test
        self.frames.pop()
        (condition, end), stmts = found[0], tuple(frame.stmts)
        self.add(lir.While(stmts[:end], condition, stmts[end:], self.fresh("w")))

    @contextmanager
    def loops(self, vars_: Sequence[Var], kind: LoopKind = LoopKind.INDEPENDENT) -> Iterator[None]:
        """Open a nest of loops of one kind, without the loops of one iteration."""
        open_vars = [v for v in vars_ if v.extent != 1]
        self.frames += [Frame((v,)) for v in open_vars]
        yield
        for v in reversed(open_vars):
            frame = self.frames.pop()
            self.add(lir.For(v, kind, tuple(frame.stmts)))

    @contextmanager
    def reduction(self, vars_: Sequence[Var], reductions: Sequence[lir.Reduction]) -> Iterator[None]:
        """Open the body of a `Reduce`; the context must define the values of `reductions`, which may be extended."""
        frame = Frame(tuple(vars_))
        self.frames.append(frame)
        yield
        self.frames.pop()
        self.add(lir.Reduce(tuple(vars_), tuple(reductions), tuple(frame.stmts)))

    @contextmanager
    def guard(self) -> Iterator[Frame]:
        """Open a branch: statements emitted inside the context are not hoisted out of it."""
        frame = Frame(is_guard=True)
        self.frames.append(frame)
        yield frame
        self.frames.pop()

    @contextmanager
    def apart(self) -> Iterator[Frame]:
        """Open a piece of code that becomes a function of its own, in which nothing emitted outside is known."""
        outside, self.frames = self.frames, [Frame()]
        yield self.frames[0]
        self.frames = outside

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Emit into an outer frame while the context is open, then reopen the inner frames."""
        inner = self.frames[depth + 1 :]
        del self.frames[depth + 1 :]
        yield
        self.frames.extend(inner)

    def depth_of(self, index: Index) -> int:
        """Return the depth of the outermost frame to which code that depends on `index` can be hoisted."""
        needed = ix.variables_of(index)
        for depth in range(len(self.frames) - 1, 0, -1):
            frame = self.frames[depth]
            if frame.is_guard or not needed.isdisjoint(frame.vars):
                return depth
            if any(isinstance(v, Runtime) and self._runtime_frame[v.name] == depth for v in needed):
                return depth
            if depth == self.hoist_limit:
                return depth
        return 0

    # ---- indices at run time

    def counted(self, t: T, number: IndexExpr) -> str:
        """Emit an index as a number of type t, without a conversion, and return its name."""
        name = self.let(t, lir.IndexValue(number))
        if t.is_integer and t.bits >= 32:  # others may wrap around
            self._counts[name] = number
        return name

    def index_name(self, value: IndexExpr) -> str:
        """Emit an index as a 64-bit integer and return its name."""
        return self.let(T.S64, lir.IndexValue(value))

    def all_of(self, conditions: Sequence[str]) -> str:
        """Emit the conjunction of pred scalars and return its name."""
        if not conditions:
            return self.constant(True, T.PRED)
        conjunction = scalar_ops.binary(Opcode.AND, T.PRED)
        return functools.reduce(lambda a, b: self.apply(conjunction, a, b), conditions)

    def index_test(self, value: IndexExpr, low: int | None, high: int | None) -> str:
        """Emit the pred scalar low <= value <= high and return its name; a bound of None is not tested."""
        return self.let(T.PRED, lir.IndexTest(value, low, high))

    def clamped_start(self, operand: HloInstruction, index: Index, high: int) -> IndexExpr:
        """Emit a start index that is read at run time, clamped to 0 .. high, and return it as an index expression."""
        if high <= 0:
            return ix.const(0)
        raw = self.value(operand, index)
        count = self._counts.get(raw)
        if count is not None and count.range[0] >= 0 and count.range[1] <= high:
            return count
        with self.at_depth(self.depth_of(index)):
            name = self.once((raw, high), lambda: self._clamped(raw, operand.shape.element_type, high))
            return ix.of(self.runtime(name, 0, high))

    def _clamped(self, raw: str, t: T, high: int) -> str:
        if t.is_integer and (t.bits < 32 or t is T.S32) and high < 2**31:  # vectors of it have twice as many elements
            narrow = raw if t is T.S32 else self.apply(scalar_ops.conversion(t, T.S32), raw)
            limits = self.constant(0, T.S32), self.constant(high, T.S32)
            clamped = self.apply(scalar_ops.binary(Opcode.CLAMP, T.S32), limits[0], narrow, limits[1])
            return self.apply(scalar_ops.conversion(T.S32, T.S64), clamped)
        if t is T.U64:  # large values become negative numbers of s64
            raw = self.apply(scalar_ops.binary(Opcode.MINIMUM, t), raw, self.constant(high, t))
        wide = raw if t is T.S64 else self.apply(scalar_ops.conversion(t, T.S64), raw)
        bounds = self.constant(0, T.S64), self.constant(high, T.S64)
        return self.apply(scalar_ops.binary(Opcode.CLAMP, T.S64), bounds[0], wide, bounds[1])

    def runtime(self, name: str, low: int, high: int) -> Runtime:
        """Return a scalar defined in the innermost open frame as a symbol for index expressions."""
        self._runtime_frame.setdefault(name, len(self.frames) - 1)
        return Runtime(name, low, high)


def _calculated(opcode: Opcode, values: Sequence[IndexExpr]) -> IndexExpr | None:
    """Return the result of an op on index expressions, or None if it is none."""
    first, second = values[0], values[-1]
    if opcode is Opcode.CONVERT:
        return first
    if opcode is Opcode.ADD:
        return first + second
    if opcode is Opcode.SUBTRACT:
        return first - second
    if opcode is Opcode.MULTIPLY and (first.is_const or second.is_const):
        return second * first.const if first.is_const else first * second.const
    if opcode in (Opcode.SHIFT_RIGHT_ARITHMETIC, Opcode.SHIFT_RIGHT_LOGICAL) and second.is_const:
        return first.floordiv(1 << second.const) if 0 <= second.const < 64 and first.range[0] >= 0 else None
    if opcode in (Opcode.DIVIDE, Opcode.REMAINDER) and second.is_const and second.const > 0 and first.range[0] >= 0:
        return first.floordiv(second.const) if opcode is Opcode.DIVIDE else first.mod(second.const)
    return None
