"""What XLA:CPU cannot check: errors, the registry of custom calls, queues, ops that the oracle does not run."""

from __future__ import annotations

from collections import deque
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jax import lax

from compiler import compile
from compiler.errors import ArgumentError, InterpreterError, UnsupportedError
from compiler.interpreter import (
    EVALUATORS,
    Context,
    evaluate,
    evaluate_computation,
    evaluate_op,
    register_custom_call,
)
from compiler.interpreter.custom_calls import CUSTOM_CALLS
from compiler.ir.opcodes import Opcode
from compiler.text import parse
from tests.oracle import run_xla
from tests.sweeps.case import binary_computation, module, simple, values

X = values("f32", (3,))


def run(text: str, *args: Any, context: Context | None = None) -> list[np.ndarray[Any, Any]]:
    return evaluate(parse(text), args, context)


def test_arguments_are_values_of_the_parameters_or_their_array_leaves() -> None:
    text = (
        "HloModule m\nENTRY e {\n  p = (f32[3], (s32[], token[])) parameter(0)\n  t = token[] parameter(1)\n"
        "  x = f32[3] parameter(2)\n  a = f32[3] get-tuple-element(p), index=0\n  ROOT r = f32[3] subtract(a, x)\n}\n"
    )
    wanted = X - 2 * X
    for args in ([(X, (np.int32(0), ())), (), 2 * X], [X, np.int32(0), 2 * X]):
        np.testing.assert_array_equal(run(text, *args)[0], wanted)
        np.testing.assert_array_equal(compile(text, backend="interpreter")(X, np.int32(0), 2 * X)[0], wanted)
    with pytest.raises(ArgumentError, match=r"the 3 arrays of all parameters \(f32\[3\], s32\[\], f32\[3\]\), got 2"):
        run(text, X, X)


def test_every_opcode_but_the_leaves_has_an_evaluator() -> None:
    assert set(Opcode) - EVALUATORS.keys() == {Opcode.PARAMETER, Opcode.CONSTANT}


def test_an_unknown_custom_call_is_named_with_the_way_to_register_it() -> None:
    text = simple("custom-call", "f32[3]", ["f32[3]"], 'custom_call_target="lapack_spotrf_fi"')
    with pytest.raises(UnsupportedError, match=r"%result .*'lapack_spotrf_fi'.*spotrf_ffi.*register_custom_call"):
        run(text, X)


def test_a_registered_custom_call_is_called() -> None:
    register_custom_call("twice", lambda instruction, operands: operands[0] * np.float32(2))  # type: ignore[operator]
    try:
        (found,) = run(simple("custom-call", "f32[3]", ["f32[3]"], 'custom_call_target="twice"'), X)
    finally:
        del CUSTOM_CALLS["twice"]
    np.testing.assert_array_equal(found, 2 * X)


def test_infeed_takes_from_the_queue_and_outfeed_gives() -> None:
    text = module("""t = token[] after-all()
    in = (f32[3], token[]) infeed(t)
    x = f32[3] get-tuple-element(in), index=0
    t2 = token[] get-tuple-element(in), index=1
    y = f32[3] negate(x)
    out = token[] outfeed(y, t2), outfeed_shape=f32[3]
    ROOT r = (f32[3], token[]) tuple(x, out)""")
    context = Context(infeed=deque([X]))
    (found,) = run(text, context=context)
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(np.asarray(context.outfeed[0]), -X)
    with pytest.raises(InterpreterError, match="the infeed is empty"):
        run(text)


def test_what_is_sent_is_received() -> None:
    text = module("""p = f32[3] parameter(0)
    t = token[] after-all()
    s = (f32[3], u32[], token[]) send(p, t), channel_id=1
    sd = token[] send-done(s), channel_id=1
    r = (f32[3], u32[], token[]) recv(sd), channel_id=1
    rd = (f32[3], token[]) recv-done(r), channel_id=1
    ROOT x = f32[3] get-tuple-element(rd), index=0""")
    np.testing.assert_array_equal(run(text, X)[0], X)


def test_asynchronous_forms_give_what_the_plain_ones_give() -> None:
    f = "f {\n  x = f32[3] parameter(0)\n  ROOT y = f32[3] negate(x)\n}\n"
    text = module(
        """p = f32[3] parameter(0)
        s = ((f32[3]), f32[3], s32[]) async-start(p), calls=f
        u = ((f32[3]), f32[3], s32[]) async-update(s)
        ROOT d = f32[3] async-done(u)""",
        f,
    )
    np.testing.assert_array_equal(run(text, X)[0], -X)
    text = module("""p = f32[3] parameter(0)
    s = (f32[3], f32[3], u32[]) copy-start(p)
    ROOT d = f32[3] copy-done(s)""")
    np.testing.assert_array_equal(run(text, X)[0], X)


@pytest.mark.parametrize("t", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "s4", "u4"])
def test_mulhi_is_the_upper_half_of_the_product(t: str) -> None:
    bits = int(t[1:])
    a, b = values(t, (50,), 1), values(t, (50,), 2)
    (found,) = run(simple("mulhi", f"{t}[50]", [f"{t}[50]"] * 2), a, b)
    assert [int(v) for v in found] == [(int(x) * int(y)) >> bits for x, y in zip(a, b, strict=True)]


def test_ragged_dot_multiplies_each_group_with_its_matrix() -> None:
    a, b, sizes = values("f32", (7, 3)), values("f32", (3, 3, 2)), np.array([2, 0, 4], np.int32)
    attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    (found,) = run(simple("ragged-dot", "f32[7,2]", ["f32[7,3]", "f32[3,3,2]", "s32[3]"], attributes), a, b, sizes)
    product: Any = lax.ragged_dot
    np.testing.assert_allclose(found, np.asarray(product(a, b, sizes)), rtol=1e-5, atol=1e-6)


def test_ragged_dot_over_a_ragged_contraction_gives_a_product_a_group() -> None:
    a, b, sizes = values("f32", (3, 7)), values("f32", (7, 2)), np.array([2, 0, 4], np.int32)
    attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={1}"
    (found,) = run(simple("ragged-dot", "f32[3,3,2]", ["f32[3,7]", "f32[7,2]", "s32[3]"], attributes), a, b, sizes)
    numbers: Any = lax.RaggedDotDimensionNumbers
    product: Any = lax.ragged_dot_general
    wanted = product(a, b, sizes, ragged_dot_dimension_numbers=numbers((((1,), (0,)), ((), ())), [1], []))
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-6)


def test_scaled_dot_spreads_scales_over_blocks() -> None:
    e4m3, e8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
    a, b = values("f8e4m3fn", (2, 4)), values("f8e4m3fn", (3, 4))
    sa, sb = np.array([[1, 2], [2, 4]]).astype(e8m0), np.array([[1], [2], [4]]).astype(e8m0)
    attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    operands = ["f8e4m3fn[2,4]", "f8e4m3fn[3,4]", "f8e8m0fnu[2,2]", "f8e8m0fnu[3,1]"]
    (found,) = run(simple("scaled-dot", "f32[2,3]", operands, attributes), a, b, sa, sb)
    assert a.dtype == e4m3
    left = a.astype(np.float32) * np.repeat(sa.astype(np.float32), 2, 1)
    right = b.astype(np.float32) * sb.astype(np.float32)
    np.testing.assert_allclose(found, left @ right.T, rtol=1e-6)


def test_random_numbers_depend_on_the_seed_alone() -> None:
    text = module("""a = f32[] constant(0)
    b = f32[] constant(1)
    ROOT r = f32[5000] rng(a, b), distribution=rng_normal""")
    first, again, other = (run(text, context=Context(seed=s))[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs(float(first.mean())) < 0.1
    assert abs(float(first.std()) - 1) < 0.1


def test_single_instructions_and_computations_evaluate_on_values() -> None:
    entry = parse(simple("add", "f32[3]", ["f32[3]"] * 2)).entry
    np.testing.assert_array_equal(np.asarray(evaluate_op(entry.root, [X, X])), 2 * X)
    np.testing.assert_array_equal(np.asarray(evaluate_computation(entry, [X, X])), 2 * X)


def test_scalar_results_are_arrays() -> None:
    text = module(
        """p = f32[3] parameter(0)
        z = f32[] constant(0)
        s = f32[] reduce(p, z), dimensions={0}, to_apply=f
        m = f32[] negate(s)
        c = pred[] compare(s, m), direction=LT
        ROOT r = (f32[], f32[], pred[]) tuple(s, m, c)""",
        binary_computation("f", "add", "f32"),
    )
    found = run(text, X)
    assert [type(v) for v in found] == [np.ndarray] * 3
    assert [v.shape for v in found] == [(), (), ()]


def test_tuple_parameters_are_taken_as_tuples() -> None:
    text = module("""p = (f32[3], s32[]) parameter(0)
    ROOT r = f32[3] get-tuple-element(p), index=0""")
    np.testing.assert_array_equal(run(text, (X, np.int32(1)))[0], X)
    with pytest.raises(TypeError, match="expected a tuple"):
        run(text, X)


def test_sort_by_any_comparator_is_stable_for_many_elements() -> None:
    f = """f {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  n = s32[] constant(10)
  x = s32[] remainder(a, n)
  y = s32[] remainder(b, n)
  less = pred[] compare(x, y), direction=LT
  yes = pred[] constant(true)
  ROOT r = pred[] and(less, yes)
}
"""
    keys = np.random.default_rng(0).permutation(5003).astype(np.int32)
    text = simple("sort", "s32[5003]", ["s32[5003]"], "dimensions={0}, is_stable=true, to_apply=f", f)
    np.testing.assert_array_equal(run(text, keys)[0], keys[np.argsort(keys % 10, kind="stable")])


def test_a_module_that_is_not_evaluable_names_the_instruction() -> None:
    text = module("""p = f32[3] parameter(0)
    q = f32[3] parameter(1)
    bad = f32[3] and(p, q)
    ROOT r = f32[3] negate(bad)""")
    with pytest.raises(InterpreterError, match="and"):
        run(text, X, X)


def test_filling_an_array_in_a_loop_does_not_copy_it_each_time() -> None:
    text = """HloModule m
cond {
  s = (s32[], f32[100000,300]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2000)
  ROOT r = pred[] compare(i, n), direction=LT
}
body {
  s = (s32[], f32[100000,300]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[100000,300] get-tuple-element(s), index=1
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  v = f32[] convert(j)
  row = f32[1,300] broadcast(v), dimensions={}
  y = f32[100000,300] dynamic-update-slice(x, row, i, zero)
  ROOT r = (s32[], f32[100000,300]) tuple(j, y)
}
ENTRY e {
  i = s32[] constant(0)
  x = f32[] constant(0)
  z = f32[100000,300] broadcast(x), dimensions={}
  s = (s32[], f32[100000,300]) tuple(i, z)
  w = (s32[], f32[100000,300]) while(s), condition=cond, body=body
  f = f32[100000,300] get-tuple-element(w), index=1
  ROOT r = f32[2001,1] slice(f), slice={[0:2001], [0:1]}
}
"""
    # Copies of 120 MB would take minutes.
    (found,) = run(text)
    np.testing.assert_array_equal(found[:, 0], [*range(1, 2001), 0])


def test_an_update_leaves_other_holders_of_the_array_alone() -> None:
    text = module("""p = f32[3] parameter(0)
    u = f32[1] parameter(1)
    i = s32[] constant(1)
    x = f32[3] negate(p)
    v = f32[2] slice(x), slice={[0:2]}
    y = f32[3] dynamic-update-slice(x, u, i)
    z = f32[3] dynamic-update-slice(p, u, i)
    ROOT r = (f32[2], f32[3], f32[3], f32[3]) tuple(v, y, z, p)""")
    p, u = np.array([1, 2, 3], np.float32), np.array([9], np.float32)
    v, y, z, same = run(text, p, u)
    np.testing.assert_array_equal(v, [-1, -2])
    np.testing.assert_array_equal(y, [-1, 9, -3])
    np.testing.assert_array_equal(z, [1, 9, 3])
    np.testing.assert_array_equal(same, [1, 2, 3])
    np.testing.assert_array_equal(p, [1, 2, 3])


@pytest.mark.parametrize("t", ["s2", "u2", "s4", "u4"])
def test_sort_takes_narrow_integers(t: str) -> None:
    f = f"f {{\n a = {t}[] parameter(0)\n b = {t}[] parameter(1)\n ROOT r = pred[] compare(a, b), direction=GT\n}}\n"
    x = values(t, (30,))
    (found,) = run(simple("sort", f"{t}[30]", [f"{t}[30]"], "dimensions={0}, to_apply=f", f), x)
    np.testing.assert_array_equal(found.astype(np.int8), np.sort(x.astype(np.int8))[::-1])


def test_a_reduction_into_a_tuple_of_one() -> None:
    found = run(
        "HloModule m\n"
        "f { a = f32[] parameter(0) b = f32[] parameter(1) s = f32[] add(a, b) ROOT t = (f32[]) tuple(s) }\n"
        "ENTRY e { x = f32[2,3] parameter(0) z = f32[] constant(0)\n"
        "  ROOT r = (f32[3]) reduce(x, z), dimensions={0}, to_apply=f }",
        np.arange(6, dtype=np.float32).reshape(2, 3),
    )
    np.testing.assert_array_equal(found[0], [3, 5, 7])


def test_a_transform_of_nothing_is_nothing() -> None:
    text = simple("fft", "c64[2,0]", ["c64[2,0]"], "fft_type=FFT, fft_length={1}")
    (found,) = run(text, np.zeros((2, 0), np.complex64))
    (wanted,) = run_xla(text, [np.zeros((2, 0), np.complex64)])
    assert found.shape == wanted.shape == (2, 0)


def test_a_transform_longer_than_its_operand_is_refused() -> None:
    text = simple("fft", "c64[8]", ["c64[8]"], "fft_type=FFT, fft_length={32}")
    with pytest.raises(InterpreterError, match=r"fft_length \[32\] must be the dimensions \[8\]"):
        run(text, np.zeros(8, np.complex64))


def test_a_size_below_the_bound_is_refused() -> None:
    text = simple("set-dimension-size", "f32[<=6]", ["f32[6]", "s32[]"], "dimensions={0}")
    x = np.arange(6, dtype=np.float32)
    assert np.array_equal(run(text, x, np.int32(6))[0], x)
    with pytest.raises(UnsupportedError, match="dimension 0 has 3 of at most 6 elements"):
        run(text, x, np.int32(3))
    text = simple("dynamic-reshape", "f32[2,<=3]", ["f32[6]", "s32[]", "s32[]"])
    with pytest.raises(UnsupportedError, match="dimension 1 has 2 of at most 3 elements"):
        run(text, x, np.int32(2), np.int32(2))


def test_what_nothing_needs_is_not_run() -> None:
    text = """
HloModule m
ENTRY e {
  x = f32[3] parameter(0)
  y = f32[4] custom-call(x), custom_call_target="theirs"
  z = f32[4] negate(y)
  ROOT n = f32[3] abs(x)
}
"""
    assert np.array_equal(run(text, X)[0], run_xla(text, [X])[0])
    with pytest.raises(UnsupportedError, match="theirs"):
        run(text.replace('"theirs"', '"theirs", custom_call_has_side_effect=true'), X)
