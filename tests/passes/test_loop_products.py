"""Loops with products of few elements in programs for a GPU."""

import numpy as np

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.passes import make_pass

ROTATION = """HloModule m
body {
  s = (s32[], f32[3], f32[50,3], f32[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  v = f32[3] get-tuple-element(s), index=1
  out = f32[50,3] get-tuple-element(s), index=2
  w = f32[3,3] get-tuple-element(s), index=3
  one = s32[] constant(1)
  next = s32[] add(n, one)
  d = f32[3] dot(w, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  p = f32[3] tanh(d)
  row = f32[1,3] reshape(p)
  zero = s32[] constant(0)
  stored = f32[50,3] dynamic-update-slice(out, row, n, zero)
  ROOT t = (s32[], f32[3], f32[50,3], f32[3,3]) tuple(next, p, stored, w)
}
condition {
  s = (s32[], f32[3], f32[50,3], f32[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  last = s32[] constant(50)
  ROOT r = pred[] compare(n, last), direction=LT
}
ENTRY main {
  v = f32[3] parameter(0)
  w = f32[3,3] parameter(1)
  zero = s32[] constant(0)
  none = f32[] constant(0)
  out = f32[50,3] broadcast(none), dimensions={}
  t = (s32[], f32[3], f32[50,3], f32[3,3]) tuple(zero, v, out, w)
  loop = (s32[], f32[3], f32[50,3], f32[3,3]) while(t), condition=condition, body=body
  ROOT r = f32[50,3] get-tuple-element(loop), index=2
}
"""


def test_a_loop_with_a_small_product_is_one_kernel_on_a_gpu() -> None:
    executable = compile(parse(ROTATION), backend="cuda")
    assert "loop-kernel" in {k.kind for k in executable.kernels}
    assert len(executable.kernels) <= 2
    if available():
        rng = np.random.default_rng(0)
        args = [rng.normal(size=3).astype(np.float32), rng.normal(size=(3, 3)).astype(np.float32)]
        with stand_in.installed():
            (got,) = executable(*args)
        np.testing.assert_allclose(got.get(), evaluate(parse(ROTATION), args)[0], rtol=1e-4, atol=1e-5)


def test_large_products_stay() -> None:
    text = ROTATION.replace("f32[3,3]", "f32[30,30]").replace("f32[50,3]", "f32[50,30]").replace("f32[3]", "f32[30]")
    assert not make_pass("loop-products").run(parse(text.replace("f32[1,3]", "f32[1,30]")))
    assert make_pass("loop-products").run(parse(ROTATION))


MATRICES = """HloModule m
body {
  s = (s32[], f32[70,3,3], f32[9,70,3,3], f32[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  p = f32[70,3,3] get-tuple-element(s), index=1
  x = f32[9,70,3,3] get-tuple-element(s), index=2
  w = f32[3,3] get-tuple-element(s), index=3
  one = s32[] constant(1)
  next = s32[] add(n, one)
  zero = s32[] constant(0)
  r = f32[1,70,3,3] dynamic-slice(x, n, zero, zero, zero), dynamic_slice_sizes={1,70,3,3}
  m = f32[70,3,3] reshape(r)
  q = f32[70,3,3] dot(p, m), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
  u = f32[70,3,3] dot(q, w), lhs_contracting_dims={2}, rhs_contracting_dims={1}
  ROOT t = (s32[], f32[70,3,3], f32[9,70,3,3], f32[3,3]) tuple(next, u, x, w)
}
condition {
  s = (s32[], f32[70,3,3], f32[9,70,3,3], f32[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  last = s32[] constant(9)
  ROOT r = pred[] compare(n, last), direction=LT
}
ENTRY main {
  p = f32[70,3,3] parameter(0)
  x = f32[9,70,3,3] parameter(1)
  w = f32[3,3] parameter(2)
  zero = s32[] constant(0)
  t = (s32[], f32[70,3,3], f32[9,70,3,3], f32[3,3]) tuple(zero, p, x, w)
  loop = (s32[], f32[70,3,3], f32[9,70,3,3], f32[3,3]) while(t), condition=condition, body=body
  ROOT r = f32[70,3,3] get-tuple-element(loop), index=1
}
"""


def test_a_loop_of_many_small_products_is_one_kernel_on_a_gpu() -> None:
    executable = compile(parse(MATRICES), backend="cuda")
    assert [k.kind for k in executable.kernels] == ["loop-kernel"]
    if available():
        rng = np.random.default_rng(0)
        args = [rng.normal(size=s).astype(np.float32) for s in ((70, 3, 3), (9, 70, 3, 3), (3, 3))]
        with stand_in.installed():
            (got,) = executable(*args)
        np.testing.assert_allclose(got.get(), evaluate(parse(MATRICES), args)[0], rtol=1e-4, atol=1e-3)


def test_products_of_many_long_rows_stay() -> None:
    text = MATRICES.replace("3,3]", "12,12]").replace("3,3}", "12,12}")
    assert not make_pass("loop-products").run(parse(text))
