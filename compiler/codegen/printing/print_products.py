"""C functions of matrix products: loops over register tiles, whose accumulators are named vectors.

A product of rows x columns is divided into tiles of some rows and whole vectors of columns. A tile holds its sums in
registers while it walks along the depth; in each step it loads the vectors of one row of the rhs and multiplies them by
one element of each row of the lhs. Columns that do not fill a vector are loaded and stored by a mask, or, where the
array has room, in full. Sizes known only at run time occur in remainder blocks alone.
"""

from __future__ import annotations

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.printing.scalar import COMPUTE_TYPES
from compiler.ir.types import PrimitiveType as T

_MASKED = {
    T.F32: ("ups512", "float"), T.F64: ("upd512", "double"),
    T.S32: ("dqusi512", "int"), T.U32: ("dqusi512", "int"),
    T.S64: ("dqudi512", "long long"), T.U64: ("dqudi512", "long long"),
}  # fmt: skip
"""Suffix and element type of the AVX-512 builtins for masked loads and stores."""
_PARTIAL = {
    T.F32: ("ps256", "float", "int", "AVX"), T.F64: ("pd256", "double", "long long", "AVX"),
    T.S32: ("d256", "int", "int", "AVX2"), T.U32: ("d256", "int", "int", "AVX2"),
    T.S64: ("q256", "long long", "long long", "AVX2"), T.U64: ("q256", "long long", "long long", "AVX2"),
}  # fmt: skip
"""Suffix, element and mask element of the builtins for masked loads of 256 bits, and the extension that has them."""

REGISTERS = {32: 16, 64: 32}
"""Number of vector registers by their size in bytes; they hold the sums of a tile, a row of the rhs and one element."""
MOST_FOLDED = 4
"""Largest number of rows of a tile for which gcc loads a vector of the rhs again for each row."""


def product_call(s: lir.MatrixProduct, name: str) -> str:
    """Return the statement that calls the function of a product."""
    pointers = [f"&{m.array}[{m.offset.to_c()}]" for m in s.matrices]
    sizes = [span_size(span) for span in s.spans]
    return f"{name}({', '.join([*pointers, *([s.decay] if s.decay else []), *sizes])});"


def span_size(span: lir.Span) -> str:
    """Return the C expression of the number of elements of a span."""
    if span.base is None:
        return str(span.extent)
    rest = f"{span.limit} - {span.base.to_c()}"
    return f"({rest} < {span.extent} ? {rest} : {span.extent})"


def product_function(s: lir.MatrixProduct, name: str, vector_bits: int, attributes: str) -> str:
    """Return the function of a product, and the functions of its tiles.

    Args:
        s: the product.
        name: name of the function.
        vector_bits: width of the vectors; where the processor has none of 512 bits, narrower ones are used.
        attributes: C attributes of functions, with a trailing space.
    """
    narrow = _Tiles(s, name, 32, s.narrow_tile, attributes).function()
    if vector_bits < 512:
        return narrow
    wide = _Tiles(s, name, 64, s.tile, attributes).function()
    return f"#ifdef __AVX512F__\n{wide}#else\n{narrow}#endif\n"


def _rests(span: lir.Span, size: int) -> list[int]:
    """Return the sizes of the incomplete tiles that a division into tiles of `size` can leave."""
    rests = {span.extent % size, span.total % span.extent % size} if span.total >= span.extent else {span.total % size}
    return sorted(rests - {0})


class _Tiles:
    """The functions of one product for vectors of one width."""

    def __init__(self, s: lir.MatrixProduct, name: str, width: int, tile: tuple[int, int], attributes: str) -> None:
        self.s, self.name, self.width, self.attributes = s, name, width, attributes
        self.element = COMPUTE_TYPES[s.type]
        self.sum = f"uint{s.type.bits}_t" if s.type.is_integer else self.element  # unsigned numbers wrap around
        self.lanes = width // s.type.byte_size
        self.rows, self.panel = tile[0], tile[1] * self.lanes
        self.decay = f" const {self.element} *decay," if s.decay else ""

    def function(self) -> str:
        s, c = self.s, self.element
        heights, widths = _rests(s.rows, self.rows), _rests(s.columns, self.panel)
        kind = f"vector_size({self.width}), aligned({s.type.byte_size}), may_alias"
        lines = [f"typedef {self.sum} {self.name}_v __attribute__(({kind}));", *self._partial_loads(widths)]
        if self.width == 64:  # what the builtins take
            element = _MASKED[s.type][1]
            lines.append(f"typedef {element} {self.name}_vm __attribute__((vector_size({self.width})));")
        for width in [*([self.panel] if s.columns.total >= self.panel else []), *widths]:
            for height in [*([self.rows] if s.rows.total >= self.rows else []), *heights]:
                lines += self._tile(height, width)
        lines += [
            f"__attribute__((noinline)) {self.attributes}static void {self.name}({c} *t, const {c} *a, const {c} *b,"
            f"{self.decay} int64_t rows, int64_t columns, int64_t depth) {{",
            "  int64_t j = 0;",
        ]
        if s.columns.total >= self.panel:
            lines.append(f"  for (; j + {self.panel} <= columns; j += {self.panel}) {{")
            lines += self._rows(self.panel, heights)
            lines.append("  }")
        for width in widths:
            lines.append(f"  if (columns - j == {width}) {{")
            lines += self._rows(width, heights)
            lines.append("  }")
        return "\n".join([*lines, "}", ""])

    def _rows(self, width: int, heights: list[int]) -> list[str]:
        """Return the loop over the tiles of one panel."""
        s = self.s
        decay = " decay + j," if s.decay else ""
        arguments = f"(t + i * {s.target.row} + j, a + i * {s.lhs.row}, b + j,{decay} depth);"
        lines = ["    int64_t i = 0;"]
        if s.rows.total >= self.rows:
            lines.append(
                f"    for (; i + {self.rows} <= rows; i += {self.rows}) {self.name}_{self.rows}x{width}{arguments}"
            )
        lines += [f"    if (rows - i == {height}) {self.name}_{height}x{width}{arguments}" for height in heights]
        return lines

    def _tile(self, rows: int, columns: int) -> list[str]:
        """Return the function of a tile of rows x columns."""
        s, c, v = self.s, self.element, f"{self.name}_v"
        vectors = -(-columns // self.lanes)
        lines = [
            f"{self.attributes}static void {self.name}_{rows}x{columns}({c} *restrict t, const {c} *a, const {c} *b,"
            f"{self.decay} int64_t depth) {{"
        ]
        names = [[f"s{r}_{n}" for n in range(vectors)] for r in range(rows)]
        if s.decay:
            lines += [self._load(f"d{n}", "decay", n, columns, True) for n in range(vectors)]
            for r in range(rows):
                for n in range(vectors):
                    lines.append(self._load(names[r][n], f"t + {r * s.target.row}", n, columns, s.target.local))
                    lines.append(f"  {names[r][n]} *= d{n};")
        else:
            lines += [f"  {v} {', '.join(f'{x} = {{0}}' for x in row)};" for row in names]
        lines.append(f"  for (int64_t k = 0; k < depth; k++, a += {s.lhs.column}, b += {s.rhs.row}) {{")
        lines += [f"  {self._load(f'b{n}', 'b', n, columns, s.rhs.local)}" for n in range(vectors)]
        if 1 < rows <= MOST_FOLDED and (rows + 1) * vectors < REGISTERS[self.width]:
            lines += [f"    IN_REGISTER(b{n});" for n in range(vectors)]
        for r in range(rows):
            updates = " ".join(f"{names[r][n]} += x{r} * b{n};" for n in range(vectors))
            lines.append(f"    const {self.sum} x{r} = ({self.sum})a[{r * s.lhs.row}]; {updates}")
        lines.append("  }")
        for r in range(rows):
            for n in range(vectors):
                lines.append(self._store(names[r][n], f"t + {r * s.target.row}", n, columns, s.target.local))
        return [*lines, "}"]

    def _load(self, name: str, pointer: str, n: int, columns: int, whole: bool) -> str:
        """Return the definition of vector `n` of a row, of which the tile has `columns` elements."""
        v, rest, at = f"{self.name}_v", columns - n * self.lanes, f"{pointer} + {n * self.lanes}"
        if whole or rest >= self.lanes:
            return f"  {v} {name} = *(const {v} *)({at});"
        if self.width == 64:
            suffix, element = _MASKED[self.s.type]
            loaded = f"__builtin_ia32_load{suffix}_mask((const {element} *)({at}), ({v}m){{0}}, {self._mask(rest)})"
            return f"  {v} {name} = ({v}){loaded};"
        return f"  {v} {name} = {self.name}_first{rest}({at});"

    def _mask(self, count: int) -> str:
        """Return the mask of the first elements of a vector of 64 bytes."""
        return f"(unsigned {'short' if self.lanes == 16 else 'char'}){hex((1 << count) - 1)}"

    def _partial_loads(self, widths: list[int]) -> list[str]:
        """Return the functions that load the first elements of a vector of 32 bytes, for the rests of some widths.

        A copy into a part of a vector would go through memory, from which the whole vector then is read too early for
        the processor to forward what was just stored; such a load takes some 15 cycles.
        """
        if self.width != 32:
            return []
        c, v = self.element, f"{self.name}_v"
        suffix, element, mask, extension = _PARTIAL[self.s.type]
        lines = []
        for rest in sorted({width % self.lanes for width in widths} - {0}):
            lines += [
                f"static inline {v} {self.name}_first{rest}(const {c} *p) {{",
                f"#ifdef __{extension}__",
                f"  typedef {mask} mask_t __attribute__((vector_size(32)));",
                f"  typedef {element} vector_t __attribute__((vector_size(32)));",
                f"  return ({v})__builtin_ia32_maskload{suffix}((const vector_t *)p, "
                f"(mask_t){{{', '.join(['-1'] * rest)}}});",
                "#else",
                f"  {v} x = {{0}};",
                f"  __builtin_memcpy(&x, p, {rest * self.s.type.byte_size});",
                "  return x;",
                "#endif",
                "}",
            ]
        return lines

    def _store(self, name: str, pointer: str, n: int, columns: int, whole: bool) -> str:
        v, rest, at = f"{self.name}_v", columns - n * self.lanes, f"{pointer} + {n * self.lanes}"
        if whole or rest >= self.lanes:
            return f"  *({v} *)({at}) = {name};"
        if self.width == 64:
            suffix, element = _MASKED[self.s.type]
            return f"  __builtin_ia32_store{suffix}_mask(({element} *)({at}), ({v}m){name}, {self._mask(rest)});"
        return f"  __builtin_memcpy({at}, &{name}, {rest * self.s.type.byte_size});"
