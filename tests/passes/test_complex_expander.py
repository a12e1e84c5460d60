"""Complex expansion against the interpreter, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes import make_pass
from compiler.passes.expanders.complex_expander import ComplexExpander
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from tests.oracle import run_xla

ROTARY = """
HloModule rotary
ENTRY main {
  x = f32[3,4] parameter(0)
  y = f32[3,4] parameter(1)
  angles = f32[7,4] parameter(2)
  rows = s32[3,1] parameter(3)
  i = c64[] constant((0, 1))
  is = c64[3,4] broadcast(i), dimensions={}
  re = c64[3,4] convert(x)
  im = c64[3,4] convert(y)
  turned = c64[3,4] multiply(im, is)
  z = c64[3,4] add(re, turned)
  c = f32[7,4] cosine(angles)
  s = f32[7,4] sine(angles)
  table = c64[7,4] complex(c, s)
  taken = c64[3,4] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,4}
  w = c64[3,4] multiply(z, taken)
  a = f32[3,4] real(w)
  b = f32[3,4] imag(w)
  ROOT t = (f32[3,4], f32[3,4]) tuple(a, b)
}
"""

LOOP = """
HloModule loop
body {
  p = (s32[], c64[4], c64[4]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  z = c64[4] get-tuple-element(p), index=1
  w = c64[4] get-tuple-element(p), index=2
  one = s32[] constant(1)
  m = s32[] add(n, one)
  zw = c64[4] multiply(z, w)
  r = c64[4] reverse(zw), dimensions={0}
  ROOT t = (s32[], c64[4], c64[4]) tuple(m, r, w)
}
condition {
  p = (s32[], c64[4], c64[4]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  k = s32[] parameter_limit
  ROOT c = pred[] compare(n, k), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  zero = s32[] constant(0)
  z = c64[4] complex(x, y)
  w = c64[4] complex(y, x)
  start = (s32[], c64[4], c64[4]) tuple(zero, z, w)
  l = (s32[], c64[4], c64[4]) while(start), condition=condition, body=body
  g = c64[4] get-tuple-element(l), index=1
  a = f32[4] real(g)
  b = f32[4] imag(g)
  ROOT t = (f32[4], f32[4]) tuple(a, b)
}
""".replace("parameter_limit", "constant(30)")

RESULT = """
HloModule result
ENTRY main {
  z = c64[2,3] parameter(0)
  f = f32[2,3] parameter(1)
  c = c64[2,3] convert(f)
  a = c64[2,3] multiply(z, c)
  k = c64[] constant((2, -1))
  ks = c64[2,3] broadcast(k), dimensions={}
  b = c64[2,3] subtract(a, ks)
  d = c64[2,3] multiply(b, b)
  t = c64[3,2] transpose(d), dimensions={1,0}
  u = c64[3,2] negate(t)
  ROOT r = c64[6] reshape(u)
}
"""


def arrays(text: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = []
    for shape in parse(text).parameter_shapes:
        values = rng.normal(size=shape.dimensions)
        if shape.dtype.kind == "c":
            found.append((values + 1j * rng.normal(size=shape.dimensions)).astype(shape.dtype))
        elif shape.dtype.kind == "i":
            found.append(rng.integers(0, 7, shape.dimensions).astype(shape.dtype))
        else:
            found.append((0.5 * values).astype(shape.dtype))
    return found


@pytest.mark.parametrize("text", [ROTARY, LOOP, RESULT])
def test_the_values_stay_the_same(text: str) -> None:
    module, args = parse(text), arrays(text)
    wanted = evaluate(module, args)
    assert make_pass("complex-expander").run(module)
    for found, value in zip(evaluate(module, args), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-6)
    for found, value in zip(compile(text)(*args), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", [ROTARY, LOOP])
def test_nothing_complex_is_left_to_the_interpreter(text: str) -> None:
    assert not [t for t in compile(text).thunks if isinstance(t, HostThunk)]


def test_the_result_of_a_program_is_joined_once() -> None:
    module = parse(RESULT)
    make_pass("complex-expander").run(module)
    opcodes = [i.opcode for i in module.entry.instructions if i.shape.element_type.text == "c64"]
    assert sorted(o.text for o in opcodes) == ["complex", "parameter"]


BETWEEN = """
HloModule fft
ENTRY main {
  z = c64[131] parameter(0)
  f = c64[131] fft(z), fft_type=FFT, fft_length={131}
  p = c64[131] multiply(f, f)
  ROOT g = c64[131] fft(p), fft_type=IFFT, fft_length={131}
}
"""


def test_a_single_op_between_others_stays() -> None:
    module = parse(BETWEEN.replace("c64", "c128"))
    assert not make_pass("complex-expander").run(module)
    assert Opcode.COMPLEX not in [i.opcode for i in module.entry.instructions]


def test_arithmetic_between_library_ops_is_a_kernel_that_holds_both_parts() -> None:
    exe, args = compile(BETWEEN), arrays(BETWEEN)
    assert [type(t).__name__ for t in exe.thunks] == ["HostThunk", "KernelThunk", "HostThunk"]
    np.testing.assert_allclose(exe(*args)[0], evaluate(parse(BETWEEN), args)[0], rtol=1e-4)


ESCAPE = """
HloModule escape
body {
  p = (s32[], c64[5], s32[5]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  z = c64[5] get-tuple-element(p), index=1
  counts = s32[5] get-tuple-element(p), index=2
  one = s32[] constant(1)
  m = s32[] add(n, one)
  size = f32[5] abs(z)
  two = f32[] constant(2)
  twos = f32[5] broadcast(two), dimensions={}
  inside = pred[5] compare(size, twos), direction=LT
  zz = c64[5] multiply(z, z)
  w = c64[5] add(zz, z)
  next = c64[5] select(inside, w, z)
  more = s32[5] convert(inside)
  sum = s32[5] add(counts, more)
  ROOT t = (s32[], c64[5], s32[5]) tuple(m, next, sum)
}
condition {
  p = (s32[], c64[5], s32[5]) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  k = s32[] constant(9)
  ROOT c = pred[] compare(n, k), direction=LT
}
ENTRY main {
  x = f32[5] parameter(0)
  y = f32[5] parameter(1)
  z = c64[5] complex(x, y)
  zero = s32[] constant(0)
  zeros = s32[5] broadcast(zero), dimensions={}
  init = (s32[], c64[5], s32[5]) tuple(zero, z, zeros)
  loop = (s32[], c64[5], s32[5]) while(init), condition=condition, body=body
  ROOT counts = s32[5] get-tuple-element(loop), index=2
}
"""


def test_loops_over_complex_numbers_compare_absolute_values_in_kernels() -> None:
    x = np.array([-0.1, 0.3, 2.5, -1.0, 0.0], np.float32)
    y = np.array([0.2, 0.5, 0.0, -0.3, 0.0], np.float32)
    exe = compile(parse(ESCAPE))
    assert not any(isinstance(t, HostThunk) for t in exe.thunks)
    np.testing.assert_array_equal(exe(x, y)[0], evaluate(parse(ESCAPE), [x, y])[0])


def test_absolute_values_of_special_numbers() -> None:
    text = "ENTRY e { x = f32[100] parameter(0) y = f32[100] parameter(1) z = c64[100] complex(x, y) "
    text += "ROOT a = f32[100] abs(z) }"
    numbers = np.array([0.0, -0.0, 1.0, -3.0, 1e-40, 3e38, np.inf, -np.inf, np.nan, 1e-20], np.float32)
    x, y = (part.ravel().copy() for part in np.meshgrid(numbers, numbers))
    exe = compile(parse(text))
    assert not any(isinstance(t, HostThunk) for t in exe.thunks)
    np.testing.assert_allclose(exe(x, y)[0], np.hypot(x, y), rtol=1e-6)


SINGLE_OPS = """
HloModule single
add { a = c64[] parameter(0) b = c64[] parameter(1) ROOT c = c64[] add(a, b) }
ENTRY main {
  x = c64[5,7] parameter(0)
  y = c64[7,6] parameter(1)
  m = c64[5,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  i = c64[] constant((2, -1))
  s = c64[7] reduce(x, i), dimensions={0}, to_apply=add
  is = c64[5,7] broadcast(i), dimensions={}
  q = c64[5,7] divide(is, x)
  e = pred[5,7] compare(x, is), direction=EQ
  n = pred[5,7] compare(x, is), direction=NE
  a = f32[5,6] abs(m)
  ROOT t = (c64[5,6], c64[7], c64[5,7], pred[5,7], pred[5,7], f32[5,6]) tuple(m, s, q, e, n, a)
}
"""


def test_quotients_sums_products_and_comparisons_are_computed_in_kernels() -> None:
    args = arrays(SINGLE_OPS)
    args[0][0, 0] = 2 - 1j
    exe = compile(SINGLE_OPS)
    assert not [t for t in exe.thunks if isinstance(t, HostThunk)]
    for found, value in zip(exe(*args), evaluate(parse(SINGLE_OPS), args), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("types", ["c64 c64 f32", "c64 c64 f64", "c64 c64 s32", "c128 c128 f64", "c64 c128 f64"])
@pytest.mark.parametrize("k", [1, 6])
def test_products_of_complex_numbers_with_a_real_result_are_real_parts(types: str, k: int) -> None:
    lhs, rhs, result = types.split()
    text = f"""HloModule m
    ENTRY e {{
      x = {lhs}[5,{k}] parameter(0)
      y = {rhs}[{k},3] parameter(1)
      ROOT m = {result}[5,3] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    }}"""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, (*s, 2)) @ [1, 1j] for s in ((5, k), (k, 3)))
    args = [v.astype(p.shape.dtype) for v, p in zip((x, y), parse(text).entry.parameters, strict=True)]
    for (found,) in (run_xla(text, args), evaluate(parse(text), args), compile(text)(*args)):
        np.testing.assert_array_equal(found, (x @ y).real)


def test_quotients_of_special_numbers() -> None:
    text = "ENTRY e { x = c64[4096] parameter(0) y = c64[4096] parameter(1) ROOT q = c64[4096] divide(x, y) }"
    parts = np.array([0.0, 1.0, -3.0, 1e-30, 2e30, np.inf, -np.inf, np.nan], np.float32)
    each = np.stack(np.meshgrid(parts, parts), axis=-1).reshape(-1, 2).copy().view(np.complex64).ravel()
    x, y = (z.ravel().copy() for z in np.meshgrid(each, each))
    (found,) = compile(text)(x, y)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(parse(text), [x, y])
    for a, b in ((found.real, wanted.real), (found.imag, wanted.imag)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


FUNCTIONS = (
    "exponential", "exponential-minus-one", "log", "log-plus-one", "sqrt", "rsqrt", "sine", "cosine", "tanh", "tan",
    "sign",
)  # fmt: skip


def _spread(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((n, 2)) * 10 ** rng.uniform(-4, 1, (n, 2))
    return parts.astype(np.float32).copy().view(np.complex64).ravel()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions_are_computed_in_kernels(name: str) -> None:
    text = f"ENTRY e {{ x = c64[2000] parameter(0) ROOT r = c64[2000] {name}(x) }}"
    x = _spread(2000, 0)
    exe = compile(text)
    assert not [t for t in exe.thunks if isinstance(t, HostThunk)]
    # Against double precision.
    (wanted,) = evaluate(parse(text.replace("c64", "c128")), [x.astype(np.complex128)])
    (found,) = exe(x)
    assert (np.abs(found - wanted) <= 1e-6 * np.abs(wanted)).all()


def test_powers_are_computed_in_kernels() -> None:
    text = "ENTRY e { x = c64[2000] parameter(0) y = c64[2000] parameter(1) ROOT r = c64[2000] power(x, y) }"
    x, y = _spread(2000, 0), _spread(2000, 1)
    y[:3], x[1:4] = [0, 0, 2], [0, 1j, 0]
    y /= np.maximum(1, np.abs(y) / 4)
    exe = compile(text)
    assert not [t for t in exe.thunks if isinstance(t, HostThunk)]
    (wanted,) = evaluate(parse(text.replace("c64", "c128")), [x.astype(np.complex128), y.astype(np.complex128)])
    np.testing.assert_allclose(exe(x, y)[0], wanted, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["exponential", "log", "sqrt", "tanh", "tan", "sine", "cosine"])
def test_elementary_functions_of_special_numbers(name: str) -> None:
    parts = np.array([0.0, -0.0, 1.0, -3.0, 80.0, -89.0, 1e-30, 2e30, np.inf, -np.inf, np.nan], np.float32)
    x = np.stack(np.meshgrid(parts, parts), axis=-1).reshape(-1, 2).copy().view(np.complex64).ravel()
    if name in ("sine", "cosine"):
        x = x[np.isfinite(x.real) | np.isfinite(x.imag)]
    text = f"ENTRY e {{ x = c64[{x.size}] parameter(0) ROOT r = c64[{x.size}] {name}(x) }}"
    (found,) = compile(text)(x)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(parse(text), [x])
    for a, b in ((found.real, wanted.real), (found.imag, wanted.imag)):
        np.testing.assert_allclose(a, b, rtol=1e-4)


RECURRENCE = """HloModule m
body {
  s = (s32[], c64[], c64[40], c64[40]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  c = c64[] get-tuple-element(s), index=1
  out = c64[40] get-tuple-element(s), index=2
  x = c64[40] get-tuple-element(s), index=3
  half = c64[] constant((0.25, 0.5))
  turned = c64[] multiply(c, half)
  at = c64[1] dynamic-slice(x, n), dynamic_slice_sizes={1}
  v = c64[] reshape(at)
  next = c64[] add(turned, v)
  row = c64[1] reshape(next)
  stored = c64[40] dynamic-update-slice(out, row, n)
  one = s32[] constant(1)
  m = s32[] add(n, one)
  ROOT r = (s32[], c64[], c64[40], c64[40]) tuple(m, next, stored, x)
}
condition {
  s = (s32[], c64[], c64[40], c64[40]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  end = s32[] constant(40)
  ROOT r = pred[] compare(n, end), direction=LT
}
ENTRY e {
  x = c64[40] parameter(0)
  zero = s32[] constant(0)
  start = c64[] constant((1, 0))
  empty = c64[] constant((0, 0))
  out = c64[40] broadcast(empty), dimensions={}
  t = (s32[], c64[], c64[40], c64[40]) tuple(zero, start, out, x)
  w = (s32[], c64[], c64[40], c64[40]) while(t), condition=condition, body=body
  ROOT r = c64[40] get-tuple-element(w), index=2
}
"""


def test_a_loop_that_carries_complex_numbers_is_one_kernel_on_a_gpu() -> None:
    executable = compile(parse(RECURRENCE), backend="cuda")
    assert "loop-kernel" in {k.kind for k in executable.kernels}
    assert len(executable.kernels) <= 3
    again = compile(parse(RECURRENCE), backend="cuda", plan=executable.plan)
    assert [k.source for k in again.kernels] == [k.source for k in executable.kernels]
    if available():
        rng = np.random.default_rng(0)
        x = (rng.normal(size=40) + 1j * rng.normal(size=40)).astype(np.complex64)
        with stand_in.installed():
            (got,) = executable(x)
        np.testing.assert_allclose(got.get(), evaluate(parse(RECURRENCE), [x])[0], rtol=1e-5)


def test_programs_without_such_loops_are_left_alone() -> None:
    module = parse("HloModule m\nENTRY e { x = c64[4] parameter(0) ROOT y = c64[4] multiply(x, x) }")
    assert not ComplexExpander(in_loops=True).run(module)
    assert ComplexExpander().run(module)


COLLECTED = """
HloModule collected
before {
  a = c64[] parameter(0)
  b = c64[] parameter(1)
  m = s32[] parameter(2)
  n = s32[] parameter(3)
  x = f32[] real(a)
  y = f32[] real(b)
  u = f32[] imag(a)
  v = f32[] imag(b)
  first = pred[] compare(x, y), direction=LT, type=TOTALORDER
  equal = pred[] compare(a, b), direction=EQ
  same = pred[] compare(x, y), direction=EQ, type=TOTALORDER
  second = pred[] compare(u, v), direction=LT, type=TOTALORDER
  both = pred[] and(same, second)
  less = pred[] or(first, both)
  other = pred[] not(equal)
  ROOT r = pred[] and(less, other)
}
add { a = c64[] parameter(0) b = c64[] parameter(1) ROOT c = c64[] add(a, b) }
multiply { a = c64[] parameter(0) b = c64[] parameter(1) ROOT c = c64[] multiply(a, b) }
ENTRY e {
  x = c64[6,40] parameter(0)
  n = s32[6,40] parameter(1)
  rows = s32[6] parameter(2)
  zero = c64[] constant((0, 0))
  one = c64[] constant((1, 0))
  sorted = (c64[6,40], s32[6,40]) sort(x, n), dimensions={1}, is_stable=true, to_apply=before
  windows = c64[6,38] reduce-window(x, zero), window={size=1x3}, to_apply=add
  products = c64[40] reduce(x, one), dimensions={0}, to_apply=multiply
  empty = c64[4,40] broadcast(zero), dimensions={}
  sums = c64[4,40] scatter(empty, rows, x), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  ones = c64[4,40] broadcast(one), dimensions={}
  scaled = c64[4,40] scatter(ones, rows, x), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=multiply
  a = c64[6,40] get-tuple-element(sorted), index=0
  b = s32[6,40] get-tuple-element(sorted), index=1
  ROOT t = (c64[6,40], s32[6,40], c64[6,38], c64[40], c64[4,40], c64[4,40]) tuple(a, b, windows, products, sums, scaled)
}
"""


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_sorts_windows_products_and_scattered_values_are_computed_in_kernels(dtype: str) -> None:
    text = COLLECTED if dtype == "complex64" else COLLECTED.replace("c64", "c128").replace("f32", "f64")
    executable = compile(parse(text), backend="cpu")
    assert not [t for t in executable.thunks if isinstance(t, HostThunk)]
    rng = np.random.default_rng(0)
    x = (rng.integers(-2, 3, (6, 40)) + 1j * rng.integers(-2, 3, (6, 40))).astype(dtype)
    n, rows = np.arange(240, dtype=np.int32).reshape(6, 40), np.array([0, 3, 9, 3, -1, 0], np.int32)
    for got, want in zip(executable(x, n, rows), evaluate(parse(text), [x, n, rows]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_matrix_products_of_c128_are_computed_in_kernels_on_a_cpu() -> None:
    text = """HloModule m
    ENTRY e {
      x = c128[7,30] parameter(0)
      y = c128[30,9] parameter(1)
      p = c128[7,9] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT r = c128[7,9] exponential(p)
    }"""
    executable = compile(parse(text), backend="cpu")
    assert not [t for t in executable.thunks if isinstance(t, HostThunk)]
    rng = np.random.default_rng(0)
    shapes = ((7, 30), (30, 9))
    parts = [(rng.normal(size=s), rng.normal(size=s)) for s in shapes]
    x, y = (real + 1j * imaginary for real, imaginary in parts)
    np.testing.assert_allclose(executable(x, y)[0], evaluate(parse(text), [x, y])[0], rtol=1e-12)
