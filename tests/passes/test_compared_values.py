"""Values compared with one selected from them are read from the same array."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler import compile
from compiler.ir import HloModule, Opcode
from compiler.passes.algebra.compared_values import ComparedValues
from compiler.passes.pipelines.default import lower
from compiler.text import parse
from env.suites.lowering import lower_to_text

REDUCERS = """
most { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = pred[] compare(a, b), direction=LT }
"""


def barriers(module: HloModule) -> list[str]:
    """Return the names of the instructions that a barrier follows."""
    return [i.operands[0].name for i in module.entry.instructions if i.opcode is Opcode.OPTIMIZATION_BARRIER]


def module_of(lines: str) -> HloModule:
    return parse(
        f"HloModule m\n{REDUCERS}\nENTRY e {{ p = f32[40] parameter(0) q = f32[40] parameter(1)\n"
        f"low = f32[] constant(-inf) zero = f32[] constant(0) x = f32[40] multiply(p, q)\n{lines} }}"
    )


@pytest.mark.parametrize(
    "lines",
    [
        "m = f32[] reduce(x, low), dimensions={0}, to_apply=most\n w = f32[40] broadcast(m), dimensions={}\n"
        "ROOT c = pred[40] compare(x, w), direction=EQ",
        "n = f32[40] negate(x)\n m = f32[] reduce(n, low), dimensions={0}, to_apply=most\n"
        "w = f32[40] broadcast(m), dimensions={}\n d = f32[40] subtract(n, w)\n z = f32[40] broadcast(zero), "
        "dimensions={}\n ROOT c = pred[40] compare(d, z), direction=GE",
        "s = f32[40] sort(x), dimensions={0}, to_apply=less\n k = f32[1] slice(s), slice={[30:31]}\n"
        "r = f32[] reshape(k)\n w = f32[40] broadcast(r), dimensions={}\n"
        "ROOT c = pred[40] compare(x, w), direction=GE",
    ],
    ids=["maximum", "difference", "threshold"],
)
def test_a_barrier_stands_behind_what_is_compared(lines: str) -> None:
    module = module_of(lines)
    assert ComparedValues().run(module)
    assert barriers(module) == ["x"]
    text = str(module)
    assert not ComparedValues().run(module)
    assert str(module) == text


@pytest.mark.parametrize(
    "lines",
    [
        "z = f32[40] broadcast(zero), dimensions={}\n ROOT c = pred[40] compare(x, z), direction=GT",
        "y = f32[40] add(p, q)\n ROOT c = pred[40] compare(x, y), direction=LT",
        "m = f32[] reduce(p, low), dimensions={0}, to_apply=most\n w = f32[40] broadcast(m), dimensions={}\n"
        "ROOT c = pred[40] compare(p, w), direction=EQ",
    ],
    ids=["constant", "other values", "parameter"],
)
def test_no_barrier_where_nothing_is_computed_twice(lines: str) -> None:
    module = module_of(lines)
    assert not ComparedValues().run(module)
    assert not barriers(module)


def gradient_of_maximum(x: Any, w: Any, b: Any) -> Any:
    return jax.grad(lambda y: jnp.max(jnp.exp(y * w + b)))(x)


@pytest.mark.parametrize("dims", [(9000,), (20_000,), (33, 37), (3, 5, 17)])
def test_the_gradient_of_a_maximum_goes_to_the_maximum(dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s).astype(np.float32) for s in (dims, dims[-1:], dims[-1:])]
    exe = compile(lower_to_text(gradient_of_maximum, *args))
    for _ in range(20):
        x = rng.normal(size=dims).astype(np.float32)
        (found,) = exe(x, *args[1:])
        values = np.exp(x.astype(np.float64) * args[1] + args[2])
        at = np.unravel_index(int(np.argmax(values)), dims)
        wanted = np.zeros(dims)
        wanted[at] = (values * args[1])[at]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_loops_with_such_comparisons_still_become_kernels() -> None:
    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        y = carry * 0.9 + 0.1
        return jnp.where(y == jnp.maximum(y, 1 - y), y, y * 0.5), None

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(step, x, None, length=40)[0]

    x = np.linspace(-1, 1, 300, dtype=np.float32)
    exe = compile(lower_to_text(loop, x))
    np.testing.assert_allclose(exe(x)[0], np.asarray(jax.jit(loop)(x)), rtol=1e-5)


def test_lowering_puts_barriers() -> None:
    args = [np.ones(s, np.float32) for s in ((64, 33), (33,), (33,))]
    module = parse(lower_to_text(gradient_of_maximum, *args))
    assert lower(module)
    assert barriers(module)
