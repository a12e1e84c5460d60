"""The CUDA C++ printer: it prints a nest that is bound to the blocks and threads of a GPU.

Loops over the grid and over blocks become grid-stride loops; all threads of a block run the statements outside of loops
over threads, and one of them stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import LoopKind, Scope
from compiler.codegen.nest.scalar_ops import identity_of
from compiler.codegen.printing.printer import Printer
from compiler.codegen.printing.scalar import COMPUTE_TYPES, STORAGE_TYPES, constant_text
from compiler.errors import UnsupportedError

MAX_BLOCKS = 1 << 20
"""Maximum number of blocks of a launch; grid-stride loops cover the rest."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The number of blocks of a launch and of threads per block; shared memory is static."""

    grid: int
    block: int


def preamble() -> str:
    """Return the CUDA C++ source that must precede the kernels of a file."""
    folder = resources.files("compiler.codegen.printing")
    return "".join(folder.joinpath(name).read_text() for name in ("preamble_cuda.h", "small_floats.h"))


def print_cuda(kernel: lir.Kernel, symbol: str) -> tuple[str, Launch]:
    """Return the source of `extern "C" __global__ void SYMBOL(inputs..., outputs...)` and its launch.

    Raises:
        UnsupportedError: the kernel needs an atomic update that GPUs lack.
    """
    printer = _CudaPrinter(kernel)
    printer.emit(f"typedef {printer.index_type} index_t;")
    printer.block(kernel.body)
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

    def __init__(self, kernel: lir.Kernel) -> None:
        super().__init__(kernel)
        self.threads = kernel.threads
        self.blocks = 1
        self._in_lane = False
        self._registers = {
            a.name for a in lir.walk(kernel.body) if isinstance(a, lir.LocalArray) and a.scope is Scope.REGISTER
        }

    def statement(self, s: lir.Stmt) -> None:
        if isinstance(s, lir.Barrier):
            self.emit("__syncthreads();")
        elif isinstance(s, lir.CombineThreads):
            self._combine(s.combined)
        else:
            super().statement(s)

    def _combine(self, combined: tuple[lir.Combined, ...]) -> None:
        for c in combined:
            t = COMPUTE_TYPES[c.type]
            wide = "int" if c.type.bits < 32 and not c.type.is_float else t
            identity = constant_text(identity_of(c.combiner, c.type), c.type)
            self.emit(
                f"{c.accumulator} = ({t})block_reduce<{wide}>(({wide}){c.accumulator}, combine_{c.combiner.text}(), "
                f"({wide}){identity});"
            )

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
            self._blocks(s)
        else:
            self._inner_loop(s)

    def _inner_loop(self, s: lir.For) -> None:
        v = s.var.name
        lanes = s.kind is LoopKind.THREAD
        if s.kind is LoopKind.UNROLLED:
            self.emit("#pragma unroll")
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
        where = "__shared__ " if s.scope is Scope.SHARED else ""
        self.emit(f"{where}{COMPUTE_TYPES[s.type]} {s.name}[{s.size}];")

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


def _path(s: lir.For, kind: LoopKind) -> list[lir.For]:
    """Return the nested loops of a kind, from the outermost one."""
    path = [s]
    while True:
        inner = next((x for x in path[-1].body if isinstance(x, lir.For) and x.kind is kind), None)
        if inner is None:
            return path
        path.append(inner)
