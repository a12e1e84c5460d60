"""Invariant matrices of loops that are multiplied by vectors."""

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse


def recurrence(weight: str, vector: str, dot: str) -> str:
    """Return a loop that multiplies a vector by a matrix five times."""
    state = f"(s32[], f32[{vector}], f32[{weight}])"
    return f"""HloModule m
body {{
  s = {state} parameter(0)
  n = s32[] get-tuple-element(s), index=0
  v = f32[{vector}] get-tuple-element(s), index=1
  w = f32[{weight}] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(n, one)
  d = f32[{vector}] {dot}
  ROOT t = {state} tuple(next, d, w)
}}
condition {{
  s = {state} parameter(0)
  n = s32[] get-tuple-element(s), index=0
  last = s32[] constant(5)
  ROOT r = pred[] compare(n, last), direction=LT
}}
ENTRY main {{
  v = f32[{vector}] parameter(0)
  w = f32[{weight}] parameter(1)
  zero = s32[] constant(0)
  t = {state} tuple(zero, v, w)
  loop = {state} while(t), condition=condition, body=body
  ROOT r = f32[{vector}] get-tuple-element(loop), index=1
}}"""


LEFT = recurrence("4,4", "4", "dot(w, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
RIGHT = recurrence("4,4", "1,4", "dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}")
BATCH = recurrence(
    "3,4,4",
    "3,4",
    "dot(w, v), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
)
BY_ROWS = recurrence("4,4", "4", "dot(v, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}")
MATRICES = recurrence("4,4", "4,4", "dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}")


def random_arguments(text: str) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal(s.dimensions).astype(np.float32) for s in parse(text).entry.parameter_shapes]


@pytest.mark.parametrize("text", [LEFT, RIGHT, BATCH], ids=["left", "right", "batch"])
def test_rows_of_invariant_matrices_become_columns(text: str) -> None:
    module, arguments = parse(text), random_arguments(text)
    before = evaluate(parse(text), arguments)[0]

    assert make_pass("loop-vector-weights").run(module)

    assert check_module(module) == []
    assert any(i.opcode is Opcode.TRANSPOSE for i in module.entry.instructions)
    np.testing.assert_allclose(evaluate(module, arguments)[0], before, rtol=1e-5, atol=1e-5)
    assert not make_pass("loop-vector-weights").run(module)


@pytest.mark.parametrize("text", [BY_ROWS, MATRICES], ids=["by rows", "matrices"])
def test_other_products_are_kept(text: str) -> None:
    assert not make_pass("loop-vector-weights").run(parse(text))


def test_large_matrices_are_kept() -> None:
    assert not make_pass("loop-vector-weights{max_multiplications=15}").run(parse(LEFT))
    assert make_pass("loop-vector-weights{max_multiplications=16}").run(parse(LEFT))
