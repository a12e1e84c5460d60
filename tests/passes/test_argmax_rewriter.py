"""Argmax and argmin as two reductions, against the interpreter."""

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType
from compiler.passes import make_pass
from compiler.text import parse

# As JAX writes it: NaN and ties go to the first.
JAX = """
  better = pred[] compare(a, c), direction={direction}
  nan = pred[] compare(a, a), direction=NE
  first = pred[] or(better, nan)
  equal = pred[] compare(a, c), direction=EQ
  earlier = pred[] compare(i, j), direction=LT
  both = pred[] and(equal, earlier)
  keep = pred[] or(first, both)
  v = {t}[] select(first, a, c)
  p = s32[] select(keep, i, j)
"""
# Ties go to the last, and an extreme op instead of a selection.
LAST = """
  keep = pred[] compare(a, c), direction={direction}
  v = {t}[] {extreme}(a, c)
  p = s32[] select(keep, i, j)
"""


def module_text(t: str, function: str, direction: str, dims: tuple[int, int], axis: int, init: str) -> str:
    extreme = "maximum" if direction == "GT" else "minimum"
    shape, kept = f"[{dims[0]},{dims[1]}]", f"[{dims[1 - axis]}]"
    return (
        f"HloModule m\nf {{ a = {t}[] parameter(0) i = s32[] parameter(1) c = {t}[] parameter(2) "
        f"j = s32[] parameter(3)\n{function.format(t=t, direction=direction, extreme=extreme)}\n"
        f"ROOT r = ({t}[], s32[]) tuple(v, p) }}\n"
        f"ENTRY e {{ x = {t}{shape} parameter(0) k = s32{shape} iota(), iota_dimension={axis}\n"
        f"z = {t}[] constant({init}) w = s32[] constant(0)\n"
        f"ROOT s = ({t}{kept}, s32{kept}) reduce(x, k, z, w), dimensions={{{axis}}}, to_apply=f }}"
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("special", [None, np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("direction", ["GT", "LT"])
def test_floats_with_ties_and_special_values(direction: str, special: float | None, axis: int) -> None:
    text = module_text("f32", JAX, direction, (40, 50), axis, "-inf" if direction == "GT" else "inf")
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (40, 50)).astype(np.float32)
    if special is not None:
        x[rng.random(x.shape) < 0.05] = special
        x[3], x[:, 7] = special, special
    module = parse(text)
    expected = evaluate(parse(text), [x])
    assert make_pass("argmax-rewriter").run(module)
    assert not any(i.opcode is Opcode.REDUCE and i.shape.is_tuple for i in module.entry.instructions)
    compiled = compile_hlo(text, backend="cpu")(x)
    for got in (evaluate(module, [x]), compiled):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [127, 128, 300])
@pytest.mark.parametrize(("t", "init"), [("s32", "-2147483648"), ("u8", "0"), ("s8", "-128"), ("s16", "-32768")])
def test_integers_with_the_last_of_equal_values(t: str, init: str, n: int) -> None:
    text = module_text(t, LAST, "GT", (5, n), 1, init)
    x = np.random.default_rng(0).integers(0, 20, (5, n)).astype(PrimitiveType(t).dtype)
    x[3], x[4, -1] = 0, 100
    module = parse(text)
    assert make_pass("argmax-rewriter").run(module)
    values, places = evaluate(module, [x])
    np.testing.assert_array_equal(values, x.max(1))
    np.testing.assert_array_equal(places, n - 1 - np.argmax(x[:, ::-1], 1))
    (got,) = compile_hlo(text, backend="cpu")(x)[1:]
    np.testing.assert_array_equal(got, places)


@pytest.mark.parametrize("direction", ["GT", "LT"])
@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("axis", [0, 1])
def test_bools_are_one_reduction(direction: str, ties: str, axis: int) -> None:
    function = JAX if ties == "first" else LAST
    text = module_text("pred", function, direction, (70, 9), axis, "false" if direction == "GT" else "true")
    text = text.replace("maximum(a", "or(a").replace("minimum(a", "and(a")
    x = np.random.default_rng(1).random((70, 9)) < 0.2
    x[3], x[:, 4], x[9], x[:, 5] = False, False, True, True
    module = parse(text)
    expected = evaluate(parse(text), [x])
    assert make_pass("argmax-rewriter").run(module)
    assert sum(i.opcode is Opcode.REDUCE for i in module.entry.instructions) == 1
    for got in (evaluate(module, [x]), compile_hlo(text, backend="cpu")(x)):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("t", "function", "init", "dims"),
    [
        ("f32", LAST, "-inf", (5, 300)),  # NaN is taken or not depending on the order
        ("f32", JAX, "0", (5, 300)),  # the initial value may be the result
        ("f32", JAX.replace("GT", "GE").replace("select(first, a, c)", "select(keep, c, a)"), "-inf", (5, 300)),
        ("f32", JAX, "-inf", (5, 1)),  # nothing to choose from
    ],
)
def test_other_reductions_stay(t: str, function: str, init: str, dims: tuple[int, int]) -> None:
    module = parse(module_text(t, function, "GT", dims, 1, init))
    assert not make_pass("argmax-rewriter").run(module)
