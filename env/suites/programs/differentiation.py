"""Gradients for families written in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["gradient", "value_and_gradient"]


def _loss(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((jnp.mean(jnp.square(x.astype(jnp.float32))) for x in leaves), jnp.float32(0))

    return loss


def gradient(f: Callable[..., Any], *arguments: int) -> Callable[..., Any]:
    """Return the gradient of the mean square of a function's results with respect to some arguments (default: all)."""

    def of(*args: Any) -> Any:
        return jax.grad(_loss(f), arguments or tuple(range(len(args))))(*args)

    return of


def value_and_gradient(f: Callable[..., Any], *arguments: int) -> Callable[..., Any]:
    """Return a function of the mean square of a function's results and its gradient."""

    def of(*args: Any) -> Any:
        return jax.value_and_grad(_loss(f), arguments or tuple(range(len(args))))(*args)

    return of
