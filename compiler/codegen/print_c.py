"""Kernels as C: lanes are SIMD; loops with enough work become functions whose iterations a pool of threads shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import resources

from compiler.codegen import loop_ir as lir
from compiler.codegen.index import Int
from compiler.codegen.loop_ir import LoopKind
from compiler.codegen.printer import Printer, statement_count
from compiler.codegen.scalar import COMPUTE_TYPES, STORAGE_TYPES, combine_template
from compiler.ir.types import PrimitiveType as T

PARALLEL_WORK = 60_000
"""Statements below which a loop is not worth waking threads for."""
CHUNK_WORK = 20_000
"""Statements that one thread takes on at a time, at least."""
ITEMS = 64
"""Iterations that outer loops must have together, where there are that many, for threads to share them evenly."""
MAX_PARTIALS = 256
"""Partial results of a reduction whose loop is shared among threads."""
LONG_WORK = 20_000_000
"""Statements above which a loop that runs in order looks out for an interrupt."""
SLICE_WORK = 500_000
"""Statements such a loop runs between two looks."""
_OPERATORS = {"add": "+", "multiply": "*", "and": "&", "or": "|"}


def preamble() -> str:
    """What must stand before the kernels of a source file."""
    return resources.files("compiler.codegen").joinpath("preamble_c.h").read_text()


def print_c(kernel: lir.Kernel, symbol: str) -> str:
    """`void SYMBOL(void *const *arguments)`: pointers to the inputs, then to the outputs."""
    printer = _CPrinter(kernel, symbol)
    printer.prologue("arguments")
    printer.block(kernel.body)
    main = "\n".join([f"void {symbol}(void *const *arguments) {{", *printer.lines, "}", ""])
    return "\n".join([*printer.functions, main])


class _CPrinter(Printer):
    def __init__(self, kernel: lir.Kernel, symbol: str) -> None:
        super().__init__(kernel)
        self.symbol = symbol
        self.functions: list[str] = []
        self._types: dict[str, str] = {}  # C types of the names that stand where the text has got to
        self._constants: dict[str, str] = {}  # and the values of those that are literals
        self._inside_parallel = False
        self._inside_lane = False

    def prologue(self, arguments: str) -> None:
        """Names of the arrays."""
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

    # ---- loops

    def loop(self, s: lir.For) -> None:
        work = s.var.extent * statement_count(s.body)
        may_share = s.kind in (LoopKind.PARALLEL, LoopKind.LANE) and s.base is None
        if may_share and not self._inside_parallel and work >= PARALLEL_WORK:
            self._shared_loop(s)
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
        """A loop that runs in order for long, in slices between which it looks out for an interrupt."""
        v, n = s.var.name, s.var.extent
        step = max(1, SLICE_WORK * n // work)
        self.emit(f"for (int64_t {v}_slice = 0; {v}_slice < {n} && !hlogym_interrupted(); {v}_slice += {step}) {{")
        self.depth += 1
        self.emit(f"const int64_t {v}_end = {v}_slice + {step} < {n} ? {v}_slice + {step} : {n};")
        self._plain_loop(s, f"(index_t){v}_slice", f"(index_t){v}_end")
        self.depth -= 1
        self.emit("}")

    # ---- loops that threads share

    def _shared_loop(self, s: lir.For) -> None:
        """Put the loop's body into a function of a range of iterations, and hand that to the pool."""
        if s.reductions:
            self._shared_reduction(s)
            return
        nest = [s]
        while math.prod(f.var.extent for f in nest) < ITEMS and (inner := _only_parallel_loop(nest[-1])) is not None:
            nest.append(inner)
        grain = max(1, CHUNK_WORK // max(1, statement_count(nest[-1].body)))
        if s.kind is LoopKind.LANE:
            grain = -(-grain // 64) * 64  # whole vectors and cache lines
        items = math.prod(f.var.extent for f in nest)
        self._share(_outer_names(s, self._types), items, grain, lambda: self._iterations(nest))

    def _iterations(self, nest: list[lir.For]) -> None:
        """Iterations `first` to `last` of a nest whose loops count as one."""
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
        # The next position: the innermost index counts up, and at its end the one around it does.
        for f in reversed(nest[1:]):
            self.depth += 1
            self.emit(f"if (++{f.var.name} == {f.var.extent}) {{")
            self.emit(f"  {f.var.name} = 0;")
        self.emit(f"  {nest[0].var.name}++;")
        for _ in nest[1:]:
            self.emit("}")
            self.depth -= 1
        self.emit("}")

    def _shared_reduction(self, s: lir.For) -> None:
        """Partial results of blocks, combined in order: the result is the same for any number of threads."""
        n = s.var.extent
        block = max(CHUNK_WORK // max(1, statement_count(s.body)), -(-n // MAX_PARTIALS))
        block = -(-block // 64) * 64
        count = -(-n // block)
        names = {
            k: t for k, t in _outer_names(s, self._types).items() if k not in {r.accumulator for r in s.reductions}
        }
        self.emit("{")
        self.depth += 1
        for r in s.reductions:
            self.emit(f"{COMPUTE_TYPES[r.type]} {r.accumulator}_partials[{count}];")
            names[f"{r.accumulator}_partials"] = f"{COMPUTE_TYPES[r.type]} *"
        self._share(names, count, 1, lambda: self._partial_results(s, block))
        self.emit(f"for (int k = 0; k < {count}; k++) {{")
        for r in s.reductions:
            combined = combine_template(r.combiner, r.type).format(r.accumulator, f"{r.accumulator}_partials[k]")
            self.emit(f"  {r.accumulator} = {combined};")
        self.emit("}")
        self.depth -= 1
        self.emit("}")

    def _partial_results(self, s: lir.For, block: int) -> None:
        """Blocks `first` to `last` of a reduction."""
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

    def _share(self, names: Mapping[str, str], items: int, grain: int, write_body: Callable[[], None]) -> None:
        """Define a function of a range of items that sees `names` (and their C types), and share its items."""
        constants = [name for name in names if name in self._constants]
        names = {name: c_type for name, c_type in names.items() if name not in self._constants}
        number = len(self.functions)
        function = f"{self.symbol}_part{number}"
        self.functions.append("")
        outside = self.lines, self.depth, dict(self._types)
        self.lines, self.depth, self._inside_parallel = [], 1, True
        self.emit(f"const struct {function} *const shared = (const struct {function} *)context;")
        self.prologue("shared->arguments")
        for name in constants:  # literals again, so that the C compiler knows their values
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
        # OpenMP's own max and min suit integers; floats need NaN passed on.
        operator = r.combiner if r.type.is_float else r.combiner[:3]
    return f"reduction({operator}:{r.accumulator})"


def _has_loop(body: tuple[lir.Stmt, ...]) -> bool:
    return any(isinstance(x, lir.For) for x in lir.walk(body))


def _only_parallel_loop(f: lir.For) -> lir.For | None:
    """The parallel loop right inside, when it is all there is."""
    inner = f.body[0]
    if len(f.body) != 1 or not isinstance(inner, lir.For):
        return None
    return inner if inner.kind is LoopKind.PARALLEL and inner.base is None else None


def _outer_names(loop: lir.For, types: Mapping[str, str]) -> dict[str, str]:
    """What a loop uses of the names that stand around it, with their C types."""
    used = dict.fromkeys(lir.names_used((loop,)))
    inside = set(lir.names_defined((loop,)))
    return {name: types[name] for name in used if name in types and name not in inside}
