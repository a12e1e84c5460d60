"""How the elements of a row are sorted or selected by key."""

from __future__ import annotations

from dataclasses import dataclass, replace

WIDE_BLOCK, FEW = 1024, 8
"""Elements of the longest row that is one block, and the most of them that are selected from a row in one block."""
LONG_ROW, LONG_DIGIT = 4096, 11
"""Elements of a row from which on longer digits save more than their longer counts cost, and their bits."""
WIDE_RUN, RUN_STEP = 64, 16
"""Longest run, and the number of which it is a multiple: the elements of a vector of narrow entries."""


@dataclass(frozen=True, slots=True)
class OrderMethod:
    """The tunable parameters of a sort or a selection by key; `for_rows` adapts the defaults to a row.

    Attributes:
        block: number of elements that are compared with the last of the best so far at once.
        insertion: largest number of selected elements that are kept in order by insertion, at most a block; more are
            sorted at times.
        room: elements that are collected between two such sorts, in multiples of the selected ones; where a row has
            no more of them, it is sorted as a whole.
        run: number of elements that are sorted by counting, for each, those before it.
        merge: largest number of elements that are sorted by merging runs; more are sorted by the digits of their keys.
        digit: bits of a digit.
    """

    block: int = 128
    insertion: int = 64
    room: int = 2
    run: int = 32
    merge: int = 192
    digit: int = 8

    def for_rows(self, n: int, k: int, narrow: bool) -> OrderMethod:
        """Return the method with parameters that suit the rows in place of those that are the defaults.

        Args:
            n: number of elements of a row.
            k: number of selected elements; n for a sort.
            narrow: whether a key and the number of its element take at most 32 bits.
        """
        usual, found = OrderMethod(), self
        if self.insertion == usual.insertion and k * (8 if n <= usual.run else 6) >= n:
            found = replace(found, insertion=0)  # so many elements are inserted that a sort of all takes less time
        if self.block == usual.block < n <= WIDE_BLOCK and (k <= FEW or k == n):
            found = replace(found, block=_rounded_up(n))
        if self.run == usual.run < n and (narrow or n <= WIDE_RUN):
            found = replace(found, run=min(_rounded_up(n), WIDE_RUN))
        if self.run == usual.run and n <= RUN_STEP:
            found = replace(found, run=RUN_STEP)  # a run is compared as a whole, and this is one vector
        if self.digit == usual.digit and n >= LONG_ROW:
            found = replace(found, digit=LONG_DIGIT)
        return found


def _rounded_up(n: int) -> int:
    return -(-n // RUN_STEP) * RUN_STEP
