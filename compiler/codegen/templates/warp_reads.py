"""In which direction a warp reads the operands of a product, and writes its result, by the sectors that it touches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Multiple, Quotient, Remainder, Var
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import walk
from compiler.ir.opcodes import Opcode

SECTOR_BYTES = 32
"""What a GPU moves at least between memory and the cache of a multiprocessor."""
WARP = 32
"""Threads that read at once."""
STEPS = 16
"""Steps along the depth that adjacent threads read before those of the next element, as in the usual tiles."""
SAMPLES = 16
"""Places at which the reads of a warp are counted."""

Values = NDArray[np.int64]


def reads_of(body: lir.Body, free: Var, depth: Var) -> tuple[bool, float]:
    """Return whether a warp should read an operand along its depth, and the sectors that it touches per element then.

    Args:
        body: the statements that compute an element.
        free: variable of the free elements.
        depth: variable along which products are summed.
    """
    lanes, starts = np.arange(WARP), np.arange(SAMPLES)[:, None]

    def sectors(free_steps: Values, depth_steps: Values) -> int:
        places: dict[IndexSymbol, Values] = {
            free: (starts * (free.extent // SAMPLES) + free_steps) % free.extent,
            depth: (starts * (depth.extent // SAMPLES) + depth_steps) % depth.extent,
        }
        return sum(_sectors(addresses) for addresses in _addresses(body, places))

    along, across = sectors(lanes // STEPS, lanes % STEPS), sectors(lanes, np.zeros(WARP, np.int64))
    # Elements along the free dimension are put into shared memory without conflicts: it is preferred if both are equal.
    return along < across, min(along, across) / (SAMPLES * WARP)


def sectors_along(offset: IndexExpr, var: Var, size: int) -> int:
    """Return the sectors that some warps touch whose threads access elements of `size` bytes along a variable."""
    places = (np.arange(SAMPLES)[:, None] * (var.extent // SAMPLES) + np.arange(WARP)) % var.extent
    return _sectors((_value(offset, {var: places}, {}) + np.zeros_like(places)) * size)


def orders_of(body: lir.Body, depth: Var) -> set[int]:
    """Return the lengths of the inner dimension of a depth of two dimensions, by which indices of loads divide it.

    In an order of the sums with this dimension as the outer one, other elements are adjacent.
    """
    lets = (s for s in walk(body) if isinstance(s, lir.Let))
    symbols = [symbol for s in lets if isinstance(s.value, lir.Load) for symbol, _ in s.value.offset.terms]
    return {
        s.divisor
        for s in symbols
        if isinstance(s, Quotient | Remainder) and s.value == ix.of(depth) and depth.extent % s.divisor == 0
    }


def _sectors(addresses: Values) -> int:
    """Return the sectors that all warps touch; each has a row of addresses."""
    touched = np.sort(addresses // SECTOR_BYTES, axis=1)
    return len(touched) + int(np.count_nonzero(np.diff(touched, axis=1)))


def _addresses(body: lir.Body, places: dict[IndexSymbol, Values]) -> Iterator[Values]:
    """Yield the places in bytes that each load reads, in its array; branches are taken both ways."""
    names: dict[str, Values] = {}
    shape = np.zeros((SAMPLES, WARP), np.int64)
    for s in walk(body):
        if not isinstance(s, lir.Let):
            continue
        if isinstance(s.value, lir.Load):
            yield (_value(s.value.offset, places, names) + shape) * SCALAR_BYTES[s.type]
        else:
            names[s.name] = _scalar(s.value, places, names)


def _scalar(x: lir.Expr, places: Mapping[IndexSymbol, Values], names: Mapping[str, Values]) -> Values:
    """Return the values of what an index may depend on: indices, tests of them, and choices by these; 0 for others."""
    zero = np.zeros((), np.int64)
    if isinstance(x, lir.IndexValue):
        return _value(x.value, places, names)
    if isinstance(x, lir.IndexTest):
        value = _value(x.value, places, names)
        low, high = (value if bound is None else np.asarray(bound) for bound in (x.low, x.high))
        return ((value >= low) & (value <= high)).astype(np.int64)
    if isinstance(x, lir.Apply) and x.op.opcode is Opcode.SELECT:
        test, yes, no = (names.get(name, zero) for name in x.args)
        return np.where(test != 0, yes, no)
    return zero


def _value(i: IndexExpr, places: Mapping[IndexSymbol, Values], names: Mapping[str, Values]) -> Values:
    """Return the values of an index; variables and names that are not known are 0, as they are the same either way."""
    total = np.asarray(i.const, np.int64)
    for symbol, c in i.terms:
        if isinstance(symbol, Quotient):
            total = total + c * (_value(symbol.value, places, names) // symbol.divisor)
        elif isinstance(symbol, Remainder):
            total = total + c * (_value(symbol.value, places, names) % symbol.divisor)
        elif isinstance(symbol, Multiple):
            total = total + c * symbol.factor.low * _value(symbol.value, places, names)
        elif symbol in places:
            total = total + c * places[symbol]
        elif symbol.name in names:
            total = total + c * names[symbol.name]
    return total
