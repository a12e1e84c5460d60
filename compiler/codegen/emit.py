"""Values at indices: the scalar code that computes one element of an instruction, placed as far out as it can go.

An `Emitter` holds the open loops. `value(i, index)` emits whatever `i[index]` needs, each (instruction, index) pair
once, in the outermost open loop whose variables it depends on. Data movement is index arithmetic; a reduction becomes a
loop at the level where its result is constant (`reductions`), a choice between regions a branch (`choices`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen import scalar
from compiler.codegen.index import Index, Int, Runtime, Var
from compiler.codegen.indexing_maps import MOVES
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.reductions import reduce_values, without_unit_dimensions
from compiler.codegen.select_regions import CHOICES, chosen_value, sliced_index
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


class RowCache:
    """Values of one row kept in local arrays, because a later loop over the same row needs them again.

    Attributes:
        wanted: instructions worth keeping; without dimensions of size 1 they have the shape of the rows.
        row_index: index of the row. columns: sizes of the dimensions within a row. Neither has dimensions of size 1.
        frame: number of the frame that holds the arrays.
    """

    def __init__(self, wanted: set[HloInstruction], row_index: Index, columns: tuple[int, ...], frame: int) -> None:
        self.wanted, self.row_index, self.columns, self.frame = wanted, row_index, columns, frame
        self.arrays: dict[HloInstruction, str] = {}
        self.filled: set[HloInstruction] = set()


class Emitter:
    """Emits statements for the instructions of one fused computation."""

    def __init__(self, fused: HloComputation, limit: int = STATEMENT_LIMIT) -> None:
        self.fused = fused
        self.limit = limit
        # bound: parameters of called computations -> the operands they stand for. sources: instructions whose elements
        # come from elsewhere (a loop's carried state). floor: no code goes further out than this frame.
        self.frames: list[Frame] = [Frame(None)]
        self.inputs: dict[HloInstruction, str] = {}
        self.cache: RowCache | None = None
        self.groups: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
        self.bound: dict[HloInstruction, HloInstruction] = {}
        self.sources: dict[HloInstruction, Callable[[Index], str]] = {}
        self.floor = 0
        # Of `choices`: choices above each instruction, the order they were met in, those computed for two sides.
        self.above: dict[HloInstruction, frozenset[HloInstruction]] = {}
        self.numbers: dict[HloInstruction, int] = {}
        self.shared: set[HloInstruction] = set()
        self.visits = 0
        self._runtime_frame: dict[str, int] = {}
        self._count = 0

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
    def _at(self, depth: int) -> Iterator[None]:
        """Emit in an outer frame; the inner ones are put back afterwards."""
        inner = self.frames[depth + 1 :]
        del self.frames[depth + 1 :]
        yield
        self.frames.extend(inner)

    def _depth_of(self, index: Index) -> int:
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

    # ---- values

    def value(self, i: HloInstruction, index: Index) -> str:
        """Name of the scalar `i[index]`."""
        return self.values(i, index)[0]

    def values(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Like `value`; a variadic reduce yields several."""
        known = self.known(i, index)
        if known is not None:
            return known
        with self._at(self._depth_of(index)):
            names = self._cached(i, index)
            self.frames[-1].memo[i, index] = names
        return names

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

    def _cached(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Through the row cache where it applies."""
        cache = self.cache
        if cache is None or i not in cache.wanted or self.frames[-1].is_guard:
            return self._emit(i, index)
        offset = self._column_offset(cache, without_unit_dimensions(index, i.shape.dimensions))
        if offset is None:
            return self._emit(i, index)
        t = i.shape.element_type
        if i in cache.filled:
            return (self.let(t, lir.LocalLoad(cache.arrays[i], offset)),)
        names = self._emit(i, index)
        array = cache.arrays.get(i)
        if array is None:
            array = cache.arrays[i] = self.fresh("row")
            size = math.prod(cache.columns)
            self.frames[cache.frame].stmts.append(lir.LocalArray(array, t, size))
        self.add(lir.LocalStore(array, offset, names[0]))
        return names

    def _column_offset(self, cache: RowCache, index: Index) -> Int | None:
        """Offset within the row when `index` walks the whole row in order, one loop a dimension."""
        rows = len(cache.row_index)
        if index[:rows] != cache.row_index:
            return None
        vars_ = []
        for part, extent in zip(index[rows:], cache.columns, strict=True):
            atom = part.terms[0][0] if len(part.terms) == 1 and part.const == 0 and part.terms[0][1] == 1 else None
            if not isinstance(atom, Var) or atom.extent != extent:
                return None
            vars_.append(atom)
        open_vars = [f.var for f in self.frames[cache.frame + 1 :] if f.var is not None]
        return ix.linearize(index[rows:], cache.columns) if vars_ == open_vars else None

    def rows_complete(self) -> None:
        """Called when a loop over the row has ended: what it stored may be read from now on."""
        if self.cache is not None:
            self.cache.filled.update(self.cache.arrays)

    def _emit(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        op, operands = i.opcode, i.operands
        t = i.shape.element_type
        if i in self.sources:
            return (self.sources[i](index),)
        if op is Opcode.GET_TUPLE_ELEMENT:
            element = self.element(i)
            if element is not None:
                return (self.value(element, index),)
            return (self.values(self._whole(i), index)[i.attributes["index"]],)
        if op is Opcode.REDUCE:
            return reduce_values(self, i, index)
        if op in (Opcode.FUSION, Opcode.CALL):
            return (self.value(self.enter(i), index),)
        if op is Opcode.OPTIMIZATION_BARRIER and i.shape.is_array:  # of a loop kernel: all is computed once a step
            return (self.value(operands[0], index),)
        if not scalar.is_supported_type(t):
            raise UnsupportedError(f"%{i.name}: element type {t.text} has no kernel")
        if op is Opcode.PARAMETER and i in self.bound:
            return (self.value(self.bound[i], index),)
        if op is Opcode.PARAMETER:
            return (self.let(t, lir.Load(self.input_name(i), ix.linearize(index, i.shape.dimensions))),)
        if op is Opcode.CONSTANT:
            return (self._constant(i, index),)
        if op is Opcode.IOTA:
            counted = self.let(t, lir.IndexValue(index[i.attributes["iota_dimension"]]))
            return (self.apply(t, f"ROUND_{t.name}({{0}})", counted) if t in (T.F16, T.BF16) else counted,)
        if op is Opcode.MAP:
            args = [self.value(o, index) for o in operands]
            return self.inline(i.attributes["to_apply"], args)
        moved = MOVES.get(op)
        if moved is not None:
            return (self.value(operands[0], moved(i, index)),)
        if op in CHOICES:
            return (chosen_value(self, i, index),)
        if op is Opcode.DYNAMIC_SLICE:
            return (self.value(operands[0], sliced_index(self, i, index)),)
        if op is Opcode.GATHER:
            return (self._gather(i, index),)
        template = scalar.template_of(i)
        if any(not o.shape.is_scalar and o.shape.dimensions != i.shape.dimensions for o in operands):
            raise UnsupportedError(f"%{i.name}: {op.text} between shapes of other sizes has no kernel")
        names = [self.value(o, () if o.shape.is_scalar else index) for o in operands]
        return (self.apply(t, template, *names),)

    def _whole(self, element: HloInstruction) -> HloInstruction:
        """The tuple that a get-tuple-element takes from, called computations entered."""
        whole = element.operands[0]
        return self.enter(whole) if whole.opcode in (Opcode.FUSION, Opcode.CALL) else whole

    def element(self, element: HloInstruction) -> HloInstruction | None:
        """The instruction a get-tuple-element stands for; None when it is one result of several of one op."""
        whole = self._whole(element)
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

    def _constant(self, i: HloInstruction, index: Index) -> str:
        a = i.value.array
        if a is None or a.size == 0:
            raise UnsupportedError(f"%{i.name}: an empty constant stays outside the kernel")
        if a.size > 1 and all(x.is_const for x in index):
            element = a[tuple(x.const for x in index)]
        elif a.tobytes() == a.flat[:1].tobytes() * a.size:
            element = a.flat[0]
        else:
            raise UnsupportedError(f"%{i.name}: a constant array stays outside the kernel")
        t = i.shape.element_type
        with self._at(0):
            return self.let(t, lir.Constant(scalar.constant_text(element, t)))

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
        with self._at(self._depth_of(index)):
            name = self.once((raw, high), lambda: self.apply(T.S64, text, raw))
            return ix.of(self.runtime(name, 0, high))

    def runtime(self, name: str, low: int, high: int) -> Runtime:
        """A let of an open loop, for use in indices."""
        self._runtime_frame.setdefault(name, len(self.frames) - 1)
        return Runtime(name, low, high)

    def _gather(self, i: HloInstruction, index: Index) -> str:
        x, indices = i.operands
        offset_dims = i.attributes["offset_dims"]
        collapsed = i.attributes.get("collapsed_slice_dims", ())
        batching = i.attributes.get("operand_batching_dims", ())
        index_batching = i.attributes.get("start_indices_batching_dims", ())
        start_map, sizes = i.attributes["start_index_map"], i.attributes["slice_sizes"]
        vector_dim = i.attributes["index_vector_dim"]
        batch = [at for k, at in enumerate(index) if k not in offset_dims]
        window = iter([index[k] for k in offset_dims])
        absent = {*collapsed, *batching}
        source = [ix.const(0) if d in absent else next(window) for d in range(x.shape.rank)]

        def start_at(k: int) -> Index:
            if vector_dim == indices.shape.rank:
                return tuple(batch)
            return (*batch[:vector_dim], ix.const(k), *batch[vector_dim:])

        for k, d in enumerate(start_map):
            source[d] = source[d] + self.start(indices, start_at(k), x.shape.dimensions[d] - sizes[d])
        batch_dims = [k for k in range(indices.shape.rank) if k != vector_dim]
        for d, b in zip(batching, index_batching, strict=True):
            source[d] = source[d] + batch[batch_dims.index(b)]
        return self.value(x, tuple(source))
