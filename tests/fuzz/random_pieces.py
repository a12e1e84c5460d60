"""The pieces of random modules; each adds one instruction or a few related ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir import HloComputation, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import PadDim, SliceDim, Window, WindowDim
from compiler.ir.shape import array_shape, tuple_shape
from tests.fuzz import sizes
from tests.fuzz.random_modules import LARGEST_HALF, MAX_ELEMENTS, Value, Writer

T = PrimitiveType
O = Opcode  # noqa: E741  # the tables below are made of it

EXACT_UNARY = (O.NEGATE, O.ABS)
ROUNDING = (O.FLOOR, O.CEIL, O.ROUND_NEAREST_EVEN, O.ROUND_NEAREST_AFZ, O.SIGN)
SMOOTH_UNARY = (O.TANH, O.LOGISTIC, O.SINE, O.COSINE, O.ERF)
INT_UNARY = (O.NEGATE, O.ABS, O.NOT, O.POPULATION_COUNT, O.COUNT_LEADING_ZEROS, O.SIGN)
INT_BINARY = (
    O.ADD, O.SUBTRACT, O.MULTIPLY, O.MAXIMUM, O.MINIMUM, O.AND, O.OR, O.XOR, O.DIVIDE, O.REMAINDER,
    O.SHIFT_LEFT, O.SHIFT_RIGHT_ARITHMETIC, O.SHIFT_RIGHT_LOGICAL,
)  # fmt: skip


def _float(v: Value) -> bool:
    return v.type.is_float


def _int(v: Value) -> bool:
    return v.type.is_integer


def _ranked(v: Value) -> bool:
    return v.shape.rank > 0


def unary(w: Writer) -> None:
    v = w.some(lambda o: True)
    assert v is not None
    if v.type is T.PRED:
        w.take(w.op(O.NOT, v.at), 1, True)
    elif v.type.is_integer:
        # XLA's constant folding computes wrong leading zeros of negative numbers (-32 for an s32).
        unfit = (O.COUNT_LEADING_ZEROS,) if v.type.is_signed else (O.NEGATE, O.ABS, O.SIGN)
        opcode = w.pick([o for o in INT_UNARY if o not in unfit])
        w.take(w.op(opcode, v.at), 2.0**40, True)
    elif w.chance(0.3):
        w.take(w.op(w.pick(EXACT_UNARY), v.at), v.bound, v.exact)
    elif v.exact and w.chance(0.4):
        w.take(w.op(w.pick(ROUNDING), v.at), v.bound + 1, True)
    else:
        w.take(w.op(w.pick(SMOOTH_UNARY), v.at), 1, False)


def guarded_unary(w: Writer) -> None:
    """Add a function with a restricted domain (log, sqrt, exp, ...) on an operand mapped into the domain."""
    v = w.some(lambda o: _float(o) and o.bound <= 64)
    if v is None:
        return
    size = w.op(O.ABS, v.at)
    choice = int(w.rng.integers(5))
    if choice == 0:
        w.take(w.op(O.LOG_PLUS_ONE, size), 8, False)
    elif choice == 1:
        w.take(w.op(w.pick([O.SQRT, O.CBRT]), size), max(v.bound, 1), False)
    elif choice == 2:
        w.take(w.op(O.RSQRT, w.op(O.ADD, size, w.full(1, v.shape))), 1, False)
    elif choice == 3:
        w.take(w.op(O.EXPONENTIAL, w.op(O.NEGATE, size)), 1, False)
    else:
        w.take(w.op(O.LOG, w.op(O.ADD, size, w.full(1, v.shape))), 8, False)


def binary(w: Writer) -> None:
    a = w.some(lambda o: True)
    assert a is not None
    b = w.like(a)
    both = a.exact and b.exact
    if a.type is T.PRED:
        w.take(w.op(w.pick([O.AND, O.OR, O.XOR]), a.at, b.at), 1, True)
    elif a.type.is_integer:
        opcode, right = w.pick(INT_BINARY), b.at
        if opcode in (O.DIVIDE, O.REMAINDER):
            # XLA's constant folding crashes on the least integer divided by -1.
            right = w.op(O.MAXIMUM, right, w.full(1, b.shape))
        w.take(w.op(opcode, a.at, right), 2.0**40, True)
    elif w.chance(0.25):
        w.take(w.op(w.pick([O.MAXIMUM, O.MINIMUM]), a.at, b.at), max(a.bound, b.bound), both)
    elif w.chance(0.5):
        w.take(w.op(w.pick([O.ADD, O.SUBTRACT]), a.at, b.at), a.bound + b.bound, False)
    elif w.chance(0.7):
        w.take(w.op(O.MULTIPLY, a.at, b.at), a.bound * b.bound, False)
    else:
        below = w.op(O.ADD, w.op(O.ABS, b.at), w.full(1, b.shape))
        w.take(w.op(O.DIVIDE, a.at, below), a.bound, False)


def compare(w: Writer) -> None:
    a = w.some(lambda o: o.exact)
    if a is None:
        return
    b = w.some(lambda o: o.exact and o.type is a.type and o.shape.dimensions == a.shape.dimensions)
    other = b.at if b else w.literal(Shape(a.type, a.shape.dimensions)).at
    w.take(w.op(O.COMPARE, a.at, other, direction=w.pick(["EQ", "NE", "LT", "LE", "GT", "GE"])), 1, True)


def select(w: Writer) -> None:
    a = w.some(lambda o: True)
    assert a is not None
    b = w.like(a)
    p = w.some(lambda o: o.type is T.PRED and (o.shape.is_scalar or o.shape.dimensions == a.shape.dimensions))
    predicate = p or w.literal(Shape(T.PRED, a.shape.dimensions))
    w.take(w.op(O.SELECT, predicate.at, a.at, b.at), max(a.bound, b.bound), a.exact and b.exact)


def clamp(w: Writer) -> None:
    v = w.some(lambda o: o.type is not T.PRED)
    if v is None:
        return
    low, high = w.scalar(0 if v.type.is_unsigned else -1, v.type), w.scalar(3, v.type)
    w.take(w.op(O.CLAMP, low, v.at, high), 3, v.exact)


def convert(w: Writer) -> None:
    v = w.some(lambda o: o.exact or _float(o))
    if v is None:
        return
    to = w.random_type()
    if to.is_float and (v.type is T.PRED or v.bound <= 128):
        fits = v.type.bits <= to.bits if v.type.is_float else True
        w.take(w.op(O.CONVERT, v.at, shape=Shape(to, v.shape.dimensions)), v.bound, v.exact and fits)
    elif to.is_integer and v.exact and (not v.type.is_float or v.bound <= 100):
        w.take(
            w.op(O.CONVERT, v.at, shape=Shape(to, v.shape.dimensions)), max(v.bound, 1) if to.bits > 8 else 256, True
        )
    elif to is T.PRED and v.exact:
        w.take(w.op(O.CONVERT, v.at, shape=Shape(to, v.shape.dimensions)), 1, True)


def iota(w: Writer) -> None:
    shape = w.random_shape()
    if shape.rank and shape.element_type is not T.PRED:
        w.take(w.op(O.IOTA, shape=shape, iota_dimension=int(w.rng.integers(shape.rank))), 8, True)


def constant(w: Writer) -> None:
    w.literal(w.random_shape())


# ---- movement


def broadcast(w: Writer) -> None:
    v = w.some(lambda o: o.shape.rank <= 3 and o.shape.num_elements <= MAX_ELEMENTS // 3)
    if v is None:
        return
    extra = int(w.rng.integers(1, 3))
    places = sorted(w.rng.permutation(v.shape.rank + extra)[: v.shape.rank].tolist())
    room = MAX_ELEMENTS // max(1, v.shape.num_elements)
    added = iter(sizes.dimensions(w.rng, extra, room))
    old = iter(v.shape.dimensions)
    dims = tuple(next(old) if d in places else next(added) for d in range(v.shape.rank + extra))
    w.take(w.op(O.BROADCAST, v.at, shape=Shape(v.type, dims), dimensions=tuple(places)), v.bound, v.exact)


def reshape(w: Writer) -> None:
    v = w.some(lambda o: True)
    assert v is not None
    left = v.shape.num_elements
    dims: list[int] = []
    if left == 0:
        return
    while left > 1 and len(dims) < 3:
        divisors = [d for d in range(1, left + 1) if left % d == 0]
        dims.append(w.pick(divisors))
        left //= dims[-1]
    dims += [left] * (left > 1 or w.chance(0.2))
    w.take(w.op(O.RESHAPE, v.at, shape=Shape(v.type, tuple(dims))), v.bound, v.exact)


def transpose(w: Writer) -> None:
    v = w.some(lambda o: o.shape.rank > 1)
    if v is not None:
        order = tuple(int(d) for d in w.rng.permutation(v.shape.rank))
        w.take(w.op(O.TRANSPOSE, v.at, dimensions=order), v.bound, v.exact)


def reverse(w: Writer) -> None:
    v = w.some(_ranked)
    if v is not None:
        dims = tuple(d for d in range(v.shape.rank) if w.chance(0.5))
        w.take(w.op(O.REVERSE, v.at, dimensions=dims), v.bound, v.exact)


def slice_(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements > 0)
    if v is None:
        return
    spec = []
    for n in v.shape.dimensions:
        start = int(w.rng.integers(n))
        spec.append(SliceDim(start, int(w.rng.integers(start + 1, n + 1)), int(w.rng.integers(1, 3))))
    w.take(w.op(O.SLICE, v.at, slice=tuple(spec)), v.bound, v.exact)


def pad(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements <= MAX_ELEMENTS)
    if v is None:
        return
    config = []
    for n in v.shape.dimensions:
        interior = int(w.rng.integers(0, 3)) if v.shape.num_elements < 256 and w.chance(0.5) else 0
        whole = n + max(0, n - 1) * interior
        low = int(w.rng.integers(-min(2, whole), 3))
        high = int(w.rng.integers(max(-2, 1 - whole - low), 3)) if whole + low > 0 else int(w.rng.integers(1, 3))
        config.append(PadDim(low, high, interior))
    w.take(w.op(O.PAD, v.at, w.scalar(1, v.type), padding=tuple(config)), max(v.bound, 1), v.exact)


def concatenate(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements <= MAX_ELEMENTS // 2)
    if v is None:
        return
    parts = [v, w.like(v)] + ([w.like(v)] if w.chance(0.3) else [])
    at = w.op(O.CONCATENATE, *[p.at for p in parts], dimensions=(int(w.rng.integers(v.shape.rank)),))
    w.take(at, max(p.bound for p in parts), all(p.exact for p in parts))


def dynamic_slice(w: Writer) -> None:
    v = w.some(_ranked)
    if v is None:
        return
    window = tuple(int(w.rng.integers(1, n + 1)) if n else 0 for n in v.shape.dimensions)
    starts = [w.index() for _ in window]
    w.take(w.op(O.DYNAMIC_SLICE, v.at, *starts, dynamic_slice_sizes=window), v.bound, v.exact)


def dynamic_update_slice(w: Writer) -> None:
    v = w.some(_ranked)
    if v is None:
        return
    update = w.literal(Shape(v.type, tuple(int(w.rng.integers(1, n + 1)) if n else 0 for n in v.shape.dimensions)))
    starts = [w.index() for _ in v.shape.dimensions]
    w.take(w.op(O.DYNAMIC_UPDATE_SLICE, v.at, update.at, *starts), max(v.bound, update.bound), v.exact)


def gather(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements > 0)
    if v is None:
        return
    axis, count = int(w.rng.integers(v.shape.rank)), sizes.size(w.rng, 100)
    indices = w.some(lambda o: o.type is T.S32 and o.shape.rank == 1) or w.literal(array_shape(T.S32, count))
    window = [1 if d == axis else int(w.rng.integers(1, n + 1)) for d, n in enumerate(v.shape.dimensions)]
    while math.prod(window) * indices.shape.num_elements > MAX_ELEMENTS and max(window) > 1:
        window[window.index(max(window))] = 1
    at = w.op(
        O.GATHER, v.at, indices.at,
        offset_dims=tuple(d for d in range(v.shape.rank) if d != axis), collapsed_slice_dims=(axis,),
        start_index_map=(axis,), index_vector_dim=1, slice_sizes=tuple(window), indices_are_sorted=False,
    )  # fmt: skip
    w.take(at, v.bound, v.exact)


def scatter(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements > 0 and o.type is not T.PRED)
    if v is None:
        return
    axis = int(w.rng.integers(v.shape.rank))
    kept = [n for d, n in enumerate(v.shape.dimensions) if d != axis]
    count = sizes.size(w.rng, MAX_ELEMENTS // max(1, math.prod(kept)))
    indices = w.literal(array_shape(T.S32, count))
    updates = w.literal(Shape(v.type, (*kept, count)))
    opcode = w.pick([O.ADD, O.MAXIMUM, O.MINIMUM])
    at = w.op(
        O.SCATTER, v.at, indices.at, updates.at, to_apply=w.scalar_function(opcode, v.type),
        update_window_dims=tuple(range(len(kept))), inserted_window_dims=(axis,), scatter_dims_to_operand_dims=(axis,),
        index_vector_dim=1,
    )  # fmt: skip
    w.take(at, v.bound + 6 * count, v.exact and (opcode is not O.ADD or not _float(v)))


def copy(w: Writer) -> None:
    v = w.some(lambda o: True)
    assert v is not None
    w.take(w.op(w.pick([O.COPY, O.OPTIMIZATION_BARRIER]), v.at), v.bound, v.exact)


def tuple_and_back(w: Writer) -> None:
    a, b = w.some(lambda o: True), w.some(lambda o: True)
    assert a is not None and b is not None
    pair = w.op(O.TUPLE, a.at, b.at)
    index = int(w.rng.integers(2))
    chosen = (a, b)[index]
    w.take(w.op(O.GET_TUPLE_ELEMENT, pair, index=index), chosen.bound, chosen.exact)


# ---- reductions, products, sorting


def _identity(opcode: Opcode, t: PrimitiveType) -> float:
    """Return the neutral element; XLA drops reductions of one element together with their initial value."""
    if opcode in (O.ADD, O.OR):
        return 0
    if opcode is O.AND:
        return 1
    if t.is_float:
        return -math.inf if opcode is O.MAXIMUM else math.inf
    info = np.iinfo(t.dtype)
    return int(info.min if opcode is O.MAXIMUM else info.max)


def reduce(w: Writer) -> None:
    v = w.some(_ranked)
    if v is not None:
        _reduce(w, v, tuple(d for d in range(v.shape.rank) if w.chance(0.5)) or (v.shape.rank - 1,))


def reduce_elsewhere(w: Writer) -> None:
    """Reduce the same elements twice, the second time with dimensions of size 1 at other positions."""
    v = w.some(lambda o: _ranked(o) and o.shape.num_elements > 0)
    if v is None:
        return
    long = [d for d, n in enumerate(v.shape.dimensions) if n != 1]
    over = [d for d in long if w.chance(0.6)] or long[-1:]
    dims = sizes.with_units(w.rng, v.shape.dimensions)
    other = Value(w.op(O.RESHAPE, v.at, shape=Shape(v.type, dims)), v.bound, v.exact)
    at = [d for d, n in enumerate(dims) if n != 1]
    for value, dimensions in ((v, tuple(over)), (other, tuple(at[long.index(d)] for d in over))):
        if dimensions:
            _reduce(w, value, dimensions)


def _reduce(w: Writer, v: Value, dims: tuple[int, ...]) -> None:
    count = math.prod(v.shape.dimensions[d] for d in dims)
    if v.type is T.PRED:
        opcode, bound, exact = w.pick([O.AND, O.OR]), 1.0, True
    elif count == 0 or (w.chance(0.5) and (v.type is not T.F16 or v.bound * count < LARGEST_HALF)):
        opcode, bound, exact = O.ADD, v.bound * count + 1, not _float(v)
    else:
        opcode, bound, exact = w.pick([O.MAXIMUM, O.MINIMUM]), v.bound, v.exact
    start = w.scalar(_identity(opcode, v.type), v.type)
    at = w.op(O.REDUCE, v.at, start, dimensions=dims, to_apply=w.scalar_function(opcode, v.type))
    w.take(at, bound, exact)


def reduce_window(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.type is not T.PRED and 0 < o.shape.num_elements <= MAX_ELEMENTS)
    if v is None:
        return
    dims = []
    for n in v.shape.dimensions:
        size = int(w.rng.integers(1, min(n, 3) + 1))
        low, high = int(w.rng.integers(0, size)), int(w.rng.integers(0, size))
        dims.append(WindowDim(size, int(w.rng.integers(1, 3)), low, high))
    opcode = w.pick([O.ADD, O.MAXIMUM])
    at = w.op(
        O.REDUCE_WINDOW, v.at, w.scalar(_identity(opcode, v.type), v.type), window=Window(tuple(dims)),
        to_apply=w.scalar_function(opcode, v.type),
    )  # fmt: skip
    cells = math.prod(d.size for d in dims)
    w.take(at, v.bound * (cells if opcode is O.ADD else 1) + 1, v.exact and (opcode is not O.ADD or _int(v)))


def dot(w: Writer) -> None:
    a = w.some(lambda o: o.type in (T.F32, T.F64, T.S32) and o.shape.rank in (1, 2, 3))
    if a is None:
        return
    rank = a.shape.rank
    batch = 1 if rank == 3 or (rank == 2 and w.chance(0.2)) else 0
    k = int(w.rng.integers(batch, rank))
    kept = (*a.shape.dimensions[:batch], a.shape.dimensions[k])
    columns = sizes.size(w.rng, min(60, MAX_ELEMENTS // max(1, math.prod(kept))))
    b = w.literal(Shape(a.type, (*kept, columns)))
    at = w.op(
        O.DOT, a.at, b.at, lhs_contracting_dims=(k,), rhs_contracting_dims=(batch,),
        lhs_batch_dims=tuple(range(batch)), rhs_batch_dims=tuple(range(batch)),
    )  # fmt: skip
    w.take(at, a.bound * b.bound * a.shape.dimensions[k] + 1, not _float(a))


def sort(w: Writer) -> None:
    v = w.some(lambda o: _ranked(o) and o.exact and o.type is not T.PRED)
    if v is None:
        return
    less = HloComputation("less")
    a, b = (less.add_parameter(i, array_shape(v.type)) for i in range(2))
    less.root = less.add(O.COMPARE, [a, b], direction=w.pick(["LT", "GT"]))
    axis = int(w.rng.integers(v.shape.rank))
    at = w.op(O.SORT, v.at, dimensions=(axis,), is_stable=True, to_apply=w.module.add(less))
    w.take(at, v.bound, True)


# ---- control flow


def while_(w: Writer) -> None:
    if w.depth >= 2:
        return
    carried = [v for v in (w.some(lambda o: True) for _ in range(int(w.rng.integers(1, 4)))) if v is not None]
    safe = [w.squash(v) if v.type.is_float and v.bound > 6 else v for v in carried]
    shapes = [array_shape(T.S32), *(Shape(v.type, v.shape.dimensions) for v in safe)]
    state = tuple_shape(*shapes)
    trips = int(w.rng.integers(0, 5))
    condition = HloComputation("condition")
    count = condition.add(O.GET_TUPLE_ELEMENT, [condition.add_parameter(0, state)], index=0)
    limit = condition.add_constant(np.int32(trips))
    condition.root = condition.add(O.COMPARE, [count, limit], direction="LT")

    body = Writer(w.rng, w.module, HloComputation("body"), w.depth + 1)
    argument = body.computation.add_parameter(0, state)
    parts = [body.op(O.GET_TUPLE_ELEMENT, argument, index=i) for i in range(len(shapes))]
    for part in parts:
        integral = not part.shape.element_type.is_float
        body.take(part, 2.0**40 if integral else 6, integral)
    for _ in range(int(w.rng.integers(1, 6))):
        body.step()
    following = body.op(O.ADD, parts[0], body.scalar(1, T.S32))
    results = [following, *(body.result_of(s, 6) for s in shapes[1:])]
    body.computation.root = body.op(O.TUPLE, *results)

    start = w.op(O.TUPLE, w.scalar(0, T.S32), *(v.at for v in safe))
    loop = w.op(O.WHILE, start, condition=w.module.add(condition), body=w.module.add(body.computation))
    for i, s in enumerate(shapes):
        exact = not s.element_type.is_float
        w.take(w.op(O.GET_TUPLE_ELEMENT, loop, index=i), 2.0**40 if exact else 6, exact)


def _branch(w: Writer, name: str, argument: Value, result: Shape) -> HloComputation:
    shape = Shape(argument.type, argument.shape.dimensions)
    body = w.nested(name, [shape], int(w.rng.integers(1, 4)), argument.bound, argument.exact)
    body.computation.root = body.result_of(result, 6)
    return w.module.add(body.computation)


def conditional(w: Writer) -> None:
    if w.depth >= 2:
        return
    argument, like = w.some(lambda o: True), w.some(lambda o: True)
    assert argument is not None and like is not None
    result = Shape(like.type, like.shape.dimensions)
    exact = not result.element_type.is_float
    bound = 2.0**40 if exact else 6.0
    if w.chance(0.5):
        chooser = w.some(lambda o: o.type is T.PRED and o.shape.is_scalar) or w.literal(array_shape(T.PRED))
        branches: dict[str, Any] = {
            "true_computation": _branch(w, "on_true", argument, result),
            "false_computation": _branch(w, "on_false", argument, result),
        }
        at = w.op(O.CONDITIONAL, chooser.at, argument.at, argument.at, **branches)
    else:
        several = tuple(_branch(w, "branch", argument, result) for _ in range(int(w.rng.integers(1, 4))))
        at = w.op(O.CONDITIONAL, w.index(), *[argument.at] * len(several), branch_computations=several)
    w.take(at, bound, exact)


def call(w: Writer) -> None:
    if w.depth >= 2:
        return
    argument, like = w.some(lambda o: True), w.some(lambda o: True)
    assert argument is not None and like is not None
    result = Shape(like.type, like.shape.dimensions)
    exact = not result.element_type.is_float
    at = w.op(O.CALL, argument.at, to_apply=_branch(w, "callee", argument, result))
    w.take(at, 2.0**40 if exact else 6, exact)


_WEIGHTED: dict[Callable[[Writer], None], int] = {
    unary: 14, guarded_unary: 6, binary: 24, compare: 6, select: 6, clamp: 3, convert: 6, iota: 3, constant: 3,
    broadcast: 7, reshape: 6, transpose: 5, reverse: 2, slice_: 5, pad: 3, concatenate: 4, dynamic_slice: 3,
    dynamic_update_slice: 3, gather: 3, scatter: 2, copy: 1, tuple_and_back: 2, reduce: 8, reduce_elsewhere: 2,
    reduce_window: 2, dot: 4,
    sort: 2, while_: 2, conditional: 2, call: 2,
}  # fmt: skip
PIECES = tuple(_WEIGHTED)
WEIGHTS = np.array(list(_WEIGHTED.values())) / sum(_WEIGHTED.values())
