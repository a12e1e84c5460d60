"""Functions of `hlogym.jit` under settings of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlogym

jit = hlogym.jit
CONVERTED = pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])


# ---- jax.disable_jit


def _halved(x: Any) -> Any:
    return x / 2 if x.sum() > 0 else -x  # cannot be traced


@CONVERTED
def test_a_function_is_called_itself_without_jit(convert: Any) -> None:
    f, x = jit(_halved), convert(np.ones(3, np.float32))
    with jax.disable_jit():
        np.testing.assert_array_equal(f(x), [0.5, 0.5, 0.5])
        np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(x), [0.5, 0.5, 0.5])
        assert jit(lambda x, n: n, static_argnums=1)(x, "text") == "text"
    with pytest.raises(jax.errors.TracerBoolConversionError):
        f(x)


def test_numpy_arrays_are_returned_after_calls_without_jit() -> None:
    f, x = jit(lambda x: x + 1), np.ones(3, np.float32)
    with jax.disable_jit():
        f(x)
    assert type(f(x)) is np.ndarray


# ---- jax.debug_nans and jax.debug_infs

INVALID: dict[str, tuple[Callable[..., Any], float]] = {
    "call": (lambda f, x: f(x), -1.0),
    "jit": (lambda f, x: jax.jit(f)(x), -1.0),
    "vmap": (lambda f, x: jax.vmap(f)(x), -1.0),
    "grad": (lambda f, x: jax.grad(lambda x: f(x).sum() * 0)(x), 1.0),
}


@CONVERTED
@pytest.mark.parametrize("name", INVALID)
def test_nans_are_errors_that_name_the_op(name: str, convert: Any) -> None:
    transform, number = INVALID[name]
    f, x = jit(lambda x: jnp.sqrt(jnp.log(x) * 2)), convert(np.full(3, number, np.float32))
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match=r"invalid value .*encountered in (log|mul|div)"):
            transform(f, x)
        np.testing.assert_allclose(f(x * 0 + 2), np.sqrt(np.log(2) * 2) + np.zeros(3), rtol=1e-6)


@CONVERTED
def test_infinities_are_errors_that_name_the_op(convert: Any) -> None:
    f, x = jit(lambda x: {"narrow": jnp.log(x).astype(jnp.bfloat16)}), convert(np.zeros(3, np.float32))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in log"):
        f(x)
    assert np.isinf(np.asarray(f(x)["narrow"], np.float32)).all()


def test_nans_inside_a_program_are_no_errors() -> None:
    f = jit(lambda x: jnp.where(x > 0, jnp.log(x), 0))
    with jax.debug_nans(True):
        np.testing.assert_array_equal(f(-np.ones(3, np.float32)), np.zeros(3))


def test_nans_of_arguments_are_errors_too() -> None:
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jit(lambda x: x)(np.array([1, np.nan], np.float32))


# ---- settings that programs depend on


@CONVERTED
def test_programs_are_traced_again_under_other_settings(convert: Any) -> None:
    x, row = convert(np.ones((2, 2), np.float32)), convert(np.ones(2, np.float32))
    f = jit(lambda a, b: a + b)
    for _ in range(2):
        assert f(x, row).shape == (2, 2)
        with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
            f(x, row)
        with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="promotion"):
            f(x, convert(np.ones((2, 2), np.int32)))
    draws = jit(lambda x: x + jax.random.uniform(jax.random.PRNGKey(0), (2, 2)))
    found = []
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            found.append(draws(x))
            np.testing.assert_allclose(found[-1], jax.jit(draws.__wrapped__)(x), rtol=1e-6)
    assert (found[0] != found[1]).any() and (found[0] == found[2]).all()


def test_programs_are_traced_again_for_other_named_axes() -> None:
    f, one = jit(lambda x: x * jax.lax.axis_size("i")), np.ones(1, np.float32)
    for size in (2, 3, 2):
        found = jax.vmap(lambda x: x + f(one), axis_name="i")(jnp.zeros(size))
        np.testing.assert_array_equal(found, np.full((size, 1), size))
