"""Random numbers of every kind in jax.random, and simulators that draw them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from env.suites.jax_programs.collection import Builder, Collection, normal

RANDOMNESS = Collection()
Built = tuple[Any, tuple[Any, ...]]
_SEED = np.int32(7)

_DRAWS: dict[str, Any] = {
    "ball": lambda k: jax.random.ball(k, 3, shape=(4,)),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (9,)),
    "beta": lambda k: jax.random.beta(k, 2.0, 3.0, (5,)),
    "binomial": lambda k: jax.random.binomial(k, 10.0, 0.4, (5,)),
    "bits_8": lambda k: jax.random.bits(k, (7,), jnp.uint8),
    "bits_16": lambda k: jax.random.bits(k, (7,), jnp.uint16),
    "bits_32": lambda k: jax.random.bits(k, (7,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.log(jnp.arange(1.0, 6.0)), shape=(8,)),
    "cauchy": lambda k: jax.random.cauchy(k, (6,)),
    "chisquare": lambda k: jax.random.chisquare(k, 3.0, shape=(4,)),
    "choice": lambda k: jax.random.choice(k, 10, (5,), replace=False),
    "choice_weighted": lambda k: jax.random.choice(k, 4, (5,), p=jnp.array([0.1, 0.2, 0.3, 0.4])),
    "dirichlet": lambda k: jax.random.dirichlet(k, jnp.array([1.0, 2.0, 3.0]), (2,)),
    "double_sided_maxwell": lambda k: jax.random.double_sided_maxwell(k, 0.0, 1.0, (4,)),
    "exponential": lambda k: jax.random.exponential(k, (6,)),
    "f": lambda k: jax.random.f(k, 3.0, 4.0, shape=(4,)),
    "fold_in": lambda k: jax.random.normal(jax.random.fold_in(k, 5), (4,)),
    "gamma": lambda k: jax.random.gamma(k, 2.5, (5,)),
    "generalized_normal": lambda k: jax.random.generalized_normal(k, 1.5, (4,)),
    "geometric": lambda k: jax.random.geometric(k, 0.3, (6,)),
    "gumbel": lambda k: jax.random.gumbel(k, (6,)),
    "laplace": lambda k: jax.random.laplace(k, (6,)),
    "loggamma": lambda k: jax.random.loggamma(k, 0.5, (5,)),
    "logistic": lambda k: jax.random.logistic(k, (6,)),
    "lognormal": lambda k: jax.random.lognormal(k, 1.0, (6,)),
    "maxwell": lambda k: jax.random.maxwell(k, (4,)),
    "multinomial": lambda k: jax.random.multinomial(k, jnp.float32(8), jnp.array([0.2, 0.3, 0.5])),
    "multivariate_normal": lambda k: jax.random.multivariate_normal(
        k, jnp.zeros(2), jnp.array([[2.0, 0.5], [0.5, 1.0]]), (3,)
    ),
    "normal": lambda k: jax.random.normal(k, (3, 5)),
    "normal_bf16": lambda k: jax.random.normal(k, (9,), jnp.bfloat16),
    "normal_f16": lambda k: jax.random.normal(k, (9,), jnp.float16),
    "complex_normal": lambda k: jax.random.normal(k, (5,), jnp.complex64),
    "orthogonal": lambda k: jax.random.orthogonal(k, 3),
    "pareto": lambda k: jax.random.pareto(k, 2.0, (6,)),
    "permutation": lambda k: jax.random.permutation(k, 11),
    "poisson": lambda k: jax.random.poisson(k, 4.0, (6,)),
    "rademacher": lambda k: jax.random.rademacher(k, (8,)),
    "randint": lambda k: jax.random.randint(k, (9,), -5, 100),
    "randint_8": lambda k: jax.random.randint(k, (9,), -5, 100, jnp.int8),
    "rayleigh": lambda k: jax.random.rayleigh(k, 1.5, (5,)),
    "split": lambda k: jax.random.key_data(jax.random.split(k, 4)),
    "t": lambda k: jax.random.t(k, 3.0, (5,)),
    "triangular": lambda k: jax.random.triangular(k, 0.0, 0.3, 1.0, (5,)),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1.0, 2.0, (6,)),
    "uniform": lambda k: jax.random.uniform(k, (4, 3), minval=-2.0, maxval=3.0),
    "wald": lambda k: jax.random.wald(k, 2.0, (5,)),
    "weibull_min": lambda k: jax.random.weibull_min(k, 1.0, 2.0, (5,)),
}


def _draw(name: str, draw: Any) -> Builder:
    def builder() -> Built:
        return (lambda seed: draw(jax.random.key(seed))), (_SEED,)

    builder.__name__ = f"random_{name}"
    return builder


for _name, _function in _DRAWS.items():
    RANDOMNESS.add(_draw(_name, _function))


@RANDOMNESS.add
def random_bits_by_rbg() -> Built:
    return (lambda seed: jax.random.bits(jax.random.key(seed, impl="rbg"), (5, 3))), (_SEED,)


@RANDOMNESS.add
def random_normal_by_unsafe_rbg() -> Built:
    def f(seed: Any) -> Any:
        a, b = jax.random.split(jax.random.key(seed, impl="unsafe_rbg"))
        return jax.random.normal(a, (5,)), jax.random.uniform(b, (3, 3))

    return f, (_SEED,)


@RANDOMNESS.add
def dropout_gradient() -> Built:
    def loss(x: Any, seed: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.key(seed), 0.8, x.shape)
        return jnp.sum(jnp.where(keep, x / 0.8, 0) ** 2)

    return jax.grad(loss), (normal("x", 5, 7), _SEED)


@RANDOMNESS.add
def metropolis_chain() -> Built:
    def f(seed: Any, start: Any) -> Any:
        def step(x: Any, key: Any) -> Any:
            a, b = jax.random.split(key)
            proposal = x + 0.5 * jax.random.normal(a, x.shape)
            accept = jnp.log(jax.random.uniform(b)) < 0.5 * (jnp.sum(x**2) - jnp.sum(proposal**2))
            return jnp.where(accept, proposal, x), accept

        return lax.scan(step, start, jax.random.split(jax.random.key(seed), 12))

    return f, (_SEED, normal("x", 3))


@RANDOMNESS.add
def random_walk_with_resets() -> Built:
    def f(seed: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            x, key, resets = state
            key, sub = jax.random.split(key)
            x = x + jax.random.normal(sub, x.shape)
            out = jnp.abs(x) > 2
            return jnp.where(out, 0.0, x), key, resets + out

        return lax.fori_loop(0, 15, body, (jnp.zeros(6), jax.random.key(seed), jnp.zeros(6, jnp.int32)))[::2]

    return f, (_SEED,)
