"""Binding of loop nests to a CPU: threads, vectors, accumulators and splits.

The decisions are those of the `Schedule`; `print_c` prints the bound nest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_bodies, map_compound, map_indices, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules import accumulators, lane_accumulators, stages, streams
from compiler.codegen.schedules.aligned_stores import align_stores
from compiler.codegen.schedules.complex_parts import divide_complex
from compiler.codegen.schedules.copied_runs import copy_runs
from compiler.codegen.schedules.divisions import multiply_for_divisions
from compiler.codegen.schedules.edges import REDUCTIONS, split_edges
from compiler.codegen.schedules.flat_functions import flatten_functions
from compiler.codegen.schedules.flat_rows import flatten_rows
from compiler.codegen.schedules.halves import convert_halves, lanes_of, suits_halves
from compiler.codegen.schedules.hidden_strides import hide_strides
from compiler.codegen.schedules.interleaving import interleave_values
from compiler.codegen.schedules.joined_rows import join_rows
from compiler.codegen.schedules.lanes import tile_columns, with_wide_columns
from compiler.codegen.schedules.local_memory import check_local_bytes, local_bytes
from compiler.codegen.schedules.loop_prices import loop_nanoseconds
from compiler.codegen.schedules.loop_transforms import (
    Tiling,
    collapse,
    has_loop,
    perfect_nest,
    tile_transposes,
    without_dead_code,
)
from compiler.codegen.schedules.merged_branches import merge_branches
from compiler.codegen.schedules.moved_halves import move_as_bits
from compiler.codegen.schedules.near_angles import select_near_angles
from compiler.codegen.schedules.observed import BindStage, bind_in_stages
from compiler.codegen.schedules.padded_planes import pad_planes
from compiler.codegen.schedules.pairs import pair_elements
from compiler.codegen.schedules.rare_work import separate_rare_work
from compiler.codegen.schedules.reduction_edges import split_reduction_edges
from compiler.codegen.schedules.repeated_rows import divide_repeats
from compiler.codegen.schedules.row_blocks import block_rows
from compiler.codegen.schedules.row_branches import branch_on_rows
from compiler.codegen.schedules.row_cache import cache_rows
from compiler.codegen.schedules.row_stages import stage_rows
from compiler.codegen.schedules.scans import expand_scans
from compiler.codegen.schedules.scatter_extremes import store_changes
from compiler.codegen.schedules.scatter_parts import split_scatters
from compiler.codegen.schedules.schedule import FIELD_RANGES, LOCAL_BYTES, Schedule
from compiler.codegen.schedules.selected_offsets import select_offsets
from compiler.codegen.schedules.separate_columns import separate_columns
from compiler.codegen.schedules.shared_values import share_values
from compiler.codegen.schedules.short_groups import write_out_groups
from compiler.codegen.schedules.short_loops import merge_narrow_columns, unroll_short_loops
from compiler.codegen.schedules.short_moves import write_out_moves
from compiler.codegen.schedules.short_rows import split_rows
from compiler.codegen.schedules.single_elements import hide_single_elements
from compiler.codegen.schedules.sparse_loads import is_sparse, separate_sparse_loads
from compiler.codegen.schedules.splits import THREAD_GRAINS, split_reductions
from compiler.codegen.schedules.stored_values import store_in_reductions
from compiler.codegen.schedules.tails import split_tails
from compiler.codegen.schedules.tile_tests import branch_on_tiles, tests_of_tiles
from compiler.codegen.schedules.transposed_rows import SORTS, transpose_rows
from compiler.codegen.schedules.uniform_values import move_uniform_values
from compiler.ir.types import PrimitiveType

MIN_ITEMS = 64
"""Nested parallel loops are merged until they have this many iterations, so that threads share them evenly."""
ALIGNED = 64
"""Ranges of elements for one thread start at multiples of this, so that they are whole cache lines."""
SHARED_NANOSECONDS = 5000.0
"""Estimated time of a loop from which on threads share it. A schedule with another grain has it in proportion."""
BRIEF_NANOSECONDS = 16_000.0
"""Estimated time of a loop up to which it is not worth waking threads that sleep: waking takes more than half of it."""
BRIEF_WORK = 300_000
"""Number of statements from which on a loop is not brief, because its price may be too low."""
CLEAR_WORK = 32
"""A loop of so many times the least work of a shared loop is shared, whatever its statements cost; one of so many times
less is not."""
LONG_WORK = 20_000_000
"""Minimum number of statements for which a sequential loop checks for interrupts."""
SLICE_WORK = 5_000_000
"""Number of statements that such a loop runs between two checks."""
LIGHT_WORK = 12
"""Maximum number of statements per element of a reduction that gets several accumulators; the latency of a longer one
is hidden by its own work."""
FEW_STEPS = 4
"""Number of steps of all accumulators from which on they save more time than it takes to combine them for each row."""
LONG_LANES = 4_000
"""Statements of a reduction per lane from which on the time of combining the lanes at the end does not matter. A longer
loop is left to the C compiler, which computes index values faster."""
LANE_BYTES = 4
"""Size of the elements for which the lanes of an unrolled loop are counted."""
SHORTEST, SHORT_REPEATS = 5, 4
"""Least number of elements of a short innermost loop of a reduction, and of its repetitions, for which it has lanes."""
SHORT_VECTORS = 8
"""Vectors in a loop from which on the elements that remain over do not matter."""
LEAST_VECTOR = 4
"""Elements of the shortest vector loop without branches: gcc vectorizes the loop around a shorter one."""
FEW_APART, APART = 15, 8
"""Elements of the longest loop that moves them one by one, and the least distance of these elements."""
FRUGAL: Mapping[str, int] = {
    "accumulators": 1, "cache": 0, "columns": 16, "edges": 0, "hoist": 0, "rare": 0, "short": 0, "splits": 1,
    "stages": 0, "stream": 0, "tile": 0, "unroll": 1, "vector": 0,
}  # fmt: skip
"""The fields of a schedule by which binding makes hardly any local arrays."""
NARROW_ENTRY = 32
"""Bits of the narrower of two kinds of entries of a sort."""


def bind_c(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return a nest bound to the threads and vectors of a CPU.

    If the schedule needs more local memory than LOCAL_BYTES, the nest is bound without what holds values (FRUGAL).

    Raises:
        UnsupportedError: the nest itself has larger local arrays.
    """
    return run_stages(BIND_STAGES, kernel, schedule)


def run_stages(stages: Sequence[BindStage], kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return what `bind_c` does; the stages are those of BIND_STAGES, or the same with a memory of their results."""
    bound = bind_in_stages(stages, kernel, schedule)
    if local_bytes(bound.body) > LOCAL_BYTES:
        bound = bind_in_stages(stages, kernel, schedule.with_values(FRUGAL))
        check_local_bytes(bound.body)
    return bound


def _simplified(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    kernel = move_as_bits(replace(kernel, body=without_dead_code(kernel.body)))
    body = kernel.body
    if schedule.edges and schedule.vector:
        body = pad_planes(kernel, body)
    body = collapse(body)
    if schedule.edges and schedule.vector:
        branched = branch_on_rows(body)
        body = body if branched is body else collapse(branched)
    if schedule.cache and schedule.vector:
        kernel, body = store_in_reductions(kernel, body)
    if schedule.stages and schedule.vector:
        body = flatten_functions(body)
    return replace(kernel, body=body)


def _with_transposed_rows(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    if not schedule.vector or not schedule.short:
        return kernel
    types = kernel.types
    flat = flatten_rows(kernel.body, types)
    body = transpose_rows(flat, types, schedule.cache, schedule.unit, kernel.kind in SORTS)
    return replace(kernel, body=body)


def _with_shared_values(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    body = share_values(kernel) if schedule.hoist else kernel.body
    return replace(kernel, body=cache_rows(body, schedule.cache))


def _with_divided_reductions(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    schedule = with_wide_columns(kernel.body, schedule, kernel.sizes)
    splits_edges = schedule.edges and schedule.vector and kernel.kind in REDUCTIONS
    body = split_reduction_edges(kernel.body) if splits_edges else kernel.body
    body = split_reductions(body, schedule)
    body = merge_narrow_columns(body, schedule.short) if schedule.vector else body
    tiled = tile_columns(body, schedule, in_vectors=True)
    body = body if tiled == body else branch_on_tiles(tests_of_tiles(tiled))
    return store_changes(replace(kernel, body=split_scatters(expand_scans(body, schedule), schedule)))


def _with_tiles(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    if not schedule.tile or kernel.kind != "loop":
        return kernel
    lanes = schedule.unit.size // LANE_BYTES
    tiling = Tiling(schedule.tile, schedule.across, bool(schedule.walk), True, kernel.sizes, lanes)
    tiled = tile_transposes(kernel.body, tiling)
    return kernel if tiled == kernel.body else replace(kernel, body=tests_of_tiles(tiled), kind="transpose")


def _with_separate_cases(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    body = select_near_angles(kernel, separate_rare_work(kernel, kernel.body, schedule), schedule)
    return replace(kernel, body=split_edges(kernel, body, schedule))


def _with_short_rows(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    body = kernel.body
    if schedule.vector:
        body = write_out_groups(body) if schedule.short else body
        body = divide_repeats(unroll_short_loops(body, schedule.short), schedule.short)
    if schedule.stages and schedule.vector:
        body = split_rows(block_rows(stage_rows(body, schedule.stages), kernel.sizes))
    return replace(kernel, body=body)


def _with_loop_kinds(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    return replace(kernel, body=_Binder(schedule, kernel.arguments).top(kernel.body))


def _with_rewritten_loops(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    del schedule  # many schedules have the same loops, for which this is done once
    body = select_offsets(merge_branches(kernel.body))
    body = pair_elements(kernel, hide_single_elements(separate_columns(write_out_moves(body))))
    body = hide_strides(convert_halves(kernel, body))
    body = multiply_for_divisions(join_rows(move_uniform_values(interleave_values(body)), kernel.sizes))
    return copy_runs(divide_complex(replace(kernel, body=body)))


def _with_vectors(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    body = align_stores(kernel.body, kernel.types) if schedule.vector else kernel.body
    if schedule.narrow and schedule.vector == FIELD_RANGES["vector"][-1]:
        narrow = frozenset(a.name for a in kernel.arguments if SCALAR_BYTES.get(a.type) == 1)
        body = split_tails(body, schedule.vector // 8 // LANE_BYTES, narrow)
    has_vectors = any(s.kind.is_vector if isinstance(s, For) else isinstance(s, lir.MatrixProduct) for s in walk(body))
    bits = _vector_bits(body, schedule) if has_vectors else 0
    return replace(kernel, body=body, vector_bits=bits)


def _with_flags(kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return the nest with the flags of its compiler: a stage of its own, so that all flags have one body."""
    return replace(kernel, flags=schedule.flags if has_loop(kernel.body) else 0)  # not for a few scalars


BIND_STAGES: tuple[BindStage, ...] = (
    _simplified,
    _with_transposed_rows,
    _with_shared_values,
    _with_divided_reductions,
    _with_tiles,
    _with_separate_cases,
    _with_short_rows,
    _with_loop_kinds,
    _with_rewritten_loops,
    _with_vectors,
    _with_flags,
)
"""The stages of `bind_c`, in order. A stage depends on the nest before it and on the fields that it reads."""


def _vector_bits(body: Body, schedule: Schedule) -> int:
    """Return the width of the vectors of a bound nest: the schedule's, or half of it if that takes no more steps.

    The elements that remain over after whole vectors take a half vector and single elements, so that a loop over 28
    elements takes six steps with 16 lanes and four with 8.
    """
    lanes = schedule.vector // 8 // LANE_BYTES
    products = [s for s in walk(body) if isinstance(s, lir.MatrixProduct)]
    if products:  # which mask what their last vectors lack
        is_half = schedule.narrow and lanes >= 16 and all(_fills(s, lanes // 2) for s in products)
        return schedule.vector // 2 if is_half else schedule.vector
    extents = [s.var.extent for s in walk(body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    extents = [n for n in extents if n >= lanes // 2]  # shorter ones, such as those of halved lanes, take equal time
    if not schedule.narrow or lanes < 16 or not extents or max(extents) >= SHORT_VECTORS * lanes:
        return schedule.vector
    wide, narrow = (sum(_steps(n, count) for n in extents) for count in (lanes, lanes // 2))
    return schedule.vector // 2 if narrow <= wide else schedule.vector


def _fills(s: lir.MatrixProduct, lanes: int) -> bool:
    """Check whether the columns of a product of 32-bit elements need more than half a vector and no more than one."""
    return s.type.byte_size == LANE_BYTES and lanes // 2 < s.columns.total <= lanes


def _steps(extent: int, lanes: int) -> int:
    rest = extent % lanes
    return extent // lanes + rest // (lanes // 2) + rest % (lanes // 2)


def check_binding(kernel: lir.Kernel, schedule: Schedule) -> None:
    """Raise UnsupportedError if `bind_c` does; the nest is only bound if it has large local arrays itself."""
    if local_bytes(kernel.body) > LOCAL_BYTES // 2:
        bind_c(kernel, schedule)


def check_room(kernel: lir.Kernel, schedule: Schedule) -> None:
    """Raise UnsupportedError if a schedule needs more local memory than LOCAL_BYTES."""
    check_local_bytes(bind_in_stages(BIND_STAGES, kernel, schedule).body)


class _Binder:
    """Binds the loops of one kernel, outer before inner."""

    def __init__(self, schedule: Schedule, arguments: Sequence[lir.Argument]) -> None:
        self.schedule = schedule
        self.arguments = {a.name: a.type for a in arguments}
        self._kernel_arguments = arguments

    def top(self, body: Body, is_long: bool = True) -> Body:
        """Bind the statements outside of all loops, or inside of loops that are not shared.

        Args:
            body: the statements.
            is_long: whether loops among them may take long enough to be shared.
        """
        out: list[lir.Stmt] = []
        for s in body:
            is_loop = isinstance(s, For) and s.kind is LoopKind.INDEPENDENT
            nanoseconds = self._shared_nanoseconds(s) if is_loop and is_long else 0.0
            if isinstance(s, For) and nanoseconds:
                out += self._parallel(s, nanoseconds < BRIEF_NANOSECONDS and work_of((s,)) < BRIEF_WORK)
            elif isinstance(s, For) and is_loop and has_loop(s.body):
                out.append(replace(s, kind=LoopKind.SERIAL, body=self.top(s.body, False), poll=_poll(s)))
            elif isinstance(s, lir.SortByKey):
                out.append(self._sort(s))
            else:
                out += self._statement(s)
        return tuple(out)

    def _shared_nanoseconds(self, s: lir.Stmt) -> float:
        """Return the estimated time of a loop on one thread if it is long enough to be shared by threads, and 0 if not.

        Only a loop of middling work is priced.
        """
        work, usual = work_of((s,)), THREAD_GRAINS * self.schedule.grain
        if not self.schedule.threads or work * CLEAR_WORK < usual:
            return 0.0
        if work >= usual * CLEAR_WORK:
            return math.inf
        nanoseconds = loop_nanoseconds(self._statement(s), self._kernel_arguments, work)
        least = SHARED_NANOSECONDS * self.schedule.grain / Schedule().grain
        return nanoseconds if nanoseconds >= least else 0.0

    def _grain(self, work: int) -> int:
        """Return the least work of a task of a loop: that of the schedule, or less so that all threads get tasks."""
        return max(1, min(self.schedule.grain, work // THREAD_GRAINS))

    # ---- threads

    def _parallel(self, s: For, brief: bool) -> Body:
        """Return the statements of a loop whose iterations are distributed to threads; see `For.brief`."""
        nest = [s]
        while math.prod(f.var.extent for f in nest) < MIN_ITEMS:
            below = perfect_nest(nest[-1])[1:2]
            if not below or below[0].kind is not LoopKind.INDEPENDENT or below[0].base is not None:
                break
            nest += below
        task = self._grain(work_of((s,)))
        body, grain = nest[-1].body, max(1, task // max(1, work_of(nest[-1].body)))
        if has_loop(body):
            body = self._body(body)
        elif (
            len(nest) == 1 and self.schedule.unroll == 1 and self.schedule.vector
            and not self._block(nest[0]) and not is_sparse(nest[0])
        ):  # fmt: skip
            grain = -(-grain // ALIGNED) * ALIGNED  # a range should end at a vector and at a cache line
            return (replace(s, kind=LoopKind.PARALLEL_VECTOR, body=self._body(body), grain=grain, brief=brief),)
        else:
            body, grain = self._chunks(nest.pop(), math.prod(f.var.extent for f in nest), task, brief), 1
        for f in reversed(nest):
            body = (replace(f, kind=LoopKind.PARALLEL, body=body, grain=grain, brief=brief),)
        return body

    def _chunks(self, s: For, runs: int, task: int, brief: bool) -> Body:
        """Return a loop over single elements, which runs `runs` times, as a parallel loop over vector loops.

        A vector loop has at least `task` statements of work.
        """
        size = max(1, task // max(1, work_of(s.body)), s.var.extent * runs // MIN_ITEMS)
        unit = self._block(s) or ALIGNED  # a chunk should end at a vector and at a cache line
        size = min(-(-size // unit) * unit, s.var.extent)
        if s.base is not None or -(-s.var.extent // size) < 2:
            return tuple(self._leaves(s))
        outer, inner = Var(f"{s.var.name}c", -(-s.var.extent // size)), Var(f"{s.var.name}v", size)
        at = ix.of(outer) * size + ix.of(inner)
        loop = _moved(s, inner, at)
        if s.var.extent % size:
            loop = replace(loop, base=ix.of(outer) * size, limit=s.var.extent)
        return (For(outer, LoopKind.PARALLEL, tuple(self._leaves(loop)), brief=brief),)

    def _sort(self, s: lir.SortByKey) -> lir.SortByKey:
        """Return a sort by the schedule's method, whose rows are distributed to threads if they are enough work."""
        work = work_of((s,))
        shared_out = self.schedule.threads and work >= THREAD_GRAINS * self.schedule.grain
        grain = max(1, self.schedule.grain * s.row.extent // work) if shared_out else 0
        n, k = s.element.extent, s.position.extent
        narrow = 8 * s.type.byte_size + (n - 1).bit_length() <= NARROW_ENTRY
        method = self.schedule.order.for_rows(n, k, narrow)
        return replace(s, read=self._body(s.read), body=self._body(s.body), grain=grain, method=method)

    # ---- inside a task

    def _body(self, body: Body) -> Body:
        return map_compound(body, self._statement)

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, lir.Reduce):
            return tuple(self._reduce(s))
        if isinstance(s, For):
            is_leaf = s.kind is LoopKind.INDEPENDENT and not has_loop(s.body)
            return tuple(self._leaves(s)) if is_leaf else (self._loop(s),)
        if isinstance(s, lir.While):
            s = replace(s, poll=max(1, SLICE_WORK // max(1, work_of((*s.test, *s.body)))))
        return (map_bodies(s, self._body),)

    def _loop(self, s: For) -> For:
        kind = LoopKind.SERIAL if s.kind in (LoopKind.INDEPENDENT, LoopKind.ATOMIC) else s.kind
        return replace(s, kind=kind, body=self._body(s.body), poll=_poll(s))

    def _leaf(self, s: For) -> For:
        """Return a loop over single elements as a vector loop, or as a serial one if the schedule has no vectors."""
        is_short = s.var.extent < LEAST_VECTOR and all(isinstance(x, lir.Let | lir.Store) for x in s.body)
        is_vector = self.schedule.vector and not is_sparse(s) and not is_short and not _moves_few_apart(s)
        kind = LoopKind.VECTOR if is_vector else LoopKind.SERIAL
        return replace(s, kind=kind, body=self._body(s.body))

    def _block(self, s: For) -> int:
        """Return the size of the blocks that a loop over single elements is divided into; 0 if it is not."""
        if self._streams(s):
            return streams.BLOCK
        if self._stages(s) is not None:
            return stages.BLOCK
        return lanes_of(s, self.arguments) if self.schedule.vector and suits_halves(s, self.arguments) else 0

    def _streams(self, s: For) -> bool:
        return bool(self.schedule.stream and self.schedule.vector) and streams.can_stream(s, self.arguments)

    def _stages(self, s: For) -> stages.Stages | None:
        is_leaf = bool(self.schedule.vector) and not has_loop(s.body)
        return stages.stages_of(s, self.schedule.stages) if is_leaf else None

    def _leaves(self, s: For) -> list[lir.Stmt]:
        """Return a loop over single elements as vector loops, each of which computes `unroll` vectors at once."""
        if self._streams(s):
            return [streams.streamed(s, self.arguments, self._leaf)]
        apart = separate_sparse_loads(s) if self.schedule.vector and self.schedule.stages else None
        if apart is not None:
            around = [replace(x, kind=LoopKind.SERIAL) for x in (apart.loads, apart.stores) if x is not None]
            return [*apart.arrays, around[0], *self._leaves(apart.computing), *around[1:]]
        in_stages = self._stages(s)
        if in_stages is not None:
            return [stages.staged(s, in_stages, self._leaf)]
        lanes = self.schedule.unroll * self.schedule.vector // 8 // LANE_BYTES
        if self.schedule.unroll == 1 or not lanes or s.base is not None or s.var.extent < 2 * lanes:
            return [self._leaf(s)]
        v = s.var
        block, lane, rest = Var(f"{v.name}b", v.extent // lanes), Var(f"{v.name}l", lanes), v.extent % lanes
        out: list[lir.Stmt] = [
            For(block, LoopKind.SERIAL, (self._leaf(_moved(s, lane, ix.of(block) * lanes + ix.of(lane))),))
        ]
        if rest:
            some = Var(f"{v.name}r", rest)
            out.append(self._leaf(_moved(s, some, ix.of(some) + (v.extent - rest))))
        return out

    # ---- reductions

    def _reduce(self, s: lir.Reduce) -> list[lir.Stmt]:
        """Return the loops of a reduction that runs in one task."""
        loop = For(s.vars[-1], LoopKind.VECTOR, s.body)
        if self.schedule.vector and self._stages(loop) is None and not has_loop(s.body) and not is_sparse(loop):
            lane = self.schedule.vector // 8 // max(SCALAR_BYTES[r.type] for r in s.reductions)
            lanes = self._vectors(s) * lane
            if s.vars[-1].extent < (FEW_STEPS if len(s.vars) == 1 and not _has_bytes_for_integers(s) else 2) * lanes:
                lanes = lane
            if lanes == lane and _has_bytes_for_integers(s):
                return self._scalar_accumulators(s)
            if self._is_short(s, lane):
                found = lane_accumulators.short_reduction(s, lane)
                return [replace(x, poll=_poll(x)) if isinstance(x, For) else x for x in found]
            is_long = lanes == lane and work_of(s.body) * s.vars[-1].extent > LONG_LANES * lane
            if s.vars[-1].extent >= lanes > 1 and not is_long:
                return lane_accumulators.long_reduction(s, lanes, lane)
        return self._scalar_accumulators(s)

    def _vectors(self, s: lir.Reduce) -> int:
        """Return the number of vectors that accumulate side by side, which hides the latency of combining them.

        It is a power of two, so that the lanes can be halved.
        """
        unit = self.schedule.unit
        room = min(lane_accumulators.MAX_ACCUMULATORS, unit.registers - lane_accumulators.OTHERS) * unit.size
        vectors = min(self.schedule.accumulators, max(1, room // (self.schedule.vector // 8) // len(s.reductions)))
        return 1 if work_of(s.body, expensive=1) > LIGHT_WORK else 1 << max(1, vectors).bit_length() - 1

    @staticmethod
    def _is_short(s: lir.Reduce, lane: int) -> bool:
        """Check for a loop of less than a vector that others repeat, each time with the lanes to combine at its end."""
        repeats = math.prod(v.extent for v in s.vars[:-1])
        return SHORTEST <= s.vars[-1].extent < lane and repeats >= SHORT_REPEATS

    def _scalar_accumulators(self, s: lir.Reduce) -> list[lir.Stmt]:
        vectorized = bool(self.schedule.vector) and not has_loop(s.body)
        vectorized = vectorized and not is_sparse(For(s.vars[-1], LoopKind.VECTOR, s.body))
        last: list[lir.Stmt] = []
        if vectorized:
            is_wide = any(x.type.byte_size > 1 for x in s.body if isinstance(x, lir.Let))
            s, last = lane_accumulators.bools_as_integers(s, PrimitiveType.S32 if is_wide else PrimitiveType.U8)
        loop = For(
            s.vars[-1],
            LoopKind.VECTOR if vectorized else LoopKind.SERIAL,
            (*self._body(s.body), *accumulators.combine(s)),
            accumulators.combined_of(s) if vectorized else (),
        )
        in_stages = self._stages(loop)
        if in_stages is not None:
            loop = stages.staged(loop, in_stages, lambda part: part)
        return [*accumulators.start(s), self._outer_loops(s, loop), *accumulators.results(s), *last]

    @staticmethod
    def _outer_loops(s: lir.Reduce, loop: For) -> For:
        for v in reversed(s.vars[:-1]):
            loop = For(v, LoopKind.SERIAL, (loop,))
        return replace(loop, poll=_poll(loop)) if loop.kind is LoopKind.SERIAL else loop


def _moves_few_apart(s: For) -> bool:
    """Check for a loop that moves a few elements whose distance is a power of two.

    The C compiler would load all elements in between for each of its iterations, and takes them apart with shuffles.
    Written out, the elements of adjacent rows are transposed.
    """
    if s.var.extent > FEW_APART or s.base is not None or len(s.body) != 2:
        return False
    load, store = s.body
    if not isinstance(store, lir.Store) or not isinstance(load, lir.Let) or not isinstance(load.value, lir.Load):
        return False
    distance = abs(load.value.offset.coefficient(s.var))
    return distance >= max(APART, s.var.extent) and distance & (distance - 1) == 0


def _has_bytes_for_integers(s: lir.Reduce) -> bool:
    """Check whether a reduction to wider integers loads or stores bytes.

    With lanes of one vector for its results, the C compiler would compute the bytes in a quarter of a vector.
    """
    if not all(r.type.is_integer and r.type.byte_size > 1 for r in s.reductions):
        return False
    stored = {x.value for x in s.body if isinstance(x, lir.LocalStore | lir.Store)}
    return any(
        x.type.byte_size == 1 and (isinstance(x.value, lir.Load | lir.LocalLoad) or x.name in stored)
        for x in s.body
        if isinstance(x, lir.Let)
    )


def _moved(s: For, var: Var, at: IndexExpr) -> For:
    """Return the loop with another variable, given the index that the old one stands for."""
    return replace(s, var=var, body=map_indices(s.body, lambda i: i.substitute({s.var: at})))


def _poll(s: For) -> int:
    """Return the number of iterations of a long loop between checks for interrupts, 0 if it is short."""
    work = work_of((s,))
    return max(1, SLICE_WORK * s.var.extent // work) if work >= LONG_WORK and s.base is None else 0
