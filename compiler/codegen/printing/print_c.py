"""The C printer: it prints a nest that is bound to the threads and vectors of a CPU.

A loop that threads share is outlined, as OpenMP compilers do: its body becomes a function of a range of iterations
(`SYMBOL_partN`), the values it captures become members of a struct, and the loop becomes a call of `hlogym_parallel`
with the two. Parallel loops do not nest, except for those that are one loop over several variables.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, ScalarOp, binary
from compiler.codegen.nest.traversal import names_defined, names_used, walk
from compiler.codegen.printing.byte_lanes import byte_loads
from compiler.codegen.printing.narrow_values import narrow_values
from compiler.codegen.printing.print_order import index_mask, key_text, order_functions
from compiler.codegen.printing.print_products import product_call, product_function, span_size
from compiler.codegen.printing.printer import Printer
from compiler.codegen.printing.scalar import (
    COMPUTE_TYPES,
    STORAGE_TYPES,
    constant_text,
    converts_small_floats,
    expression_of,
)
from compiler.codegen.printing.vector_loop import VectorLoop, reads_found_rows, repeats_long_vectors
from compiler.codegen.schedules.loop_transforms import has_loop, perfect_nest
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LIST_PADDING = 16
"""Entries that `hlogym_flagged` of the preamble writes after a list."""
FEWEST_LANES, MOST_LANES = 4, 64
"""Numbers of elements in a vector; one has 64 bytes at most."""
HALVES = 16
"""Elements that `widen_halves` and `narrow_halves` of the preamble convert. The names of those for fewer have their
number."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_DECLARATION = re.compile(r" *(?:typedef \w+ (\w+)|(?:const )?\w+ (?:\*(?:const )?|const )?(\w+) = .*);$")
_DIVISIONS = {Opcode.DIVIDE: "quotient", Opcode.REMAINDER: "remainder"}
"""Functions of division.h; their names end with a type."""
_LANE_RESULTS = {Opcode.ADD: "sum", Opcode.MAXIMUM: "maximum", Opcode.MINIMUM: "minimum"}
"""Functions of lane_results.h; their names end with a number of lanes and a type."""
_LOGIC = frozenset({Opcode.AND, Opcode.OR, Opcode.XOR, Opcode.COMPARE})
_MASKS = {"float": "uint32_t", "double": "uint64_t"} | {
    f"{sign}int{bits}_t": f"uint{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""The types of masks for values of other types."""
_OPERATORS = {Opcode.ADD: "+", Opcode.MULTIPLY: "*", Opcode.AND: "&", Opcode.OR: "|"}
_SATURATED = frozenset({T.S32, T.S64, T.U32, T.U64})
"""Integers to which the preamble converts floats; narrower ones are made of these."""


def preamble() -> str:
    """Return the C source that must precede the kernels of a file."""
    folder = resources.files("compiler.codegen.printing")
    return "".join(folder.joinpath(name).read_text() for name in ("preamble_c.h", "math_c.h"))


def print_c(kernel: lir.Kernel, symbol: str) -> str:
    """Return the C source of `void SYMBOL(void *const *arguments)`; the arguments are the inputs, then the outputs."""
    printer = _CPrinter(kernel, symbol)
    printer.prologue("arguments")
    printer.block(kernel.body)
    # A kernel without elements uses none of its arguments.
    lines = _without_unused(printer.lines) or ["  (void)arguments;"]
    main = "\n".join([f"{printer.attributes}void {symbol}(void *const *arguments) {{", *lines, "}", ""])
    return "\n".join([*map(_helper, printer.helpers), *printer.products, *printer.functions, main])


def _helper(name: str) -> str:
    """Return the text of a header of functions that only some kernels need."""
    return resources.files("compiler.codegen.printing").joinpath(name).read_text()


class _CPrinter(Printer):
    """A printer of one kernel as C; `functions` and `products` hold the functions that it calls."""

    def __init__(self, kernel: lir.Kernel, symbol: str) -> None:
        super().__init__(kernel)
        self.symbol = symbol
        self.functions: list[str] = []
        self.products: list[str] = []
        self.helpers: dict[str, None] = {}  # the headers that it needs
        self._types: dict[str, str] = {}  # C types of the names in scope
        self._local_types: dict[str, T] = {}  # element types of the local arrays
        self._constants: dict[str, str] = {}  # and the values of the literals among them
        self._in_vectors = False  # whether a loop is printed that gcc vectorizes; it does not with a sum of bools
        self._vector_loop: VectorLoop | None = None  # that is printed
        self._in_branch = False  # whether a branch is printed that its elements take or not
        self._masks: dict[tuple[str, str], str] = {}  # the masks of conditions outside of it, by their types
        self._truths: dict[
            str, str
        ] = {}  # tests of numbers, by the names of the bools outside of it that they stand for
        self._divisors: dict[tuple[str, str], str] = {}  # the divisors outside of it, by their types
        self._integers: dict[str, int] = {}  # constants
        self._parities: set[str] = set()  # remainders by 2 and lowest bits
        self._counts = 0  # numbers of iterations that have names, which differ: loops may share their variable
        self._narrow = narrow_values(kernel)
        self._widened: dict[str, str] = {}  # elements of arrays, by the names of the loads that they replace
        self.attributes = f"VECTOR_BITS({kernel.vector_bits}) " if kernel.vector_bits else ""

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
            self._constants[s.name] = constant_text(s.value.value, s.type)
            if s.type.is_integer:
                self._integers[s.name] = int(s.value.value)
        if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply) and self._is_parity(s.value):
            self._parities.add(s.name)

    def store(self, s: lir.Store) -> None:
        t = self.types[s.buffer]
        value = f"{t.name}_BITS_OF({s.value})" if (s.value, t) in self._narrow else self.stored(s.value, t)
        self.emit(f"{self._element(s.buffer, s.offset)} = {value};")

    def load(self, load: lir.Load) -> str:
        return self.converted(self._element(load.buffer, load.offset), self.types[load.buffer])

    def condition(self, s: lir.If) -> None:
        outside = self._in_branch
        self._in_branch = outside or (self._vector_loop is not None and s.condition in self._vector_loop.varying)
        super().condition(s)
        self._in_branch = outside

    def _element(self, buffer: str, offset: IndexExpr) -> str:
        """Return an element of an array.

        In a branch of a vector loop gcc does not know that the sum of an index does not overflow, and gathers adjacent
        elements one by one. What the loop does not change is therefore added to the pointer.
        """
        loop = self._vector_loop
        if loop is None:
            return f"{buffer}[{offset.to_c()}]"
        var = loop.var
        start = offset - ix.of(var)
        varies = {v for v in start.variables() if v.name in loop.varying}
        is_next = offset.coefficient(var) == 1 and not varies
        if self._in_branch and is_next and start != IndexExpr():
            return f"({buffer} + {start.to_c()})[{var.name}]"
        return f"{buffer}[{self._narrowed(offset, varies).to_c()}]"

    def _narrowed(self, offset: IndexExpr, varies: Iterable[IndexSymbol]) -> IndexExpr:
        """Return an index whose wide integers are converted: gcc has no gathers of narrow elements by wide indices."""
        if self.index_type != "int32_t":
            return offset
        wide = [v for v in varies if isinstance(v, Runtime) and self._types.get(v.name) == "int64_t"]
        return offset.substitute({v: ix.of(replace(v, name=f"(int32_t){v.name}")) for v in wide}) if wide else offset

    def store_pair(self, s: lir.StorePair) -> None:
        rounded = [x if (x, T.BF16) in self._narrow else f"ROUND_BF16({x})" for x in (s.first, s.second)]
        target = f"*(bfloat16_pair_t *)({s.buffer} + {s.offset.to_c()})"
        self.emit(f"{target} = F32_TO_BITS({rounded[0]}) >> 16 | F32_TO_BITS({rounded[1]});")

    def pair(self, value: lir.PairLoad | lir.PairHalf) -> str:
        if isinstance(value, lir.PairLoad):
            return f"*(const bfloat16_pair_t *)({value.buffer} + {value.offset.to_c()})"
        return f"BITS_TO_F32({value.pair} & 0xffff0000u)" if value.second else f"BITS_TO_F32({value.pair} << 16)"

    def local_array(self, s: lir.LocalArray) -> None:
        t = COMPUTE_TYPES[s.type]
        if s.type is T.PRED:  # loops that read a bool are not vectorized, and those over bytes and floats badly
            t = "int32_t" if self.kernel.kind == "loop-kernel" else "uint8_t"
        self.emit(f"{t} {s.name}[{s.size}] __attribute__((aligned(64)));")
        self._types[s.name] = f"{t} *"
        self._local_types[s.name] = s.type

    def expression(self, let: lir.Let) -> str:
        value = let.value
        if let.name in self._widened:
            return f"({COMPUTE_TYPES[let.type]}){self._widened[let.name]}"
        if isinstance(value, lir.Apply) and converts_small_floats(value.op):
            self.helpers["small_floats.h"] = None
        if self._in_vectors and isinstance(value, lir.Apply) and self._tests_parity(value):
            # gcc makes a bool of one bit of a parity and does not vectorize that; of twice the parity it makes none.
            x, y = (
                f"((uint64_t){a} << 1)" if value.op.type.bits == 64 else f"((uint32_t){a} << 1)" for a in value.args
            )
            return f"({x} {'==' if value.op.direction == 'EQ' else '!='} {y})"
        if self._in_vectors and isinstance(value, lir.Apply) and self._divides_vectors(value):
            self.helpers["division.h"] = None
            name, t = _DIVISIONS[value.op.opcode], value.op.type.text
            if self._divides_by_one(value):
                return f"{name}_by_{t}({value.args[0]}, {self._divisors[value.args[1], t]})"
            return f"{name}_{t}({', '.join(value.args)})"
        if isinstance(value, lir.Apply) and _saturates(value.op):
            source = "f64" if value.op.type is T.F64 else "f32"
            return f"{source}_to_{value.op.result.text}({value.args[0]})"
        if isinstance(value, lir.Apply) and self._truths and _combines_bools(value.op):
            args = tuple(self._truths.get(a, a) for a in value.args)
            let = replace(let, value=replace(value, args=args))
        if isinstance(value, lir.Apply) and self._selects_bools(value, let.type):
            condition, x, y = (self._truths.get(a, a) for a in value.args)
            return f"(bool)(({condition} & {x}) | (!{condition} & {y}))"
        if isinstance(value, lir.Apply) and self._selects_for_all(value, let.type):
            condition, x, y = value.args
            t = COMPUTE_TYPES[let.type]
            return f"choose_{t}({self._masks[condition, _MASKS[t]]}, {x}, {y})"
        text = super().expression(let)
        return f"(bool){text}" if isinstance(let.value, lir.LocalLoad) and let.type is T.PRED else text

    def _selects_for_all(self, value: lir.Apply, t: T) -> bool:
        """Check for a select in a long vector loop whose condition is the same for all elements.

        gcc 12 does not vectorize such a select, unless the loop is so short that it makes a copy for either outcome.
        """
        loop = self._vector_loop
        if loop is None or not loop.is_long or value.op.opcode is not Opcode.SELECT or t is T.PRED:
            return False
        return value.args[0] not in loop.defined

    def _selects_bools(self, value: lir.Apply, t: T) -> bool:
        """Check for a select between bools in a vector loop, of which gcc 12 makes no vectors."""
        return self._vector_loop is not None and value.op.opcode is Opcode.SELECT and t is T.PRED

    def _define_masks(self, s: lir.For) -> None:
        """Print masks for the selects of a vector loop whose condition is the same for all of its elements.

        gcc 12 converts such a condition inside of the loop, which it then does not vectorize.
        """
        found: dict[tuple[str, str], str] = {}
        for x in walk(s.body):
            if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and self._selects_for_all(x.value, x.type):
                condition, t = x.value.args[0], _MASKS[COMPUTE_TYPES[x.type]]
                if (condition, t) not in found:
                    self._counts += 1
                    found[condition, t] = f"{condition}_mask{self._counts}"
        for (condition, t), name in found.items():
            self.emit(f"const {t} {name} = ({t})hlogym_opaque(-(int64_t){condition});")
        self._masks.update(found)

    def _define_truths(self, s: lir.For) -> None:
        """Print numbers for the bools that are the same for all elements and that a vector loop combines with others.

        gcc 12 makes no vectors of such a loop, unless it finds the bool by a test of a number inside of it.
        """
        loop = self._vector_loop
        found: dict[str, str] = {}
        lets = [x for x in walk(s.body) if isinstance(x, lir.Let)]
        t = "int32_t" if any(x.type.bits > 8 for x in lets) else "uint8_t"
        for x in lets:
            if isinstance(x.value, lir.Apply) and (_combines_bools(x.value.op) or self._selects_bools(x.value, x.type)):
                for name in x.value.args:
                    is_fixed = loop is not None and name not in loop.defined and name not in self._constants
                    if is_fixed and name not in found and self._types.get(name) == "bool":
                        self._counts += 1
                        found[name] = f"({name}_number{self._counts} != 0)"
                        self.emit(f"const {t} {name}_number{self._counts} = ({t})hlogym_opaque({name});")
        self._truths = found

    def _define_divisors(self, s: lir.For) -> None:
        """Print what the divisions of a vector loop by one integer for all of its elements need."""
        found: dict[tuple[str, str], str] = {}
        for x in walk(s.body):
            if isinstance(x, lir.Let) and isinstance(x.value, lir.Apply) and self._divides_by_one(x.value):
                key = x.value.args[1], x.value.op.type.text
                if key not in found:
                    self._counts += 1
                    found[key] = f"{key[0]}_divisor{self._counts}"
        for (divisor, t), name in found.items():
            self.helpers["division.h"] = None
            self.emit(f"const one_divisor_{t} {name} = one_{t}({divisor});")
        self._divisors.update(found)

    def _divides_by_one(self, value: lir.Apply) -> bool:
        """Check for a division of integers of 32 bits in a vector loop whose divisor is the same for all elements."""
        loop = self._vector_loop
        if loop is None or not self._divides_vectors(value) or value.op.type.bits != 32:
            return False
        return value.args[1] not in loop.defined

    def _is_parity(self, value: lir.Apply) -> bool:
        """Check for an integer of -1, 0 or 1: a remainder by 2, or the lowest bit."""
        if not value.op.type.is_integer or len(value.args) != 2:
            return False
        x, y = (self._integers.get(a) for a in value.args)
        return (value.op.opcode is Opcode.REMAINDER and y in (2, -2)) or (value.op.opcode is Opcode.AND and 1 in (x, y))

    def _tests_parity(self, value: lir.Apply) -> bool:
        """Check for a comparison of a parity with another one or with a constant, whose doubles do not overflow."""
        if value.op.opcode is not Opcode.COMPARE or value.op.direction not in ("EQ", "NE"):
            return False
        return any(a in self._parities for a in value.args) and all(
            a in self._parities or self._integers.get(a) in (-1, 0, 1) for a in value.args
        )

    def _divides_vectors(self, value: lir.Apply) -> bool:
        """Check for a division of integers of up to 32 bits; gcc multiplies instead of dividing by a constant."""
        op = value.op
        if op.opcode not in _DIVISIONS or not op.type.is_integer or op.type.bits not in (8, 16, 32):
            return False
        return value.args[1] not in self._constants

    def opaque(self, value: lir.Opaque) -> str:
        return f"hlogym_opaque({constant_text(value.value, T.S64)})"

    def stream_store(self, s: lir.StreamStore) -> None:
        self.helpers["stream.h"] = None
        size = self.types[s.buffer].byte_size
        self.emit(f"hlogym_stream(&{s.buffer}[{s.offset.to_c()}], {s.array}, (int64_t){span_size(s.span)} * {size});")

    def from_half(self, element: str) -> str:
        return super().from_half(element) if self._vector_loop else f"widen_half({element})"

    def to_half(self, value: str) -> str:
        return super().to_half(value) if self._vector_loop else f"narrow_half({value})"

    def halves(self, s: lir.WidenHalves | lir.NarrowHalves) -> None:
        name = "halves" if s.count >= HALVES else f"{s.count}_halves"
        for k in range(0, s.count, HALVES):
            memory = f"{s.buffer} + {(s.offset + k).to_c()}"
            if isinstance(s, lir.WidenHalves):
                self.emit(f"widen_{name}({s.array} + {k}, {memory});")
            else:
                self.emit(f"narrow_{name}({memory}, {s.array} + {(s.start + k).to_c()});")

    def copy_elements(self, s: lir.CopyElements) -> None:
        to, source = f"{s.buffer} + {s.offset.to_c()}", f"{s.source} + {s.start.to_c()}"
        self.emit(f"__builtin_memcpy({to}, {source}, {s.count * self.types[s.buffer].byte_size});")

    def update(self, s: lir.Update) -> None:
        # Loops with updates run sequentially in C, so the update need not be atomic.
        t = self.types[s.buffer]
        current = self.load(lir.Load(s.buffer, s.offset))
        self.emit("{")
        self.depth += 1
        self.emit(f"const {COMPUTE_TYPES[t]} current = {current};")
        updated = expression_of(binary(s.combiner, t)).format("current", s.value)
        self.emit(f"const {COMPUTE_TYPES[t]} updated = {updated};")
        self.store(lir.Store(s.buffer, s.offset, "updated"))
        self.depth -= 1
        self.emit("}")

    def lane_result(self, value: lir.LaneResult, t: T) -> str:
        self.helpers["lane_results.h"] = None
        name = T.F32.text if t.is_half else t.text
        return f"{_LANE_RESULTS[value.combiner]}_of_{value.lanes}_{name}({value.array})"

    def transpose_tile(self, s: lir.TransposeTile) -> None:
        t = self._local_types.get(s.buffer) or self.types[s.buffer]
        self.helpers["transpose.h"] = None
        bounds = [str(s.size) if x is None else f"TILE_ROOM({x.to_c()}, {s.size})" for x in (s.rows, s.columns)]
        if s.height:
            bounds[0] = str(s.height) if s.rows is None else f"TILE_ROOM({s.rows.to_c()}, {s.height})"
        source = f"{s.buffer} + {s.offset.to_c()}"
        begin = "" if s.to.factor == 0 else f"{s.to.to_c()} + "
        is_moved = bool(s.pitch)  # as it is in memory
        if not is_moved and not t.is_half and (COMPUTE_TYPES[t] != STORAGE_TYPES[t] or t.bits < 8):
            # One row at a time: reads are contiguous, and what is written stays in the first-level cache.
            self.emit(f"for (index_t b = 0; b < {bounds[1]}; b++)")
            element = self.converted("tile_row[a]", t)
            self.emit(f"  for (index_t a = 0; a < {bounds[0]}; a++) {{")
            self.emit(f"    const {STORAGE_TYPES[t]} *const tile_row = {source} + (index_t)b * {s.stride};")
            self.emit(f"    {s.array}[{begin}a * {s.size} + b] = {element};")
            self.emit("  }")
            return
        if s.height == s.stride and t.bits == 32 and s.columns is None and s.size % 16 == 0:
            self.emit(
                f"transpose_rows_32((tile_item_32 *)({begin}{s.array}), (const tile_item_32 *)({source}), "
                f"{s.stride}, {s.pitch or s.size}, {s.size});"
            )
            return
        bits = 8 * t.byte_size
        if bits < 32:
            self.helpers["transpose_narrow.h"] = None
        name = t.name if t.is_half else str(bits)
        array = f"({begin}{s.array})" if begin else s.array
        array = array if t.is_half else f"(tile_item_{bits} *){array}"
        self.emit(
            f"transpose_tile_{name}({array}, (const tile_item_{bits} *)({source}), "
            f"{s.stride}, {s.pitch or s.size}, {bounds[0]}, {bounds[1]});"
        )

    def store_transposed(self, s: lir.StoreTransposed) -> None:
        self.helpers["transpose.h"] = None
        self.emit(
            f"store_transposed_32((tile_item_32 *)({s.buffer} + {s.offset.to_c()}), {s.stride}, "
            f"(const tile_item_32 *){s.array}, {s.size}, {s.size});"
        )

    def repeat_elements(self, s: lir.RepeatElements) -> None:
        self.helpers["repeat.h"] = None
        bits = 8 * SCALAR_BYTES[s.type]
        lanes = 512 // bits
        self.emit(f"for (index_t group = 0; group < {s.size // lanes}; group++) {{")
        self.emit(f"  repeat_item_{bits} *const to = (repeat_item_{bits} *){s.array} + group * {lanes * s.times};")
        self.emit(f"  const repeat_item_{bits} *const from = (const repeat_item_{bits} *){s.source} + group * {lanes};")
        for k in range(s.times):
            self.emit(f"  REPEAT_VECTOR_{bits}(to, from, {s.times}, {k});")
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

    def product(self, s: lir.MatrixProduct) -> None:
        """Print the call of a function of register tiles, which is printed before the kernel."""
        name = f"{self.symbol}_product{len(self.products)}"
        self.products.append(product_function(s, name, self.kernel.vector_bits, self.attributes))
        self.emit(product_call(s, name))

    def sort_by_key(self, s: lir.SortByKey) -> None:
        """Print the sort of one row as functions, and a call of them for all rows."""
        function, rows = f"{self.symbol}_order{len(self.functions)}", s.row.extent
        read = self._apart(lambda: self._print_keys(s))
        write = self._apart(lambda: self._print_positions(s))
        self.functions.append(order_functions(s, function, self.attributes, read, write))
        if s.grain:
            self.emit(f"hlogym_parallel({function}_rows, (void *)arguments, {rows}, {s.grain});")
        else:
            self.emit(f"{function}_rows((void *)arguments, 0, {rows});")

    def _apart(self, write_body: Callable[[], None]) -> str:
        """Return the text of a function body, which starts with the array arguments."""
        outside = self.lines, self.depth, dict(self._types)
        self.lines, self.depth = [], 1
        self.prologue("arguments")
        write_body()
        text = "\n".join(_without_unused(self.lines))
        self.lines, self.depth, self._types = outside
        return text

    def _print_keys(self, s: lir.SortByKey) -> None:
        self.emit(f"const index_t {s.row.name} = (index_t)row;")
        if self.kernel.vector_bits:
            self.emit("#pragma omp simd")
        self.emit("for (int64_t k = 0; k < count; k++) {")
        self.depth += 1
        self.emit(f"const index_t {s.element.name} = (index_t)(first + k);")
        self.block(s.read)
        self.emit(f"keys[k] = {key_text(s)};")
        self.depth -= 1
        self.emit("}")

    def _print_positions(self, s: lir.SortByKey) -> None:
        self.emit(f"const index_t {s.row.name} = (index_t)row;")
        self.emit(
            f"for (index_t {s.position.name} = 0; {s.position.name} < {s.position.extent}; {s.position.name}++) {{"
        )
        self.emit(f"  const index_t {s.element.name} = (index_t)(order[{s.position.name}] & {index_mask(s)});")
        self.indented(s.body)
        self.emit("}")

    def flagged(self, s: lir.ForFlagged) -> None:
        """Print loops over the list of flagged positions, which is padded so that every group is full."""
        n, position, slot = s.position.extent, s.position.name, s.slot.name
        self.emit("{")
        self.depth += 1
        self.emit(f"int32_t {position}_list[{n + LIST_PADDING}] __attribute__((aligned(64)));")
        self.emit(f"const int32_t {slot}_count = hlogym_flagged({s.flags}, {n}, {position}_list);")
        # gcc sees that this is a multiple of the vector length, and makes no loop for a remainder.
        self.emit(f"const int32_t {slot}_full = ({slot}_count + {s.group - 1}) & -{s.group};")
        for pragma, end, body in (("#pragma omp simd", "full", s.body), ("", "count", s.ordered)):
            if pragma:
                self.emit(pragma)
            self.emit(f"for (index_t {slot} = 0; {slot} < {slot}_{end}; {slot}++) {{")
            self.emit(f"  const index_t {position} = {position}_list[{slot}];")
            self.indented(body)
            self.emit("}")
        self.depth -= 1
        self.emit("}")

    def index_value(self, value: IndexExpr, t: T) -> str:
        # Conversions from 32-bit integers to float vectorize everywhere; AVX2 has none from 64-bit integers.
        narrow = t.is_float and t is not T.F64 and self.index_type == "int64_t" and value.range[1] < 2**31
        return f"({COMPUTE_TYPES[t]}){'(int32_t)' if narrow else ''}({value.to_c()})"

    # ---- loops

    def loop(self, s: lir.For) -> None:
        if s.kind in (LoopKind.PARALLEL, LoopKind.PARALLEL_VECTOR):
            self._parallel_loop(s)
        elif loads := byte_loads(s, self.types):
            self._loop_of_widened(s, loads)
        elif s.poll:
            self._polling_loop(s)
        else:
            self._plain_loop(s, "0", str(s.var.extent))

    def _loop_of_widened(self, s: lir.For, loads: Mapping[str, lir.Load]) -> None:
        """Print a loop after the copies of the bytes that it loads; see `byte_lanes`."""
        v, n = s.var.name, s.var.extent
        self.emit("{")
        self.depth += 1
        for name, load in loads.items():
            self.emit(f"int32_t {name}_wide[{n}] __attribute__((aligned(64)));")
            self.emit(f"for (index_t {v} = 0; {v} < {n}; {v}++) {name}_wide[{v}] = {self.load(load)};")
            self._widened[name] = f"{name}_wide[{v}]"
        self._plain_loop(s, "0", str(n))
        self._widened.clear()
        self.depth -= 1
        self.emit("}")

    def _plain_loop(self, s: lir.For, first: str, last: str, multiple: int = 1) -> None:
        """Print a loop from `first` to `last`, whose number of iterations is a multiple of `multiple`."""
        v, outside = s.var.name, (self._in_vectors, self._vector_loop)
        if s.base is not None:
            room = f"{s.limit} - ({s.base.to_c()})"
            last = f"({room} < {s.var.extent} ? {room} : {s.var.extent})"
            multiple = math.gcd(s.var.extent, s.limit or 0, s.base.factor)
        whole = min(multiple & -multiple, MOST_LANES)
        counted = s.kind.is_vector and not last.isdigit() and whole >= FEWEST_LANES
        if counted:
            # gcc sees that this is a multiple of the vector length, and makes no loops for a remainder.
            number = last if first == "0" else f"({last} - {first})"
            self._counts += 1
            last = f"{v}_count{self._counts}"
            self.emit(f"const index_t {last} = {number} & -{whole};")
        if s.kind.is_vector and not has_loop(s.body):
            self._vector_loop = VectorLoop.of(s)
            self._define_masks(s)
            self._define_truths(s)
            self._define_divisors(s)
            self.emit(" ".join(["#pragma omp simd", *map(_clause, s.combined)]))
            self._in_vectors = all(c.type is not T.PRED for c in s.combined)
        self._types[v] = self.index_type
        if counted and first != "0":
            self.emit(f"for (index_t {v}_at = 0; {v}_at < {last}; {v}_at++) {{")
            self.emit(f"  const index_t {v} = {first} + {v}_at;")
        else:
            if repeats_long_vectors(s):
                self.emit("#pragma GCC unroll 1")
            self.emit(f"for (index_t {v} = {first}; {v} < {last}; {v}++) {{")
        if reads_found_rows(s):
            self.emit(
                '  __asm__ volatile ("");  // gcc would merge iterations, and then run the loop inside one by one'
            )
        self.indented(s.body)
        self._in_vectors, self._vector_loop = outside
        self._truths = {}
        self.emit("}")

    def _polling_loop(self, s: lir.For) -> None:
        """Print a long sequential loop in slices, with a check for interrupts between them."""
        v, n, step = s.var.name, s.var.extent, s.poll
        self.emit(f"for (int64_t {v}_slice = 0; {v}_slice < {n} && !hlogym_interrupted(); {v}_slice += {step}) {{")
        self.depth += 1
        self.emit(f"const int64_t {v}_end = {v}_slice + {step} < {n} ? {v}_slice + {step} : {n};")
        self._plain_loop(s, f"(index_t){v}_slice", f"(index_t){v}_end")
        self.depth -= 1
        self.emit("}")

    def while_loop(self, s: lir.While) -> None:
        """Print a loop that runs until a condition is false, with a check for interrupts now and then."""
        n = s.counter
        self.emit(f"for (int64_t {n} = 1;; {n}++) {{")
        self.indented(s.test)
        self.emit(f"  if (!{s.condition}) break;")
        self.indented(s.body)
        if s.poll:
            self.emit(f"  if ({n} % {s.poll} == 0 && hlogym_interrupted()) break;")
        self.emit("}")

    # ---- loops that run on several threads

    def _parallel_loop(self, s: lir.For) -> None:
        """Outline a nest of parallel loops into a function of a range of iterations that runs on the thread pool."""
        nest = [f for f in perfect_nest(s) if f.kind is s.kind]
        items = math.prod(f.var.extent for f in nest)
        call = "hlogym_parallel_brief" if s.brief else "hlogym_parallel"
        self._outline(_captured_names(s, self._types), call, (items, s.grain), lambda: self._iterations(nest))

    def _iterations(self, nest: list[lir.For]) -> None:
        """Print iterations `first` to `last` of a nest whose loops are merged into one."""
        if len(nest) == 1:
            self._plain_loop(nest[0], "(index_t)first", "(index_t)last", math.gcd(nest[0].var.extent, nest[0].grain))
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

    def _outline(
        self, names: Mapping[str, str], call: str, size: tuple[int, int], write_body: Callable[[], None]
    ) -> None:
        """Outline a loop: print a function of a range of items, and its parallel call in place of the loop.

        Args:
            names: C types of the names that the function captures.
            call: the function of the runtime that runs the items on threads.
            size: number of items, and the minimum number of them that a thread takes at a time.
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
        self.lines, self.depth = [], 1
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
                f"{self.attributes}static void {function}(void *context, int64_t first, int64_t last) {{",
                *_without_unused(self.lines),
                "}",
                "",
            ]
        )
        self.lines, self.depth, self._types = outside
        self.emit("{")
        self.emit(f"  struct {function} shared = {{{', '.join(['arguments', *names])}}};")
        self.emit(f"  {call}({function}, &shared, {size[0]}, {size[1]});")
        self.emit("}")


def _without_unused(lines: Sequence[str]) -> list[str]:
    """Return the lines of a function body without the types, pointers and constants that only other functions use."""
    counts = Counter(word for line in lines for word in _WORD.findall(line))
    kept = []
    for line in reversed(lines):  # a definition precedes its uses
        declared = _DECLARATION.match(line)
        if declared is not None and counts[declared[1] or declared[2]] == 1:
            counts.subtract(_WORD.findall(line))
        else:
            kept.append(line)
    return kept[::-1]


def _combines_bools(op: ScalarOp) -> bool:
    return op.type is T.PRED and op.opcode in _LOGIC


def _saturates(op: ScalarOp) -> bool:
    """Check for a conversion of a float that may be out of the range of the integers; the preamble does it."""
    is_float = op.type in (T.F16, T.BF16, T.F32, T.F64)
    return op.opcode is Opcode.CONVERT and is_float and op.result in _SATURATED and not op.in_range


def _clause(c: lir.Combined) -> str:
    operator = _OPERATORS.get(c.combiner)
    if operator is None:
        # OpenMP's max and min are right for integers; for floats the preamble declares reductions that propagate NaN.
        operator = c.combiner.text if c.type.is_float else c.combiner.text[:3]
    return f"reduction({operator}:{c.accumulator})"


def _captured_names(loop: lir.For, types: Mapping[str, str]) -> dict[str, str]:
    """Return the names from outside that a loop uses, with their C types."""
    used = dict.fromkeys(names_used((loop,)))
    inside = set(names_defined((loop,)))
    return {name: types[name] for name in used if name in types and name not in inside}
