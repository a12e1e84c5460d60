"""Numerics of the torch frontend, where a naive translation to HLO would be inaccurate, against eager PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch.nn import functional as F

from compiler import compile
from compiler.frontends.torch import arguments, lower
from compiler.interpreter import evaluate


def found(program: Any, *args: Any) -> Any:
    (result,) = evaluate(lower(program, *args), arguments(program, *args))
    return result


def same(program: Any, *args: Any) -> None:
    np.testing.assert_array_equal(found(program, *args), program(*args).numpy())


def test_half_precision_activations_round_once_and_do_not_overflow() -> None:
    def program(v: Any) -> Any:
        return [f(v) for f in (F.softplus, F.gelu, F.silu, F.elu, F.hardswish, F.mish, F.leaky_relu)]

    values = torch.linspace(-20, 20, 801).half()
    for got, want in zip(evaluate(lower(program, values), [values.numpy()]), program(values), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.float().numpy(), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_tensors_are_scaled_by_numbers_that_are_not_rounded(half: torch.dtype) -> None:
    values = torch.cat([torch.linspace(-60000, 60000, 96), torch.linspace(-1, 1, 160)]).to(half)  # no rest of a vector

    def check(program: Any, *args: Any) -> None:
        got, want = found(program, *args), program(*args).float().numpy()
        np.testing.assert_array_equal(got.astype(np.float32), want)

    for number in (0.1, 1e6, 1e-6, 65536.0):
        check(lambda v, n=number: v * n, values)
        check(lambda v, n=number: n * v, values)
        check(lambda v, n=number: v / n, values)
        check(lambda v, n: v * n, values, torch.tensor(number))
    check(lambda v: torch.add(v, v.flip(0), alpha=0.1), values)
    check(lambda v: torch.sub(v, v.flip(0), alpha=0.3), values)


def test_floor_division_of_floats_is_that_of_the_remainder() -> None:
    a, b = torch.tensor([1.0, -1.0, 7.0, 0.3, 5.0, -5.0, 0.0]), torch.tensor([0.1, 0.1, -2.0, 0.1, 0.0, 3.0, 2.0])
    same(lambda u, v: torch.div(u, v, rounding_mode="floor"), a, b)
    same(lambda u, v: u // v, a, b)


def test_unsigned_numbers_are_shifted_without_a_sign() -> None:
    same(lambda v: v >> 1, torch.tensor([200, 255, 3], dtype=torch.uint8))


def test_logarithms_of_powers_are_whole() -> None:
    powers = torch.tensor([2.0**k for k in range(-30, 31)])
    same(torch.log2, powers)
    same(lambda v: torch.log10(v).round(), torch.tensor([10.0**k for k in range(-6, 7)]))


def test_sorting_does_not_tell_signs_of_zeros_and_nan_apart() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -np.nan, -1.0, 0.0, np.nan])
    same(lambda v: torch.argsort(v, stable=True), values)
    same(lambda v: torch.sort(v, stable=True, descending=True).indices, values)


def test_integers_are_finite() -> None:
    same(torch.isfinite, torch.tensor([1, 2]))


def test_rounding_to_decimals() -> None:
    values = torch.tensor([1.234, -5.678, 149.0])
    for decimals in (2, 0, -1):
        np.testing.assert_allclose(
            found(lambda v, n=decimals: v.round(decimals=n), values), values.round(decimals=decimals), rtol=1e-6
        )


@pytest.mark.parametrize(("size", "factor"), [(5, 1.5), (7, 1.7), (10, 0.3), (3, 2.5)])
def test_nearest_pixels_follow_the_factor_that_was_given(size: int, factor: float) -> None:
    same(lambda v: F.interpolate(v, scale_factor=factor), torch.arange(float(size)).view(1, 1, size))


def test_sums_along_nothing() -> None:
    same(lambda v: v.cumsum(1), torch.zeros(3, 0))


SPECIAL: dict[str, tuple[Any, Any, tuple[float, float]]] = {
    "lgamma": (torch.lgamma, special.gammaln, (0.05, 30)),
    "lgamma_negative": (torch.lgamma, special.gammaln, (-5.9, -0.1)),
    "digamma": (torch.digamma, special.digamma, (2, 30)),
    "digamma_negative": (torch.digamma, special.digamma, (-3.9, -3.1)),
    "erfc": (torch.erfc, special.erfc, (-3, 8)),
    "erfinv": (torch.erfinv, special.erfinv, (-0.99, 0.99)),
    "trigamma": (lambda v: torch.polygamma(1, v), lambda v: special.polygamma(1, v), (-0.9, 9)),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-11)])
def test_special_functions(dtype: Any, tolerance: float) -> None:
    """Return the error relative to the result, except near a zero of the function."""

    def program(*values: Any) -> Any:
        return [function(v) for (function, _, _), v in zip(SPECIAL.values(), values, strict=True)]

    values = [np.linspace(low, high, 1001).astype(dtype) for _, _, (low, high) in SPECIAL.values()]
    module = lower(program, *map(torch.from_numpy, values))
    for results in (evaluate(module, values), compile(module, "cpu")(*values)):
        for (name, (_, reference, _)), value, got in zip(SPECIAL.items(), values, results, strict=True):
            near_zero = 0.0 if name == "erfc" else tolerance
            np.testing.assert_allclose(got, reference(value.astype(np.float64)), rtol=tolerance, atol=near_zero)


def compared(program: Any, reference: Any, *args: Any, rtol: float) -> None:
    """Compare the kernels of a program with a reference in double precision."""
    args = tuple(np.ascontiguousarray(a) for a in args)
    (result,) = compile(lower(program, *map(torch.from_numpy, args)), "cpu")(*args)
    wanted = reference(*(a.astype(np.float64) for a in args))
    np.testing.assert_allclose(result, wanted, rtol=rtol, atol=1e-30 if args[0].dtype == np.float32 else 1e-290)


PRECISIONS = pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 3e-5), (np.float64, 1e-11)])


@PRECISIONS
@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_at_small_and_large_arguments(name: str, dtype: Any, rtol: float) -> None:
    rng = np.random.default_rng(0)
    a = np.concatenate([10 ** rng.uniform(-6, 6, 400), rng.uniform(0, 40, 400), 10 ** rng.uniform(0, 5, 400)])
    near = a[800:] * (1 + rng.normal(size=400) * 2 / np.sqrt(a[800:] + 4)).clip(0.1)
    x = np.concatenate([10 ** rng.uniform(-6, 6, 400), rng.uniform(0, 40, 400), near])
    compared(getattr(torch.special, name), getattr(special, name), a.astype(dtype), x.astype(dtype), rtol=rtol)


@pytest.mark.parametrize("function", [torch.special.gammainc, torch.special.gammaincc])
def test_incomplete_gamma_functions_at_their_limits(function: Any) -> None:
    ends = torch.tensor([0.0, 1.0, np.inf, -1.0])
    args = torch.cartesian_prod(ends, ends).unbind(1)
    np.testing.assert_allclose(found(function, *args), function(*args).numpy(), rtol=1e-6)
    ends = torch.tensor([1.0, np.nan])
    assert np.isnan(found(function, *torch.cartesian_prod(ends, ends).unbind(1))[1:]).all()


@PRECISIONS
def test_zeta_and_the_derivatives_of_digamma(dtype: Any, rtol: float) -> None:
    rng = np.random.default_rng(0)
    s, q = rng.uniform(1.01, 12, 500).astype(dtype), (10 ** rng.uniform(-2, 3, 500)).astype(dtype)
    compared(torch.special.zeta, special.zeta, s, q, rtol=rtol)
    # Whole exponents allow negative numbers; those here are not near zeros of the function.
    negative = np.concatenate([np.arange(-20, 0) + f for f in (0.2, 0.3, 0.7)]).astype(dtype)
    compared(torch.special.zeta, special.zeta, np.full(60, 4, dtype), negative, rtol=rtol)
    for order in (2, 5):
        wanted = lambda v, n=order: (-1) ** (n + 1) * special.factorial(n) * special.zeta(n + 1, v)  # noqa: E731
        compared(lambda v, n=order: torch.polygamma(n, v), wanted, np.concatenate([q, negative]), rtol=rtol)


def test_zeta_at_poles_and_where_it_is_undefined() -> None:
    s, q = torch.tensor([1.0, 0.5, 2.0, 3.0, 2.5, 2.5, 2.0]), torch.tensor([2.0, 2.0, 0.0, -3.0, -1.0, -1.5, np.nan])
    same(torch.special.zeta, s, q)


@PRECISIONS
def test_normal_quantiles(dtype: Any, rtol: float) -> None:
    tiny = float(np.finfo(dtype).tiny)
    p = np.concatenate([np.linspace(0, 1, 200), np.geomspace(tiny, 0.1, 400), 1 - np.geomspace(1e-7, 0.1, 100)])
    compared(torch.special.ndtri, special.ndtri, p.astype(dtype), rtol=rtol)
    assert np.isnan(found(torch.special.ndtri, torch.tensor([-0.1, 1.1, np.nan]))).all()


def test_draws_with_replacement_follow_the_weights() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5]])
    program = lambda w: torch.multinomial(w, 4000, replacement=True)  # noqa: E731
    drawn = evaluate(lower(program, weights), arguments(program, weights, seed=3))[0]
    shares = [np.bincount(row, minlength=3) / 4000 for row in drawn]
    np.testing.assert_allclose(shares, weights.numpy(), atol=0.03)


def test_normal_numbers_of_given_mean_and_deviation() -> None:
    program = lambda m, d: torch.normal(m, d)  # noqa: E731
    args = torch.full((4000,), 3.0), torch.full((4000,), 0.5)
    drawn = evaluate(lower(program, *args), arguments(program, *args, seed=3))[0]
    assert abs(drawn.mean() - 3) < 0.05
    assert abs(drawn.std() - 0.5) < 0.05
