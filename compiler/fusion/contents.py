"""What nodes compute, as sets of original values, so that the kernel of a possible fusion is known without making it.

As long as a fusion computes each original value once, and reads none that it computes, its body follows from the set of
the values inside and from its outputs. Then fusing two nodes is a union of sets, and facts of the kernel are found from
the instructions as they were before fusion. Such facts are kept by content: the same kernel is often reached by other
actions. For all other fusions there is no content, and their bodies are made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from compiler.analysis.kernel_summary import KernelSummary, summarize_instructions
from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.analysis.structure import StructuralIds, is_commutative
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.buildability import certainly_built
from compiler.fusion.nodes import Nodes
from compiler.fusion.rewriting import is_inlined_constant, is_multi_output
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.support.bounded_table import BoundedTable

MAX_VALUES = 16_384
"""Largest number of values of a sequence whose nodes have contents."""
MAX_BITS = 1 << 29
"""Bits of the contents of nodes that are kept, of which each has as many as the sequence has values."""
MAX_KERNELS = 10_000
"""Number of kernels whose facts are kept."""
MAX_USES = 50_000
"""Number of uses of inputs in the summaries that are kept."""
MAX_NODES = 50_000
"""Number of nodes whose contents are kept, if they are not too long."""
_NOT_INSIDE = TEMPLATE_OPS | {Opcode.FUSION, Opcode.DYNAMIC_UPDATE_SLICE, Opcode.PARAMETER, Opcode.TUPLE}
"""Opcodes of values that have no content: an update in place depends on who reads what it updates, and the kernels of
templates are always made."""


class Content(NamedTuple):
    """The values that a kernel computes, as bits, without constants, and those that it yields, in order."""

    inside: int
    outputs: tuple[int, ...]


class _Kernel:
    """Facts of a kernel, found when they are asked for."""

    __slots__ = ("asked", "built", "summary")

    def __init__(self) -> None:
        self.asked = False
        self.built: bool | None = None
        self.summary: KernelSummary | None = None


class Contents:
    """The contents of the nodes of one sequence; forks share what is known.

    Args:
        computation: the sequence before fusion; it is copied.
        nodes: its nodes.
        target: what kernels are built for.
    """

    def __init__(self, computation: HloComputation, nodes: Nodes, target: BuildTarget) -> None:
        self._target = target
        clone = computation.clone()
        count = len(nodes.origins.values)
        originals: list[HloInstruction | None] = [None] * count
        self._reads, self._constants, self._excluded = [0] * count, [0] * count, 0
        classes: dict[Hashable, int] = {}
        class_of: dict[HloInstruction, int] = {}
        ids = StructuralIds()
        for i, values in nodes.values.items():
            own, v = clone.find(i.name), values[0]
            if own is None or len(values) > 1 or own.opcode in _NOT_INSIDE:
                self._exclude(values)
                continue
            originals[v] = own
            for o in i.operands:
                n = nodes.value_of(o)
                if not is_inlined_constant(o):
                    self._reads[v] |= 1 << n
                else:
                    self._constants[v] |= 1 << n
                    for inner in o.operands:
                        self._constants[v] |= 1 << nodes.value_of(inner)
        for i in clone.post_order():
            operands = [class_of[o] for o in i.operands]
            key = ids.key(i, tuple(sorted(operands) if is_commutative(i) else operands))
            class_of[i] = classes.setdefault(key, len(classes))
        met: dict[int, int] = {}
        for v, own in enumerate(originals):
            if own is not None and (first := met.setdefault(class_of[own], v)) != v:
                self._exclude((first, v))  # a fusion of both computes one of them
        self._originals = originals
        self._constant_values = {v for v, i in enumerate(originals) if i is not None and is_inlined_constant(i)}
        self._is_constant = sum(1 << v for v in self._constant_values)
        self._kernels: dict[Content, _Kernel] = {}
        self._uses = 0
        self._known: dict[int, int | None] = {}  # by revision
        self._most = min(MAX_NODES, MAX_BITS // max(1, count))
        self._read_by: BoundedTable[int, int] = BoundedTable(max(1, self._most // 2))  # by what is inside

    def _exclude(self, values: Sequence[int]) -> None:
        for v in values:
            self._excluded |= 1 << v

    # ---- contents

    def of(self, node: HloInstruction, nodes: Nodes) -> int | None:
        """Return the values inside a node as bits, without constants; None if it has no content."""
        revision = nodes.revision(node)
        try:
            return self._known[revision]
        except KeyError:
            pass
        found: int | None = None
        values = nodes.values[node]
        if node.opcode is not Opcode.FUSION and self._originals[values[0]] is not None:
            inside = (1 << values[0]) & ~self._is_constant
            found = None if (inside | self._constants[values[0]]) & self._excluded else inside
            if any(self._is_constant >> nodes.value_of(o) & 1 and not is_inlined_constant(o) for o in node.operands):
                found = None  # a fusion yields the constant
        self._remember(revision, found)
        return found

    def pair(self, kind: str, first: HloInstruction, second: HloInstruction, nodes: Nodes) -> Content | None:
        """Return the content of the kernel that computes two nodes, or None if it has none.

        Args:
            kind: see `trial_fusion`.
            first: the producer, or the earlier of two independent nodes.
            second: the consumer, or the later node.
            nodes: the nodes of the sequence.
        """
        a, b = self.of(first, nodes), self.of(second, nodes)
        if a is None or b is None:
            return None
        outputs, inside = nodes.values[second], a | b
        replaced = 0
        if kind != "sibling":
            for v in nodes.values[first]:
                replaced |= 1 << v
        read = self.reads(a) | self.reads(b)
        if read & inside & ~replaced:
            return None  # one reads what the other computes without yielding it
        if kind != "producer-consumer":
            outputs = (*outputs, *nodes.values[first])
        elif is_multi_output(first):
            inside = self._needed(outputs, inside)
        if inside == a | b and inside not in self._read_by:
            self._read_by[inside] = read & ~inside
        return Content(inside, outputs)

    def note(self, node: HloInstruction, inside: int | None, nodes: Nodes, has_lost: bool = True) -> None:
        """Note what a node computes that was made of others, as far as it needs it for what it yields.

        Args:
            node: the node.
            inside: values with all those that it computes; None if it has no content.
            nodes: the nodes of the sequence.
            has_lost: whether it may have lost outputs, and what only they needed.
        """
        if inside is not None:
            values = nodes.values[node]
            if any(v in self._constant_values for v in values):
                inside = None
            elif has_lost:
                inside = self._needed(values, inside)
        self._remember(nodes.revision(node), inside)

    def _remember(self, revision: int, inside: int | None) -> None:
        if len(self._known) >= self._most:
            self._known.clear()  # the fusions of now have no content any more
        self._known[revision] = inside

    def reads(self, inside: int) -> int:
        """Return the values that a kernel reads, as bits, without constants."""
        found = self._read_by.get(inside)
        if found is None:
            found = self._read_by[inside] = self._find_reads(inside)
        return found

    def _find_reads(self, inside: int) -> int:
        found, reads = 0, self._reads
        for v in _values(inside):
            found |= reads[v]
        return found & ~inside

    def _needed(self, outputs: Sequence[int], inside: int) -> int:
        found, work = 0, 0
        for v in outputs:
            work |= 1 << v
        work &= inside
        while work:
            v = work.bit_length() - 1
            found |= 1 << v
            work = (work ^ (1 << v)) | (self._reads[v] & inside & ~found)
        return found

    # ---- kernels

    def is_built(self, content: Content) -> bool | None:
        """Return whether there is a kernel with a content; None if that is not certain."""
        kernel = self._kernel(content)
        if not kernel.asked:
            kernel.asked = True
            inside, outputs = self._instructions(content)
            kernel.built = certainly_built(inside, outputs, self._target)
        return kernel.built

    def set_built(self, content: Content, built: bool) -> None:
        """Note whether there is a kernel with a content."""
        kernel = self._kernel(content)
        kernel.asked, kernel.built = True, built

    def summary(self, content: Content) -> KernelSummary:
        """Return the summary of the kernel with a content; its inputs are in order of their values."""
        kernel = self._kernel(content)
        if kernel.summary is None:
            kernel.summary = summarize_instructions(*self._instructions(content))
            self._uses += sum(len(i.contexts) for i in kernel.summary.inputs)
            if self._uses > MAX_USES:
                self._uses = 0
                self._kernels.clear()
        return kernel.summary

    def _kernel(self, content: Content) -> _Kernel:
        found = self._kernels.get(content)
        if found is None:
            if len(self._kernels) >= min(MAX_KERNELS, self._most):
                self._kernels.clear()
            found = self._kernels[content] = _Kernel()
        return found

    def _instructions(self, content: Content) -> tuple[list[HloInstruction], list[HloInstruction]]:
        """Return the instructions of a kernel before fusion, operands first, and its outputs."""
        values = set(_values(content.inside))
        values.update(content.outputs)
        for v in list(values):
            if self._constants[v]:
                values.update(_values(self._constants[v]))
        found: list[HloInstruction] = []
        for v in sorted(values):
            i = self._originals[v]
            assert i is not None  # noqa: S101 - contents have no other values
            found.append(i)
        outputs = [self._originals[v] for v in content.outputs]
        return found, [o for o in outputs if o is not None]


def _values(bits: int) -> list[int]:
    """Return the numbers of the bits that are set, in order."""
    if not bits:
        return []
    # Values of one kernel have numbers near each other, so most of the integer is zeros below them.
    start = (bits & -bits).bit_length() - 1
    rest, found = bits >> start, []
    while rest:
        low = rest & -rest
        found.append(start + low.bit_length() - 1)
        rest ^= low
    return found
