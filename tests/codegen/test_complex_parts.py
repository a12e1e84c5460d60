"""Arrays of complex numbers of which a kernel only uses the parts are arrays of floats."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir.types import PrimitiveType as T
from tests.codegen import running

ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }\n"
C, F = "c64[{m},{n}]", "f32[{m},{n}]"
PRODUCT = f"""
    ar = {F} real(a)
    ai = {F} imag(a)
    br = {F} real(s)
    bi = {F} imag(s)
    w = {F} multiply(ar, br)
    x = {F} multiply(ai, bi)
    y = {F} multiply(ar, bi)
    z = {F} multiply(ai, br)
    p = {F} subtract(w, x)
    q = {F} add(y, z)
"""
MADE = f"{PRODUCT} ROOT r = {C} complex(p, q)"
DIVIDED = {
    "product": f"s = {C} parameter(1) {MADE}",
    "by one number of each row": f"""c = c64[{{m}}] parameter(1)
    s = {C} broadcast(c), dimensions={{{{0}}}} {MADE}""",
    "by one row": f"""c = c64[{{n}}] parameter(1)
    s = {C} broadcast(c), dimensions={{{{1}}}} {MADE}""",
    "conjugate": f"""x = {F} real(a)
    y = {F} imag(a)
    z = {F} negate(y)
    ROOT r = {C} complex(x, z)""",
    "of parts": f"""x = {F} parameter(1)
    y = {F} sine(x)
    ROOT r = {C} complex(x, y)""",
}
HELD = {
    "copy": f"ROOT r = {C} reverse(a), dimensions={{{{1}}}}",
    "one part": f"""x = {F} real(a)
    ROOT r = {F} sine(x)""",
    "with a constant": f"""x = {F} parameter(1)
    zero = f32[] constant(0)
    y = {F} broadcast(zero), dimensions={{{{}}}}
    ROOT r = {C} complex(x, y)""",
    "part of a product": f"s = {C} parameter(1) {PRODUCT} ROOT r = {F} copy(p)",
    "select": f"""b = {C} parameter(1)
    x = {F} real(a)
    y = {F} imag(a)
    p = pred[{{m}},{{n}}] compare(x, y), direction=LT
    ROOT r = {C} select(p, a, b)""",
    "transposed": f"""t = c64[{{n}},{{m}}] parameter(1)
    s = {C} transpose(t), dimensions={{{{1,0}}}} {MADE}""",
    "reversed": f"""b = {C} parameter(1)
    s = {C} reverse(b), dimensions={{{{1}}}} {MADE}""",
    "sum": f"""s = {C} parameter(1) {PRODUCT}
    zero = f32[] constant(0)
    ROOT r = f32[{{m}}] reduce(p, zero), dimensions={{{{1}}}}, to_apply=add""",
}
SHAPES = [(1, 1), (3, 7), (40, 64), (5, 1000), (1, 70_001)]


def types_of(body: str, m: int, n: int, schedule: Schedule | None = None) -> set[T]:
    """Return the types of the arguments of a bound kernel, after comparing its results with the interpreter."""
    text = f"a = {C} parameter(0)\n {body}".format(m=m, n=n)
    fused = running.fused(text, ADD)
    arguments = running.random_args(fused.parameter_shapes, np.random.default_rng(n))
    case = running.case_of(fused, arguments, "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return {a.type for a in bind_c(lower(fused), schedule or Schedule()).arguments}


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("name", DIVIDED)
def test_parts(name: str, m: int, n: int) -> None:
    assert types_of(DIVIDED[name], m, n) <= {T.F32, T.C64}


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("schedule", [Schedule(vector=256), Schedule(unroll=4), Schedule(threads=0)])
def test_long_rows_of_pairs_are_floats(name: str, schedule: Schedule) -> None:
    assert T.F32 in types_of(DIVIDED[name], 40, 64, schedule)


@pytest.mark.parametrize(("m", "n"), SHAPES[2:4])
@pytest.mark.parametrize("name", HELD)
def test_what_is_used_as_a_whole_or_apart_stays_whole(name: str, m: int, n: int) -> None:
    assert T.C64 in types_of(HELD[name], m, n)
