"""Families of reinforcement learning, random numbers and dropout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes

FAMILIES = Families()
KEY = integers(0, 2**32, 2, dtype="uint32")


@FAMILIES.add
def policy_gradients() -> Members:
    """Parts of policy learning: advantages, clipped objectives, entropies, V-trace, Q targets, replay sums."""

    def advantages(r: Array, v: Array, p: Array) -> Array:
        delta = r[:-1] + 0.99 * v[1:] - v[:-1]
        return lax.scan(lambda c, d: (d + 0.9405 * c,) * 2, jnp.zeros(r.shape[1:]), delta, reverse=True)[1]

    def returns(r: Array, v: Array, p: Array) -> Array:
        return lax.scan(lambda c, x: (x + 0.99 * c,) * 2, v[-1], r, reverse=True)[1]

    def clipped(r: Array, v: Array, p: Array) -> Array:
        ratio, a = jnp.exp(p - v), (r - r.mean()) / (r.std() + 1e-6)
        return -jnp.mean(jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a))

    def vtrace(r: Array, v: Array, p: Array) -> Array:
        rho = jnp.minimum(1, jnp.exp(p[:-1] - v[:-1]))
        delta = rho * (r[:-1] + 0.99 * v[1:] - v[:-1])
        return (
            lax.scan(lambda c, x: (x[0] + 0.99 * x[1] * c,) * 2, jnp.zeros(r.shape[1:]), (delta, rho), reverse=True)[1]
            + v[:-1]
        )

    def entropy(r: Array, v: Array, p: Array) -> Array:
        logp = jax.nn.log_softmax(p)
        return -jnp.mean(jnp.sum(jnp.exp(logp) * logp, -1)) + 0.5 * jnp.mean((v - r) ** 2)

    def categorical(r: Array, v: Array, p: Array) -> Array:
        z = jnp.clip(r[:, :1] + 0.99 * jnp.linspace(-1, 1, p.shape[1]), -1, 1)
        low = jnp.floor((z + 1) / 2 * (p.shape[1] - 1)).astype(jnp.int32)
        return jax.vmap(lambda i, w: jnp.zeros(p.shape[1]).at[i].add(w))(low, jax.nn.softmax(p))

    variants: dict[str, Any] = {
        "advantages": advantages,
        "returns": returns,
        "clipped": clipped,
        "clipped_gradient": jax.grad(clipped, 2),
        "vtrace": vtrace,
        "entropy": entropy,
        "entropy_gradient": jax.grad(entropy, (1, 2)),
        "categorical": categorical,
        "double_q": lambda r, v, p: jnp.mean(
            (r + 0.99 * jnp.take_along_axis(v, jnp.argmax(p, -1)[:, None], 1) - p) ** 2
        ),
    }
    cases = {
        sizes(t, n): (normal(t, n), normal(t, n), normal(t, n)) for t, n in ((16, 8), (128, 32), (256, 256), (2048, 64))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def random_numbers() -> Members:
    """Random numbers from keys: distributions, permutations, masks, splits, categorical draws, low discrepancy."""

    def key(k: Array) -> Any:
        return jax.random.wrap_key_data(k)

    def halton(n: int, base: int) -> Any:
        i = jnp.arange(1, n + 1)

        def step(_: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            i, f, r = c
            return i // base, f / base, r + f / base * (i % base)

        return lax.fori_loop(0, 20, step, (i, jnp.ones(n), jnp.zeros(n)))[2]

    for n in (256, 10000, 1000000):
        variants: dict[str, Any] = {
            "uniform": lambda k, n=n: jax.random.uniform(key(k), (n,)),
            "normal": lambda k, n=n: jax.random.normal(key(k), (n,)),
            "exponential": lambda k, n=n: jax.random.exponential(key(k), (n,)),
            "gumbel": lambda k, n=n: jax.random.gumbel(key(k), (n,)),
            "bernoulli": lambda k, n=n: jax.random.bernoulli(key(k), 0.3, (n,)),
            "integers": lambda k, n=n: jax.random.randint(key(k), (n,), 0, 100),
            "laplace": lambda k, n=n: jax.random.laplace(key(k), (n,)),
            "truncated": lambda k, n=n: jax.random.truncated_normal(key(k), -2, 2, (n,)),
            "categorical": lambda k, n=n: jax.random.categorical(key(k), jnp.zeros((n // 64, 10))),
            "halton": lambda k, n=n: halton(n, 3) + 0 * k[0],
            "split": lambda k, n=n: jax.vmap(lambda q: jax.random.uniform(q))(jax.random.split(key(k), n // 16)),
            "cauchy": lambda k, n=n: jax.random.cauchy(key(k), (n,)),
            "pi": lambda k, n=n: 4 * jnp.mean(jnp.sum(jax.random.uniform(key(k), (n, 2)) ** 2, -1) < 1),
            "box_muller": lambda k, n=n: (
                jnp.sqrt(-2 * jnp.log(1 - jax.random.uniform(key(k), (n,)))) * jnp.cos(jnp.arange(n))
            ),
        }
        yield from each_of(variants, {str(n): (KEY,)}, chaotic=True)
    yield from each_of(
        {
            "permutation": lambda k: jax.random.permutation(key(k), 1000),
            "choice": lambda k: jax.random.choice(key(k), 500, (100,), replace=False),
        },
        {"1000": (KEY,)},
        chaotic=True,
    )


@FAMILIES.add
def dropout() -> Members:
    """Dropout with the random numbers inside: of activations, of channels, of paths, after attention, and gradients."""

    def keep(k: Array, dims: tuple[int, ...], rate: float) -> Array:
        return jax.random.uniform(jax.random.wrap_key_data(k), dims) >= rate

    def plain(x: Array, k: Array) -> Array:
        return jnp.where(keep(k, x.shape, 0.1), x / 0.9, 0)

    variants: dict[str, Any] = {
        "plain": plain,
        "residual": lambda x, k: x + plain(jax.nn.gelu(x), k),
        "columns": lambda x, k: x * keep(k, (1, x.shape[1]), 0.2) / 0.8,
        "rows": lambda x, k: x * keep(k, (x.shape[0], 1), 0.2) / 0.8,
        "softmax": lambda x, k: plain(jax.nn.softmax(x), k),
        "gradient": gradient(plain, 0),
        "noise": lambda x, k: x + 0.1 * jax.random.normal(jax.random.wrap_key_data(k), x.shape),
        "mixup": lambda x, k: jnp.where(keep(k, (x.shape[0], 1), 0.5), x, jnp.flip(x, 0)),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d), KEY) for d in ((32, 64), (256, 512), (2048, 1024))})
