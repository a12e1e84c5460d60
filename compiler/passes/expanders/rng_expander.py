"""Random number expansion: lowers generators to integer arithmetic that can be fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.interpreter.custom_calls import THREEFRY_TARGETS
from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.ir.attributes import SliceDim
from compiler.passes.expanders.random_bits import philox_bits, threefry2x32, threefry_bits
from compiler.passes.infrastructure.base import InstructionPass
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class RngExpander(InstructionPass):
    """Expand `rng-bit-generator` (Threefry, Philox) and the Threefry custom calls of JAX to elementwise ops.

    Numbers and next state equal those of XLA. `rng` itself is kept; programs must not rely on its numbers.
    """

    name: ClassVar[str] = "rng-expander"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.RNG_BIT_GENERATOR, Opcode.CUSTOM_CALL})

    def visit(self, instruction: HloInstruction) -> bool:
        """Expand one instruction; return whether it changed."""
        computation = instruction.parent
        if computation is None or instruction.control_predecessors or instruction.is_dead:
            return False
        b = Builder(computation)
        new = (_generated if instruction.opcode is Opcode.RNG_BIT_GENERATOR else _called)(instruction, b)
        if new is None:
            computation.remove_dead(b.made)
            return False
        computation.replace(instruction, new)
        return True


def _called(i: HloInstruction, b: Builder) -> HloInstruction | None:
    if i.attributes["custom_call_target"] not in THREEFRY_TARGETS or len(i.operands) < 4:
        return None
    operands = i.operands[:4]
    first = operands[2].shape
    fits = all(o.shape.compatible(first) or o.shape.rank == 0 for o in operands) and len(i.shape.tuple_shapes) == 2
    if first.element_type is not PrimitiveType.U32 or not fits:
        return None
    return b.add(Opcode.TUPLE, *threefry2x32(operands[:2], operands[2:], b))


def _generated(i: HloInstruction, b: Builder) -> HloInstruction | None:
    state, bits_shape = i.operand(0), i.shape.tuple_shapes[1]
    algorithm = str(i.attributes["algorithm"])
    kind = bits_shape.element_type
    if state.shape.element_type is not PrimitiveType.U64 or state.shape.rank != 1 or not kind.is_integer:
        return None
    if kind.bits < 8 or bits_shape.num_elements == 0 or bits_shape.is_dynamic:
        return None
    words = [b.reshape(b.slice(state, [SliceDim(n, n + 1)]), ()) for n in range(state.shape.dimensions[0])]
    width = min(64, max(32, kind.bits))
    if algorithm == "rng_three_fry" and len(words) == 2:
        values, after = threefry_bits(words[0], words[1], bits_shape.dimensions, width, b)
        news = [words[0], after]
    elif algorithm in ("rng_philox", "rng_default") and len(words) in (2, 3):
        # Without a high word of the counter, XLA uses the key.
        high = words[2] if len(words) == 3 else words[0]
        values, counter = philox_bits(words[0], (words[1], high), bits_shape.dimensions, width, b)
        news = [words[0], *counter][: len(words)]
    else:
        return None
    new_state = b.concatenate([b.reshape(w, (1,)) for w in news], 0)
    return b.add(Opcode.TUPLE, new_state, b.convert(values, kind))
