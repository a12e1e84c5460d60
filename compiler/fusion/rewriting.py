"""Graph surgery: how instructions become fusions, fusions grow, and fusions are taken apart again.

Nothing here asks whether a fusion is legal; see `fusion/legality.py`. Names come out the same for the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode

FUSED_COMPUTATION = "fused_computation"


def outputs_of(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """For a fusion the instructions of its body that it yields, in order; for any other instruction, itself."""
    if instruction.opcode is not Opcode.FUSION:
        return (instruction,)
    root = body_of(instruction).root
    return root.operands if root.opcode is Opcode.TUPLE else (root,)


def body_of(fusion: HloInstruction) -> HloComputation:
    """The fused computation."""
    body: HloComputation = fusion.attributes["calls"]
    return body


def is_multi_output(instruction: HloInstruction) -> bool:
    """A fusion whose root is a tuple of its outputs."""
    return instruction.opcode is Opcode.FUSION and body_of(instruction).root.opcode is Opcode.TUPLE


def source_of(operand: HloInstruction) -> HloInstruction:
    """The node behind an operand: the multi-output fusion for one of its get-tuple-elements, else itself."""
    if operand.opcode is Opcode.GET_TUPLE_ELEMENT and is_multi_output(operand.operands[0]):
        return operand.operands[0]
    return operand


def producers_of(instruction: HloInstruction) -> list[HloInstruction]:
    """The distinct nodes it reads, in operand order; a multi-output fusion stands for its get-tuple-elements."""
    return list(dict.fromkeys(source_of(o) for o in instruction.operands))


def consumers_of(instruction: HloInstruction) -> list[HloInstruction]:
    """The distinct nodes that read it, through the get-tuple-elements of a multi-output fusion."""
    if not is_multi_output(instruction):
        return list(instruction.users)
    found: dict[HloInstruction, None] = {}
    for g in instruction.users:
        found.update(dict.fromkeys(g.users if g.opcode is Opcode.GET_TUPLE_ELEMENT else (g,)))
    return list(found)


def is_absorbed(operand: HloInstruction) -> bool:
    """Whether every fusion that reads it takes its own copy: scalar constants, and broadcasts of them."""
    if operand.opcode is Opcode.BROADCAST:
        operand = operand.operands[0]
    return operand.opcode is Opcode.CONSTANT and operand.shape.is_scalar


@dataclass
class Kernel:
    """A fused computation being made: its body, and the outer instructions that feed its parameters.

    Attributes:
        body: where the instructions go; the body of a fusion itself, or a copy to try something out.
        parameters: outer operand -> parameter of the body.
        taken_in: outer leaves -> their copies in the body, so that each is copied once.
    """

    body: HloComputation
    parameters: dict[HloInstruction, HloInstruction] = field(default_factory=dict)
    taken_in: dict[HloInstruction, HloInstruction] = field(default_factory=dict)

    @staticmethod
    def of(instruction: HloInstruction, trial: bool = False) -> Kernel:
        """The kernel of a fusion, or a new one of a single instruction.

        With `trial` nothing outside is touched; without, a fusion's own body is the one that changes.
        """
        if instruction.opcode is not Opcode.FUSION:
            kernel = Kernel(HloComputation(FUSED_COMPUTATION))
            operands = [kernel.input(o) for o in instruction.operands]
            kernel.body.root = kernel.body.clone_instruction(instruction, operands)
            kernel.take_in_leaves()
            return kernel
        body = body_of(instruction).clone() if trial else body_of(instruction)
        kernel = Kernel(body)
        for outer, parameter in zip(instruction.operands, body.parameters, strict=True):
            first = kernel.parameters.setdefault(outer, parameter)
            if first is not parameter:
                body.replace_uses(parameter, first)
                body.remove(parameter)
        return kernel

    @property
    def operands(self) -> list[HloInstruction]:
        """What feeds the parameters, in their order."""
        return list(self.parameters)

    def input(self, outer: HloInstruction) -> HloInstruction:
        """What stands for an outer value in the body: a parameter, made when there is none."""
        found = self.parameters.get(outer) or self.taken_in.get(outer)
        if found is None:
            n = len(self.parameters)
            found = self.parameters[outer] = self.body.add_parameter(n, outer.shape, f"param_{n}")
        return found

    def compute(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Copy an instruction, or the whole body of a fusion, into this body; returns the copies of its outputs."""
        if instruction.opcode is not Opcode.FUSION:
            operands = [self.input(o) for o in instruction.operands]
            return [self.body.clone_instruction(instruction, operands)]
        inner = body_of(instruction)
        image = {p: self.input(o) for p, o in zip(inner.parameters, instruction.operands, strict=True)}
        for i in inner.post_order():
            if i not in image and not (i is inner.root and i.opcode is Opcode.TUPLE):
                image[i] = self.body.clone_instruction(i, [image[o] for o in i.operands])
        return [image[o] for o in outputs_of(instruction)]

    def take_in(self, producer: HloInstruction, keep: bool = False) -> None:
        """Compute a producer here instead of reading it; with `keep`, yield its outputs behind one's own."""
        copies = self.compute(producer)
        for outer in [o for o in self.parameters if source_of(o) is producer]:
            index = 0 if outer is producer else outer.attributes["index"]
            self._replace_parameter(outer, copies[index])
        if keep:
            self.add_outputs(copies)
        self.body.remove_dead(copies)
        self._drop_unused_parameters()
        self.take_in_leaves()

    def add_outputs(self, more: Sequence[HloInstruction]) -> None:
        """Yield more values of the body, behind those it yields already."""
        root = self.body.root
        outputs = root.operands if root.opcode is Opcode.TUPLE else (root,)
        self._set_outputs([*outputs, *more])

    def keep_outputs(self, indices: Sequence[int]) -> None:
        """Yield only these of the outputs, and drop what only the others needed."""
        root = self.body.root
        self._set_outputs([root.operands[k] for k in indices])
        self.body.remove_dead(i for i in self.body.instructions if not i.users)
        self._drop_unused_parameters()

    def _drop_unused_parameters(self) -> None:
        for outer in [o for o, p in self.parameters.items() if not p.users and not p.is_root]:
            self.body.remove(self.parameters.pop(outer))

    def _set_outputs(self, outputs: list[HloInstruction]) -> None:
        old = self.body.root
        self.body.root = outputs[0] if len(outputs) == 1 else self.body.add(Opcode.TUPLE, outputs)
        if old.opcode is Opcode.TUPLE:
            self.body.remove_dead([old])

    def take_in_leaves(self) -> None:
        """Copy scalar constants, and broadcasts of them, in instead of reading them."""
        for outer in [o for o in self.parameters if is_absorbed(o)]:
            self._replace_parameter(outer, self._copy_leaf(outer))

    def _copy_leaf(self, outer: HloInstruction) -> HloInstruction:
        found = self.taken_in.get(outer)
        if found is None:
            operands = [self._copy_leaf(o) for o in outer.operands]
            found = self.taken_in[outer] = self.body.clone_instruction(outer, operands)
        return found

    def _replace_parameter(self, outer: HloInstruction, value: HloInstruction) -> None:
        parameter = self.parameters.pop(outer)
        self.body.replace_uses(parameter, value)
        self.body.remove(parameter)

    def renumber(self) -> None:
        """Number the parameters as the operands stand."""
        for n, p in enumerate(self.parameters.values()):
            p.parameter_number = n

    @property
    def kind(self) -> str:
        """XLA's name for it: kInput with a reduction inside, else kLoop."""
        return "kInput" if any(i.opcode is Opcode.REDUCE for i in self.body.instructions) else "kLoop"


def trial(producer: HloInstruction, consumer: HloInstruction, keep_producer: bool = False) -> HloComputation:
    """The fused computation that fusing these two would make; nothing outside is touched."""
    kernel = Kernel.of(consumer, trial=True)
    kernel.take_in(producer, keep_producer)
    kernel.renumber()
    return kernel.body


def trial_side_by_side(first: HloInstruction, second: HloInstruction) -> HloComputation:
    """The fused computation that a sibling or horizontal fusion would make."""
    kernel = Kernel.of(second, trial=True)
    kernel.add_outputs(kernel.compute(first))
    kernel.take_in_leaves()
    kernel.renumber()
    return kernel.body


# ---- in the module


@dataclass(frozen=True)
class Surgery:
    """What a fusion did to its sequence.

    Attributes:
        fusion: the fusion instruction that came out.
        removed: instructions that are gone.
    """

    fusion: HloInstruction
    removed: tuple[HloInstruction, ...]


def fuse_into(producer: HloInstruction, consumer: HloInstruction) -> Surgery:
    """Compute the producer within the consumer; it stays where others use it."""
    sequence = _sequence_of(consumer)
    kernel = Kernel.of(consumer)
    kernel.take_in(producer)
    fusion = _write_back(kernel, consumer, sequence)
    gone = [] if fusion is consumer else [consumer]
    if fusion is not consumer:
        sequence.replace_uses(consumer, fusion)
        sequence.remove(consumer)
    if is_multi_output(producer):
        gone += _drop_unused_outputs(sequence, producer)
    if producer.parent is sequence and producer.is_dead:
        _remove(sequence, producer)
        gone.append(producer)
    return Surgery(fusion, tuple(gone + _remove_leaves(sequence, kernel.taken_in)))


def fuse_multi_output(producer: HloInstruction, consumer: HloInstruction) -> Surgery:
    """Compute the producer within the consumer, which then yields the producer's outputs too."""
    count, kernel = len(outputs_of(consumer)), Kernel.of(consumer)
    was_tuple = is_multi_output(consumer)
    kernel.take_in(producer, keep=True)
    return _merge_outputs(kernel, producer, consumer, count, was_tuple)


def fuse_side_by_side(first: HloInstruction, second: HloInstruction) -> Surgery:
    """One kernel with the outputs of both; neither may need the other."""
    count, kernel = len(outputs_of(second)), Kernel.of(second)
    was_tuple = is_multi_output(second)
    kernel.add_outputs(kernel.compute(first))
    kernel.take_in_leaves()
    return _merge_outputs(kernel, first, second, count, was_tuple)


def _merge_outputs(
    kernel: Kernel, first: HloInstruction, second: HloInstruction, count: int, was_tuple: bool
) -> Surgery:
    """Write a kernel back that yields what `second` did (`count` outputs), then what `first` did."""
    sequence = _sequence_of(second)
    fusion = _write_back(kernel, second, sequence)
    if not was_tuple:
        _replace_by_output(sequence, second, fusion, 0)
    if is_multi_output(first):
        for g in list(first.users):
            g.attributes = {**g.attributes, "index": count + g.attributes["index"]}
            g.replace_operands(first, fusion)
    else:
        _replace_by_output(sequence, first, fusion, count)
    removed = [first] if fusion is second else [second, first]
    for i in removed:
        _remove(sequence, i)
    removed += _drop_unused_outputs(sequence, fusion)
    return Surgery(fusion, tuple(removed + _remove_leaves(sequence, kernel.taken_in)))


def _replace_by_output(sequence: HloComputation, old: HloInstruction, fusion: HloInstruction, index: int) -> None:
    """Make the users of `old` use an output of a fusion that has become a tuple; `old` may be the fusion itself."""
    users, was_root = list(old.users), old.is_root
    pick = sequence.add(Opcode.GET_TUPLE_ELEMENT, [fusion], index=index)
    for u in users:
        u.replace_operands(old, pick)
    if was_root:
        sequence.root = pick


def _write_back(kernel: Kernel, instruction: HloInstruction, sequence: HloComputation) -> HloInstruction:
    """The fusion instruction of a kernel: the one it was made from, or a new one that nobody uses yet."""
    kernel.renumber()
    if instruction.opcode is Opcode.FUSION:
        instruction.set_operands(kernel.operands)
        instruction.attributes["kind"] = kernel.kind
        instruction.shape = kernel.body.root.shape
        return instruction
    body = _module_of(sequence).add(kernel.body)
    attributes = {"kind": kernel.kind, "calls": body}
    if "metadata" in instruction.attributes:
        attributes["metadata"] = instruction.attributes["metadata"]
    name = body.name.replace(FUSED_COMPUTATION, "fusion", 1)  # numbered alike, so unique in the whole module
    fusion = sequence.add(Opcode.FUSION, kernel.operands, name=name, attributes=attributes)
    fusion.shape = kernel.body.root.shape
    return fusion


def _drop_unused_outputs(sequence: HloComputation, fusion: HloInstruction) -> list[HloInstruction]:
    """Remove unused get-tuple-elements of a multi-output fusion, and the outputs nobody picks any more."""
    gone = [g for g in fusion.users if g.is_dead and g.opcode is Opcode.GET_TUPLE_ELEMENT]
    for g in gone:
        sequence.remove(g)
    count = len(outputs_of(fusion))
    used = sorted({g.attributes["index"] for g in fusion.users if g.opcode is Opcode.GET_TUPLE_ELEMENT})
    if not fusion.users or fusion.is_root or len(used) == count:
        return gone
    kernel = Kernel.of(fusion)
    before = fusion.operands
    kernel.keep_outputs(used)
    _write_back(kernel, fusion, sequence)
    if len(used) == 1:
        for g in list(fusion.users):
            sequence.replace_uses(g, fusion)
            sequence.remove(g)
            gone.append(g)
    else:
        for g in fusion.users:
            g.attributes = {**g.attributes, "index": used.index(g.attributes["index"])}
    return gone + _remove_leaves(sequence, before)


def _remove_leaves(sequence: HloComputation, leaves: Iterable[HloInstruction]) -> list[HloInstruction]:
    """Remove absorbed leaves that no one outside the fusions reads any more."""
    gone: list[HloInstruction] = []
    work = list(leaves)
    while work:
        i = work.pop()
        if i.parent is sequence and i.is_dead and is_absorbed(i):
            work.extend(i.operands)
            sequence.remove(i)
            gone.append(i)
    return gone


def _remove(sequence: HloComputation, instruction: HloInstruction) -> None:
    """Remove an instruction, and the body of a fusion with it."""
    body = body_of(instruction) if instruction.opcode is Opcode.FUSION else None
    sequence.remove(instruction)
    if body is not None:
        _module_of(sequence).remove(body)


def unfuse(fusion: HloInstruction) -> list[HloInstruction]:
    """Put the instructions of a fusion back in its place; returns what stands for its outputs."""
    sequence = _sequence_of(fusion)
    body = body_of(fusion)
    image = dict(zip(body.parameters, fusion.operands, strict=True))
    for i in body.post_order():
        if i not in image and not (i is body.root and i.opcode is Opcode.TUPLE):
            image[i] = sequence.clone_instruction(i, [image[o] for o in i.operands])
    outputs = [image[o] for o in outputs_of(fusion)]
    if is_multi_output(fusion):
        for g in list(fusion.users):
            sequence.replace_uses(g, outputs[g.attributes["index"]])
            sequence.remove(g)
    else:
        sequence.replace_uses(fusion, outputs[0])
    _remove(sequence, fusion)
    return outputs


def _sequence_of(instruction: HloInstruction) -> HloComputation:
    if instruction.parent is None:
        raise ValueError(f"%{instruction.name} has been removed")
    return instruction.parent


def _module_of(computation: HloComputation) -> HloModule:
    if computation.parent is None:
        raise ValueError(f"computation %{computation.name} stands in no module")
    return computation.parent
