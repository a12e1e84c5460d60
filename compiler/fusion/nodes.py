"""The nodes of a sequence while fusions change them: revisions for caches, and the original values that they yield."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TypeAlias

from compiler.fusion.rewriting import outputs_of, source_of
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.printing import canonical_order

_revisions = itertools.count()


class _Revisions(dict[HloInstruction, int]):
    """The revisions of nodes; one that has none yet gets one."""

    def __missing__(self, node: HloInstruction) -> int:
        found = self[node] = next(_revisions)
        return found


SavedNode: TypeAlias = tuple[HloInstruction, int | None, tuple[int, ...]]


class Nodes:
    """The nodes of a sequence: its instructions, where a multi-output fusion stands for its get-tuple-elements too.

    Every value that the sequence computes at the start has a number, in canonical order, which depends on the graph
    alone. At any time at most one node yields a value, so the numbers that a node yields identify it, whatever
    fusions led to it.

    Attributes:
        values: the numbers of the values that a node yields, in the order of its outputs.
        revision: returns a number of a node that changes whenever the node does, and that no other node has or had.
    """

    revision: Callable[[HloInstruction], int]

    def __init__(self, computation: HloComputation) -> None:
        self.values: dict[HloInstruction, tuple[int, ...]] = {}
        self._revision = _Revisions()
        self.revision = self._revision.__getitem__
        count = 0
        for i in canonical_order(computation):
            self._revision[i] = next(_revisions)
            if source_of(i) is not i:
                continue
            outputs = len(outputs_of(i)) if i.opcode is Opcode.FUSION else 1
            self.values[i] = tuple(range(count, count + outputs))
            count += outputs

    def copy_for(self, computation: HloComputation) -> Nodes:
        """Return the same for a clone of the computation; nodes keep their revisions, so that caches serve both."""
        other = Nodes.__new__(Nodes)
        image = computation.find
        other.values = {new: v for i, v in self.values.items() if (new := image(i.name)) is not None}
        other._revision = _Revisions((new, r) for i, r in self._revision.items() if (new := image(i.name)) is not None)
        other.revision = other._revision.__getitem__
        return other

    def __contains__(self, node: object) -> bool:
        return node in self.values

    def key(self, node: HloInstruction) -> int:
        """Return the number by which nodes are ordered: that of the last value that it yields."""
        return max(self.values[node])

    def sorted(self, nodes: Iterable[HloInstruction]) -> list[HloInstruction]:
        """Return nodes in order of their keys."""
        return sorted(nodes, key=self.key)

    def value_of(self, operand: HloInstruction) -> int:
        """Return the number of the value that an operand reads."""
        node = source_of(operand)
        return self.values[node][0 if node is operand else operand.attributes["index"]]

    # ---- changes

    def save(self, nodes: Iterable[HloInstruction]) -> list[SavedNode]:
        """Return what `restore` needs to give these nodes their present identity back."""
        return [(i, self._revision.get(i), self.values.get(i, ())) for i in nodes]

    def restore(self, saved: Iterable[SavedNode]) -> None:
        """Give nodes the identity that they had; those that had none are forgotten."""
        for i, revision, values in saved:
            if revision is None:
                self._revision.pop(i, None)
            else:
                self._revision[i] = revision
            if values:
                self.values[i] = values
            else:
                self.values.pop(i, None)

    def change(self, node: HloInstruction, values: tuple[int, ...]) -> None:
        """Note that a node was made or changed, and what it yields now."""
        self._revision[node] = next(_revisions)
        self.values[node] = values

    def remove(self, node: HloInstruction) -> None:
        """Forget a node that was removed."""
        self._revision.pop(node, None)
        self.values.pop(node, None)
