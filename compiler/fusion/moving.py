"""Moving a value from one kernel to another that it reads, or that reads it.

Upstream: a value that needs nothing else of its fusion is computed by a kernel that it reads, which then yields it.
Downstream: an output that one other kernel reads is computed there, and the fusion yields what it is computed from.

Nothing here checks paths; see `kinds.Move`. The module is changed by taking the value out (`splitting.split_fusion`
upstream, `peel_fusion` downstream) and fusing it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.analysis.cost_model import CostModel
from compiler.analysis.kernel_summary import summarize_body
from compiler.codegen.buildability import kernel_refusal
from compiler.fusion.anatomy import MAX_CUTS, Anatomy, Pair, Part, copy_constant
from compiler.fusion.edits import Edits
from compiler.fusion.legality import Legality
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import (
    FUSED_COMPUTATION,
    FusionRewriter,
    body_of,
    is_inlined_constant,
    is_result,
    remove_unneeded,
    source_of,
    write_back,
)
from compiler.fusion.splitting import Split, Splitter
from compiler.ir import HloComputation, HloInstruction, Opcode


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """The two kernels after a move.

    Attributes:
        reason: why one of them cannot be built, or None.
        seconds: of both together.
    """

    reason: str | None
    seconds: float = 0.0


class Moving:
    """A value of a fusion and the kernel that may take it.

    Args:
        anatomy: of the fusion.
        value: what is moved.
        target: the kernel that takes it; it reads the fusion, or the fusion reads it.

    Attributes:
        fusion: the fusion.
        upstream: whether the fusion reads the target.
        pair: the instruction that computes the value, None if the fusion does not compute it.
    """

    def __init__(self, anatomy: Anatomy, value: int, target: HloInstruction) -> None:
        self.anatomy, self.value, self.target = anatomy, value, target
        self.fusion, self.nodes = anatomy.fusion, anatomy.nodes
        self._outer = dict(zip(body_of(self.fusion).parameters, self.fusion.operands, strict=True))
        self.upstream = any(source_of(o) is target for o in self.fusion.operands)
        self.pair = self._find()

    def _find(self) -> Pair | None:
        yielded = next((p for p in self.anatomy.outputs if p[1] == self.value), None)
        computes = any(p[1] == self.value and p[0].opcode is not Opcode.PARAMETER for p in self.anatomy.pairs)
        return yielded or (self.anatomy.smallest(self.value) if computes else None)

    def inner(self, pair: Pair) -> list[int]:
        """Return the values that the fusion computes and from which it computes another one."""
        return list(dict.fromkeys(v for o, v in self.anatomy.pairs[pair] if not _is_outside(o)))

    def read(self) -> list[HloInstruction]:
        """Return what the value is computed from outside of the fusion, without constants."""
        if self.pair is None:
            return []
        return [self._outer[o] for o, _ in self.anatomy.pairs[self.pair] if o.opcode is Opcode.PARAMETER]

    def others_read(self) -> tuple[HloInstruction, ...]:
        """Return the nodes that the value reads besides the target, if the fusion reads that."""
        found = dict.fromkeys(map(source_of, self.read())) if self.upstream else {}
        return tuple(i for i in found if i is not self.target)

    def reason(self) -> str | None:
        """Return why the value cannot be moved, or None; paths and kernels are not considered."""
        name, anatomy = self.nodes.origins.name(self.value), self.anatomy
        if anatomy.unknown is not None:
            return f"%{anatomy.unknown} was a fusion already when fusion began"
        if self.pair is None or is_inlined_constant(self.pair[0]):
            return f"%{self.fusion.name} does not compute %{name}"
        if any(is_inlined_constant(i) for i, _ in anatomy.outputs):
            return f"a result of %{self.fusion.name} is a constant; take it out first"
        return self._upstream_reason(name) if self.upstream else self._downstream_reason(name)

    def _upstream_reason(self, name: str) -> str | None:
        if self.pair is None or self.inner(self.pair):
            return f"%{name} needs other values of %{self.fusion.name}"
        if all(source_of(o) is not self.target for o in self.read()):
            return f"%{name} does not read %{self.target.name}"
        if [self.value] == [v for _, v in self.anatomy.outputs]:
            return f"%{name} is all that %{self.fusion.name} yields; fuse the two instead"
        owner = self.nodes.yields(self.value)
        if owner is not None and owner is not self.fusion:
            return f"%{name} is a result of %{owner.name}, from which %{self.fusion.name} can read it"
        return None

    def _downstream_reason(self, name: str) -> str | None:
        reader = self.nodes.operand_of(self.value) if self.nodes.yields(self.value) is self.fusion else None
        if reader is None:
            return f"%{name} is no result of %{self.fusion.name}"
        if is_result(reader) or list(reader.users) != [self.target]:
            return f"%{name} is not read by %{self.target.name} alone"
        if not self.left():
            return f"nothing of %{self.fusion.name} would be left; fuse the two instead"
        for v in self.inner(self.pair) if self.pair is not None else ():
            owner = self.nodes.yields(v)
            if owner is not None and owner is not self.fusion:
                return f"%{self.nodes.origins.name(v)}, which %{name} needs, is a result of %{owner.name} too"
        return None

    def left(self) -> tuple[int, ...]:
        """Return what the fusion yields after the move."""
        others = [v for _, v in self.anatomy.outputs if v != self.value]
        needed = [] if self.upstream or self.pair is None else self.inner(self.pair)
        return tuple(dict.fromkeys((*others, *needed)))

    # ---- the kernels

    def facts(self, legality: Legality, cost_model: CostModel, others: bool) -> MoveFacts:
        """Return whether both kernels can be built, and what they cost.

        Args:
            legality: limits of kernels and what they are built for.
            cost_model: estimates their time.
            others: whether anything but the fusion needs the target, if the fusion reads it.
        """
        rest = self.anatomy.part(self.left(), self.value if self.upstream else None)
        keeps = others or any(source_of(o) is self.target for o in rest.rewriter.parameters)
        body = self._upstream_body(keeps) if self.upstream else self._downstream_body()
        body.reorder()
        summary = summarize_body(body)
        reason = legality.body_refusal(body, summary) or kernel_refusal(body, legality.target)
        if reason is not None:
            return MoveFacts(reason)
        if rest.single is not None:
            return MoveFacts(None, cost_model.instruction(rest.single[0]) + cost_model.kernel(summary))
        left = rest.rewriter.body
        left.reorder()
        other = summarize_body(left)
        reason = legality.body_refusal(left, other) or kernel_refusal(left, legality.target)
        return MoveFacts(reason, cost_model.kernel(other) + cost_model.kernel(summary))

    def _copied(self, rewriter: FusionRewriter) -> HloInstruction:
        """Add the instruction of the value to a body; its operands become parameters."""
        assert self.pair is not None  # noqa: S101 - `reason` comes first
        inside, operands = self.pair[0], []
        copies: dict[HloInstruction, HloInstruction] = {}
        for o, v in self.anatomy.pairs[self.pair]:
            if is_inlined_constant(o):
                operands.append(copy_constant(rewriter.body, o, copies))
            elif o.opcode is Opcode.PARAMETER:
                operands.append(rewriter.input(self._outer[o]))
            else:
                yielded = self.nodes.operand_of(v) if self.nodes.yields(v) is self.fusion else None
                operands.append(rewriter.input(yielded or o))
        rewriter.copies += copies.values()
        copy = rewriter.body.clone_instruction(inside, operands)
        rewriter.copies.append(copy)
        return copy

    def _upstream_body(self, keeps: bool) -> HloComputation:
        rewriter = FusionRewriter(HloComputation(FUSED_COMPUTATION))
        rewriter.body.root = self._copied(rewriter)
        rewriter.inline_producer(self.target, keep=keeps)
        rewriter.finish()
        return rewriter.body

    def _downstream_body(self) -> HloComputation:
        rewriter = FusionRewriter.of(self.target)
        reader = self.nodes.operand_of(self.value)
        assert reader is not None  # noqa: S101 - `reason` comes first
        rewriter.replace_input(reader, self._copied(rewriter))
        rewriter.finish()
        return rewriter.body


def _is_outside(inside: HloInstruction) -> bool:
    """Check whether an instruction of a body is an operand of the fusion, or a constant of which it has a copy."""
    return inside.opcode is Opcode.PARAMETER or is_inlined_constant(inside)


Candidates: TypeAlias = tuple[tuple[tuple[int, tuple[int, ...]], ...], tuple[tuple[int, tuple[int, ...]], ...]]
"""What `candidates` returns."""


def candidates(anatomy: Anatomy) -> Candidates:
    """Return the values of a fusion whose moves are listed: upstream ones, then downstream ones.

    Of an upstream one, the positions of the operands that it reads; of a downstream one, the values that it needs.
    """
    if anatomy.unknown is not None or any(is_inlined_constant(i) for i, _ in anatomy.outputs):
        return (), ()
    place = {p: n for n, p in enumerate(body_of(anatomy.fusion).parameters)}
    yielded = {v: (i, v) for i, v in anatomy.outputs}
    up: dict[int, tuple[int, ...]] = {}
    for pair in sorted(anatomy.pairs, key=lambda p: p[1]):
        inside, value = pair
        operands = anatomy.pairs[pair]
        if _is_outside(inside) or len(up) == MAX_CUTS or not all(_is_outside(o) for o, _ in operands):
            continue
        read = dict.fromkeys(place[o] for o, _ in operands if o.opcode is Opcode.PARAMETER)
        if read and list(yielded) != [value] and pair == (yielded.get(value) or anatomy.smallest(value)):
            up[value] = tuple(read)
    down = {
        v: tuple(dict.fromkeys(w for o, w in anatomy.pairs[i, v] if not _is_outside(o))) for i, v in anatomy.outputs
    }
    lasting = {v: needed for v, needed in down.items() if needed or len(yielded) > 1}
    return tuple(up.items()), tuple(sorted(lasting.items())[:MAX_CUTS])


# ---- in the module


def peel_fusion(fusion: HloInstruction, value: int, nodes: Nodes, edits: Edits) -> Split:
    """Compute an output of a fusion by an instruction of its own, from values that the fusion yields for it."""
    return _Peeler(Anatomy(fusion, nodes), value, nodes, edits).peel()


class _Peeler(Splitter):
    def peel(self) -> Split:
        """Take the output off the fusion."""
        fusion, nodes, edits = self.fusion, self.nodes, self.edits
        left = Moving(self.anatomy, self.cut, fusion).left()
        pair = next(p for p in self.anatomy.outputs if p[1] == self.cut)
        readers = {v: r for v in nodes.values[fusion] if (r := nodes.operand_of(v)) is not None}
        users = list(readers[self.cut].users)
        outer = dict(zip(body_of(fusion).parameters, self.operands, strict=True))
        removed: list[HloInstruction] = []
        rest = self._write(self.anatomy.part(left), left)
        outputs = self._outputs(rest, left, readers, removed)
        own = self._own(pair, outer, outputs)
        for u in users:
            edits.replace_operands(u, readers[self.cut], own)
        if readers[self.cut] is not fusion:
            edits.remove(readers[self.cut])
            removed.append(readers[self.cut])
        if rest is not fusion:
            edits.remove(fusion)
            edits.remove_computation(body_of(fusion))
            removed.append(fusion)
        gone, kept = remove_unneeded(self.operands, edits)
        for node, indices in kept.items():
            self.made[node] = tuple(nodes.values[node][k] for k in indices)
        made = {i: v for i, v in self.made.items() if i.parent is not None}
        return Split(own, rest, made, self.constants, [*removed, *gone])

    def _write(self, part: Part, left: tuple[int, ...]) -> HloInstruction:
        """Give the fusion the body of what is left; return it, or the instruction that is all that is left."""
        if part.single is not None:
            return self.make(part, left)
        self.made[self.fusion] = left
        return write_back(part.rewriter, self.fusion, self.edits)

    def _outputs(
        self,
        rest: HloInstruction,
        left: Sequence[int],
        readers: dict[int, HloInstruction],
        removed: list[HloInstruction],
    ) -> dict[int, HloInstruction]:
        """Return the instruction to read for each value that is left."""
        if len(left) == 1:
            former = readers.get(left[0])
            if former is not None and former is not self.fusion:
                self.edits.replace_uses(former, rest)
                self.edits.remove(former)
                removed.append(former)
            return {left[0]: rest}
        found: dict[int, HloInstruction] = {}
        for n, v in enumerate(left):
            former = readers.get(v)
            if former is not None:
                self.edits.set_attributes(former, index=n)
            found[v] = former or self.edits.add(Opcode.GET_TUPLE_ELEMENT, [rest], attributes={"index": n})
        return found

    def _own(
        self, pair: Pair, outer: dict[HloInstruction, HloInstruction], outputs: dict[int, HloInstruction]
    ) -> HloInstruction:
        operands = []
        for o, v in self.anatomy.pairs[pair]:
            if is_inlined_constant(o):
                operands.append(self.constant(o, v))
            else:
                operands.append(outer[o] if o.opcode is Opcode.PARAMETER else outputs[v])
        own = self.edits.add_clone(pair[0], operands, self.nodes.origins.name(self.cut))
        self.made[own] = (self.cut,)
        return own
