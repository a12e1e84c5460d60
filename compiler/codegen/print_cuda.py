"""The CUDA C++ printer: parallel loops become blocks and lanes become threads.

A nest has one of two forms. Flat: a nest of parallel loops around one loop over lanes without reductions runs one
element per thread, in a grid-stride loop. Block: any other nest runs one parallel iteration per block, with its lanes
strided over the threads of the block and reductions combined across them. A local array is kept in registers if each
element is accessed by one thread only, and in shared memory otherwise; a loop in which threads access each other's
elements is followed by a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from compiler.codegen import index as ix
from compiler.codegen import loop_ir as lir
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.printer import Printer
from compiler.codegen.scalar import COMPUTE_BYTES, COMPUTE_TYPES, STORAGE_TYPES
from compiler.codegen.schedule import Schedule
from compiler.errors import UnsupportedError

MAX_BLOCKS = 1 << 20
"""Maximum number of blocks of a launch; grid-stride loops cover the rest."""
EVERY_THREAD, ANY_THREAD = 0, -1
"""How threads access a local array; see `_owners`."""
SHARED_BYTES = 48 * 1024
"""Static shared memory that a block may use on any GPU."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The number of blocks of a launch and of threads per block; shared memory is static."""

    grid: int
    block: int


def preamble() -> str:
    """Return the CUDA C++ source that must precede the kernels of a file."""
    return resources.files("compiler.codegen").joinpath("preamble_cuda.h").read_text()


def print_cuda(kernel: lir.Kernel, symbol: str, schedule: Schedule | None = None) -> tuple[str, Launch]:
    """Return the source of `extern "C" __global__ void SYMBOL(inputs..., outputs...)` and its launch.

    Raises:
        UnsupportedError: the kernel needs too much shared memory or an atomic update that GPUs lack.
    """
    printer = _CudaPrinter(kernel, (schedule or Schedule()).block)
    printer.emit(f"typedef {printer.index_type} index_t;")
    printer.top(kernel.body)
    aliased = {kernel.arguments[n].name for pair in (*kernel.in_place, *kernel.must_alias) for n in pair}
    parameters = []
    for a in kernel.arguments:
        qualifier = "" if a.is_output else "const "
        restrict = "" if a.name in aliased else "__restrict__ "
        parameters.append(f"{qualifier}{STORAGE_TYPES.get(a.type, 'uint8_t')} *{restrict}{a.name}")
    head = f'extern "C" __global__ void __launch_bounds__({printer.threads}) {symbol}({", ".join(parameters)}) {{'
    launch = Launch(max(1, min(printer.blocks, MAX_BLOCKS)), printer.threads)
    return "\n".join([head, *printer.lines, "}", ""]), launch


class _CudaPrinter(Printer):
    """A printer of one kernel as CUDA C++, with the number of blocks and threads that it needs."""

    def __init__(self, kernel: lir.Kernel, threads: int) -> None:
        super().__init__(kernel)
        self.threads = _threads_for(kernel, threads)
        self.blocks = 1
        self._in_lane = False
        arrays = [x for x in lir.walk(kernel.body) if isinstance(x, lir.LocalArray)]
        owners = _owners(kernel.body)
        self._registers = {a.name for a in arrays if owners[a.name] == {a.size} and a.size <= self.threads}
        self._private = {a.name for a in arrays if owners[a.name] == {EVERY_THREAD}}
        self._exchanged = {a.name for a in arrays if len(owners[a.name]) > 1 or ANY_THREAD in owners[a.name]}
        shared = [a for a in arrays if a.name not in self._registers | self._private]
        held = sum(a.size * COMPUTE_BYTES[a.type] for a in shared)
        if held > SHARED_BYTES:
            raise UnsupportedError(f"the kernel needs {held} bytes of shared memory, more than {SHARED_BYTES}")

    # ---- top level: one grid-stride loop per nest

    def top(self, body: tuple[lir.Stmt, ...]) -> None:
        """Print nests as loops over the grid; every block computes the statements between them redundantly."""
        whole = any(isinstance(s, lir.LocalArray) for s in body)

        def one(s: lir.Stmt) -> None:
            if isinstance(s, lir.For) and not whole and _is_flat(s):
                self._flat(s)
            elif isinstance(s, lir.For) and s.kind is LoopKind.PARALLEL:
                self._blocks(s)
            else:
                self.statement(s)

        self._sequence(body, one)

    def block(self, statements: tuple[lir.Stmt, ...]) -> None:
        self._sequence(statements, self.statement)

    def _sequence(self, statements: tuple[lir.Stmt, ...], one: Callable[[lir.Stmt], None]) -> None:
        """Print statements; after each loop, combine its reductions over the block or synchronize its threads."""
        declared = {s.name for s in statements if isinstance(s, lir.Accumulator)}
        for s in statements:
            one(s)
            if not isinstance(s, lir.For) or self._in_lane:
                continue
            reductions = [r for r in _lane_reductions(s) if r.accumulator in declared]
            self._combine(reductions)
            if not reductions and any(name in self._exchanged for name, _, _ in _accesses((s,), None)):
                self.emit("__syncthreads();")

    def _combine(self, reductions: list[lir.Reduction]) -> None:
        for r in reductions:
            t = COMPUTE_TYPES[r.type]
            wide = "int" if r.type.bits < 32 and not r.type.is_float else t
            self.emit(
                f"{r.accumulator} = ({t})block_reduce<{wide}>(({wide}){r.accumulator}, combine_{r.combiner}(), "
                f"({wide}){r.identity});"
            )

    def _flat(self, s: lir.For) -> None:
        path = _path(s)
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

    def _blocks(self, s: lir.For) -> None:
        nest = [s]
        while len(nest[-1].body) == 1:
            inner = nest[-1].body[0]
            if not isinstance(inner, lir.For) or inner.kind is not LoopKind.PARALLEL:
                break
            nest.append(inner)
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
        v = s.var.name
        lanes = s.kind is LoopKind.LANE and not self._in_lane
        start, step = ("threadIdx.x", "blockDim.x") if lanes else ("0", "1")
        end = str(s.var.extent)
        if s.base is not None:
            room = f"{s.limit} - ({s.base.to_c()})"
            end = f"({room} < {end} ? {room} : {end})"
        self.emit(f"for (index_t {v} = {start}; {v} < {end}; {v} += {step}) {{")
        before, self._in_lane = self._in_lane, self._in_lane or lanes
        self.indented(s.body)
        self._in_lane = before
        self.emit("}")

    def local_array(self, s: lir.LocalArray) -> None:
        if s.name in self._registers:
            self.emit(f"{COMPUTE_TYPES[s.type]} {s.name};")
            return
        where = "" if s.name in self._private else "__shared__ "
        self.emit(f"{where}{COMPUTE_TYPES[s.type]} {s.name}[{s.size}];")

    def local_element(self, array: str, offset: ix.IndexExpr) -> str:
        return array if array in self._registers else super().local_element(array, offset)

    def update(self, s: lir.Update) -> None:
        t = self.types[s.buffer]
        if t.bits not in (32, 64):
            raise UnsupportedError(f"no atomic update of {t.text} on a GPU")
        # Outside of loops over lanes every thread executes this statement, but only one may do the update.
        once = "" if self._in_lane else "if (threadIdx.x == 0 && blockIdx.x == 0) "
        self.emit(f"{once}atomic_update(&{s.buffer}[{s.offset.to_c()}], {s.value}, combine_{s.combiner}());")

    def store(self, s: lir.Store) -> None:
        if self._in_lane:
            super().store(s)
            return
        self.emit("if (threadIdx.x == 0) {")
        self.depth += 1
        super().store(s)
        self._end()

    def from_bfloat16(self, element: str) -> str:
        return f"__bfloat162float({element})"

    def to_bfloat16(self, value: str) -> str:
        return f"__float2bfloat16_rn({value})"

    def from_half(self, element: str) -> str:
        return f"__half2float({element})"

    def to_half(self, value: str) -> str:
        return f"__float2half_rn({value})"


def _owners(body: tuple[lir.Stmt, ...]) -> dict[str, set[int]]:
    """Return which threads access each local array, with one value for each way it is accessed.

    n > 0: lane e mod n of a loop of n lanes accesses element e. EVERY_THREAD: an access outside of loops over lanes, by
    every thread. ANY_THREAD: any other access.
    """
    found: dict[str, set[int]] = {x.name: set() for x in lir.walk(body) if isinstance(x, lir.LocalArray)}
    for name, offset, lane in _accesses(body, None):
        found[name].add(EVERY_THREAD if lane is None else _owner(offset, lane))
    return found


def _owner(offset: ix.IndexExpr, lane: ix.Var) -> int:
    others = [c for a, c in offset.terms if a != lane]
    regular = all(c % lane.extent == 0 for c in (*others, offset.const))
    return lane.extent if regular and offset.coefficient(lane) == 1 else ANY_THREAD


def _accesses(body: tuple[lir.Stmt, ...], lane: ix.Var | None) -> Iterator[tuple[str, ix.IndexExpr, ix.Var | None]]:
    """Yield (array, offset, variable of the enclosing loop over lanes or None) for every access to a local array."""
    for s in body:
        if isinstance(s, lir.Let) and isinstance(s.value, lir.LocalLoad):
            yield s.value.array, s.value.offset, lane
        elif isinstance(s, lir.LocalStore):
            yield s.array, s.offset, lane
        elif isinstance(s, lir.If):
            yield from _accesses((*s.then, *s.otherwise), lane)
        elif isinstance(s, lir.For):
            yield from _accesses(s.body, s.var if lane is None and s.kind is LoopKind.LANE else lane)


def _is_flat(s: lir.For) -> bool:
    """Check whether a nest is one path of parallel loops to lanes, without reductions, local arrays or other loops."""
    at = s
    while True:
        loops = [x for x in at.body if isinstance(x, lir.For)]
        if at.reductions or any(isinstance(x, lir.LocalArray) for x in at.body):
            return False
        if at.kind is LoopKind.ATOMIC:
            return True
        if at.kind is LoopKind.LANE:
            return not any(isinstance(x, lir.For) and x.kind is LoopKind.LANE for x in lir.walk(at.body))
        if at.kind is not LoopKind.PARALLEL or len(loops) > 1:
            return False
        if not loops:
            return True
        if any(isinstance(x, lir.Store) for x in at.body):
            return False
        at = loops[0]


def _path(s: lir.For) -> list[lir.For]:
    path = [s]
    while path[-1].kind is LoopKind.PARALLEL:
        inner = next((x for x in path[-1].body if isinstance(x, lir.For)), None)
        if inner is None:
            break
        path.append(inner)
    return path


def _lane_reductions(s: lir.For) -> list[lir.Reduction]:
    return [r for x in lir.walk((s,)) if isinstance(x, lir.For) and x.kind is LoopKind.LANE for r in x.reductions]


def _threads_for(kernel: lir.Kernel, requested: int) -> int:
    """Return the threads per block: whole warps, at most `requested` threads and as many as the longest loop needs."""
    longest = max(
        (x.var.extent for x in lir.walk(kernel.body) if isinstance(x, lir.For) and x.kind is LoopKind.LANE), default=1
    )
    return max(32, min(requested // 32 * 32, -(-longest // 32) * 32, 1024))
