"""What `hlogym.jit` accepts and returns, beside `jax.jit`."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hlogym
from compiler.errors import ArgumentError, UnknownNameError, UnsupportedError
from compiler.frontends.jax import lower
from compiler.frontends.names import argument_names
from compiler.runtime.executable import Configurable
from tests.oracle import run_xla

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
jit = hlogym.jit


class Pair(NamedTuple):
    w: Any
    b: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
@dataclass
class Layer:
    w: Any
    b: Any
    name: str

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


def dense(x: Any, p: Any) -> Any:
    return jnp.tanh(x @ p.w + p.b)


PAIR = Pair(np.full((3, 4), 0.25, np.float32), np.arange(4, dtype=np.float32))


# ---- trees and types


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_trees_go_in_and_out(convert: Any) -> None:
    def f(x: Any, trees: Any, *, scale: Any) -> Any:
        first, (pair, nothing) = trees
        return {"a": [dense(x, pair) * scale, nothing], "b": Pair(first["x"].sum(), None)}

    args = jax.tree.map(convert, (X, ({"x": X}, (PAIR, None))))
    ours, theirs = jit(f)(*args, scale=2.0), jax.jit(f)(*args, scale=2.0)
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_modules_that_are_registered_trees() -> None:
    layer = Layer(jnp.asarray(PAIR.w), jnp.asarray(PAIR.b), "first")

    @jit
    def loss(layer: Any, x: Any) -> Any:
        return (layer(x) ** 2).sum()

    gradient = jax.grad(loss)(layer, X)
    assert isinstance(gradient, Layer) and gradient.name == "first"
    np.testing.assert_allclose(gradient.b, 2 * (X @ PAIR.w + PAIR.b).sum(0), rtol=1e-5)


def test_results_are_of_the_type_of_the_arguments() -> None:
    f = jit(lambda x, y=1.0: (x * y, x.sum()))
    assert all(type(r) is np.ndarray for r in f(X))
    assert all(isinstance(r, jax.Array) for r in f(jnp.asarray(X)))
    assert all(isinstance(r, jax.Array) for r in f(X, jnp.float32(2)))
    assert isinstance(jit(lambda: jnp.arange(3))(), jax.Array)
    assert isinstance(jit(lambda x: x + 1)(3), jax.Array)
    assert all(type(r) is np.ndarray for r in jit(f.__wrapped__, output="numpy")(jnp.asarray(X)))
    assert all(isinstance(r, jax.Array) for r in jit(f.__wrapped__, output="jax")(X))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [(3, 2.5), (True, 1), (1j, 2), (np.float64(2), 3), (np.arange(4), 2), (np.arange(4.0), 2), (np.int8(4), 3.0),
     (np.zeros((0, 3)), 1.0), (jnp.float32(2), 3), (jnp.bfloat16(2), 3.0), (np.zeros(2, bool), 1)],
)  # fmt: skip
def test_types_and_weak_types_are_those_of_jax(arguments: Any, wide: bool) -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y, x * jnp.ones(1, jnp.float16)

    with jax.enable_x64(wide):
        for a, b in zip(jit(f)(*arguments), jax.jit(f)(*arguments), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            assert not isinstance(a, jax.Array) or a.weak_type == b.weak_type
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16])
def test_narrow_types(dtype: Any) -> None:
    x = np.arange(8).astype(dtype)
    f = jit(lambda x: (x.astype(jnp.float32) * 2).astype(x.dtype))
    for convert in (np.asarray, jnp.asarray):
        result = f(convert(x))
        assert result.dtype == dtype
        np.testing.assert_array_equal(np.asarray(result, np.float32), 2 * np.arange(8))


def test_typed_keys_go_in_and_out() -> None:
    def f(keys: Any, scale: Any) -> Any:
        key, rest = jax.random.split(keys["k"])
        return jax.random.normal(key, (3,)) * scale, {"k": rest}

    keys = {"k": jax.random.key(3)}
    (a, after), (b, expected) = jit(f)(keys, 2.0), jax.jit(f)(keys, 2.0)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert after["k"].dtype == expected["k"].dtype
    np.testing.assert_array_equal(jax.random.key_data(after["k"]), jax.random.key_data(expected["k"]))
    many = {"k": jax.random.split(jax.random.key(3), 4)}
    a, b = (jax.vmap(g, (0, None))(many, 2.0)[0] for g in (jit(f), jax.jit(f)))
    np.testing.assert_allclose(a, b, rtol=1e-6)


# ---- what is compiled


def test_one_program_per_signature() -> None:
    traces = []

    @functools.partial(jit, static_argnames="mode")
    def f(x: Any, mode: str = "a") -> Any:
        traces.append(mode)
        return x + 1 if mode == "a" else x - 1

    for _ in range(3):
        np.testing.assert_array_equal(f(X), X + 1)
        np.testing.assert_array_equal(f(X, mode="b"), X - 1)
        np.testing.assert_array_equal(f(X, "b"), X - 1)
        np.testing.assert_array_equal(f(X[:1]), X[:1] + 1)
    assert f.cache_info().programs == 3
    assert len(traces) == 4  # by name and by position are traced apart, and share a program
    f.clear_cache()
    assert f.cache_info().programs == 0
    np.testing.assert_array_equal(f(X), X + 1)


def test_large_arrays_of_a_closure_are_arguments_of_the_program() -> None:
    table, small = jnp.arange(10_000.0), jnp.arange(3.0)

    @jit
    def f(x: Any) -> Any:
        return x * table[:3] + small

    assert [s.dimensions for s in f.lower(X[0]).parameter_shapes] == [(10_000,), (3,)]
    for x in (X[0], jnp.asarray(X[0])):
        np.testing.assert_allclose(f(x), X[0] * np.arange(3) + np.arange(3), rtol=1e-6)


def test_tracers_of_a_closure() -> None:
    def f(w: Any) -> Any:
        return jit(lambda x: (x * w).sum())(jnp.ones(3))

    assert float(jax.grad(f)(2.0)) == 3
    np.testing.assert_array_equal(jax.vmap(f)(jnp.arange(3.0)), [0, 3, 6])


def test_methods_partials_and_callable_objects() -> None:
    class Model:
        scale = 3.0

        @functools.partial(jit, static_argnums=0)
        def method(self, x: Any) -> Any:
            return x * self.scale

        def __call__(self, x: Any) -> Any:
            return x - self.scale

    np.testing.assert_array_equal(Model().method(X), X * 3)
    np.testing.assert_array_equal(jit(Model())(X), X - 3)
    np.testing.assert_array_equal(jit(functools.partial(jnp.multiply, 2.0))(X), X * 2)


def test_programs_inside_a_program_are_inlined() -> None:
    inner = jit(lambda x: jnp.sin(x))
    outer = jit(lambda x: jax.jit(inner)(x) + inner(x))
    for module in (outer.lower(X), lower(outer, X), lower(jax.grad(lambda x: outer(x).sum()), X)):
        assert "custom-call" not in str(module)
    np.testing.assert_allclose(outer(X), 2 * np.sin(X), rtol=1e-6)


def test_lower_compile_plan_and_explain() -> None:
    f = jit(dense)
    module = f.lower(X, PAIR)
    assert argument_names(module) == {0: "x", 1: "p.w", 2: "p.b"}
    expected = np.tanh(X @ PAIR.w + PAIR.b)
    np.testing.assert_allclose(run_xla(str(module), [X, *PAIR])[0], expected, rtol=1e-6)
    shape: Any = jax.ShapeDtypeStruct
    shapes = jax.tree.map(lambda a: shape(a.shape, a.dtype), (X, PAIR))
    executable = f.compile(*shapes)
    np.testing.assert_allclose(executable(X, *PAIR)[0], expected, rtol=1e-6)
    plan = f.plan(X, PAIR)
    assert plan == executable.plan
    assert "kernel" in str(f.explain(X, PAIR))
    again = jit(dense, plan=plan)
    np.testing.assert_allclose(again(X, PAIR), expected, rtol=1e-6)
    assert plan is not None and again.plan(X, PAIR) == plan
    np.testing.assert_allclose(jax.grad(lambda x: again(x, PAIR).sum())(X), (1 - expected**2) @ PAIR.w.T, rtol=1e-5)


def test_functions_are_traced_as_those_of_jax() -> None:
    traced = jit(dense).trace(X, PAIR)
    assert (traced.out_info.shape, traced.out_info.dtype) == ((2, 4), np.float32)
    assert [a.shape for a in traced.jaxpr.in_avals] == [(2, 3), (3, 4), (4,)]
    np.testing.assert_allclose(traced.lower().compile()(X, PAIR), np.tanh(X @ PAIR.w + PAIR.b), rtol=1e-6)


def test_shapes_are_found_without_compiling() -> None:
    f = jit(dense)
    for found in (f.eval_shape(X, PAIR), jax.eval_shape(f, X, PAIR)):
        assert (found.shape, found.dtype) == ((2, 4), np.float32)
    assert f.cache_info().programs == 0


def test_decisions_are_those_of_compile() -> None:
    f = jit(lambda x: jnp.exp(x) + jnp.sin(x).sum(), fusion_policy="none", options=hlogym.CompileOptions(num_threads=1))
    fused = jit(lambda x: jnp.exp(x) + jnp.sin(x).sum())
    assert len(f.compile(X).kernels) > len(fused.compile(X).kernels)
    executable = f.compile(X)
    assert isinstance(executable, Configurable) and executable.call_options.num_threads == 1
    with pytest.raises(UnknownNameError, match="policy"):
        jit(lambda x: x * 2, fusion_policy="nonesuch")(X)


# ---- donation


def test_a_donated_jax_array_is_deleted_and_its_memory_reused() -> None:
    f = jit(lambda s, x: (s + x, s.sum()), donate_argnums=0)
    state, x = jnp.ones(1000), jnp.arange(1000.0)
    address = state.unsafe_buffer_pointer()
    after, total = f(state, x)
    assert state.is_deleted() and not x.is_deleted()
    assert after.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(after, 1 + np.arange(1000))
    assert total == 1000


def test_a_donated_numpy_array_is_overwritten() -> None:
    f = jit(lambda s, x: s + x, donate_argnames="s")
    state = np.ones(1000, np.float32)
    assert f(state, x=np.float32(2)) is state
    assert (state == 3).all()


def test_donated_arrays_without_a_result_are_warned_of_once() -> None:
    f = jit(lambda s, x: (s + x).sum(), donate_argnums=(0, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(jnp.ones(3), jnp.ones(3))
    assert len(caught) == 1 and "donated buffers were not usable" in str(caught[0].message)


def test_a_donated_argument_that_is_used_later_keeps_its_value() -> None:
    f = jit(lambda s: s * 2, donate_argnums=0)
    value = jax.jit(lambda s: f(s) + s)(jnp.ones(5))
    np.testing.assert_array_equal(value, np.full(5, 3))


# ---- transformations


def test_forward_mode_and_second_derivatives() -> None:
    def f(x: Any, y: Any) -> Any:
        return (jnp.sin(x) * y).sum() ** 2

    x, y = jnp.arange(3.0), jnp.arange(3.0) + 1
    g = jit(f)
    for transform in (jax.jacfwd, jax.jacrev, jax.hessian):
        np.testing.assert_allclose(transform(g)(x, y), transform(f)(x, y), rtol=1e-5, atol=1e-5)
    for a, b in zip(jax.jvp(g, (x, y), (y, x)), jax.jvp(f, (x, y), (y, x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_inside_loops_and_checkpoints() -> None:
    step = jit(lambda c, x: jnp.sin(c) + x)

    def f(step: Any, c: Any) -> Any:
        c, _ = jax.lax.scan(lambda c, x: (step(c, x), c), c, jnp.arange(4.0))
        c = jax.lax.fori_loop(0, 3, lambda _, c: step(c, 1.0), c)
        return jax.checkpoint(lambda c: step(step(c, 2.0), 0.5))(c).sum()

    c = jnp.arange(3.0)
    ours, theirs = (jax.jit(jax.value_and_grad(functools.partial(f, s)))(c) for s in (step, step.__wrapped__))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


SCATTER = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce": lambda f, x: jax.lax.reduce(x, 0.0, f, (0,)),
    "window": lambda f, x: jax.lax.reduce_window(x, 0.0, f, (3,), (1,), "SAME"),
    "scatter": lambda f, x: jax.lax.scatter_apply(
        x, jnp.array([[3], [5]]), lambda a: f(a, a), SCATTER, update_shape=(2,)
    ),
}


@pytest.mark.parametrize("backend", ["cpu", "xla"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_inside_the_functions_of_reductions(name: str, backend: str) -> None:
    x, reduced = jnp.arange(16.0), REDUCTIONS[name]
    plain = jit(lambda a, b: a + b, backend=backend)
    with_an_array = jit(lambda a, b: jnp.stack([a, b]).sum(), backend=backend)
    with_constants = jit(lambda a: a.sum(), backend=backend)
    for f in (plain, jax.jit(plain), with_an_array, lambda a, b: a + b + with_constants(jnp.zeros(3))):
        ours, theirs = functools.partial(reduced, f), functools.partial(reduced, jnp.add)
        np.testing.assert_array_equal(jax.jit(ours)(x), theirs(x))
        rows = jnp.stack([x, x + 1])
        np.testing.assert_array_equal(jax.jit(jax.vmap(ours))(rows), jax.vmap(theirs)(rows))


def _written(x: Any) -> Any:
    r = jax.new_ref(jnp.zeros(4))
    r[1:] = x * 2
    return r[...] + jnp.sin(r[1])


def _accumulated(x: Any) -> Any:
    r = jax.new_ref(jnp.zeros(()))

    def step(carry: Any, x: Any) -> Any:
        r[...] += jnp.sin(x)
        return carry, r[...]

    return jax.lax.scan(step, None, x)[1] * jax.freeze(r)


@pytest.mark.parametrize("function", [_written, _accumulated])
def test_references_that_a_function_makes(function: Callable[..., Any]) -> None:
    x = np.arange(3, dtype=np.float32)
    transforms: list[Callable[[Any, Any], Any]] = [
        lambda make, f: make(f),
        lambda make, f: jax.jit(make(f)),
        lambda make, f: make(lambda x: make(f)(x) + 1),
        lambda make, f: jax.vmap(make(f), (None,), axis_size=2),
        lambda make, f: jax.vmap(lambda n: make(f)(n * jnp.ones(3))),
        lambda make, f: jax.grad(lambda x: make(f)(x).sum()),
        lambda make, f: make(jax.grad(lambda x: make(f)(x).sum())),
        lambda make, f: lambda x: jax.jvp(make(f), (x,), (x,))[1],
    ]
    for transform in transforms:
        ours, theirs = (transform(make, function)(x) for make in (jit, jax.jit))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_references_from_outside_are_changed() -> None:
    outer, given = jax.new_ref(jnp.zeros(3)), jax.new_ref(jnp.ones(2))

    @jit
    def write(r: Any, x: Any) -> Any:
        outer[1] = jnp.sin(x)
        r[...] += x
        return r[...].sum() + outer[1]

    for n in (1, 2):
        assert float(write(given, 2.0)) == pytest.approx(2 * (1 + 2 * n) + np.sin(2), rel=1e-5)
    np.testing.assert_allclose(outer[...], [0, np.sin(2), 0], rtol=1e-6)


def test_named_axes() -> None:
    f = jit(lambda x: x - jax.lax.pmean(x, "i"))  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(jax.vmap(f, axis_name="i")(jnp.arange(4.0)), np.arange(4) - 1.5)


def test_derivatives_have_weak_types_like_those_of_jax() -> None:
    def f(x: Any) -> Any:
        return x**2

    for transform in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,)), lambda f: jax.linearize(f, 3.0)[1]):
        ours, theirs = (jax.tree.leaves(transform(make(f))(3.0)) for make in (jit, jax.jit))
        assert [(a.weak_type, float(a)) for a in ours] == [(a.weak_type, float(a)) for a in theirs]


def test_results_that_do_not_depend_on_an_argument_have_no_tangents() -> None:
    seen = jax.new_ref(jnp.zeros(()))

    def f(x: Any, n: Any) -> Any:
        y = jnp.sin(x).sum()
        seen[...] = jax.lax.stop_gradient(y) * 2
        return y * n

    np.testing.assert_allclose(jax.grad(jit(f))(jnp.arange(3.0), 2.0), 2 * np.cos(np.arange(3)), rtol=1e-5)
    np.testing.assert_allclose(seen[...], 2 * np.sin(np.arange(3)).sum(), rtol=1e-5)
    g = jit(lambda x, n: (x * n, n + 1.0, jax.lax.stop_gradient(x)))
    for a, b in zip(*(jax.jvp(h, (2.0, 3.0), (1.0, 0.0)) for h in (g, g.__wrapped__)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_that_are_not_differentiable() -> None:
    f = jit(lambda x, n: (x.sum() * n, jnp.argmax(x)))
    value, gradient = jax.value_and_grad(f, has_aux=True)(jnp.arange(3.0), 2)
    assert value == (6, 2)
    np.testing.assert_array_equal(gradient, [2, 2, 2])


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_derivatives_by_integers_have_no_values(convert: Any) -> None:
    gradient = jax.grad(lambda x, n: (x * n).sum(), (0, 1), allow_int=True)
    x, n = convert(np.ones(3, np.float32)), convert(np.arange(3))
    by_x, by_n = jit(gradient)(x, n)
    np.testing.assert_array_equal(by_x, [0, 1, 2])
    assert by_n.dtype == jax.dtypes.float0 and by_n.shape == (3,)
    assert jit(lambda x, n: (x, n))(x, by_n)[1].dtype == jax.dtypes.float0


# ---- threads, processes, interruptions


def test_threads_compile_once_and_get_their_own_results() -> None:
    @jit
    def f(x: Any) -> Any:
        return jax.lax.fori_loop(0, 20, lambda n, x: jnp.sin(x) + n, x)

    expected = [np.asarray(jax.jit(f.__wrapped__)(jnp.full(50, n, jnp.float32))) for n in range(8)]
    found: dict[int, list[Any]] = {}

    def work(n: int) -> None:
        convert: Any = jnp.asarray if n % 2 else np.asarray
        found[n] = [f(convert(np.full(50, n, np.float32))) for _ in range(30)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n, results in found.items():
        for r in results:
            np.testing.assert_allclose(r, expected[n], rtol=1e-5)
    assert f.cache_info().programs == 1


PROGRAM = """
import jax, jax.numpy as jnp, hlogym
f = hlogym.jit(lambda x: jnp.tanh(x) * 3)
f(jnp.ones(7))
print(f.cache_info().programs, f.cache_info().loaded)
"""


def test_later_processes_load_programs_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    root = Path(__file__).parent.parent.parent
    out = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True, cwd=root
        ).stdout.split()
        for _ in range(2)
    ]
    assert out == [["1", "0"], ["1", "1"]]


class _AlarmError(Exception):
    pass


def test_a_signal_handler_ends_a_program_inside_xla() -> None:
    @jit
    def f(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 2e9, lambda c: (c[0] + 1, jnp.sort(c[1] + 1)), (0.0, x))[1]

    def stop(number: int, frame: FrameType | None) -> None:
        raise _AlarmError

    x = jnp.arange(5000.0)
    before = signal.signal(signal.SIGALRM, stop)
    compiled = jax.jit(f).lower(x).compile()
    try:
        with pytest.raises(_AlarmError):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            jax.block_until_ready(compiled(x))  # type: ignore[no-untyped-call]
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(jit(lambda x: x + 1)(x)[:2], [1, 2])


# ---- errors


def test_errors_say_which_argument_is_wrong() -> None:
    f = jit(lambda p, mode="a", **kw: p["x"], static_argnames="mode")
    for x in (X, jnp.asarray(X)):
        with pytest.raises(ArgumentError, match=r"argument mode is static, but a list is not hashable: \['a'\]"):
            f({"x": x}, mode=["a"])
        with pytest.raises(ArgumentError, match=r"argument 0\['y'\] is 'text', a str, which is no array.*static_arg"):
            f({"x": x, "y": "text"})
        with pytest.raises(ArgumentError, match=r"argument other is .*, a object"):
            f({"x": x}, other=object())


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"static_argnums: the function has 1 positional argument\(s\), no 3"):
        jit(lambda x: x, static_argnums=3)
    with pytest.raises(ArgumentError, match="donate_argnames: the function has no argument 'y'"):
        jit(lambda x: x, donate_argnames="y")
    with pytest.raises(ArgumentError, match="output must be one of like, jax, numpy"):
        jit(lambda x: x, output="torch")
    with pytest.raises(ArgumentError, match="backends auto, cpu, xla, not 'tpu'"):
        jit(lambda x: x, backend="tpu")
    with pytest.raises(ArgumentError, match="takes a function, not a int"):
        jit(3)  # type: ignore[call-overload]


def test_arguments_of_jax_that_make_no_difference_are_accepted() -> None:
    f = jit(lambda x, y: x + 1, keep_unused=True, inline=True, device=None, in_shardings=None, compiler_options=None)
    for convert in (np.asarray, jnp.asarray):
        np.testing.assert_array_equal(f(convert(X), 2), X + 1)


def test_other_arguments_are_refused_by_the_decorator() -> None:
    with pytest.raises(ArgumentError, match="does not support out_shardings, device of jax"):
        jit(lambda x: x, device=jax.devices()[0], out_shardings=jax.devices()[0])
    with pytest.raises(UnknownNameError, match=r"unknown argument of hlogym\.jit 'fusion_polcy'; did you mean"):
        jit(fusion_polcy="none")
    with pytest.raises(UnknownNameError, match="'module'"):
        jit(lambda x: x, module="HloModule m")
    for name in inspect.signature(jax.jit).parameters:
        if name not in ("fun", "backend"):
            jit(lambda x: x, **{name: None})


def test_what_is_no_program_is_reported_with_its_line() -> None:
    def calls_back(x: Any) -> Any:
        return jax.pure_callback(np.sin, x, x)

    f = jit(lambda x: jax.lax.scan(lambda c, _: (calls_back(c), None), x, length=2))
    with pytest.raises(UnsupportedError, match=r"test_jit\.py:\d+ \(.*calls_back\): %pure_callback"):
        f.compile(X)
    prints = jit(lambda x: jax.debug.print("{}", x))
    for of_one_program in (prints.lower, prints.compile, prints.plan):
        with pytest.raises(UnsupportedError, match=r"effects \(Debug\), such as printing"):
            of_one_program(X)


def test_errors_of_jax_name_the_function() -> None:
    def branches(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"branches at .*test_jit\.py"):
        jit(branches)(X)


def test_jax_is_named_if_it_is_missing() -> None:
    program = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "jax" else real(name, *a)
import hlogym
try:
    hlogym.jit(abs)
except hlogym.HlogymError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert "hlogym[jax]" in done.stdout


def test_functions_are_copied_and_pickled_like_those_of_jax() -> None:
    f = jit(_halves, donate_argnums=0)
    assert copy.deepcopy({"f": f})["f"] is f and copy.copy(f) is f
    again = pickle.loads(pickle.dumps(f))  # noqa: S301 - made here
    np.testing.assert_array_equal(again(X.copy()), X / 2)
    donated = jnp.asarray(X)
    again(donated)
    assert donated.is_deleted()


def _halves(x: Any) -> Any:
    return x / 2


def test_exported_functions_call_no_program_of_this_process() -> None:
    f = jit(lambda x: jnp.sin(x) * 2)
    for function in (jax.jit(lambda x: f(x) + 1), jax.jit(jax.grad(lambda x: f(x).sum()))):
        exported: Any = jax.export.export(function)(jax.ShapeDtypeStruct(X.shape, X.dtype))  # type: ignore[no-untyped-call]
        assert "custom_call" not in exported.mlir_module()
        np.testing.assert_allclose(exported.call(X), function(X), rtol=1e-5)


def test_subnormal_numbers_are_kept_in_the_threads_of_xla() -> None:
    small = np.array([6e-5, 6e-8, 1e-7, 3e-6, 1e-5], np.float32)
    halves = jit(lambda x: x.astype(jnp.float16))(jnp.asarray(small))
    np.testing.assert_array_equal(halves, small.astype(np.float16))
    doubled = jit(lambda x: x * 2)(jnp.full(5, 1e-40, jnp.float32))
    np.testing.assert_array_equal(doubled, np.full(5, 1e-40, np.float32) * 2)


PACKED: list[Callable[..., Any]] = [
    lambda s, _: s[::-1],
    lambda s, u: (s + s, u * jnp.uint4(3)),
    lambda s, _: s.astype(jnp.int2),
    lambda _, u: (u.astype(jnp.int32) + 100).astype(jnp.uint4),
    lambda s, u: s.astype(jnp.float32) * 0.5 + u.astype(jnp.float32),
]


@pytest.mark.parametrize("function", PACKED)
def test_integers_that_xla_packs_need_no_call_through_python(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*_: Any, **__: Any) -> None:
        pytest.fail("called through Python")

    monkeypatch.setattr(jax, "pure_callback", called)
    signed, unsigned = jnp.arange(-8, 8).astype(jnp.int4), jnp.arange(16).astype(jnp.uint4)
    got, want = (jax.tree.leaves(make(function)(signed, unsigned)) for make in (jit, jax.jit))
    assert [x.dtype for x in got] == [x.dtype for x in want]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(x).astype(np.float32), np.asarray(y).astype(np.float32))
