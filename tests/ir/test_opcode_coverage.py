from typing import Any

import numpy as np
import pytest

from compiler.codegen.buildability import FUSIBLE_STRUCTURE, is_emittable
from compiler.interpreter import EVALUATORS
from compiler.ir import HloComputation, Opcode, PrimitiveType, Shape, Trait
from compiler.ir.attributes import ATTRIBUTE_KINDS
from compiler.ir.unsupported import NOT_EMITTED, NOT_INTERPRETED

TYPES = [PrimitiveType.F32, PrimitiveType.S32, PrimitiveType.U32, PrimitiveType.PRED, PrimitiveType.C64]
ATTRIBUTES: dict[Opcode, dict[str, Any]] = {
    Opcode.COMPARE: {"direction": "LT"},
    Opcode.REDUCE_PRECISION: {"exponent_bits": 5, "mantissa_bits": 2},
}


def elementwise_forms(opcode: Any) -> Any:
    """Return the op on operands of each type that it accepts."""
    for t in TYPES:
        c = HloComputation("c")
        operands = [c.add_parameter(i, Shape(t, (4,))) for i in range(opcode.row.arity.least)]
        if opcode is Opcode.SELECT:
            operands[0] = c.add_parameter(9, Shape(PrimitiveType.PRED, (4,)))
        try:
            yield c.add(opcode, operands, Shape(PrimitiveType.F32, (4,)), attributes=ATTRIBUTES.get(opcode, {}))
        except ValueError:
            continue


def is_emitted(opcode: Any) -> Any:
    # A bitcast-convert between types of equal width is elementwise.
    elementwise = opcode.is_elementwise or opcode is Opcode.BITCAST_CONVERT
    return opcode in FUSIBLE_STRUCTURE or (elementwise and any(is_emittable(i) for i in elementwise_forms(opcode)))


def test_no_opcode_of_xla_is_missing() -> None:
    assert len({op.text for op in Opcode}) == len(Opcode)
    assert len([op for op in Opcode if not op.has(Trait.EXTENSION)]) >= 133


@pytest.mark.parametrize("opcode", Opcode, ids=lambda op: op.text)
def test_every_opcode_has_a_rule_an_evaluator_and_an_emitter_or_a_reason(opcode: Any) -> None:
    assert callable(opcode.row.rule)
    assert (opcode in EVALUATORS) is not (opcode in NOT_INTERPRETED)
    assert is_emitted(opcode) is not (opcode in NOT_EMITTED), NOT_EMITTED.get(opcode, "emitted by no kernel")


@pytest.mark.parametrize("opcode", Opcode, ids=lambda op: op.text)
def test_attributes_of_the_table_have_kinds(opcode: Any) -> None:
    names = {*opcode.row.required, *opcode.row.optional}
    assert names <= set(ATTRIBUTE_KINDS)
    assert not set(opcode.row.required) & set(opcode.row.optional)


def test_zero_elements_are_no_special_case() -> None:
    c = HloComputation("c")
    assert c.add_constant(np.zeros((0, 3), np.float32)).shape == Shape(PrimitiveType.F32, (0, 3))
