"""Cached facts about pairs of nodes, dropped as soon as either of the two changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeAlias, TypeVar

from compiler.ir import HloInstruction

V = TypeVar("V")
Key: TypeAlias = tuple[str, HloInstruction, HloInstruction]


class PairCache(Generic[V]):
    """Values by (kind, first, second)."""

    def __init__(self) -> None:
        self._values: dict[Key, V] = {}
        self._keys: dict[HloInstruction, set[Key]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __getitem__(self, key: Key) -> V:
        return self._values[key]

    def get(self, key: Key) -> V | None:
        """Return the value, or None."""
        return self._values.get(key)

    def __setitem__(self, key: Key, value: V) -> None:
        self._values[key] = value
        self._keys.setdefault(key[1], set()).add(key)
        self._keys.setdefault(key[2], set()).add(key)

    def forget(self, node: HloInstruction) -> None:
        """Drop every pair that contains a node."""
        for key in self._keys.pop(node, ()):
            self._values.pop(key, None)
            other = key[2] if key[1] is node else key[1]
            if (keys := self._keys.get(other)) is not None:
                keys.discard(key)

    def copy_for(self, image: Mapping[HloInstruction, HloInstruction]) -> PairCache[V]:
        """Return the same values for the images of the nodes; pairs without images are left out."""
        other: PairCache[V] = PairCache()
        for (kind, a, b), value in self._values.items():
            if a in image and b in image:
                other[kind, image[a], image[b]] = value
        return other
