"""Identities are not combined, extrema propagate NaN and keep signed zeros, and short loops have narrower vectors."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from tests.sweeps.case import binary_computation, module

LOWEST = {"f32": "-inf", "f16": "-inf", "s32": "-2147483648"}
NAN, INF = float("nan"), float("inf")


def pooled(element_type: str, init: str, rows: int, columns: int) -> str:
    half = f"{element_type}[{rows // 2},{columns // 2}]"
    return module(
        f"""x = {element_type}[{rows},{columns}] parameter(0)
        i = {element_type}[] constant({init})
        ROOT r = {half} reduce-window(x, i), window={{size=2x2 stride=2x2}}, to_apply=most""",
        binary_computation("most", "maximum", element_type),
    )


@pytest.mark.parametrize("element_type", ["f32", "f16", "s32"])
@pytest.mark.parametrize("columns", [2, 56, 62])
def test_pooling_combines_the_elements_only(element_type: str, columns: int) -> None:
    exe = compile(pooled(element_type, LOWEST[element_type], 8, columns))
    x = np.random.default_rng(0).permutation(8 * columns).reshape(8, columns).astype(exe.module.entry.root.shape.dtype)
    if element_type != "s32":
        x[0, 0], x[2, 1] = NAN, -INF
    wanted = x.reshape(4, 2, columns // 2, 2).max(axis=(1, 3))
    np.testing.assert_array_equal(exe(x)[0], wanted)
    (kernel,) = exe.kernels
    assert kernel.source.count(" ? " if element_type == "s32" else "maximum_f32(") == 3


def test_another_initial_value_is_combined() -> None:
    exe = compile(pooled("f32", "0.5", 8, 8))
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    np.testing.assert_array_equal(exe(x)[0], np.maximum(x.reshape(4, 2, 4, 2).max(axis=(1, 3)), np.float32(0.5)))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("constant", [None, "0", "-0", "nan", "1"])
def test_extrema_of_special_values(op: str, constant: str | None) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40], np.float32)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    second = (
        "b = f32[64] parameter(1)"
        if constant is None
        else f"c = f32[] constant({constant})\nb = f32[64] broadcast(c), dimensions={{}}"
    )
    exe = compile(module(f"a = f32[64] parameter(0)\n{second}\nROOT r = f32[64] {op}(a, b)"))
    if constant is not None:
        b = np.full(64, constant, np.float32)
    (found,) = exe(a, b) if constant is None else exe(a)
    np.testing.assert_array_equal(found, (np.maximum if op == "maximum" else np.minimum)(a, b))
    equal = (a == b) & (a == 0)
    np.testing.assert_array_equal(np.signbit(found[equal]), np.signbit(a[equal]))  # the first of equals


@pytest.mark.parametrize(("columns", "bits"), [(56, 256), (32, 512), (34, 512), (40, 256), (64, 512), (1024, 512)])
def test_short_loops_have_the_vectors_that_leave_fewer_elements_over(columns: int, bits: int) -> None:
    (kernel,) = compile(pooled("f32", "-inf", 4096, columns)).kernels
    assert f"VECTOR_BITS({bits})" in kernel.source
