"""Delta debugging removes all instructions that are not needed for the failure."""

import numpy as np
import pytest

from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.text import parse
from experiments.delta_debugging import reduce_list, reduce_module
from tests.fuzz.random_modules import random_module


def uses(module: HloModule, *opcodes: Opcode) -> bool:
    present = {i.opcode for c in module.post_order() for i in c.instructions}
    return present.issuperset(opcodes)


@pytest.mark.parametrize("seed", range(5))
def test_reduction_to_one_opcode(seed: int) -> None:
    module = random_module(np.random.default_rng(seed), 40)
    text = str(module)
    elementwise = [i for i in module.entry.instructions if i.opcode.is_elementwise and len(i.operands) == 2]
    wanted = elementwise[len(elementwise) // 2].opcode
    small = reduce_module(module, lambda m: uses(m, wanted))
    assert uses(small, wanted)
    assert check_module(small) == []
    assert len(small.entry) <= 3
    assert str(module) == text


def test_reduction_to_a_pair_of_opcodes() -> None:
    module = parse("""
ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  a = f32[8] add(x, y)
  b = f32[8] tanh(a)
  c = f32[8] multiply(b, x)
  d = f32[8] exponential(c)
  e = f32[8] subtract(d, y)
  ROOT t = (f32[8], f32[8]) tuple(e, b)
}
""")
    small = reduce_module(module, lambda m: uses(m, Opcode.TANH, Opcode.EXPONENTIAL))
    assert {i.opcode for i in small.entry.instructions} == {Opcode.TANH, Opcode.EXPONENTIAL, Opcode.PARAMETER}


def test_a_module_that_does_not_fail_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        reduce_module(parse("ENTRY m { ROOT x = f32[] parameter(0) }"), lambda m: False)


def test_reduction_of_a_list() -> None:
    assert reduce_list(range(60), lambda xs: 7 in xs and 41 in xs) == [7, 41]
