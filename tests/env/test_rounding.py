"""Random rounding perturbs rounded results slightly and leaves exact ones unchanged."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from compiler.interpreter import Context, evaluate
from compiler.text import parse
from env.rounding import RandomRounding, is_float, looks_inexact, precision

Array = npt.NDArray[Any]
RNG = np.random.default_rng(2)


def rounded(body: str, *args: Array, seed: int = 0) -> tuple[Array, Array]:
    """Return the outputs of a program without and with rounding errors."""
    module = parse(f"HloModule m\nENTRY e {{\n{body}\n}}")
    return evaluate(module, args)[0], evaluate(module, args, Context(decorate=RandomRounding(seed).decorate))[0]


@pytest.mark.parametrize(
    ("name", "dtype", "low", "high"),
    [
        ("f32", np.float32, 1, 9),
        ("f64", np.float64, 1, 9),
        ("bf16", ml_dtypes.bfloat16, 0.1, 2),
        ("f16", np.float16, 0.1, 2),
    ],
)
@pytest.mark.parametrize("op", ["exponential(x)", "multiply(x, x)", "sqrt(x)", "divide(x, k)"])
def test_results_are_perturbed_by_units_in_the_last_place(
    name: str, dtype: type, low: float, high: float, op: str
) -> None:
    x: Array = RNG.uniform(0.5, 3, 400).astype(dtype)
    c = f"c = {name}[] constant(3)\nk = {name}[400] broadcast(c), dimensions={{}}\n"
    plain, moved = rounded(f"x = {name}[400] parameter(0)\n{c}ROOT r = {name}[400] {op}", x)
    wide = plain.astype(np.float64)
    off = (moved.astype(np.float64) - wide) / wide / precision(np.dtype(dtype)).eps
    assert low <= np.abs(off).max() <= high
    assert np.abs(off.mean()) < np.abs(off).max() / 3


@pytest.mark.parametrize(
    "op",
    [
        "f32[400] negate(x)",
        "f32[400] floor(x)",
        "f32[400] maximum(x, k)",
        "f32[400] select(p, x, k)",
        "s32[400] convert(x)",
        "f64[400] convert(x)",
        "f32[20,20] reshape(x)",
        "f32[400] reverse(x), dimensions={0}",
        "f32[400] remainder(x, k)",
    ],
)
def test_exact_ops_are_not_perturbed(op: str) -> None:
    x = RNG.normal(size=400).astype(np.float32)
    head = "x = f32[400] parameter(0)\nc = f32[] constant(0.3)\nk = f32[400] broadcast(c), dimensions={}\n"
    plain, moved = rounded(f"{head}p = pred[400] compare(x, k), direction=LT\nROOT r = {op}", x)
    np.testing.assert_array_equal(plain, moved)


def test_a_division_may_be_a_multiplication_by_the_reciprocal() -> None:
    x = np.full(50, 127.5, np.float32)
    body = "x = f32[50] parameter(0)\nc = f32[] constant({})\nk = f32[50] broadcast(c), dimensions={{}}\n"
    for divisor, exact in ((127.5, False), (-0.25, True)):
        plain, moved = rounded(body.format(divisor) + "ROOT r = f32[50] divide(x, k)", x)
        assert (plain == moved).all() == exact


@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
def test_arithmetic_without_rounding_is_not_perturbed(op: str) -> None:
    x = (RNG.integers(-4000, 4000, 400) / 4).astype(np.float32)
    plain, moved = rounded(f"x = f32[400] parameter(0)\nROOT r = f32[400] {op}(x, x)", x)
    np.testing.assert_array_equal(plain, moved)


def test_an_exact_difference_of_close_numbers_is_not_perturbed() -> None:
    bits = RNG.integers(0, 1 << 23, 400)
    x = (1 + bits / (1 << 23)).astype(np.float32)
    body = "x = f32[400] parameter(0)\nc = f32[] constant(1)\nk = f32[400] broadcast(c), dimensions={}\n"
    plain, moved = rounded(body + "ROOT r = f32[400] subtract(x, k)", x)
    np.testing.assert_array_equal(plain, moved)


@pytest.mark.parametrize(("name", "absorbed"), [("f32", True), ("f64", True), ("bf16", False)])
def test_a_mask_absorbs_what_is_added_to_it(name: str, absorbed: bool) -> None:
    x = RNG.uniform(-4, 4, 400).astype({"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16}[name])
    mask = "-1e9" if name != "f64" else "-1e18"
    body = (
        f"x = {name}[400] parameter(0)\nc = {name}[] constant({mask})\nk = {name}[400] broadcast(c), dimensions={{}}\n"
    )
    for op in ("add(x, k)", "subtract(k, x)"):
        plain, moved = rounded(body + f"ROOT r = {name}[400] {op}", x)
        assert np.array_equal(plain, moved) == absorbed


def test_sums_are_perturbed_by_the_size_of_their_terms() -> None:
    x, y = RNG.normal(size=(100, 64)).astype(np.float32), RNG.normal(size=64).astype(np.float32)
    x[0] = 1e4 * np.where(np.arange(64) % 2, y[::-1], -y)  # its products cancel
    y[:32] = y[32:][::-1]
    body = "x = f32[100,64] parameter(0)\ny = f32[64] parameter(1)\n"
    plain, moved = rounded(
        body + "ROOT r = f32[100] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x, y
    )
    sizes = np.abs(x) @ np.abs(y)
    off = np.abs(moved - plain) / sizes / np.finfo(np.float32).eps
    assert 0.5 < off.max() < 20
    assert np.abs(moved - plain)[0] > 10 * np.abs(moved - plain)[1:].max()


def test_sums_that_look_exact_by_chance_are_perturbed() -> None:
    x = RNG.uniform(0.5, 1, (40, 32)).astype(np.float32)
    y = np.full((32,), np.float32(0.1))
    x[7] = 0
    x[7, :2] = (5, 5)  # 5 * 0.1 + 5 * 0.1 is 1 in float32
    x[8] = 0
    dot = "ROOT d = f32[40] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    plain, moved = rounded(f"x = f32[40,32] parameter(0)\ny = f32[32] parameter(1)\n{dot}", x, y)
    assert plain[7] == 1 and not looks_inexact(plain)[7]
    assert moved[7] != plain[7] and moved[8] == plain[8] == 0


@pytest.mark.parametrize(("start", "perturbed"), [(0.25, True), (1.0, False)])
def test_large_sums_of_narrow_types_are_exact_only_if_all_terms_are_whole(start: float, perturbed: bool) -> None:
    x = np.full((50, 16), 8).astype(ml_dtypes.bfloat16)
    x[:, 0] = start
    add = "a { x = bf16[] parameter(0)\ny = bf16[] parameter(1)\nROOT s = bf16[] add(x, y) }"
    reduce = "ROOT r = bf16[50] reduce(x, z), dimensions={1}, to_apply=a"
    module = parse(
        f"HloModule m\n{add}\nENTRY e {{\nx = bf16[50,16] parameter(0)\nz = bf16[] constant(0)\n{reduce}\n}}"
    )
    plain = evaluate(module, [x])[0]
    moved = evaluate(module, [x], Context(decorate=RandomRounding(0).decorate))[0]
    assert (plain == np.rint(plain.astype(np.float32))).all()  # 120.25 is rounded to 120
    assert bool((plain != moved).any()) == perturbed


def test_the_seed_determines_the_errors() -> None:
    x = RNG.normal(size=400).astype(np.float32)
    body = "x = f32[400] parameter(0)\nROOT r = f32[400] cosine(x)"
    first, again, other = (rounded(body, x, seed=s)[1] for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_ops_inside_loops_and_called_computations_are_perturbed_too() -> None:
    x = RNG.normal(size=50).astype(np.float32)
    module = parse("HloModule m\nf { p = f32[50] parameter(0) ROOT s = f32[50] sine(p) }\n"
                   "ENTRY e { x = f32[50] parameter(0) ROOT c = f32[50] call(x), to_apply=f }")  # fmt: skip
    moved = evaluate(module, [x], Context(decorate=RandomRounding(0).decorate))[0]
    assert (moved != evaluate(module, [x])[0]).any()


def test_numbers_that_look_rounded() -> None:
    x = np.array([0.0, 3.0, -70000.0, 0.5, 0.1, 1 / 3, 2.0**30], np.float32)
    assert looks_inexact(x).tolist() == [False, False, False, False, True, True, False]
    assert looks_inexact(np.array(0.1, np.float64))
    assert looks_inexact(np.array([0.1, 0.3, 1.5], ml_dtypes.bfloat16)).tolist() == [True, True, False]


def test_floating_point_types_are_recognised() -> None:
    wide = (np.float32, np.float64, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
    assert all(is_float(np.dtype(t)) for t in wide)
    assert not any(is_float(np.dtype(t)) for t in (np.bool_, np.int8, np.uint64, ml_dtypes.int4, ml_dtypes.uint2))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_what_rounding_does_to_many_numbers_in_one_direction_is_not_in_all_evaluations(name: str, dtype: type) -> None:
    x: Array = RNG.normal(size=(3000, 8)).astype(dtype)
    y: Array = np.full(8, precision(np.dtype(dtype)).eps / 5).astype(dtype)
    added = f"z = {name}[3000,8] broadcast(y), dimensions={{1}}\nROOT r = {name}[3000,8] add(x, z)"
    body = f"x = {name}[3000,8] parameter(0)\ny = {name}[8] parameter(1)\n{added}"
    plain, moved = (a.astype(np.float64).sum(0) for a in rounded(body, x, y))
    exact = (x.astype(np.float64) + y.astype(np.float64)).sum(0)
    assert np.all(np.abs(moved - exact) < np.abs(plain - exact))
