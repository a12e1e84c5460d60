"""Composes random functions as people write them in JAX, out of pieces that each add a value or a few.

A function composes itself while JAX traces it: every choice follows from a seed and from the shapes and types of what
there is, so tracing it again makes the same program.
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
"""Yields new values (any pytree of arrays), or None where it does not fit; TypeError and its like count as None."""

PIECES: dict[Piece, float] = {}
"""All pieces with their weights, filled by the modules that define them."""

MAX_ELEMENTS = 40_000
_UNFIT = (TypeError, ValueError, NotImplementedError, IndexError, ZeroDivisionError, OverflowError, KeyError)

FLOATS = ("float32", "float32", "float32", "float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
RARE = ("float8_e4m3fn", "float8_e5m2", "complex64", "complex128")


def piece(weight: float) -> Callable[[Piece], Piece]:
    """Register a piece."""

    def register(f: Piece) -> Piece:
        PIECES[f] = weight
        return f

    return register


def is_float(v: Array) -> bool:
    """Of a floating-point type that JAX computes with."""
    return bool(jnp.issubdtype(v.dtype, jnp.floating)) and v.dtype.itemsize > 1


def is_integer(v: Array) -> bool:
    """Of a signed or unsigned integer type."""
    return bool(jnp.issubdtype(v.dtype, jnp.integer))


def is_number(v: Array) -> bool:
    """Of a type with an order and arithmetic."""
    return is_float(v) or is_integer(v)


@dataclass
class Composer:
    """A function under way.

    Attributes:
        rng: decides everything.
        values: what there is so far.
        pool: sizes that this program's shapes are made of, so that operands fit each other.
        depth: how many functional transformations stand around.
        used: names of the pieces taken, in order, those of inner functions too.
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
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def uniform(self, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 3)

    def some(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """A value that fits, late ones more often; ValueError when there is none, so that the piece is skipped."""
        fitting = [v for v in self.values if accept(v)]
        if not fitting:
            raise ValueError("nothing fits")
        n = len(fitting)
        return fitting[max(self.between(0, n - 1), self.between(0, n - 1))]

    def some_float(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """A floating-point value; another one converted when there is none or at times."""
        if self.chance(0.93):
            try:
                return self.some(lambda v: is_float(v) and accept(v))
            except ValueError:
                pass
        v = self.some(lambda v: not jnp.iscomplexobj(v) and accept(v))
        return v if is_float(v) else v.astype(jnp.float32)

    def ranked(self, accept: Callable[[Array], bool] = lambda v: True) -> Array:
        """A value with at least one dimension."""
        return self.some(lambda v: v.ndim > 0 and accept(v))

    def dtype(self) -> str:
        """A type, by how often people use it."""
        kind = self.rng.random()
        names = FLOATS if kind < 0.6 else INTEGERS if kind < 0.88 else ("bool",) if kind < 0.96 else RARE
        name: str = self.pick(names)
        return name

    def size(self) -> int:
        """Mostly one of the program's own sizes."""
        return int(self.pick(self.pool)) if self.chance(0.8) else sizes.size(self.rng, 3000)

    def shape(self, rank: int | None = None, limit: int = MAX_ELEMENTS // 2) -> tuple[int, ...]:
        """A shape of the program's sizes and ones."""
        n = int(self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])) if rank is None else rank
        dims = [1 if self.chance(0.15) else self.size() for _ in range(n)]
        while np.prod([max(1, d) for d in dims], initial=1) > limit:
            dims[int(np.argmax(dims))] = self.pick((1, 2, 3, 5))
        return tuple(dims)

    def axis(self, v: Array) -> int:
        """An axis, at times counted from the end."""
        at = self.between(0, v.ndim - 1)
        return at - v.ndim if self.chance(0.4) else at

    def axes(self, v: Array) -> Any:
        """None, one axis or several."""
        if v.ndim == 0 or self.chance(0.15):
            return None
        if self.chance(0.6):
            return self.axis(v)
        return tuple(sorted(map(int, self.rng.permutation(v.ndim)[: self.between(1, v.ndim)])))

    def inner(self, values: Sequence[Array], rng_seed: int) -> Composer:
        """A composer of a function that is called, transformed or differentiated."""
        return Composer(np.random.default_rng(rng_seed), list(values), self.pool, self.depth + 1, self.used)

    def seed(self) -> int:
        """For `inner`: drawn outside of the inner function, which JAX may trace more than once."""
        return int(self.rng.integers(1 << 62))

    # ---- making

    def constant(self, dims: Sequence[int], dtype: Any = np.float32) -> Array:
        """An array of numbers known when the program is written."""
        return jnp.asarray(random_array(self.rng, tuple(dims), np.dtype(dtype), extremes=False))

    def partner(self, v: Array) -> Array:
        """A value of the same type that broadcasts with `v`, or a scalar."""
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
        """A value of exactly this shape and type, made of another when there is none."""
        found = [v for v in self.values if v.shape == tuple(shape) and v.dtype == dtype]
        if found and self.chance(0.9):
            return found[max(self.between(0, len(found) - 1), self.between(0, len(found) - 1))]
        return fit(self.some(lambda v: not jnp.iscomplexobj(v)), shape, dtype)

    def step(self) -> bool:
        """Add the values of one random piece; whether one fitted."""
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
        """So many pieces that fit, or a few less when little fits."""
        done = 0
        for _ in range(4 * count):
            done += self.step()
            if done >= count:
                return


NESTING: set[Piece] = set()
"""Pieces that compose functions of their own."""

_NAMES: list[Piece] = []
_WEIGHTS: Any = None


def nesting(f: Piece) -> Piece:
    """Mark a piece as one that composes a function of its own."""
    NESTING.add(f)
    return f


def close_registry() -> None:
    """Fix the order and the weights; called once all pieces are registered."""
    global _WEIGHTS
    _NAMES[:] = PIECES
    weights = np.array(list(PIECES.values()))
    _WEIGHTS = weights / weights.sum()


def fit(v: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Any value as one of another shape and type."""
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
    """Numbers as programs meet them: of one magnitude, at times with ties, zeros and extremes."""
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
