"""Where the fusions of a sequence can be divided: the values at which they are split, and those that can move.

Facts are kept by the revisions of the nodes. What is listed at a fusion also depends on which nodes yield some values;
`watching` says which fusions are concerned when these values move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.analysis.cost_model import CostModel
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.legality import Legality
from compiler.fusion.moving import Candidates, MoveFacts, Moving, candidates
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import consumers_of, is_result, source_of
from compiler.fusion.splitting import PartFacts, part_facts
from compiler.ir import HloInstruction, Opcode
from compiler.support.bounded_table import BoundedTable


class _Known:
    """Facts by the revisions of fusions; forks share them."""

    def __init__(self, most: int) -> None:
        self.cuts: BoundedTable[int, tuple[tuple[int, ...], tuple[int, ...]]] = BoundedTable(most)
        self.parts: BoundedTable[tuple[int, int], PartFacts] = BoundedTable(most)
        self.movable: BoundedTable[int, Candidates] = BoundedTable(most)
        self.moves: BoundedTable[tuple[int, int, int, bool], MoveFacts] = BoundedTable(most)


class Divisions:
    """The divisions of the fusions of one sequence.

    Args:
        nodes: of the sequence.
        legality: of the sequence.
        cost_model: prices the parts.
        like: divisions of a sequence whose nodes have the same revisions, with which facts are shared.
    """

    def __init__(self, nodes: Nodes, legality: Legality, cost_model: CostModel, like: Divisions | None = None) -> None:
        self._nodes, self._legality, self._cost_model = nodes, legality, cost_model
        self._known: _Known = _Known(nodes.most) if like is None else like._known
        self._watched: dict[int, dict[HloInstruction, None]] = {}

    def watching(self, values: Iterable[int]) -> list[HloInstruction]:
        """Return the fusions whose lists depend on which nodes yield some values."""
        return list(dict.fromkeys(i for v in values for i in self._watched.get(v, ()) if i in self._nodes))

    # ---- fissions

    def cuts(self, fusion: HloInstruction) -> tuple[int, ...]:
        """Return the values at which the fissions of a fusion are listed; its row is made again when they move."""
        known, revision = self._known.cuts, self._nodes.revision(fusion)
        found = known.get(revision)
        if found is None:
            anatomy = Anatomy(fusion, self._nodes)
            found = known[revision] = anatomy.cuts(), tuple(anatomy.constants())
        cuts, constants = found
        for v in (*cuts, *constants):
            self._watched.setdefault(v, {})[fusion] = None
        return cuts

    def constant_reason(self, fusion: HloInstruction) -> str | None:
        """Return why a fusion cannot be split: another fusion yields a constant that a part would need."""
        self.cuts(fusion)
        for v in self._known.cuts[self._nodes.revision(fusion)][1]:
            node = self._nodes.yields(v)
            if node is not None and node is not fusion and node.opcode is Opcode.FUSION:
                name = self._nodes.origins.name(v)
                return f"%{name}, a constant of which %{fusion.name} has a copy, is a result of %{node.name}"
        return None

    def parts(self, fusion: HloInstruction, cut: int) -> PartFacts:
        """Return whether a fusion can be split at a value, and how long the two kernels take."""
        known, key = self._known.parts, (self._nodes.revision(fusion), cut)
        found = known.get(key)
        if found is None:
            anatomy = Anatomy(fusion, self._nodes)
            found = known[key] = part_facts(anatomy, cut, self._cost_model, self._legality.target)
        return found

    # ---- moves

    def moves(self, fusion: HloInstruction) -> Iterator[tuple[int, HloInstruction, tuple[HloInstruction, ...]]]:
        """Yield the moves that are listed at a fusion: a value, where it goes, and what it reads besides; see `Move`.

        The row of the fusion is made again when one of these values is yielded by another node.
        """
        known, nodes = self._known.movable, self._nodes
        revision = nodes.revision(fusion)
        found = known.get(revision)
        if found is None:
            found = known[revision] = candidates(Anatomy(fusion, nodes))
        up, down = found
        for value, places in up:
            self._watched.setdefault(value, {})[fusion] = None
            if nodes.yields(value) not in (None, fusion):
                continue
            read = list(dict.fromkeys(source_of(fusion.operands[n]) for n in places))
            for target in nodes.sorted(i for i in read if i in nodes):
                yield value, target, tuple(i for i in read if i is not target)
        for value, needed in down:
            for v in needed:
                self._watched.setdefault(v, {})[fusion] = None
            reader = nodes.operand_of(value)
            if reader is None or is_result(reader) or len(reader.users) != 1:
                continue
            (target,) = reader.users
            if target in nodes and all(nodes.yields(v) in (None, fusion) for v in needed):
                yield value, target, ()

    def move_facts(self, fusion: HloInstruction, value: int, target: HloInstruction) -> MoveFacts:
        """Return whether a value of a fusion can be computed by a neighbor instead, and how long both then take."""
        others = is_result(target) or any(i is not fusion for i in consumers_of(target))
        known, revision = self._known.moves, self._nodes.revision
        key = revision(fusion), value, revision(target), others
        found = known.get(key)
        if found is None:
            moving = Moving(Anatomy(fusion, self._nodes), value, target)
            found = known[key] = moving.facts(self._legality, self._cost_model, others)
        return found

    def moved_rule(self, fusion: HloInstruction, value: int, target: HloInstruction) -> str | None:
        """Return the user's rule against computing a value of a fusion in another kernel, or None."""
        restrictions = self._legality.restrictions
        if not restrictions.patterns:
            return None
        pair = Moving(Anatomy(fusion, self._nodes), value, target).pair
        marks = 0 if pair is None else restrictions.marks(pair[0])
        return restrictions.refusal(marks, self._legality.facts(target).marks)
