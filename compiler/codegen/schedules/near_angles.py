"""Sines and cosines whose angles are small, as they are in simulators, in loops whose data stay in the cache.

A sine of any angle needs a call, around which all vector registers are saved. The sine of a small angle is a few
instructions, most of which it shares with the cosine of the same angle. A loop over a tile is therefore made twice, and
a test of all angles of the tile selects the version that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import NEAR_ANGLE, ScalarOp, binary, comparison, conversion
from compiler.codegen.nest.traversal import map_bodies, map_compound, map_indices, names_defined, names_used
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MAX_ANGLE_WORK = 12
"""Maximum number of statements that compute the angles of a loop; the test of the angles repeats them."""
MIN_POSITIONS = 32
"""Minimum number of positions of a loop."""


def select_near_angles(kernel: lir.Kernel, body: Body, schedule: Schedule) -> Body:
    """Return the unbound statements of a loop kernel with two versions of the loops that compute sines or cosines."""
    if kernel.kind != "loop-kernel" or not schedule.rare or not schedule.vector:
        return body
    return map_compound(body, _statement)


def _statement(s: lir.Stmt) -> Body:
    if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and not has_loop(s.body):
        return _loop(s)
    return (map_bodies(s, lambda body: map_compound(body, _statement)),)


def _loop(s: For) -> Body:
    """Return a test of the angles of a loop and the two versions of the loop; or the loop itself."""
    functions = [x.value for x in s.body if _is_angle_function(x)]
    angles = sorted({f.args[0] for f in functions if isinstance(f, lir.Apply)})
    work = _work_of(s, angles) if angles and s.base is None and s.var.extent >= MIN_POSITIONS else None
    if work is None:
        return (s,)
    tag = f"{s.var.name}_far"
    at = Var(tag, s.var.extent)
    limit, number, found, zero, some = (f"{tag}_{part}" for part in ("limit", "number", "found", "zero", "some"))
    test = [*map_indices(work, lambda i: i.substitute({s.var: ix.of(at)}))]
    far: list[str] = []
    for k, angle in enumerate(angles):
        size, is_far = f"{tag}_size{k}", f"{tag}_is{k}"
        test.append(lir.Let(size, T.F32, lir.Apply(ScalarOp(Opcode.ABS, T.F32, T.F32), (angle,))))
        test.append(lir.Let(is_far, T.PRED, lir.Apply(comparison("GT", T.F32), (size, limit))))
        if far:
            test.append(lir.Let(f"{is_far}_or", T.PRED, lir.Apply(binary(Opcode.OR, T.PRED), (far[-1], is_far))))
        far.append(f"{is_far}_or" if far else is_far)
    test.append(lir.Let(number, T.S32, lir.Apply(conversion(T.PRED, T.S32), (far[-1],))))
    return (
        lir.Let(limit, T.F32, lir.Constant(NEAR_ANGLE)),
        lir.Let(zero, T.S32, lir.Constant(0)),
        lir.Reduce((at,), (lir.Reduction(found, T.S32, Opcode.OR, number),), tuple(test)),
        lir.Let(some, T.PRED, lir.Apply(comparison("NE", T.S32), (found, zero))),
        lir.If(some, (s,), (replace(s, body=tuple(map(_near, s.body))),)),
    )


def _is_angle_function(s: lir.Stmt) -> TypeGuard[lir.Let]:
    if not isinstance(s, lir.Let) or not isinstance(s.value, lir.Apply):
        return False
    op = s.value.op
    return op.opcode in (Opcode.SINE, Opcode.COSINE) and op.type is T.F32 and not op.near


def _near(s: lir.Stmt) -> lir.Stmt:
    if not _is_angle_function(s) or not isinstance(s.value, lir.Apply):
        return s
    return replace(s, value=replace(s.value, op=replace(s.value.op, near=True)))


def _work_of(s: For, names: Sequence[str]) -> Body | None:
    """Return the statements that compute names in the body of a loop; None if those are many, or change anything."""
    places = {x.name: n for n, x in enumerate(s.body) if isinstance(x, lir.Let)}
    stored: dict[str, int] = {}
    for n, x in enumerate(s.body):
        if isinstance(x, lir.LocalStore):
            stored.setdefault(x.array, n)
    needed: set[int] = set()
    work = list(names)
    while work:
        name = work.pop()
        if name not in places or places[name] in needed:
            continue
        n = places[name]
        x = s.body[n]
        if not isinstance(x, lir.Let) or isinstance(x.value, lir.Current) or len(needed) == MAX_ANGLE_WORK:
            return None
        if isinstance(x.value, lir.LocalLoad) and stored.get(x.value.array, n) < n:
            return None
        needed.add(n)
        work += names_used((x,))
    inside = set(names_defined(s.body)) - set(places)
    if any(not inside.isdisjoint(names_used((s.body[n],))) for n in needed):
        return None
    return tuple(s.body[n] for n in sorted(needed))
