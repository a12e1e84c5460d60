"""FFT, linear algebra, special functions, integers and bits, narrow types, complex numbers, NaN and infinity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax

from env.suites.jax_programs.collection import Builder, Collection, integers, normal, uniform

NUMERICS = Collection()
Built = tuple[Any, tuple[Any, ...]]


def _cg(*args: Any, **more: Any) -> Any:
    solve: Any = jsp.sparse.linalg.cg
    return solve(*args, **more)


def _positive(name: str, n: int, *batch: int) -> Any:
    a = normal(name, *batch, n, n)
    return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(np.float32)


@NUMERICS.add
def fft_of_every_kind() -> Built:
    def f(x: Any, z: Any) -> Any:
        return jnp.fft.fft(z), jnp.fft.ifft2(z), jnp.fft.rfft(x), jnp.fft.irfft(z, 9), jnp.fft.rfft2(x), jnp.fft.fftn(z)

    z = normal("re", 6, 5) + 1j * normal("im", 6, 5)
    return f, (normal("x", 4, 8), z.astype(np.complex64))


@NUMERICS.add
def fft_convolution_gradient() -> Built:
    def loss(x: Any, k: Any) -> Any:
        return jnp.sum(jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 16) ** 2)

    return jax.value_and_grad(loss, (0, 1)), (normal("x", 3, 16), normal("k", 16))


@NUMERICS.add
def spectrogram() -> Built:
    return (lambda x: jnp.abs(jsp.signal.stft(x, nperseg=8)[2])), (normal("x", 40),)


@NUMERICS.add
def cholesky_and_triangular_solve_gradient() -> Built:
    def f(a: Any, b: Any) -> Any:
        c = jnp.linalg.cholesky(a @ a.T + jnp.eye(5))  # positive definite, whatever the inputs are
        return jnp.sum(jsp.linalg.solve_triangular(c, b, lower=True) ** 2) + jnp.sum(jnp.log(jnp.diagonal(c)))

    return jax.value_and_grad(f), (normal("a", 5, 5), normal("b", 5, 2))


@NUMERICS.add
def cholesky_of_indefinite_matrix() -> Built:
    return jnp.linalg.cholesky, (np.array([[[1, 2], [2, 1]], [[2, 0], [0, 2]]], np.float32),)


@NUMERICS.add
def lu_solve_determinant_inverse() -> Built:
    def f(a: Any, b: Any) -> Any:
        return jnp.linalg.solve(a, b), jnp.linalg.det(a), jnp.linalg.slogdet(a), jnp.linalg.inv(a)

    return f, (normal("a", 2, 4, 4) + 3 * np.eye(4, dtype=np.float32), normal("b", 2, 4, 3))


@NUMERICS.add
def qr_and_least_squares() -> Built:
    def f(a: Any, b: Any) -> Any:
        q, r = jnp.linalg.qr(a)
        return q @ r, jnp.abs(r), jnp.linalg.lstsq(a, b)[0]

    return f, (normal("a", 6, 3), normal("b", 6))


@NUMERICS.add
def symmetric_eigenvalues_gradient() -> Built:
    def f(a: Any) -> Any:
        w, v = jnp.linalg.eigh(a)
        return jnp.sum(w**3) + jnp.sum((v * w) @ v.T)

    return jax.value_and_grad(f), (_positive("a", 4),)


@NUMERICS.add
def hermitian_eigenvalues() -> Built:
    z = normal("re", 4, 4) + 1j * normal("im", 4, 4)
    return jnp.linalg.eigvalsh, ((z + z.conj().T).astype(np.complex64),)


@NUMERICS.add
def general_eigenvalues() -> Built:
    return (lambda a: jnp.sort(jnp.abs(jnp.linalg.eigvals(a)))), (normal("a", 5, 5),)


@NUMERICS.add
def singular_values_rank_and_pseudo_inverse() -> Built:
    def f(a: Any) -> Any:
        u, s, vt = jnp.linalg.svd(a, full_matrices=False)
        return s, (u * s) @ vt, jnp.linalg.pinv(a), jnp.linalg.matrix_rank(a), jnp.linalg.norm(a, 2)

    return f, (normal("a", 5, 3),)


@NUMERICS.add
def matrix_exponential_and_power() -> Built:
    return (lambda a: (jsp.linalg.expm(a), jnp.linalg.matrix_power(a, 5))), (normal("a", 4, 4, scale=0.5),)


@NUMERICS.add
def conjugate_gradient() -> Built:
    return (lambda a, b: _cg(lambda v: a @ v, b, maxiter=10)[0]), (_positive("a", 5), normal("b", 5))


@NUMERICS.add
def tensor_contractions() -> Built:
    def f(a: Any, b: Any, c: Any) -> Any:
        return (
            jnp.einsum("abc,cbd->ad", a, b),
            jnp.einsum("abc,dbc->adb", a, c),
            jnp.tensordot(a, b, ((1, 2), (1, 0))),
            jnp.kron(a[0], c[0]),
        )

    return f, (normal("a", 2, 3, 4), normal("b", 4, 3, 5), normal("c", 6, 3, 4))


_SPECIAL: dict[str, tuple[Any, float, float]] = {
    "bessel_i0e": (lax.bessel_i0e, -9, 9),
    "bessel_i1e": (lax.bessel_i1e, -9, 9),
    "betainc": (lambda x: lax.betainc(2.5, 1.5, x), 0, 1),
    "digamma": (lax.digamma, -3.7, 9),
    "entr": (jsp.special.entr, 0.1, 3),
    "erf": (lax.erf, -3, 3),
    "erfc": (lax.erfc, -3, 5),
    "erf_inv": (lax.erf_inv, -1, 1),
    "expi": (jsp.special.expi, 0.2, 5),
    "exp1": (jsp.special.exp1, 0.2, 5),
    "igamma": (lambda x: lax.igamma(1.7, x), 0.1, 9),
    "igammac": (lambda x: lax.igammac(2.7, x), 0.1, 9),
    "igamma_grad_a": (lambda x: lax.igamma_grad_a(1.7, x), 0.1, 9),
    "lgamma": (lax.lgamma, -3.7, 20),
    "log_ndtr": (jsp.special.log_ndtr, -9, 3),
    "logsumexp": (lambda x: jsp.special.logsumexp(x, keepdims=True), -9, 3),
    "ndtri": (jsp.special.ndtri, 0.01, 0.99),
    "polygamma": (lambda x: lax.polygamma(1.0, x), 0.3, 9),
    "sinc": (jnp.sinc, -3, 3),
    "spence": (jsp.special.spence, 0.1, 5),
    "xlogy": (lambda x: jsp.special.xlogy(x, x + 1), 0, 3),
    "zeta": (lambda x: lax.zeta(x, jnp.ones_like(x) * 1.5), 1.2, 9),
    "i0_gradient": (jax.grad(lambda x: jnp.sum(jsp.special.i0(x))), -3, 3),
    "lgamma_gradient": (jax.grad(lambda x: jnp.sum(lax.lgamma(x))), 0.2, 9),
    "erf_inv_gradient": (jax.grad(lambda x: jnp.sum(lax.erf_inv(x))), -0.9, 0.9),
}


def _special(name: str, function: Any, low: float, high: float) -> Builder:
    def builder() -> Built:
        return function, (uniform(name, low, high, 37),)

    builder.__name__ = f"special_{name}"
    return builder


for _name, (_function, _low, _high) in _SPECIAL.items():
    NUMERICS.add(_special(_name, _function, _low, _high))


@NUMERICS.add
def elementary_functions_at_infinities() -> Built:
    def f(x: Any) -> Any:
        functions = (
            jnp.sin, jnp.cos, jnp.tan, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, jnp.cbrt, jnp.tanh,
            jnp.arctan, jnp.sinh, jnp.cosh, jnp.arcsinh, jnp.arccosh, jnp.arctanh, jnp.sign, jnp.floor, jnp.ceil,
            jnp.round, jax.nn.sigmoid, jnp.isfinite, jnp.isnan, jnp.signbit, lax.erf, lax.lgamma,
        )  # fmt: skip
        return [g(x) for g in functions]

    return f, (np.array([0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32),)


@NUMERICS.add
def binary_functions_of_edges() -> Built:
    def f(x: Any, y: Any) -> Any:
        functions = (
            jnp.add, jnp.multiply, jnp.divide, jnp.power, jnp.maximum, jnp.minimum, jnp.arctan2, jnp.fmod,
            jnp.remainder, jnp.hypot, jnp.nextafter, jnp.copysign, jnp.less, jnp.equal, jnp.logaddexp,
        )  # fmt: skip
        return [g(x[:, None], y[None, :]) for g in functions]

    edges = np.array([0, -0.0, 1, -1, 0.5, 3, np.inf, -np.inf, np.nan], np.float32)
    return f, (edges, edges)


@NUMERICS.add
def nan_aware_reductions() -> Built:
    def f(x: Any) -> Any:
        return (
            jnp.nansum(x, 0),
            jnp.nanmax(x, 1),
            jnp.nanmean(x),
            jnp.max(x, 0),
            jnp.argmin(x, 1),
            jnp.any(jnp.isnan(x)),
            jnp.nanvar(x),
        )

    x = normal("x", 4, 6)
    x[1, 2] = x[3, 0] = np.nan
    x[0, 0] = np.inf
    return f, (x,)


@NUMERICS.add
def integer_arithmetic() -> Built:
    def f(a: Any, b: Any) -> Any:
        return (
            a + b,
            a * b,
            a // b,
            a % b,
            lax.div(a, b),
            lax.rem(a, b),
            jnp.abs(a),
            a**3,
            jnp.gcd(a % 90, b % 70),
            jnp.sign(a),
            -a,
        )

    edges = np.array([0, 1, -1, 2, -7, 13, 2**31 - 1, -(2**31)], np.int32)
    return f, (np.repeat(edges, 8), np.tile(edges, 8))


@NUMERICS.add
def bit_tricks() -> Built:
    def f(a: Any, n: Any) -> Any:
        return (
            a & n,
            a | n,
            a ^ n,
            ~a,
            a << (n % 40),
            a >> (n % 40),
            lax.shift_right_arithmetic(a, n % 40),
            lax.clz(a),
            lax.population_count(a),
        )

    return f, (integers("a", 0, 2**32, 30, dtype=np.uint32), integers("n", 0, 2**32, 30, dtype=np.uint32))


@NUMERICS.add
def hash_and_pack_bits() -> Built:
    def f(x: Any) -> Any:
        h = lax.fori_loop(0, 4, lambda i, h: (h ^ (h >> 15)) * np.uint32(0x2C1B3C6D) + i.astype(jnp.uint32), x)
        return h, jnp.packbits(h % 2 == 0), jnp.unpackbits(h.astype(jnp.uint8)), lax.bitcast_convert_type(h, jnp.uint8)

    return f, (integers("x", 0, 2**32, 16, dtype=np.uint32),)


@NUMERICS.add
def float_bit_manipulation() -> Built:
    def f(x: Any) -> Any:
        m, e = jnp.frexp(x)
        return (
            m,
            e,
            jnp.ldexp(m, e + 1),
            lax.bitcast_convert_type(x, jnp.int32),
            lax.reduce_precision(x, 5, 3),
            jnp.modf(x),
        )

    return f, (normal("x", 20, scale=30),)


@NUMERICS.add
def int8_product() -> Built:
    def f(a: Any, b: Any, scale: Any) -> Any:
        c = lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return c, jnp.clip(jnp.round(c * scale), -128, 127).astype(jnp.int8)

    args = integers("a", -128, 128, 6, 9, dtype=np.int8), integers("b", -128, 128, 9, 5, dtype=np.int8)
    return f, (*args, np.float32(0.01))


@NUMERICS.add
def int4_weights_product() -> Built:
    def f(x: Any, w: Any, scale: Any) -> Any:
        return x @ (w.astype(jnp.int4).astype(jnp.float32) * scale)

    return f, (normal("x", 4, 8), integers("w", -8, 8, 8, 5, dtype=np.int8), normal("s", 5))


@NUMERICS.add
def quantise_and_dequantise() -> Built:
    def f(x: Any) -> Any:
        scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
        q = jnp.round(x / scale).astype(jnp.int8)
        return (
            q,
            q * scale,
            x.astype(jnp.float8_e4m3fn).astype(jnp.float32),
            x.astype(jnp.float8_e5m2).astype(jnp.float32),
        )

    return f, (normal("x", 5, 9),)


@NUMERICS.add
def bf16_network() -> Built:
    def f(x: Any, w: Any) -> Any:
        y = jnp.dot(x, w)
        return jax.nn.softmax(y, -1), jnp.sum(y, 0), jnp.sum(y, dtype=jnp.float32), jnp.mean(y * y)

    return f, (normal("x", 8, 16, dtype=jnp.bfloat16), normal("w", 16, 8, dtype=jnp.bfloat16))


@NUMERICS.add
def f16_layer_norm_gradient() -> Built:
    def loss(x: Any) -> Any:
        x = x.astype(jnp.float32)
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return jnp.sum(y.astype(jnp.float16) * x.astype(jnp.float16)).astype(jnp.float32)

    return jax.grad(loss), (normal("x", 4, 8, dtype=np.float16),)


@NUMERICS.add
def complex_arithmetic() -> Built:
    def f(z: Any, w: Any) -> Any:
        ops = (
            z * w,
            z / w,
            jnp.abs(z),
            jnp.angle(z),
            jnp.exp(z),
            jnp.log(z),
            jnp.sqrt(z),
            jnp.sin(z),
            jnp.tanh(z),
            z**w,
            z.conj(),
        )
        return (*ops, z @ w, jnp.sum(z), jnp.prod(z), jnp.real(z) * jnp.imag(w), z == w)

    make = [(normal(f"{n}r", 9) + 1j * normal(f"{n}i", 9)).astype(np.complex64) for n in "zw"]
    return f, tuple(make)


@NUMERICS.add
def complex_gradient() -> Built:
    def f(z: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.exp(1j * z) * z) ** 2)

    return jax.grad(f), ((normal("r", 5) + 1j * normal("i", 5)).astype(np.complex64),)


@NUMERICS.add
def float64_statistics() -> Built:
    def f(x: Any) -> Any:
        return jnp.mean(x), jnp.std(x, 0), jnp.corrcoef(x), jnp.var(x, 1, ddof=1), jnp.prod(x[:2])

    return f, (normal("x", 4, 9),)


@NUMERICS.add
def variadic_reduction() -> Built:
    def f(x: Any) -> Any:
        index = lax.broadcasted_iota(jnp.int32, x.shape, 1)

        def larger(a: Any, b: Any) -> Any:
            keep = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
            return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

        return lax.reduce((x, index), (np.float32(-np.inf), np.int32(2**31 - 1)), larger, (1,))

    return f, (normal("x", 6, 700),)


@NUMERICS.add
def runge_kutta() -> Built:
    def f(y: Any) -> Any:
        def slope(v: Any) -> Any:
            return jnp.stack([10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]])

        def step(v: Any, _: Any) -> Any:
            k1 = slope(v)
            k2 = slope(v + 0.005 * k1)
            k3 = slope(v + 0.005 * k2)
            k4 = slope(v + 0.01 * k3)
            v = v + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return v, v

        return lax.scan(step, y, None, length=20)[1]

    return f, (np.array([1, 1, 1], np.float32),)


@NUMERICS.add
def heat_equation() -> Built:
    def f(u: Any) -> Any:
        def step(_: Any, v: Any) -> Any:
            inner = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:] - 4 * v[1:-1, 1:-1]
            return v.at[1:-1, 1:-1].add(0.1 * inner)

        return lax.fori_loop(0, 10, step, u)

    return f, (normal("u", 9, 9),)


@NUMERICS.add
def mandelbrot() -> Built:
    def f(c: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            z, n = state
            inside = jnp.abs(z) < 2
            return (jnp.where(inside, z * z + c, z), n + inside), None

        return lax.scan(step, (c, jnp.zeros(c.shape, jnp.int32)), None, length=15)[0][1]

    x, y = np.meshgrid(np.linspace(-2, 0.53, 9), np.linspace(-1.1, 1.13, 7))
    return f, ((x + 1j * y).astype(np.complex64),)


@NUMERICS.add
def empty_arrays() -> Built:
    def f(x: Any) -> Any:
        return (
            jnp.sum(x, 0),
            x @ x.T,
            jnp.sort(x),
            jnp.concatenate([x, x + 1]),
            jnp.prod(x),
            x.reshape(3, 0, 2),
            x[:, :0],
        )

    return f, (np.zeros((0, 4), np.float32),)
