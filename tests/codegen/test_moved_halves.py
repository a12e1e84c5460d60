"""Tests of numbers of 16 bits that are moved as bits."""

import ml_dtypes
import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.ir.types import PrimitiveType as T
from compiler.text import parse

MASK = "m = pred[40,70] compare(n, n2), direction=LT"
BODIES = {
    "reverse": "ROOT r = {t}[40,70] reverse(x), dimensions={{1}}",
    "transpose": "ROOT r = {t}[70,40] transpose(x), dimensions={{1,0}}",
    "slice": "ROOT r = {t}[40,23] slice(x), slice={{[0:40], [1:70:3]}}",
    "select": f"{MASK}\n  ROOT r = {{t}}[40,70] select(m, x, y)",
    "masked": MASK
    + """
  low = {t}[] constant(-10000)
  lows = {t}[40,70] broadcast(low), dimensions={{}}
  ROOT r = {t}[40,70] select(m, x, lows)""",
    "pad": """inf = {t}[] constant(-inf)
  ROOT r = {t}[43,75] pad(x, inf), padding=1_2x2_3""",
    "concatenate": "ROOT r = {t}[40,140] concatenate(x, y), dimensions={{1}}",
    "gather": """i = s32[40] iota(), iota_dimension=0
  ROOT r = {t}[40,70] gather(x, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}},
    index_vector_dim=1, slice_sizes={{1,70}}""",
    "signs": """a = {t}[40,70] abs(x)
  ROOT r = {t}[40,70] negate(a)""",
    "broadcast": "ROOT r = {t}[40,5,70] broadcast(x), dimensions={{0,2}}",
}
PROGRAM = """HloModule m
ENTRY main {{
  x = {t}[40,70] parameter(0)
  y = {t}[40,70] parameter(1)
  n = s32[40,70] iota(), iota_dimension=0
  n2 = s32[40,70] iota(), iota_dimension=1
  {body}
}}"""
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def _text(name: str, t: str) -> str:
    return PROGRAM.format(t=t, body=BODIES[name].format(t=t))


def _types(text: str) -> set[T]:
    return {a.type for a in bind_c(lower(parse(text).entry), Schedule()).arguments}


@pytest.mark.parametrize("t", DTYPES)
@pytest.mark.parametrize("name", BODIES)
def test_all_bits_arrive(name: str, t: str) -> None:
    text = _text(name, t)
    assert _types(text) == {T.U16}
    bits = np.random.default_rng(len(name)).integers(0, 1 << 16, (2, 40, 70), dtype=np.uint16)  # NaN of all kinds, too
    if name == "signs":
        bits &= 0xBFFF  # but those whose sign no op has to keep
    args = list(bits.view(DTYPES[t]))
    (got,), (expected,) = hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("t", DTYPES)
@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("ROOT r = {t}[40,70] add(x, y)", {"t"}),
        ("m = pred[40,70] compare(x, y), direction=LT\n  ROOT r = {t}[40,70] select(m, x, y)", {"t"}),
        # What is selected or stored together with that.
        (f"a = {{t}}[40,70] floor(x)\n  {MASK}\n  ROOT r = {{t}}[40,70] select(m, a, y)", {"t"}),
        (f"c = f32[40,70] convert(x)\n  {MASK}\n  s = {{t}}[40,70] select(m, x, y)\n  "
         "ROOT r = (f32[40,70], {t}[40,70]) tuple(c, s)", {"t", "f32"}),
        # One array is moved, another one is computed with.
        ("v = {t}[40,70] reverse(x), dimensions={{0}}\n  c = f32[40,70] convert(y)\n  "
         "ROOT r = ({t}[40,70], f32[40,70]) tuple(v, c)", {"u16", "t", "f32"}),
    ],
)  # fmt: skip
def test_what_is_computed_with_stays_a_number(t: str, body: str, types: set[str]) -> None:
    text = PROGRAM.format(t=t, body=body.format(t=t))
    names = {"t": T(t), "u16": T.U16, "f32": T.F32}
    assert _types(text) == {names[n] for n in types}
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((40, 70)).astype(DTYPES[t]) for _ in range(2)]
    for got, expected in zip(hlogym.compile(text, backend="cpu")(*args), evaluate(parse(text), args), strict=True):
        np.testing.assert_array_equal(got, expected)
