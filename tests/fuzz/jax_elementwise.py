"""Pieces of random JAX functions: elementwise arithmetic, comparisons, conversions, selects."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.fuzz.jax_composer import Array, Composer, is_float, is_integer, is_number, piece

SMOOTH = (
    jnp.tanh, jax.nn.sigmoid, jnp.sin, jnp.cos, jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.elu,
    jax.nn.leaky_relu, jnp.square, jnp.arctan, jnp.arcsinh, lax.erf, jnp.abs, jnp.negative, jnp.cbrt, jax.nn.soft_sign,
    jax.nn.log_sigmoid, jax.nn.relu6, jax.nn.hard_tanh, jax.nn.mish, jnp.sinc, jnp.reciprocal, lax.logistic,
)  # fmt: skip
STEPPED = (jnp.floor, jnp.ceil, jnp.round, jnp.trunc, jnp.sign, jnp.rint, lambda x: jnp.round(x, 1))
TESTS = (jnp.isnan, jnp.isfinite, jnp.isinf, jnp.signbit)
GUARDED: tuple[Any, ...] = (
    lambda x: jnp.log(jnp.abs(x) + 0.1),
    lambda x: jnp.sqrt(jnp.abs(x) + 1e-3),
    lambda x: lax.rsqrt(x * x + 1e-5),
    lambda x: jnp.exp(-jnp.abs(x)),
    lambda x: jnp.exp(jnp.minimum(x, 3)),
    lambda x: jnp.log1p(jnp.abs(x)),
    lambda x: jnp.expm1(jnp.clip(x, -4, 4)),
    lambda x: jnp.arcsin(jnp.clip(x, -1, 1)),
    lambda x: jnp.arctanh(x / (1 + jnp.abs(x))),
    lambda x: 1 / (1 + x * x),
    lambda x: jnp.sinh(jnp.clip(x, -3, 3)),
    lambda x: x**3 / (1 + jnp.abs(x) ** 3),
)
BARE = (jnp.log, jnp.sqrt, lax.rsqrt, jnp.exp, jnp.arccos, jnp.tan, jnp.cosh, jnp.log1p, jnp.exp2, jnp.log2)
"""Applied to any argument; NaN and infinities must also agree."""


@piece(14)
def smooth(c: Composer) -> Array:
    return c.pick(SMOOTH)(c.some_float())


@piece(6)
def guarded(c: Composer) -> Array:
    return c.pick(GUARDED)(c.some_float())


@piece(2)
def bare(c: Composer) -> Array:
    return c.pick(BARE)(c.some_float())


@piece(3)
def stepped(c: Composer) -> Array:
    return c.pick(STEPPED)(c.some_float())


@piece(1)
def tests(c: Composer) -> Array:
    return c.pick(TESTS)(c.some_float())


@piece(14)
def binary(c: Composer) -> Array:
    a = c.some(is_number)
    b = c.partner(a)
    if c.chance(0.5):
        a, b = b, a
    return c.pick((jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum))(a, b)


@piece(4)
def binary_float(c: Composer) -> Array:
    a = c.some(is_float)
    b = c.partner(a)
    forms = (
        lambda: a / (jnp.abs(b) + 1), lambda: jnp.arctan2(a, b), lambda: jnp.hypot(a, b), lambda: jnp.logaddexp(a, b),
        lambda: (jnp.abs(a) + 0.1) ** jnp.clip(b, -2, 2), lambda: a / b, lambda: jnp.copysign(a, b),
        lambda: jnp.heaviside(a, b), lambda: (a - b) ** 2, lambda: a * 0.9 + b * 0.1, lambda: jnp.float_power(2.0, b),
    )  # fmt: skip
    return c.pick(forms)()


@piece(2)
def scaled(c: Composer) -> Array:
    """Chains of constant factors, which simplification merges; some intermediate products overflow."""
    v = c.some_float()
    factors = [c.pick((0.5, 3.0, 1e-3, 1e3, 0.1, 1e-5, 1e5, 1e-20, 1e20, 255.0)) for _ in range(c.between(2, 3))]
    for f in factors:
        k = jnp.asarray(f, v.dtype)
        v = c.pick((lambda x, k=k: x * k, lambda x, k=k: x / k, lambda x, k=k: k / x, lambda x, k=k: k * x))(v)
    return v


@piece(3)
def quotient(c: Composer) -> Array:
    """Divisions and remainders, including those by zero."""
    a = c.some(is_number)
    b = c.partner(a)
    return c.pick((jnp.floor_divide, jnp.mod, jnp.fmod, jnp.remainder, lax.rem, jnp.divmod))(a, b)


@piece(3)
def bits(c: Composer) -> Array:
    a = c.some(is_integer)
    b = c.partner(a)
    ops = (
        jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor, jnp.left_shift, jnp.right_shift,
        lambda x, y: lax.population_count(x), lambda x, y: lax.clz(x), lambda x, y: ~x, lambda x, y: jnp.abs(x),
        lambda x, y: -x, lambda x, y: jnp.sign(x), lambda x, y: x**2, lambda x, y: jnp.gcd(x, y) if x.size < 500 else x,
    )  # fmt: skip
    return c.pick(ops)(a, b)


@piece(5)
def compare(c: Composer) -> Array:
    a = c.some()
    ops = (jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal, jnp.equal, jnp.not_equal)
    return c.pick(ops)(a, c.partner(a))


@piece(2)
def logic(c: Composer) -> Array:
    a = c.some(lambda v: v.dtype == bool)
    return c.pick((jnp.logical_and, jnp.logical_or, jnp.logical_xor, lambda x, y: ~x))(a, c.partner(a))


@piece(5)
def where(c: Composer) -> Array:
    a = c.some()
    b = c.partner(a)
    try:
        m = c.some(lambda v: v.dtype == bool and _broadcasts(v, a))
    except ValueError:
        m = a > b
    return jnp.where(m, a, c.pick((b, 0, jnp.zeros_like(a), -jnp.inf if is_float(a) else 1)))


def _broadcasts(a: Array, b: Array) -> bool:
    return all(m in (1, n) for m, n in zip(a.shape[::-1], b.shape[::-1], strict=False)) and a.ndim <= b.ndim


@piece(3)
def clip(c: Composer) -> Array:
    v = c.some(is_number)
    if c.chance(0.5):
        return jnp.clip(v, c.pick((0, -1, -2)) if not jnp.issubdtype(v.dtype, jnp.unsignedinteger) else 0, 3)
    return jnp.clip(v, c.partner(v), c.partner(v))


@piece(6)
def convert(c: Composer) -> Array:
    v = c.some()
    return v.real.astype(c.dtype()) if jnp.iscomplexobj(v) else v.astype(c.dtype())


@piece(1)
def convert_there_and_back(c: Composer) -> Array:
    v = c.some_float()
    return v.astype(c.pick(("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"))).astype(v.dtype)


@piece(1)
def reinterpret(c: Composer) -> Array:
    v = c.some(lambda v: v.dtype.itemsize in (2, 4, 8) and not jnp.iscomplexobj(v))
    to = {2: ("int16", "uint16", "float16"), 4: ("int32", "uint32", "float32"), 8: ("int64", "uint64", "float64")}
    return lax.bitcast_convert_type(v, jnp.dtype(c.pick(to[v.dtype.itemsize])))


@piece(2)
def numbers(c: Composer) -> Array:
    """Constant arrays: ramps, grids, identity matrices."""
    dims = c.shape(2)
    makers = (
        lambda: jnp.arange(c.size(), dtype=c.dtype()),
        lambda: jnp.linspace(-1, 1, max(1, dims[0])),
        lambda: jnp.eye(dims[0], dims[1]),
        lambda: lax.broadcasted_iota(c.dtype(), dims, c.between(0, 1)),
        lambda: jnp.ones(dims, c.dtype()),
        lambda: jnp.full(dims, 0.5),
        lambda: c.constant(dims),
        lambda: jnp.tri(dims[0], dims[1]),
    )
    return c.pick(makers)()


@piece(1)
def special(c: Composer) -> Array:
    v = c.some_float(lambda v: v.size < 5000)
    ops = (
        jnp.nan_to_num, lax.erf_inv, jax.scipy.special.ndtr, jnp.deg2rad, jnp.modf, jnp.frexp,
        lambda x: lax.lgamma(jnp.abs(x) + 0.5), lambda x: lax.digamma(jnp.abs(x) + 0.5),
        lambda x: jax.scipy.special.xlogy(x, jnp.abs(x)), lambda x: jnp.nextafter(x, jnp.zeros_like(x)),
        lambda x: lax.reduce_precision(x, 8, 7), lambda x: lax.reduce_precision(x, 5, 10), jax.nn.hard_sigmoid,
        lambda x: jax.scipy.special.entr(jnp.abs(x)), lambda x: jnp.polyval(jnp.array([0.1, -0.2, 0.3], x.dtype), x),
    )  # fmt: skip
    return c.pick(ops)(v)


@piece(1)
def complex_numbers(c: Composer) -> Array:
    v = c.some(lambda v: jnp.iscomplexobj(v) or v.dtype == jnp.float32)
    z = v if jnp.iscomplexobj(v) else lax.complex(v, jnp.sin(v))
    ops = (
        jnp.abs, jnp.real, jnp.imag, jnp.conj, jnp.angle, lambda x: x * x, jnp.exp, lambda x: x / (1 + jnp.abs(x)),
        lambda x: jnp.fft.fft(x) if x.ndim and 0 < x.size < 3000 else x,
        lambda x: jnp.fft.rfft(x.real) if x.ndim and 0 < x.size < 3000 else x,
    )  # fmt: skip
    return c.pick(ops)(z)
