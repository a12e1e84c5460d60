"""The CUDA C++ printer: it prints a nest that is bound to the blocks and threads of a GPU.

Loops over the grid and over blocks become grid-stride loops; all threads of a block run the statements outside of loops
over threads, and one of them stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, identity_of
from compiler.codegen.nest.tile_attention import TileAttention
from compiler.codegen.nest.tile_chain import TileChain
from compiler.codegen.nest.tiles import TileProduct
from compiler.codegen.nest.traversal import walk
from compiler.codegen.printing import print_sorts, print_tiles
from compiler.codegen.printing.printer import Printer
from compiler.codegen.printing.scalar import COMPUTE_TYPES, STORAGE_TYPES, constant_text
from compiler.errors import UnsupportedError
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

MAX_BLOCKS = 1 << 20
"""Maximum number of blocks of a launch; grid-stride loops cover the rest."""
MULTIPROCESSORS, MULTIPROCESSOR_REGISTERS = 132, 1 << 16
"""Those of an H100; an A100 has 108 multiprocessors, a B200 148, with as many registers each."""
LEAST_MULTIPROCESSORS = 108
ENOUGH_REGISTERS = 128
"""Registers per thread that hardly any kernel exceeds."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The number of blocks of a launch and of threads per block, and the bytes of dynamic shared memory of a block."""

    grid: int
    block: int
    shared_bytes: int = 0


def preamble() -> str:
    """Return the CUDA C++ source that must precede the kernels of a file."""
    folder = resources.files("compiler.codegen.printing")
    return "".join(
        folder.joinpath(name).read_text()
        for name in ("preamble_cuda.h", "scans_cuda.h", print_sorts.HEADER, "small_floats.h", *print_tiles.HEADERS)
    )


def print_cuda(kernel: lir.Kernel, symbol: str) -> tuple[str, Launch]:
    """Return the source of `extern "C" __global__ void SYMBOL(inputs..., outputs...)` and its launch.

    Raises:
        UnsupportedError: the kernel needs an atomic update that GPUs lack.
    """
    printer = _CudaPrinter(kernel)
    printer.emit(f"typedef {printer.index_type} index_t;")
    printer.kernel_body(kernel.body)
    aliased = {kernel.arguments[n].name for pair in (*kernel.in_place, *kernel.must_alias) for n in pair}
    parameters = []
    for a in kernel.arguments:
        qualifier = "" if a.is_output else "const "
        restrict = "" if a.name in aliased else "__restrict__ "
        parameters.append(f"{qualifier}{STORAGE_TYPES.get(a.type, 'uint8_t')} *{restrict}{a.name}")
    resident = kernel.resident or _resident(printer.blocks, printer.threads)
    bounds = f"{printer.threads}, {resident}" if resident else str(printer.threads)
    head = f'extern "C" __global__ void __launch_bounds__({bounds}) {symbol}({", ".join(parameters)}) {{'
    launch = Launch(max(1, min(printer.blocks, MAX_BLOCKS)), printer.threads, printer.shared_bytes)
    dynamic = ["  extern __shared__ __align__(16) unsigned char dynamic_[];"] if printer.shared_bytes else []
    return "\n".join([head, *dynamic, *printer.lines, "}", ""]), launch


def _resident(blocks: int, threads: int) -> int:
    """Return how many blocks a multiprocessor must hold so that all blocks run at once; 0 if many are needed.

    Left alone, the assembler spills some registers so that more blocks fit, also where there are none. A bound
    of one lets it use so many registers that the other blocks wait for a second wave. For more blocks than have enough
    registers, it decides. Blocks of so many threads that they have fewer registers than enough have all of a
    multiprocessor, also on a GPU with fewer of these.
    """
    if threads * ENOUGH_REGISTERS > MULTIPROCESSOR_REGISTERS:
        return 1 if blocks <= LEAST_MULTIPROCESSORS else 0
    each = -(-max(1, min(blocks, MAX_BLOCKS)) // MULTIPROCESSORS)
    return each if each * threads * ENOUGH_REGISTERS <= MULTIPROCESSOR_REGISTERS else 0


class _CudaPrinter(Printer):
    """A printer of one kernel as CUDA C++, with the number of blocks and threads that it needs."""

    def __init__(self, kernel: lir.Kernel) -> None:
        super().__init__(kernel)
        self.threads = kernel.threads
        self.blocks = 1
        self.shared_bytes = 0  # those of dynamic shared memory
        self._in_lane = False
        self._narrow = set[str]()  # integers of 64 bits that are indices of 32 bits
        self._team: lir.Team | None = None  # of the loop around, if it has one
        self._is_whole = True  # whether every team has an iteration of its own
        self._first_block, self._step = "blockIdx.x", "gridDim.x"
        self._registers = {
            a.name for a in walk(kernel.body) if isinstance(a, lir.LocalArray) and a.scope is Scope.REGISTER
        }

    def kernel_body(self, body: lir.Body) -> None:
        """Print the statements outside of all loops; nests that have blocks of their own run at the same time."""
        nests = [s for s in body if isinstance(s, lir.For) and s.blocks]
        if len(nests) < 2:
            self.block(body)
            return
        self.block(tuple(s for s in body if s not in nests))
        total = sum(s.blocks for s in nests)
        # A launch of fewer blocks computes the same.
        self.emit(f"for (int block_ = blockIdx.x; block_ < {total}; block_ += gridDim.x) {{")
        self.depth += 1
        first = 0
        for s in nests:
            self.emit(f"{'} else ' if first else ''}if (block_ < {first + s.blocks}) {{")
            self._first_block, self._step = f"block_ - {first}" if first else "block_", str(s.blocks)
            self.indented((s,))
            first += s.blocks
        self.emit("}")
        self._end()
        self.blocks = max(self.blocks, total)

    def statement(self, s: lir.Stmt) -> None:
        if isinstance(s, lir.Barrier):
            self.emit("__syncwarp();" if s.warp else "__syncthreads();")
        elif isinstance(s, TileProduct):
            before, self._in_lane = self._in_lane, True
            print_tiles.print_product(s, self.emit, self.indented, self._dynamic)
            self._in_lane = before
        elif isinstance(s, TileAttention):
            before, self._in_lane = self._in_lane, True
            print_tiles.print_attention(s, self.emit, self.indented, self._dynamic)
            self._in_lane = before
        elif isinstance(s, TileChain):
            before, self._in_lane = self._in_lane, True
            print_tiles.print_chain(s, self.emit, self.indented, self._dynamic)
            self._in_lane = before
        elif isinstance(s, lir.CombineThreads):
            self._combine(s.combined, s.team)
        elif isinstance(s, lir.ForFound):
            self._found(s)
        elif isinstance(s, lir.ScanWarp | lir.ScanWarps):
            self._scan(s)
        elif isinstance(s, lir.OrderRow):
            print_sorts.print_order_row(s, self.emit, self.indented)
        elif isinstance(s, lir.OrderCompared):
            print_sorts.print_order_compared(s, self.emit, self.indented)
        elif isinstance(s, lir.Let) and self._is_narrow(s):
            self._narrow.add(s.name)
            self.emit(f"const index_t {s.name} = {self.expression(s)};")
        else:
            super().statement(s)

    def _is_narrow(self, s: lir.Let) -> bool:
        """Check whether a GPU need not compute a value in 64 bits: an index of 32 bits, or one of two."""
        if s.type is not PrimitiveType.S64 or self.index_type == "int64_t":
            return False
        if isinstance(s.value, lir.Apply):
            return s.value.op.opcode is Opcode.SELECT and self._narrow.issuperset(s.value.args[1:])
        return isinstance(s.value, lir.IndexValue)

    def index_value(self, value: ix.IndexExpr, t: PrimitiveType) -> str:
        narrow = t is PrimitiveType.S64 and self.index_type != "int64_t"
        return f"(index_t)({value.to_c()})" if narrow else super().index_value(value, t)

    # ---- combining of accumulators

    def _combine(self, combined: tuple[lir.Combined, ...], team: lir.Team | None) -> None:
        if team is None:
            for c in combined:
                t, wide = COMPUTE_TYPES[c.type], _exchanged(c.type)
                identity = constant_text(identity_of(c.combiner, c.type), c.type)
                self.emit(
                    f"{c.accumulator} = ({t})block_reduce<{wide}>(({wide}){c.accumulator}, "
                    f"combine_{c.combiner.text}(), ({wide}){identity});"
                )
        elif team.strided:
            self._combine_strided(combined, team)
        elif team.size > 1:
            self._combine_adjacent(combined, team)

    def _shuffle(self, c: lir.Combined, value: str, lanes: int) -> None:
        """Combine a value over groups of adjacent lanes of a warp."""
        t, wide = COMPUTE_TYPES[c.type], _exchanged(c.type)
        reduced = f"({wide}){value}"
        if lanes > 1:
            reduced = f"lanes_reduce<{lanes}, {wide}>({reduced}, combine_{c.combiner.text}())"
        self.emit(f"{c.accumulator} = ({t}){reduced};")

    def _combine_adjacent(self, combined: tuple[lir.Combined, ...], team: lir.Team) -> None:
        for c in combined:
            self._shuffle(c, c.accumulator, min(team.size, 32))
        if team.size <= 32:
            return
        warps = team.size // 32
        for c in combined:
            self.emit(f"__shared__ {_exchanged(c.type)} {c.accumulator}_part[{team.threads // 32}];")
        for c in combined:
            self.emit(f"if (threadIdx.x % 32 == 0) {c.accumulator}_part[threadIdx.x / 32] = {c.accumulator};")
        self.emit("__syncthreads();")
        own = f"threadIdx.x / {team.size} * {warps} + threadIdx.x % {warps}"
        for c in combined:
            self._shuffle(c, f"{c.accumulator}_part[{own}]", warps)
        self.emit("__syncthreads();")

    def _combine_strided(self, combined: tuple[lir.Combined, ...], team: lir.Team) -> None:
        if team.size == 1:
            return
        # Threads of a warp that belong to the same result exchange their values; shared memory has one for each warp.
        lanes = min(32, team.threads)
        teams = min(team.teams, lanes)
        if teams < lanes:
            for c in combined:
                t, wide = COMPUTE_TYPES[c.type], _exchanged(c.type)
                function = f"strided_lanes_reduce<{teams}, {lanes}, {wide}>"
                value = f"{function}(({wide}){c.accumulator}, combine_{c.combiner.text}())"
                self.emit(f"{c.accumulator} = ({t}){value};")
        if team.threads == lanes:
            return
        # Adjacent threads then combine what is left of a result, which they write for all threads of the block.
        parts = team.threads // lanes if teams < lanes else team.size
        stride = team.teams + 32 // parts  # different banks along and across
        own = f"threadIdx.x / {lanes if teams < lanes else team.teams} * {stride} + team_"
        test = f"if (threadIdx.x % {lanes} < {teams}) " if teams < lanes else ""
        for c in combined:
            self.emit(f"__shared__ {_exchanged(c.type)} {c.accumulator}_part[{parts * stride}];")
            self.emit(f"__shared__ {_exchanged(c.type)} {c.accumulator}_all[{team.teams}];")
        for c in combined:
            self.emit(f"{test}{c.accumulator}_part[{own}] = {c.accumulator};")
        self.emit("__syncthreads();")
        at = f"threadIdx.x / {parts}"
        is_whole = team.teams * parts == team.threads
        read = at if is_whole else f"{at} % {team.teams}"
        writes = f"threadIdx.x % {parts} == 0" + ("" if is_whole else f" && {at} < {team.teams}")
        for c in combined:
            self._shuffle(c, f"{c.accumulator}_part[threadIdx.x % {parts} * {stride} + {read}]", parts)
        for c in combined:
            self.emit(f"if ({writes}) {c.accumulator}_all[{at}] = {c.accumulator};")
        self.emit("__syncthreads();")
        # No barrier after this: before a thread writes these again, all have read them and met at the first barrier.
        for c in combined:
            self.emit(f"{c.accumulator} = ({COMPUTE_TYPES[c.type]}){c.accumulator}_all[team_];")

    # ---- scans

    def _scan(self, s: lir.ScanWarp | lir.ScanWarps) -> None:
        t, wide = COMPUTE_TYPES[s.type], _exchanged(s.type)
        value, combine = f"({wide}){s.value}", f"combine_{s.combiner.text}()"
        if isinstance(s, lir.ScanWarp):
            self.emit(f"const {t} {s.name} = ({t})warp_scan<{wide}>({value}, {combine});")
            self.emit(f"const {t} {s.whole} = ({t})warp_last<{wide}>(({wide}){s.name});")
            return
        identity = constant_text(identity_of(s.combiner, s.type), s.type)
        self.emit(f"{wide} {s.whole}_wide;")
        self.emit(
            f"const {t} {s.name} = ({t})warps_before<{wide}>({value}, {combine}, ({wide}){identity}, {s.whole}_wide);"
        )
        self.emit(f"const {t} {s.whole} = ({t}){s.whole}_wide;")

    # ---- loops over blocks

    def _flat(self, s: lir.For) -> None:
        path = _path(s, LoopKind.GRID)
        total = 1
        for f in path:
            total *= f.var.extent
        self.blocks = max(self.blocks, -(-total // self.threads))
        self._grid_loop(
            "flat", total, "blockIdx.x * (int64_t)blockDim.x + threadIdx.x", "gridDim.x * (int64_t)blockDim.x"
        )
        self._in_lane = True
        offset = ix.of(ix.Runtime("flat", 0, max(0, total - 1)))
        for f, part in zip(path, ix.delinearize(offset, [f.var.extent for f in path]), strict=True):
            self.emit(f"const index_t {f.var.name} = {part.to_c()};")
            if f.base is not None:
                self.emit(f"if ({f.base.to_c()} + {f.var.name} >= {f.limit}) continue;")
            self.block(tuple(x for x in f.body if not isinstance(x, lir.For)) if f is not path[-1] else f.body)
        self._in_lane = False
        self._end()

    def _teams(self, s: lir.For, team: lir.Team) -> None:
        """Print a loop of which each team of a block runs an iteration."""
        extent, v = s.var.extent, s.var.name
        rounds = -(-extent // team.teams)
        self.blocks = max(self.blocks, s.blocks or rounds)
        self.emit(f"for (int round_ = {self._first_block}; round_ < {rounds}; round_ += {self._step}) {{")
        self.depth += 1
        if team.teams == 1:
            self.emit("const int team_ = 0, lane_ = threadIdx.x;")
        elif team.strided:
            self.emit(f"const int team_ = threadIdx.x % {team.teams}, lane_ = threadIdx.x / {team.teams};")
        else:
            self.emit(f"const int team_ = threadIdx.x / {team.size}, lane_ = threadIdx.x % {team.size};")
        at = f"round_ * (index_t){team.teams} + team_"
        self._team, self._is_whole = team, extent % team.teams == 0
        if self._is_whole:
            self.emit(f"const index_t {v} = {at};")
        else:
            self.emit(f"const bool live_ = {at} < {extent};")
            self.emit(f"const index_t {v} = live_ ? {at} : {extent - 1};")
        self.block(s.body)
        self._team, self._is_whole = None, True
        self._end()

    def _blocks(self, s: lir.For) -> None:
        nest = _path(s, LoopKind.BLOCK)
        total = 1
        for f in nest:
            total *= f.var.extent
        self.blocks = max(self.blocks, total)
        self._grid_loop("item", total, "blockIdx.x", "gridDim.x")
        offset = ix.of(ix.Runtime("item", 0, max(0, total - 1)))
        for f, part in zip(nest, ix.delinearize(offset, [f.var.extent for f in nest]), strict=True):
            self.emit(f"const index_t {f.var.name} = {part.to_c()};")
            if f.base is not None:
                self.emit(f"if ({f.base.to_c()} + {f.var.name} >= {f.limit}) continue;")
        self.block(nest[-1].body)
        self._end()

    def _grid_loop(self, name: str, total: int, start: str, step: str) -> None:
        self.emit(f"for (int64_t {name}_ = {start}; {name}_ < {total}; {name}_ += {step}) {{")
        self.depth += 1
        self.emit(f"const index_t {name} = (index_t){name}_;")

    def _end(self) -> None:
        self.depth -= 1
        self.emit("}")

    # ---- inside a block

    def loop(self, s: lir.For) -> None:
        if s.kind is LoopKind.GRID:
            self._flat(s)
        elif s.kind is LoopKind.BLOCK:
            if s.team is None:
                self._blocks(s)
            else:
                self._teams(s, s.team)
        else:
            self._inner_loop(s)

    def _inner_loop(self, s: lir.For) -> None:
        v = s.var.name
        lanes = s.kind is LoopKind.THREAD
        if s.kind is LoopKind.UNROLLED:
            self.emit("#pragma unroll")
        start, step = ("threadIdx.x", "blockDim.x") if lanes else ("0", "1")
        if lanes and self._team is not None:
            start, step = "lane_", str(self._team.size)
            if s.var.extent == self._team.size:
                self._once_per_lane(s)
                return
        end = str(s.var.extent)
        if s.base is not None:
            room = f"{s.limit} - ({s.base.to_c()})"
            end = f"({room} < {end} ? {room} : {end})"
        if s.unroll:
            self.emit(f"#pragma unroll {s.unroll}")
        self.emit(f"for (index_t {v} = {start}; {v} < {end}; {v} += {step}) {{")
        self._lanes_body(s.body, lanes)
        self.emit("}")

    def _once_per_lane(self, s: lir.For) -> None:
        """Print a loop of which each thread of a team runs one iteration."""
        v = s.var.name
        test = "" if s.base is None else f"if ({(s.base + ix.of(s.var)).to_c()} < {s.limit}) "
        if test:  # the variable is visible to the test
            self.emit("{")
            self.emit(f"  const index_t {v} = lane_;")
            self.depth += 1
            self.emit(test + "{")
            self._lanes_body(s.body, True)
            self.emit("}")
            self._end()
        else:
            self.emit("{")
            self.emit(f"  const index_t {v} = lane_;")
            self._lanes_body(s.body, True)
            self.emit("}")

    def _found(self, s: lir.ForFound) -> None:
        v, extent, threads = s.var.name, s.var.extent, self.threads
        self.emit(f"__shared__ unsigned {v}_found[{threads // 32}];")
        for name, t in s.kept:
            self.emit(f"__shared__ {COMPUTE_TYPES[t]} {name}_kept[{threads}];")
        self.emit(f"for (index_t {v}_first = 0; {v}_first < {extent}; {v}_first += {threads}) {{")
        self.depth += 1
        self.emit("bool found_ = false;")
        self.emit(f"if ({v}_first + (index_t)threadIdx.x < {extent}) {{")
        self.emit(f"  const index_t {v} = {v}_first + threadIdx.x;")
        self.indented(s.test)
        self.emit(f"  found_ = {s.condition};")
        if s.kept:
            self.depth += 1
            self.emit("if (found_) {")
            self.indented(s.gather)
            for name, _ in s.kept:
                self.emit(f"  {name}_kept[threadIdx.x] = {name};")
            self.emit("}")
            self.depth -= 1
        self.emit("}")
        self.emit("const unsigned lanes_ = __ballot_sync(0xffffffffu, found_);")
        self.emit(f"if (threadIdx.x % 32 == 0) {v}_found[threadIdx.x / 32] = lanes_;")
        self.emit("if (__syncthreads_or(found_)) {")
        self.depth += 1
        if s.threads:
            self.emit(f"if (threadIdx.x < {s.threads})")
        self.emit(f"for (int warp_ = 0; warp_ < {threads // 32}; warp_++)")
        self.emit(f"for (unsigned left_ = {v}_found[warp_]; left_; left_ &= left_ - 1) {{")
        if not s.kept:
            self.emit(f"  const index_t {v} = {v}_first + warp_ * 32 + (__ffs(left_) - 1);")
        for name, t in s.kept:
            self.emit(f"  const {COMPUTE_TYPES[t]} {name} = {name}_kept[warp_ * 32 + (__ffs(left_) - 1)];")
        self.indented(s.body)
        self.emit("}")
        self.emit("__syncthreads();")
        self._end()
        self._end()

    def _lanes_body(self, body: lir.Body, lanes: bool) -> None:
        before, self._in_lane = self._in_lane, self._in_lane or lanes
        self.indented(body)
        self._in_lane = before

    def local_array(self, s: lir.LocalArray) -> None:
        if s.name in self._registers:
            self.emit(f"{COMPUTE_TYPES[s.type]} {s.name};")
            return
        if s.scope is Scope.DYNAMIC:
            self._dynamic(s.name, COMPUTE_TYPES[s.type], s.size, s.size * SCALAR_BYTES[s.type])
            return
        where = "__shared__ " if s.scope is Scope.SHARED else ""
        self.emit(f"{where}{COMPUTE_TYPES[s.type]} {s.name}[{s.size}];")

    def _dynamic(self, name: str, t: str, count: int, size: int) -> None:
        """Print an array of so many elements and bytes in dynamic shared memory."""
        self.emit(f"{t} (&{name})[{count}] = *({t} (*)[{count}])(dynamic_ + {self.shared_bytes});")
        self.shared_bytes += -(-size // 16) * 16

    def local_element(self, array: str, offset: ix.IndexExpr) -> str:
        return array if array in self._registers else super().local_element(array, offset)

    def update(self, s: lir.Update) -> None:
        t = self.types[s.buffer]
        if t.bits not in (16, 32, 64):
            raise UnsupportedError(f"no atomic update of {t.text} on a GPU")
        # Outside of loops over lanes every thread executes this statement, but only one may do the update.
        once = "" if self._in_lane else "if (threadIdx.x == 0 && blockIdx.x == 0) "
        self.emit(f"{once}atomic_update(&{s.buffer}[{s.offset.to_c()}], {s.value}, combine_{s.combiner.text}());")

    def store(self, s: lir.Store) -> None:
        self._once(lambda: super(_CudaPrinter, self).store(s))

    def _once(self, emit: Callable[[], None]) -> None:
        """Print a store in such a way that one thread executes it."""
        tests = [] if self._is_whole else ["live_"]
        if not self._in_lane:
            if self._team is None:
                tests.append("threadIdx.x == 0")
            elif self._team.size > 1:
                tests.append("lane_ == 0")
        if not tests:
            emit()
            return
        self.emit(f"if ({' && '.join(tests)}) {{")
        self.depth += 1
        emit()
        self._end()

    def wide_load(self, s: lir.WideLoad) -> None:
        t, n = self.types[s.buffer], s.count
        self.emit("{")
        self.depth += 1
        vector = f"wide<{STORAGE_TYPES.get(t, 'uint8_t')}, {n}>"
        self.emit(f"const {vector} wide_ = load_wide<{n}>({s.buffer} + {s.offset.to_c()});")
        for k in range(n):
            self.emit(f"{s.array}[{k}] = {self.converted(f'wide_.at[{k}]', t)};")
        self._end()

    def wide_store(self, s: lir.WideStore) -> None:
        t, n = self.types[s.buffer], s.count

        def store() -> None:
            self.emit(f"wide<{STORAGE_TYPES.get(t, 'uint8_t')}, {n}> wide_;")
            for k in range(n):
                self.emit(f"wide_.at[{k}] = {self.stored(f'{s.array}[{k}]', t)};")
            self.emit(f"store_wide({s.buffer} + {s.offset.to_c()}, wide_);")

        self.emit("{")
        self.depth += 1
        self._once(store)
        self._end()

    def from_bfloat16(self, element: str) -> str:
        return f"__bfloat162float({element})"

    def to_bfloat16(self, value: str) -> str:
        return f"__float2bfloat16_rn({value})"

    def from_half(self, element: str) -> str:
        return f"__half2float({element})"

    def to_half(self, value: str) -> str:
        return f"__float2half_rn({value})"


def _exchanged(t: PrimitiveType) -> str:
    """Return the C type in which threads exchange values of an element type: those of less than 32 bits as int."""
    return "int" if t.bits < 32 and not t.is_float else COMPUTE_TYPES[t]


def _path(s: lir.For, kind: LoopKind) -> list[lir.For]:
    """Return the nested loops of a kind, from the outermost one."""
    path = [s]
    while True:
        inner = next((x for x in path[-1].body if isinstance(x, lir.For) and x.kind is kind), None)
        if inner is None:
            return path
        path.append(inner)
