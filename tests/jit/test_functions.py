"""Functions through `hlogym.jit`, alone and under jit, grad and vmap, give what they give through `jax.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlogym
from tests.jit.jax_functions import FIRST, FUNCTIONS

NAMES = [pytest.param(name, marks=() if n < FIRST else pytest.mark.slow) for n, name in enumerate(FUNCTIONS)]


LOOSE = {"mixed_types"}
"""Functions that compute with float32 inside, and whose gradients are of a wider type."""


def _assert_equal(got: Any, expected: Any, loose: bool = False) -> None:
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(expected))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        tolerance = 1e-9 if b.dtype.itemsize >= 8 and not loose else 1e-5
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def _loss(f: Any) -> Any:
    def loss(*args: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(x)) for x in leaves)

    return loss


def _batched(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return jnp.stack([args[0], args[0] * 1.25, args[0] + 0.125]), *args[1:]


def _again(f: Any, g: Any) -> Any:
    """Return g compiled by the compiler of f."""
    return hlogym.jit(g) if hasattr(f, "plan") else jax.jit(g)


TRANSFORMS: dict[str, Any] = {
    "call": lambda f, args: f(*args),
    "jit": lambda f, args: jax.jit(lambda *a: jax.tree.map(lambda x: x + x, f(*a)))(*args),
    "grad": lambda f, args: jax.grad(_loss(f))(*args),
    "jit of grad": lambda f, args: jax.jit(jax.value_and_grad(_loss(f)))(*args),
    "vmap": lambda f, args: jax.vmap(f, (0, *[None] * (len(args) - 1)))(*_batched(args)),
    "vmap of grad": lambda f, args: jax.jit(jax.vmap(jax.grad(_loss(f)), (0, *[None] * (len(args) - 1))))(
        *_batched(args)
    ),
    "of grad": lambda f, args: _again(f, jax.grad(_loss(f.__wrapped__)))(*args),
    "of vmap": lambda f, args: _again(f, jax.vmap(f.__wrapped__, (0, *[None] * (len(args) - 1))))(*_batched(args)),
}


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_jax(name: str) -> None:
    function, make = FUNCTIONS[name]
    with jax.enable_x64(True):
        args = make()
        ours, theirs = hlogym.jit(function), jax.jit(function)
        for transform in TRANSFORMS.values():
            _assert_equal(transform(ours, args), transform(theirs, args), name in LOOSE)


def test_there_are_sixty_functions() -> None:
    assert len(FUNCTIONS) >= 60
