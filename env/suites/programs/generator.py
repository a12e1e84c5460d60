"""Random realistic programs: motifs of a grammar, chained with residual connections, from a seed.

The family of such a program is its grammar, which says from which motifs it is drawn. Shapes are drawn from the widths,
lengths and batches that people use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.family import Argument, Families, Member, Members, integers, normal, uniform

__all__ = ["GRAMMARS", "Grammar", "draw"]

WIDTHS = (16, 32, 48, 64, 96, 100, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)
ROWS = (1, 8, 16, 32, 50, 64, 100, 128, 200, 256, 512, 1000, 1024, 2048, 4096)
MOST_ELEMENTS, LEAST_ELEMENTS = 1 << 22, 1 << 10
ACTIVATIONS: tuple[Callable[[Array], Array], ...] = (
    jax.nn.relu, jax.nn.gelu, jax.nn.silu, jnp.tanh, jax.nn.sigmoid, jax.nn.softplus, jax.nn.elu, jax.nn.leaky_relu,
    jax.nn.hard_swish, jax.nn.relu6, jax.nn.mish,
)  # fmt: skip


class Draw:
    """The random choices of one program, and its arguments: recorded the first time, taken from a call afterwards."""

    def __init__(self, seed: int, given: Sequence[Array] | None = None) -> None:
        self.rng = random.Random(seed)
        self.arguments: list[Argument] = []
        self._given = given

    def argument(self, argument: Argument) -> Array:
        """Return the next argument of the program."""
        self.arguments.append(argument)
        if self._given is None:
            return jnp.zeros(argument.dims, argument.dtype)
        return self._given[len(self.arguments) - 1]

    def like(self, x: Array, *dims: int) -> Array:
        """Return a weight of the type of `x`, scaled by its first dimension."""
        return self.argument(normal(*dims, std=round(max(dims[0], 1) ** -0.5, 4), dtype=str(x.dtype)))

    def row(self, x: Array) -> Array:
        """Return a positive row that fits the last dimension of `x`."""
        return self.argument(uniform(0.5, 1.5, x.shape[-1], dtype=str(x.dtype)))


Motif: TypeAlias = Callable[[Draw, Array], Array]


# --- Motifs: from an array [rows, width] to an array of two dimensions ---------------------------------------------


def norm(d: Draw, x: Array) -> Array:
    kind = d.rng.randrange(3)
    if kind == 0:
        return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + jnp.asarray(1e-6, x.dtype)) * d.row(x)
    axis = -1 if kind == 1 or x.shape[0] == 1 else 0  # one row less its mean is zero
    centred = x - jnp.mean(x, axis, keepdims=True)
    return (
        centred * lax.rsqrt(jnp.mean(jnp.square(centred), axis, keepdims=True) + jnp.asarray(1e-5, x.dtype)) * d.row(x)
    )


def product(d: Draw, x: Array) -> Array:
    width = d.rng.choice([w for w in WIDTHS if w * x.shape[0] <= MOST_ELEMENTS and w * x.shape[1] <= MOST_ELEMENTS])
    made = x @ d.like(x, x.shape[-1], width)
    return made + d.row(made) if d.rng.random() < 0.6 else made


def activation(d: Draw, x: Array) -> Array:
    return d.rng.choice(ACTIVATIONS)(x)


def pointwise(d: Draw, x: Array) -> Array:
    other = d.argument(normal(*x.shape, dtype=str(x.dtype))) if d.rng.random() < 0.4 else d.row(x)
    kind = d.rng.randrange(6)
    return (
        lambda: x * other + jnp.abs(x),
        lambda: jnp.where(x > other, x, other * 0.5),
        lambda: jnp.maximum(x, other) - jnp.minimum(x, 0),
        lambda: jnp.exp(-jnp.square(x)) * other,
        lambda: jnp.sin(x) + jnp.cos(other),
        lambda: jnp.clip(x + other, -2, 2),
    )[kind]()


def residual(d: Draw, x: Array) -> Array:
    inner = norm(d, x)
    hidden = activation(d, inner @ d.like(x, x.shape[-1], 2 * x.shape[-1]))
    return x + hidden @ d.like(x, 2 * x.shape[-1], x.shape[-1])


def gate(d: Draw, x: Array) -> Array:
    width = d.rng.choice([w for w in WIDTHS if w * max(x.shape) <= MOST_ELEMENTS])
    return activation(d, x @ d.like(x, x.shape[-1], width)) * (x @ d.like(x, x.shape[-1], width))


def mixture(d: Draw, x: Array) -> Array:
    weights = jax.nn.softmax(x @ d.like(x, x.shape[-1], 4), -1)
    experts = d.like(x, x.shape[-1], 4)
    return x * jnp.sum(weights * jnp.tanh(x @ experts), -1, keepdims=True)


def attend(d: Draw, x: Array) -> Array:
    if x.shape[0] > 1024:
        return norm(d, x)
    width = d.rng.choice((16, 32, 64))
    q, k = (x @ d.like(x, x.shape[-1], width) for _ in range(2))
    scores = q @ k.T * jnp.asarray(width**-0.5, x.dtype)
    if d.rng.random() < 0.5:
        scores = jnp.where(jnp.tri(x.shape[0], dtype=bool), scores, jnp.asarray(-1e4, x.dtype))
    return jax.nn.softmax(scores, -1) @ x


def reduction(d: Draw, x: Array) -> Array:
    axis = d.rng.randrange(2) if x.shape[0] > 1 else 1
    made = d.rng.choice((jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.var))(x, axis, keepdims=True)
    return x - made if d.rng.random() < 0.7 else x * jax.nn.sigmoid(made)


def movement(d: Draw, x: Array) -> Array:
    m, n = x.shape
    options: list[Callable[[], Array]] = [
        lambda: x.T,
        lambda: jnp.roll(x, 1, d.rng.randrange(2)),
        lambda: jnp.flip(x, d.rng.randrange(2)),
        lambda: jnp.concatenate([x, jnp.tanh(x)], -1)[:, : max(1, n)],
        lambda: jnp.pad(x, ((1, 1), (0, 0)))[: m + 1],
        lambda: jnp.repeat(x[: (m + 1) // 2], 2, 0),
    ]
    if n % 2 == 0:
        options.append(lambda: jnp.concatenate([-x[:, n // 2 :], x[:, : n // 2]], -1) * d.row(x))
        options.append(lambda: x.reshape(m, n // 2, 2).sum(-1))
    return d.rng.choice(options)()


def stencil(d: Draw, x: Array) -> Array:
    axis = d.rng.randrange(2)
    return x + 0.1 * (jnp.roll(x, 1, axis) + jnp.roll(x, -1, axis) - 2 * x)


def lookup(d: Draw, x: Array) -> Array:
    which = d.argument(integers(0, x.shape[0], d.rng.choice((x.shape[0], 64, 1000))))
    if d.rng.random() < 0.5:
        return x[which]
    return jax.ops.segment_sum(x[which], which % 32, num_segments=32)


def ordering(d: Draw, x: Array) -> Array:
    kind = d.rng.randrange(3)
    if kind == 0 and x.shape[1] <= 2048:
        return jnp.sort(x, -1)
    if kind == 1:
        return jnp.where(x >= lax.top_k(x, min(8, x.shape[1]))[0][:, -1:], x, 0)
    return jax.nn.one_hot(jnp.argmax(x, -1), x.shape[1], dtype=x.dtype) * x


def cumulative(d: Draw, x: Array) -> Array:
    axis = d.rng.randrange(2)
    return d.rng.choice((jnp.cumsum, lax.cummax, lambda v, a: jnp.cumsum(v, a) / v.shape[a]))(x, axis)


def loop(d: Draw, x: Array) -> Any:
    count, decay = d.rng.choice((4, 10, 50)), d.rng.choice((0.9, 0.99))
    row = d.row(x)
    return lax.fori_loop(0, count, lambda _, v: v * decay + jnp.tanh(v) * row * 0.01, x)


def scan(d: Draw, x: Array) -> Array:
    weight = d.row(x)

    def step(carry: Array, row: Array) -> tuple[Array, Array]:
        carry = jnp.tanh(carry * weight + row)
        return carry, carry

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x)[1]


def random_noise(d: Draw, x: Array) -> Array:
    key = d.argument(integers(0, 2**32, 2, dtype="uint32"))
    noise = jax.random.uniform(jax.random.wrap_key_data(key), x.shape, jnp.float32)
    return jnp.where(noise < 0.9, x / 0.9, 0).astype(x.dtype) if d.rng.random() < 0.5 else x + noise.astype(x.dtype)


def quantised(d: Draw, x: Array) -> Array:
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127 + jnp.asarray(1e-6, x.dtype)
    return jnp.round(x / scale).astype(jnp.int8).astype(x.dtype) * scale


def wavelet(d: Draw, x: Array) -> Array:
    n = x.shape[1] // 2 * 2
    even, odd = x[:, 0:n:2], x[:, 1:n:2]
    return jnp.concatenate([(even + odd) * 0.7071, (even - odd) * 0.7071], -1)


@dataclass(frozen=True)
class Grammar:
    """Motifs with weights, how many are chained, and how the program ends.

    Attributes:
        motifs: each with its weight.
        lengths: the least and the most motifs.
        gradient: whether the program is the gradient of the chain's mean with respect to its input.
        dtypes: types that are drawn from.
        programs: how many programs the family has.
    """

    motifs: tuple[tuple[Motif, float], ...]
    lengths: tuple[int, int] = (2, 7)
    gradient: bool = False
    dtypes: tuple[str, ...] = ("float32", "float32", "float32", "float32", "bfloat16")
    programs: int = 45


GRAMMARS: dict[str, Grammar] = {
    "drawn_networks": Grammar(((norm, 2), (product, 2), (activation, 3), (residual, 1), (gate, 1))),
    "drawn_network_gradients": Grammar(
        ((norm, 2), (product, 2), (activation, 3), (residual, 1), (pointwise, 1)), gradient=True, dtypes=("float32",)
    ),
    "drawn_transformers": Grammar(((attend, 2), (residual, 2), (norm, 1), (gate, 1)), (1, 4)),
    "drawn_pointwise": Grammar(((pointwise, 4), (activation, 3)), (3, 14)),
    "drawn_pointwise_gradients": Grammar(((pointwise, 3), (activation, 3), (norm, 1)), (2, 8), True, ("float32",)),
    "drawn_reductions": Grammar(((reduction, 3), (pointwise, 2), (norm, 1), (activation, 1)), (2, 8)),
    "drawn_movement": Grammar(((movement, 3), (pointwise, 2), (stencil, 1)), (3, 9)),
    "drawn_indexing": Grammar(((lookup, 2), (pointwise, 2), (reduction, 1), (product, 0.5)), dtypes=("float32",)),
    "drawn_orderings": Grammar(((ordering, 2), (pointwise, 2), (norm, 1)), (2, 5), dtypes=("float32",)),
    "drawn_running_sums": Grammar(((cumulative, 2), (pointwise, 2), (reduction, 1)), (2, 6), dtypes=("float32",)),
    "drawn_loops": Grammar(((loop, 2), (pointwise, 1), (reduction, 1), (stencil, 1)), (2, 5), dtypes=("float32",)),
    "drawn_scans": Grammar(((scan, 2), (norm, 1), (pointwise, 1), (activation, 1)), (2, 5), dtypes=("float32",)),
    "drawn_noise": Grammar(((random_noise, 2), (pointwise, 2), (norm, 1), (activation, 1)), (2, 5)),
    "drawn_quantised": Grammar(((quantised, 2), (product, 2), (activation, 1), (norm, 1)), (2, 6), dtypes=("float32",)),
    "drawn_signals": Grammar(((wavelet, 2), (stencil, 2), (pointwise, 1), (cumulative, 1)), dtypes=("float32",)),
    "drawn_mixtures": Grammar(((mixture, 2), (norm, 1), (gate, 1), (reduction, 1), (activation, 1))),
    "drawn_of_everything": Grammar(
        ((norm, 2), (product, 1), (activation, 2), (pointwise, 2), (reduction, 1), (movement, 1), (lookup, 0.5),
         (cumulative, 0.5), (loop, 0.5), (quantised, 0.5), (stencil, 0.5)),
        (3, 12), dtypes=("float32",), programs=80,
    ),
}  # fmt: skip


def draw(name: str, seed: int) -> Member:
    """Return the program of a grammar and a seed."""
    grammar = GRAMMARS[name]

    def program(d: Draw) -> Any:
        dims, dtype = _start(d.rng), d.rng.choice(grammar.dtypes)
        x = d.argument(normal(*dims, dtype=dtype))
        chosen = d.rng.choices(*zip(*grammar.motifs, strict=True), k=d.rng.randint(*grammar.lengths))

        def chain(x: Array) -> Array:
            kept = x
            for number, motif in enumerate(chosen):
                x = motif(d, x)
                if x.shape == kept.shape and number % 3 == 2 and d.rng.random() < 0.5:
                    x = x + kept
                    kept = x
            return x

        if grammar.gradient:
            return jax.value_and_grad(lambda v: jnp.mean(jnp.square(chain(v)).astype(jnp.float32)))(x)
        ending = d.rng.random()
        result = chain(x)
        if ending < 0.2:
            return jnp.mean(result.astype(jnp.float32), -1)
        return (result, jnp.max(result, 0)) if ending < 0.35 else result

    recorded = Draw(seed)
    jax.eval_shape(lambda: program(recorded))
    return Member(f"{seed:04d}", lambda *given: program(Draw(seed, given)), tuple(recorded.arguments), seed=seed)


def _start(rng: random.Random) -> tuple[int, int]:
    while True:
        dims = rng.choice(ROWS), rng.choice(WIDTHS)
        if LEAST_ELEMENTS <= dims[0] * dims[1] <= MOST_ELEMENTS:
            return dims


def _members(name: str) -> Callable[[], Members]:
    def members() -> Members:
        return (draw(name, seed) for seed in range(GRAMMARS[name].programs))

    members.__name__, members.__module__ = name, __name__
    members.__doc__ = f"Random chains of motifs: {', '.join(m.__name__ for m, _ in GRAMMARS[name].motifs)}."
    return members


FAMILIES = Families()
for _name in GRAMMARS:
    FAMILIES.add(_members(_name))
