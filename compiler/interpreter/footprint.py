"""A lower bound of the memory that evaluating a computation takes, computed before evaluation.

It is a lower bound, so that nothing is refused that might fit: a value that may be a view, or may overwrite a dead
value, is counted as such, and of the branches of a conditional the smallest counts.
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
"""Opcodes whose values exist already or take no memory."""
_VIEWS = frozenset(
    {
        Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.BITCAST, Opcode.BITCAST_CONVERT, Opcode.RESHAPE,
        Opcode.TRANSPOSE, Opcode.BROADCAST, Opcode.SLICE, Opcode.DYNAMIC_SLICE, Opcode.REVERSE, Opcode.COPY,
        Opcode.OPTIMIZATION_BARRIER, Opcode.ADD_DEPENDENCY, Opcode.DOMAIN, Opcode.CONVERT, Opcode.REAL, Opcode.ABS,
        Opcode.REDUCE_PRECISION, Opcode.CLAMP,
        *(op for op in Opcode if op.row.traits & (Trait.COLLECTIVE | Trait.ASYNC | Trait.HOST)),
    }
)  # fmt: skip
"""Opcodes whose result may share memory with an operand."""
_CALLS = frozenset({Opcode.CALL, Opcode.FUSION, Opcode.WHILE})


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest amount of memory in use at one time, in bytes, and the largest value then."""

    bytes: int = 0
    largest: HloInstruction | None = None


def check_footprint(module: HloModule) -> None:
    """Raise an error if evaluating a module cannot fit into memory.

    Raises:
        MemoryLimitError: the values of the program take more memory than is available.
    """
    order = callees_first([module.entry])
    if sum([i.shape.byte_size for c in order for i in c.instructions]) <= SMALL:
        return
    known: dict[HloComputation, Peak] = {}
    for c in order:
        known[c] = _peak(c, known)
    peak = known[module.entry]
    result = module.entry.root
    if result.shape.byte_size > peak.bytes:  # results are copied, so they share no memory
        peak = Peak(result.shape.byte_size, result)
    try:
        check_memory(peak.bytes, f"evaluating module {module.name}")
    except MemoryLimitError as e:
        largest = peak.largest
        where = f"; {describe(largest)} alone takes {size_text(largest.shape.byte_size)}" if largest is not None else ""
        raise MemoryLimitError(f"{e}{where}") from None


def _peak(computation: HloComputation, known: dict[HloComputation, Peak]) -> Peak:
    """Return the peak of a computation: a sweep over its live ranges in execution order."""
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
    """Return the temporary bytes of an op: an iota counts in 64 bits first."""
    return 8 * _line(i) if i.opcode is Opcode.IOTA else 0


def _line(iota: HloInstruction) -> int:
    """Return how many numbers an iota counts."""
    dimension: int = iota.attributes["iota_dimension"]
    return iota.shape.dimensions[dimension]


def _bytes_of(i: HloInstruction, released: int) -> int:
    """Return the bytes held by a value, given those of its operands that die here."""
    if i.opcode is Opcode.IOTA:  # one row; the rest is a broadcast view
        return _line(i) * i.shape.element_type.byte_size
    if i.opcode in _FREE or i.opcode in _CALLS or i.opcode is Opcode.CONDITIONAL:
        return 0
    return min(released, i.shape.byte_size) if i.opcode in _VIEWS else i.shape.byte_size


def _inner(i: HloInstruction, known: dict[HloComputation, Peak]) -> Peak:
    """Return the peak within the computations that an instruction runs."""
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
