"""Reductions with an accumulator for each lane of one or more vectors, which are combined in halves after the loops."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import conversion
from compiler.codegen.nest.traversal import map_indices
from compiler.codegen.schedules import accumulators
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MAX_ACCUMULATORS, OTHERS = 16, 4
"""Maximum number of registers of all accumulators of a loop, and least number that are left for other values."""

_EXTREMES = frozenset({Opcode.MAXIMUM, Opcode.MINIMUM})
_IN_REGISTERS = {t: _EXTREMES | {Opcode.ADD} for t in (T.F32, T.F64)} | {T.F16: _EXTREMES, T.BF16: _EXTREMES}
"""Combiners by the type of floats, for which the printer of C has functions that combine lanes. Sums of 16 bits are
rounded."""


def long_reduction(s: lir.Reduce, lanes: int, vector: int) -> list[lir.Stmt]:
    """Return loops in which lane k accumulates the elements k, k + lanes, k + 2 lanes...

    Args:
        s: a reduction whose innermost loop has at least `lanes` iterations.
        lanes: a power of two.
        vector: number of lanes of one vector.
    """
    v = s.vars[-1]
    lane, block = Var(f"{v.name}l", lanes), Var(f"{v.name}b", v.extent // lanes)
    arrays, out = _started_lanes(s, lane)
    whole = For(block, LoopKind.SERIAL, (_lane_step(s, arrays, lane, ix.of(block) * lanes + ix.of(lane)),))
    inner: Body = (whole,)
    rest, last = v.extent % lanes, list[lir.Stmt]()
    if rest and len(s.vars) > 1 and not accumulators.is_repeatable(s.body):
        # In lanes of the same arrays, a part of a vector would pass through memory in each iteration of the outer loop.
        step, started, last = _apart(s, arrays, rest)
        out += started
        inner = (whole, step)
    elif rest:
        inner = (whole, _rest_step(s, arrays, rest, vector))
    for outer in reversed(s.vars[:-1]):
        inner = (For(outer, LoopKind.SERIAL, inner),)
    return [*out, *inner, *last, *_combined_lanes(s, arrays, lanes, vector)]


def _apart(s: lir.Reduce, arrays: dict[str, str], rest: int) -> tuple[For, list[lir.Stmt], list[lir.Stmt]]:
    """Reduce the last elements of each row in accumulators of their own.

    Returns:
        The loop over these elements, the statements that start their accumulators, and those that combine these with
        the first lanes of `arrays`.
    """
    own = replace(s, reductions=tuple(replace(r, name=f"{r.name}_rest") for r in s.reductions))
    lane, end = Var(f"{s.vars[-1].name}t", rest), Var(f"{s.vars[-1].name}r", rest)
    rests, started = _started_lanes(own, lane)
    step = _lane_step(own, rests, lane, ix.of(lane) + (s.vars[-1].extent - rest))
    at, added = IndexExpr(((end, 1),)), list[lir.Stmt]()  # `ix.of` would replace a variable of extent 1 by 0
    for r, x in zip(s.reductions, own.reductions, strict=True):
        added.append(lir.Let(f"{x.name}_value", r.type, lir.LocalLoad(rests[x.name], at)))
        added += accumulators.combine_in_array(replace(r, value=f"{x.name}_value"), arrays[r.name], at)
    return step, started, [For(end, LoopKind.VECTOR, tuple(added))]


def _rest_step(s: lir.Reduce, arrays: dict[str, str], rest: int, vector: int) -> For:
    """Return the loop over the lanes of the last `rest` elements, in whole vectors if that repeats nothing visible.

    The first lanes of whole vectors read elements again that others have combined, and combine the identity.
    """
    extent = s.vars[-1].extent
    size = -(-rest // vector) * vector if accumulators.is_repeatable(s.body) else rest
    lane = Var(f"{s.vars[-1].name}t", size)
    masked = accumulators.masked(s, lane, size - rest) if size > rest else s
    return _lane_step(masked, arrays, lane, ix.of(lane) + (extent - size))


def short_reduction(s: lir.Reduce, vector: int) -> list[lir.Stmt]:
    """Return loops in which each element of a short innermost loop has a lane, so that none are combined in it.

    The lanes are in arrays whose sizes are powers of two: 10 elements are in one of 8 and one of 2.

    Args:
        s: a reduction whose innermost loop is shorter than a vector, and is repeated by loops around it.
        vector: number of lanes of one vector.
    """
    v, out, last = s.vars[-1], list[lir.Stmt](), list[lir.Stmt]()
    inner: Body = ()
    sums = {r.name: "" for r in s.reductions}
    at = 0
    for width in (1 << k for k in reversed(range(v.extent.bit_length())) if v.extent >> k & 1):
        part = replace(s, reductions=tuple(replace(r, name=f"{r.name}_at{at}") for r in s.reductions))
        part = s if width == v.extent else part
        lane = Var(f"{v.name}l{at}", width)
        arrays, started = _started_lanes(part, lane)
        out += started
        inner = (*inner, _lane_step(part, arrays, lane, ix.of(lane) + at))
        last += _combined_lanes(part, arrays, width, vector)
        for r, own in zip(s.reductions, part.reductions, strict=True):
            name = r.name if at + width == v.extent else f"{own.name}_joined"
            if sums[r.name]:
                last.append(accumulators.combination(replace(r, value=own.name), sums[r.name], name))
            sums[r.name] = name if sums[r.name] else own.name
        at += width
    for outer in reversed(s.vars[:-1]):
        inner = (For(outer, LoopKind.SERIAL, inner),)
    return [*out, *inner, *last]


def _started_lanes(s: lir.Reduce, lane: Var) -> tuple[dict[str, str], list[lir.Stmt]]:
    """Return the arrays of accumulators by reduction, and the statements that declare and start them."""
    arrays = {r.name: f"{r.name}_lanes" for r in s.reductions}
    out: list[lir.Stmt] = [lir.LocalArray(arrays[r.name], r.type, lane.extent) for r in s.reductions]
    first: list[lir.Stmt] = []
    for r in s.reductions:
        first += accumulators.start_in_array(r, arrays[r.name], ix.of(lane), f"{r.name}_first")
    return arrays, [*out, For(lane, LoopKind.VECTOR, tuple(first))]


def _combined_lanes(s: lir.Reduce, arrays: dict[str, str], lanes: int, vector: int) -> list[lir.Stmt]:
    """Return the statements that combine the lanes of the accumulators in halves, and define the results."""
    out: list[lir.Stmt] = []
    if lanes <= vector:
        out += _moved_lanes(s, arrays, lanes, lanes)
    of_integers = all(r.type.is_integer or r.type is T.PRED for r in s.reductions)
    of_floats = all(r.combiner in _IN_REGISTERS.get(r.type, ()) for r in s.reductions)
    least = vector if of_integers else min(vector // 2, 8) if of_floats else 1
    while lanes > max(1, least):
        out += _moved_lanes(s, arrays, lanes, lanes // 2)
        lanes //= 2
    if of_integers:
        return [*out, *_reduced_lanes(s, arrays, lanes)]
    if of_floats and lanes > 1:
        results = ((r, lir.LaneResult(arrays[r.name], r.combiner, lanes)) for r in s.reductions)
        return [*out, *(lir.Let(r.name, r.type, result) for r, result in results)]
    return [*out, *(lir.Let(r.name, r.type, lir.LocalLoad(arrays[r.name], ix.const(0))) for r in s.reductions)]


def _reduced_lanes(s: lir.Reduce, arrays: dict[str, str], lanes: int) -> list[lir.Stmt]:
    """Return a loop over lanes of integers or bools, which the C compiler combines in registers in any order.

    In halves, the last lanes of bytes would pass through memory one by one. Bools are combined as bytes, because a loop
    with an accumulator of type bool is not vectorized.
    """
    lane = Var(f"{s.vars[-1].name}h", lanes)
    loads = tuple(lir.Let(f"{r.name}_lane", r.type, lir.LocalLoad(arrays[r.name], ix.of(lane))) for r in s.reductions)
    reductions = tuple(replace(r, value=x.name) for r, x in zip(s.reductions, loads, strict=True))
    of_lanes, last = bools_as_integers(replace(s, vars=(lane,), reductions=reductions, body=loads), T.U8)
    step = (*of_lanes.body, *accumulators.combine(of_lanes))
    loop = For(lane, LoopKind.VECTOR, step, accumulators.combined_of(of_lanes))
    return [*accumulators.start(of_lanes), loop, *accumulators.results(of_lanes), *last]


def bools_as_integers(s: lir.Reduce, wide: T) -> tuple[lir.Reduce, list[lir.Stmt]]:
    """Return a reduction that combines integers of a type instead of bools, and what makes bools of its results.

    The C compiler makes no vectors of a loop with an accumulator of type bool.
    """
    body, last, reductions = list(s.body), list[lir.Stmt](), list[lir.Reduction]()
    for r in s.reductions:
        if r.type is not T.PRED:
            reductions.append(r)
            continue
        name = f"{r.name}_{'byte' if wide is T.U8 else 'bits'}"
        bits = replace(r, name=name, type=wide, value=f"{name}_of_one")
        body.append(lir.Let(bits.value, wide, lir.Apply(conversion(T.PRED, wide), (r.value,))))
        last.append(lir.Let(r.name, T.PRED, lir.Apply(conversion(wide, T.PRED), (bits.name,))))
        reductions.append(bits)
    return replace(s, reductions=tuple(reductions), body=tuple(body)), last


def _moved_lanes(s: lir.Reduce, arrays: dict[str, str], lanes: int, fewer: int) -> list[lir.Stmt]:
    """Return statements that copy the lanes of `arrays`, or combine their halves, into other arrays; rename these.

    The C compiler keeps an array in registers only where all accesses have one size: in a loop, the accumulators.
    """
    lane = Var(f"{s.vars[-1].name}h{fewer}", fewer)
    here = IndexExpr(((lane, 1),))  # `ix.of` would replace a variable of extent 1 by 0
    out: list[lir.Stmt] = []
    body: list[lir.Stmt] = []
    for r in s.reductions:
        source, target, first = arrays[r.name], f"{r.name}_{fewer}", f"{r.name}_first"
        out.append(lir.LocalArray(target, r.type, fewer))
        body.append(lir.Let(first, r.type, lir.LocalLoad(source, here)))
        if fewer < lanes:
            second = f"{r.name}_second"
            body.append(lir.Let(second, r.type, lir.LocalLoad(source, here + fewer)))
            body.append(accumulators.combination(replace(r, value=second), first, f"{r.name}_both"))
        body.append(lir.LocalStore(target, here, f"{r.name}_both" if fewer < lanes else first))
        arrays[r.name] = target
    return [*out, For(lane, LoopKind.VECTOR, tuple(body))]


def _lane_step(s: lir.Reduce, arrays: dict[str, str], lane: Var, at: IndexExpr) -> For:
    """Return the loop over lanes that combines one element per lane."""
    step = [x for r in s.reductions for x in accumulators.combine_in_array(r, arrays[r.name], ix.of(lane))]
    body = map_indices(s.body, lambda i: i.substitute({s.vars[-1]: at}))
    return For(lane, LoopKind.VECTOR, (*body, *step))
