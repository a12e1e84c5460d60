"""Sorts by integer keys, against the interpreter, which calls the comparator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier import check_module
from compiler.passes import make_pass
from compiler.text import parse

# As JAX compares floats: -0 equals 0, and all NaN are equal and last.
OF_JAX = """
  {x} = pred[] compare({p}, {p}), direction=NE
  {x}z = {t}[] constant(0)
  {x}n = {t}[] constant(nan)
  {x}e = pred[] compare({p}, {x}z), direction=EQ
  {x}s = {t}[] select({x}e, {x}z, {p})
  {x}v = {t}[] select({x}, {x}n, {x}s)
"""


def text_of(t: str, compared: str, dims: tuple[int, int] = (8, 40), axis: int = 1, others: str = "") -> str:
    """Return a sort of `p0`, and of `p1` and positions if `others` names the type of `p1`."""
    shape = f"[{dims[0]},{dims[1]}]"
    types = [t] if not others else [t, others, "s32"]
    parameters = "".join(
        f"a{n} = {u}[] parameter({2 * n}) b{n} = {u}[] parameter({2 * n + 1}) " for n, u in enumerate(types)
    )
    arrays = "".join(f"p{n} = {u}{shape} parameter({n}) " for n, u in enumerate(types[:2]))
    arrays += f"p2 = s32{shape} iota(), iota_dimension={axis} " if others else ""
    operands = ", ".join(f"p{n}" for n in range(len(types)))
    result = f"{t}{shape}" if not others else "(" + ", ".join(f"{u}{shape}" for u in types) + ")"
    return (
        f"HloModule m\nf {{ {parameters}\n{compared} }}\n"
        f"ENTRY e {{ {arrays} ROOT s = {result} sort({operands}), dimensions={{{axis}}}, is_stable=true, to_apply=f }}"
    )


def jax_comparison(t: str, direction: str, first: str = "a0", second: str = "b0") -> str:
    functions = OF_JAX.format(x="x", p=first, t=t) + OF_JAX.format(x="y", p=second, t=t)
    return f"{functions} ROOT r = pred[] compare(xv, yv), direction={direction}, type=TOTALORDER"


def by_size(direction: str, kind: str = "", first: str = "a0", second: str = "b0") -> str:
    return f"ROOT r = pred[] compare({first}, {second}), direction={direction}{kind}"


def values(t: str, dims: tuple[int, int] = (8, 40)) -> np.ndarray[Any, Any]:
    """Return numbers with ties and extremes; of floats also -0, infinities and NaN of both signs."""
    kind, rng = PrimitiveType[t.upper()], np.random.default_rng(0)
    if kind.is_float:
        x = rng.integers(-4, 5, dims).astype(np.float32) / 4
        special = np.array([-0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40], np.float32)
        chosen = rng.random(dims) < 0.3
        x[chosen] = rng.choice(special, int(chosen.sum()))
        return x.astype(kind.dtype)
    limits = np.iinfo(kind.dtype)
    x = rng.integers(limits.min, limits.max, dims, kind.dtype, endpoint=True)
    x[:, ::3] = rng.integers(0, 3, x[:, ::3].shape)
    x[0, :2] = limits.min, limits.max
    return x


def check(text: str, *arrays: np.ndarray[Any, Any]) -> None:
    module = parse(text)
    expected = evaluate(parse(text), arrays)
    assert make_pass("sort-by-integer-key{min_elements=1}").run(module)
    assert check_module(module) == []
    sorts = [i for i in module.entry.instructions if i.opcode is Opcode.SORT]
    assert [s.operand(0).shape.element_type for s in sorts] == [PrimitiveType.S64]
    for got, want in zip(evaluate(module, arrays), expected, strict=True):
        assert got.tobytes() == want.tobytes()  # -0 and NaN, too


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("t", ["f32", "bf16", "f16"])
def test_floats_as_jax_compares_them(t: str, direction: str, axis: int) -> None:
    dims = (40, 8) if axis == 0 else (8, 40)
    check(text_of(t, jax_comparison(t, direction), dims, axis), values(t, dims))


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("t", ["f32", "bf16", "f16"])
def test_floats_in_total_order(t: str, direction: str) -> None:
    check(text_of(t, by_size(direction, ", type=TOTALORDER")), values(t))


@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("t", ["s8", "u8", "s16", "u16", "s32", "u32"])
def test_integers_with_other_operands_and_positions(t: str, direction: str) -> None:
    check(text_of(t, by_size(direction), others="f32"), values(t), values("f32"))


def test_the_second_operand_is_compared_and_the_sides_are_swapped() -> None:
    check(text_of("f32", by_size("LT", first="b1", second="a1"), others="s32"), values("f32"), values("s32"))
    check(text_of("f32", jax_comparison("bf16", "GT", "a1", "b1"), others="bf16"), values("f32"), values("bf16"))


def test_a_function_of_the_elements_is_compared() -> None:
    compared = "m = s32[] negate(a0) n = s32[] negate(b0) ROOT r = pred[] compare(m, n), direction=LT"
    check(text_of("s32", compared), values("s32"))


@pytest.mark.parametrize(
    ("t", "compared", "others"),
    [
        ("s32", by_size("LT"), ""),  # XLA inlines this comparison
        ("f32", by_size("LT"), ""),  # NaN is not ordered
        ("s64", by_size("LT"), "f32"),  # no room for the position
        ("s32", by_size("LE"), "f32"),
        ("s32", by_size("LT", second="b2"), "f32"),  # compares one operand with another
        ("s32", "m = s32[] negate(b0) ROOT r = pred[] compare(a0, m), direction=LT", ""),
        ("s32", "u = pred[] compare(a0, b0), direction=LT v = pred[] compare(a2, b2), direction=LT "
         "ROOT r = pred[] and(u, v)", "f32"),
    ],
)  # fmt: skip
def test_other_sorts_are_kept(t: str, compared: str, others: str) -> None:
    module = parse(text_of(t, compared, others=others))
    assert not make_pass("sort-by-integer-key{min_elements=1}").run(module)


def test_short_rows_and_few_elements_are_kept() -> None:
    text = text_of("f32", by_size("LT", ", type=TOTALORDER"))
    assert not make_pass("sort-by-integer-key{min_elements=321}").run(parse(text))
    assert not make_pass("sort-by-integer-key{min_elements=1,min_length=41}").run(parse(text))
    assert make_pass("sort-by-integer-key{min_elements=320,min_length=40}").run(parse(text))
