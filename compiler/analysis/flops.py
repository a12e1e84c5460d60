"""Counts the arithmetic operations of a module from its ops, independently of a device.

A dot counts 2 per result element and contracted element, an elementwise op the flops in the opcode table per element,
a reduction one application of its reducer per element, and a loop its body times the trip count, or once if that is
unknown. Data movement counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from compiler.analysis.trip_count import trip_count_of
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.attributes import ConvDimLabels, Window


def module_flops(module: HloModule) -> int:
    """Return the operations of one run of the entry; of a conditional, the most expensive branch counts."""
    return _Counter().computation(module.entry)


def instruction_flops(instruction: HloInstruction) -> int:
    """Return the operations of one execution of an instruction."""
    return _Counter().instruction(instruction)


_SPECIAL = frozenset(
    {
        Opcode.WHILE, Opcode.CONDITIONAL, Opcode.CALL, Opcode.FUSION, Opcode.DOT, Opcode.CONVOLUTION, Opcode.REDUCE,
        Opcode.REDUCE_WINDOW, Opcode.MAP, Opcode.SCATTER,
    }
)  # fmt: skip
"""Opcodes whose operations do not follow from the number of result elements only."""


class _Counter:
    def __init__(self) -> None:
        self._known: dict[HloComputation, int] = {}
        self._stamps: dict[HloComputation, int] = {}

    def computation(self, c: HloComputation) -> int:
        found = self._known.get(c)
        if found is None:
            found = c.noted(_Counter, self._stamps, lambda: sum([self.instruction(i) for i in c.instructions]))
            self._known[c] = found
        return found

    def instruction(self, i: HloInstruction) -> int:
        op = i.opcode
        if op not in _SPECIAL:
            return op.row.flops * i.shape.num_elements if op.is_elementwise else 0
        called = i.called_computations()
        if op is Opcode.WHILE:
            return (trip_count_of(i) or 1) * sum(self.computation(c) for c in called)
        if op is Opcode.CONDITIONAL:
            return max(self.computation(c) for c in called)
        if op in (Opcode.CALL, Opcode.FUSION):
            return sum(self.computation(c) for c in called)
        if op is Opcode.DOT:
            contracted = i.attr("lhs_contracting_dims", ())
            return 2 * i.shape.num_elements * _product(i.operands[0].shape.dimensions[d] for d in contracted)
        if op is Opcode.CONVOLUTION:
            return _convolution(i)
        return self._applied(i)

    def _applied(self, i: HloInstruction) -> int:
        each: int = self.computation(i.attributes["to_apply"])
        if i.opcode is Opcode.MAP:
            return each * i.shape.num_elements
        if i.opcode is Opcode.SCATTER:
            return each * i.operands[-1].shape.num_elements
        if i.opcode is Opcode.REDUCE:
            return each * i.operands[0].shape.num_elements
        window = _product(d.size for d in i.attr("window", Window()).dims)
        return each * window * next(i.shape.leaves()).num_elements


def _convolution(i: HloInstruction) -> int:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    kernel = i.operands[1].shape
    taps = _product(n for n, c in zip(kernel.dimensions, labels.rhs, strict=True) if c != "o")
    return 2 * i.shape.num_elements * taps


def _product(sizes: Iterable[int]) -> int:
    return math.prod(sizes)
