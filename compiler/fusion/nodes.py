"""The nodes of a sequence while fusions change them: revisions for caches, and the original values that they yield."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.fusion.rewriting import is_multi_output, outputs_of, source_of
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.printing import canonical_order

_revisions = itertools.count()
MOST_FACTS = 20_000
FACTS_PER_NODE = 40


class _Revisions(dict[HloInstruction, int]):
    """The revisions of nodes; one that has none yet gets one."""

    def __missing__(self, node: HloInstruction) -> int:
        found = self[node] = next(_revisions)
        return found


SavedNode: TypeAlias = tuple[HloInstruction, int | None, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Origin:
    """What computed a value when fusion began: the instruction's name, its opcode, and the values that it read."""

    name: str
    opcode: Opcode
    operands: tuple[int, ...]


@dataclass(slots=True)
class Origins:
    """The values that a sequence computed when fusion began, by number."""

    values: list[Origin] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, instruction: HloInstruction, operands: tuple[int, ...]) -> None:
        """Add the next value."""
        self._numbers.setdefault(instruction.name, len(self.values))
        self.values.append(Origin(instruction.name, instruction.opcode, operands))

    def name(self, value: int) -> str:
        """Return the name of the instruction that computed a value."""
        return self.values[value].name

    def number_of(self, name: str) -> int | None:
        """Return the number of the value that an instruction computed, the first one of a multi-output fusion."""
        return self._numbers.get(name)


class Nodes:
    """The nodes of a sequence: its instructions, where a multi-output fusion stands for its get-tuple-elements too.

    Every value that the sequence computes at the start has a number, in canonical order, which depends on the graph
    alone. At any time at most one node yields a value, so the numbers that a node yields identify it, whatever
    fusions led to it.

    Attributes:
        values: the numbers of the values that a node yields, in the order of its outputs.
        revision: returns a number of a node that changes whenever the node does, and that no other node has at the
            same time. A node that is made again from the same nodes has its former revision, so that its facts are
            found by it, whatever happened elsewhere.
        origins: what computed each value at the start.
        most: number of facts of one kind by revisions that are kept; beyond it, all are dropped. Small programs are
            those of environments, which hold many facts for long; large ones need more at a time.
        moved: values that another node yields than when the set was last cleared, or none.
    """

    revision: Callable[[HloInstruction], int]

    def __init__(self, computation: HloComputation) -> None:
        self.values: dict[HloInstruction, tuple[int, ...]] = {}
        self._revision = _Revisions()
        self.revision = self._revision.__getitem__
        self._made: dict[Hashable, int] = {}
        self._node_of: dict[int, HloInstruction] = {}
        self.origins = Origins()
        self.moved: set[int] = set()
        count = 0
        for i in canonical_order(computation):
            self._revision[i] = next(_revisions)
            if source_of(i) is not i:
                continue
            outputs = len(outputs_of(i)) if i.opcode is Opcode.FUSION else 1
            self.values[i] = tuple(range(count, count + outputs))
            read = tuple(map(self.value_of, i.operands))
            for v in self.values[i]:
                self._node_of[v] = i
                self.origins.add(i, read)
            count += outputs
        self.most = max(MOST_FACTS, FACTS_PER_NODE * len(self.values))

    def copy_for(self, computation: HloComputation) -> Nodes:
        """Return the same for a clone of the computation; nodes keep their revisions, so that caches serve both."""
        other = Nodes.__new__(Nodes)
        image = computation.find
        other.values = {new: v for i, v in self.values.items() if (new := image(i.name)) is not None}
        other._revision = _Revisions((new, r) for i, r in self._revision.items() if (new := image(i.name)) is not None)
        other.revision = other._revision.__getitem__
        other._made, other.most = self._made, self.most
        other._node_of = {v: i for i, values in other.values.items() for v in values}
        other.origins, other.moved = self.origins, set()
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

    def yields(self, value: int) -> HloInstruction | None:
        """Return the node that yields a value, or None."""
        return self._node_of.get(value)

    def operand_of(self, value: int) -> HloInstruction | None:
        """Return the instruction to read for a value: a node or its get-tuple-element; None if no node yields it."""
        node = self._node_of.get(value)
        if node is None or not is_multi_output(node):
            return node
        index = self.values[node].index(value)
        return next((g for g in node.users if g.attributes.get("index") == index), None)

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
            self._set(i, values)

    def change(self, node: HloInstruction, values: tuple[int, ...], origin: Hashable = None) -> None:
        """Note that a node was made or changed.

        Args:
            node: the node.
            values: what it yields now.
            origin: how it was made from other revisions, if that says what it computes; None: it is like no other.
        """
        if origin is None:
            self._revision[node] = next(_revisions)
        else:
            if len(self._made) >= self.most:
                self._made.clear()
            key = origin, values
            found = self._made.get(key)
            self._revision[node] = found = self._made[key] = next(_revisions) if found is None else found
        self._set(node, values)

    def remove(self, node: HloInstruction) -> None:
        """Forget a node that was removed."""
        self._revision.pop(node, None)
        self._set(node, ())

    def _set(self, node: HloInstruction, values: tuple[int, ...]) -> None:
        former = self.values.pop(node, ())
        for v in former:
            if self._node_of.get(v) is node:
                del self._node_of[v]
        if values:
            self.values[node] = values
            self._node_of.update(dict.fromkeys(values, node))
        if former != values:
            self.moved.update(former, values)
