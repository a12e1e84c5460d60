"""Conversions of floats to integers whose range follows from a clamp or from extremes, against the interpreter."""

import numpy as np
import pytest

from compiler.codegen.lowering.float_bounds import FloatBounds
from compiler.codegen.nest.scalar_ops import ScalarOp, binary
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from tests.codegen.running import Case, case_of, fused, problem, run_c

EDGES = [0.0, -0.0, 0.5, 1.5, -2.5, 126.6, 127.5, 128.0, -128.5, -129.0, 254.7, 255.5, 256.0, 32767.5, 65535.5]
VALUES = np.array([*EDGES, 1e9, -1e9, 2.0**31, 2.0**32, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
BOUNDS = [(-127, 127), (-128, 127), (0, 255), (-129, 127), (-128.5, 127.4), (0, 256), (-1e9, 1e9), (5, -5)]
TYPES = ["s8", "u8", "s16", "u16", "s32", "u32", "s64"]


def quantized(expression: str, low: float, high: float, target: str, element: str) -> Case:
    n = len(VALUES)
    computation = fused(f"""
        p0 = {element}[{n}] parameter(0)
        l = {element}[] constant({low})
        h = {element}[] constant({high})
        low = {element}[{n}] broadcast(l), dimensions={{}}
        high = {element}[{n}] broadcast(h), dimensions={{}}
        {expression.format(t=f"{element}[{n}]")}
        ROOT c = {target}[{n}] convert(x)
    """)
    with np.errstate(over="ignore"):
        return case_of(computation, [VALUES.astype(np.dtype({"f32": "f4", "f64": "f8"}[element]))], "c")


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize(
    "expression",
    [
        "x = {t} clamp(low, p0, high)",
        "r = {t} round-nearest-even(p0)\n x = {t} clamp(low, r, high)",
        "r = {t} clamp(low, p0, high)\n x = {t} round-nearest-even(r)",
        "r = {t} maximum(p0, low)\n y = {t} minimum(r, high)\n x = {t} floor(y)",
        "x = {t} maximum(p0, low)",
        "r = {t} clamp(low, p0, high)\n x = {t} add(r, r)",
    ],
)
def test_bounded_floats_become_the_integers_of_the_interpreter(expression: str, element: str) -> None:
    cases = [quantized(expression, low, high, t, element) for low, high in BOUNDS for t in TYPES]

    for case, result in zip(cases, run_c(cases), strict=True):
        assert problem(result, case) is None


def test_bounds_follow_clamps_extremes_and_rounding() -> None:
    bounds, clamp = FloatBounds(), ScalarOp(Opcode.CLAMP, T.F32, T.F32)
    bounds.set_literal("low", -127.4)
    bounds.set_literal("high", 127.4)
    bounds.set_result("a", clamp, ("low", "x", "high"))
    bounds.set_result("b", ScalarOp(Opcode.FLOOR, T.F32, T.F32), ("a",))
    bounds.set_result("c", binary(Opcode.MAXIMUM, T.F32), ("x", "low"))
    bounds.set_result("d", binary(Opcode.MINIMUM, T.F32), ("c", "high"))
    bounds.set_result("e", binary(Opcode.ADD, T.F32), ("a", "a"))

    assert [bounds.fit(name, T.S8) for name in "abcdex"] == [False, True, False, False, False, False]
    assert [bounds.fit(name, T.S16) for name in "abcdex"] == [True, True, False, True, False, False]
    assert not any(bounds.fit(name, T.U16) for name in "abcdex")


def test_a_literal_that_is_nan_bounds_nothing() -> None:
    bounds = FloatBounds()
    bounds.set_literal("nan", float("nan"))
    bounds.set_result("a", binary(Opcode.MINIMUM, T.F32), ("x", "nan"))

    assert not bounds.fit("nan", T.S32)
    assert not bounds.fit("a", T.S32)
