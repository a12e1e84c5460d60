"""A dictionary of bounded size, for facts that are quickly found again."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedTable(dict[K, V]):
    """A dict that drops all its entries when one is added and it is full; a look-up is that of a dict.

    Cheaper than `LruDict`, for facts that are quickly found again.

    Args:
        most: maximum number of entries, at least 1.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)
