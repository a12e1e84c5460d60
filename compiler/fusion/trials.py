"""Trials: whether the fused computation of two nodes can be built and what it costs, without changing the module.

Programs repeat themselves, as layers and unrolled time steps do. Answers are therefore kept by the structure of the two
nodes and by the operands that they share, so that equal pairs are judged once.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable

from compiler.analysis.kernel_summary import KernelSummary, summarize_body
from compiler.analysis.structure import StructuralIds, shape_key
from compiler.codegen.buildability import kernel_refusal
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import body_of, is_inlined_constant, source_of, trial_fusion
from compiler.ir import HloComputation, HloInstruction, Opcode

MAX_BODIES = 64
"""Maximum number of fused computations that are kept for a second question about the same pair."""
_IDENTIFIED = frozenset({Opcode.GATHER, Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE})
"""Opcodes whose uses a summary tells apart by the instruction, so that equal computations have different summaries."""


class Trials:
    """The trial fusions of one sequence."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._ids = StructuralIds()
        self._numbers: dict[Hashable, int] = {}
        self._structures: dict[int, int] = {}
        self._buildable: set[Hashable] = set()
        self._summaries: dict[Hashable, KernelSummary] = {}
        self._bodies: dict[tuple[str, int, int], HloComputation] = {}

    def copy_for(self, nodes: Nodes) -> Trials:
        """Return the same answers for a clone, whose nodes have the same revisions."""
        other = copy.copy(self)
        other._nodes = nodes
        return other

    def refusal(self, kind: str, first: HloInstruction, second: HloInstruction) -> str | None:
        """Return why the fused computation of two nodes cannot be one kernel, or None when it can."""
        key = self._key(kind, first, second)
        if key in self._buildable:
            return None
        reason = kernel_refusal(self._body(kind, first, second))
        if reason is None:  # a reason names instructions of this pair
            self._buildable.add(key)
        return reason

    def summary(self, kind: str, first: HloInstruction, second: HloInstruction) -> KernelSummary:
        """Return the summary of the fused computation of two nodes."""
        key = self._key(kind, first, second)
        found = self._summaries.get(key)
        if found is None:
            body = self._body(kind, first, second)
            found = summarize_body(body)
            if all(i.opcode not in _IDENTIFIED for i in body.instructions):
                self._summaries[key] = found
        return found

    def _body(self, kind: str, first: HloInstruction, second: HloInstruction) -> HloComputation:
        pair = kind, self._nodes.revision(first), self._nodes.revision(second)
        found = self._bodies.get(pair)
        if found is None:
            if len(self._bodies) >= MAX_BODIES:
                self._bodies.clear()
            found = self._bodies[pair] = trial_fusion(kind, first, second)
        return found

    # ---- structure

    def _key(self, kind: str, first: HloInstruction, second: HloInstruction) -> Hashable:
        """Return a key such that pairs of equal keys have the same fused computation up to names."""
        outer: dict[HloInstruction, int] = {}
        wires: list[Hashable] = [outer.setdefault(o, len(outer)) for o in first.operands]
        for o in second.operands:
            if kind != "sibling" and source_of(o) is first:
                wires.append("first" if o is first else ("first", o.attributes["index"]))
            else:
                wires.append(outer.setdefault(o, len(outer)))
        constants = tuple(
            (n, self._structure(o), *map(self._structure, o.operands))
            for o, n in outer.items()
            if is_inlined_constant(o)
        )
        return kind, self._structure(first), self._structure(second), tuple(wires), constants

    def _structure(self, node: HloInstruction) -> int:
        """Return a number that is equal for nodes that compute the same from their operands."""
        revision = self._nodes.revision(node)
        found = self._structures.get(revision)
        if found is None:
            key = self._computation_key(body_of(node)) if node.opcode is Opcode.FUSION else self._instruction_key(node)
            found = self._structures[revision] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def _instruction_key(self, node: HloInstruction) -> Hashable:
        shapes = tuple([shape_key(o.shape) for o in node.operands])
        same = tuple(map(node.operands.index, node.operands))
        return self._ids.key(node, (shapes, same))

    def _computation_key(self, body: HloComputation) -> Hashable:
        instructions = body.instructions
        position = {i: n for n, i in enumerate(instructions)}
        parts = [self._ids.key(i, tuple([position[o] for o in i.operands])) for i in instructions]
        return tuple(parts), position[body.root]
