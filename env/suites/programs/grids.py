"""Families of simulations on grids: spin lattices, differential equations, fluids, cellular automata."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.family import Families, Members, each_of, integers, normal, sizes, uniform

FAMILIES = Families()
KEY = integers(0, 2**32, 2, dtype="uint32")


def _uniform(key: Array, dims: tuple[int, ...]) -> Array:
    return jax.random.uniform(jax.random.wrap_key_data(key), dims)


@FAMILIES.add
def lattices() -> Members:
    """Spin lattices: Ising and Potts sweeps on chequerboards, energies, magnetisation, with random numbers inside."""

    def neighbours(s: Array) -> Array:
        return jnp.roll(s, 1, 0) + jnp.roll(s, -1, 0) + jnp.roll(s, 1, 1) + jnp.roll(s, -1, 1)

    def sweep(s: Array, draws: Array) -> Array:
        board = (jnp.indices(s.shape).sum(0)) % 2
        for parity in (0, 1):
            flip = (draws < jnp.exp(-2 * 0.44 * s * neighbours(s))) & (board == parity)
            s = jnp.where(flip, -s, s)
        return s

    def given(spins: Array, key: Array) -> Array:
        return sweep(spins * 2.0 - 1, _uniform(key, spins.shape))

    def many(spins: Array, key: Array) -> Any:
        def step(i: Array, s: Array) -> Array:
            return sweep(s, _uniform(key + i.astype(jnp.uint32), s.shape))

        s = lax.fori_loop(0, 20, step, spins * 2.0 - 1)
        return s, jnp.mean(s), -jnp.mean(s * neighbours(s)) / 2

    def measure(spins: Array, key: Array) -> Any:
        s = spins * 2.0 - 1
        return jnp.mean(s), -jnp.mean(s * neighbours(s)) / 2, jnp.abs(jnp.mean(s, 0))

    variants: dict[str, Any] = {"sweep": given, "many": many, "measure": measure}
    cases = {sizes(n, n): (integers(0, 2, n, n), KEY) for n in (8, 32, 128, 512, 1024)}
    yield from each_of(variants, cases, chaotic=True)


@FAMILIES.add
def diffusion_equations() -> Members:
    """Heat, advection, wave and reaction-diffusion equations on grids of one, two and three dimensions."""

    def laplace(u: Array) -> Array:
        return sum((jnp.roll(u, s, a) for a in range(u.ndim) for s in (1, -1)), -2 * u.ndim * u)

    def heat(u: Array) -> Array:
        return u + 0.1 * laplace(u)

    def fixed(u: Array) -> Array:
        inner = tuple(slice(1, -1) for _ in range(u.ndim))
        return u.at[inner].set(heat(u)[inner])

    def wave(u: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            return 2 * c[0] - c[1] + 0.1 * laplace(c[0]), c[0]

        return lax.fori_loop(0, 20, step, (u, u))

    def gray_scott(u: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            a, b = c
            r = a * b * b
            return a + 0.16 * laplace(a) - r + 0.035 * (1 - a), b + 0.08 * laplace(b) + r - 0.1 * b

        return lax.fori_loop(0, 10, step, (u, 1 - u))

    variants: dict[str, Any] = {
        "heat": heat,
        "heat_many": lambda u: lax.fori_loop(0, 50, lambda _, v: heat(v), u),
        "fixed": fixed,
        "wave": wave,
        "gray_scott": gray_scott,
        "advect": lambda u: u - 0.2 * (u - jnp.roll(u, 1, 0)),
        "burgers": lambda u: u - 0.1 * u * (u - jnp.roll(u, 1, 0)) + 0.05 * laplace(u),
    }
    shapes = ((1000,), (64, 64), (512, 512), (1024, 1024), (16, 16, 16), (128, 128, 64))
    yield from each_of(variants, {sizes(*d): (uniform(0, 1, *d),) for d in shapes})


@FAMILIES.add
def fluids() -> Members:
    """Fluids: Jacobi iterations of pressure, divergence, shallow water, vorticity, lattice Boltzmann steps."""

    def divergence(u: Array, v: Array) -> Array:
        return (jnp.roll(u, -1, 0) - jnp.roll(u, 1, 0) + jnp.roll(v, -1, 1) - jnp.roll(v, 1, 1)) / 2

    def pressure(u: Array, v: Array) -> Any:
        d = divergence(u, v)

        def step(_: Array, p: Array) -> Array:
            return (jnp.roll(p, 1, 0) + jnp.roll(p, -1, 0) + jnp.roll(p, 1, 1) + jnp.roll(p, -1, 1) - d) / 4

        return lax.fori_loop(0, 30, step, jnp.zeros_like(d))

    def project(u: Array, v: Array) -> tuple[Array, Array]:
        p = pressure(u, v)
        return u - (jnp.roll(p, -1, 0) - jnp.roll(p, 1, 0)) / 2, v - (jnp.roll(p, -1, 1) - jnp.roll(p, 1, 1)) / 2

    def shallow(u: Array, v: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            u, v, h = c
            u = u - 0.01 * (jnp.roll(h, -1, 0) - jnp.roll(h, 1, 0))
            v = v - 0.01 * (jnp.roll(h, -1, 1) - jnp.roll(h, 1, 1))
            return u, v, h - 0.02 * divergence(u, v)

        return lax.fori_loop(0, 10, step, (u, v, jnp.ones_like(u)))

    def boltzmann(u: Array, v: Array) -> Array:
        dirs = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
        weights = (4 / 9,) + (1 / 9,) * 4 + (1 / 36,) * 4
        out = []
        for (a, b), w in zip(dirs, weights, strict=True):
            c = 3 * (a * u + b * v) * 0.1
            out.append(jnp.roll(w * (1 + c + c * c / 2 - 0.015 * (u * u + v * v)), (a, b), (0, 1)))
        return jnp.stack(out)

    variants: dict[str, Any] = {
        "divergence": divergence,
        "pressure": pressure,
        "project": project,
        "shallow": shallow,
        "boltzmann": boltzmann,
        "vorticity": lambda u, v: jnp.roll(v, -1, 0) - jnp.roll(v, 1, 0) - jnp.roll(u, -1, 1) + jnp.roll(u, 1, 1),
    }
    yield from each_of(variants, {sizes(n, n): (normal(n, n), normal(n, n)) for n in (16, 64, 256, 1024)})


@FAMILIES.add
def cellular_automata() -> Members:
    """Cellular automata: life, elementary rules, forest fires, cyclic and majority automata."""

    def around(x: Array) -> Array:
        return sum(
            (jnp.roll(x, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)), jnp.zeros_like(x)
        )

    def life(x: Array) -> Array:
        n = around(x)
        return ((n == 3) | ((n == 2) & (x == 1))).astype(x.dtype)

    def rule(x: Array) -> Array:
        code = jnp.roll(x, 1, 1) * 4 + x * 2 + jnp.roll(x, -1, 1)
        return (110 >> code) & 1

    def fire(x: Array) -> Array:
        burning = around((x == 2).astype(x.dtype)) > 0
        return jnp.where(x == 2, 0, jnp.where((x == 1) & burning, 2, x))

    base: dict[str, Any] = {
        "life": life,
        "rule": rule,
        "fire": fire,
        "majority": lambda x: (around(x) + x > 4).astype(x.dtype),
        "cyclic": lambda x: jnp.where(around((x == 1).astype(x.dtype)) > 0, (x + 1) % 3, x),
    }
    variants = base | {
        f"{k}_many": (lambda x, f=f: lax.fori_loop(0, 30, lambda _, v: f(v), x)) for k, f in base.items()
    }
    yield from each_of(variants, {sizes(n, n): (integers(0, 2, n, n),) for n in (16, 64, 256, 1024)})
