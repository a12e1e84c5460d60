"""Scatters of one element per row into a constant array, as selections for a GPU."""

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes.movement.scatter_select import ScatterSelect
from compiler.runtime.thunks import KernelThunk

ADD = "f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"
SET = "f { a = f32[] parameter(0) ROOT b = f32[] parameter(1) }"
LARGER = "f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(b, a) }"
COUNTING = "c = s32[6,1] iota(), iota_dimension=0 i = s32[6,2] concatenate(c, y), dimensions={1}"

# by name: reducer, value, shape of the operand, of the indices, of the updates, attributes
FOUND = {
    "batch": (
        ADD, "0", "f32[6,9]", "s32[6,1]", "f32[6]",
        "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=1",
    ),
    "maximum of batches in another order": (
        LARGER, "-0.5", "f32[9,6,4]", "s32[4,6]", "f32[4,6]",
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, input_batching_dims={1,2}, "
        "scatter_indices_batching_dims={1,0}, index_vector_dim=2",
    ),
    "rows": (
        SET, "2", "f32[9,5]", "s32[1]", "f32[5]",
        "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0",
    ),
    "a window of one element": (
        ADD, "1", "f32[5,9]", "s32[1,1]", "f32[1,5,1]",
        "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={1}, index_vector_dim=1",
    ),
    "small indices": (
        ADD, "0", "f32[6,300]", "s8[6,1]", "f32[6]",
        "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=1",
    ),
}  # fmt: skip
KEPT = {
    "two per row": (
        ADD, "0", "f32[6,9]", "s32[6,2,1]", "f32[6,2]",
        "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=2",
    ),
    "a part of a row": (
        ADD, "0", "f32[9,5]", "s32[1]", "f32[3]",
        "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0",
    ),
    "elements anywhere": (
        ADD, "0", "f32[6,9]", "s32[6,2]", "f32[6]",
        "inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1",
    ),
}  # fmt: skip


def _program(function: str, value: str, operand: str, indices: str, updates: str, attributes: str) -> str:
    windows = "" if "update_window_dims" in attributes else "update_window_dims={}, "
    return f"""HloModule m
    {function}
    ENTRY e {{
      i = {indices} parameter(0)
      u = {updates} parameter(1)
      c = f32[] constant({value})
      x = {operand} broadcast(c), dimensions={{}}
      ROOT s = {operand} scatter(x, i, u), {windows}{attributes}, to_apply=f
    }}"""


def _check(text: str) -> bool:
    """Return whether the pass replaces the scatter of a program; its results must stay the same."""
    module, before = parse(text), parse(text)
    changed = ScatterSelect().run(module)
    rng = np.random.default_rng(1)
    for _ in range(4):
        args = [
            rng.normal(size=s.dimensions).astype(s.dtype)
            if s.dtype.kind == "f"
            else rng.integers(-2, 11, s.dimensions).astype(s.dtype)
            for s in module.parameter_shapes
        ]
        np.testing.assert_array_equal(evaluate(module, args)[0], evaluate(before, args)[0])
    assert changed != any(i.opcode is Opcode.SCATTER for i in module.entry.instructions)
    return changed


@pytest.mark.parametrize("name", FOUND)
def test_one_update_per_row_is_a_selection(name: str) -> None:
    assert _check(_program(*FOUND[name]))


@pytest.mark.parametrize("name", KEPT)
def test_other_scatters_stay(name: str) -> None:
    assert not _check(_program(*KEPT[name]))


@pytest.mark.parametrize("dims", ["0,1", "1,0"])
def test_row_numbers_among_the_indices_count(dims: str) -> None:
    size = "f32[6,9]" if dims == "0,1" else "f32[9,6]"
    text = f"""HloModule m
    {ADD}
    ENTRY e {{
      y = s32[6,1] parameter(0)
      u = f32[6] parameter(1)
      zero = f32[] constant(0)
      x = {size} broadcast(zero), dimensions={{}}
      {COUNTING}
      ROOT s = {size} scatter(x, i, u), update_window_dims={{}}, inserted_window_dims={{0,1}},
        scatter_dims_to_operand_dims={{{dims}}}, index_vector_dim=1, to_apply=f
    }}"""
    assert _check(text)


def test_repeated_row_numbers_do_not_count() -> None:
    text = f"""HloModule m
    {ADD}
    ENTRY e {{
      y = s32[6,1] parameter(0)
      u = f32[6] parameter(1)
      zero = f32[] constant(0)
      x = f32[6,9] broadcast(zero), dimensions={{}}
      n = s32[2,3] iota(), iota_dimension=1
      c = s32[6,1] reshape(n)
      i = s32[6,2] concatenate(c, y), dimensions={{1}}
      ROOT s = f32[6,9] scatter(x, i, u), update_window_dims={{}}, inserted_window_dims={{0,1}},
        scatter_dims_to_operand_dims={{0,1}}, index_vector_dim=1, to_apply=f
    }}"""
    assert not _check(text)


def test_an_array_that_is_not_constant_keeps_its_scatter() -> None:
    text = _program(*FOUND["batch"]).replace("f32[6,9] broadcast(c), dimensions={}", "f32[6,9] parameter(2)")
    assert not _check(text)


GRADIENT = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
ENTRY e {
  x = f32[300,500] parameter(0)
  y = s32[300,1] parameter(1)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[300] reduce(x, low), dimensions={1}, to_apply=max
  mb = f32[300,500] broadcast(m), dimensions={0}
  d = f32[300,500] subtract(x, mb)
  p = f32[300,500] exponential(d)
  s = f32[300] reduce(p, zero), dimensions={1}, to_apply=add
  zeros = f32[300,500] broadcast(zero), dimensions={}
  w = f32[] constant(-0.25)
  u = f32[300] broadcast(w), dimensions={}
  g = f32[300,500] scatter(zeros, y, u), update_window_dims={}, inserted_window_dims={1},
    scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1,
    to_apply=add
  t = f32[300] reduce(g, zero), dimensions={1}, to_apply=add
  q = f32[300] divide(t, s)
  qb = f32[300,500] broadcast(q), dimensions={0}
  r = f32[300,500] multiply(qb, p)
  ROOT o = f32[300,500] subtract(g, r)
}
"""


def test_the_gradient_of_a_loss_with_integer_labels_is_one_kernel() -> None:
    module = parse(GRADIENT)
    executable = compile(module, backend="cuda")
    assert [type(t) for t in executable.thunks] == [KernelThunk]
    assert executable.kernels[0].kind == "block"
    if not available():
        return
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(300, 500)).astype(np.float32), rng.integers(-5, 510, (300, 1)).astype(np.int32)]
    with stand_in.installed():
        (got,) = executable(*args)
    np.testing.assert_allclose(got.get(), evaluate(module, args)[0], rtol=1e-4, atol=1e-6)
