"""What a fusion computes inside, in terms of the values that its sequence computed before fusion; its parts.

A fusion's body is walked side by side with the instructions from which it was made: an output of the body computes the
value that the node yields, and the operands of an instruction compute the values that its original read. So every state
can be split exactly as it was put together, whatever the order, and nothing has to be recorded when fusing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import FUSED_COMPUTATION, FusionRewriter, body_of, is_inlined_constant, outputs_of
from compiler.ir import HloComputation, HloInstruction, Opcode

Pair: TypeAlias = tuple[HloInstruction, int]
"""An instruction of a body and the value that it computes; equal values are computed by one instruction."""
MAX_CUTS = 4
"""Number of cuts of each sort that are listed for a fusion."""


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel that computes some values of a fusion.

    Attributes:
        rewriter: its body; one of its operands may be `stand_in`.
        single: the instruction of the fusion's body that is all that it computes; None if there are several.
        stand_in: the operand of the body that stands for the value that is cut off, if it reads it.
    """

    rewriter: FusionRewriter
    single: Pair | None
    stand_in: HloInstruction | None


class Anatomy:
    """The values that a fusion computes.

    Attributes:
        fusion: the fusion.
        outputs: the values that it yields, each with the instruction of the body that computes it.
        pairs: all that it computes and reads, operands first.
        unknown: the name of a fusion inside that the program had made before fusion began, if there is one.
    """

    def __init__(self, fusion: HloInstruction, nodes: Nodes) -> None:
        self.fusion, self.nodes = fusion, nodes
        self.outputs: list[Pair] = list(zip(outputs_of(fusion), nodes.values[fusion], strict=True))
        self._outer = dict(zip(body_of(fusion).parameters, fusion.operands, strict=True))
        self.pairs: dict[Pair, tuple[Pair, ...]] = {}
        self.unknown: str | None = None
        for pair in self.outputs:
            self._walk(pair)

    def _walk(self, start: Pair) -> None:
        """Add a pair and what it is computed from, in post order."""
        work: list[tuple[Pair, tuple[Pair, ...] | None]] = [(start, None)]
        while work:
            pair, found = work.pop()
            if found is not None:
                self.pairs.setdefault(pair, found)
            elif pair not in self.pairs:
                operands = self._operands(pair)
                work.append((pair, operands))
                work += [(o, None) for o in reversed(operands) if o not in self.pairs]

    def _operands(self, pair: Pair) -> tuple[Pair, ...]:
        i, value = pair
        origin = self.nodes.origins.values[value]
        if i.opcode is Opcode.PARAMETER or is_inlined_constant(i):
            return ()
        if origin.opcode is Opcode.FUSION:
            self.unknown = origin.name
            return ()
        return tuple(zip(i.operands, origin.operands, strict=True))

    # ---- cuts

    def refusal(self, cut: int) -> str | None:
        """Return why a value cannot be computed apart from the rest, or None; kernels and paths are not considered."""
        if self.unknown is not None:
            return f"%{self.unknown} was a fusion already when fusion began"
        name = self.nodes.origins.name(cut)
        pair = next((p for p in self.pairs if p[1] == cut and p[0].opcode is not Opcode.PARAMETER), None)
        if pair is None:
            return f"%{self.fusion.name} does not compute %{name}"
        constants = self._yielded_constants()
        if constants and cut not in constants:
            first = self.nodes.origins.name(constants[0])
            return f"%{first}, a result of %{self.fusion.name}, is a constant; take it out first"
        if pair not in self.outputs and is_inlined_constant(pair[0]):
            return f"%{name} is a constant, of which every kernel has its own copy"
        if [cut] == [v for _, v in self.outputs] and len(self._computed()) > 1:
            return f"%{name} is the only result of %{self.fusion.name}; name a value from which it is computed"
        return None

    def cuts(self) -> tuple[int, ...]:
        """Return the values at which cuts are listed, in order.

        These are the outputs, what needs nothing else of the fusion, what an output is computed from, and reductions
        and values with several uses; of each sort at most `MAX_CUTS`.
        """
        if self.unknown is not None:
            return ()
        if constants := self._yielded_constants():
            return constants
        inside = set(self._computed())
        outputs = dict.fromkeys(v for _, v in self.outputs)
        if len(inside) <= 1 and len(outputs) == 1:
            return tuple(outputs)
        first = [p[1] for p in inside if inside.isdisjoint(self.pairs[p])]
        last = [o[1] for p in self.outputs for o in self.pairs[p] if o in inside]
        uses: dict[Pair, int] = {}
        for p in inside:
            for o in set(self.pairs[p]):
                uses[o] = uses.get(o, 0) + 1
        middle = [p[1] for p in inside if uses.get(p, 0) > 1 or p[0].opcode is Opcode.REDUCE]
        sorts = [sorted(set(found) - set(outputs))[:MAX_CUTS] for found in (first, last, middle)]
        yielded = sorted(outputs)[:MAX_CUTS] if len(outputs) > 1 else []
        return tuple(sorted({*yielded, *(v for found in sorts for v in found)}))

    def constants(self) -> list[int]:
        """Return the constants of which the fusion has its own copies."""
        return sorted({v for i, v in self.pairs if is_inlined_constant(i)})

    def _yielded_constants(self) -> tuple[int, ...]:
        return tuple(sorted(v for i, v in self.outputs if is_inlined_constant(i)))

    def _computed(self) -> list[Pair]:
        """Return what is computed, without what is read and without constants."""
        return [p for p in self.pairs if p[0].opcode is not Opcode.PARAMETER and not is_inlined_constant(p[0])]

    # ---- parts

    def part(self, values: Sequence[int], cut: int | None = None) -> Part:
        """Return the kernel of some values, which yields them in this order.

        Args:
            values: values that the fusion computes.
            cut: a value that it reads instead of computing it.
        """
        yielded = {v: (i, v) for i, v in self.outputs}
        roots = [yielded.get(v) or self.smallest(v) for v in values]
        rewriter = FusionRewriter(HloComputation(FUSED_COMPUTATION))
        needed = self._needed(roots, cut)
        image: dict[Pair, HloInstruction] = {}
        copies: dict[HloInstruction, HloInstruction] = {}
        computed: list[Pair] = []
        stand_in: HloInstruction | None = None
        for pair in self.pairs:
            if pair not in needed:
                continue
            i, value = pair
            if is_inlined_constant(i):
                image[pair] = copy_constant(rewriter.body, i, copies)
            elif value == cut:
                stand_in = stand_in or i
                image[pair] = rewriter.input(stand_in)
            elif i.opcode is Opcode.PARAMETER:
                image[pair] = rewriter.input(self._outer[i])
            else:
                image[pair] = rewriter.body.clone_instruction(i, [image[o] for o in self.pairs[pair]])
                computed.append(pair)
        outputs = [image[p] for p in roots]
        rewriter.body.root = outputs[0] if len(outputs) == 1 else rewriter.body.add(Opcode.TUPLE, outputs)
        rewriter.finish()
        single = len(values) == 1 and len(computed) <= 1
        return Part(rewriter, (computed[0] if computed else roots[0]) if single else None, stand_in)

    def smallest(self, value: int) -> Pair:
        """Return what computes a value from the fewest others: some of these may be computed and read as well."""
        found = [p for p in self.pairs if p[1] == value and p[0].opcode is not Opcode.PARAMETER]
        if len(found) == 1:
            return found[0]
        computed = set(self._computed())
        return min(found, key=lambda p: sorted(v for i, v in self._needed([p], None) if (i, v) in computed))

    def _needed(self, roots: Sequence[Pair], cut: int | None) -> set[Pair]:
        found, work = set[Pair](), list(roots)
        while work:
            pair = work.pop()
            if pair not in found:
                found.add(pair)
                if pair[1] != cut:
                    work += self.pairs[pair]
        return found


def copy_constant(
    body: HloComputation, i: HloInstruction, copies: dict[HloInstruction, HloInstruction]
) -> HloInstruction:
    """Return the copy of a constant, or of a broadcast of one, in a body; `copies` has those that were made."""
    found = copies.get(i)
    if found is None:
        operands = [copy_constant(body, o, copies) for o in i.operands]
        found = copies[i] = body.clone_instruction(i, operands)
    return found
