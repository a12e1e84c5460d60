"""Fourier transforms as kernels, which transform one line per lane of a vector by Stockham's algorithm.

The dimensions are transformed one after the other. The lines of a group, one for each lane, are loaded into memory of
the stack with their elements side by side, which transposes them if they lie along the last dimension. Few lines, and
long ones, are divided instead: as a matrix whose columns and rows are transformed (Bailey, FFTs in external or
hierarchical memory, 1990), so that the lines of a group are columns of one line. A transform of an even number of real
numbers is a complex one of half the length, that of an odd number one of the whole length. `fourier.h` has the passes;
lengths with large prime factors are left to SciPy (`fourier`).
"""

from __future__ import annotations

import cmath
import functools
import math
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from compiler.codegen.kernel_spec import KernelSpec, spec_of_text
from compiler.codegen.languages import C
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter, leaves

LARGEST_PRIME = 128
"""Largest prime factor of a length; each adds its square to the work."""
LONGEST = 1024
"""Elements of the longest line of which a group has one per lane."""
LONGEST_COLUMN = 4096
"""The same for lines that are not along the last dimension; they cannot be divided."""
LONGEST_DIVIDED = 512 * 1024
"""Bytes of the longest divided line, a copy of which is kept on the stack; of an odd number of real ones three."""
WIDTHS = {"#ifdef __AVX512F__": 64, "#else": 32}
"""Bytes of a vector by the condition of the C preprocessor. If a processor has narrower ones, gcc makes scalar code."""
_GRAIN = 20_000
"""Arithmetic operations of a parallel task."""


@dataclass(frozen=True)
class _Number:
    """The names of a type of real numbers in `fourier.h`."""

    name: str
    real: str
    index: str
    bits: int


_NUMBERS = {T.F32: _Number("f32", "float", "int32_t", 32), T.F64: _Number("f64", "double", "int64_t", 64)}
_PARTS = {T.C64: T.F32, T.C128: T.F64, T.F32: T.F32, T.F64: T.F64}


@dataclass(frozen=True)
class _Axis:
    """The transform of all lines along one dimension.

    Attributes:
        kind: FFT, IFFT, RFFT or IRFFT.
        bits: size of a real number.
        length: elements of a line; of the real line where there is one.
        outer: number of blocks of lines.
        inner: number of adjacent lines in a block: 1 along the last dimension.
        scale: what the result is multiplied by.
    """

    kind: str
    bits: int
    length: int
    outer: int
    inner: int
    scale: float

    @property
    def points(self) -> int:
        """Length of the complex transform."""
        return self.length // 2 if self.halved else self.length

    @property
    def halved(self) -> bool:
        return self.kind in ("RFFT", "IRFFT") and self.length % 2 == 0

    @property
    def widened(self) -> bool:
        """Whether the numbers of a real line become complex ones first, because their number is odd."""
        return self.kind in ("RFFT", "IRFFT") and not self.halved

    @property
    def pitches(self) -> tuple[int, int]:
        """Numbers from one line along the last dimension to the next: in the operand and in the result."""
        real, spectrum = self.length, 2 * (self.length // 2 + 1)
        return {"RFFT": (real, spectrum), "IRFFT": (spectrum, real)}.get(self.kind, (2 * self.length,) * 2)

    def divided(self, lanes: int) -> tuple[int, int] | None:
        """Return the numbers of rows and columns of a line that is divided, or None if it is not."""
        n = self.points
        if self.inner > 1:
            return None
        if n <= LONGEST and (self.outer > lanes // 2 or n < 4 * lanes):
            return None
        rows = next((f for f in range(math.isqrt(n), 1, -1) if n % f == 0), 1)
        copies = 3 if self.widened else 1
        is_possible = rows >= 4 and n // rows <= LONGEST and copies * n * self.bits // 4 <= LONGEST_DIVIDED
        return (rows, n // rows) if is_possible else None

    def is_possible(self) -> bool:
        """Return whether there is code for the lines."""
        if max(_radices(self.points), default=1) > LARGEST_PRIME:
            return False
        limit = LONGEST if self.inner == 1 else LONGEST_COLUMN
        return self.points <= limit or self.divided(1) is not None


def fourier_of(backend: str) -> KernelImplementation:
    """Return the implementation of Fourier transforms for one backend, given its name."""

    def refusal(i: HloInstruction, target: str) -> str | None:
        if target != backend:
            return f"it is a kernel of the {backend} backend"
        return None if _axes(i) else "it is no Fourier transform of lengths with small prime factors"

    return KernelImplementation("fourier", refusal, _emit, prefers=lambda i, target: True)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    spec = _kernel(i)
    if len(spec.outputs) == 1:
        return emitter.launch(spec, i.shape, list(operands), thunks, runs)
    made = emitter.launch(spec, Shape(T.TUPLE, tuple_shapes=spec.outputs), list(operands), thunks, runs)
    return leaves(made)[0]


@functools.lru_cache(maxsize=1024)
def _radices(n: int) -> tuple[int, ...]:
    """Return the factors of a length by which it is divided, fours first."""
    found = []
    for radix in (4, 2, 3, 5):
        while n % radix == 0:
            found.append(radix)
            n //= radix
    divisor = 7
    while n > 1:
        if divisor * divisor > n:
            divisor = n
        if n % divisor == 0:
            found.append(divisor)
            n //= divisor
        else:
            divisor += 2
    return tuple(found)


def _axes(i: HloInstruction) -> list[_Axis]:
    """Return the dimensions to transform in their order; none if the op is not computed here."""
    if i.opcode is not Opcode.FFT or i.shape.is_dynamic or i.operand(0).shape.is_dynamic:
        return []
    kind, lengths = str(i.attr("fft_type")), tuple(i.attr("fft_length"))
    given, made = i.operand(0).shape, i.shape
    if given.element_type not in _PARTS or not given.num_elements or not made.num_elements:
        return []
    whole = made.dimensions if kind == "IRFFT" else given.dimensions
    first = len(whole) - len(lengths)
    if whole[first:] != lengths:
        return []
    halved = (*whole[:-1], whole[-1] // 2 + 1)
    complex_kind = {"RFFT": "FFT", "IRFFT": "IFFT"}.get(kind, kind)
    scale = 1 / math.prod(lengths) if kind in ("IFFT", "IRFFT") else 1.0
    bits = _PARTS[given.element_type].bits
    axes = [_Axis(kind, bits, whole[-1], math.prod(whole[:-1]), 1, 1.0)]
    sizes = whole if kind == complex_kind else halved
    axes += [
        _Axis(complex_kind, bits, sizes[d], math.prod(sizes[:d]), math.prod(sizes[d + 1 :]), 1.0)
        for d in range(len(whole) - 2, first - 1, -1)
    ]
    if kind == "IRFFT":
        axes.reverse()
    axes[-1] = replace(axes[-1], scale=scale)
    return axes if all(a.is_possible() for a in axes) else []


def _kernel(i: HloInstruction) -> KernelSpec:
    axes, given, made = _axes(i), i.operand(0).shape.without_layout(), i.shape.without_layout()
    number = _NUMBERS[_PARTS[given.element_type]]
    outputs = (made, given) if axes[-1].kind == "IRFFT" and len(axes) > 1 else (made,)
    text = "\n".join(f"{test}\n{_text(axes, number, size, len(outputs))}" for test, size in WIDTHS.items())
    flops = sum(groups * work for groups, work in (_groups(a, 512 // number.bits) for a in axes))
    spec = spec_of_text(i, "fourier", C.name, f"{text}\n#endif\n", (given,), outputs, flops)
    return replace(spec, bytes=given.byte_size + made.byte_size)


def _text(axes: list[_Axis], number: _Number, vector: int, outputs: int) -> str:
    """Return the code of a kernel with `outputs` arrays for results, for vectors of so many bytes."""
    lanes = 8 * vector // number.bits
    parts, calls = [], []
    source = 0
    for n, axis in enumerate(axes):
        target = 1 if n == len(axes) - 1 else outputs
        parts.append(_AxisCode(axis, number, lanes, n, source, target).text())
        groups, work = _groups(axis, lanes)
        run = f"HLOGYM_KERNEL_axis{n}((void *)arguments, 0, {groups});" if groups * work < 2 * _GRAIN else (
            f"hlogym_parallel(HLOGYM_KERNEL_axis{n}, (void *)arguments, {groups}, {max(1, _GRAIN // work)});"
        )  # fmt: skip
        calls.append(run)
        source = target
    main = f"void HLOGYM_KERNEL(void *const *arguments) {{ {' '.join(calls)} }}"
    return "\n".join([_header(number, vector), *parts, main])


@functools.lru_cache(maxsize=4)
def _header(number: _Number, vector: int) -> str:
    """Return `fourier.h` for a type of numbers and vectors of so many bytes, with the transposition it needs."""
    lanes = 8 * vector // number.bits
    text = resources.files("compiler.backends.cpu").joinpath("fourier.h").read_text()
    firsts = ", ".join(f"{k}, {k + lanes}" for k in range(lanes // 2))
    for name, value in {
        "EVENS": ", ".join(str(2 * k) for k in range(lanes)), "FIRSTS": firsts, "LANES": str(lanes),
        "VECTOR_BYTES": str(vector), "TYPE": number.name, "REAL": number.real, "INDEX": number.index,
        "BITS": str(number.bits),
    }.items():  # fmt: skip
        text = text.replace(name, value)
    return resources.files("compiler.codegen.printing").joinpath("transpose.h").read_text() + text


def _groups(axis: _Axis, lanes: int) -> tuple[int, int]:
    """Return the number of tasks of a dimension and the arithmetic operations of one."""
    n = axis.points
    each = n * sum(5 if r < 5 else 4 * r for r in _radices(n)) + n
    if axis.divided(lanes) is not None:
        return axis.outer, 2 * each
    return axis.outer * -(-axis.inner // lanes) if axis.inner > 1 else -(-axis.outer // lanes), each * lanes


class _AxisCode:
    """Writes the function `HLOGYM_KERNEL_axisN(arguments, first, last)` that transforms the groups of one dimension."""

    def __init__(self, axis: _Axis, number: _Number, lanes: int, n: int, source: int, target: int) -> None:
        self.axis, self.number, self.lanes, self.prefix = axis, number, lanes, f"HLOGYM_KERNEL_{n}"
        self.name, self.source, self.target = f"HLOGYM_KERNEL_axis{n}", source, target
        self.part = int(axis.kind in ("IFFT", "IRFFT"))

    def text(self) -> str:
        """Return the text of the tables and the function."""
        a, t, real = self.axis, self.number.name, self.number.real
        divided = a.divided(self.lanes)
        body = self._divided(*divided) if divided else self._columns() if a.inner > 1 else self._rows()
        return (
            "\n".join(
                [
                    self._tables(divided),
                    f"VECTOR_BITS(512) static void {self.name}(void *context, int64_t first, int64_t last) {{",
                    f"  const {real} *const x = ((void *const *)context)[{self.source}];",
                    f"  {real} *const y = ((void *const *)context)[{self.target}];",
                    f"  const {real} *const w = {self.prefix}_roots;",
                    "  for (int64_t item = first; item < last; item++) {",
                    *(f"    {line}" for line in body),
                    "  }",
                    "}",
                ]
            )
            .replace("TYPE", t)
            .replace("REAL", real)
        )

    def _tables(self, divided: tuple[int, int] | None) -> str:
        """Return the tables of roots, which are products of printed ones, computed when the code is loaded."""
        n, real = self.axis.length, self.number.real
        near = 1 << (n.bit_length() + 1) // 2
        lists = {"near": [_root(k, n) for k in range(near)], "far": [_root(k, n) for k in range(0, n, near)]}
        lines = [f"static {real} {self.prefix}_roots[{2 * n}];"]
        if divided:
            lines.append(f"static {real} {self.prefix}_turns[2][{self.axis.points}] __attribute__((aligned(64)));")
        lines.append(f"static __attribute__((constructor)) void {self.prefix}_fill(void) {{")
        for name, roots in lists.items():
            shown = ", ".join(f"{{{z.real!r}, {z.imag!r}}}" for z in roots)
            lines.append(f"  static const double {name}[][2] = {{{shown}}};")
        lines += [
            f"  for (int64_t k = 0; k < {n}; k++) {{",
            f"    const double *const a = near[k % {near}], *const b = far[k / {near}];",
            f"    {self.prefix}_roots[2 * k] = a[0] * b[0] - a[1] * b[1];",
            f"    {self.prefix}_roots[2 * k + 1] = a[0] * b[1] + a[1] * b[0];",
            "  }",
        ]
        if divided:
            step = self.axis.length // self.axis.points
            lines += [
                f"  for (int64_t row = 0; row < {divided[0]}; row++)",
                f"    for (int64_t column = 0; column < {divided[1]}; column++)",
                "      for (int part = 0; part < 2; part++)",
                f"        {self.prefix}_turns[part][row * {divided[1]} + column] = "
                f"{self.prefix}_roots[2 * {step} * row * column + part];",
            ]
        return "\n".join([*lines, "}"])

    def _passes(self, n: int, names: tuple[str, str]) -> tuple[list[str], str]:
        """Return the passes of a transform of n elements between two arrays, and the name of that with the result."""
        lines, left, stride = [], n, 1
        source, target = names
        step = self.axis.length // n
        for radix in _radices(n):
            lines.append(f"fourier_pass_TYPE({source}, {target}, {left}, {stride}, {radix}, w, {step}, {self.part});")
            left, stride, source, target = left // radix, stride * radix, target, source
        return lines, source

    def _scaled(self, name: str, count: int) -> list[str]:
        if self.axis.scale == 1.0:
            return []
        return [f"for (int64_t k = 0; k < {count}; k++) {name}[k] *= (REAL){self.axis.scale!r};"]

    def _columns(self) -> list[str]:
        """Return the work on a group of adjacent lines."""
        a, lanes = self.axis, self.lanes
        passes, result = self._passes(a.length, ("a", "b"))
        groups = -(-a.inner // lanes)
        at = f"2 * (item / {groups} * {a.length * a.inner} + column)"
        return [
            f"const int64_t column = item % {groups} * {lanes};",
            f"const int lines = {a.inner} - column < {lanes} ? (int)({a.inner} - column) : {lanes};",
            f"fourier_TYPE a[{2 * a.length}], b[{2 * a.length}];",
            f"fourier_load_columns_TYPE(a, x + {at}, {2 * a.inner}, {a.length}, lines);",
            *passes,
            *self._scaled(result, 2 * a.length),
            f"fourier_store_columns_TYPE({result}, y + {at}, {2 * a.inner}, {a.length}, lines);",
        ]

    def _rows(self) -> list[str]:
        """Return the work on a group of lines along the last dimension."""
        a, lanes, n = self.axis, self.lanes, self.axis.length
        pitch, made = a.pitches
        count = made if a.kind == "RFFT" else pitch
        room = max(2 * n, pitch, made) + 2
        lines = [
            f"const int64_t line = item * {lanes};",
            f"const int lines = {a.outer} - line < {lanes} ? (int)({a.outer} - line) : {lanes};",
            f"fourier_TYPE a[{room}], b[{room}];",
            f"fourier_load_rows_TYPE(a, x + line * {pitch}, {pitch}, {pitch}, lines);",
        ]
        first = "a"
        if a.kind == "RFFT" and a.widened:
            first = "b"
            lines.append(f"for (int64_t k = 0; k < {n}; k++) b[2 * k] = a[k], b[2 * k + 1] = (fourier_TYPE){{0}};")
        elif a.kind == "IRFFT" and a.widened:
            lines += [
                "a[1] = (fourier_TYPE){0};",
                f"for (int64_t k = 1; k < {n // 2 + 1}; k++) "
                f"a[2 * ({n} - k)] = a[2 * k], a[2 * ({n} - k) + 1] = -a[2 * k + 1];",
            ]
        elif a.kind == "IRFFT":
            first = "b"
            lines.append(f"FOURIER_PACK_TYPE(fourier_TYPE, a, b, {a.points}, w)")
        passes, result = self._passes(a.points, (first, "a" if first == "b" else "b"))
        lines += passes
        if a.kind == "RFFT" and a.halved:
            lines.append(f"FOURIER_UNPACK_TYPE(fourier_TYPE, {result}, {result}, {a.points}, w)")
        elif a.kind == "IRFFT" and a.widened:
            lines.append(f"for (int64_t k = 0; k < {n}; k++) {result}[k] = {result}[2 * k];")
        count = made
        return [
            *lines,
            *self._scaled(result, count),
            f"fourier_store_rows_TYPE({result}, y + line * {made}, {made}, {count}, lines);",
        ]

    def _divided(self, rows: int, columns: int) -> list[str]:
        """Return the work on one line, as a matrix: element (r, c) is number r columns + c."""
        a, lanes, n = self.axis, self.lanes, self.axis.points
        pitch, made = a.pitches
        down, after_down = self._passes(rows, ("a", "b"))
        across, after_across = self._passes(columns, ("a", "b"))
        real = self.number.real
        lines = [
            f"const {real} *from = x + item * {pitch};",
            f"{real} *const to = {'whole' if a.widened else f'y + item * {made}'};",
            f"{real} between[{2 * n}] __attribute__((aligned(64)));",
        ]
        if a.widened:
            lines = [f"{real} packed[{2 * n}], whole[{2 * n}];", *lines, *self._widened(), "from = packed;"]
        elif a.kind == "IRFFT":
            lines += [f"{real} packed[{2 * n}];", f"FOURIER_PACK_TYPE(REAL, from, packed, {n}, w)", "from = packed;"]
        part, turns = self.part, f"{self.prefix}_turns"
        lines += [
            f"for (int64_t column = 0; column < {columns}; column += {lanes}) {{",
            f"  const int lines = {columns} - column < {lanes} ? (int)({columns} - column) : {lanes};",
            f"  fourier_TYPE a[{2 * rows}], b[{2 * rows}];",
            f"  fourier_load_columns_TYPE(a, from + 2 * column, {2 * columns}, {rows}, lines);",
            *(f"  {line}" for line in down),
            f"  for (int64_t row = 1; row < {rows}; row++) {{",
            "    fourier_TYPE wr = {0}, wi = {0};",
            f"    if (lines == {lanes}) {{",
            f"      wr = *(const fourier_row_TYPE *)({turns}[0] + row * {columns} + column);",
            f"      wi = *(const fourier_row_TYPE *)({turns}[1] + row * {columns} + column);",
            "    } else",
            "      for (int l = 0; l < lines; l++)",
            f"        ((REAL *)&wr)[l] = {turns}[0][row * {columns} + column + l], "
            f"((REAL *)&wi)[l] = {turns}[1][row * {columns} + column + l];",
            f"    fourier_TYPE *const z = {after_down} + 2 * row;",
            f"    const fourier_TYPE re = z[{part}], im = z[{1 - part}];",
            f"    z[{part}] = re * wr - im * wi;",
            f"    z[{1 - part}] = re * wi + im * wr;",
            "  }",
            f"  fourier_store_columns_TYPE({after_down}, between + 2 * column, {2 * columns}, {rows}, lines);",
            "}",
            f"for (int64_t row = 0; row < {rows}; row += {lanes}) {{",
            f"  const int lines = {rows} - row < {lanes} ? (int)({rows} - row) : {lanes};",
            f"  fourier_TYPE a[{2 * columns}], b[{2 * columns}];",
            f"  fourier_load_rows_TYPE(a, between + row * {2 * columns}, {2 * columns}, {2 * columns}, lines);",
            *(f"  {line}" for line in across),
            *(f"  {line}" for line in self._scaled(after_across, 2 * columns)),
            f"  fourier_store_columns_TYPE({after_across}, to + 2 * row, {2 * rows}, {columns}, lines);",
            "}",
        ]
        if a.widened:
            step = 2 if a.kind == "IRFFT" else 1
            lines.append(f"for (int64_t k = 0; k < {made}; k++) (y + item * {made})[k] = whole[{step} * k];")
        elif a.kind == "RFFT":
            lines.append(f"FOURIER_UNPACK_TYPE(REAL, to, to, {n}, w)")
        return lines

    def _widened(self) -> list[str]:
        """Return the statements that make an odd number of real numbers, or their spectrum, a complex line."""
        n = self.axis.length
        if self.axis.kind == "RFFT":
            return [f"for (int64_t k = 0; k < {n}; k++) packed[2 * k] = from[k], packed[2 * k + 1] = 0;"]
        return [
            "packed[0] = from[0], packed[1] = 0;",
            f"for (int64_t k = 1; k < {n // 2 + 1}; k++) {{",
            f"  packed[2 * k] = packed[2 * ({n} - k)] = from[2 * k];",
            f"  packed[2 * k + 1] = from[2 * k + 1], packed[2 * ({n} - k) + 1] = -from[2 * k + 1];",
            "}",
        ]


def _root(k: int, n: int) -> complex:
    """Return exp(-2 pi i k / n), from an angle of at most an eighth of a turn, so that it is exact to the last bit."""
    k %= n
    quarter, rest = divmod(8 * k, 2 * n)
    angle = rest / 8  # in units of 1 / n turns, from 0 to a quarter
    near = cmath.exp(-2j * math.pi * angle / n) if 8 * angle <= n else complex(
        math.sin(2 * math.pi * (n / 4 - angle) / n), -math.cos(2 * math.pi * (n / 4 - angle) / n)
    )  # fmt: skip
    return near * (1, -1j, -1, 1j)[quarter]
