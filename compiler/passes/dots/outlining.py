"""Outlining: some instructions of a computation become the body of one custom fusion, which no policy changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.ir import HloComputation, HloInstruction, Opcode

_COPIED = frozenset({Opcode.BROADCAST, Opcode.IOTA})


@dataclass(frozen=True)
class Outline:
    """A fusion that could be made of some instructions.

    Attributes:
        body: what it would compute; belongs to no module yet.
        operands: the operands, in the order of the parameters of `body`.
        outputs: the instructions that it would replace, in the order of its results.
        copied: instructions that stay where others use them.
        inside: all instructions of the region.
    """

    body: HloComputation
    operands: tuple[HloInstruction, ...]
    outputs: tuple[HloInstruction, ...]
    copied: tuple[HloInstruction, ...]
    inside: frozenset[HloInstruction]

    @staticmethod
    def of(region: Sequence[HloInstruction], name: str, copied: Collection[HloInstruction] = ()) -> Outline:
        """Return the fusion of a region; the arguments are those of `outline`."""
        inside = frozenset(region)
        outputs = [i for i in region if i not in copied and (i.is_root or any(u not in inside for u in i.users))]
        body = HloComputation(f"{name}_computation")
        image: dict[HloInstruction, HloInstruction] = {}
        parameters: list[HloInstruction] = []

        def read(outer: HloInstruction) -> HloInstruction:
            found = image.get(outer)
            if found is None:
                if _is_copied(outer):
                    found = body.clone_instruction(outer, [read(o) for o in outer.operands])
                else:
                    found = body.add_parameter(len(parameters), outer.shape, f"param_{len(parameters)}")
                    parameters.append(outer)
                image[outer] = found
            return found

        for i in region:
            image[i] = body.clone_instruction(i, [read(o) for o in i.operands])
        results = [image[o] for o in outputs]
        body.root = results[0] if len(results) == 1 else body.add(Opcode.TUPLE, results)
        return Outline(body, tuple(parameters), tuple(outputs), tuple(copied), inside)

    def apply(self, computation: HloComputation, name: str) -> HloInstruction:
        """Make the fusion in the computation that owns the region, which belongs to a module; return it."""
        module = computation.parent
        if module is None:
            raise ValueError(f"computation %{computation.name} is in no module")
        attributes = {"kind": "kCustom", "calls": module.add(self.body)}
        if "metadata" in self.outputs[-1].attributes:
            attributes["metadata"] = self.outputs[-1].attributes["metadata"]
        fusion = computation.add(Opcode.FUSION, self.operands, name=f"{name}_fusion", attributes=attributes)
        fusion.set_shape(self.body.root.shape)
        alone = len(self.outputs) == 1
        for n, old in enumerate(self.outputs):
            new = fusion if alone else computation.add(Opcode.GET_TUPLE_ELEMENT, [fusion], index=n)
            was_root = old.is_root
            for user in [u for u in old.users if u not in self.inside]:
                user.replace_operands(old, new)
            if was_root:
                computation.root = new
        computation.remove_dead([*self.outputs, *self.copied])
        return fusion


def outline(
    computation: HloComputation, region: Sequence[HloInstruction], name: str, copied: Collection[HloInstruction] = ()
) -> HloInstruction:
    """Move instructions into a fusion of kind kCustom and return it.

    Broadcasts, iotas and scalar constants that the region reads are copied into the body.

    Args:
        computation: owns the instructions; belongs to a module.
        region: instructions in topological order; nothing outside may lie on a path between two of them.
        name: prefix of the names of the fusion and its body.
        copied: instructions of the region that are copied and stay where others use them.
    """
    return Outline.of(region, name, copied).apply(computation, name)


def is_fused(computation: HloComputation) -> bool:
    """Check whether a computation is the body of a fusion."""
    module = computation.parent
    return module is not None and any(
        i.opcode is Opcode.FUSION and i.attributes["calls"] is computation
        for c in module.computations
        for i in c.notable
    )


def _is_copied(i: HloInstruction) -> bool:
    if i.opcode is Opcode.CONSTANT:
        return i.shape.is_scalar
    return i.opcode in _COPIED
