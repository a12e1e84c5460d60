"""Composition of random JAX functions from pieces that each add one or more values.

A function is composed while JAX traces it. All choices depend only on a seed and on the shapes and types of the values,
so tracing it again gives the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz import sizes

Array = Any
Piece = Callable[["Composer"], Any]
"""Returns new values (a pytree of arrays), or None if it does not apply; TypeError, ValueError, ... count as None."""

PIECES: dict[Piece, float] = {}
"""All pieces with their weights, registered by the modules that define them."""

MAX_ELEMENTS = 40_000
_UNFIT = (TypeError, ValueError, NotImplementedError, IndexError, ZeroDivisionError, OverflowError, KeyError)

FLOATS = ("float32", "float32", "float32", "float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
RARE = ("float8_e4m3fn", "float8_e5m2", "complex64", "complex128")


def piece(weight: float) -> Callable[[Piece], Piece]:
    """Decorate a piece to register it with a weight."""

    def register(f: Piece) -> Piece:
        PIECES[f] = weight
        return f

    return register


def is_float(v: Array) -> bool:
    """Return whether an array has a floating-point type that JAX computes with."""
    return bool(jnp.issubdtype(v.dtype, jnp.floating)) and v.dtype.itemsize > 1


def is_integer(v: Array) -> bool:
    """Return whether an array has a signed or unsigned integer type."""
    return bool(jnp.issubdtype(v.dtype, jnp.integer))


def is_number(v: Array) -> bool:
    """Return whether an array has a type with ordering and arithmetic."""
    return is_float(v) or is_integer(v)


@dataclass
class Composer:
    """A random function under construction.

    Attributes:
        rng: the source of all choices.
        values: the values so far.
        pool: sizes of which most shapes of the program consist, so that operands often match.
        depth: the number of enclosing functional transformations.
        used: names of the pieces used so far, including those of inner functions.
    """

    rng: np.random.Generator
    values: list[Array]
    pool: tuple[int, ...]
    depth: int = 0
    used: list[str] = field(default_factory=list)

    # ---- choosing

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def between(self, low: int, high: int) -> int:
        """Return a random integer from `low` to `high`, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def uniform(self, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 3)

    def some(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """Return a random value that `accept` allows, preferring later ones.

        Raises:
            ValueError: there is none; the piece is then skipped.
        """
        fitting = [v for v in self.values if accept(v)]
        if not fitting:
            raise ValueError("nothing fits")
        n = len(fitting)
        return fitting[max(self.between(0, n - 1), self.between(0, n - 1))]

    def some_float(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """Return a random floating-point value; if there is none, and sometimes otherwise, convert another value."""
        if self.chance(0.93):
            try:
                return self.some(lambda v: is_float(v) and accept(v))
            except ValueError:
                pass
        v = self.some(lambda v: not jnp.iscomplexobj(v) and accept(v))
        return v if is_float(v) else v.astype(jnp.float32)

    def ranked(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """Return a random value with at least one dimension."""
        return self.some(lambda v: v.ndim > 0 and accept(v))

    def dtype(self) -> str:
        """Return a random type; common types are more likely."""
        kind = self.rng.random()
        names = FLOATS if kind < 0.6 else INTEGERS if kind < 0.88 else ("bool",) if kind < 0.96 else RARE
        name: str = self.pick(names)
        return name

    def size(self) -> int:
        """Return a random size, usually one of the pool."""
        return int(self.pick(self.pool)) if self.chance(0.8) else sizes.size(self.rng, 3000)

    def shape(self, rank: int | None = None, limit: int = MAX_ELEMENTS // 2) -> tuple[int, ...]:
        """Return a random shape of sizes from the pool and ones."""
        n = int(self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])) if rank is None else rank
        dims = [1 if self.chance(0.15) else self.size() for _ in range(n)]
        while np.prod([max(1, d) for d in dims], initial=1) > limit:
            dims[int(np.argmax(dims))] = self.pick((1, 2, 3, 5))
        return tuple(dims)

    def axis(self, v: Array) -> int:
        """Return a random axis, sometimes negative."""
        at = self.between(0, v.ndim - 1)
        return at - v.ndim if self.chance(0.4) else at

    def axes(self, v: Array) -> Any:
        """Return None, one random axis or several."""
        if v.ndim == 0 or self.chance(0.15):
            return None
        if self.chance(0.6):
            return self.axis(v)
        return tuple(sorted(map(int, self.rng.permutation(v.ndim)[: self.between(1, v.ndim)])))

    def inner(self, values: Sequence[Array], rng_seed: int) -> Composer:
        """Return a composer for an inner function, which is called, transformed or differentiated."""
        return Composer(np.random.default_rng(rng_seed), list(values), self.pool, self.depth + 1, self.used)

    def seed(self) -> int:
        """Return a seed for `inner`; it must be sampled outside of the inner function, which JAX may trace twice."""
        return int(self.rng.integers(1 << 62))

    # ---- creating values

    def constant(self, dims: Sequence[int], dtype: Any = np.float32) -> Array:
        """Return a random constant array."""
        return jnp.asarray(random_array(self.rng, tuple(dims), np.dtype(dtype), extremes=False))

    def partner(self, v: Array) -> Array:
        """Return a value of the same type that broadcasts with `v`, or a scalar."""
        dtype = v.dtype

        def fits(o: Array) -> bool:
            if o.dtype != dtype:
                return False
            try:
                return int(np.prod(np.broadcast_shapes(o.shape, v.shape), initial=1)) <= MAX_ELEMENTS
            except ValueError:
                return False

        kind = self.rng.random()
        if kind < 0.72:
            return self.some(fits)
        if kind < 0.80 and v.ndim:
            dims = tuple(1 if self.chance(0.4) else n for n in v.shape[self.between(0, v.ndim - 1) :])
            return self.constant(dims, dtype)
        if kind < 0.88 and v.ndim and is_float(v):
            return jnp.max(v, axis=self.axis(v), keepdims=True)
        if kind < 0.94:
            return v
        return jnp.asarray(self.pick((0, 1, 2, 3)), dtype)

    def like(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return a value of exactly this shape and type; derive it from another one if there is none."""
        found = [v for v in self.values if v.shape == tuple(shape) and v.dtype == dtype]
        if found and self.chance(0.9):
            return found[max(self.between(0, len(found) - 1), self.between(0, len(found) - 1))]
        return fit(self.some(lambda v: not jnp.iscomplexobj(v)), shape, dtype)

    def step(self) -> bool:
        """Try one random piece and add its values; return whether it applied."""
        chosen = _NAMES[int(self.rng.choice(len(_NAMES), p=_WEIGHTS))]
        if self.depth > 1 and chosen in NESTING:
            return False
        try:
            made = chosen(self)
        except _UNFIT:
            return False
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(made)]
        new = [
            x for x in leaves if x.size <= MAX_ELEMENTS and x.dtype.kind not in "OSU" and x.dtype != jax.dtypes.float0
        ]
        if not new:
            return False
        self.used.append(chosen.__name__)
        self.values += new[:6]
        return True

    def steps(self, count: int) -> None:
        """Add `count` pieces, or fewer if most of the tried pieces do not apply."""
        done = 0
        for _ in range(4 * count):
            done += self.step()
            if done >= count:
                return


NESTING: set[Piece] = set()
"""Pieces that compose inner functions."""

_NAMES: list[Piece] = []
_WEIGHTS: Any = None


def nesting(f: Piece) -> Piece:
    """Mark a piece as one that composes an inner function."""
    NESTING.add(f)
    return f


def close_registry() -> None:
    """Fix the order and the weights; called once all pieces are registered."""
    global _WEIGHTS
    _NAMES[:] = PIECES
    weights = np.array(list(PIECES.values()))
    _WEIGHTS = weights / weights.sum()


def fit(v: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Reshape, broadcast or sum a value to another shape, and convert it to another type."""
    shape = tuple(shape)
    if v.shape != shape:
        if v.size == np.prod(shape, initial=1):
            v = v.reshape(shape)
        else:
            try:
                v = jnp.broadcast_to(v, shape)
            except ValueError:
                v = jnp.broadcast_to(jnp.sum(v) if v.dtype != bool else jnp.any(v), shape)
    return v.astype(dtype)


# ---- arguments


def random_array(rng: np.random.Generator, dims: tuple[int, ...], dtype: np.dtype[Any], extremes: bool = True) -> Any:
    """Return a random array with values of one magnitude, sometimes with ties, zeros and extreme values."""
    if dtype == np.bool_:
        return rng.random(dims) < rng.choice([0.5, 0.5, 0.05, 0.95])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if rng.random() < 0.12:
            return rng.integers(info.min, info.max, dims, dtype=dtype, endpoint=True)
        low, high = ((-9, 10), (0, 4), (-100, 100), (0, 64))[int(rng.integers(4))]
        return rng.integers(max(low, info.min), min(high, info.max), dims).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=dims) + 1j * rng.normal(size=dims)).astype(dtype)
    kind = rng.random()
    if kind < 0.7:
        out = rng.normal(size=dims) * rng.choice([0.1, 1.0, 1.0, 4.0])
    elif kind < 0.85:
        out = rng.integers(-4, 5, dims) / 2  # ties
    else:
        out = rng.uniform(0, 1, dims)
    if extremes and rng.random() < 0.06 and out.size:
        flat = out.reshape(-1)
        for value in (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-6, 1e-40, 300.0)[: 1 + int(rng.integers(8))]:
            flat[int(rng.integers(flat.size))] = value
    with np.errstate(all="ignore"):
        return np.asarray(out).astype(dtype)
