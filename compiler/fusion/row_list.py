"""The rows of a table in order of their keys, flattened block by block, so that a change flattens one block again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

BLOCK = 32
"""Blocks of twice as many rows are split."""


class _Block(Generic[T]):
    __slots__ = ("flat", "keys")

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys
        self.flat: list[list[T] | None] = []


class RowList(Generic[T]):
    """Keys of rows in order.

    Args:
        views: functions of a key that return the contents of its row in one of several views.
    """

    def __init__(self, *views: Callable[[int], Iterable[T]]) -> None:
        self._views = views
        self._blocks: list[_Block[T]] = []
        self._last: list[int] = []  # the last key of each block
        self._whole: list[list[T] | None] = [None] * len(views)

    def insert(self, key: int) -> None:
        """Add a key that is not there."""
        if not self._blocks:
            self._blocks, self._last = [self._block([key])], [key]
        else:
            n = min(bisect_left(self._last, key), len(self._blocks) - 1)
            block = self._blocks[n]
            insort(block.keys, key)
            self._last[n] = block.keys[-1]
            if len(block.keys) >= 2 * BLOCK:
                parts = [self._block(block.keys[:BLOCK]), self._block(block.keys[BLOCK:])]
                self._blocks[n : n + 1] = parts
                self._last[n : n + 1] = [p.keys[-1] for p in parts]
        self.touch(key)

    def remove(self, key: int) -> None:
        """Remove a key that is there."""
        self.touch(key)
        n = bisect_left(self._last, key)
        keys = self._blocks[n].keys
        del keys[bisect_left(keys, key)]
        if keys:
            self._last[n] = keys[-1]
        else:
            del self._blocks[n], self._last[n]

    def touch(self, key: int) -> None:
        """Note that the row of a key has changed."""
        block = self._blocks[bisect_left(self._last, key)]
        block.flat = [None] * len(self._views)
        self._whole = [None] * len(self._views)

    def flat(self, view: int) -> list[T]:
        """Return the contents of all rows in a view, in order; the list must not be changed."""
        whole = self._whole[view]
        if whole is None:
            whole = self._whole[view] = []
            for block in self._blocks:
                part = block.flat[view]
                if part is None:
                    row = self._views[view]
                    part = block.flat[view] = [item for key in block.keys for item in row(key)]
                whole += part
        return whole

    def _block(self, keys: list[int]) -> _Block[T]:
        block: _Block[T] = _Block(keys)
        block.flat = [None] * len(self._views)
        return block
