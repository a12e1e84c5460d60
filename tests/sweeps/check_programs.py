"""Programs whose outputs have values of very different magnitude: masks, sparse and tiny gradients, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from env.suites.lowering import lower_to_text

Built = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[np.random.Generator], Built]] = {}


def _add(builder: Callable[[np.random.Generator], Built]) -> Callable[[np.random.Generator], Built]:
    PROGRAMS[builder.__name__] = builder
    return builder


def normal(rng: np.random.Generator, *dims: int, scale: float = 1.0) -> Any:
    return (rng.standard_normal(dims) * scale).astype(np.float32)


@cache
def built(name: str, seed: int) -> tuple[str, tuple[Any, ...]]:
    """Return the HLO text and the arguments of a program."""
    function, args = PROGRAMS[name](np.random.default_rng(seed))
    return lower_to_text(function, *args), args


@_add
def causal_scores(rng: np.random.Generator) -> Built:
    """Half of the output is -1e9."""

    def f(q: Any, k: Any) -> Any:
        scores = q @ k.T / np.sqrt(q.shape[-1]).astype(np.float32)
        return jnp.where(jnp.tril(jnp.ones(scores.shape, bool)), scores, -1e9)

    return f, (normal(rng, 128, 32), normal(rng, 128, 32))


@_add
def sliding_window_scores(rng: np.random.Generator) -> Built:
    """Some 95% of the output is -1e9."""

    def f(q: Any, k: Any) -> Any:
        scores = q @ k.T
        far = jnp.abs(jnp.arange(scores.shape[0])[:, None] - jnp.arange(scores.shape[1])) > 3
        return scores + jnp.where(far, -1e9, 0.0)

    return f, (normal(rng, 128, 32), normal(rng, 128, 32))


@_add
def masked_logits_with_infinity(rng: np.random.Generator) -> Built:
    def f(x: Any, keep: Any) -> Any:
        return jnp.where(keep, jnp.tanh(x) * 30, -jnp.inf)

    return f, (normal(rng, 64, 100), rng.random((64, 100)) < 0.3)


@_add
def embedding_gradient(rng: np.random.Generator) -> Built:
    """A few rows of the gradient are large, many are small, and most are zero."""

    def loss(table: Any, tokens: Any, weight: Any) -> Any:
        return jnp.sum(jnp.tanh(table[tokens]) * weight[:, None])

    weight = (10.0 ** rng.uniform(-6, 4, 200)).astype(np.float32)
    return jax.grad(loss), (normal(rng, 500, 16), rng.integers(0, 500, 200).astype(np.int32), weight)


@_add
def tiny_gradient(rng: np.random.Generator) -> Built:
    """Gradients of about 1e-8, as at the end of training with a mean loss."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2) * 1e-6

    return jax.grad(loss), (normal(rng, 64, 32, scale=0.1), normal(rng, 256, 64), normal(rng, 256, 32))


@_add
def parameters_of_different_scale(rng: np.random.Generator) -> Built:
    """One output whose rows differ by factors of ten."""

    def f(x: Any, scale: Any) -> Any:
        return jnp.sin(x) * scale[:, None]

    return f, (normal(rng, 24, 64), (10.0 ** np.arange(-12, 12)).astype(np.float32))


@_add
def cancelling_sums(rng: np.random.Generator) -> Built:
    """Differences of large sums: centred values, and sums that are almost zero."""

    def f(x: Any) -> Any:
        centred = x - jnp.mean(x, axis=0)
        return centred, jnp.sum(centred, axis=0), jnp.sum(x * x, axis=0) - x.shape[0] * jnp.mean(x, axis=0) ** 2

    return f, (normal(rng, 300, 40) + np.float32(100),)


@_add
def clipped_norms(rng: np.random.Generator) -> Built:
    """Clipping by the global norm of a list of parameters."""

    def f(*gradients: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
        return [g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)) for g in gradients], norm

    return f, (normal(rng, 64), normal(rng, 1, 64, scale=1e-3), normal(rng, 64, 1, scale=1e-6), normal(rng, 3, 3, 8, 8))


@_add
def half_precision_attention(rng: np.random.Generator) -> Built:
    def f(q: Any, k: Any, v: Any, keep: Any) -> Any:
        scores = jnp.where(keep, q @ k.T, jnp.asarray(-1e9, q.dtype))
        return jax.nn.softmax(scores, axis=-1) @ v, scores

    args = [normal(rng, 48, 16).astype(jnp.bfloat16) for _ in range(3)]
    return f, (*args, rng.random((48, 48)) < 0.4)


@_add
def segment_sums(rng: np.random.Generator) -> Built:
    def f(x: Any, segments: Any) -> Any:
        return jax.ops.segment_sum(x, segments, 50), jax.ops.segment_max(x, segments, 50)

    return f, (normal(rng, 2000), np.sort(rng.integers(0, 45, 2000)).astype(np.int32))


@_add
def argmax_and_counts(rng: np.random.Generator) -> Built:
    def f(x: Any, y: Any) -> Any:
        best = jnp.argmax(x @ y, axis=-1)
        return best, jnp.bincount(best, length=20), (x @ y) > 0

    return f, (normal(rng, 300, 30), normal(rng, 30, 20))


@_add
def pendulum_steps(rng: np.random.Generator) -> Built:
    """A simulator: states of 500 environments after 60 steps, with resets."""

    def step(state: Any, action: Any) -> Any:
        angle, speed = state
        speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * action), -8, 8)
        angle = angle + 0.05 * speed
        done = jnp.abs(angle) > 6
        return (jnp.where(done, 0.1, angle), jnp.where(done, 0.0, speed)), done

    def f(angle: Any, speed: Any, actions: Any) -> Any:
        (angle, speed), done = jax.lax.scan(step, (angle, speed), actions)
        return angle, speed, jnp.sum(done, axis=0)

    return f, (normal(rng, 500), normal(rng, 500), normal(rng, 60, 500))
