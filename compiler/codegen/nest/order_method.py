"""How the elements of a row are sorted or selected by key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OrderMethod:
    """The tunable parameters of a sort or a selection by key; the defaults suit most rows.

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
