"""Training steps made from losses: all parameters come first among the arguments, then their moments, then the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from experiments.natives.native import Input, Native, normal, uniform

__all__ = ["RATE", "adam_step", "sgd_step"]

Loss = Callable[..., Any]
RATE, B1, B2, EPS = 1e-3, 0.9, 0.999, 1e-8
STEP = 10
"""The number of the step, by which Adam corrects its moments."""


def sgd_step(jax_loss: Loss, torch_loss: Loss, weights: Sequence[Input], data: Sequence[Input]) -> Native:
    """Return the program that computes the loss and the weights after a step of gradient descent."""
    count = len(weights)
    where = tuple(range(count))

    def jax_step(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        loss, grads = jax.value_and_grad(jax_loss, argnums=where)(*arrays)
        return loss, *(w - RATE * g for w, g in zip(arrays, grads, strict=False))

    def torch_step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grads, loss = torch.func.grad_and_value(torch_loss, argnums=where)(*tensors)
        return loss, *(w - RATE * g for w, g in zip(tensors, grads, strict=False))

    return Native(jax_step, torch_step, (*weights, *data))


def adam_step(jax_loss: Loss, torch_loss: Loss, weights: Sequence[Input], data: Sequence[Input]) -> Native:
    """Return the program that computes the loss, the weights and both moments after a step of Adam.

    The gradients are clipped to norm 0.5, as PPO does.
    """
    n = len(weights)
    where = tuple(range(n))
    parts = ((0, n), (n, 2 * n), (2 * n, 3 * n), (3 * n, None))

    def jax_step(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        p, m, v, rest = (list(arrays[a:b]) for a, b in parts)
        loss, grads = jax.value_and_grad(jax_loss, argnums=where)(*p, *rest)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
        grads = [g * jnp.minimum(1.0, 0.5 / (norm + 1e-6)) for g in grads]
        m = [B1 * a + (1 - B1) * g for a, g in zip(m, grads, strict=True)]
        v = [B2 * a + (1 - B2) * g * g for a, g in zip(v, grads, strict=True)]
        p = [
            w - RATE * (a / (1 - B1**STEP)) / (jnp.sqrt(b / (1 - B2**STEP)) + EPS)
            for w, a, b in zip(p, m, v, strict=True)
        ]
        return loss, *p, *m, *v

    def torch_step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p, m, v, rest = (list(tensors[a:b]) for a, b in parts)
        grads, loss = torch.func.grad_and_value(torch_loss, argnums=where)(*p, *rest)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        scale = torch.clamp(0.5 / (norm + 1e-6), max=1.0)
        m = [torch.lerp(a, g * scale, 1 - B1) for a, g in zip(m, grads, strict=True)]
        v = [B2 * a + (1 - B2) * (g * scale) ** 2 for a, g in zip(v, grads, strict=True)]
        size, root = RATE / (1 - B1**STEP), math.sqrt(1 - B2**STEP)
        p = [w - size * a / (b.sqrt() / root + EPS) for w, a, b in zip(p, m, v, strict=True)]
        return loss, *p, *m, *v

    first = [normal(*w.dims, std=1e-2) for w in weights]
    second = [uniform(1e-4, 1e-3, *w.dims) for w in weights]
    return Native(jax_step, torch_step, (*weights, *first, *second, *data))
