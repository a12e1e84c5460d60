"""A mapping of bounded size that evicts the least recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

__all__ = ["LruDict"]

K = TypeVar("K")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """A mapping of bounded total size that evicts the least recently used entries; reading an entry counts as a use.

    The entry that was set last is kept whatever its size.

    Args:
        limit: largest sum of sizes.
        size: returns the size of an entry; by default every entry has size one.

    Attributes:
        total: sum of the sizes of the current entries.
        dropped: sum of the sizes of all evicted entries.
    """

    def __init__(self, limit: float, size: Callable[[K, V], float] | None = None) -> None:
        self.limit = limit
        self.total = self.dropped = 0.0
        self._size = size
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the most recently used one last."""
        return iter(self._entries)

    def __getitem__(self, key: K) -> V:
        value, _ = self._entries[key]
        self._entries.move_to_end(key)
        return value

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if there is none; counts as a use."""
        return self[key] if key in self._entries else None

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V, kept: Collection[K] = ()) -> None:
        """Set an entry, then evict others until the rest fits; entries in `kept` are not evicted."""
        self.pop(key)
        size = 1.0 if self._size is None else self._size(key, value)
        self._entries[key] = (value, size)
        self.total += size
        self._shrink(kept)

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value, or None if there was none."""
        value, size = self._entries.pop(key, (None, 0.0))
        self.total -= size
        return value

    def _shrink(self, kept: Collection[K]) -> None:
        """Evict least recently used entries until the rest fits, except the last one set and those in `kept`."""
        while not kept and self.total > self.limit and len(self._entries) > 1:
            self._drop(next(iter(self._entries)))
        for key in list(self._entries)[:-1] if kept else ():
            if self.total <= self.limit:
                return
            if key not in kept:
                self._drop(key)

    def _drop(self, key: K) -> None:
        before = self.total
        self.pop(key)
        self.dropped += before - self.total
