"""Recomputation: values that a fusion stores for later kernels, but which those compute again from what they read.

In a training step, the forward pass stores the tanh of an activation and the exponentials of a softmax, and the
backward pass reads them long after. Where a later kernel reads everything from which such a value follows element by
element, it computes the value itself: less memory is alive at the same time, and less is written and read. Cheap values
also follow from arguments of the program, and from reductions in the fusion, such as the maximum of a row, which it
then yields instead. This is done once fusion is over, and before kernels are chosen; no kernel is added, and none gets
another name or place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def recompute_outputs(module: HloModule, target: BuildTarget) -> HloModule:
    """Return a module whose kernels compute again what is cheap to compute, or the given one if none needs to.

    Args:
        module: a module after fusion; it is not changed.
        target: what kernels are built for.
    """
    if not _candidates(module.entry):
        return module
    changed = module.clone()
    if not _Recomputation(changed.entry, target).run():
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
    """

    def __init__(self, sequence: HloComputation, target: BuildTarget) -> None:
        self._sequence, self._target = sequence, target
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
        values: list[_Value] = []
        more: set[HloInstruction] = set()  # what is alive at the time of the users instead of the output
        for u in users:
            value = self._value(output, u)
            if value is None:
                return False
            values.append(value)
            more.update(v for v in value.leaves.values() if v not in u.operands)
            more.update(value.rows)
            if sum(v.shape.byte_size for v in more) > output.shape.byte_size * (1 + 1 / SMALL):
                return False
        rows = self._yielded(producer, list(dict.fromkeys(x for value in values for x in value.rows)), edits)
        rewriters = self._rewritten(output, zip(users, values, strict=True), rows)
        for u, rewriter in rewriters:
            write_back(rewriter, u, edits)
        remove_unneeded([output] if rewriters else rows.values(), edits)
        return bool(rewriters)

    def _yielded(
        self, producer: HloInstruction, rows: Sequence[HloInstruction], edits: Edits
    ) -> dict[HloInstruction, HloInstruction]:
        """Let a fusion yield more values of its body; return by them what reads these outputs."""
        if not rows:
            return {}
        count = len(outputs_of(producer))
        rewriter = FusionRewriter.of(producer, in_place=True)
        rewriter.add_outputs(rows)
        write_back(rewriter, producer, edits)
        return {
            x: edits.add(Opcode.GET_TUPLE_ELEMENT, [producer], attributes={"index": count + n})
            for n, x in enumerate(rows)
        }

    def _rewritten(
        self,
        output: HloInstruction,
        users: Iterable[tuple[HloInstruction, _Value]],
        rows: Mapping[HloInstruction, HloInstruction],
    ) -> list[tuple[HloInstruction, FusionRewriter]]:
        """Return the users of an output with bodies that compute it; none if one of the kernels is refused."""
        if rows and is_refused(body_of(output.operands[0]), self._target):
            return []
        rewriters: list[tuple[HloInstruction, FusionRewriter]] = []
        for u, value in users:
            rewriter = FusionRewriter.of(u)
            rewriter.replace_input(output, value.copy_into(rewriter, rows))
            rewriter.finish()
            rewriter.body.reorder()
            if is_refused(rewriter.body, self._target):
                return []
            rewriters.append((u, rewriter))
        return rewriters

    def _value(self, output: HloInstruction, user: HloInstruction) -> _Value | None:
        """Return how a kernel computes an output of another one from values that it may read, or None."""
        producer = output.operands[0]
        root = outputs_of(producer)[output.attributes["index"]]
        available = self._available(output, user)
        dividend = _dividend(root, available)
        if dividend is not None:
            return dividend
        leaves: dict[HloInstruction, HloInstruction] = {}
        rows: dict[HloInstruction, None] = {}
        inside: dict[HloInstruction, None] = {}
        work = [root]
        while work:
            i = work.pop()
            if i in inside or i in leaves or i in rows:
                continue
            if i in available and i is not root:
                leaves[i] = available[i]
                continue
            if i.opcode is Opcode.REDUCE and i.shape.is_array and _is_small(i, output):
                rows[i] = None
                continue
            if not (i.opcode.is_elementwise or i.opcode in _MOVES or _is_scalar_constant(i)):
                return None
            inside[i] = None
            work += i.operands
        ordered = tuple(i for i in body_of(producer).post_order() if i in inside)
        value = _Value(root, ordered, leaves, tuple(rows))
        at_hand = not rows and all(self._is_at_hand(outer, output, user) for outer in leaves.values())
        if not at_hand and not _reads_once(user, output):
            return None
        return value if value.is_cheap(user, len(output.users), at_hand) else None

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
            if outer.opcode is Opcode.PARAMETER or self._is_at_hand(outer, output, user)
        }

    def _is_at_hand(self, outer: HloInstruction, output: HloInstruction, user: HloInstruction) -> bool:
        """Check whether a kernel reads a value anyway, or something after the fusion does, or it is small."""
        at = self._position[output.operands[0]]
        read_later = outer.is_root or any(self._position[u] > at for u in outer.users)
        return outer in user.operands or read_later or _is_small(outer, output)


@dataclass(frozen=True)
class _Value:
    """An output of a fusion as instructions of its body.

    Attributes:
        root: the value.
        inside: the instructions that compute it, operands first.
        leaves: the values in the body at which that begins, and by them the same values outside.
        rows: reductions in the body at which it begins, too, which the fusion does not yield yet.
        factors: two of these values of which the value is the product, if it is not the last of the instructions.
    """

    root: HloInstruction
    inside: tuple[HloInstruction, ...]
    leaves: Mapping[HloInstruction, HloInstruction]
    rows: tuple[HloInstruction, ...] = ()
    factors: tuple[HloInstruction, HloInstruction] | None = None

    def is_cheap(self, user: HloInstruction, users: int, at_hand: bool) -> bool:
        """Check that computing it takes about as long as loading it; products read their operands several times.

        What is not at hand has to be loaded as well, so that nothing expensive may follow.
        """
        ops = [i for i in self.inside if i.opcode.is_elementwise and i.operands]
        expensive = sum(i.opcode.has(Trait.EXPENSIVE) for i in ops)
        repeated = any(i.opcode in TEMPLATE_OPS for i in body_of(user).instructions)
        return len(ops) <= MAX_OPS and expensive * users <= (0 if repeated or not at_hand else MAX_EXPENSIVE)

    def copy_into(self, rewriter: FusionRewriter, rows: Mapping[HloInstruction, HloInstruction]) -> HloInstruction:
        """Add the instructions to the body of a fusion; return the copy of the value."""
        leaves = {**self.leaves, **{i: rows[i] for i in self.rows}}
        image = {i: rewriter.input(outer) for i, outer in leaves.items()}
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
            return _Value(root, (divisor,), leaves, factors=(quotient, divisor))
    return None


def _reads_once(user: HloInstruction, output: HloInstruction) -> bool:
    """Check whether a kernel reads each element of a value at one place alone, and not as a stencil or a sort does."""
    body = body_of(user)
    work = [body.parameters[user.operands.index(output)]]
    seen = set(work)
    while work:
        for u in work.pop().users:
            if u.opcode is Opcode.REDUCE or u.opcode is Opcode.TUPLE or u in seen:
                continue
            if not u.opcode.is_elementwise:
                return False
            seen.add(u)
            work.append(u)
    return True


def _is_small(value: HloInstruction, output: HloInstruction) -> bool:
    return value.shape.byte_size * SMALL <= output.shape.byte_size


def _is_scalar_constant(i: HloInstruction) -> bool:
    return i.opcode is Opcode.CONSTANT and i.shape.is_scalar
