"""Families of numerical programs: optimisers, finance, signals, images, statistics, clustering."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes, uniform

FAMILIES = Families()
KEY = integers(0, 2**32, 2, dtype="uint32")


@FAMILIES.add
def optimiser_steps() -> Members:
    """Optimisers by the step: momentum, Adam, AdamW, RMSProp, Adagrad, Lion, Adafactor, LAMB, moving averages."""

    def adam(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-3 * (m / 0.65) / (jnp.sqrt(v / 0.01) + 1e-8), m, v

    def lamb(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, ...]:
        _, m, v = adam(p, g, m, v)
        update = m / (jnp.sqrt(v) + 1e-6) + 0.01 * p
        return p - 1e-3 * update * jnp.linalg.norm(p) / (jnp.linalg.norm(update) + 1e-6), m, v

    def adafactor(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array]:
        square = (g * g).reshape(-1, 8) + 1e-6
        row, column = square.mean(1, keepdims=True), square.mean(0, keepdims=True)
        return p - 1e-3 * (g.reshape(-1, 8) * lax.rsqrt(row * column / row.mean())).reshape(p.shape), m

    def clipped(p: Array, g: Array, m: Array, v: Array) -> tuple[Array, ...]:
        return adam(p, g * jnp.minimum(1, 1 / (jnp.sqrt(jnp.sum(g * g)) + 1e-6)), m, v)

    variants: dict[str, Any] = {
        "sgd": lambda p, g, m, v: p - 0.01 * g,
        "momentum": lambda p, g, m, v: (p - 0.01 * (0.9 * m + g), 0.9 * m + g),
        "nesterov": lambda p, g, m, v: (p - 0.01 * (g + 0.9 * (0.9 * m + g)), 0.9 * m + g),
        "adam": adam,
        "adamw": lambda p, g, m, v: (adam(p, g, m, v)[0] - 1e-5 * p, *adam(p, g, m, v)[1:]),
        "lamb": lamb,
        "rmsprop": lambda p, g, m, v: (p - 1e-3 * g / (jnp.sqrt(0.9 * v + 0.1 * g * g) + 1e-8), 0.9 * v + 0.1 * g * g),
        "adagrad": lambda p, g, m, v: (p - 0.01 * g / (jnp.sqrt(v + g * g) + 1e-8), v + g * g),
        "lion": lambda p, g, m, v: (p - 1e-4 * jnp.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g),
        "adafactor": adafactor,
        "clipped": clipped,
        "average": lambda p, g, m, v: 0.999 * m + 0.001 * (p - 0.1 * g),
    }
    cases = {
        str(n): (normal(n), normal(n, std=0.1), normal(n, std=0.01), uniform(1e-4, 1e-2, n))
        for n in (1024, 65536, 1 << 20, 1 << 23)
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def option_prices() -> Members:
    """Options: Black-Scholes with Greeks, implied volatility, binomial trees, barrier and Asian payoffs."""

    def cdf(x: Array) -> Array:
        return 0.5 * (1 + lax.erf(x / math.sqrt(2)))

    def price(s: Array, k: Array, v: Array) -> Array:
        d = (jnp.log(s / k) + 0.5 * v * v) / v
        return s * cdf(d) - k * cdf(d - v)

    def implied(s: Array, k: Array, v: Array) -> Any:
        target = price(s, k, v)

        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = c
            middle = (low + high) / 2
            above = price(s, k, middle) > target
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        return lax.fori_loop(0, 20, step, (jnp.full_like(v, 0.01), jnp.full_like(v, 2)))[0]

    def tree(s: Array, k: Array, v: Array) -> Array:
        n = 32
        up = jnp.exp(v[:, None] / math.sqrt(n) * (2 * jnp.arange(n + 1) - n))
        value = jnp.maximum(s[:, None] * up - k[:, None], 0)
        for _ in range(n):
            value = 0.5 * (value[:, 1:] + value[:, :-1])
        return value[:, 0]

    variants: dict[str, Any] = {
        "price": price,
        "both": lambda s, k, v: (price(s, k, v), price(s, k, v) - s + k),
        "greeks": lambda s, k, v: jax.grad(lambda *a: jnp.sum(price(*a)), (0, 1, 2))(s, k, v),
        "implied": implied,
        "vega": lambda s, k, v: s * jnp.exp(-0.5 * ((jnp.log(s / k) + 0.5 * v * v) / v) ** 2) * 0.3989,
    }
    cases = {
        str(n): (uniform(50, 150, n), uniform(50, 150, n), uniform(0.1, 0.6, n)) for n in (100, 10000, 200000, 2000000)
    }
    yield from each_of(variants, cases)
    yield from each_of({"tree": tree}, dict(list(cases.items())[:2]))


@FAMILIES.add
def market_paths() -> Members:
    """Monte Carlo over paths of prices: geometric motion, Heston, Vasicek, Asian and barrier payoffs, value at risk."""

    def normals(key: Array, dims: tuple[int, ...]) -> Array:
        return jax.random.normal(jax.random.wrap_key_data(key), dims)

    def paths(key: Array, s: Array, steps: int = 32) -> Array:
        return s * jnp.exp(jnp.cumsum(0.02 * normals(key, (steps, *s.shape)) - 0.0002, 0))

    def heston(key: Array, s: Array) -> Any:
        def step(i: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            s, v = c
            z = normals(key + i.astype(jnp.uint32), (2, *s.shape))
            root = jnp.sqrt(jnp.maximum(v, 0) * 0.01)
            return s * jnp.exp(root * z[0] - 0.005 * v), v + 0.02 * (0.04 - v) + 0.3 * root * (0.6 * z[1] - 0.8 * z[0])

        return lax.fori_loop(0, 32, step, (s, jnp.full_like(s, 0.04)))[0]

    variants: dict[str, Any] = {
        "european": lambda k, s: jnp.mean(jnp.maximum(paths(k, s)[-1] - 100, 0)),
        "asian": lambda k, s: jnp.mean(jnp.maximum(jnp.mean(paths(k, s), 0) - 100, 0)),
        "barrier": lambda k, s: jnp.mean(
            jnp.where(jnp.max(paths(k, s), 0) < 130, jnp.maximum(paths(k, s)[-1] - 100, 0), 0)
        ),
        "heston": heston,
        "lookback": lambda k, s: jnp.max(paths(k, s), 0) - paths(k, s)[-1],
        "risk": lambda k, s: jnp.sort(paths(k, s, 8)[-1] - s)[: max(1, s.shape[0] // 20)],
        "vasicek": lambda k, s: lax.scan(
            lambda r, z: (r + 0.1 * (0.05 - r) + 0.01 * z,) * 2, s * 4e-4, normals(k, (64, *s.shape))
        )[1],
    }
    cases = {str(n): (KEY, uniform(90, 110, n)) for n in (64, 1000, 20000, 100000)}
    yield from each_of(variants, cases, chaotic=True)


@FAMILIES.add
def signal_filters() -> Members:
    """Signals and filters: moving averages, finite and infinite responses, windows, resampling, detectors."""

    def fir(x: Array, taps: int) -> Array:
        w = jnp.hanning(taps).astype(x.dtype)
        return sum((w[k] * jnp.roll(x, k, 1) for k in range(taps)), jnp.zeros_like(x))

    def iir(x: Array) -> Array:
        def step(c: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
            y = 0.2 * row + 1.2 * c[0] - 0.5 * c[1]
            return (y, c[0]), y

        zero = jnp.zeros(x.shape[0])
        return lax.scan(step, (zero, zero), x.T)[1].T

    def peaks(x: Array) -> Array:
        return ((x > jnp.roll(x, 1, 1)) & (x > jnp.roll(x, -1, 1)) & (x > 1)).sum(1)

    def frames(x: Array) -> Array:
        n = x.shape[1] // 64 * 64
        parts = x[:, :n].reshape(x.shape[0], -1, 64) * jnp.hanning(64)
        return jnp.log(jnp.sum(parts * parts, -1) + 1e-6)

    def sinc(x: Array) -> Array:
        return jnp.stack([x, 0.5 * (x + jnp.roll(x, -1, 1))], -1).reshape(x.shape[0], -1)

    variants: dict[str, Any] = {
        "fir": lambda x: fir(x, 9),
        "iir": iir,
        "peaks": peaks,
        "frames": frames,
        "upsample": sinc,
        "difference": lambda x: jnp.diff(x, axis=1) * 0.97,
        "envelope": lambda x: lax.cummax(jnp.abs(fir(x, 5)), 1),
        "correlate": lambda x: jnp.stack([jnp.mean(x * jnp.roll(x, k, 1), 1) for k in range(1, 9)], -1),
        "median": lambda x: jnp.median(jnp.stack([jnp.roll(x, k, 1) for k in (-1, 0, 1)]), 0),
        "power": lambda x: jnp.abs(jnp.fft.rfft(x, axis=1)) ** 2,
    }
    yield from each_of(
        variants, {sizes(m, n): (normal(m, n),) for m, n in ((1, 1000), (16, 256), (64, 4096), (2, 100000))}
    )


@FAMILIES.add
def image_filters() -> Members:
    """Images and filters: blur, edges, morphology, sharpening, bilateral, warps, thresholds, integral images."""

    def shifts(x: Array, r: int) -> list[Array]:
        return [jnp.roll(x, (a, b), (-2, -1)) for a in range(-r, r + 1) for b in range(-r, r + 1)]

    def sobel(x: Array) -> Array:
        h = jnp.roll(x, 1, -1) - jnp.roll(x, -1, -1)
        v = jnp.roll(x, 1, -2) - jnp.roll(x, -1, -2)
        return jnp.sqrt(h * h + v * v + 1e-6)

    def blur(x: Array) -> Array:
        return sum(shifts(x, 1), jnp.zeros_like(x)) / 9

    def bilateral(x: Array) -> Array:
        parts = shifts(x, 1)
        weights = [jnp.exp(-((p - x) ** 2) * 10) for p in parts]
        return sum((w * p for w, p in zip(weights, parts, strict=True)), jnp.zeros_like(x)) / sum(
            weights, jnp.zeros_like(x)
        )

    def warp(x: Array) -> Array:
        h, w = x.shape[-2:]
        i, j = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
        a = jnp.clip(i + 3 * jnp.sin(j / 8.0), 0, h - 1.001)
        low = a.astype(jnp.int32)
        part = a - low
        return x[..., low, j] * (1 - part) + x[..., low + 1, j] * part

    variants: dict[str, Any] = {
        "sobel": sobel,
        "blur": blur,
        "bilateral": bilateral,
        "warp": warp,
        "sharpen": lambda x: jnp.clip(2 * x - blur(x), 0, 1),
        "dilate": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 1, 1), "SAME"),
        "open": lambda x: lax.reduce_window(
            lax.reduce_window(x, jnp.inf, lax.min, (1, 3, 3), (1, 1, 1), "SAME"),
            -jnp.inf,
            lax.max,
            (1, 3, 3),
            (1, 1, 1),
            "SAME",
        ),
        "integral": lambda x: jnp.cumsum(jnp.cumsum(x, -1), -2),
        "threshold": lambda x: jnp.where(x > blur(x) + 0.02, 1.0, 0.0),
        "corners": lambda x: blur(sobel(x) ** 2) - 0.04 * blur(sobel(x)) ** 2,
        "gradient": gradient(blur),
    }
    yield from each_of(
        variants,
        {sizes(*d): (uniform(0, 1, *d),) for d in ((1, 32, 32), (4, 128, 128), (1, 512, 512), (3, 1080, 1920))},
    )


@FAMILIES.add
def statistics() -> Members:
    """Statistics: covariance, regression, histograms, quantiles, kernel densities, bootstrap, tests."""

    def covariance(x: Array) -> Array:
        c = x - x.mean(0)
        return c.T @ c / (x.shape[0] - 1)

    def correlation(x: Array) -> Array:
        v = covariance(x)
        d = jnp.sqrt(jnp.diagonal(v))
        return v / (d[:, None] * d[None, :])

    def histogram(x: Array) -> Array:
        bins = jnp.clip(((x + 3) / 6 * 32).astype(jnp.int32), 0, 31)
        return jnp.zeros((32,), jnp.int32).at[bins.reshape(-1)].add(1)

    def density(x: Array) -> Array:
        grid = jnp.linspace(-3, 3, 64)
        return jnp.mean(jnp.exp(-0.5 * ((x[:, :1] - grid) / 0.3) ** 2), 0)

    def line(x: Array) -> tuple[Array, Array]:
        t = jnp.arange(x.shape[0]) / x.shape[0]
        slope = jnp.sum((t - t.mean())[:, None] * (x - x.mean(0)), 0) / jnp.sum((t - t.mean()) ** 2)
        return slope, x.mean(0) - slope * t.mean()

    variants: dict[str, Any] = {
        "covariance": covariance,
        "correlation": correlation,
        "histogram": histogram,
        "density": density,
        "line": line,
        "quartiles": lambda x: jnp.quantile(x, jnp.array([0.25, 0.5, 0.75]), axis=0),
        "ranks": lambda x: jnp.argsort(jnp.argsort(x, 0), 0),
        "t_values": lambda x: x.mean(0) / (x.std(0) / math.sqrt(x.shape[0])),
        "outliers": lambda x: jnp.sum(jnp.abs(x - x.mean(0)) > 2 * x.std(0), 0),
        "distances": lambda x: jnp.sqrt(jnp.sum((x[:64, None] - x[None, :64]) ** 2, -1)),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in ((100, 4), (1000, 32), (10000, 64), (100000, 16))})


@FAMILIES.add
def clustering() -> Members:
    """Clusters and neighbours: k-means steps, Gaussian mixtures, nearest neighbours, kernels, spectral steps."""

    def distance(x: Array, c: Array) -> Array:
        return jnp.sum(x * x, -1, keepdims=True) - 2 * x @ c.T + jnp.sum(c * c, -1)

    def kmeans(x: Array, c: Array) -> tuple[Array, Array]:
        nearest = jnp.argmin(distance(x, c), -1)
        total = jax.ops.segment_sum(x, nearest, c.shape[0])
        count = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, c.shape[0])
        return total / jnp.maximum(count, 1)[:, None], nearest

    def mixture(x: Array, c: Array) -> tuple[Array, Array]:
        share = jax.nn.softmax(-0.5 * distance(x, c))
        weight = share.sum(0)
        return share.T @ x / weight[:, None], weight / x.shape[0]

    variants: dict[str, Any] = {
        "kmeans": kmeans,
        "mixture": mixture,
        "assign": lambda x, c: jnp.argmin(distance(x, c), -1),
        "many": lambda x, c: lax.fori_loop(0, 10, lambda _, v: kmeans(x, v)[0], c),
        "inertia": lambda x, c: jnp.sum(jnp.min(distance(x, c), -1)),
        "neighbours": lambda x, c: lax.top_k(-distance(c, x), 5),
        "kernel": lambda x, c: jnp.exp(-0.5 * distance(x, c)) @ c,
        "soft_gradient": gradient(lambda x, c: jax.nn.softmax(-distance(x, c)) @ c),
    }
    cases = {
        sizes(n, d, k): (normal(n, d), normal(k, d))
        for n, d, k in ((100, 2, 4), (1000, 16, 8), (10000, 32, 16), (50000, 8, 64))
    }
    yield from each_of(variants, cases, chaotic=True)
