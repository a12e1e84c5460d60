"""The index tests of a loop that depend on its variable alone, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Quotient, Remainder
from compiler.codegen.nest.loop_ir import For
from compiler.codegen.nest.traversal import walk

MAX_EXTENT = 1 << 22
"""Maximum extent of a loop whose tests are evaluated."""

Outcomes = npt.NDArray[np.bool_]


def tests_of(s: For) -> list[lir.IndexTest]:
    """Return the tests in a loop that depend on its variable alone."""
    if s.var.extent > MAX_EXTENT:
        return []
    found = (x.value for x in walk(s.body) if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest))
    return list(dict.fromkeys(t for t in found if set(t.value.variables()) == {s.var}))


def outcomes_of(tests: Sequence[lir.IndexTest], positions: npt.NDArray[np.int64]) -> Outcomes:
    """Return the outcome of each test at each position of the only variable."""
    out = np.ones((len(tests), len(positions)), bool)
    for row, t in zip(out, tests, strict=True):
        values = _values(t.value, positions)
        if t.low is not None:
            row &= values >= t.low
        if t.high is not None:
            row &= values <= t.high
    return out


def _values(i: IndexExpr, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    total = np.full(len(positions), i.const, np.int64)
    for symbol, factor in i.terms:
        if isinstance(symbol, Quotient):
            total += factor * (_values(symbol.value, positions) // symbol.divisor)
        elif isinstance(symbol, Remainder):
            total += factor * (_values(symbol.value, positions) % symbol.divisor)
        else:
            total += factor * positions
    return total
