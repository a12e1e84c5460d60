"""The least memory that evaluating a computation has to hold at once, known before anything is evaluated.

It is a bound from below, so that nothing is refused that might fit: values that may be views of others, or written over
others that are needed no longer, count as that; of branches the one that takes least.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import MemoryLimitError
from compiler.interpreter.function_builder import describe
from compiler.ir.callgraph import callees_first
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode, Trait
from compiler.support.memory import SMALL, check_memory, size_text

_FREE = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.AFTER_ALL, Opcode.PARTITION_ID, Opcode.REPLICA_ID})
"""Values that are there already, or take nothing."""
_VIEWS = frozenset(
    {
        Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.BITCAST, Opcode.BITCAST_CONVERT, Opcode.RESHAPE,
        Opcode.TRANSPOSE, Opcode.BROADCAST, Opcode.SLICE, Opcode.DYNAMIC_SLICE, Opcode.REVERSE, Opcode.COPY,
        Opcode.OPTIMIZATION_BARRIER, Opcode.ADD_DEPENDENCY, Opcode.DOMAIN, Opcode.CONVERT, Opcode.REAL, Opcode.ABS,
        Opcode.REDUCE_PRECISION, Opcode.CLAMP,
        *(op for op in Opcode if op.row.traits & (Trait.COLLECTIVE | Trait.ASYNC | Trait.HOST)),
    }
)  # fmt: skip
"""Ops whose result may share memory with an operand."""
_CALLS = frozenset({Opcode.CALL, Opcode.FUSION, Opcode.WHILE})


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that is held at once: bytes, and the largest value held then."""

    bytes: int = 0
    largest: HloInstruction | None = None


def check_footprint(module: HloModule) -> None:
    """Refuse to evaluate what cannot fit.

    Raises:
        MemoryLimitError: values of the program take more memory than there is.
    """
    order = callees_first([module.entry])
    if sum([i.shape.byte_size for c in order for i in c.instructions]) <= SMALL:
        return
    known: dict[HloComputation, Peak] = {}
    for c in order:
        known[c] = _peak(c, known)
    peak = known[module.entry]
    result = module.entry.root
    if result.shape.byte_size > peak.bytes:  # what is returned shares no memory with anything
        peak = Peak(result.shape.byte_size, result)
    try:
        check_memory(peak.bytes, f"evaluating module {module.name}")
    except MemoryLimitError as e:
        largest = peak.largest
        where = f"; {describe(largest)} alone takes {size_text(largest.shape.byte_size)}" if largest is not None else ""
        raise MemoryLimitError(f"{e}{where}") from None


def _peak(computation: HloComputation, known: dict[HloComputation, Peak]) -> Peak:
    order = [i for i in computation.post_order() if i.users or i.is_root]
    last_use: dict[HloInstruction, HloInstruction] = {}
    for i in order:
        last_use.update(dict.fromkeys(i.operands, i))
    held: dict[HloInstruction, int] = {}
    live, peak = 0, Peak()
    for i in order:
        released = [o for o in dict.fromkeys(i.operands) if last_use[o] is i]
        kept = sum([held.pop(o) for o in released])
        inner = _inner(i, known)
        live -= kept
        held[i] = _bytes_of(i, kept)
        most = live + max(held[i] + _extra(i), inner.bytes)
        if most > peak.bytes:
            peak = Peak(most, _largest(held, inner))
        live += held[i]
    return peak


def _extra(i: HloInstruction) -> int:
    """Memory that making a value takes besides: an iota counts in 64 bits first."""
    return 8 * _line(i) if i.opcode is Opcode.IOTA else 0


def _line(iota: HloInstruction) -> int:
    """Numbers that an iota counts."""
    dimension: int = iota.attributes["iota_dimension"]
    return iota.shape.dimensions[dimension]


def _bytes_of(i: HloInstruction, released: int) -> int:
    """Memory that is held for a value, given what its operands held that nobody else needs."""
    if i.opcode is Opcode.IOTA:  # one line of it, the rest are views
        return _line(i) * i.shape.element_type.byte_size
    if i.opcode in _FREE or i.opcode in _CALLS or i.opcode is Opcode.CONDITIONAL:
        return 0
    return min(released, i.shape.byte_size) if i.opcode in _VIEWS else i.shape.byte_size


def _inner(i: HloInstruction, known: dict[HloComputation, Peak]) -> Peak:
    """What is held within an instruction while it runs other computations."""
    called = i.called_computations()
    if not called:
        return Peak()
    if i.opcode in _CALLS:
        return max([known[c] for c in called], key=lambda p: p.bytes)
    if i.opcode is Opcode.CONDITIONAL:
        return min([known[c] for c in called], key=lambda p: p.bytes)
    return Peak()


def _largest(held: dict[HloInstruction, int], inner: Peak) -> HloInstruction | None:
    found = max(held, key=lambda i: (held[i], i.shape.byte_size), default=None)
    if inner.largest is not None and (found is None or inner.largest.shape.byte_size > held[found]):
        return inner.largest
    return found
