"""A sum over nodes that is kept up to date: only nodes that changed are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from compiler.ir import HloInstruction


class RunningSum:
    """The sum of an integer per node; integers, so that the sum does not depend on the order of the changes.

    Args:
        value: returns the summand of a node, 0 for one that was removed.
        nodes: the nodes at the start.
    """

    def __init__(self, value: Callable[[HloInstruction], int], nodes: Iterable[HloInstruction]) -> None:
        self._value = value
        self._total = 0
        self._summands: dict[HloInstruction, int] = {}
        self._changed = dict.fromkeys(nodes)

    def change(self, nodes: Iterable[HloInstruction]) -> None:
        """Note that nodes were made, changed, removed or put back."""
        self._changed.update(dict.fromkeys(nodes))

    def total(self) -> int:
        """Return the sum."""
        if self._changed:
            for i in self._changed:
                now = self._value(i)
                self._total += now - self._summands.pop(i, 0)
                if now:
                    self._summands[i] = now
            self._changed = {}
        return self._total
