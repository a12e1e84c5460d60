"""Computations in short rows that are transposed."""

import numpy as np
import pytest

from compiler import parse
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import verify
from compiler.passes.movement.short_rows import ShortRows

SPLINE = """HloModule m
ENTRY e {
  x = f32[6,32] parameter(0)
  g = f32[5] parameter(1)
  c = f32[] constant(0.5)
  xs = f32[6,32,5] broadcast(x), dimensions={0,1}
  gs = f32[6,32,5] broadcast(g), dimensions={2}
  cs = f32[6,32,4] broadcast(c), dimensions={}
  over = pred[6,32,5] compare(xs, gs), direction=GE
  b = f32[6,32,5] convert(over)
  low = f32[6,32,4] slice(b), slice={[0:6], [0:32], [0:4]}
  high = f32[6,32,4] slice(b), slice={[0:6], [0:32], [1:5]}
  d = f32[6,32,4] subtract(low, high)
  s = f32[6,32,4] multiply(d, cs)
  ROOT t = f32[6,4,32] transpose(s), dimensions={0,2,1}
}"""
ARGUMENT = SPLINE.replace("gs = f32[6,32,5] broadcast(g), dimensions={2}", "gs = f32[6,32,5] parameter(2)")
RESULT = "ROOT t = f32[6,4,32] transpose(s), dimensions={0,2,1}"
SHARED = SPLINE.replace(RESULT, f"{RESULT[5:]}\n  ROOT r = (f32[6,4,32], f32[6,32,4]) tuple(t, s)")
NARROW = SPLINE.replace("32", "9").replace("f9", "f32")


def _run(text: str) -> tuple[HloModule, HloModule, bool]:
    before, module = parse(text), parse(text)
    changed = ShortRows().run(module)
    module.entry.remove_dead()
    verify(module)
    return before, module, changed


def test_rows_of_splines_become_long() -> None:
    before, module, changed = _run(SPLINE)
    assert changed
    assert not [i for i in module.entry.post_order() if i.opcode is Opcode.TRANSPOSE]
    assert module.entry.root.shape.dimensions == (6, 4, 32)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in before.parameter_shapes]
    np.testing.assert_array_equal(evaluate(module, args)[0], evaluate(before, args)[0])


def test_the_operand_of_a_broadcast_is_transposed_if_its_dimensions_change_order() -> None:
    text = SPLINE.replace("g = f32[5] parameter(1)", "g = f32[32,5] parameter(1)").replace(
        "broadcast(g), dimensions={2}", "broadcast(g), dimensions={1,2}"
    )
    before, module, changed = _run(text)
    assert changed
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in before.parameter_shapes]
    np.testing.assert_array_equal(evaluate(module, args)[0], evaluate(before, args)[0])


@pytest.mark.parametrize("text", [ARGUMENT, SHARED, NARROW], ids=["argument", "shared", "narrow"])
def test_others_stay(text: str) -> None:
    before, module, changed = _run(text)
    assert not changed
    assert str(module) == str(before)
