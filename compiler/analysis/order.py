"""A topological order of a computation, maintained while fusion contracts its graph, and path queries bounded by it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.printing import canonical_order

STRIDE_BITS = 60
"""log2 of the distance between ranks at the start, which leaves room for new instructions between two others."""
_NUMBER_BITS = 20
"""The last bits of the rank of a new instruction hold a running number, so that no two ranks are equal."""


class TopologicalOrder:
    """Ranks that increase along every edge (operands and control predecessors).

    A get-tuple-element of a fusion has the rank of the fusion. Merging two nodes only moves nodes ranked between them
    (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006), so its cost is local.
    """

    def __init__(self, computation: HloComputation) -> None:
        order = canonical_order(computation)
        self._rank: dict[HloInstruction, int] = {i: n << STRIDE_BITS for n, i in enumerate(order)}
        for i in order:
            if _is_fusion_output(i):
                self._rank[i] = self._rank[i.operands[0]]
        self._control_users: dict[HloInstruction, list[HloInstruction]] = {}
        self._former: dict[HloInstruction, int | None] = {}
        self._placed = 0
        for i in order:
            for p in i.control_predecessors:
                self._control_users.setdefault(p, []).append(i)

    def copy_for(self, computation: HloComputation) -> TopologicalOrder:
        """Return the same ranks for a clone of the computation, whose instructions have the same names."""
        other = copy.copy(self)
        image = computation.find
        other._rank = {found: n for i, n in self._rank.items() if (found := image(i.name)) is not None}
        other._former = {}
        other._control_users = {
            p: [u for user in users if (u := image(user.name)) is not None]
            for i, users in self._control_users.items()
            if (p := image(i.name)) is not None
        }
        return other

    def __contains__(self, instruction: object) -> bool:
        return instruction in self._rank

    def rank(self, instruction: HloInstruction) -> int:
        """Return the rank of an instruction, which is at least that of each operand."""
        return self._rank[instruction]

    def sorted(self, instructions: Iterable[HloInstruction]) -> list[HloInstruction]:
        """Return the instructions in topological order; those of equal rank, which one fusion yields, by index."""
        return sorted(instructions, key=self._sort_key)

    def _sort_key(self, i: HloInstruction) -> tuple[int, int]:
        return self._rank[i], i.attributes["index"] if _is_fusion_output(i) else -1

    def has_control_edges(self, instruction: HloInstruction) -> bool:
        """Check whether an instruction has control predecessors or control successors."""
        return bool(instruction.control_predecessors) or instruction in self._control_users

    def control_users(self, instruction: HloInstruction) -> Sequence[HloInstruction]:
        """Return the instructions that are ordered after this one by control dependencies."""
        return self._control_users.get(instruction, ())

    def path_around(self, first: HloInstruction, last: HloInstruction) -> HloInstruction | None:
        """Return an instruction on a path from `first` to `last` other than their direct edge, or None.

        A get-tuple-element of `first` that `last` uses counts as the direct edge.
        """
        if not self._is_between(first, last):
            return None
        # Depth-first search, limited to ranks up to that of `last`; `start` is the first instruction of the path.
        limit = self._rank[last]
        work: list[tuple[HloInstruction, HloInstruction]] = []
        seen = {first, last}
        for user in self._successors(first):
            # Look through the fusion's get-tuple-elements, which have its rank.
            own = self._rank[user] == self._rank[first]
            starts = self._successors(user) if own else (user,)
            work += [(s, s) for s in starts]
        while work:
            node, start = work.pop()
            if node is last and start is not last:
                return start
            if node in seen or self._rank[node] > limit:
                continue
            seen.add(node)
            work += [(u, start) for u in self._successors(node)]
        return None

    def has_path_around(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether `path_around` returns an instruction, without finding it."""
        return self._is_between(first, last)

    def reaches(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether `last` depends on `first`, directly or indirectly."""
        if first is last:
            return True
        low = self._rank[first]
        return any(self._rank[p] == low for p in _predecessors(last)) or self._is_between(first, last)

    def _is_between(self, first: HloInstruction, last: HloInstruction) -> bool:
        """Check whether a path from `first` to `last` leads through anything else.

        The get-tuple-elements of the two do not count. The search goes forward from `first` and backward from `last`,
        on the side that has seen less, until they meet or one side ends.
        """
        rank, low, high = self._rank, self._rank[first], self._rank[last]
        back = [p for p in _predecessors(last) if rank[p] > low]
        ahead: list[HloInstruction] = []
        for user in self._successors(first):
            users = self._successors(user) if rank[user] == low else (user,)
            ahead += [u for u in users if rank[u] < high]
        before, after = set(back), set(ahead)
        if not before.isdisjoint(after):
            return True
        while ahead and back:
            if len(after) <= len(before):
                for n in self._successors(ahead.pop()):
                    if rank[n] < high and n not in after:
                        if n in before:
                            return True
                        after.add(n)
                        ahead.append(n)
            else:
                for n in _predecessors(back.pop()):
                    if rank[n] > low and n not in before:
                        if n in after:
                            return True
                        before.add(n)
                        back.append(n)
        return False

    def around(
        self, nodes: Iterable[HloInstruction], low: int, high: int
    ) -> tuple[set[HloInstruction], set[HloInstruction]]:
        """Return nodes with what they depend on from rank `low`, and with what depends on them up to rank `high`."""
        nodes = list(nodes)
        return self._needed_by(nodes, low), self._depending_on(nodes, high)

    def replace(self, old: HloInstruction, new: HloInstruction) -> None:
        """Give `new` the rank of `old`; its operands must not come later than those of `old`."""
        self._set(new, self._rank[old])
        self.remove(old)

    def place(self, new: HloInstruction, after: Iterable[HloInstruction], before: Iterable[HloInstruction]) -> bool:
        """Give an instruction a rank of its own between others; return whether all ranks were changed to make room."""
        after, before = list(after), list(before)
        low, high = self._gap(after, before)
        renumbered = (high - low) >> (_NUMBER_BITS + 6) == 0
        if renumbered:
            self._renumber(new)
            low, high = self._gap(after, before)
        # Close to the lower end, because what is taken out of a fusion next mostly comes after what was taken out.
        self._placed += 1
        number = self._placed % (1 << _NUMBER_BITS)
        self._set(new, ((low + (high - low) // 32 >> _NUMBER_BITS) + 1 << _NUMBER_BITS) | number)
        return renumbered

    def _gap(self, after: Iterable[HloInstruction], before: Iterable[HloInstruction]) -> tuple[int, int]:
        low = max((self._rank[i] for i in after), default=-1 << STRIDE_BITS)
        return low, min((self._rank[i] for i in before), default=low + (2 << STRIDE_BITS))

    def _renumber(self, new: HloInstruction) -> None:
        ranks = sorted({r for i, r in self._rank.items() if i is not new})
        spread = {r: n << STRIDE_BITS for n, r in enumerate(ranks)}
        for i, r in list(self._rank.items()):
            if i is not new:
                self._set(i, spread[r])

    def move(self, where: HloInstruction, instruction: HloInstruction) -> None:
        """Give an instruction the rank of another one."""
        self._set(instruction, self._rank[where])

    def remove(self, instruction: HloInstruction) -> None:
        """Remove an instruction that was removed from the computation."""
        if instruction in self._rank:
            self._former.setdefault(instruction, self._rank.pop(instruction))

    def make_adjacent(self, first: HloInstruction, last: HloInstruction) -> None:
        """Reorder such that everything that depends on `first` comes after `last`; call it before merging the two.

        `first` must have the smaller rank, and no path but the direct edge may lead from it to `last`.
        """
        # Only nodes ranked between the two move: those that `last` depends on first, then those that depend on `first`.
        # They share out the ranks that they had, so all other ranks stay.
        low, high = self._rank[first], self._rank[last]
        followers = self._depending_on([first], high) - {first}
        followers -= {last} | {i for i in followers if self._rank[i] == low}
        before = self._needed_by([last], low + 1)
        moved = self.sorted(i for i in before | {last} if not _is_fusion_output(i))
        moved += self.sorted(i for i in followers if not _is_fusion_output(i))
        slots = sorted(self._rank[i] for i in moved)
        for node, slot in zip(moved, slots, strict=True):
            self._set(node, slot)
            for g in node.users:
                if _is_fusion_output(g):
                    self._set(g, slot)

    def _set(self, instruction: HloInstruction, rank: int) -> None:
        self._former.setdefault(instruction, self._rank.get(instruction))
        self._rank[instruction] = rank

    def take_changes(self) -> dict[HloInstruction, int | None]:
        """Return the former ranks of the instructions whose ranks changed since the last call; None for new ones."""
        former, self._former = self._former, {}
        return former

    def restore(self, former: Mapping[HloInstruction, int | None]) -> None:
        """Set back ranks that `take_changes` returned."""
        for i, rank in former.items():
            if rank is None:
                self._rank.pop(i, None)
            else:
                self._rank[i] = rank

    def _successors(self, i: HloInstruction) -> Iterable[HloInstruction]:
        extra = self._control_users.get(i)
        return i.users if extra is None else (*i.users, *extra)

    def _needed_by(self, nodes: Iterable[HloInstruction], low: int) -> set[HloInstruction]:
        """Return nodes with what they depend on from rank `low`."""
        rank, work = self._rank, list(nodes)
        seen = set(work)
        while work:
            i = work.pop()
            for n in _predecessors(i) if i.attributes else i.operands:
                if n not in seen and rank[n] >= low:
                    seen.add(n)
                    work.append(n)
        return seen

    def _depending_on(self, nodes: Iterable[HloInstruction], high: int) -> set[HloInstruction]:
        """Return nodes with what depends on them up to rank `high`."""
        rank, work, control = self._rank, list(nodes), self._control_users
        seen = set(work)
        while work:
            i = work.pop()
            for n in self._successors(i) if control else i.users:
                if n not in seen and rank[n] <= high:
                    seen.add(n)
                    work.append(n)
        return seen


def _is_fusion_output(i: HloInstruction) -> bool:
    return i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operands[0].opcode is Opcode.FUSION


def _predecessors(i: HloInstruction) -> Iterable[HloInstruction]:
    return (*i.operands, *i.control_predecessors) if i.control_predecessors else i.operands
