"""Families of algorithms: sorting, indexing, segments, dynamic programs, searches, text, numbers, geometry."""

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
def sorting() -> Members:
    """Orders, several keys, medians, unique values, merges, ranks, top elements."""

    def unique(x: Array) -> tuple[Array, Array]:
        s = jnp.sort(jnp.round(x * 4), -1)
        new = jnp.concatenate([jnp.ones_like(s[:, :1], bool), s[:, 1:] != s[:, :-1]], -1)
        return new.sum(-1), jnp.where(new, s, jnp.inf)

    def by_two(x: Array) -> Any:
        return lax.sort((jnp.round(x), -x, jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape)), dimension=1, num_keys=2)

    variants: dict[str, Any] = {
        "ascending": lambda x: jnp.sort(x, -1),
        "columns": lambda x: jnp.sort(x, 0),
        "order": lambda x: jnp.argsort(x, -1),
        "median": lambda x: jnp.median(x, -1),
        "unique": unique,
        "by_two": by_two,
        "descending": lambda x: -jnp.sort(-x, -1),
        "trimmed": lambda x: jnp.mean(jnp.sort(x, -1)[:, 2:-2], -1),
    }
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in ((16, 64), (256, 256), (4, 10000), (1000, 1000))})


@FAMILIES.add
def top_elements() -> Members:
    """Largest elements: top-k, sampling heads, masks of the largest, beams, suppression of overlapping boxes."""

    def nucleus(x: Array) -> Array:
        s = -jnp.sort(-jax.nn.softmax(x), -1)
        keep = jnp.sum(jnp.cumsum(s, -1) < 0.9, -1, keepdims=True)
        edge = jnp.take_along_axis(s, jnp.minimum(keep, x.shape[1] - 1), -1)
        return jnp.where(jax.nn.softmax(x) >= edge, x, -jnp.inf)

    def sparse(x: Array) -> Array:
        return jnp.where(x >= lax.top_k(x, 4)[0][:, -1:], x, 0)

    variants: dict[str, Any] = {
        "four": lambda x: lax.top_k(x, 4),
        "sixteen": lambda x: lax.top_k(x, 16),
        "nucleus": nucleus,
        "sparse": sparse,
        "softmax": lambda x: jax.nn.softmax(lax.top_k(x, 8)[0]),
        "greedy": lambda x: jnp.argmax(x, -1),
        "gradient": gradient(sparse),
        "beam": lambda x: lax.top_k((jax.nn.log_softmax(x[:4]) + jnp.arange(4.0)[:, None]).reshape(-1), 4),
    }
    shapes = ((8, 32), (64, 1000), (256, 4096), (16, 50000))
    yield from each_of(variants, {sizes(*d): (normal(*d),) for d in shapes})


@FAMILIES.add
def gathers_and_scatters() -> Members:
    """Gathers and scatters: rows, pairs, windows, permutations, counts, masked updates, and gradients."""

    def windows(x: Array, i: Array) -> Array:
        return jax.vmap(lambda s: lax.dynamic_slice(x, (s, 0), (4, x.shape[1])))(i).sum(1)

    variants: dict[str, Any] = {
        "rows": lambda x, i: x[i] * 2,
        "pairs": lambda x, i: x[i, i % x.shape[1]],
        "windows": windows,
        "gradient": gradient(lambda x, i: jnp.tanh(x[i]), 0),
        "add": lambda x, i: x.at[i].add(0.5 * x[i]),
        "set": lambda x, i: jnp.zeros_like(x).at[jnp.sort(i)].max(x[i]),
        "count": lambda x, i: jnp.zeros(x.shape[0], jnp.int32).at[i].add(1),
        "columns": lambda x, i: jnp.take(x, i % x.shape[1], axis=1),
        "along": lambda x, i: (
            jnp.take_along_axis(x, (i % x.shape[1])[: x.shape[0], None], 1) if i.shape[0] >= x.shape[0] else x[i]
        ),
        "inverse": lambda x, i: x[jnp.argsort(i)[: x.shape[0]] % x.shape[0]],
    }
    cases = {
        sizes(m, n, k): (normal(m, n), integers(0, m, k))
        for m, n, k in ((16, 8, 32), (1000, 64, 500), (4096, 128, 8192), (100000, 16, 100000))
    }
    yield from each_of(variants, cases)


@FAMILIES.add
def segments() -> Members:
    """Reductions by segments of sorted or unsorted ids: sums, maxima, softmax, means, ragged rows."""

    def softmax(x: Array, i: Array) -> Array:
        top = jax.ops.segment_max(x, i, 32)
        e = jnp.exp(x - top[i])
        return e / jax.ops.segment_sum(e, i, 32)[i]

    variants: dict[str, Any] = {
        "sum": lambda x, i: jax.ops.segment_sum(x, i, 32),
        "maximum": lambda x, i: jax.ops.segment_max(x, i, 32),
        "softmax": softmax,
        "mean": lambda x, i: (
            jax.ops.segment_sum(x, i, 32) / jnp.maximum(jax.ops.segment_sum(jnp.ones_like(x), i, 32), 1)
        ),
        "sorted": lambda x, i: jax.ops.segment_sum(x, jnp.sort(i), 32, indices_are_sorted=True),
        "variance": lambda x, i: jax.ops.segment_sum(x * x, i, 32) - jax.ops.segment_sum(x, i, 32) ** 2,
        "gradient": gradient(softmax, 0),
        "one_hot": lambda x, i: jnp.einsum("n...,nk->k...", x, jax.nn.one_hot(i, 32)),
    }
    cases = {sizes(*d): (normal(*d), integers(0, 32, d[0])) for d in ((100,), (10000,), (1000000,))}
    yield from each_of(variants, cases)
    wide = {k: variants[k] for k in ("sum", "maximum", "mean", "one_hot")}
    yield from each_of(
        {k: f for k, f in wide.items() if k != "mean"},
        {sizes(*d): (normal(*d), integers(0, 32, d[0])) for d in ((200, 16), (20000, 32))},
    )


@FAMILIES.add
def dynamic_programs() -> Members:
    """Dynamic programs in scans: edit distance, alignment, Viterbi, knapsack, shortest paths, coins."""

    def edit(a: Array, b: Array) -> Array:
        def row(previous: Array, x: Array) -> tuple[Array, None]:
            base = jnp.minimum(previous[1:] + 1, previous[:-1] + (b != x))

            def cell(left: Array, up: Array) -> tuple[Array, Array]:
                value = jnp.minimum(left + 1, up)
                return value, value

            first = previous[0] + 1
            return jnp.concatenate([first[None], lax.scan(cell, first, base)[1]]), None

        return lax.scan(row, jnp.arange(b.shape[0] + 1), a)[0][-1]

    def viterbi(a: Array, b: Array) -> tuple[Array, Array]:
        table = jnp.sin(jnp.arange(256.0)).reshape(16, 16)

        def step(score: Array, symbol: Array) -> tuple[Array, Array]:
            paths = score[:, None] + table
            return paths.max(0) + jnp.cos(symbol * jnp.arange(16.0)), paths.argmax(0)

        return lax.scan(step, jnp.zeros(16), a)

    def knapsack(a: Array, b: Array) -> Array:
        capacity = jnp.arange(256)

        def step(best: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
            weight, value = item
            taken = jnp.where(capacity >= weight + 1, best[jnp.maximum(capacity - weight - 1, 0)] + value, 0)
            return jnp.maximum(best, taken), None

        return lax.scan(step, jnp.zeros(256, jnp.int32), (a, b))[0]

    def distances(a: Array, b: Array) -> Any:
        d = jnp.abs(a[:64, None] - b[None, :64]).astype(jnp.float32) + 1
        return lax.fori_loop(0, d.shape[0], lambda k, d: jnp.minimum(d, d[:, k, None] + d[k]), d)

    def warping(a: Array, b: Array) -> Array:
        def row(previous: Array, x: Array) -> tuple[Array, None]:
            cost = jnp.abs(b - x).astype(jnp.float32)
            up = jnp.minimum(previous, jnp.concatenate([jnp.full((1,), 1e9), previous[:-1]]))
            return lax.scan(lambda left, c: (jnp.minimum(left, c[1]) + c[0],) * 2, jnp.float32(1e9), (cost, up))[
                1
            ], None

        return lax.scan(row, jnp.abs(b - a[0]).astype(jnp.float32), a[1:])[0][-1]

    def increasing(a: Array, b: Array) -> Array:
        def step(i: Array, best: Array) -> Array:
            before = (jnp.arange(a.shape[0]) < i) & (a < a[i])
            return best.at[i].set(1 + jnp.max(jnp.where(before, best, 0)))

        return jnp.max(lax.fori_loop(0, a.shape[0], step, jnp.ones_like(a)))

    variants: dict[str, Any] = {
        "edit": edit,
        "viterbi": viterbi,
        "knapsack": knapsack,
        "distances": distances,
        "warping": warping,
        "increasing": increasing,
    }
    yield from each_of(variants, {str(n): (integers(0, 26, n), integers(0, 26, n)) for n in (16, 64, 200, 600)})


@FAMILIES.add
def searches() -> Members:
    """Binary searches, bisection, Newton iterations, line searches, interpolation in tables."""

    def bisect(x: Array, y: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = c
            m = (low + high) / 2
            right = m**3 + m < x
            return jnp.where(right, m, low), jnp.where(right, high, m)

        return lax.fori_loop(0, 25, step, (jnp.full_like(x, -4), jnp.full_like(x, 4)))[0]

    def root(x: Array, y: Array) -> Any:
        return lax.fori_loop(0, 8, lambda _, v: v - (v**3 + v - x) / (3 * v * v + 1), x)

    def until(x: Array, y: Array) -> Any:
        return lax.while_loop(
            lambda c: (c[1] < 30) & (jnp.max(jnp.abs(c[0])) > 1e-2), lambda c: (c[0] * 0.7, c[1] + 1), (x, 0)
        )

    variants: dict[str, Any] = {
        "bisect": bisect,
        "root": root,
        "until": until,
        "insert": lambda x, y: jnp.searchsorted(jnp.sort(y), x),
        "interpolate": lambda x, y: jnp.interp(x, jnp.sort(y), jnp.cumsum(jnp.abs(y))),
        "digitise": lambda x, y: jnp.sum(x[:, None] > jnp.linspace(-2, 2, 16), -1),
        "descent": lambda x, y: lax.fori_loop(
            0, 20, lambda _, v: v - 0.1 * jax.grad(lambda u: jnp.sum(jnp.cosh(u - jnp.tanh(x))))(v), y * 0.1
        ),
    }
    yield from each_of(variants, {str(n): (normal(n), normal(n)) for n in (64, 1000, 10000, 100000)}, chaotic=True)


@FAMILIES.add
def text_processing() -> Members:
    """Tokens and bytes: masks, shifts, n-gram hashes, counts, checksums, case, run lengths, packing."""

    def hashes(t: Array) -> Array:
        return sum((jnp.roll(t, k, -1) * (31**k) for k in range(3)), jnp.zeros_like(t)) % 1024

    def checksum(t: Array) -> Array:
        def step(c: Array, row: Array) -> tuple[Array, None]:
            return (c * 33 + row) % 65521, None

        return lax.scan(step, jnp.ones(t.shape[0], jnp.int32) * 5381 % 65521, t.T)[0]

    def runs(t: Array) -> Array:
        new = t != jnp.roll(t, 1, -1)
        return jnp.cumsum(new, -1)

    variants: dict[str, Any] = {
        "hashes": hashes,
        "checksum": checksum,
        "runs": runs,
        "counts": lambda t: jnp.zeros((128,), jnp.int32).at[t.reshape(-1)].add(1),
        "upper": lambda t: jnp.where((t >= 97) & (t <= 122), t - 32, t),
        "words": lambda t: jnp.sum((t == 32) & (jnp.roll(t, 1, -1) != 32), -1),
        "mask": lambda t: jnp.where((t % 7) == 0, 103, t),
        "positions": lambda t: jnp.cumsum(t != 0, -1) * (t != 0),
        "pack": lambda t: t[:, ::2] * 256 + t[:, 1::2],
        "causal_mask": lambda t: (jnp.tri(t.shape[1], dtype=bool)[None] & (t != 0)[:, None]).sum(-1),
    }
    yield from each_of(variants, {sizes(*d): (integers(0, 128, *d),) for d in ((4, 64), (32, 512), (256, 1024))})


@FAMILIES.add
def number_theory() -> Members:
    """Integer programs: sieves, greatest common divisors, modular powers, Collatz lengths, digits, Fibonacci."""

    def gcd(x: Array, y: Array) -> Any:
        return lax.fori_loop(
            0,
            30,
            lambda _, c: (jnp.where(c[1] > 0, c[1], c[0]), jnp.where(c[1] > 0, c[0] % jnp.maximum(c[1], 1), 0)),
            (x, y),
        )[0]

    def power(x: Array, y: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            b, e, r = c
            return b * b % 10007, e >> 1, jnp.where(e & 1, r * b % 10007, r)

        return lax.fori_loop(0, 16, step, (x % 10007, y, jnp.ones_like(x)))[2]

    def collatz(x: Array, y: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            v, n = c
            return jnp.where(v % 2 == 0, v // 2, jnp.where(v > 1, 3 * v + 1, v)), n + (v > 1)

        return lax.fori_loop(0, 60, step, (x + 1, jnp.zeros_like(x)))[1]

    def primes(x: Array, y: Array) -> Array:
        return jnp.all((x[:, None] % jnp.arange(2, 34) != 0) | (x[:, None] <= jnp.arange(2, 34)), -1)

    variants: dict[str, Any] = {
        "gcd": gcd,
        "power": power,
        "collatz": collatz,
        "primes": primes,
        "digits": lambda x, y: sum((x // 10**k % 10 for k in range(5)), jnp.zeros_like(x)) + y,
        "fibonacci": lambda x, y: lax.fori_loop(0, 40, lambda _, c: (c[1], (c[0] + c[1]) % 9973), (x % 7, y % 7))[0],
    }
    yield from each_of(variants, {str(n): (integers(1, 10000, n), integers(1, 10000, n)) for n in (100, 4096, 100000)})


@FAMILIES.add
def geometry() -> Members:
    """Boxes, polygons and point clouds: overlaps, areas, hulls, voxel counts, ray casts, splines, Bézier curves."""

    def overlap(a: Array, b: Array) -> Array:
        a, b = (jnp.concatenate([v[:64, :2], v[:64, :2] + jnp.abs(v[:64, 2:]) + 0.1], -1) for v in (a, b))
        low, high = jnp.maximum(a[:, None, :2], b[None, :, :2]), jnp.minimum(a[:, None, 2:], b[None, :, 2:])
        both = jnp.prod(jnp.maximum(high - low, 0), -1)
        area = [jnp.prod(v[:, 2:] - v[:, :2], -1) for v in (a, b)]
        return both / (area[0][:, None] + area[1][None] - both)

    def voxels(a: Array, b: Array) -> Array:
        i = jnp.clip(((a[:, :3] + 3) / 6 * 8).astype(jnp.int32), 0, 7)
        return jnp.zeros((8, 8, 8)).at[i[:, 0], i[:, 1], i[:, 2]].add(1.0)

    def inside(a: Array, b: Array) -> Array:
        p, q = b[:16, :2], jnp.roll(b[:16, :2], 1, 0)
        y = a[:, 1:2]
        cross = ((p[:, 1] > y) != (q[:, 1] > y)) & (
            a[:, :1] < (q[:, 0] - p[:, 0]) * (y - p[:, 1]) / (q[:, 1] - p[:, 1] + 1e-6) + p[:, 0]
        )
        return jnp.sum(cross, -1) % 2

    def bezier(a: Array, b: Array) -> Array:
        t = jnp.linspace(0, 1, 32)[:, None]
        return (1 - t) ** 2 * a[:, 0] + 2 * t * (1 - t) * a[:, 1] + t**2 * b[:, 0]

    variants: dict[str, Any] = {
        "overlap": overlap,
        "voxels": voxels,
        "inside": inside,
        "bezier": bezier,
        "area": lambda a, b: 0.5 * jnp.abs(jnp.sum(a[:, 0] * jnp.roll(a[:, 1], 1) - a[:, 1] * jnp.roll(a[:, 0], 1))),
        "bounds": lambda a, b: (a.min(0), a.max(0), a.mean(0)),
        "chamfer": lambda a, b: jnp.mean(jnp.min(jnp.sum((a[:128, None] - b[None, :128]) ** 2, -1), 1)),
        "polar": lambda a, b: (jnp.hypot(a[:, 0], a[:, 1]), jnp.arctan2(a[:, 1], a[:, 0])),
    }
    yield from each_of(variants, {str(n): (normal(n, 4), normal(n, 4)) for n in (64, 2000, 100000)}, chaotic=True)
