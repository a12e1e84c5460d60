"""Schedules: rewrites of a kernel's loops that change how it runs and not what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen.index import Atom, Int, Var
from compiler.codegen.loop_ir import For, LoopKind
from compiler.codegen.scalar import COMPUTE_BYTES
from compiler.errors import PlanError, UnsupportedError
from compiler.support.untrusted import as_integer, short_repr

LOCAL_BYTES = 256 * 1024
"""Most bytes that the local arrays of one kernel may take together.

They stand on a thread's stack. Stacks have 8 MiB under Linux and 512 KiB under macOS unless somebody asks for less, and
arrays that leave the second level of cache are of no use to a kernel anyway.
"""
RANGES: Mapping[str, range] = {
    # Tiles of a thousand by a thousand leave every cache.
    "tile": range(1025),
    # One accumulator of four bytes for each column, or one carried value for each lane, fills the local arrays.
    "columns": range(1, LOCAL_BYTES // 4 + 1),
    # Whole warps, of which CUDA takes 32 in a block.
    "block": range(32, 1025, 32),
    "lanes": range(1, LOCAL_BYTES // 4 + 1),
}
"""What the fields of a `Schedule` may be when they are chosen from outside. What a kernel can take may be less."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The free choices of a kernel; the defaults suit most.

    Attributes:
        tile: edge of the square tiles of a loop that reads along another dimension than it writes; 0: no tiles.
        columns: columns a column reduction takes at a time.
        block: CUDA threads a block.
        lanes: elements a loop kernel carries through its loop at a time.
    """

    tile: int = 32
    columns: int = 256
    block: int = 256
    lanes: int = 256

    def column_tile(self, width: int) -> int:
        """Columns at a time out of `width`."""
        return _divisor_near(self.columns, width)

    def lane_tile(self, width: int) -> int:
        """Elements at a time out of `width` in a loop kernel."""
        return _divisor_near(self.lanes, width)

    def to_json(self) -> dict[str, int]:
        """Only what differs from the defaults."""
        default = Schedule()
        return {k: getattr(self, k) for k in self.__dataclass_fields__ if getattr(self, k) != getattr(default, k)}

    @staticmethod
    def from_json(data: Mapping[str, object], default: Schedule | None = None) -> Schedule:
        """A device's default schedule with some fields changed; PlanError names a field or value that cannot be."""
        return replace(default or Schedule(), **checked_choice(data))


def checked_choice(data: Mapping[str, object]) -> dict[str, int]:
    """Choices for the fields of a `Schedule` as plain numbers; PlanError names a field or value that cannot be."""
    if not isinstance(data, Mapping):
        raise PlanError(f"the choices of a kernel must be names with numbers, not {short_repr(data)}")
    found: dict[str, int] = {}
    for name, value in data.items():
        if name not in RANGES:
            raise PlanError(f"a kernel has no choice {short_repr(name)}; choices: {', '.join(RANGES)}")
        number, allowed = as_integer(value), RANGES[name]
        if number is None or number not in allowed:
            of = f"multiple of {allowed.step}" if allowed.step > 1 else "whole number"
            raise PlanError(
                f"a kernel's {name} must be a {of} from {allowed[0]} to {allowed[-1]}, not {short_repr(value)}"
            )
        found[name] = number
    return found


def _divisor_near(wish: int, width: int) -> int:
    """A divisor of `width` near the wish, so that no tile is ragged; else the wish itself."""
    if width <= wish:
        return width
    for tile in range(wish, max(15, wish // 4), -1):
        if width % tile == 0:
            return tile
    return wish


def optimize(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Drop local arrays nobody reads, merge loops, tile transposes.

    UnsupportedError: the local arrays that are left take more than LOCAL_BYTES.
    """
    body = _without_dead_arrays(kernel.body)
    body = tuple(_collapse(s) for s in body)
    kind = kernel.kind
    if schedule.tile and kind == "loop":
        tiled = tuple(_tile(s, schedule.tile) for s in body)
        kind = "transpose" if tiled != body else kind
        body = tiled
    held = sum(s.size * COMPUTE_BYTES[s.type] for s in lir.walk(body) if isinstance(s, lir.LocalArray))
    if held > LOCAL_BYTES:
        raise UnsupportedError(f"the kernel would take {held} bytes of local arrays, more than {LOCAL_BYTES}")
    return replace(kernel, body=body, kind=kind)


# ---- dead local arrays


def _without_dead_arrays(body: tuple[lir.Stmt, ...]) -> tuple[lir.Stmt, ...]:
    read = {s.value.array for s in lir.walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad)}

    def keep(stmts: tuple[lir.Stmt, ...]) -> tuple[lir.Stmt, ...]:
        out: list[lir.Stmt] = []
        for s in stmts:
            if isinstance(s, lir.LocalArray) and s.name not in read:
                continue
            if isinstance(s, lir.LocalStore) and s.array not in read:
                continue
            if isinstance(s, For):
                s = replace(s, body=keep(s.body))
            out.append(s)
        return tuple(out)

    return keep(body)


# ---- merging perfectly nested loops


def _collapse(s: lir.Stmt) -> lir.Stmt:
    """Merge a loop with the one loop inside it wherever every index treats the two as one."""
    if not isinstance(s, For):
        return s
    body = tuple(_collapse(x) for x in s.body)
    s = replace(s, body=body)
    if len(body) != 1 or not isinstance(body[0], For):
        return s
    inner = body[0]
    mergeable = s.kind is LoopKind.PARALLEL and inner.kind in (LoopKind.PARALLEL, LoopKind.LANE)
    mergeable |= s.kind is LoopKind.SERIAL and inner.kind is LoopKind.LANE and bool(inner.reductions)
    if not mergeable or s.base is not None or inner.base is not None:
        return s
    a, b = s.var, inner.var
    if not all(_as_one(i, a, b) for i in lir.indices_in(inner.body)):
        return s
    merged = Var(b.name, a.extent * b.extent)
    # a * extent_b + b is the merged variable: where both appear, a's share is dropped and b stands for the sum.
    mapping: dict[Atom, Int] = {a: Int(), b: ix.of(merged)}
    new_body = lir.map_indices(inner.body, lambda i: i.substitute(mapping))
    return replace(inner, var=merged, body=new_body)


def _as_one(i: Int, a: Var, b: Var) -> bool:
    """Whether a and b appear in `i`, at every level, only as a * extent(b) + b."""
    if i.coefficient(a) != i.coefficient(b) * b.extent:
        return False
    return all(_as_one(atom.value, a, b) for atom, _ in i.terms if isinstance(atom, ix.Quotient | ix.Remainder))


# ---- tiles


def _tile(s: lir.Stmt, size: int) -> lir.Stmt:
    """Square tiles for a perfect nest some of whose loads run along an outer loop."""
    if not isinstance(s, For):
        return s
    nest: list[For] = []
    at: lir.Stmt = s
    while isinstance(at, For):
        nest.append(at)
        if len(at.body) != 1:
            break
        at = at.body[0]
    lane = nest[-1]
    if len(nest) < 2 or lane.kind is not LoopKind.LANE or any(f.kind is not LoopKind.PARALLEL for f in nest[:-1]):
        return s
    if any(isinstance(x, For) for x in lane.body):
        return s
    outer = next((f for f in nest[:-1] if _walks_along(lane.body, f.var, lane.var)), None)
    if outer is None or outer.var.extent < 2 * size or lane.var.extent < 2 * size:
        return s
    a, b = outer.var, lane.var
    a_out, a_in = Var(a.name + "o", -(-a.extent // size)), Var(a.name + "i", size)
    b_out, b_in = Var(b.name + "o", -(-b.extent // size)), Var(b.name + "i", size)
    mapping: dict[Atom, Int] = {a: ix.of(a_out) * size + ix.of(a_in), b: ix.of(b_out) * size + ix.of(b_in)}
    body = lir.map_indices(lane.body, lambda i: i.substitute(mapping))
    inner: lir.Stmt = _edge(For(b_in, LoopKind.LANE, body), b_out, b.extent, size)
    inner = _edge(For(a_in, LoopKind.SERIAL, (inner,)), a_out, a.extent, size)
    inner = For(b_out, LoopKind.PARALLEL, (inner,))
    for f in reversed(nest[:-1]):
        var = a_out if f is outer else f.var
        inner = For(var, LoopKind.PARALLEL, (inner,))
    return inner


def _edge(loop: For, tile: Var, extent: int, size: int) -> For:
    """A tile's loop stops at the array's edge where the size does not divide."""
    if extent % size == 0:
        return loop
    return replace(loop, base=ix.of(tile) * size, limit=extent)


def _walks_along(body: tuple[lir.Stmt, ...], a: Var, b: Var) -> bool:
    """Whether some access is contiguous in `a` and strided in `b`."""
    return any(i.coefficient(a) == 1 and abs(i.coefficient(b)) > 1 for i in lir.indices_in(body))
