"""Sixty functions as users of JAX write them, with arguments; the first argument is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Make = Callable[[], tuple[Any, ...]]


class Case(NamedTuple):
    """A function and its arguments; each call of `make` returns the same values."""

    function: Callable[..., Any]
    make: Make


FUNCTIONS: dict[str, Case] = {}
FIRST = 8
"""Number of functions that are tested every time; the others are slow."""


def _arrays(*shapes: tuple[int, ...], positive: bool = False) -> Make:
    def make() -> tuple[Any, ...]:
        rng = np.random.default_rng(len(shapes))
        arrays = [rng.standard_normal(s) for s in shapes]
        return tuple(jnp.asarray(np.abs(a) + 0.5 if positive else a) for a in arrays)

    return make


def _case(*shapes: tuple[int, ...], positive: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with random arrays of these shapes as arguments."""

    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[f.__name__] = Case(f, _arrays(*shapes, positive=positive))
        return f

    return add


def _add(name: str, f: Callable[..., Any], *shapes: tuple[int, ...], positive: bool = False) -> None:
    FUNCTIONS[name] = Case(f, _arrays(*shapes, positive=positive))


# ---- the first ones: what most programs consist of


@_case((4, 3), (3, 5), (5,))
def dense_layer(w: Any, v: Any, b: Any) -> Any:
    return jnp.tanh(w @ v + b)


@_case((6, 8))
def softmax_rows(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


@_case((5,), (7,))
def recurrence(c: Any, xs: Any) -> Any:
    return lax.scan(lambda c, x: (jnp.sin(c) + x, c.sum()), c, xs)


@_case((4, 6))
def layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@_case((3, 4))
def tree_of_results(x: Any) -> Any:
    return {"double": 2 * x, "pair": (x.sum(), None), "count": jnp.int32(x.size)}


@_case((9,))
def branch(x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: jnp.exp(x), x)


@_case((6, 6))
def gather_rows(x: Any) -> Any:
    return x[jnp.array([0, 3, 3, 5])] * 2


@_case((4,))
def random_numbers(x: Any) -> Any:
    key = jax.random.key(7)
    return x * jax.random.normal(key, x.shape) + jax.random.uniform(key)


# ---- elementwise functions

for _name, _f in {
    "exp_log": lambda x: jnp.exp(jnp.log(x) * 0.5),
    "trigonometric": lambda x: jnp.sin(x) * jnp.cos(x) + jnp.tan(x / 4),
    "hyperbolic": lambda x: jnp.sinh(x) - jnp.arctan(x) + jnp.arcsinh(x),
    "error_function": lambda x: jax.scipy.special.erf(x) + jax.scipy.special.gammaln(x),
    "powers": lambda x: x**2.5 + x**-1 + jnp.sqrt(x) + jnp.cbrt(x),
    "selects": lambda x: jnp.where(x > 1, x * x, -x) + jnp.clip(x, 0.7, 1.2),
    "logistic": lambda x: jax.nn.sigmoid(x) * jax.nn.softplus(x),
    "gelu": jax.nn.gelu,
    "silu_relu": lambda x: jax.nn.silu(x) + jax.nn.relu(x - 1),
    "mixed_types": lambda x: x.astype(jnp.float32) * jnp.arange(x.shape[-1]),
    "complex_parts": lambda x: jnp.abs(x + 1j * x**2) + jnp.real(jnp.exp(1j * x)),
}.items():
    _add(_name, _f, (3, 7), positive=True)

# ---- reductions, orders and cumulative functions

for _name, _f in {
    "norm": lambda x: jnp.linalg.norm(x, axis=0),
    "logsumexp": lambda x: jax.scipy.special.logsumexp(x, axis=1),
    "max_min": lambda x: x.max(0) - x.min(1).sum(),
    "products": lambda x: jnp.prod(x, axis=1),
    "cumulative_sum": lambda x: jnp.cumsum(x, axis=0),
    "cumulative_product": lambda x: jnp.cumprod(x, axis=1),
    "sorting": lambda x: jnp.sort(x, axis=-1) * jnp.arange(7.0),
    "order": lambda x: x[:, jnp.argsort(x[0])],
    "top_values": lambda x: lax.top_k(x, 3)[0],
    "median": lambda x: jnp.median(x, axis=1),
    "variance": lambda x: jnp.var(x, axis=0, ddof=1),
    "argmax_value": lambda x: x[jnp.arange(5), jnp.argmax(x, axis=1)],
}.items():
    _add(_name, _f, (5, 7))

# ---- movement of data

for _name, _f in {
    "transposition": lambda x: jnp.transpose(x, (2, 0, 1)).reshape(4, -1),
    "slices": lambda x: x[1:, ::2] + x[:-1, 1::2],
    "padding": lambda x: jnp.pad(x, ((1, 0), (0, 2), (1, 1))),
    "concatenation": lambda x: jnp.concatenate([x, x * 2, x[:1]], axis=0),
    "rolling": lambda x: jnp.roll(x, 2, axis=1) + jnp.flip(x, 2),
    "updates": lambda x: x.at[0].set(1.0).at[1, 2].add(3.0),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 0, x[0, 0, 0].astype(int) % 2), (2, 4, 2)),
    "repeats": lambda x: jnp.repeat(x, 2, axis=1) + jnp.tile(x, (1, 2, 1)),
    "segments": lambda x: jax.ops.segment_sum(x, jnp.array([0, 1, 0]), num_segments=2),
    "one_hot": lambda x: x[..., None] * jax.nn.one_hot(jnp.array([0, 2, 1]), 5)[:, None, None, :],
}.items():
    _add(_name, _f, (3, 4, 4))

# ---- linear algebra


@_case((3, 4, 5), (3, 5, 2))
def batched_product(a: Any, b: Any) -> Any:
    return jnp.einsum("bij,bjk->bki", a, b)


@_case((2, 4, 6), (2, 4, 6), (2, 4, 6))
def attention(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(6), axis=-1)
    return jnp.einsum("bqk,bkd->bqd", weights, v)


@_case((2, 8, 8, 3), (3, 3, 3, 4))
def convolution(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@_case((1, 6, 6, 2))
def max_pooling(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@_case((4, 4), (4,))
def linear_solve(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a + 5 * jnp.eye(4), b)


@_case((4, 4))
def cholesky(a: Any) -> Any:
    return jnp.linalg.cholesky(a @ a.T + 4 * jnp.eye(4))


@_case((3, 3))
def determinant(a: Any) -> Any:
    return jnp.linalg.slogdet(a + 3 * jnp.eye(3))[1] + jnp.trace(a)


@_case((4, 3))
def outer_products(a: Any) -> Any:
    return jnp.einsum("ij,ik->jk", a, a) + jnp.vdot(a, a)


@_case((8,))
def fourier_transform(x: Any) -> Any:
    return jnp.abs(jnp.fft.fft(x)) ** 2


# ---- control flow and rules of users


@_case((6,))
def bounded_loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda n, c: jnp.cos(c) + n * 0.1, x)


@_case((4,))
def switch(x: Any) -> Any:
    index = jnp.argmax(x) % 3
    return lax.switch(index, [jnp.sin, jnp.exp, lambda x: x * 3], x)


@_case((5, 3))
def mapped(x: Any) -> Any:
    return lax.map(lambda row: jnp.cumsum(row) / (1 + row**2), x)


@_case((6, 4))
def prefix_sums(x: Any) -> Any:
    return lax.associative_scan(jnp.multiply, x)


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return x * 3


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (jnp.clip(g, -1, 1) * jnp.sign(x),))


@_case((7,))
def custom_gradient(x: Any) -> Any:
    return _clipped(x) ** 2


@jax.custom_jvp
def _softened(x: Any) -> Any:
    return jnp.abs(x)


@_softened.defjvp
def _softened_jvp(primals: Any, tangents: Any) -> Any:
    return _softened(primals[0]), jnp.tanh(primals[0]) * tangents[0]


@_case((7,))
def custom_tangent(x: Any) -> Any:
    return jnp.sin(_softened(x))


@_case((4, 4), (4,))
def checkpointed(w: Any, x: Any) -> Any:
    layer = jax.checkpoint(lambda x: jnp.tanh(w @ x))
    return layer(layer(x))


@_case((3,), (2, 3))
def inner_gradient(x: Any, y: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.sin(x) * y))(x)


@_case((3, 2))
def inner_vmap(x: Any) -> Any:
    return jax.vmap(partial(jnp.convolve, mode="full"))(x, x)


@_case((5,))
def inner_jit(x: Any) -> Any:
    return jax.jit(lambda x: jnp.exp(-x))(x) + jax.jit(jnp.sin)(x)


@_case((4, 5))
def stopped(x: Any) -> Any:
    return lax.stop_gradient(x.max()) * x + x.mean()


@_case((3, 4))
def dropped_units(x: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    return jnp.where(kept, x / 0.5, 0)


@_case((6,), (6,))
def interpolation(x: Any, y: Any) -> Any:
    return jnp.interp(jnp.linspace(-1, 1, 9), jnp.sort(x), y)


@_case((5,), (5,))
def losses(x: Any, y: Any) -> Any:
    return jnp.mean((x - y) ** 2) + jnp.abs(x - y).sum() + jax.nn.log_sigmoid(x).sum()
