"""Simulation loops as written in JAX: the default pipeline splits their state and leaves pointwise work."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler.frontends.jax import lower
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.pipelines.default import default_pipeline
from tests.passes.programs import difference, reference, run

LANES, STEPS = 16, 20
MOVES = {Opcode.CONCATENATE, Opcode.CALL, Opcode.WHILE, Opcode.SCATTER, Opcode.GATHER, Opcode.TRANSPOSE}


def stacked_first(s: Any) -> Any:
    def step(s: Any, _: None) -> Any:
        x, v, angle, w = s
        a = jnp.sin(angle) * 2 - v
        return jnp.stack([x + v * 0.02, v + a * 0.02, angle + w * 0.02, w - a * 0.01]), s.sum(0)

    return jax.lax.scan(step, s, None, length=STEPS)


def updated_in_place(s: Any) -> Any:
    def step(_: int, s: Any) -> Any:
        s = s.at[:, 0].add(s[:, 1] * 0.1)
        return s.at[:, 1].set(jnp.cos(s[:, 0]))

    return jax.lax.fori_loop(0, STEPS, step, s)


def one_environment_mapped(s: Any, key: Any) -> Any:
    def environment(s: Any, key: Any) -> Any:
        x, v = s[0], s[1]
        fresh = jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1)
        following = jnp.array([x + v * 0.1, v - jnp.sin(x) * 0.1])
        done = jnp.abs(following[0]) > 0.15
        return jnp.where(done, fresh, following), done

    def step(carry: Any, _: None) -> Any:
        s, key = carry
        key, sub = jax.random.split(key)
        s, done = jax.vmap(environment)(s, jax.random.split(sub, LANES))
        return (s, key), done.sum()

    return jax.lax.scan(step, (s, key), None, length=STEPS)


def runge_kutta(s: Any) -> Any:
    def slope(s: Any) -> Any:
        x, y, z = s[..., 0], s[..., 1], s[..., 2]
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    def step(s: Any, _: None) -> Any:
        h = 0.01
        a = slope(s)
        b = slope(s + h / 2 * a)
        c = slope(s + h / 2 * b)
        return s + h / 6 * (a + 2 * b + 2 * c + slope(s + h * c)), None

    return jax.lax.scan(step, s, None, length=STEPS)[0]


def watched_by_the_condition(s: Any) -> Any:
    def going(carry: Any) -> Any:
        return (carry[0] < STEPS) & (jnp.abs(carry[1]).max() < 100)

    def step(carry: Any) -> Any:
        i, s = carry
        length = jnp.sqrt((s**2).sum(-1, keepdims=True) + 1)
        return i + 1, jnp.stack([s[:, 1], -s[:, 0] * 1.01], 1) / length

    return jax.lax.while_loop(going, step, (0, s))


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).normal(scale=0.1, size=shape).astype(np.float32)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "stacked_first": (stacked_first, [numbers(4, LANES)]),
    "updated_in_place": (updated_in_place, [numbers(LANES, 2)]),
    "one_environment_mapped": (one_environment_mapped, [numbers(LANES, 2), np.array([1, 2], np.uint32)]),
    "runge_kutta": (runge_kutta, [numbers(LANES, 3)]),
    "watched_by_the_condition": (watched_by_the_condition, [numbers(LANES, 2)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_state_is_split(name: str) -> None:
    function, arguments = PROGRAMS[name]
    module = lower(function, *arguments)
    expected = reference(module, arguments)

    default_pipeline().run(module)

    assert check_module(module) == []
    assert difference(run(module, arguments), expected) is None
    (loop,) = (i for c in module.computations for i in c.instructions if i.opcode is Opcode.WHILE)
    assert not MOVES & {i.opcode for i in loop.attributes["body"].instructions}
    state = f"f32[{LANES}]"
    assert [str(s) for s in loop.shape.tuple_shapes].count(state) >= 2
