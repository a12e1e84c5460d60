"""Distances of the rows of arrays in shared memory by which the threads of a warp read different banks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import IndexExpr, Var

BANKS = 32
"""Banks of shared memory, each with one word of 32 bits at a time; a warp has as many threads."""


@dataclass(frozen=True)
class SharedRead:
    """A read of a thread: the row and the column of the element, and the variable that is the thread's number."""

    row: IndexExpr
    column: IndexExpr
    thread: Var

    def places(self) -> list[tuple[int, int]]:
        """Return the rows and columns that the threads of the first warp read, where other variables are 0."""
        others = {v for e in (self.row, self.column) for v in e.variables() if v != self.thread}
        zeros: dict[ix.IndexSymbol, IndexExpr] = {v: ix.const(0) for v in others}
        row, column = self.row.substitute(zeros), self.column.substitute(zeros)

        def at(e: IndexExpr, number: int) -> int:
            return e.substitute({self.thread: ix.const(number)}).const

        return [(at(row, t), at(column, t)) for t in range(min(BANKS, self.thread.extent))]


def best_pitch(columns: int, reads: Iterable[SharedRead]) -> int:
    """Return the distance of adjacent rows, at least the number of columns, with the fewest turns of reads."""
    places = [r.places() for r in reads]
    return min(range(columns, columns + BANKS), key=lambda pitch: (sum(_turns(p, pitch) for p in places), pitch))


def _turns(places: list[tuple[int, int]], pitch: int) -> int:
    """Return how many different words of one bank the threads of a warp read, at most."""
    words = {row * pitch + column for row, column in places}
    banks = [0] * BANKS
    for w in words:
        banks[w % BANKS] += 1
    return max(banks)
