"""The base class of the printers; `print_c` and `print_cuda` override what differs between C and CUDA C++."""

from __future__ import annotations

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.traversal import indices_in, walk
from compiler.codegen.printing.scalar import COMPUTE_TYPES, SMALL_INTEGERS, constant_text, expression_of, wrapped
from compiler.errors import UnsupportedError
from compiler.ir.types import PrimitiveType as T

INT32_LIMIT = 2**31 - 2**16
"""Index arithmetic that stays below this fits into 32 bits, with room for the strides of loops."""


class Printer:
    """A printer of one kernel; subclasses define how loops run and where local arrays are stored."""

    def __init__(self, kernel: lir.Kernel) -> None:
        self.kernel = kernel
        self.types = {a.name: a.type for a in kernel.arguments}
        wide = any(a.elements >= INT32_LIMIT for a in kernel.arguments)
        wide |= any(i.magnitude >= INT32_LIMIT for i in indices_in(kernel.body))
        wide |= any(s.var.extent >= INT32_LIMIT for s in walk(kernel.body) if isinstance(s, lir.For))
        self.index_type = "int64_t" if wide else "int32_t"
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def block(self, statements: tuple[lir.Stmt, ...]) -> None:
        for s in statements:
            self.statement(s)

    def statement(self, s: lir.Stmt) -> None:
        if isinstance(s, lir.Let):
            self.emit(f"const {COMPUTE_TYPES[s.type]} {s.name} = {self.expression(s)};")
        elif isinstance(s, lir.Accumulator):
            self.emit(f"{COMPUTE_TYPES[s.type]} {s.name} = {s.init};")
        elif isinstance(s, lir.Assign):
            self.emit(f"{s.name} = {s.value};")
        elif isinstance(s, lir.LocalArray):
            self.local_array(s)
        elif isinstance(s, lir.LocalStore):
            self.emit(f"{self.local_element(s.array, s.offset)} = {s.value};")
        elif isinstance(s, lir.Store):
            self.store(s)
        elif isinstance(s, lir.StorePair):
            self.store_pair(s)
        elif isinstance(s, lir.StreamStore):
            self.stream_store(s)
        elif isinstance(s, lir.WidenHalves | lir.NarrowHalves):
            self.halves(s)
        elif isinstance(s, lir.CopyElements):
            self.copy_elements(s)
        elif isinstance(s, lir.WideLoad):
            self.wide_load(s)
        elif isinstance(s, lir.WideStore):
            self.wide_store(s)
        elif isinstance(s, lir.Update):
            self.update(s)
        elif isinstance(s, lir.If):
            self.condition(s)
        elif isinstance(s, lir.TransposeTile):
            self.transpose_tile(s)
        elif isinstance(s, lir.StoreTransposed):
            self.store_transposed(s)
        elif isinstance(s, lir.RepeatElements):
            self.repeat_elements(s)
        elif isinstance(s, lir.Sort):
            self.sort(s)
        elif isinstance(s, lir.MatrixProduct):
            self.product(s)
        elif isinstance(s, lir.SortByKey):
            self.sort_by_key(s)
        elif isinstance(s, lir.For):
            self.loop(s)
        elif isinstance(s, lir.While):
            self.while_loop(s)
        elif isinstance(s, lir.ForFlagged):
            self.flagged(s)
        else:
            raise TypeError(f"a bound nest of this language has no {type(s).__name__}")

    def expression(self, let: lir.Let) -> str:
        v, t = let.value, let.type
        if isinstance(v, lir.Constant):
            return constant_text(v.value, t)
        if isinstance(v, lir.Opaque):
            return self.opaque(v)
        if isinstance(v, lir.Apply):
            return expression_of(v.op).format(*v.args)
        if isinstance(v, lir.IndexValue):
            return self.index_value(v.value, t)
        if isinstance(v, lir.IndexTest):
            return self.index_test(v)
        if isinstance(v, lir.Load):
            return self.load(v)
        if isinstance(v, lir.PairLoad | lir.PairHalf):
            return self.pair(v)
        if isinstance(v, lir.LocalLoad):
            return self.local_element(v.array, v.offset)
        if isinstance(v, lir.LaneResult):
            return self.lane_result(v, t)
        return v.name

    def opaque(self, value: lir.Opaque) -> str:
        """Return the text of an integer of which the compiler of the language does not know that it is a constant."""
        return constant_text(value.value, T.S64)

    def index_value(self, value: IndexExpr, t: T) -> str:
        to = COMPUTE_TYPES[t]
        return f"({to})({value.to_c()})"

    @staticmethod
    def index_test(test: lir.IndexTest) -> str:
        value = test.value.to_c()
        bounds = [f"({value} {op} {bound})" for op, bound in ((">=", test.low), ("<=", test.high)) if bound is not None]
        return f"({' & '.join(bounds)})"

    def load(self, load: lir.Load) -> str:
        return self.converted(f"{load.buffer}[{load.offset.to_c()}]", self.types[load.buffer])

    def converted(self, element: str, t: T) -> str:
        """Return the value of an element that is read from memory."""
        if t is T.BF16:
            return self.from_bfloat16(element)
        if t is T.F16:
            return self.from_half(element)
        if t is T.PRED:
            return f"({COMPUTE_TYPES[t]}){element}"
        return wrapped(element, t) if t in SMALL_INTEGERS else element

    def store(self, s: lir.Store) -> None:
        self.emit(f"{s.buffer}[{s.offset.to_c()}] = {self.stored(s.value, self.types[s.buffer])};")

    def stored(self, value: str, t: T) -> str:
        """Return a value as the element of an array in memory."""
        if t is T.BF16:
            return self.to_bfloat16(value)
        if t is T.F16:
            return self.to_half(value)
        return f"(uint8_t)({value} & {2**t.bits - 1})" if t in SMALL_INTEGERS else value

    def store_pair(self, s: lir.StorePair) -> None:
        raise UnsupportedError("elements are not stored in pairs in this language")

    def pair(self, value: lir.PairLoad | lir.PairHalf) -> str:
        raise UnsupportedError("elements are not read in pairs in this language")

    def stream_store(self, s: lir.StreamStore) -> None:
        raise UnsupportedError("nothing is stored past the caches in this language")

    def halves(self, s: lir.WidenHalves | lir.NarrowHalves) -> None:
        raise UnsupportedError("elements are converted one by one in this language")

    def copy_elements(self, s: lir.CopyElements) -> None:
        raise UnsupportedError("elements are copied one by one in this language")

    def wide_load(self, s: lir.WideLoad) -> None:
        raise UnsupportedError("elements are read one by one in this language")

    def wide_store(self, s: lir.WideStore) -> None:
        raise UnsupportedError("elements are stored one by one in this language")

    def update(self, s: lir.Update) -> None:
        raise NotImplementedError

    def condition(self, s: lir.If) -> None:
        self.emit(f"if ({s.condition}) {{")
        self.indented(s.then)
        if s.otherwise:
            self.emit("} else {")
            self.indented(s.otherwise)
        self.emit("}")

    def indented(self, statements: tuple[lir.Stmt, ...]) -> None:
        self.depth += 1
        self.block(statements)
        self.depth -= 1

    def from_bfloat16(self, element: str) -> str:
        return f"BITS_TO_BF16({element})"

    def to_bfloat16(self, value: str) -> str:
        return f"BF16_TO_BITS({value})"

    def from_half(self, element: str) -> str:
        return f"BITS_TO_F16({element})"

    def to_half(self, value: str) -> str:
        return f"F16_TO_BITS({value})"

    def local_array(self, s: lir.LocalArray) -> None:
        raise NotImplementedError

    def local_element(self, array: str, offset: IndexExpr) -> str:
        return f"{array}[{offset.to_c()}]"

    def lane_result(self, value: lir.LaneResult, t: T) -> str:
        raise UnsupportedError("the elements of an array are not combined in this language")

    def transpose_tile(self, s: lir.TransposeTile) -> None:
        raise UnsupportedError("tiles are not transposed in this language")

    def store_transposed(self, s: lir.StoreTransposed) -> None:
        raise UnsupportedError("tiles are not transposed in this language")

    def repeat_elements(self, s: lir.RepeatElements) -> None:
        raise UnsupportedError("elements are not repeated in this language")

    def sort(self, s: lir.Sort) -> None:
        raise UnsupportedError("a sort has no kernel in this language")

    def product(self, s: lir.MatrixProduct) -> None:
        raise UnsupportedError("a matrix product has no kernel in this language")

    def sort_by_key(self, s: lir.SortByKey) -> None:
        raise UnsupportedError("a sort has no kernel in this language")

    def flagged(self, s: lir.ForFlagged) -> None:
        raise UnsupportedError("a loop over flagged positions has no kernel in this language")

    def loop(self, s: lir.For) -> None:
        raise NotImplementedError

    def while_loop(self, s: lir.While) -> None:
        self.emit("for (;;) {")
        self.indented(s.test)
        self.emit(f"  if (!{s.condition}) break;")
        self.indented(s.body)
        self.emit("}")
