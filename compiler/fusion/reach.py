"""What depends on each node of a sequence, as bit masks, so that a question about a path is one operation on integers.

Every node has bits of its own, and a mask of the bits of all nodes that depend on it. After a change the masks of the
nodes near it are computed again, and those of what they read as long as something differs. A node that absorbs another
one takes over its bits, so that most masks stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.nodes import Nodes
from compiler.ir import HloInstruction

MAX_NODES = 1024
"""Largest number of nodes with masks, whose size and number of updates grow with the sequence."""
Neighbors: TypeAlias = Callable[[HloInstruction], Sequence[HloInstruction]]
ALL_BITS = -1
"""The bits of all nodes."""


class Reach:
    """The dependences between the nodes of a sequence.

    Args:
        nodes: the nodes.
        order: their order.
        producers: returns the nodes that a node reads.
        consumers: returns the nodes that read a node.
    """

    def __init__(self, nodes: Nodes, order: TopologicalOrder, producers: Neighbors, consumers: Neighbors) -> None:
        self._nodes, self._order, self._producers, self._consumers = nodes, order, producers, consumers
        self._bits: dict[int, int] = {}  # by revision, so that a node that comes back has its own again
        # For each node: its own bits, those of all nodes that depend on it, and those of all that depend on its users.
        self._below: dict[HloInstruction, tuple[int, int, int]] = {}
        self._changed: dict[HloInstruction, None] = dict.fromkeys(nodes.values)
        self._listeners: list[dict[HloInstruction, int]] = []
        self._next = 0

    def reaches(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether `last` depends on `first`, directly or indirectly."""
        below = self._masks()
        return first is last or bool(below[first][1] & below[last][0])

    def has_path_around(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether a path other than the direct edge leads from one node to another."""
        below = self._masks()
        return bool(below[first][2] & below[last][0])

    def bits(self, node: HloInstruction) -> int:
        """Return the bits of a node."""
        revision = self._nodes.revision(node)
        found = self._bits.get(revision)
        if found is None:
            found = self._bits[revision] = 1 << self._next
            self._next += 1
        return found

    def bits_of(self, nodes: Iterable[HloInstruction]) -> int:
        """Return the bits of all of some nodes."""
        below, found = self._masks(), 0
        for n in nodes:
            found |= below[n][0]
        return found

    def set_bits(self, node: HloInstruction, bits: int) -> None:
        """Give a node the bits of those that it takes the place of."""
        self._bits[self._nodes.revision(node)] = bits

    def change(self, changed: Iterable[HloInstruction], around: Iterable[HloInstruction]) -> None:
        """Note that nodes were made, changed, removed or put back, and whose consumers changed."""
        self._changed.update(dict.fromkeys(changed))
        self._changed.update(dict.fromkeys(around))

    def listen(self) -> dict[HloInstruction, int]:
        """Return a collection to which `update` adds the nodes whose masks change from now on.

        Each comes with the bits of the nodes of which it changed whether they depend on it, or with `ALL_BITS`.
        """
        found: dict[HloInstruction, int] = {}
        self._listeners.append(found)
        return found

    def _masks(self) -> dict[HloInstruction, tuple[int, int, int]]:
        if self._changed:
            self.update()
        return self._below

    def update(self) -> None:
        """Bring all masks up to date."""
        below, moved, nodes, rank = self._below, dict[HloInstruction, int](), self._nodes.values, self._order.rank
        producers = self._producers
        if self._next > 2 * len(nodes) + 256:
            self._bits, self._next = {}, 0
            self._changed.update(dict.fromkeys(nodes))
        todo: dict[HloInstruction, None] = {}
        for i in self._changed:
            if i in nodes:
                todo[i] = None
                todo.update(dict.fromkeys(producers(i)))
            elif below.pop(i, None) is not None:
                moved[i] = ALL_BITS
        self._changed = {}
        # From the last rank to the first, so that each node is looked at after all that depends on it.
        heap = [(-rank(i), n, i) for n, i in enumerate(todo)]
        heapify(heap)
        count = len(heap)
        while heap:
            i = heappop(heap)[2]
            mask, beyond = self._mask(i)
            now, before = (self.bits(i), mask, beyond), below.get(i)
            if before == now:
                continue
            below[i] = now
            if before is not None and before[:2] == now[:2]:
                continue  # nothing follows for what it reads
            moved[i] = ALL_BITS if before is None or before[0] != now[0] else before[1] ^ mask
            for p in (*producers(i), *i.control_predecessors) if i.control_predecessors else producers(i):
                if p not in todo:
                    todo[p] = None
                    heappush(heap, (-rank(p), count, p))
                    count += 1
        for listener in self._listeners:
            for i, bits in moved.items():
                listener[i] = listener.get(i, 0) | bits

    def _mask(self, i: HloInstruction) -> tuple[int, int]:
        """Return the bits of what depends on a node, and of what depends on a node that reads it."""
        below, mask, beyond = self._below, 0, 0
        users: Iterable[HloInstruction] = self._consumers(i)
        if extra := self._order.control_users(i):
            users = (*users, *extra)
        for u in users:
            bits, further, _ = below[u]
            mask |= bits
            beyond |= further
        return mask | beyond, beyond
