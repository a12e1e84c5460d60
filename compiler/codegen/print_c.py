"""Kernels as C with OpenMP: parallel loops are threads, lanes are SIMD."""

from __future__ import annotations

from importlib import resources

from compiler.codegen import loop_ir as lir
from compiler.codegen.index import Int
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.printer import Printer, statement_count
from compiler.codegen.scalar import COMPUTE_TYPES, STORAGE_TYPES, combine_template
from compiler.ir.types import PrimitiveType as T

PARALLEL_WORK = 60_000
"""Statements below which a loop is not worth waking threads for."""
_OPERATORS = {"add": "+", "multiply": "*", "and": "&", "or": "|"}


def preamble() -> str:
    """What must stand before the kernels of a source file."""
    return resources.files("compiler.codegen").joinpath("preamble_c.h").read_text()


def print_c(kernel: lir.Kernel, symbol: str) -> str:
    """`void SYMBOL(void *const *arguments)`: pointers to the inputs, then to the outputs."""
    printer = _CPrinter(kernel)
    printer.emit(f"typedef {printer.index_type} index_t;")
    for n, a in enumerate(kernel.arguments):
        qualifier = "" if a.is_output else "const "
        c_type = STORAGE_TYPES.get(a.type, "uint8_t")
        printer.emit(f"{qualifier}{c_type} *{a.name} = ({qualifier}{c_type} *)arguments[{n}];")
    printer.block(kernel.body)
    return "\n".join([f"void {symbol}(void *const *arguments) {{", *printer.lines, "}", ""])


class _CPrinter(Printer):
    def __init__(self, kernel: lir.Kernel) -> None:
        super().__init__(kernel)
        self._inside_parallel = 0
        self._inside_lane = 0

    def local_array(self, s: lir.LocalArray) -> None:
        self.emit(f"{COMPUTE_TYPES[s.type]} {s.name}[{s.size}] __attribute__((aligned(64)));")

    def update(self, s: lir.Update) -> None:
        # Loops that hold updates run in order here, so plain statements will do.
        t = self.types[s.buffer]
        current = self.load(lir.Load(s.buffer, s.offset))
        self.emit("{")
        self.depth += 1
        self.emit(f"const {COMPUTE_TYPES[t]} current = {current};")
        self.emit(f"const {COMPUTE_TYPES[t]} updated = {combine_template(s.combiner, t).format('current', s.value)};")
        self.store(lir.Store(s.buffer, s.offset, "updated"))
        self.depth -= 1
        self.emit("}")

    def sort(self, s: lir.Sort) -> None:
        """Runs are merged from the bottom up, from one array of numbers into another and back."""
        n, left, right = s.place.extent, s.left.name, s.right.name
        self.emit("{")
        self.depth += 1
        for line in (
            f"index_t *order = (index_t *)__builtin_malloc(2 * sizeof(index_t) * {n}), *spare = order + {n};",
            "index_t *const memory = order;",
            "if (memory == 0) __builtin_abort();",
            f"for (index_t k = 0; k < {n}; k++) order[k] = k;",
            f"for (int64_t width = 1; width < {n}; width *= 2) {{",
            f"  for (int64_t first = 0; first < {n}; first += 2 * width) {{",
            f"    const int64_t middle = first + width < {n} ? first + width : {n};",
            f"    const int64_t last = first + 2 * width < {n} ? first + 2 * width : {n};",
            "    int64_t i = first, j = middle, k = first;",
            "    while (i < middle && j < last) {",
            f"      const index_t {left} = order[i], {right} = order[j];",
        ):
            self.emit(line)
        self.depth += 3
        self.block(s.compare)
        self.depth -= 3
        for line in (
            f"      const int take = {s.before};",
            f"      spare[k++] = take ? {right} : {left};",
            "      j += take;",
            "      i += !take;",
            "    }",
            "    while (i < middle) spare[k++] = order[i++];",
            "    while (j < last) spare[k++] = order[j++];",
            "  }",
            "  index_t *const other = order;",
            "  order = spare;",
            "  spare = other;",
            "}",
            f"for (index_t {s.place.name} = 0; {s.place.name} < {n}; {s.place.name}++) {{",
            f"  const index_t {left} = order[{s.place.name}];",
        ):
            self.emit(line)
        self.indented(s.body)
        self.emit("}")
        self.emit("__builtin_free(memory);")
        self.depth -= 1
        self.emit("}")

    def index_value(self, value: Int, t: T) -> str:
        # 32-bit integers convert to float in vectors, 64-bit ones do not everywhere.
        narrow = t.is_float and t is not T.F64 and self.index_type == "int64_t" and value.range[1] < 2**31
        return f"({COMPUTE_TYPES[t]}){'(int32_t)' if narrow else ''}({value.to_c()})"

    def loop(self, s: lir.For) -> None:
        nest = [s]
        if s.kind is LoopKind.PARALLEL and not self._inside_parallel:
            while (inner := self._continuation(nest[-1])) is not None:
                nest.append(inner)
        threads = self._pragma(s, len(nest))
        for f in nest[:-1]:
            self._header(f)
            self.depth += 1
        self._inside_parallel += threads
        self._inside_lane += s.kind is LoopKind.LANE
        self._header(nest[-1])
        self.indented(nest[-1].body)
        self.emit("}")
        for _ in nest[:-1]:
            self.depth -= 1
            self.emit("}")
        self._inside_parallel -= threads
        self._inside_lane -= s.kind is LoopKind.LANE

    @staticmethod
    def _continuation(f: lir.For) -> lir.For | None:
        """The parallel loop right inside, when it is all there is."""
        inner = f.body[0]
        if len(f.body) != 1 or not isinstance(inner, lir.For):
            return None
        return inner if inner.kind is LoopKind.PARALLEL and inner.base is None else None

    def _header(self, f: lir.For) -> None:
        v = f.var.name
        if f.base is None:
            self.emit(f"for (index_t {v} = 0; {v} < {f.var.extent}; {v}++) {{")
            return
        room = f"{f.limit} - ({f.base.to_c()})"
        self.emit(f"for (index_t {v} = 0; {v} < ({room} < {f.var.extent} ? {room} : {f.var.extent}); {v}++) {{")

    def _pragma(self, s: lir.For, nested: int) -> bool:
        """The line before a loop; whether it starts threads."""
        worth = s.var.extent * statement_count(s.body) >= PARALLEL_WORK
        threads = worth and not self._inside_parallel and s.kind in (LoopKind.PARALLEL, LoopKind.LANE)
        words = []
        if threads:
            words.append("parallel for")
        if s.kind is LoopKind.LANE and not self._inside_lane and not _has_loop(s.body):
            words.append("simd")
        if not words:
            return False
        if threads:
            words.append("schedule(static)")
            if nested > 1:
                words.append(f"collapse({nested})")
        words += [self._clause(r) for r in s.reductions]
        self.emit("#pragma omp " + " ".join(words))
        return threads

    @staticmethod
    def _clause(r: lir.Reduction) -> str:
        operator = _OPERATORS.get(r.combiner)
        if operator is None:
            # OpenMP's own max and min suit integers; floats need NaN passed on.
            operator = r.combiner if r.type.is_float else r.combiner[:3]
        return f"reduction({operator}:{r.accumulator})"


def _has_loop(body: tuple[lir.Stmt, ...]) -> bool:
    return any(isinstance(x, lir.For) for x in lir.walk(body))
