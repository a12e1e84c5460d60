"""The C printer: lanes become SIMD loops, and loops with enough work run on a thread pool.

A loop that threads share is outlined, as OpenMP compilers do: its body becomes a function of a range of iterations
(`SYMBOL_partN`), the values it captures become members of a struct, and the loop becomes a call of `hlogym_parallel`
with the two. Parallel loops do not nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import resources

from compiler.codegen import loop_ir as lir
from compiler.codegen.index import IndexExpr
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.printer import Printer, statement_count
from compiler.codegen.scalar import COMPUTE_TYPES, STORAGE_TYPES, combine_template
from compiler.ir.types import PrimitiveType as T

PARALLEL_WORK = 60_000
"""Minimum number of statements for which a loop runs on several threads; waking them costs more than a shorter loop."""
CHUNK_WORK = 20_000
"""Minimum number of statements in a chunk, the unit of work of one thread."""
MIN_ITEMS = 64
"""Nested parallel loops are merged until they have this many iterations, so that threads share them evenly."""
MAX_PARTIALS = 256
"""Maximum number of partial results of a reduction that runs on several threads."""
LONG_WORK = 20_000_000
"""Minimum number of statements for which a sequential loop checks for interrupts."""
SLICE_WORK = 500_000
"""Number of statements that such a loop runs between two checks."""
_OPERATORS = {"add": "+", "multiply": "*", "and": "&", "or": "|"}


def preamble() -> str:
    """Return the C source that must precede the kernels of a file."""
    folder = resources.files("compiler.codegen")
    return "".join(folder.joinpath(name).read_text() for name in ("preamble_c.h", "math_c.h"))


def print_c(kernel: lir.Kernel, symbol: str) -> str:
    """Return the C source of `void SYMBOL(void *const *arguments)`; the arguments are the inputs, then the outputs."""
    printer = _CPrinter(kernel, symbol)
    printer.prologue("arguments")
    printer.block(kernel.body)
    main = "\n".join([f"void {symbol}(void *const *arguments) {{", *printer.lines, "}", ""])
    return "\n".join([*printer.functions, main])


class _CPrinter(Printer):
    """A printer of one kernel as C; `functions` holds the functions outlined so far."""

    def __init__(self, kernel: lir.Kernel, symbol: str) -> None:
        super().__init__(kernel)
        self.symbol = symbol
        self.functions: list[str] = []
        self._types: dict[str, str] = {}  # C types of the names in scope
        self._constants: dict[str, str] = {}  # and the values of the literals among them
        self._inside_parallel = False
        self._inside_lane = False

    def prologue(self, arguments: str) -> None:
        """Print the index type and a pointer for each array argument."""
        self.emit(f"typedef {self.index_type} index_t;")
        for n, a in enumerate(self.kernel.arguments):
            qualifier = "" if a.is_output else "const "
            c_type = STORAGE_TYPES.get(a.type, "uint8_t")
            self.emit(f"{qualifier}{c_type} *{a.name} = ({qualifier}{c_type} *){arguments}[{n}];")

    def statement(self, s: lir.Stmt) -> None:
        super().statement(s)
        if isinstance(s, lir.Let | lir.Accumulator):
            self._types[s.name] = COMPUTE_TYPES[s.type]
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Constant):
            self._constants[s.name] = s.value.text

    def local_array(self, s: lir.LocalArray) -> None:
        self.emit(f"{COMPUTE_TYPES[s.type]} {s.name}[{s.size}] __attribute__((aligned(64)));")
        self._types[s.name] = f"{COMPUTE_TYPES[s.type]} *"

    def update(self, s: lir.Update) -> None:
        # Loops with updates run sequentially in C, so the update need not be atomic.
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
        """Print a bottom-up merge sort of element numbers that alternates between two arrays."""
        n, left, right = s.position.extent, s.left.name, s.right.name
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
            f"for (index_t {s.position.name} = 0; {s.position.name} < {n}; {s.position.name}++) {{",
            f"  const index_t {left} = order[{s.position.name}];",
        ):
            self.emit(line)
        self.indented(s.body)
        self.emit("}")
        self.emit("__builtin_free(memory);")
        self.depth -= 1
        self.emit("}")

    def index_value(self, value: IndexExpr, t: T) -> str:
        # Conversions from 32-bit integers to float vectorize everywhere; AVX2 has none from 64-bit integers.
        narrow = t.is_float and t is not T.F64 and self.index_type == "int64_t" and value.range[1] < 2**31
        return f"({COMPUTE_TYPES[t]}){'(int32_t)' if narrow else ''}({value.to_c()})"

    # ---- loops

    def loop(self, s: lir.For) -> None:
        work = s.var.extent * statement_count(s.body)
        is_parallel = s.kind in (LoopKind.PARALLEL, LoopKind.LANE) and s.base is None
        if is_parallel and not self._inside_parallel and work >= PARALLEL_WORK:
            self._parallel_loop(s)
        elif s.kind in (LoopKind.SERIAL, LoopKind.ATOMIC) and s.base is None and work >= LONG_WORK:
            self._long_loop(s, work)
        else:
            self._plain_loop(s, "0", str(s.var.extent))

    def _plain_loop(self, s: lir.For, first: str, last: str) -> None:
        v, simd = s.var.name, s.kind is LoopKind.LANE and not self._inside_lane and not _has_loop(s.body)
        if simd:
            self.emit(" ".join(["#pragma omp simd", *map(_clause, s.reductions)]))
        if s.base is not None:
            room = f"{s.limit} - ({s.base.to_c()})"
            last = f"({room} < {s.var.extent} ? {room} : {s.var.extent})"
        self.emit(f"for (index_t {v} = {first}; {v} < {last}; {v}++) {{")
        self._body(s)
        self.emit("}")

    def _body(self, s: lir.For) -> None:
        outside = self._inside_lane
        self._inside_lane |= s.kind is LoopKind.LANE
        self._types[s.var.name] = self.index_type
        self.indented(s.body)
        self._inside_lane = outside

    def _long_loop(self, s: lir.For, work: int) -> None:
        """Print a long sequential loop in slices, with a check for interrupts between them."""
        v, n = s.var.name, s.var.extent
        step = max(1, SLICE_WORK * n // work)
        self.emit(f"for (int64_t {v}_slice = 0; {v}_slice < {n} && !hlogym_interrupted(); {v}_slice += {step}) {{")
        self.depth += 1
        self.emit(f"const int64_t {v}_end = {v}_slice + {step} < {n} ? {v}_slice + {step} : {n};")
        self._plain_loop(s, f"(index_t){v}_slice", f"(index_t){v}_end")
        self.depth -= 1
        self.emit("}")

    # ---- loops that run on several threads

    def _parallel_loop(self, s: lir.For) -> None:
        """Outline the loop into a function of a range of iterations that runs on the thread pool."""
        if s.reductions:
            self._parallel_reduction(s)
            return
        # A short loop is merged with the parallel loop that is its whole body, to have enough items for all threads.
        nest = [s]
        while (
            math.prod(f.var.extent for f in nest) < MIN_ITEMS and (inner := _only_parallel_loop(nest[-1])) is not None
        ):
            nest.append(inner)
        grain = max(1, CHUNK_WORK // max(1, statement_count(nest[-1].body)))
        if s.kind is LoopKind.LANE:
            grain = -(-grain // 64) * 64  # a chunk should end at a vector and at a cache line
        items = math.prod(f.var.extent for f in nest)
        self._outline(_captured_names(s, self._types), items, grain, lambda: self._iterations(nest))

    def _iterations(self, nest: list[lir.For]) -> None:
        """Print iterations `first` to `last` of a nest whose loops are merged into one."""
        if len(nest) == 1:
            self._plain_loop(nest[0], "(index_t)first", "(index_t)last")
            return
        below = 1
        for f in reversed(nest):
            wrapped = "" if f is nest[0] else f" % {f.var.extent}"
            self.emit(f"index_t {f.var.name} = (index_t)(first / {below}{wrapped});")
            self._types[f.var.name] = self.index_type
            below *= f.var.extent
        self.emit("for (int64_t item = first; item < last; item++) {")
        self.indented(nest[-1].body)
        # Increment the innermost index, and on overflow the next outer one: cheaper than a division per item.
        for f in reversed(nest[1:]):
            self.depth += 1
            self.emit(f"if (++{f.var.name} == {f.var.extent}) {{")
            self.emit(f"  {f.var.name} = 0;")
        self.emit(f"  {nest[0].var.name}++;")
        for _ in nest[1:]:
            self.emit("}")
            self.depth -= 1
        self.emit("}")

    def _parallel_reduction(self, s: lir.For) -> None:
        """Print a reduction as partial results of fixed blocks, combined in order.

        The blocks do not depend on the number of threads, so neither does the rounding of the result.
        """
        n = s.var.extent
        block = max(CHUNK_WORK // max(1, statement_count(s.body)), -(-n // MAX_PARTIALS))
        block = -(-block // 64) * 64
        count = -(-n // block)
        names = {
            k: t for k, t in _captured_names(s, self._types).items() if k not in {r.accumulator for r in s.reductions}
        }
        self.emit("{")
        self.depth += 1
        for r in s.reductions:
            self.emit(f"{COMPUTE_TYPES[r.type]} {r.accumulator}_partials[{count}];")
            names[f"{r.accumulator}_partials"] = f"{COMPUTE_TYPES[r.type]} *"
        self._outline(names, count, 1, lambda: self._partial_results(s, block))
        self.emit(f"for (int k = 0; k < {count}; k++) {{")
        for r in s.reductions:
            combined = combine_template(r.combiner, r.type).format(r.accumulator, f"{r.accumulator}_partials[k]")
            self.emit(f"  {r.accumulator} = {combined};")
        self.emit("}")
        self.depth -= 1
        self.emit("}")

    def _partial_results(self, s: lir.For, block: int) -> None:
        """Print the function body that reduces blocks `first` to `last`."""
        n = s.var.extent
        self.emit("for (int64_t part = first; part < last; part++) {")
        self.depth += 1
        self.emit(f"const int64_t begin = part * {block}, end = begin + {block} < {n} ? begin + {block} : {n};")
        for r in s.reductions:
            self.emit(f"{COMPUTE_TYPES[r.type]} {r.accumulator} = {r.identity};")
        self._plain_loop(s, "(index_t)begin", "(index_t)end")
        for r in s.reductions:
            self.emit(f"{r.accumulator}_partials[part] = {r.accumulator};")
        self.depth -= 1
        self.emit("}")

    def _outline(self, names: Mapping[str, str], items: int, grain: int, write_body: Callable[[], None]) -> None:
        """Outline a loop: print a function of a range of items, and its parallel call in place of the loop.

        Args:
            names: C types of the names that the function captures.
            items: number of items.
            grain: minimum number of items that a thread takes at a time.
            write_body: prints the body, in which `first` and `last` bound the range.
        """
        constants = [name for name in names if name in self._constants]
        names = {name: c_type for name, c_type in names.items() if name not in self._constants}
        # The slot is reserved before the body is printed; the function is printed into empty `lines`, which are then
        # put into the slot, and the text around the loop is restored.
        number = len(self.functions)
        function = f"{self.symbol}_part{number}"
        self.functions.append("")
        outside = self.lines, self.depth, dict(self._types)
        self.lines, self.depth, self._inside_parallel = [], 1, True
        self.emit(f"const struct {function} *const shared = (const struct {function} *)context;")
        self.prologue("shared->arguments")
        for name in constants:  # redeclared, not captured, so that the C compiler can fold them
            self.emit(f"{self._types[name]} const {name} = {self._constants[name]};")
        for name, c_type in names.items():
            self.emit(f"{c_type} const {name} = shared->{name};")
        write_body()
        members = " ".join(f"{c_type} {name};" for name, c_type in names.items())
        self.functions[number] = "\n".join(
            [
                f"struct {function} {{ void *const *arguments; {members} }};",
                f"static void {function}(void *context, int64_t first, int64_t last) {{",
                *self.lines,
                "}",
                "",
            ]
        )
        self.lines, self.depth, self._types = outside
        self._inside_parallel = False
        self.emit("{")
        self.emit(f"  struct {function} shared = {{{', '.join(['arguments', *names])}}};")
        self.emit(f"  hlogym_parallel({function}, &shared, {items}, {grain});")
        self.emit("}")


def _clause(r: lir.Reduction) -> str:
    operator = _OPERATORS.get(r.combiner)
    if operator is None:
        # OpenMP's max and min are right for integers; for floats the preamble declares reductions that propagate NaN.
        operator = r.combiner if r.type.is_float else r.combiner[:3]
    return f"reduction({operator}:{r.accumulator})"


def _has_loop(body: tuple[lir.Stmt, ...]) -> bool:
    return any(isinstance(x, lir.For) for x in lir.walk(body))


def _only_parallel_loop(f: lir.For) -> lir.For | None:
    """Return the parallel loop that is the whole body of a loop, or None."""
    inner = f.body[0]
    if len(f.body) != 1 or not isinstance(inner, lir.For):
        return None
    return inner if inner.kind is LoopKind.PARALLEL and inner.base is None else None


def _captured_names(loop: lir.For, types: Mapping[str, str]) -> dict[str, str]:
    """Return the names from outside that a loop uses, with their C types."""
    used = dict.fromkeys(lir.names_used((loop,)))
    inside = set(lir.names_defined((loop,)))
    return {name: types[name] for name in used if name in types and name not in inside}
