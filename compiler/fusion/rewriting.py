"""Graph rewriting for fusion: instructions become fusions, and fusions grow.

Nothing here checks whether a fusion is legal; see `fusion/legality.py`. The same steps give the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from compiler.analysis.structure import StructuralIds
from compiler.fusion.edits import Edits
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.passes.cleanup.cse import merge_equal

FUSED_COMPUTATION = "fused_computation"

_MERGED: WeakSet[HloComputation] = WeakSet()
"""Fused computations that were made here: no two of their instructions are equal."""


def outputs_of(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return the instructions of a fusion's body whose values it yields, in order; else the instruction itself."""
    if instruction.opcode is not Opcode.FUSION:
        return (instruction,)
    root = body_of(instruction).root
    return root.operands if root.opcode is Opcode.TUPLE else (root,)


def body_of(fusion: HloInstruction) -> HloComputation:
    """Return the fused computation."""
    body: HloComputation = fusion.attributes["calls"]
    return body


def instructions_of(node: HloInstruction) -> Sequence[HloInstruction]:
    """Return the instructions that a node computes: those of a fusion's body, else the node itself."""
    return body_of(node).instructions if node.opcode is Opcode.FUSION else (node,)


def is_multi_output(instruction: HloInstruction) -> bool:
    """Check whether an instruction is a fusion whose root is a tuple of its outputs."""
    return instruction.opcode is Opcode.FUSION and body_of(instruction).root.opcode is Opcode.TUPLE


def source_of(operand: HloInstruction) -> HloInstruction:
    """Return the node behind an operand: the multi-output fusion of a get-tuple-element, else the operand itself."""
    if operand.opcode is Opcode.GET_TUPLE_ELEMENT and is_multi_output(operand.operands[0]):
        return operand.operands[0]
    return operand


def producers_of(instruction: HloInstruction) -> list[HloInstruction]:
    """Return the distinct nodes it reads, in operand order; get-tuple-elements count as their multi-output fusion."""
    return list(dict.fromkeys(source_of(o) for o in instruction.operands))


def consumers_of(instruction: HloInstruction) -> list[HloInstruction]:
    """Return the distinct nodes that read it, through the get-tuple-elements of a multi-output fusion."""
    if not is_multi_output(instruction):
        return list(instruction.users)
    found: dict[HloInstruction, None] = {}
    for g in instruction.users:
        found.update(dict.fromkeys(g.users if g.opcode is Opcode.GET_TUPLE_ELEMENT else (g,)))
    return list(found)


def is_result(node: HloInstruction) -> bool:
    """Check whether the computation yields this node, or one of its outputs."""
    return node.is_root or (is_multi_output(node) and any(g.is_root for g in node.users))


def has_other_use(producer: HloInstruction) -> bool:
    """Check whether a node that has a consumer is needed by anything else."""
    return is_result(producer) or len(consumers_of(producer)) > 1


def is_inlined_constant(operand: HloInstruction) -> bool:
    """Check whether every fusion that reads an operand has its own copy: scalar constants and broadcasts of them."""
    if operand.opcode is Opcode.BROADCAST:
        operand = operand.operands[0]
    return operand.opcode is Opcode.CONSTANT and operand.shape.is_scalar


@dataclass
class FusionRewriter:
    """A fused computation while it is being made: its body, and the outer instructions that feed its parameters.

    Attributes:
        body: where instructions are added. It belongs to no module, unless the fusion itself grows.
        parameters: outer operand -> parameter of the body.
        constants: outer inlined constant -> its copy in the body, so that each is copied once.
        copies: instructions that were added.
        is_merged: whether no two other instructions are equal.
    """

    body: HloComputation
    parameters: dict[HloInstruction, HloInstruction] = field(default_factory=dict)
    constants: dict[HloInstruction, HloInstruction] = field(default_factory=dict)
    copies: list[HloInstruction] = field(default_factory=list)
    is_merged: bool = True
    edits: Edits = field(init=False)

    def __post_init__(self) -> None:
        self.edits = Edits(self.body)

    @staticmethod
    def of(instruction: HloInstruction, in_place: bool = False) -> FusionRewriter:
        """Return a rewriter of a fusion's body, or of a new fused computation with a single instruction.

        Args:
            instruction: the fusion or single instruction.
            in_place: change the body itself, which must then be written back; else a copy of it.
        """
        if instruction.opcode is not Opcode.FUSION:
            rewriter = FusionRewriter(HloComputation(FUSED_COMPUTATION))
            operands = [rewriter.input(o) for o in instruction.operands]
            rewriter.body.root = rewriter.body.clone_instruction(instruction, operands)
            rewriter.inline_constants()
            return rewriter
        body = body_of(instruction) if in_place else body_of(instruction).clone()
        rewriter = FusionRewriter(body, is_merged=body_of(instruction) in _MERGED)
        for outer, parameter in zip(instruction.operands, body.parameters, strict=True):
            first = rewriter.parameters.setdefault(outer, parameter)
            if first is not parameter:
                rewriter.is_merged = False
                rewriter.edits.replace_uses(parameter, first)
                rewriter.edits.remove(parameter)
        return rewriter

    @property
    def operands(self) -> list[HloInstruction]:
        """The outer instructions that feed the parameters, in the order of the parameters."""
        return list(self.parameters)

    def input(self, outer: HloInstruction) -> HloInstruction:
        """Return the value of an outer instruction inside the body; a parameter is added if there is none yet."""
        found = self.parameters.get(outer) or self.constants.get(outer)
        if found is None:
            n = len(self.parameters)
            found = self.parameters[outer] = self.edits.add_parameter(n, outer.shape, f"param_{n}")
        return found

    def add_copy(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Copy an instruction, or the whole body of a fusion, into this body; return the copies of its outputs."""
        if instruction.opcode is not Opcode.FUSION:
            operands = [self.input(o) for o in instruction.operands]
            self.copies.append(self.edits.add_clone(instruction, operands, instruction.name))
            return [self.copies[-1]]
        inner = body_of(instruction)
        image = {p: self.input(o) for p, o in zip(inner.parameters, instruction.operands, strict=True)}
        for i in inner.post_order():
            if i not in image and not (i is inner.root and i.opcode is Opcode.TUPLE):
                image[i] = self.edits.add_clone(i, [image[o] for o in i.operands], i.name)
                self.copies.append(image[i])
        outputs = [image[o] for o in outputs_of(instruction)]
        self.is_merged = self.is_merged and len(set(outputs)) == len(outputs)
        return outputs

    def inline_producer(self, producer: HloInstruction, keep: bool = False) -> None:
        """Compute a producer in the body instead of reading its value.

        Args:
            producer: a node whose outputs are parameters here.
            keep: yield the producer's outputs too, after the body's own.
        """
        copies = self.add_copy(producer)
        for outer in [o for o in self.parameters if source_of(o) is producer]:
            index = 0 if outer is producer else outer.attributes["index"]
            self._replace_parameter(outer, copies[index])
        if keep:
            self.add_outputs(copies)
        self.edits.remove_dead(copies)
        self._drop_unused_parameters()
        self.inline_constants()

    def replace_input(self, outer: HloInstruction, value: HloInstruction) -> None:
        """Use a value of the body instead of reading an outer instruction."""
        self._replace_parameter(outer, value)
        self._drop_unused_parameters()
        self.inline_constants()

    def inline_constants(self) -> None:
        """Copy scalar constants, and broadcasts of them, into the body instead of reading them."""
        for outer in [o for o in self.parameters if is_inlined_constant(o)]:
            self._replace_parameter(outer, self._copy_constant(outer))

    def add_outputs(self, more: Sequence[HloInstruction]) -> None:
        """Yield more values of the body, after those it yields already."""
        root = self.body.root
        outputs = root.operands if root.opcode is Opcode.TUPLE else (root,)
        self._set_outputs([*outputs, *more])

    def keep_outputs(self, indices: Sequence[int]) -> None:
        """Yield only these outputs, and remove what only the others needed."""
        root = self.body.root
        self._set_outputs([root.operands[k] for k in indices])
        self.edits.remove_dead(i for i in self.body.instructions if not i.users)
        self._drop_unused_parameters()

    def finish(self) -> None:
        """Merge equal values, and give the parameters their numbers in the order of the operands."""
        if not self.is_merged or self._may_repeat():
            # Operands stay where the original instructions have them.
            merge_equal(self.body, commute=False, rewrites=self.edits)
        if self.body not in _MERGED:
            _MERGED.add(self.body)
            self.edits.on_undo(_MERGED.discard, self.body)
        for n, p in enumerate(self.parameters.values()):
            self.edits.set_parameter_number(p, n)

    def _may_repeat(self) -> bool:
        """Check whether a copy may be equal to another instruction, without looking at the whole body."""
        ids = StructuralIds()
        leaves = False
        for i in self.copies:
            if i.parent is not self.body:
                continue
            if not i.operands:
                leaves = True
                continue
            key = None
            for u in i.operands[0].users:
                if u is not i and u.opcode is i.opcode and u.operands == i.operands:
                    key = key or ids.key(i, ())
                    if ids.key(u, ()) == key:
                        return True
        if not leaves:
            return False
        found = [ids.key(i, ()) for i in self.body.instructions if not i.operands and i.opcode is not Opcode.PARAMETER]
        return len(set(found)) < len(found)

    def _drop_unused_parameters(self) -> None:
        for outer in [o for o, p in self.parameters.items() if not p.users and not p.is_root]:
            self.edits.remove(self.parameters.pop(outer))

    def _set_outputs(self, outputs: list[HloInstruction]) -> None:
        old = self.body.root
        self.edits.set_root(outputs[0] if len(outputs) == 1 else self.edits.add(Opcode.TUPLE, outputs))
        if old.opcode is Opcode.TUPLE:
            self.edits.remove_dead([old])

    def _copy_constant(self, outer: HloInstruction) -> HloInstruction:
        found = self.constants.get(outer)
        if found is None:
            operands = [self._copy_constant(o) for o in outer.operands]
            found = self.constants[outer] = self.edits.add_clone(outer, operands, outer.name)
            self.copies.append(found)
        return found

    def _replace_parameter(self, outer: HloInstruction, value: HloInstruction) -> None:
        parameter = self.parameters.pop(outer)
        self.edits.replace_uses(parameter, value)
        self.edits.remove(parameter)


# ---- in the module


@dataclass(frozen=True)
class FusionResult:
    """What a fusion did to its sequence.

    Attributes:
        fusion: the fusion instruction that was made or changed.
        removed: instructions that were removed.
        kept: which outputs are left of the one whose unused outputs were dropped: the producer that stays where it was
            fused into a consumer, else the fusion of two nodes, whose outputs are those of the second and then those
            of the first. None if all are left.
    """

    fusion: HloInstruction
    removed: tuple[HloInstruction, ...]
    kept: tuple[int, ...] | None = None


def fuse_into(producer: HloInstruction, consumer: HloInstruction, edits: Edits | None = None) -> FusionResult:
    """Compute the producer within the consumer; the producer remains where others use it."""
    edits = edits or Edits(_sequence_of(consumer))
    rewriter = FusionRewriter.of(consumer, in_place=True)
    rewriter.inline_producer(producer)
    fusion = write_back(rewriter, consumer, edits)
    removed = [] if fusion is consumer else [consumer]
    if fusion is not consumer:
        edits.replace_uses(consumer, fusion)
        edits.remove(consumer)
    kept = None
    if is_multi_output(producer):
        dropped, kept = _drop_unused_outputs(producer, edits)
        removed += dropped
    if producer.parent is edits.sequence and producer.is_dead:
        _remove(producer, edits)
        removed.append(producer)
    return FusionResult(fusion, tuple(removed + _remove_dead_constants(rewriter.constants, edits)), kept)


def fuse_multi_output(producer: HloInstruction, consumer: HloInstruction, edits: Edits | None = None) -> FusionResult:
    """Compute the producer within the consumer, which then yields the producer's outputs too."""
    yielded = _yields(consumer)
    rewriter = FusionRewriter.of(consumer, in_place=True)
    rewriter.inline_producer(producer, keep=True)
    return _merge_outputs(rewriter, producer, consumer, yielded, edits or Edits(_sequence_of(consumer)))


def fuse_side_by_side(first: HloInstruction, second: HloInstruction, edits: Edits | None = None) -> FusionResult:
    """Fuse two independent nodes into one kernel with the outputs of both."""
    yielded = _yields(second)
    rewriter = FusionRewriter.of(second, in_place=True)
    rewriter.add_outputs(rewriter.add_copy(first))
    rewriter.inline_constants()
    return _merge_outputs(rewriter, first, second, yielded, edits or Edits(_sequence_of(second)))


def _yields(node: HloInstruction) -> tuple[int, bool]:
    """Return the number of outputs of a node, and whether it is a multi-output fusion."""
    return len(outputs_of(node)), is_multi_output(node)


def _merge_outputs(
    rewriter: FusionRewriter, first: HloInstruction, second: HloInstruction, yielded: tuple[int, bool], edits: Edits
) -> FusionResult:
    """Write back a body that yields the values of `second`, of which `yielded` tells what it was, then of `first`."""
    count, was_tuple = yielded
    fusion = write_back(rewriter, second, edits)
    if not was_tuple:
        _replace_by_output(second, fusion, 0, edits)
    if is_multi_output(first):
        for g in list(first.users):
            edits.set_attributes(g, index=count + g.attributes["index"])
            edits.replace_operands(g, first, fusion)
    else:
        _replace_by_output(first, fusion, count, edits)
    removed = [first] if fusion is second else [second, first]
    for i in removed:
        _remove(i, edits)
    dropped, kept = _drop_unused_outputs(fusion, edits)
    removed += dropped
    return FusionResult(fusion, tuple(removed + _remove_dead_constants(rewriter.constants, edits)), kept)


def _replace_by_output(old: HloInstruction, fusion: HloInstruction, index: int, edits: Edits) -> None:
    """Make the users of `old` read an output of a fusion that now yields a tuple; `old` may be the fusion itself."""
    users, was_root = list(old.users), old.is_root
    output = edits.add(Opcode.GET_TUPLE_ELEMENT, [fusion], attributes={"index": index})
    for u in users:
        edits.replace_operands(u, old, output)
    if was_root:
        edits.set_root(output)


def write_back(rewriter: FusionRewriter, instruction: HloInstruction, edits: Edits) -> HloInstruction:
    """Return the fusion instruction of a body: the one the rewriter was made from, or a new one without users."""
    rewriter.finish()
    if instruction.opcode is Opcode.FUSION:
        if body_of(instruction) is rewriter.body:
            edits.include(rewriter.edits)
        else:
            edits.exchange_computation(body_of(instruction), rewriter.body)
        edits.set_operands(instruction, rewriter.operands)
        edits.set_attributes(instruction, kind="kLoop", calls=rewriter.body)
        edits.set_shape(instruction, rewriter.body.root.shape)
        return instruction
    body = edits.add_computation(rewriter.body)
    attributes = {"kind": "kLoop", "calls": body}
    if "metadata" in instruction.attributes:
        attributes["metadata"] = instruction.attributes["metadata"]
    name = body.name.replace(FUSED_COMPUTATION, "fusion", 1)  # with the same suffix, so unique in the whole module
    fusion = edits.add(Opcode.FUSION, rewriter.operands, name=name, attributes=attributes)
    fusion.set_shape(rewriter.body.root.shape)
    return fusion


def _drop_unused_outputs(fusion: HloInstruction, edits: Edits) -> tuple[list[HloInstruction], tuple[int, ...] | None]:
    """Remove unused get-tuple-elements of a multi-output fusion, and the outputs that no other one reads.

    Return what was removed, and the indices of the outputs that are left, or None for all.
    """
    removed = [g for g in fusion.users if g.is_dead and g.opcode is Opcode.GET_TUPLE_ELEMENT]
    for g in removed:
        edits.remove(g)
    count = len(outputs_of(fusion))
    used = sorted({g.attributes["index"] for g in fusion.users if g.opcode is Opcode.GET_TUPLE_ELEMENT})
    if not fusion.users or fusion.is_root or len(used) == count:
        return removed, None
    rewriter = FusionRewriter.of(fusion, in_place=True)
    before = fusion.operands
    rewriter.keep_outputs(used)
    write_back(rewriter, fusion, edits)
    if len(used) == 1:
        for g in list(fusion.users):
            edits.replace_uses(g, fusion)
            edits.remove(g)
            removed.append(g)
    else:
        for g in fusion.users:
            edits.set_attributes(g, index=used.index(g.attributes["index"]))
    return removed + _remove_dead_constants(before, edits), tuple(used)


def _remove_dead_constants(constants: Iterable[HloInstruction], edits: Edits) -> list[HloInstruction]:
    """Remove those inlined constants that nothing outside the fusions reads any more; return what was removed."""
    removed: list[HloInstruction] = []
    work = list(constants)
    while work:
        i = work.pop()
        if i.parent is edits.sequence and i.is_dead and is_inlined_constant(i):
            work.extend(i.operands)
            edits.remove(i)
            removed.append(i)
    return removed


def remove_unneeded(
    instructions: Iterable[HloInstruction], edits: Edits
) -> tuple[list[HloInstruction], dict[HloInstruction, tuple[int, ...]]]:
    """Remove those of these instructions that nothing reads any more, and then what only they read.

    Return what was removed, and which outputs are left of fusions that lost some.
    """
    removed: list[HloInstruction] = []
    kept: dict[HloInstruction, tuple[int, ...]] = {}
    work = list(dict.fromkeys(instructions))
    while work:
        node = source_of(work.pop())
        if node.parent is not edits.sequence or node.opcode is Opcode.PARAMETER:
            continue
        if is_multi_output(node) and any(g.is_dead for g in node.users):
            count, before = len(outputs_of(node)), node.operands
            dropped, left = _drop_unused_outputs(node, edits)
            removed += dropped
            if left is not None:
                former = kept.get(node, tuple(range(count)))
                kept[node] = tuple(former[k] for k in left)
                work += before
        if node.is_dead:
            work += node.operands
            _remove(node, edits)
            removed.append(node)
            kept.pop(node, None)
    return removed, kept


def _remove(instruction: HloInstruction, edits: Edits) -> None:
    """Remove an instruction, and the body of a fusion with it."""
    edits.remove(instruction)
    if instruction.opcode is Opcode.FUSION:
        edits.remove_computation(body_of(instruction))


def _sequence_of(instruction: HloInstruction) -> HloComputation:
    if instruction.parent is None:
        raise ValueError(f"%{instruction.name} has been removed")
    return instruction.parent
