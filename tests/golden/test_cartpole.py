"""The default pipeline on the paper's naive Cartpole program, unedited.

The program keeps its state in a stacked array, calls functions, and generates Threefry random numbers in loops.
"""

import re
from pathlib import Path

from compiler.ir import HloModule, Opcode
from compiler.passes.infrastructure.base import op_count
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from env.suites import find_program, random_inputs
from tests.passes.programs import difference, reference, run

PROGRAM = find_program("cartpole_naive")
EXPECTED = Path(__file__).parent / "programs" / "cartpole_naive.hlo"


def optimised(text: str) -> HloModule:
    module = parse(text)
    default_pipeline().run(module)
    return module


def test_loop_body_is_elementwise_on_split_state() -> None:
    module = optimised(PROGRAM.text())

    (loop,) = (i for c in module.computations for i in c.instructions if i.opcode is Opcode.WHILE)
    body = loop.attributes["body"]
    opcodes = {i.opcode for i in body.instructions}
    assert not opcodes & {Opcode.CONCATENATE, Opcode.CALL, Opcode.WHILE, Opcode.CUSTOM_CALL, Opcode.CONDITIONAL}
    others = opcodes - {
        Opcode.PARAMETER, Opcode.GET_TUPLE_ELEMENT, Opcode.TUPLE, Opcode.CONSTANT, Opcode.BROADCAST, Opcode.IOTA,
        Opcode.RESHAPE, Opcode.SLICE, Opcode.DYNAMIC_SLICE, Opcode.BITCAST_CONVERT,
    }  # fmt: skip
    assert all(op.is_elementwise for op in others)
    carried = [str(s) for s in loop.shape.tuple_shapes]
    assert carried.count("f32[2048]") == 5  # four for the state, one for the rewards
    assert all(s.rank <= 1 for s in loop.shape.tuple_shapes if s.element_type.is_float)
    assert "u64" not in str(module)  # counters are narrowed to the bits that are used
    assert op_count(module) <= 411  # the op count of XLA:CPU, see results/passes/op_counts.md


def test_text(update_golden: bool) -> None:
    got = str(optimised(PROGRAM.text()))

    if update_golden:
        EXPECTED.parent.mkdir(exist_ok=True)
        EXPECTED.write_text(got, encoding="utf-8")
    assert got == EXPECTED.read_text(encoding="utf-8")


def test_same_results() -> None:
    # Few steps, because the dynamics are chaotic and the passes may change rounding.
    text = re.sub(r"\b200\b", "12", PROGRAM.text())
    before = parse(text)
    arguments = random_inputs(PROGRAM, [(s.dtype, s.dimensions) for s in before.parameter_shapes], seed=1)

    assert difference(run(optimised(text), arguments), reference(before, arguments)) is None
