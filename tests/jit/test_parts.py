"""Functions of `hlogym.jit` with ops that Python evaluates, with effects and with callbacks, beside `jax.jit`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import hlogym
from compiler.backends.cpu.executable import CpuExecutable

jit = hlogym.jit


# ---- ops that Python evaluates


def _singular_values(x: Any) -> Any:
    """Return singular values by an algorithm for which there is no kernel."""
    return jax.lax.linalg.svd(x, compute_uv=False, algorithm=jax.lax.linalg.SvdAlgorithm.QR)


def _of_python(x: Any) -> Any:
    """Return the sum of singular values, and what a loop makes of them."""
    return _singular_values(x).sum(), jax.lax.fori_loop(0, 3, lambda n, z: _singular_values(jnp.diag(-z)) + n, x[0])


def test_ops_that_python_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any, **__: Any) -> None:
        pytest.fail("called through JAX")

    monkeypatch.setattr(jax, "pure_callback", called)
    f = jit(_of_python)
    matrix = np.diag(np.array([1, 5, 9], np.float32))
    executable = f.compile(matrix)
    assert isinstance(executable, CpuExecutable) and len(executable.built.driver.host) >= 2
    wanted = jax.jit(_of_python)(matrix)
    for x in (matrix, jnp.asarray(matrix)):
        for a, b in zip(f(x), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert float(jax.jit(lambda x: f(x)[0] + 1)(matrix)) == pytest.approx(16)


def test_ops_that_python_evaluates_in_several_threads() -> None:
    f = jit(_of_python)
    matrices = [np.diag(np.full(3, n, np.float32)) for n in range(1, 5)]
    found: dict[int, list[Any]] = {}

    def work(n: int) -> None:
        convert: Any = jnp.asarray if n % 2 else np.asarray
        found[n] = [float(f(convert(matrices[n]))[0]) for _ in range(30)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {n: [pytest.approx(3 * (n + 1))] * 30 for n in range(4)}


def test_errors_of_ops_that_python_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ArithmeticError("no values")

    f = jit(lambda x: _singular_values(x) + 1)
    matrix = np.eye(3, dtype=np.float32)
    with monkeypatch.context() as patch:
        patch.setattr("compiler.backends.cpu.host_steps.evaluate_host", fails)
        with pytest.raises(ArithmeticError, match="no values"):
            f(matrix)
        with pytest.raises(jax.errors.JaxRuntimeError, match="no values"):
            jax.block_until_ready(f(jnp.asarray(matrix)))  # type: ignore[no-untyped-call]
    for x in (matrix, jnp.asarray(matrix)):
        np.testing.assert_allclose(f(x), [2, 2, 2], rtol=1e-6)


# ---- effects and callbacks


def _seen(seen: list[Any], x: Any) -> None:
    jax.experimental.io_callback(lambda v: seen.append(np.asarray(v).tolist()), None, x, ordered=True)


def _called_back(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.asarray(v) * 3, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # type: ignore[no-untyped-call]


def _between(seen: list[Any]) -> Callable[..., Any]:
    def f(x: Any) -> Any:
        _seen(seen, x.sum())
        y = jnp.sin(x) * 2
        z = _called_back(y)
        _seen(seen, z.max() + y.sum())
        _seen(seen, x.max())
        return {"sum": z.sum() + y, "z": z}

    return f


def _in_a_loop(seen: list[Any]) -> Callable[..., Any]:
    def step(c: Any, t: Any) -> Any:
        c = jnp.tanh(c + t)
        _seen(seen, c.sum())
        return c, c.mean()

    return lambda x: jax.lax.scan(step, x, jnp.arange(4.0))


def _in_a_branch(seen: list[Any]) -> Callable[..., Any]:
    def large(x: Any) -> Any:
        _seen(seen, x[0])
        return jnp.sin(x)

    return lambda x: jax.lax.cond(x.sum() > 0, large, lambda x: x * 2, x)


def _in_functions(seen: list[Any]) -> Callable[..., Any]:
    @jax.jit
    def inner(x: Any) -> Any:
        y = jnp.cos(x)
        _seen(seen, y.sum())
        return y * 2

    return lambda x: inner(x) + jit(inner)(x) + jnp.exp(x)


WITH_EFFECTS = [_between, _in_a_loop, _in_a_branch, _in_functions]


@pytest.mark.parametrize("make", WITH_EFFECTS)
def test_effects_and_callbacks_happen_in_order(make: Callable[..., Any]) -> None:
    x = jnp.arange(1, 5.0)
    found: list[tuple[Any, list[Any]]] = []
    for compile_function in (jit, jax.jit):
        seen: list[Any] = []
        results = jax.tree.leaves(compile_function(make(seen))(x))
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        found.append((results, seen))
    (ours, seen), (theirs, wanted) = found
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(seen, wanted, rtol=1e-5)


def test_programs_compute_what_is_around_effects() -> None:
    text = str(jit(_between([])).trace(jnp.arange(4.0)).jaxpr)
    assert text.count("hlogym_call") == 2  # before and after the callback; what is printed divides no program
    assert " sin " not in text.split("hlogym_call")[0]
    assert "hlogym_call" in str(jit(_in_a_loop([])).trace(jnp.arange(4.0)).jaxpr)


def test_a_training_step_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def loss(p: Any, x: Any) -> Any:
        h = jnp.tanh(x @ p)
        jax.debug.print("mean {}", h.mean())
        return (h**2).mean()

    def step(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, x)
        jax.debug.print("loss {}", value)
        return p - 0.1 * gradient, value

    weights, x = np.full((3, 2), 0.5, np.float32), np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    ours, theirs = (f(weights, x) for f in (jit(step), jax.jit(step)))
    jax.effects_barrier()  # type: ignore[no-untyped-call]
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is np.ndarray
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert capsys.readouterr().out.count("loss") == 2


def test_transformations_of_functions_with_callbacks() -> None:
    def f(x: Any) -> Any:
        seen = jax.debug.callback(lambda v: None, x)
        return (jnp.sin(x) ** 2).sum(), seen

    g = jit(lambda x: _called_back(jnp.sin(x)).sum())
    x = jnp.arange(3.0)
    for transform in (lambda f: jax.grad(f, has_aux=True), jax.vmap, jit):
        ours, theirs = (jax.tree.leaves(transform(h)(x)) for h in (jit(f), f))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert float(jit(lambda x: g(x) + 1)(x)) == pytest.approx(float(3 * jnp.sin(x).sum() + 1), rel=1e-5)
