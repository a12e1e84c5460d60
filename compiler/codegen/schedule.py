"""Schedules: rewrites of the loops of a kernel that change how it runs but not what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen.index import IndexExpr, IndexSymbol, Var
from compiler.codegen.loop_ir import For, LoopKind
from compiler.codegen.scalar import COMPUTE_BYTES
from compiler.errors import PlanError, UnsupportedError
from compiler.support.untrusted import as_integer, short_repr

LOCAL_BYTES = 256 * 1024
"""Maximum total size of the local arrays of one kernel.

They are on the stack of a thread, which has 8 MiB on Linux and 512 KiB on macOS by default. Besides, local arrays that
do not fit into the second-level cache would not make a kernel faster.
"""
FIELD_RANGES: Mapping[str, range] = {
    # Tiles of 1024 by 1024 elements exceed every cache.
    "tile": range(1025),
    # One 4-byte accumulator per column, or one carried value per lane, then fills the local arrays.
    "columns": range(1, LOCAL_BYTES // 4 + 1),
    # Whole warps of 32 threads; a CUDA block has at most 32 warps.
    "block": range(32, 1025, 32),
    "lanes": range(1, LOCAL_BYTES // 4 + 1),
}
"""The values that may be chosen for the fields of a `Schedule`; a kernel may support fewer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tunable parameters of a kernel; the defaults suit most kernels.

    Attributes:
        tile: edge of the square tiles of a loop that reads and writes along different dimensions; 0 for no tiling.
        columns: number of adjacent columns in a tile of a column reduction.
        block: CUDA threads per block.
        lanes: number of positions in a tile of a loop kernel.
    """

    tile: int = 32
    columns: int = 256
    block: int = 256
    lanes: int = 256

    def column_tile(self, width: int) -> int:
        """Return the number of columns in a tile, given `width` columns in total."""
        return _divisor_near(self.columns, width)

    def lane_tile(self, width: int) -> int:
        """Return the number of positions in a tile of a loop kernel, given `width` positions in total."""
        return _divisor_near(self.lanes, width)

    def to_json(self) -> dict[str, int]:
        """Return the fields that differ from the defaults."""
        default = Schedule()
        return {k: getattr(self, k) for k in self.__dataclass_fields__ if getattr(self, k) != getattr(default, k)}

    @staticmethod
    def from_json(data: Mapping[str, object], default: Schedule | None = None) -> Schedule:
        """Return a default schedule with some fields changed; raise PlanError for an unknown field or value."""
        return replace(default or Schedule(), **parse_choice(data))


def parse_choice(data: Mapping[str, object]) -> dict[str, int]:
    """Return choices for the fields of a `Schedule` as integers; raise PlanError for an unknown field or value."""
    if not isinstance(data, Mapping):
        raise PlanError(f"the choices of a kernel must map names to integers, not {short_repr(data)}")
    found: dict[str, int] = {}
    for name, value in data.items():
        if name not in FIELD_RANGES:
            raise PlanError(f"a kernel has no choice {short_repr(name)}; choices: {', '.join(FIELD_RANGES)}")
        number, allowed = as_integer(value), FIELD_RANGES[name]
        if number is None or number not in allowed:
            of = f"a multiple of {allowed.step}" if allowed.step > 1 else "an integer"
            raise PlanError(
                f"a kernel's {name} must be {of} from {allowed[0]} to {allowed[-1]}, not {short_repr(value)}"
            )
        found[name] = number
    return found


def _divisor_near(preferred: int, width: int) -> int:
    """Return a divisor of `width` close to the preferred tile size, so that no remainder is left, or else that size."""
    if width <= preferred:
        return width
    for tile in range(preferred, max(15, preferred // 4), -1):
        if width % tile == 0:
            return tile
    return preferred


def optimize(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return the kernel without dead local arrays, with nested loops merged and transposes tiled.

    Raises:
        UnsupportedError: the remaining local arrays need more than LOCAL_BYTES.
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
        raise UnsupportedError(f"the kernel needs {held} bytes of local arrays, more than {LOCAL_BYTES}")
    return replace(kernel, body=body, kind=kind)


# ---- dead local arrays


def _without_dead_arrays(body: tuple[lir.Stmt, ...]) -> tuple[lir.Stmt, ...]:
    """Remove local arrays that are never read, such as a row cache that no later loop used, and the stores to them."""
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


# ---- merging of perfectly nested loops


def _collapse(s: lir.Stmt) -> lir.Stmt:
    """Merge a loop with the loop that is its whole body if every index uses the two variables as one."""
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
    if not all(_is_merged_index(i, a, b) for i in lir.indices_in(inner.body)):
        return s
    merged = Var(b.name, a.extent * b.extent)
    # The merged variable is a * extent(b) + b, the only use of both: drop the term of a and let b stand for the sum.
    mapping: dict[IndexSymbol, IndexExpr] = {a: IndexExpr(), b: ix.of(merged)}
    new_body = lir.map_indices(inner.body, lambda i: i.substitute(mapping))
    return replace(inner, var=merged, body=new_body)


def _is_merged_index(i: IndexExpr, a: Var, b: Var) -> bool:
    """Check whether a and b appear in `i`, also inside quotients and remainders, only as a * extent(b) + b."""
    if i.coefficient(a) != i.coefficient(b) * b.extent:
        return False
    return all(
        _is_merged_index(atom.value, a, b) for atom, _ in i.terms if isinstance(atom, ix.Quotient | ix.Remainder)
    )


# ---- tiling


def _tile(s: lir.Stmt, size: int) -> lir.Stmt:
    """Tile a perfect nest by squares if some access is contiguous along an outer loop and strided along the lanes."""
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
    # Strip-mine the outer loop and the lanes, and move the loops over tiles outward. Within a tile, the cache lines
    # that the strided accesses touch are reused before they are evicted.
    outer = next((f for f in nest[:-1] if _is_transposed(lane.body, f.var, lane.var)), None)
    if outer is None or outer.var.extent < 2 * size or lane.var.extent < 2 * size:
        return s
    a, b = outer.var, lane.var
    a_out, a_in = Var(a.name + "o", -(-a.extent // size)), Var(a.name + "i", size)
    b_out, b_in = Var(b.name + "o", -(-b.extent // size)), Var(b.name + "i", size)
    mapping: dict[IndexSymbol, IndexExpr] = {a: ix.of(a_out) * size + ix.of(a_in), b: ix.of(b_out) * size + ix.of(b_in)}
    body = lir.map_indices(lane.body, lambda i: i.substitute(mapping))
    inner: lir.Stmt = _edge(For(b_in, LoopKind.LANE, body), b_out, b.extent, size)
    inner = _edge(For(a_in, LoopKind.SERIAL, (inner,)), a_out, a.extent, size)
    inner = For(b_out, LoopKind.PARALLEL, (inner,))
    for f in reversed(nest[:-1]):
        var = a_out if f is outer else f.var
        inner = For(var, LoopKind.PARALLEL, (inner,))
    return inner


def _edge(loop: For, tile: Var, extent: int, size: int) -> For:
    """Bound the loop over a tile by the extent of the array if the tile size does not divide it."""
    if extent % size == 0:
        return loop
    return replace(loop, base=ix.of(tile) * size, limit=extent)


def _is_transposed(body: tuple[lir.Stmt, ...], a: Var, b: Var) -> bool:
    """Check whether some access is contiguous in `a` and strided in `b`."""
    return any(i.coefficient(a) == 1 and abs(i.coefficient(b)) > 1 for i in lir.indices_in(body))
