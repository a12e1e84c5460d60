"""Trials: whether the fused computation of two nodes can be built and what it costs, without changing the module.

Programs repeat themselves, as layers and unrolled time steps do. Answers are therefore kept by the structure of the two
nodes and by the operands that they share, so that equal pairs are judged once.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.analysis.kernel_summary import KernelSummary, summarize_body
from compiler.analysis.structure import StructuralIds, shape_key
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.buildability import is_refused, kernel_refusal
from compiler.fusion.contents import Content, Contents
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import body_of, instructions_of, is_inlined_constant, is_multi_output
from compiler.fusion.trial_bodies import trial_fusion
from compiler.ir import HloComputation, HloInstruction, Opcode

MAX_BODIES = 64
"""Maximum number of fused computations that are kept for a second question about the same pair."""
MAX_SUMMARIES = 2_000
"""Maximum number of structures of pairs whose summaries are kept."""
MOST_COMPARED = 64
"""Instructions of a fusion up to which it is compared with others that were made in another way; larger ones differ."""
_IDENTIFIED = frozenset({Opcode.GATHER, Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE})
"""Opcodes whose uses a summary tells apart by the instruction, so that equal computations have different summaries."""
_CONSTANTS = frozenset({Opcode.CONSTANT, Opcode.BROADCAST})
_Origin: TypeAlias = tuple[int, tuple[int, ...] | None]


@dataclass(slots=True)
class _Structures:
    """Numbers of structures; forks share them.

    A number is never given twice, so that what is kept by numbers stays valid when the numbers themselves are dropped.

    Attributes:
        ids: numbers of the computations that instructions call.
        numbers: the structure of a node by its key.
        identified: structures with an instruction of `_IDENTIFIED`.
        of_node: the structure of a node by its revision.
        pairs: the structure of a pair by its key.
        of_pair: the structure of a pair by its kind and the revisions of its nodes.
        origins: how a fusion was made, by its revision: the pair, and which outputs are left.
        of_origin: the structure of what is made in this way.
    """

    ids: StructuralIds = field(default_factory=StructuralIds)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    identified: set[int] = field(default_factory=set)
    of_node: dict[int, int] = field(default_factory=dict)
    pairs: dict[Hashable, int] = field(default_factory=dict)
    of_pair: dict[tuple[str, int, int], int] = field(default_factory=dict)
    origins: dict[int, _Origin] = field(default_factory=dict)
    of_origin: dict[_Origin, int] = field(default_factory=dict)
    _next: int = 0

    def number(self, of: dict[Hashable, int], key: Hashable, most: int) -> int:
        """Return the number of a key in `numbers` or `pairs`, of which at most `most` are kept; else a new one."""
        found = of.get(key)
        if found is None:
            if len(of) >= most:
                of.clear()
            found = of[key] = self.new()
        return found

    def new(self) -> int:
        """Return a number that was not given before."""
        self._next += 1
        return self._next


class Trials:
    """The trial fusions of one sequence.

    Attributes:
        target: what the kernels are built for.
    """

    def __init__(self, nodes: Nodes, target: BuildTarget, contents: Contents | None = None) -> None:
        self._nodes, self.target, self._contents = nodes, target, contents
        self._structures = _Structures()
        self._refused: dict[int, bool] = {}
        self._summaries: dict[int, KernelSummary] = {}
        self._bodies: dict[tuple[str, int, int], HloComputation] = {}

    def copy_for(self, nodes: Nodes) -> Trials:
        """Return the same answers for a clone, whose nodes have the same revisions."""
        other = copy.copy(self)
        other._nodes = nodes
        return other

    def is_refused(self, kind: str, first: HloInstruction, second: HloInstruction) -> bool:
        """Check whether the fused computation of two nodes cannot be one kernel; `refusal` says why."""
        content = self.content(kind, first, second)
        if content is not None and self._contents is not None:
            built = self._contents.is_built(content)
            if built is not None:
                return not built
        pair = self.pair(kind, first, second)
        found = self._refused.get(pair)
        if found is None:
            if len(self._refused) >= self._nodes.most:
                self._refused.clear()
            found = self._refused[pair] = is_refused(self._body(kind, first, second), self.target)
        if content is not None and self._contents is not None:
            self._contents.set_built(content, not found)
        return found

    def refusal(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """Return why the fused computation of two nodes cannot be one kernel, or None when it can."""
        pair = self.pair(kind, first, second)
        if self._refused.get(pair) is False:
            return None
        # A reason names instructions of this pair, so that no other pair can have it.
        reason = kernel_refusal(self._body(kind, first, second), self.target)
        self._refused[pair] = reason is not None
        return reason

    def summary(self, kind: str, first: HloInstruction, second: HloInstruction) -> KernelSummary:
        """Return the summary of the fused computation of two nodes; the order of its inputs is not that of operands."""
        content = self.content(kind, first, second)
        if content is not None and self._contents is not None:
            return self._contents.summary(content)
        pair = self.pair(kind, first, second)
        found = self._summaries.get(pair)
        if found is None:
            found = summarize_body(self._body(kind, first, second))
            if self.is_shared(first) and self.is_shared(second):
                if len(self._summaries) >= MAX_SUMMARIES:
                    self._summaries.clear()
                self._summaries[pair] = found
        return found

    def _body(self, kind: str, first: HloInstruction, second: HloInstruction) -> HloComputation:
        pair = kind, self._nodes.revision(first), self._nodes.revision(second)
        found = self._bodies.get(pair)
        if found is None:
            if len(self._bodies) >= MAX_BODIES:
                for body in self._bodies.values():
                    body.dissolve()
                self._bodies.clear()
            found = self._bodies[pair] = trial_fusion(kind, first, second, self._structures.ids)
        return found

    # ---- content

    def content(self, kind: str, first: HloInstruction, second: HloInstruction) -> Content | None:
        """Return the content of the fused computation of two nodes, or None if it has none."""
        return None if self._contents is None else self._contents.pair(kind, first, second, self._nodes)

    def note_content(self, node: HloInstruction, inside: int | None, has_lost: bool = True) -> None:
        """Note what a node computes, see `Contents.note`."""
        if self._contents is not None:
            self._contents.note(node, inside, self._nodes, has_lost)

    def inside(self, node: HloInstruction) -> int | None:
        """Return the values inside a node, or None if it has no content."""
        return None if self._contents is None else self._contents.of(node, self._nodes)

    # ---- structure

    def pair(self, kind: str, first: HloInstruction, second: HloInstruction) -> int:
        """Return a number such that pairs of equal numbers have the same fused computation up to names."""
        known = self._structures
        at = kind, self._nodes.revision(first), self._nodes.revision(second)
        found = known.of_pair.get(at)
        if found is None:
            if len(known.of_pair) >= self._nodes.most:
                known.of_pair.clear()
            found = known.of_pair[at] = known.number(known.pairs, self._key(kind, first, second), self._nodes.most)
        return found

    def shared_pair(self, kind: str, first: HloInstruction, second: HloInstruction) -> int | None:
        """Return `pair` if nodes of the structures of both have equal summaries (`is_shared`), else None."""
        known, revision = self._structures, self._nodes.revision
        a, b = revision(first), revision(second)
        if (known.of_node.get(a) or self.structure(first)) in known.identified:
            return None
        if (known.of_node.get(b) or self.structure(second)) in known.identified:
            return None
        found = known.of_pair.get((kind, a, b))
        return self.pair(kind, first, second) if found is None else found

    def structure(self, node: HloInstruction) -> int:
        """Return a number that is equal for nodes that compute the same from their operands."""
        known, revision = self._structures, self._nodes.revision(node)
        found = known.of_node.get(revision)
        if found is None:
            if len(known.of_node) >= self._nodes.most:
                known.of_node.clear()
            origin = known.origins.pop(revision, None)
            found = None if origin is None else known.of_origin.get(origin)
            if found is None:
                found = self._number(node, origin is not None)
                if origin is not None:
                    if len(known.of_origin) >= self._nodes.most:
                        known.of_origin.clear()
                    known.of_origin[origin] = found
            known.of_node[revision] = found
        return found

    def is_shared(self, node: HloInstruction) -> bool:
        """Check whether nodes of the same structure have equal summaries."""
        return self.structure(node) not in self._structures.identified

    def note_origin(self, node: HloInstruction, made_from: int, kept: tuple[int, ...] | None) -> None:
        """Note how a fusion was made, so that its structure need not be found by looking at all it computes.

        Args:
            node: the fusion.
            made_from: the number of the pair that it was made from.
            kept: which of its outputs are left, or None for all.
        """
        origins = self._structures.origins
        if len(origins) >= self._nodes.most:
            origins.clear()
        origins[self._nodes.revision(node)] = made_from, kept

    def _key(self, kind: str, first: HloInstruction, second: HloInstruction) -> Hashable:
        outer: dict[HloInstruction, int] = {}
        place = outer.setdefault
        wires: list[Hashable] = [place(o, len(outer)) for o in first.operands]
        several = is_multi_output(first)
        for o in second.operands:
            if o is first:
                wires.append("first")
            elif several and o.opcode is Opcode.GET_TUPLE_ELEMENT and o.operands[0] is first:
                wires.append(("first", o.attributes["index"]))
            else:
                wires.append(place(o, len(outer)))
        structure = self.structure
        constants = [
            (n, structure(o), *map(structure, o.operands))
            for o, n in outer.items()
            if o.opcode in _CONSTANTS and is_inlined_constant(o)
        ]
        return kind, structure(first), structure(second), tuple(wires), tuple(constants)

    def _number(self, node: HloInstruction, has_origin: bool) -> int:
        known = self._structures
        inside = instructions_of(node)
        if has_origin and len(inside) > MOST_COMPARED:
            found = known.new()
        elif node.opcode is Opcode.FUSION:
            found = known.number(known.numbers, self._computation_key(inside, body_of(node).root), self._nodes.most)
        else:
            found = known.number(known.numbers, self._instruction_key(node), self._nodes.most)
        if any(i.opcode in _IDENTIFIED for i in inside):
            known.identified.add(found)
        return found

    def _instruction_key(self, node: HloInstruction) -> Hashable:
        shapes = tuple([shape_key(o.shape) for o in node.operands])
        same = tuple(map(node.operands.index, node.operands))
        return self._structures.ids.key(node, (shapes, same))

    def _computation_key(self, inside: Sequence[HloInstruction], root: HloInstruction) -> Hashable:
        position = {i: n for n, i in enumerate(inside)}
        key = self._structures.ids.key
        parts = [key(i, tuple([position[o] for o in i.operands])) for i in inside]
        return tuple(parts), position[root]
