"""Ops that ran in the interpreter and are rewritten for kernels: reduced precision, and dots of booleans."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.passes.dots.boolean_dots import BooleanDots
from compiler.passes.expanders.reduce_precision_expander import ReducePrecisionExpander
from compiler.text import parse
from tests.oracle import run_xla

BYTES: dict[str, Any] = {
    f"f8{name}": getattr(ml_dtypes, f"float8_{name}")
    for name in ("e5m2", "e4m3", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e3m4")
}
TYPES = {**BYTES, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def _values(t: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return numbers of every exponent, ties, and the special ones."""
    size = np.dtype(t).itemsize
    with np.errstate(all="ignore"):
        drawn = rng.integers(0, 1 << 8 * size, 4000, dtype=np.dtype(f"u{size}"), endpoint=False).view(t)
        ties = (1 + np.arange(256) / 256).astype(t)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 65504.0, 65520.0, 6e-8, 1e-40, -3e-39]).astype(t)
        return np.concatenate([drawn, ties, -ties, special])


@pytest.mark.parametrize("name", TYPES)
def test_reduced_precision_is_that_of_the_interpreter(name: str) -> None:
    x = _values(TYPES[name], np.random.default_rng(0))
    for exponent, mantissa in itertools.product((1, 2, 4, 5, 8, 11), (0, 1, 2, 7, 10, 23, 52)):
        module = parse(
            f"ENTRY e {{ x = {name}[{len(x)}] parameter(0)\n"
            f"ROOT r = {name}[{len(x)}] reduce-precision(x), exponent_bits={exponent}, mantissa_bits={mantissa} }}"
        )
        (want,) = evaluate(module, [x])
        assert ReducePrecisionExpander().run(module)
        (got,) = evaluate(module, [x])
        bits = np.dtype(f"u{x.dtype.itemsize}")
        same = (got.view(bits) == want.view(bits)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (exponent, mantissa, x[~same][:5], got[~same][:5], want[~same][:5])


@pytest.mark.parametrize("name", BYTES)
def test_formats_of_the_size_of_a_byte_are_those_of_xla(name: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(BYTES[name])
    for exponent, mantissa in ((3, 4), (4, 3), (5, 2), (5, 3), (5, 4), (8, 7)):
        text = (
            f"HloModule m\nENTRY e {{ x = {name}[256] parameter(0)\n"
            f"ROOT r = {name}[256] reduce-precision(x), exponent_bits={exponent}, mantissa_bits={mantissa} }}"
        )
        (got,), (want,) = compile(text)(x), run_xla(text, [x])
        np.testing.assert_array_equal(got.astype(np.float32), np.asarray(want).astype(np.float32))


def test_reduced_precision_runs_in_kernels() -> None:
    text = """ENTRY e {
      x = f32[3,500] parameter(0)
      ROOT r = f32[3,500] reduce-precision(x), exponent_bits=5, mantissa_bits=10
    }"""
    x = np.random.default_rng(0).normal(size=(3, 500)).astype(np.float32) * np.float32(1e3)
    executable = compile(text)
    np.testing.assert_array_equal(executable(x)[0], x.astype(np.float16).astype(np.float32))
    assert len(executable.kernels) == 1


DOTS = [
    ("pred[5,64,48]", "pred[5,48,7]", "pred[5,64,7]", (0, 0, 2, 1)),
    ("pred[64,48]", "pred[32,48]", "pred[64,32]", ("", "", 1, 1)),
    ("pred[9]", "pred[9]", "pred[]", ("", "", 0, 0)),
    ("pred[3]", "pred[4]", "pred[3,4]", ("", "", "", "")),
    ("pred[3,0]", "pred[0,4]", "pred[3,4]", ("", "", 1, 0)),
]
NAMES = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")


@pytest.mark.parametrize(("lhs", "rhs", "result", "dims"), DOTS)
def test_dots_of_booleans_are_those_of_the_interpreter(lhs: str, rhs: str, result: str, dims: tuple[Any, ...]) -> None:
    attributes = ", ".join(f"{name}={{{d}}}" for name, d in zip(NAMES, dims, strict=True))
    text = f"ENTRY e {{ a = {lhs} parameter(0) b = {rhs} parameter(1) ROOT d = {result} dot(a, b), {attributes} }}"
    module = parse(text)
    rng = np.random.default_rng(0)
    for share in (0.02, 0.2, 1.0):
        inputs = [rng.random(p.shape.dimensions) < share for p in module.entry.parameters]
        (want,) = evaluate(module, inputs)
        changed = parse(text)
        assert BooleanDots().run(changed)
        np.testing.assert_array_equal(evaluate(changed, inputs)[0], want)
        np.testing.assert_array_equal(compile(text)(*inputs)[0], want)
