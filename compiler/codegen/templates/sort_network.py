"""Sorts of short rows as networks: adjacent elements are exchanged where their keys are in the wrong order.

The elements of a row are scalars, so that the loop over rows is a vector loop that sorts as many rows at a time as a
vector has lanes. A network that exchanges only adjacent elements, and no equal ones, is stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.analysis.library_work import NETWORK_ROWS
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.nest.scalar_ops import ScalarOp, binary, comparison, conversion
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

LONGEST, MOST_STATEMENTS = 31, 1100
"""Elements of the longest row that a network sorts, and the most statements of a network, for which the C compiler
takes two seconds."""
LANES = 8
"""Adjacent rows from which on a loop over them has vectors though their elements are not adjacent."""
_BITS = {T.F16: T.S32, T.BF16: T.S32, T.F32: T.S32, T.F64: T.S64}
"""The integers whose order is the total order of the bits of floats, which kernels hold as f32 or f64."""


@dataclass(frozen=True)
class NetworkKey:
    """A key that a network compares.

    Attributes:
        column: which of the values of an element it is.
        type: its type, an integer or a bool.
        descending: whether the largest comes first.
    """

    column: int
    type: T
    descending: bool


def suits_network(n: int, stride: int, rows: int, count: int, columns: int, keys: int) -> bool:
    """Check whether a network sorts rows faster than a function that sorts one row after another.

    Args:
        n: elements of a row.
        stride: number of adjacent rows, whose elements are so far apart.
        rows: number of rows.
        count: positions of the sorted row that are needed.
        columns: values of an element, with its keys.
        keys: number of keys.
    """
    written_out = stride if stride < LANES else 1
    statements = sum(n - 1 - k for k in range(count)) * (2 * columns + 4 * keys - 3) * written_out
    return n > 1 and rows >= NETWORK_ROWS and n * written_out <= LONGEST and statements <= MOST_STATEMENTS


def ordered_bits(e: Emitter, key: str, t: T) -> tuple[str, T]:
    """Emit an integer whose order is that of a key, for floats their total order; return its name and type."""
    if t not in _BITS:
        return key, t
    wide, s = (T.F64 if t is T.F64 else T.F32), _BITS[t]
    if t is not wide:
        key = e.apply(conversion(t, wide), key)
    bits = e.apply(ScalarOp(Opcode.BITCAST_CONVERT, wide, s), key)
    sign = e.apply(binary(Opcode.SHIFT_RIGHT_ARITHMETIC, s), bits, e.constant(s.bits - 1, s))
    others = e.apply(binary(Opcode.AND, s), sign, e.constant(np.iinfo(s.dtype).max, s))
    return e.apply(binary(Opcode.XOR, s), bits, others), s


def sort_elements(
    e: Emitter, elements: Sequence[Sequence[str]], types: Sequence[T], keys: Sequence[NetworkKey], count: int
) -> list[list[str]]:
    """Emit a stable sort of a row.

    Args:
        e: the emitter.
        elements: the values of each element, in order.
        types: their types.
        keys: what is compared, the next key where the ones before are equal.
        count: number of positions that are needed.

    Returns:
        the values at these positions of the sorted row.
    """
    row = [list(x) for x in elements]
    n = len(row)
    if count == n:  # by insertion, which the C compiler makes better vectors of
        pairs = [k for last in range(1, n) for k in reversed(range(last))]
    else:
        pairs = [k for first in range(count) for k in reversed(range(first, n - 1))]
    for k in pairs:
        _exchange(e, row, k, types, _before(e, row[k + 1], row[k], keys))
    return row[:count]


def _before(e: Emitter, a: Sequence[str], b: Sequence[str], keys: Sequence[NetworkKey]) -> str:
    """Emit whether an element comes before another one."""
    key, *others = keys
    x, y = a[key.column], b[key.column]
    test = e.apply(comparison("GT" if key.descending else "LT", key.type), x, y)
    if not others:
        return test
    equal = e.apply(comparison("EQ", key.type), x, y)
    rest = e.apply(binary(Opcode.AND, T.PRED), equal, _before(e, a, b, others))
    return e.apply(binary(Opcode.OR, T.PRED), test, rest)


def _exchange(e: Emitter, row: Sequence[list[str]], k: int, types: Sequence[T], condition: str) -> None:
    """Emit elements k and k + 1 in the other order if a condition holds."""
    chosen: dict[tuple[str, str], tuple[str, str]] = {}
    for n, t in enumerate(types):
        a, b = row[k][n], row[k + 1][n]
        if (a, b) not in chosen:  # a key may be one of the values that are sorted
            op = ScalarOp(Opcode.SELECT, t, t)
            chosen[a, b] = e.apply(op, condition, b, a), e.apply(op, condition, a, b)
        row[k][n], row[k + 1][n] = chosen[a, b]
