"""Random fused computations: chains of data movement, and reductions with elementwise ops around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Literal, Opcode, PrimitiveType
from compiler.ir.attributes import PadDim, SliceDim
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape, array_shape
from tests.fuzz import sizes

T = PrimitiveType
FLOATS = (T.F32, T.F32, T.F32, T.F64, T.BF16, T.F16)
INTS = (T.S32, T.U8, T.S64, T.S8, T.U32)
MAX_REDUCED_ELEMENTS = 60_000
"""Maximum number of elements of an array that is reduced."""


def random_fusion(rng: np.random.Generator) -> HloComputation:
    """Return a random computation, for use as one fused computation."""
    writer = _Writer(rng)
    if rng.random() < 0.4:
        writer.movement(int(rng.integers(2, 9)))
    else:
        writer.reductions()
    return writer.finish()


def random_nests(rng: np.random.Generator) -> HloComputation:
    """Return a random computation with reductions of one or two arrays, of which any values are outputs."""
    writer = _Writer(rng)
    for _ in range(int(rng.integers(1, 3))):
        writer.reductions()
    values = [v for v in writer.values if v.opcode is not Opcode.PARAMETER]
    chosen = rng.choice(len(values), size=min(int(rng.integers(1, 5)), len(values)), replace=False)
    outputs = [values[n] for n in chosen.tolist()]
    body = writer.body
    body.root = body.add(Opcode.TUPLE, outputs) if len(outputs) > 1 else outputs[0]
    body.remove_dead(writer.values)
    return body


def reducer(op: Opcode, t: T) -> HloComputation:
    f = HloComputation(f"{op.text}_{t.text}")
    a, b = (f.add_parameter(k, Shape(t)) for k in range(2))
    f.root = f.add(op, [a, b])
    return f


def general_reducer(t: T) -> HloComputation:
    """Return a minimum as compare and select: not one associative op, although any order gives the same result."""
    f = HloComputation("smallest")
    a, b = (f.add_parameter(k, Shape(t)) for k in range(2))
    less = f.add(Opcode.COMPARE, [b, a], direction="LT")
    f.root = f.add(Opcode.SELECT, [less, b, a])
    return f


def as_module(fused: HloComputation) -> HloModule:
    """Return a module whose entry is the computation."""
    module = HloModule("case")
    module.add(fused, entry=True)
    for i in fused.instructions:
        for called in i.called_computations():
            if called not in module.computations:
                module.add(called)
    return module


class _Writer:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.body = HloComputation("fused")
        self.values: list[HloInstruction] = []
        self.count = 0

    def pick(self, items: Sequence[HloInstruction]) -> HloInstruction:
        return items[int(self.rng.integers(len(items)))]

    def size(self, limit: int = 300) -> int:
        return sizes.size(self.rng, limit)

    def parameter(self, shape: Shape) -> HloInstruction:
        p = self.body.add_parameter(self.count, shape)
        self.count += 1
        self.values.append(p)
        return p

    def scalar(self, value: float, t: T) -> HloInstruction:
        return self.body.add_constant(Literal.from_array(np.array(value, t.dtype), Shape(t)))

    def add(self, opcode: Opcode, operands: Sequence[HloInstruction], shape: Shape | None = None, **a: Any) -> None:
        self.values.append(self.body.add(opcode, operands, shape, **a))

    def finish(self) -> HloComputation:
        sinks = [v for v in self.values if not v.users and v.opcode is not Opcode.PARAMETER] or [self.values[-1]]
        last = sinks[-1]
        same = [s for s in sinks if s.shape.num_elements == last.shape.num_elements][-3:]
        if len(same) > 1 and self.rng.random() < 0.6:
            self.body.root = self.body.add(Opcode.TUPLE, same)
        else:
            self.body.root = last
        self.body.remove_dead(self.values)
        return self.body

    # ---- data movement

    def movement(self, steps: int) -> None:
        for _ in range(int(self.rng.integers(1, 3))):
            rank = int(self.rng.integers(0, 4))
            t = (FLOATS + INTS)[int(self.rng.integers(len(FLOATS + INTS)))]
            self.parameter(array_shape(t, *sizes.dimensions(self.rng, rank)))
        moves = (
            self._elementwise, self._binary, self._reshape, self._transpose, self._slice, self._reverse, self._pad,
            self._concatenate, self._broadcast, self._dynamic_slice, self._update, self._gather, self._small_reduce,
        )  # fmt: skip
        while steps:
            source = self.values[-1] if self.rng.random() < 0.7 else self.pick(self.values)
            if source.shape.num_elements > 20_000:
                source = self.values[0]
            moves[int(self.rng.integers(len(moves)))](source)
            steps -= 1

    def _elementwise(self, x: HloInstruction) -> None:
        t = x.shape.element_type
        if t is T.PRED:
            return self.add(Opcode.NOT, [x])
        return self.add(Opcode.TANH if t.is_float and self.rng.random() < 0.5 else Opcode.NEGATE, [x])

    def _binary(self, x: HloInstruction) -> None:
        same = [v for v in self.values if v.shape == x.shape]
        if x.shape.element_type is T.PRED:
            return self.add(Opcode.XOR, [x, self.pick(same)])
        op = (Opcode.ADD, Opcode.MAXIMUM, Opcode.MINIMUM)[int(self.rng.integers(3))]
        return self.add(op, [x, self.pick(same)])

    def _reshape(self, x: HloInstruction) -> None:
        n = x.shape.num_elements
        dims: list[int] = []
        while n > 1 and len(dims) < 3:
            factor = int(self.rng.choice([d for d in range(1, n + 1) if n % d == 0]))
            dims.append(factor)
            n //= factor
        if n != 1 or self.rng.random() < 0.3:
            dims.insert(int(self.rng.integers(len(dims) + 1)), n)
        self.add(Opcode.RESHAPE, [x], array_shape(x.shape.element_type, *dims))

    def _transpose(self, x: HloInstruction) -> None:
        self.add(Opcode.TRANSPOSE, [x], dimensions=tuple(map(int, self.rng.permutation(x.shape.rank))))

    def _slice(self, x: HloInstruction) -> None:
        spec = []
        for n in x.shape.dimensions:
            start = int(self.rng.integers(0, max(1, n)))
            spec.append(SliceDim(start, int(self.rng.integers(min(start + 1, n), n + 1)), int(self.rng.integers(1, 4))))
        self.add(Opcode.SLICE, [x], slice=tuple(spec))

    def _reverse(self, x: HloInstruction) -> None:
        dims = tuple(d for d in range(x.shape.rank) if self.rng.random() < 0.5)
        self.add(Opcode.REVERSE, [x], dimensions=dims)

    def _pad(self, x: HloInstruction) -> None:
        config = []
        for n in x.shape.dimensions:
            interior = int(self.rng.integers(0, 3)) if self.rng.random() < 0.4 else 0
            whole = n + max(0, n - 1) * interior
            low = int(self.rng.integers(-min(2, whole), 4))
            high = max(int(self.rng.integers(-2, 4)), -(whole + low))
            config.append(PadDim(low, high, interior))
        self.add(Opcode.PAD, [x, self.scalar(1, x.shape.element_type)], padding=tuple(config))

    def _concatenate(self, x: HloInstruction) -> None:
        if x.shape.rank == 0:
            return self._elementwise(x)
        dim = int(self.rng.integers(x.shape.rank))

        def fits(v: HloInstruction) -> bool:
            a, b = v.shape, x.shape
            sides = [k for k in range(a.rank) if k < b.rank and k != dim and a.dimensions[k] != b.dimensions[k]]
            return a.element_type is b.element_type and a.rank == b.rank and not sides

        parts = [self.pick([v for v in self.values if fits(v)]) for _ in range(int(self.rng.integers(1, 5)))]
        return self.add(Opcode.CONCATENATE, [x, *parts], dimensions=(dim,))

    def _broadcast(self, x: HloInstruction) -> None:
        dims = list(x.shape.dimensions)
        at = list(range(len(dims)))
        for _ in range(int(self.rng.integers(0, 3))):
            if len(dims) < 4:
                k = int(self.rng.integers(len(dims) + 1))
                dims.insert(k, self.size(max(1, 20_000 // max(1, x.shape.num_elements))))
                at = [a + (a >= k) for a in at]
        self.add(Opcode.BROADCAST, [x], array_shape(x.shape.element_type, *dims), dimensions=tuple(at))

    def _index(self) -> HloInstruction:
        if self.rng.random() < 0.5:
            return self.scalar(int(self.rng.integers(-3, 9)), T.S32)
        return self.parameter(Shape((T.S32, T.U8, T.S64)[int(self.rng.integers(3))]))

    def _starts(self, x: HloInstruction) -> list[HloInstruction]:
        found = [self._index() for _ in range(x.shape.rank)]
        return [found[0]] * len(found) if len({f.shape for f in found}) > 1 else found

    def _dynamic_slice(self, x: HloInstruction) -> None:
        if x.shape.rank == 0:
            return self._elementwise(x)
        sizes = tuple(int(self.rng.integers(min(1, n), n + 1)) for n in x.shape.dimensions)
        return self.add(Opcode.DYNAMIC_SLICE, [x, *self._starts(x)], dynamic_slice_sizes=sizes)

    def _update(self, x: HloInstruction) -> None:
        if x.shape.rank == 0:
            return self._elementwise(x)
        t = x.shape.element_type
        known = [
            v
            for v in self.values
            if v.shape.element_type is t
            and v.shape.rank == x.shape.rank
            and all(a <= b for a, b in zip(v.shape.dimensions, x.shape.dimensions, strict=True))
        ]
        sizes = [int(self.rng.integers(min(1, n), n + 1)) for n in x.shape.dimensions]
        update = self.pick(known) if known and self.rng.random() < 0.5 else self.parameter(array_shape(t, *sizes))
        return self.add(Opcode.DYNAMIC_UPDATE_SLICE, [x, update, *self._starts(x)])

    def _gather(self, x: HloInstruction) -> None:
        if x.shape.rank == 0 or 0 in x.shape.dimensions:
            return self._elementwise(x)
        n, d = self.size(), int(self.rng.integers(x.shape.rank))
        indices = self.parameter(array_shape(T.S32, n, 1))
        window = [int(self.rng.integers(1, s + 1)) for s in x.shape.dimensions]
        window[d] = 1
        dims = [n, *(w for k, w in enumerate(window) if k != d)]
        self.add(
            Opcode.GATHER, [x, indices], array_shape(x.shape.element_type, *dims),
            offset_dims=tuple(range(1, x.shape.rank)), collapsed_slice_dims=(d,), start_index_map=(d,),
            index_vector_dim=1, slice_sizes=tuple(window),
        )  # fmt: skip
        return None

    def _small_reduce(self, x: HloInstruction) -> None:
        dims = tuple(d for d, n in enumerate(x.shape.dimensions) if 0 < n <= 4 and self.rng.random() < 0.5)
        self.reduce(x, dims, Opcode.MAXIMUM)

    # ---- reductions

    def reduce(self, x: HloInstruction, dims: tuple[int, ...], op: Opcode | None) -> None:
        t = x.shape.element_type
        f = general_reducer(t) if op is None else reducer(op, t)
        start = {Opcode.ADD: 0.5, Opcode.MULTIPLY: 1.0, Opcode.MAXIMUM: -3.0}.get(op or Opcode.MINIMUM, 5.0)
        if not t.is_float:
            start = max(0, int(start))
        self.add(Opcode.REDUCE, [x, self.scalar(start, t)], dimensions=dims, to_apply=f)

    def reductions(self) -> None:
        """Add reductions of arrays of one domain, whose results are broadcast back to it and used there.

        Some of the arrays differ from the others in the positions of their dimensions of size 1.
        """
        rng = self.rng
        kinds = FLOATS if rng.random() < 0.8 else INTS
        t = kinds[int(rng.integers(len(kinds)))]
        rank = int(rng.integers(1, 5))
        dims = sizes.dimensions(rng, rank, MAX_REDUCED_ELEMENTS)
        full = array_shape(t, *dims)
        for _ in range(int(rng.integers(1, 3))):
            self.parameter(full)
        cut = int(rng.integers(0, rank))
        kind = rng.random()
        reduced = tuple(range(cut, rank)) if kind < 0.4 else tuple(d for d in range(rank) if rng.random() < 0.5)
        if kind > 0.65 and rank > 1:
            reduced = tuple(d for d in range(rank - 1) if d == cut % (rank - 1) or rng.random() < 0.4)
        kept = tuple(d for d in range(rank) if d not in reduced)
        inner = array_shape(t, *(dims[d] for d in kept))
        if rng.random() < 0.3 and kept:
            side = self.parameter(array_shape(t, dims[kept[-1]]))
            self.add(Opcode.BROADCAST, [side], full, dimensions=(kept[-1],))
        narrow = rng.random() < 0.5  # every output has one value per row or column
        for _ in range(int(rng.integers(1, 4))):
            self._work(full, int(rng.integers(0, 4)))
            op = (Opcode.ADD, Opcode.MAXIMUM, Opcode.MINIMUM, None)[int(rng.integers(4))]
            self.reduce(self.pick([v for v in self.values if v.shape == full]), reduced, op)
            self._work(inner, int(rng.integers(0, 3)))
            if rng.random() < 0.4:
                self._reduce_elsewhere(dims, reduced, t)
            if rng.random() < 0.7 and not narrow:
                source = self.pick([v for v in self.values if v.shape == inner])
                self.add(Opcode.BROADCAST, [source], full, dimensions=kept)
        if not narrow:
            self._work(full, int(rng.integers(0, 4)))

    def _reduce_elsewhere(self, dims: tuple[int, ...], reduced: tuple[int, ...], t: T) -> None:
        """Add a reduction over the same domain of an array with size-1 dimensions at other positions."""
        rng = self.rng
        shape = array_shape(t, *sizes.with_units(rng, dims, most=5))
        gone = iter([d in reduced for d, n in enumerate(dims) if n != 1])
        over = tuple(d for d, n in enumerate(shape.dimensions) if (next(gone) if n != 1 else rng.random() < 0.5))
        if rng.random() < 0.5:
            full = array_shape(t, *dims)
            x = self.body.add(Opcode.RESHAPE, [self.pick([v for v in self.values if v.shape == full])], shape)
        else:
            x = self.parameter(shape)
        self._work(shape, int(rng.integers(0, 2)))
        self.reduce(x, over, (Opcode.ADD, Opcode.MAXIMUM, None)[int(rng.integers(3))])
        if rng.random() < 0.5:
            made = self.values[-1]
            self.add(Opcode.RESHAPE, [made], array_shape(t, *sizes.with_units(rng, made.shape.dimensions, most=5)))

    def _work(self, shape: Shape, steps: int) -> None:
        for _ in range(steps):
            known = [v for v in self.values if v.shape == shape]
            if not known:
                return
            x = known[-1] if self.rng.random() < 0.6 else self.pick(known)
            if not shape.element_type.is_float:
                self.add((Opcode.ADD, Opcode.MAXIMUM, Opcode.XOR)[int(self.rng.integers(3))], [x, self.pick(known)])
            elif self.rng.random() < 0.5:
                self.add((Opcode.TANH, Opcode.NEGATE, Opcode.LOGISTIC)[int(self.rng.integers(3))], [x])
            else:
                squeezed = self.body.add(Opcode.TANH, [self.pick(known)])
                self.add((Opcode.ADD, Opcode.MULTIPLY)[int(self.rng.integers(2))], [x, squeezed])
