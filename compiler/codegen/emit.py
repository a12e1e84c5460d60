"""Values at indices: the scalar code that computes one element of an instruction, placed as far out as it can go.

An `Emitter` holds the open loops. `value(i, index)` emits whatever `i[index]` needs, each (instruction, index) pair
once, in the outermost open loop whose variables it depends on. Data movement is index arithmetic; a reduction becomes a
loop at the level where its result is constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen import scalar
from compiler.codegen.index import Index, Int, Runtime, Var
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.moves import MOVES
from compiler.errors import UnsupportedError
from compiler.ir.attributes import PadDim
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T

UNROLL_LIMIT = 16
"""Reductions over at most this many elements are spelled out."""
STATEMENT_LIMIT = 6000
"""A kernel with more statements than this is refused."""


@dataclass
class Frame:
    """An open loop (or a guard, or the kernel's top level) and the statements gathered in it."""

    var: Var | None
    is_guard: bool = False
    kind: LoopKind | None = None
    stmts: list[lir.Stmt] = field(default_factory=list)
    memo: dict[tuple[HloInstruction, Index], tuple[str, ...]] = field(default_factory=dict)


class RowCache:
    """Values of one row kept in local arrays, because a later loop over the same row needs them again.

    Attributes:
        wanted: instructions worth keeping.
        row_index: index of the row. columns: sizes of the dimensions within a row.
        frame: number of the frame that holds the arrays.
    """

    def __init__(self, wanted: set[HloInstruction], row_index: Index, columns: tuple[int, ...], frame: int) -> None:
        self.wanted, self.row_index, self.columns, self.frame = wanted, row_index, columns, frame
        self.arrays: dict[HloInstruction, str] = {}
        self.filled: set[HloInstruction] = set()


class Emitter:
    """Emits statements for the instructions of one fused computation."""

    def __init__(self, fused: HloComputation) -> None:
        self.fused = fused
        # bound: parameters of called computations -> the operands they stand for. sources: instructions whose elements
        # come from elsewhere (a loop's carried state). floor: no code goes further out than this frame.
        self.frames: list[Frame] = [Frame(None)]
        self.inputs: dict[HloInstruction, str] = {}
        self.cache: RowCache | None = None
        self.groups: dict[HloInstruction, tuple[HloInstruction, ...]] = {}
        self.bound: dict[HloInstruction, HloInstruction] = {}
        self.sources: dict[HloInstruction, Callable[[Index], str]] = {}
        self.floor = 0
        self._runtime_frame: dict[str, int] = {}
        self._count = 0

    # ---- names, frames, statements

    def fresh(self, prefix: str) -> str:
        self._count += 1
        if self._count > STATEMENT_LIMIT:
            raise UnsupportedError(f"the kernel would have more than {STATEMENT_LIMIT} statements")
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
        key = (i, index)
        for frame in self.frames:
            found = frame.memo.get(key)
            if found is not None:
                return found
        depth = self._depth_of(index)
        with self._at(depth):
            names = self._cached(i, index)
            self.frames[-1].memo[key] = names
        return names

    def _cached(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Through the row cache where it applies."""
        cache = self.cache
        if cache is None or i not in cache.wanted or self.frames[-1].is_guard:
            return self._emit(i, index)
        offset = self._column_offset(cache, index)
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
            if extent == 1:
                continue
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
            return (self._element(operands[0], i.attributes["index"], index),)
        if op is Opcode.REDUCE:
            return self._reduce(i, index)
        if op in (Opcode.FUSION, Opcode.CALL):
            return (self.value(self._enter(i), index),)
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
        special = {
            Opcode.CONCATENATE: self._concatenate, Opcode.PAD: self._pad, Opcode.DYNAMIC_SLICE: self._dynamic_slice,
            Opcode.DYNAMIC_UPDATE_SLICE: self._dynamic_update_slice, Opcode.GATHER: self._gather,
        }.get(op)  # fmt: skip
        if special is not None:
            return (special(i, index),)
        template = scalar.template_of(i)
        names = [self.value(o, () if o.shape.is_scalar else index) for o in operands]
        return (self.apply(t, template, *names),)

    def _element(self, whole: HloInstruction, k: int, index: Index) -> str:
        """Element `k` of a tuple-valued instruction."""
        if whole.opcode in (Opcode.FUSION, Opcode.CALL):
            whole = self._enter(whole)
        if whole.opcode is Opcode.TUPLE:
            return self.value(whole.operands[k], index)
        return self.values(whole, index)[k]

    def _enter(self, call: HloInstruction) -> HloInstruction:
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
        elif a.size == 1 or bool((a == a.flat[0]).all()):
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

    # ---- choices between regions

    def index_name(self, value: Int) -> str:
        return self.let(T.S64, lir.IndexValue(value))

    def _choose(
        self, t: T, condition: str, then: tuple[HloInstruction, Index], otherwise: str | tuple[HloInstruction, Index]
    ) -> str:
        """A scalar that is one element where `condition` holds and another where not, loading only the one."""
        zero = self.let(t, lir.Constant(scalar.constant_text(0, t)))
        result = self.fresh("c")
        self.add(lir.Accumulator(result, t, zero))
        bodies = []
        for source in (then, otherwise):
            with self.guard() as frame:
                name = source if isinstance(source, str) else self.value(*source)
                self.add(lir.Assign(result, name))
            bodies.append(tuple(frame.stmts))
        self.add(lir.If(condition, bodies[0], bodies[1]))
        return self.let(t, lir.Current(result))

    def _concatenate(self, i: HloInstruction, index: Index) -> str:
        dim = i.dimensions[0]
        at = index[dim]
        pieces = []
        start = 0
        low, high = at.range
        for o in i.operands:
            size = o.shape.dimensions[dim]
            if size and start <= high and start + size > low:
                pieces.append((o, start, start + size))
            start += size
        return self._pieces(i, index, dim, pieces)

    def _pieces(self, i: HloInstruction, index: Index, dim: int, pieces: list[tuple[HloInstruction, int, int]]) -> str:
        def moved(piece: tuple[HloInstruction, int, int]) -> tuple[HloInstruction, Index]:
            return piece[0], (*index[:dim], index[dim] - piece[1], *index[dim + 1 :])

        if len(pieces) == 1:
            return self.value(*moved(pieces[0]))
        t = i.shape.element_type
        half = len(pieces) // 2
        condition = self.apply(T.PRED, f"({{0}} < {pieces[half][1]})", self.index_name(index[dim]))
        if len(pieces) == 2:
            return self._choose(t, condition, moved(pieces[0]), moved(pieces[1]))
        zero = self.let(t, lir.Constant(scalar.constant_text(0, t)))
        result = self.fresh("c")
        self.add(lir.Accumulator(result, t, zero))
        bodies = []
        for part in (pieces[:half], pieces[half:]):
            with self.guard() as frame:
                self.add(lir.Assign(result, self._pieces(i, index, dim, part)))
            bodies.append(tuple(frame.stmts))
        self.add(lir.If(condition, bodies[0], bodies[1]))
        return self.let(t, lir.Current(result))

    def all_of(self, conditions: Sequence[str]) -> str:
        """A pred scalar that holds where every one of these does."""
        if not conditions:
            return self.let(T.PRED, lir.Constant("1"))
        return self.apply(T.PRED, "(" + " & ".join(f"{{{k}}}" for k in range(len(conditions))) + ")", *conditions)

    def _pad(self, i: HloInstruction, index: Index) -> str:
        config: tuple[PadDim, ...] = i.attributes["padding"]
        x, fill = i.operands
        conditions, source = [], []
        for at, p, n in zip(index, config, x.shape.dimensions, strict=True):
            step = p.interior + 1
            inside = at - p.low
            low, high = inside.range
            if low < 0:
                conditions.append(self.apply(T.PRED, "({0} >= 0)", self.index_name(inside)))
            if high >= (n - 1) * step + 1:
                conditions.append(self.apply(T.PRED, f"({{0}} < {(n - 1) * step + 1})", self.index_name(inside)))
            if step > 1:
                name = self.index_name(inside)
                conditions.append(self.apply(T.PRED, f"({{0}} % {step} == 0)", name))
                inside = inside.floordiv(step)
            source.append(inside)
        if 0 in x.shape.dimensions:
            return self.value(fill, ())
        if not conditions:
            return self.value(x, tuple(source))
        return self._choose(i.shape.element_type, self.all_of(conditions), (x, tuple(source)), (fill, ()))

    def _start(self, operand: HloInstruction, index: Index, high: int) -> Int:
        """A run-time start index, clamped to 0..high."""
        if high <= 0:
            return ix.const(0)
        raw = self.value(operand, index)
        if operand.shape.element_type.is_signed:
            text = f"({{0}} < 0 ? 0 : {{0}} > {high} ? {high} : {{0}})"
        else:
            text = f"({{0}} > {high}u ? {high} : {{0}})"
        with self._at(self._depth_of(index)):
            name = self.apply(T.S64, text, raw)
            return ix.of(self.runtime(name, 0, high))

    def runtime(self, name: str, low: int, high: int) -> Runtime:
        """A let of the innermost open loop, for use in indices."""
        self._runtime_frame[name] = len(self.frames) - 1
        return Runtime(name, low, high)

    def _starts(self, i: HloInstruction, first: int, sizes: Sequence[int]) -> list[Int]:
        dims = i.operands[0].shape.dimensions
        starts = i.operands[first:]
        if len(starts) == 1 and starts[0].shape.rank == 1:
            return [
                self._start(starts[0], (ix.const(k),), d - n) for k, (d, n) in enumerate(zip(dims, sizes, strict=True))
            ]
        return [self._start(s, (), d - n) for s, d, n in zip(starts, dims, sizes, strict=True)]

    def _dynamic_slice(self, i: HloInstruction, index: Index) -> str:
        starts = self._starts(i, 1, i.attributes["dynamic_slice_sizes"])
        return self.value(i.operands[0], tuple(a + s for a, s in zip(index, starts, strict=True)))

    def update_starts(self, i: HloInstruction) -> list[Int]:
        """Clamped start indices of a dynamic-update-slice."""
        return self._starts(i, 2, i.operands[1].shape.dimensions)

    def _dynamic_update_slice(self, i: HloInstruction, index: Index) -> str:
        base, update = i.operands[:2]
        if 0 in update.shape.dimensions:
            return self.value(base, index)
        starts = self.update_starts(i)
        conditions, source = [], []
        for at, s, n, d in zip(index, starts, update.shape.dimensions, base.shape.dimensions, strict=True):
            inside = at - s
            source.append(inside if n > 1 else ix.const(0))
            if n == d:
                source[-1] = at
                continue
            name = self.index_name(inside)
            conditions.append(self.apply(T.PRED, f"(({{0}} >= 0) & ({{0}} < {n}))", name))
        if not conditions:
            return self.value(update, tuple(source))
        return self._choose(i.shape.element_type, self.all_of(conditions), (update, tuple(source)), (base, index))

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
            source[d] = source[d] + self._start(indices, start_at(k), x.shape.dimensions[d] - sizes[d])
        batch_dims = [k for k in range(indices.shape.rank) if k != vector_dim]
        for d, b in zip(batching, index_batching, strict=True):
            source[d] = source[d] + batch[batch_dims.index(b)]
        return self.value(x, tuple(source))

    # ---- reductions

    def _reduce(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        dims, full = i.dimensions, i.operands[0].shape.dimensions
        total = math.prod(full[d] for d in dims)
        if total <= UNROLL_LIMIT:
            return self._unrolled_reduce(i, index)
        self._refuse_recomputation(i)
        members = self.groups.get(i, (i,))
        if not all(self._is_simple(m) for m in members):
            members = (i,)
        vars_ = [Var(self.fresh("r"), full[d]) for d in dims]
        source = self._source_index(i, index, dict(zip(dims, map(ix.of, vars_), strict=True)))
        if self._is_simple(i):
            self._simple_reduce(members, index, vars_, source)
            return self.frames[-1].memo[(i, index)]
        return self._general_reduce(i, vars_, source)

    @staticmethod
    def _source_index(i: HloInstruction, index: Index, reduced: dict[int, Int]) -> Index:
        kept = iter(index)
        return tuple(reduced[d] if d in reduced else next(kept) for d in range(i.operands[0].shape.rank))

    def _refuse_recomputation(self, i: HloInstruction) -> None:
        runs = math.prod(f.var.extent for f in self.frames if f.var is not None)
        if runs > max(1, _first_shape(i).num_elements) * 2:
            raise UnsupportedError(
                f"%{i.name}: the reduction would be computed {runs} times for {_first_shape(i).num_elements} results"
            )
        if any(f.is_guard for f in self.frames):
            raise UnsupportedError(f"%{i.name}: a reduction under a condition has no kernel")

    @staticmethod
    def _is_simple(i: HloInstruction) -> bool:
        return len(i.operands) == 2 and combiner_of(i.attributes["to_apply"]) is not None

    def _unrolled_reduce(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        n = len(i.operands) // 2
        full = i.operands[0].shape.dimensions
        names = tuple(self.value(o, ()) for o in i.operands[n:])
        extents = [full[d] for d in i.dimensions]
        for k in range(math.prod(extents)):
            at = dict(zip(i.dimensions, ix.delinearize(ix.const(k), extents), strict=True))
            source = self._source_index(i, index, at)
            elements = [self.value(o, source) for o in i.operands[:n]]
            names = self.inline(i.attributes["to_apply"], [*names, *elements])
        return names

    def _simple_reduce(
        self, members: tuple[HloInstruction, ...], index: Index, vars_: list[Var], source: Index
    ) -> None:
        """Reductions over one domain in one loop nest, the innermost dimension in lanes."""
        reductions = []
        accumulators = []
        for m in members:
            t, op = m.shape.element_type, combiner_of(m.attributes["to_apply"])
            if op is None or not scalar.is_supported_type(t):
                raise UnsupportedError(f"%{m.name}: element type {t.text} has no kernel")
            identity = self.let(t, lir.Constant(scalar.identity_of(op, t)))
            name = self.fresh("a")
            self.add(lir.Accumulator(name, t, identity))
            accumulators.append(name)
            reductions.append(lir.Reduction(name, t, scalar.COMBINERS[op], scalar.identity_of(op, t)))
        last = max((k for k, v in enumerate(vars_) if v.extent != 1), default=0)
        kinds = [LoopKind.LANE if k == last else LoopKind.SERIAL for k in range(len(vars_))]
        with self.loops(vars_, kinds, reductions):
            for m, name in zip(members, accumulators, strict=True):
                element = self.value(m.operands[0], source)
                current = self.let(m.shape.element_type, lir.Current(name))
                (combined,) = self.inline(m.attributes["to_apply"], [current, element])
                self.add(lir.Assign(name, combined))
        self.rows_complete()
        for m, name in zip(members, accumulators, strict=True):
            result = self.let(m.shape.element_type, lir.Current(name))
            init = self.value(m.operands[1], ())
            (final,) = self.inline(m.attributes["to_apply"], [init, result])
            self.frames[-1].memo[(m, index)] = (final,)

    def _general_reduce(self, i: HloInstruction, vars_: list[Var], source: Index) -> tuple[str, ...]:
        """Any reducer, in order."""
        n = len(i.operands) // 2
        names = []
        for o in i.operands[n:]:
            name = self.fresh("a")
            self.add(lir.Accumulator(name, o.shape.element_type, self.value(o, ())))
            names.append(name)
        types = [o.shape.element_type for o in i.operands[n:]]
        with self.loops(vars_, [LoopKind.SERIAL] * len(vars_)):
            elements = [self.value(o, source) for o in i.operands[:n]]
            current = [self.let(t, lir.Current(a)) for a, t in zip(names, types, strict=True)]
            for name, value in zip(names, self.inline(i.attributes["to_apply"], [*current, *elements]), strict=True):
                self.add(lir.Assign(name, value))
        self.rows_complete()
        return tuple(self.let(t, lir.Current(a)) for a, t in zip(names, types, strict=True))


def combiner_of(computation: HloComputation) -> Opcode | None:
    """The one associative binary op a reducer consists of, or None."""
    root = computation.root
    if root.opcode not in scalar.COMBINERS or len(computation) != 3:
        return None
    a, b = root.operands
    both = a.opcode is Opcode.PARAMETER and b.opcode is Opcode.PARAMETER and a is not b
    return root.opcode if both and a.shape.compatible(root.shape) else None


def _first_shape(i: HloInstruction) -> Shape:
    return i.shape.tuple_shapes[0] if i.shape.is_tuple else i.shape
