"""Functions of `hlogym.jit` with several devices and with meshes, beside `jax.jit`."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hlogym

P: Any = jax.sharding.PartitionSpec
lax: Any = jax.lax
DIVIDED, WHOLE = P("i"), P()
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
W = np.full((4, 3), 0.1, np.float32)


def _mesh(kind: Any = jax.sharding.AxisType.Auto) -> Any:
    return jax.make_mesh((jax.device_count(),), ("i",), axis_types=(kind,))


def _divided(x: Any, spec: Any, kind: Any = jax.sharding.AxisType.Auto) -> Any:
    return jax.device_put(x, jax.sharding.NamedSharding(_mesh(kind), spec))


def _of_each_device(f: Any, arguments: Any = DIVIDED, results: Any = DIVIDED, check_vma: bool = True) -> Any:
    return jax.shard_map(f, mesh=_mesh(), in_specs=arguments, out_specs=results, check_vma=check_vma)


def _loss(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w) ** 2).mean()


def sums(make: Any) -> Any:
    return make(_of_each_device(lambda x: lax.psum(jnp.sin(x), "i"), results=WHOLE))(X)


def elements(make: Any) -> Any:
    return make(lambda x: jnp.sin(x) * 2)(_divided(X, DIVIDED))


def products(make: Any) -> Any:
    return make(lambda x, w: {"product": x @ w, "sums": x.sum(0)})(_divided(X, DIVIDED), _divided(W, WHOLE))


def gradients(make: Any) -> Any:
    return make(jax.grad(lambda x: (jnp.sin(x) ** 2).sum()))(_divided(X, DIVIDED))


def constraints(make: Any) -> Any:
    spec = jax.sharding.NamedSharding(_mesh(), P(None, "i"))
    return make(lambda x: lax.with_sharding_constraint(x * 2, spec))(_divided(X, DIVIDED))


def explicit_shardings(make: Any) -> Any:
    x = _divided(X, P("i", None), jax.sharding.AxisType.Explicit)
    with jax.set_mesh(x.sharding.mesh):
        return make(lambda x: (x * 2).sum(1))(x), jax.grad(make(lambda x: (x**2).sum()))(x)


def parts_of_data(make: Any) -> Any:
    loss = make(_loss)
    of_all = _of_each_device(lambda w, x: lax.pmean(loss(w, x), "i"), (WHOLE, DIVIDED), WHOLE)
    return jax.jit(jax.value_and_grad(of_all))(W, _divided(X, DIVIDED))


def gradients_of_each_device(make: Any) -> Any:
    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(make(_loss))(w, x)
        return lax.pmean(value, "i"), gradient

    return jax.jit(_of_each_device(step, (WHOLE, DIVIDED), (WHOLE, WHOLE)))(W, _divided(X, DIVIDED))


def collectives(make: Any) -> Any:
    f = make(lambda x: lax.psum(jnp.sin(x), "i"))
    return jax.jit(_of_each_device(f, results=WHOLE))(_divided(X, DIVIDED))


def loops(make: Any) -> Any:
    step = make(lambda c, t: (jnp.tanh(c + t), c.sum()))
    return jax.jit(_of_each_device(lambda x: lax.scan(step, x, jnp.arange(3.0))[0]))(_divided(X, DIVIDED))


def without_types_of_axes(make: Any) -> Any:
    f = make(lambda x: jnp.sin(x) + jnp.arange(4.0))
    return jax.jit(_of_each_device(f, check_vma=False))(_divided(X, DIVIDED))


CASES: list[Callable[[Any], Any]] = [
    sums, elements, products, gradients, constraints, explicit_shardings, parts_of_data, gradients_of_each_device,
    collectives, loops, without_types_of_axes,
]  # fmt: skip


def compare() -> None:
    """Check that results have the values and shardings of those of `jax.jit`."""
    ours: Any = functools.partial(hlogym.jit, output="jax")
    for case in CASES:
        found, wanted = jax.tree.leaves(case(ours)), jax.tree.leaves(case(jax.jit))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=case.__name__)
            assert a.sharding == b.sharding, (case.__name__, a.sharding, b.sharding)


def test_functions_on_one_device() -> None:
    compare()


def test_functions_on_several_devices() -> None:
    program = f"""
import jax
jax.config.update("jax_num_cpu_devices", 4)
from {__name__} import compare
assert jax.device_count() == 4
compare()
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_programs_run_in_functions_of_one_device() -> None:
    f = hlogym.jit(lambda x: x * 2)
    text = jax.jit(_of_each_device(f, check_vma=False)).lower(X).as_text()
    assert "hlogym_call" in text
