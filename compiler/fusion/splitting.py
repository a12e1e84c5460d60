"""Taking a fusion apart: a value is computed by a node of its own, and the fusion reads it from there.

Nothing here checks whether that is legal; see `kinds.Fission`. What remains of a fusion when all but one instruction
is gone is that instruction, under the name that it had at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.analysis.cost_model import CostModel
from compiler.analysis.kernel_summary import summarize_body
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.buildability import kernel_refusal
from compiler.fusion.anatomy import Anatomy, Pair, Part
from compiler.fusion.edits import Edits
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import body_of, is_inlined_constant, remove_unneeded, write_back
from compiler.ir import HloInstruction


@dataclass(frozen=True, slots=True)
class PartFacts:
    """The two kernels of a fusion that is split.

    Attributes:
        reason: why one of them cannot be built, or None.
        own: seconds of the kernel that computes the value.
        rest: seconds of what remains of the fusion.
    """

    reason: str | None
    own: float
    rest: float


def part_facts(anatomy: Anatomy, cut: int, cost_model: CostModel, target: BuildTarget) -> PartFacts:
    """Return whether both parts of a fusion can be built for a target, and what they cost."""
    others = [v for _, v in anatomy.outputs if v != cut]
    parts = [anatomy.part([cut]), *([anatomy.part(others, cut)] if others else [])]
    reason: str | None = None
    seconds = [0.0, 0.0]
    for n, part in enumerate(parts):
        if part.single is not None:
            seconds[n] = cost_model.instruction(part.single[0])
            continue
        part.rewriter.body.reorder()
        reason = reason or kernel_refusal(part.rewriter.body, target)
        seconds[n] = cost_model.kernel(summarize_body(part.rewriter.body))
    return PartFacts(reason, *seconds)


@dataclass(slots=True)
class Split:
    """What taking a fusion apart did to its sequence.

    Attributes:
        own: the instruction to read for the value: that which was made, or that of the node that yields it already.
        rest: what remains of the fusion; None if nothing does.
        made: the nodes that were made or changed, with the values that they yield now.
        constants: those of them that are constants of the instructions that were made, operands first.
        removed: instructions that were removed.
    """

    own: HloInstruction
    rest: HloInstruction | None = None
    made: dict[HloInstruction, tuple[int, ...]] = field(default_factory=dict)
    constants: list[HloInstruction] = field(default_factory=list)
    removed: list[HloInstruction] = field(default_factory=list)


def split_fusion(fusion: HloInstruction, cut: int, nodes: Nodes, edits: Edits) -> Split:
    """Compute a value of a fusion elsewhere, unless another node yields it; the fusion reads it from there."""
    return Splitter(Anatomy(fusion, nodes), cut, nodes, edits).run()


class Splitter:
    """Changes a sequence such that a fusion no longer computes a value.

    Args:
        anatomy: of the fusion.
        cut: the value.
        nodes: of the sequence.
        edits: receives the changes.

    Attributes:
        operands: of the fusion before the change.
        made: the nodes that were made or changed, with the values that they yield now.
        constants: those of them that are constants.
    """

    def __init__(self, anatomy: Anatomy, cut: int, nodes: Nodes, edits: Edits) -> None:
        self.anatomy, self.cut, self.nodes, self.edits = anatomy, cut, nodes, edits
        self.fusion = anatomy.fusion
        self.operands = self.fusion.operands
        self.made: dict[HloInstruction, tuple[int, ...]] = {}
        self.constants: list[HloInstruction] = []

    def run(self) -> Split:
        """Take the fusion apart."""
        fusion, nodes = self.fusion, self.nodes
        values = nodes.values[fusion]
        readers = {v: nodes.operand_of(v) for v in values}
        found = None if self.cut in values else nodes.operand_of(self.cut)
        own = found or self.make(self.anatomy.part([self.cut]), (self.cut,))
        others = tuple(v for v in values if v != self.cut)
        removed: list[HloInstruction] = []
        rest = self._make_rest(others, own) if others else None
        for v, reader in readers.items():
            new = own if v == self.cut else rest
            if reader is None or new is None or reader is new:
                continue
            if reader is fusion or v == self.cut or len(others) == 1:
                self.edits.replace_uses(reader, new)
                if reader is not fusion:
                    self.edits.remove(reader)
                    removed.append(reader)
            else:
                self.edits.set_attributes(reader, index=others.index(v))
        if rest is not fusion:
            self.edits.remove(fusion)
            self.edits.remove_computation(body_of(fusion))
            removed.append(fusion)
        gone, kept = remove_unneeded(self.operands, self.edits)
        for node, indices in kept.items():
            self.made[node] = tuple(nodes.values[node][k] for k in indices)
        for part in (own, rest):
            if part is not None and is_inlined_constant(part):  # who reads it has its own copy from now on
                self.made.update({u: nodes.values[u] for u in part.users if u in nodes and u not in self.made})
        made = {i: v for i, v in self.made.items() if i.parent is not None}
        return Split(own, rest, made, self.constants, [*removed, *gone])

    def _make_rest(self, values: tuple[int, ...], own: HloInstruction) -> HloInstruction:
        part = self.anatomy.part(values, self.cut)
        if part.single is not None:
            return self.make(part, values, own)
        _substitute(part, own)
        self.made[self.fusion] = values
        return write_back(part.rewriter, self.fusion, self.edits)

    def make(self, part: Part, values: tuple[int, ...], own: HloInstruction | None = None) -> HloInstruction:
        """Add the instruction of a part to the sequence; `own` is what it reads for the value that is cut off."""
        if part.single is not None:
            made = self._add_single(part.single, own)
        else:
            made = write_back(part.rewriter, part.rewriter.body.root, self.edits)
        self.made[made] = values
        return made

    def _add_single(self, pair: Pair, own: HloInstruction | None) -> HloInstruction:
        i, value = pair
        if is_inlined_constant(i):
            return self.constant(i, value)
        outer = dict(zip(body_of(self.fusion).parameters, self.operands, strict=True))
        operands = []
        for o, v in self.anatomy.pairs[pair]:
            if is_inlined_constant(o):
                operands.append(self.constant(o, v))
            elif v == self.cut and own is not None:
                operands.append(own)
            else:
                operands.append(outer[o])
        return self.edits.add_clone(i, operands, self.nodes.origins.name(value))

    def constant(self, i: HloInstruction, value: int) -> HloInstruction:
        """Return the constant of which a fusion has a copy, put back if no other instruction needed it."""
        found = next((c for c in self.constants if self.made[c] == (value,)), None)
        if found is None and self.nodes.yields(value) is not self.fusion:
            found = self.nodes.operand_of(value)
        if found is not None:
            return found
        read = self.nodes.origins.values[value].operands
        operands = [self.constant(o, v) for o, v in zip(i.operands, read, strict=True)]
        made = self.edits.add_clone(i, operands, self.nodes.origins.name(value))
        self.made[made] = (value,)
        self.constants.append(made)
        return made


def _substitute(part: Part, own: HloInstruction) -> None:
    """Make a part read an instruction of the sequence for the value that is cut off."""
    if part.stand_in is not None:
        parameters = part.rewriter.parameters
        part.rewriter.parameters = {own if o is part.stand_in else o: p for o, p in parameters.items()}
