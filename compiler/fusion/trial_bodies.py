"""The fused computation that fusing two nodes would make, made without changing the module or its fusions.

It is what the functions of `rewriting` make, though in another order. Many fusions are tried for each one that is
made, so nothing is made here only to be removed again: an instruction is copied when something needs it, unless an
equal one is there.
"""

from __future__ import annotations

from collections.abc import Hashable

from compiler.analysis.structure import StructuralIds, may_merge
from compiler.fusion.rewriting import (
    FUSED_COMPUTATION,
    body_of,
    is_inlined_constant,
    is_multi_output,
    outputs_of,
    source_of,
)
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.computation import has_side_effect


def trial_fusion(
    kind: str, first: HloInstruction, second: HloInstruction, ids: StructuralIds | None = None
) -> HloComputation:
    """Return the fused computation that fusing two nodes would make; the module is not changed.

    Args:
        kind: "producer-consumer"; "multi-output"; "sibling" for any two independent nodes.
        first: the producer, or the earlier of two independent nodes.
        second: the consumer, or the later node.
        ids: numbers of the computations that instructions call.
    """
    trial = _Trial(None if kind == "sibling" else first, ids or StructuralIds())
    if kind == "multi-output" or (kind == "producer-consumer" and not is_multi_output(first)):
        trial.add(first)  # all of it is needed
    outputs = trial.add(second)
    if kind != "producer-consumer":
        outputs += trial.add(first)
    return trial.finished(outputs, (*second.operands, *first.operands))


class _Trial:
    """A fused computation while it is made.

    Args:
        producer: the node that is computed instead of being read, if any.
        ids: numbers of the computations that instructions call.
    """

    def __init__(self, producer: HloInstruction | None, ids: StructuralIds) -> None:
        self._producer, self._ids = producer, ids
        self._body = HloComputation(FUSED_COMPUTATION)
        self._image: dict[HloInstruction, HloInstruction] = {}  # the copies, and the parameters of what is read
        self._read: set[HloInstruction] = set()  # what the nodes read
        self._stands_for: dict[HloInstruction, HloInstruction] = {}  # of parameters of fusions, and of what is inlined
        self._met: dict[Hashable, HloInstruction | None] = {}  # as in `merge_equal`
        self._known: dict[Hashable, HloInstruction] = {}
        if producer is not None:
            self._read_from(producer)

    def add(self, node: HloInstruction) -> list[HloInstruction]:
        """Compute a node too, and return its outputs."""
        if node is not self._producer:
            self._read_from(node)
        fused = node.opcode is Opcode.FUSION
        image, stands_for, read = self._image, self._stands_for.get, self._read
        for i in body_of(node).instructions if fused else (*node.operands, node):
            if i in image or (fused and i.opcode is Opcode.TUPLE):  # the root
                continue
            if i.opcode is Opcode.PARAMETER if fused else i is not node:
                of = stands_for(i, i)
                if of not in image and of in read and not is_inlined_constant(of):
                    self._copy(of)
                if of in image:  # the rest is copied where it is needed
                    image[i] = image[of]
                continue
            try:
                operands = tuple([image[o] for o in i.operands])
            except KeyError:  # most instructions come after all that they need
                self._copy(i)
            else:
                image[i] = self._merged(i, operands)
        return [image[stands_for(o, o)] for o in outputs_of(node)]

    def finished(self, outputs: list[HloInstruction], operands: tuple[HloInstruction, ...]) -> HloComputation:
        """Return the computation, with its parameters in the order of these operands of the nodes."""
        body = self._body
        body.root = outputs[0] if len(outputs) == 1 else body.add(Opcode.TUPLE, outputs)
        number = 0
        for o in dict.fromkeys(operands):
            p = self._image.get(o)
            if p is None or p.opcode is not Opcode.PARAMETER:
                continue
            if p.users or p.is_root:
                p.parameter_number = number
                number += 1
            else:
                body.remove(p)
        return body

    def _read_from(self, node: HloInstruction) -> None:
        """Note what a node reads, and what stands for it inside."""
        fused = node.opcode is Opcode.FUSION
        inside = body_of(node).parameters if fused else node.operands
        for i, o in zip(inside, node.operands, strict=True):
            if self._producer is not None and source_of(o) is self._producer:
                index = 0 if o is self._producer else o.attributes["index"]
                self._stands_for[i] = outputs_of(self._producer)[index]
                continue
            self._read.add(o)
            if fused:
                self._stands_for[i] = o

    def _copy(self, start: HloInstruction) -> None:
        """Copy an instruction after all that it needs and that is not there."""
        image, read, stands_for = self._image, self._read, self._stands_for.get
        stack = [start]
        while stack:
            i = stack[-1]
            if i in image:
                stack.pop()
                continue
            if i in read and not is_inlined_constant(i):
                image[i] = self._body.add_parameter(0, i.shape, f"param_{len(image)}")
                stack.pop()
                continue
            operands = [stands_for(o, o) for o in i.operands]
            missing = [o for o in operands if o not in image]
            if missing:
                stack += reversed(missing)
                continue
            image.update(zip(i.operands, [image[o] for o in operands], strict=True))
            image[i] = self._merged(i, tuple([image[o] for o in operands]))
            stack.pop()

    def _merged(self, i: HloInstruction, operands: tuple[HloInstruction, ...]) -> HloInstruction:
        """Return a copy with these operands: a new one if no equal instruction is there."""
        alike = i.opcode, operands
        if alike not in self._met:
            made = self._met[alike] = self._made(i, operands)
            return made
        if not may_merge(i) or (i.attributes and has_side_effect(i)):
            return self._made(i, operands)
        earlier, key = self._met[alike], self._ids.key
        if earlier is not None:
            self._known[key(earlier, alike)] = earlier
            self._met[alike] = None
        own = key(i, alike)
        found = self._known.get(own)
        if found is None:
            found = self._known[own] = self._made(i, operands)
        return found

    def _made(self, i: HloInstruction, operands: tuple[HloInstruction, ...]) -> HloInstruction:
        copy = HloInstruction(i.name, i.opcode, i.shape, operands, i.attributes.copy(), i.literal)
        copy.line = i.line
        return self._body.insert(copy)
