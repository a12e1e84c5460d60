"""Families of simulators: control tasks, bodies, populations, random walks, fractals, swarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites.programs.differentiation import gradient
from env.suites.programs.family import Families, Member, Members, each_of, integers, normal, sizes, uniform

FAMILIES = Families()
KEY = integers(0, 2**32, 2, dtype="uint32")


def _uniform(key: Array, dims: tuple[int, ...]) -> Array:
    return jax.random.uniform(jax.random.wrap_key_data(key), dims)


@FAMILIES.add
def cartpole() -> Members:
    """Cartpoles: one step, many steps with resets, as stacked or separate arrays."""

    def dynamics(state: Sequence[Array], action: Array) -> tuple[Array, ...]:
        x, v, a, w = state
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(a), jnp.sin(a)
        t = (force + 0.05 * w**2 * sin) / 1.1
        turn = (9.8 * sin - cos * t) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        return x + 0.02 * v, v + 0.02 * (t - 0.05 * turn * cos / 1.1), a + 0.02 * w, w + 0.02 * turn

    def columns(state: Array) -> list[Array]:
        return [state[:, k] for k in range(4)]

    def stacked(state: Array, actions: Array) -> Any:
        def body(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            state, ends = carry
            state = jnp.stack(dynamics(columns(state), actions[i]), -1)
            done = (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 0.2095)
            return jnp.where(done[:, None], 0.01, state), ends + done

        return lax.fori_loop(0, actions.shape[0], body, (state, jnp.zeros(state.shape[0], jnp.int32)))

    def separate(state: Array, actions: Array) -> Any:
        def step(carry: tuple[Array, ...], action: Array) -> tuple[tuple[Array, ...], Array]:
            carry = dynamics(carry, action)
            done = (jnp.abs(carry[0]) > 2.4) | (jnp.abs(carry[2]) > 0.2095)
            return tuple(jnp.where(done, 0.0, c) for c in carry), done

        return lax.scan(step, tuple(columns(state)), actions)

    def one(state: Array, actions: Array) -> Any:
        return dynamics(columns(state), actions[0])

    cases = {
        sizes(n, t): (uniform(-0.05, 0.05, n, 4), integers(0, 2, t, n))
        for n, t in ((16, 10), (256, 50), (2048, 100), (1024, 500), (16384, 20))
    }
    yield from each_of({"stacked": stacked, "separate": separate, "one": one}, cases, chaotic=True)


@FAMILIES.add
def control_tasks() -> Members:
    """Classic control: pendulum, mountain car, acrobot, lunar lander, bicycle, quadrotor."""

    def pendulum(x: Array, u: Array) -> tuple[Array, Array]:
        a, w = x[0], x[1]
        angle = ((a + jnp.pi) % (2 * jnp.pi)) - jnp.pi
        w = jnp.clip(w + (15 * jnp.sin(a) + 3 * u) * 0.05, -8, 8)
        return jnp.stack([a + w * 0.05, w, x[2], x[3]]), -(angle**2 + 0.1 * w**2 + 0.001 * u**2)

    def car(x: Array, u: Array) -> tuple[Array, Array]:
        v = jnp.clip(x[1] + 0.001 * u - 0.0025 * jnp.cos(3 * x[0]), -0.07, 0.07)
        p = jnp.clip(x[0] + v, -1.2, 0.6)
        return jnp.stack([p, jnp.where(p == -1.2, 0, v), x[2], x[3]]), jnp.where(p > 0.5, 100.0, -0.1)

    def acrobot(x: Array, u: Array) -> tuple[Array, Array]:
        a, b, v, w = x
        d1, d2 = 3.5 + jnp.cos(b), 1.25 + 0.5 * jnp.cos(b)
        p2 = 4.9 * jnp.cos(a + b - jnp.pi / 2)
        p1 = -0.5 * w**2 * jnp.sin(b) - w * v * jnp.sin(b) + 14.7 * jnp.cos(a - jnp.pi / 2) + p2
        wd = (u + d2 / d1 * p1 - 0.5 * v**2 * jnp.sin(b) - p2) / (1.25 - d2**2 / d1)
        return x + 0.05 * jnp.stack([v, w, -(d2 * wd + p1) / d1, wd]), -jnp.cos(a) - jnp.cos(a + b)

    def lander(x: Array, u: Array) -> tuple[Array, Array]:
        height, v, side, w = x
        v = v - 0.02 + jnp.maximum(u, 0) * 0.03
        height = jnp.maximum(height + v, 0)
        return jnp.stack([height, jnp.where(height == 0, 0, v), side + w, w * 0.99 + 0.01 * u]), -jnp.abs(side) - height

    def bicycle(x: Array, u: Array) -> tuple[Array, Array]:
        px, py, yaw, v = x
        slip = jnp.arctan(0.5 * jnp.tan(jnp.clip(u, -0.5, 0.5)))
        moved = jnp.stack(
            [px + v * jnp.cos(yaw + slip) * 0.1, py + v * jnp.sin(yaw + slip) * 0.1, yaw + v * jnp.sin(slip) * 0.1, v]
        )
        return moved, -jnp.hypot(px, py)

    def rolled(f: Any) -> Any:
        return lambda x, u: lax.scan(f, x, u)

    base = {"pendulum": pendulum, "car": car, "acrobot": acrobot, "lander": lander, "bicycle": bicycle}
    cases = {
        sizes(n, t): (normal(4, n, std=0.3), normal(t, n)) for n, t in ((32, 20), (1024, 50), (8192, 100), (512, 1000))
    }
    yield from each_of({k: rolled(f) for k, f in base.items()}, cases, chaotic=True)
    yield from each_of(
        {f"{k}_step": (lambda x, u, f=f: f(x, u[0])) for k, f in base.items()},
        {"4096": (normal(4, 4096, std=0.3), normal(1, 4096))},
        chaotic=True,
    )


@FAMILIES.add
def bodies() -> Members:
    """Bodies under gravity and springs: forces of all pairs, leapfrog steps, cloth, molecular potentials."""

    def forces(x: Array) -> Array:
        d = x[None] - x[:, None]
        r = jnp.sum(d * d, -1) + 0.01
        return jnp.sum(d * (r**-1.5)[..., None], 1)

    def leapfrog(x: Array, v: Array, steps: int = 10) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            x, v = c
            v = v + 0.005 * forces(x)
            x = x + 0.01 * v
            return x, v + 0.005 * forces(x)

        return lax.fori_loop(0, steps, step, (x, v))

    def energy(x: Array, v: Array) -> Array:
        d = x[None] - x[:, None]
        r = jnp.sqrt(jnp.sum(d * d, -1) + 0.01)
        return 0.5 * jnp.sum(v * v) - jnp.sum(jnp.triu(1 / r, 1))

    def lennard_jones(x: Array, v: Array) -> Any:
        def potential(x: Array) -> Array:
            d = x[None] - x[:, None]
            r = jnp.sum(d * d, -1) + jnp.eye(x.shape[0]) * 10 + 0.5
            s = 1 / r**3
            return 2 * jnp.sum(s * s - s)

        return jax.value_and_grad(potential)(x)

    def chain(x: Array, v: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            x, v = c
            stretch = jnp.roll(x, -1, 0) - x
            length = jnp.linalg.norm(stretch, axis=-1, keepdims=True) + 1e-3
            f = stretch * (1 - 1 / length)
            v = 0.99 * v + 0.01 * (f - jnp.roll(f, 1, 0))
            return x + 0.01 * v, v

        return lax.fori_loop(0, 50, step, (x, v))

    variants: dict[str, Any] = {
        "forces": lambda x, v: forces(x),
        "leapfrog": leapfrog,
        "energy": energy,
        "lennard_jones": lennard_jones,
        "chain": chain,
    }
    yield from each_of(variants, {str(n): (normal(n, 3), normal(n, 3, std=0.1)) for n in (8, 64, 256, 1024)})


@FAMILIES.add
def population_models() -> Members:
    """Differential equations of populations and reactions by Euler and Runge-Kutta steps."""

    def lotka(s: Array) -> Array:
        return jnp.stack([s[0] * (1.1 - 0.4 * s[1]), s[1] * (0.1 * s[0] - 0.4), 0 * s[2]])

    def sir(s: Array) -> Array:
        infected, healed = 0.3 * s[0] * s[1], 0.1 * s[1]
        return jnp.stack([-infected, infected - healed, healed])

    def lorenz(s: Array) -> Array:
        x, y, z = s
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    def robertson(s: Array) -> Array:
        a, b, c = s
        return jnp.stack([-0.04 * a + 10 * b * c, 0.04 * a - 10 * b * c - 3 * b * b, 3 * b * b])

    def fitzhugh(s: Array) -> Array:
        v, w, i = s
        return jnp.stack([v - v**3 / 3 - w + i, 0.08 * (v + 0.7 - 0.8 * w), 0 * i])

    def euler(f: Any, h: float) -> Any:
        return lambda s: lax.fori_loop(0, 100, lambda _, v: v + h * f(v), s)

    def runge(f: Any, h: float) -> Any:
        def step(s: Array, _: None) -> tuple[Array, Array]:
            a = f(s)
            b = f(s + h / 2 * a)
            c = f(s + h / 2 * b)
            s = s + h / 6 * (a + 2 * b + 2 * c + f(s + h * c))
            return s, s[0]

        return lambda s: lax.scan(step, s, None, length=50)

    base = {"lotka": lotka, "sir": sir, "lorenz": lorenz, "robertson": robertson, "fitzhugh": fitzhugh}
    variants: dict[str, Any] = {f"{k}_euler": euler(f, 0.005) for k, f in base.items()}
    variants |= {f"{k}_runge": runge(f, 0.01) for k, f in base.items()}
    yield from each_of(variants, {str(n): (uniform(0.1, 1, 3, n),) for n in (1, 64, 4096, 100000)})


@FAMILIES.add
def random_walks() -> Members:
    """Random walks, Langevin dynamics, Metropolis chains, particle filters with random numbers inside."""

    def normals(key: Array, dims: tuple[int, ...]) -> Array:
        return jax.random.normal(jax.random.wrap_key_data(key), dims)

    def langevin(x: Array, key: Array) -> Any:
        def step(i: Array, v: Array) -> Array:
            return v - 0.01 * v**3 + 0.1 * normals(key + i.astype(jnp.uint32), v.shape)

        return lax.fori_loop(0, 20, step, x)

    def metropolis(x: Array, key: Array) -> Any:
        def step(i: Array, v: Array) -> Array:
            k = key + i.astype(jnp.uint32)
            proposed = v + 0.5 * normals(k, v.shape)
            accept = jnp.log(_uniform(k ^ jnp.uint32(7), v.shape) + 1e-9) < 0.5 * (v * v - proposed * proposed)
            return jnp.where(accept, proposed, v)

        return lax.fori_loop(0, 20, step, x)

    def resample(x: Array, key: Array) -> Array:
        weight = jax.nn.softmax(-0.5 * (x - 1) ** 2)
        total = jnp.cumsum(weight)
        points = (jnp.arange(x.shape[0]) + _uniform(key, ())) / x.shape[0]
        return x[jnp.clip(jnp.searchsorted(total, points), 0, x.shape[0] - 1)]

    variants: dict[str, Any] = {
        "langevin": langevin,
        "metropolis": metropolis,
        "resample": resample,
        "brownian": lambda x, k: jnp.cumsum(normals(k, (32, *x.shape)), 0) + x,
        "bridge": lambda x, k: x + normals(k, x.shape) * jnp.sqrt(jnp.linspace(0, 1, x.shape[0])),
    }
    yield from each_of(variants, {str(n): (normal(n), KEY) for n in (100, 1000, 10000, 100000)}, chaotic=True)


@FAMILIES.add
def fractals() -> Members:
    """Escape times and iterated maps: Mandelbrot, Julia, Newton, logistic and Hénon maps."""

    def mandelbrot(x: Array, y: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            a, b, n = c
            inside = a * a + b * b < 4
            return jnp.where(inside, a * a - b * b + x, a), jnp.where(inside, 2 * a * b + y, b), n + inside

        return lax.fori_loop(0, 50, step, (x, y, jnp.zeros(x.shape, jnp.int32)))[2]

    def newton(x: Array, y: Array) -> Any:
        def step(_: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
            a, b = c
            r = (a * a + b * b) ** 2 + 1e-3
            return a - (a - (a * a - b * b) / r) / 3, b - (b + 2 * a * b / r) / 3

        return lax.fori_loop(0, 15, step, (x, y))

    variants: dict[str, Any] = {
        "mandelbrot": mandelbrot,
        "newton": newton,
        "logistic": lambda x, y: lax.fori_loop(0, 30, lambda _, v: 3.2 * v * (1 - v), jax.nn.sigmoid(x)) + y,
        "henon": lambda x, y: lax.fori_loop(
            0, 12, lambda _, c: (1 - 1.1 * c[0] ** 2 + c[1], 0.2 * c[0]), (x * 0.3, y * 0.3)
        ),
        "while": lambda x, y: lax.while_loop(lambda c: jnp.all(jnp.abs(c) < 1e3), lambda c: c * 1.7 + 0.1, x + y),
    }
    cases = {sizes(m, n): (normal(m, n), normal(m, n)) for m, n in ((16, 16), (128, 128), (512, 512), (1000, 1500))}
    yield from each_of(variants, cases, chaotic=True)


@FAMILIES.add
def rigid_motion() -> Members:
    """Rotations, quaternions, rays and cameras: products, normalisation, intersections, projections, joints."""

    def multiply(p: Array, q: Array) -> Array:
        a, b = (jnp.moveaxis(v, -1, 0) for v in (p, q))
        return jnp.stack(
            [
                a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
                a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
                a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
                a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
            ],
            -1,
        )

    def unit(q: Array) -> Any:
        return q / jnp.linalg.norm(q, axis=-1, keepdims=True)

    def spheres(p: Array, q: Array) -> Array:
        d = unit(q[:, :3])
        b = jnp.sum(p[:, :3] * d, -1)
        h = b * b - jnp.sum(p[:, :3] ** 2, -1) + 1
        return jnp.where(h > 0, -b - jnp.sqrt(jnp.maximum(h, 0)), 1e9)

    def project(p: Array, q: Array) -> Array:
        depth = jnp.abs(p[:, 2:3]) + 0.5
        xy = p[:, :2] / depth * 500 + 320
        return jnp.where((xy > 0) & (xy < 640), xy, -1)

    def arm(p: Array, q: Array) -> tuple[Array, Array]:
        angle = jnp.cumsum(p, -1)
        return jnp.sum(jnp.cos(angle) * q, -1), jnp.sum(jnp.sin(angle) * q, -1)

    variants: dict[str, Any] = {
        "multiply": multiply,
        "turn": lambda p, q: unit(p + 0.005 * multiply(p, q)),
        "spheres": spheres,
        "project": project,
        "arm": arm,
        "arm_gradient": gradient(arm),
        "cross": lambda p, q: jnp.cross(p[:, :3], q[:, :3]),
    }
    yield from each_of(variants, {str(n): (normal(n, 4), normal(n, 4)) for n in (10, 1000, 50000, 1000000)})


@FAMILIES.add
def agents_and_swarms() -> Members:
    """Optimisers without gradients and swarms: particles, evolution strategies, genetic steps, boids, ants."""

    def sphere(x: Array) -> Array:
        return jnp.sum(x * x - jnp.cos(3 * x), -1)

    def swarm(x: Array, v: Array, key: Array) -> tuple[Array, Array]:
        best = x[jnp.argmin(sphere(x))]
        r = _uniform(key, x.shape)
        v = 0.7 * v + 1.4 * r * (best - x)
        return x + v, v

    def evolve(x: Array, v: Array, key: Array) -> Array:
        noise = jax.random.normal(jax.random.wrap_key_data(key), x.shape)
        score = sphere(x + 0.1 * noise)
        rank = (score - score.mean()) / (score.std() + 1e-6)
        return x - 0.05 * jnp.mean(noise * rank[:, None], 0)

    def boids(x: Array, v: Array, key: Array) -> Array:
        d = x[None, :256] - x[:, None]
        near = (jnp.sum(d * d, -1) < 1)[..., None]
        count = jnp.maximum(near.sum(1), 1)
        return v + 0.1 * (d * near).sum(1) / count + 0.1 * ((v[None, :256] - v[:, None]) * near).sum(1) / count

    def crossover(x: Array, v: Array, key: Array) -> Array:
        order = jnp.argsort(sphere(x))
        elite = x[order[: x.shape[0] // 2]]
        child = jnp.where(_uniform(key, elite.shape) < 0.5, elite, jnp.flip(elite, 0))
        return jnp.concatenate([elite, child])

    variants: dict[str, Any] = {"swarm": swarm, "evolve": evolve, "boids": boids, "crossover": crossover}
    cases = {sizes(n, d): (normal(n, d), normal(n, d), KEY) for n, d in ((16, 2), (256, 8), (1024, 32), (4096, 4))}
    yield from each_of(variants, cases, chaotic=True)
    for n in (64, 1024):

        def many(x: Array, v: Array, key: Array) -> Any:
            return lax.fori_loop(0, 20, lambda i, c: swarm(c[0], c[1], key + i.astype(jnp.uint32)), (x, v))

        yield Member(f"swarm_many_{n}", many, (normal(n, 8), normal(n, 8), KEY), chaotic=True)
