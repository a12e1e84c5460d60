"""Loops written with `lax.scan`, to the scan op and back: the same values, and the same number of loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler.frontends.jax import lower
from compiler.ir import HloModule
from compiler.ir.verifier import check_module
from compiler.passes import make_passes
from tests.passes.programs import difference, reference, run

X = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
C = np.random.default_rng(1).normal(size=3).astype(np.float32)
PREPARE = "call-inliner,tuple-simplifier,while-loop-simplifier,dce"


def step(c: Any, v: Any) -> Any:
    return jnp.tanh(c + v), c * v


def forwards(x: Any, c: Any) -> Any:
    return jax.lax.scan(step, c, x)


def backwards(x: Any, c: Any) -> Any:
    return jax.lax.scan(step, c, x, reverse=True)


def without_inputs(x: Any, c: Any) -> Any:
    return x.sum(), jax.lax.scan(lambda c, _: (c * 0.5 + 1, c), c, None, length=9)


def gradient(x: Any, c: Any) -> Any:
    return jax.grad(lambda c: jax.lax.scan(step, c, x)[1].sum())(c)


def nested(x: Any, c: Any) -> Any:
    def outer(c: Any, v: Any) -> Any:
        c, ys = jax.lax.scan(lambda a, b: (a + b * v.sum(), a * b), c, x)
        return c, ys.sum(0)

    return jax.lax.scan(outer, c, x)


def mapped(x: Any, c: Any) -> Any:
    return jax.lax.map(lambda v: v * 2 + c, x)


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "forwards": (forwards, 1), "backwards": (backwards, 1), "without_inputs": (without_inputs, 1),
    "gradient": (gradient, 2), "nested": (nested, 2), "mapped": (mapped, 1),
}  # fmt: skip


def count(module: HloModule, opcode: str) -> int:
    return sum(i.opcode.text == opcode for c in module.post_order() for i in c.instructions)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("between", ["", "scan-widening{factor=2}", "associative-scan-rewriter"])
def test_there_and_back(name: str, between: str) -> None:
    function, loops = PROGRAMS[name]
    module = lower(function, X, C)
    for p in make_passes(PREPARE):
        p.run(module)
    arguments = [X, C][: len(module.parameter_shapes)]
    expected = reference(module, arguments)
    assert count(module, "while") == loops

    for p in (*make_passes("loop-to-scan"), *make_passes(between)):
        p.run(module)
    assert check_module(module) == []
    assert count(module, "while") == 0
    assert count(module, "scan") >= loops
    assert difference(run(module, arguments), expected) is None

    for p in make_passes("scan-expander,dce"):
        p.run(module)
    assert check_module(module) == []
    assert count(module, "scan") == 0
    assert difference(run(module, arguments), expected) is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_running_reductions_become_parallel(name: str, reverse: bool) -> None:
    combine = {"add": jnp.add, "multiply": jnp.multiply, "maximum": jnp.maximum, "minimum": jnp.minimum}[name]
    module = lower(lambda x, c: jax.lax.scan(lambda c, v: (combine(c, v), c), c, x, reverse=reverse), X, C)
    expected = reference(module, [X, C])

    for p in make_passes(f"{PREPARE},loop-to-scan,tuple-simplifier,shape-movement,cse,associative-scan-rewriter"):
        p.run(module)

    assert check_module(module) == []
    assert count(module, "scan") == count(module, "while") == 0
    assert difference(run(module, [X, C]), expected) is None
