"""Compiled programs of the jax suite against the interpreter, and two ops found in them."""

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.text import parse
from env.measurement import Measurer
from env.suites import load_suite


def test_a_bitcast_convert_may_change_the_number_of_elements() -> None:
    text = "HloModule m\nENTRY e {\n  x = u32[3,2] parameter(0)\n  ROOT y = u64[3] bitcast-convert(x)\n}\n"
    x = np.arange(6, dtype=np.uint32).reshape(3, 2)
    # The first of two words is the low one.
    wanted = x[:, 0].astype(np.uint64) + (x[:, 1].astype(np.uint64) << np.uint64(32))
    np.testing.assert_array_equal(np.asarray(compile_hlo(text)(x)).reshape(3), wanted)


def test_a_batched_dot_of_bf16_may_have_an_f32_result() -> None:
    text = (
        "HloModule m\nENTRY e {\n  a = bf16[2,6,2,2,8] parameter(0)\n  b = bf16[2,6,2,8] parameter(1)\n"
        "  ROOT d = f32[2,2,6,2,6] dot(a, b), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={4}, "
        "rhs_contracting_dims={3}\n}\n"
    )
    module, rng = parse(text), np.random.default_rng(0)
    args = [rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    wanted = np.einsum("btkgh,bskh->bktgs", *(a.astype(np.float32) for a in args))
    for got in (np.asarray(compile_hlo(text)(*args)), np.asarray(evaluate(module, args)[0])):
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_program_matches_the_interpreter() -> None:
    with Measurer() as measurer:
        wrong = {p.name: found for p in load_suite("jax").programs if (found := measurer.check(p, None))}
    assert not wrong
