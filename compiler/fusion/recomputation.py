"""Recomputation: values that a fusion stores for later kernels, but which those compute again from what they read.

In a training step, the forward pass stores the tanh of an activation and the exponentials of a softmax, and the
backward pass reads them long after. Where a later kernel reads everything from which such a value follows element by
element, it computes the value itself: less memory is alive at the same time, and less is written and read. This is done
once fusion is over, so no kernel is added and none gets another place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.buildability import is_refused
from compiler.fusion.edits import Edits
from compiler.fusion.rewriting import (
    FusionRewriter,
    body_of,
    is_multi_output,
    outputs_of,
    remove_unneeded,
    write_back,
)
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Trait
from compiler.ir.types import PrimitiveType as T

__all__ = ["recompute_outputs"]

MIN_BYTES = 1 << 16
"""Minimum size of a value that is computed again: smaller ones stay in a cache between the kernels."""
MAX_OPS = 24
"""Maximum number of ops of which such a value is made, constants and broadcasts excluded."""
MAX_EXPENSIVE = 1
"""How many of them may be expensive, such as a tanh, in all kernels together: about what storing and loading takes."""
SMALL = 16
"""A value is small beside another one that is this many times as large."""
_MOVES = frozenset({Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST})
"""Ops besides elementwise ones of which such a value is made."""


def recompute_outputs(module: HloModule, target: BuildTarget, chosen: Collection[tuple[str, str]] = ()) -> HloModule:
    """Return a module whose kernels compute again what is cheap to compute, or the given one if none needs to.

    Args:
        module: a module after fusion; it is not changed.
        target: what kernels are built for.
        chosen: sequence and name of the kernels for which schedules were chosen; they stay as they are.
    """
    if not _candidates(module.entry):
        return module
    changed = module.clone()
    kept = {name for sequence, name in chosen if sequence == changed.entry.name}
    if not _Recomputation(changed.entry, target, kept).run():
        return module
    changed.reorder()
    return changed


def _candidates(sequence: HloComputation) -> list[HloInstruction]:
    """Return the outputs of fusions that only fusions read, in program order."""
    return [
        g
        for g in sequence.post_order()
        if g.opcode is Opcode.GET_TUPLE_ELEMENT
        and is_multi_output(g.operands[0])
        and g.shape.byte_size >= MIN_BYTES
        and g.users
        and not g.is_root
        and all(u.opcode is Opcode.FUSION for u in g.users)
    ]


class _Recomputation:
    """Moves values of one sequence into the kernels that read them.

    Args:
        sequence: the sequence that is changed.
        target: what kernels are built for.
        kept: names of the kernels that stay as they are.
    """

    def __init__(self, sequence: HloComputation, target: BuildTarget, kept: Collection[str]) -> None:
        self._sequence, self._target, self._kept = sequence, target, kept
        self._position = {i: n for n, i in enumerate(sequence.post_order())}

    def run(self) -> bool:
        """Change the sequence; return whether anything moved."""
        edits = Edits(self._sequence)
        moved = [self._move(g, edits) for g in _candidates(self._sequence)]
        return any(moved)

    def _move(self, output: HloInstruction, edits: Edits) -> bool:
        """Let all users of an output compute it, if all can; return whether they do."""
        if output.parent is not self._sequence or not output.users:
            return False  # it went with another output that is computed from it
        producer, users = output.operands[0], list(output.users)
        if any(i.name in self._kept for i in (producer, *users)):
            return False
        rewriters: list[tuple[HloInstruction, FusionRewriter]] = []
        more: set[HloInstruction] = set()  # what is alive at the time of the users instead of the output
        for u in users:
            value = self._value(output, u)
            if value is None:
                return False
            more.update(v for v in value.leaves.values() if v not in u.operands)
            if sum(v.shape.byte_size for v in more) > output.shape.byte_size * (1 + 1 / SMALL):
                return False
            rewriter = FusionRewriter.of(u)
            rewriter.replace_input(output, value.copy_into(rewriter))
            rewriter.finish()
            rewriter.body.reorder()
            if is_refused(rewriter.body, self._target):
                return False
            rewriters.append((u, rewriter))
        for u, rewriter in rewriters:
            write_back(rewriter, u, edits)
        remove_unneeded([output], edits)
        return True

    def _value(self, output: HloInstruction, user: HloInstruction) -> _Value | None:
        """Return how a kernel computes an output of another one from values that it may read, or None."""
        producer = output.operands[0]
        root = outputs_of(producer)[output.attributes["index"]]
        available = self._available(output, user)
        dividend = _dividend(root, available)
        if dividend is not None:
            return dividend
        leaves: dict[HloInstruction, HloInstruction] = {}
        inside: dict[HloInstruction, None] = {}
        work = [root]
        while work:
            i = work.pop()
            if i in inside or i in leaves:
                continue
            if i in available and i is not root:
                leaves[i] = available[i]
                continue
            if not (i.opcode.is_elementwise or i.opcode in _MOVES or _is_scalar_constant(i)):
                return None
            inside[i] = None
            work += i.operands
        ordered = tuple(i for i in body_of(producer).post_order() if i in inside)
        value = _Value(root, ordered, leaves)
        return value if value.is_cheap(user, len(output.users)) else None

    def _available(self, output: HloInstruction, user: HloInstruction) -> dict[HloInstruction, HloInstruction]:
        """Return the values in the body of an output's fusion that a later kernel may read: by them those outside."""
        producer = output.operands[0]
        body = body_of(producer)
        found = dict(zip(body.parameters, producer.operands, strict=True))
        yielded = outputs_of(producer)
        found.update((yielded[g.attributes["index"]], g) for g in producer.users if g is not output)
        return {
            inner: outer
            for inner, outer in found.items()
            if outer in user.operands or self._stays(outer, producer) or _is_small(outer, output)
        }

    def _stays(self, outer: HloInstruction, producer: HloInstruction) -> bool:
        """Check whether something reads a value after the fusion that reads or yields it."""
        at = self._position[producer]
        return outer.is_root or any(self._position[u] > at for u in outer.users)


@dataclass(frozen=True)
class _Value:
    """An output of a fusion as instructions of its body.

    Attributes:
        root: the value.
        inside: the instructions that compute it, operands first.
        leaves: the values in the body at which that begins, and by them the same values outside.
        factors: two of these values of which the value is the product, if it is not the last of the instructions.
    """

    root: HloInstruction
    inside: tuple[HloInstruction, ...]
    leaves: Mapping[HloInstruction, HloInstruction]
    factors: tuple[HloInstruction, HloInstruction] | None = None

    def is_cheap(self, user: HloInstruction, users: int) -> bool:
        """Check that computing it takes about as long as loading it; products read their operands several times."""
        ops = [i for i in self.inside if i.opcode.is_elementwise and i.operands]
        expensive = sum(i.opcode.has(Trait.EXPENSIVE) for i in ops)
        repeated = any(i.opcode in TEMPLATE_OPS for i in body_of(user).instructions)
        return len(ops) <= MAX_OPS and expensive * users <= (0 if repeated else MAX_EXPENSIVE)

    def copy_into(self, rewriter: FusionRewriter) -> HloInstruction:
        """Add the instructions to the body of a fusion; return the copy of the value."""
        image = {i: rewriter.input(outer) for i, outer in self.leaves.items()}
        for i in self.inside:
            image[i] = rewriter.body.clone_instruction(i, [image[o] for o in i.operands])
            rewriter.copies.append(image[i])
        if self.factors is not None:
            product = rewriter.body.add(Opcode.MULTIPLY, [image[f] for f in self.factors])
            rewriter.copies.append(product)
            return product
        return image[self.root]


def _dividend(root: HloInstruction, available: Mapping[HloInstruction, HloInstruction]) -> _Value | None:
    """Return the exponentials of a softmax as the products of the weights with their sum, if a kernel may read both.

    The weights are stored for the product with the values, which reads them as they are in memory.
    """
    if root.opcode is not Opcode.EXPONENTIAL or root.shape.element_type not in (T.F32, T.F64):
        return None
    for quotient in root.users:
        if quotient.opcode is not Opcode.DIVIDE or quotient.operands[0] is not root or quotient not in available:
            continue
        divisor = quotient.operands[1]
        total = divisor.operands[0] if divisor.opcode is Opcode.BROADCAST else divisor
        is_sum = total.opcode is Opcode.REDUCE and total.attributes["to_apply"].root.opcode is Opcode.ADD
        if is_sum and total.operands[0] is root and total in available:
            leaves = {x: available[x] for x in (quotient, total)}
            return _Value(root, (divisor,), leaves, (quotient, divisor))
    return None


def _is_small(value: HloInstruction, output: HloInstruction) -> bool:
    return value.shape.byte_size * SMALL <= output.shape.byte_size


def _is_scalar_constant(i: HloInstruction) -> bool:
    return i.opcode is Opcode.CONSTANT and i.shape.is_scalar
