# ruff: noqa: E501  # programs in one line each read better in a table
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import env.suites
from compiler.frontends.jax import lower
from compiler.ir.printing import PrintOptions
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.text.reference import assert_round_trip

QUICKSTART = sorted(Path(env.suites.__file__).parent.joinpath("quickstart").glob("*.hlo"))
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
I = np.arange(12, dtype=np.int32).reshape(3, 4)  # noqa: E741
KEY = jax.random.key(0)

FUNCTIONS: dict[str, Any] = {
    "elementwise": lambda: (lambda x: jnp.sin(x) * jnp.exp(x) / (1 + jnp.abs(x)), X),
    "dot": lambda: (lambda x: x @ x.T, X),
    "batched_dot": lambda: (lambda x: jnp.einsum("bij,bkj->bik", x, x), X.reshape(2, 2, 3)),
    "convolution": lambda: (
        lambda x, k: jax.lax.conv_general_dilated(x, k, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")),
        np.ones((1, 8, 8, 2), np.float32),
        np.ones((3, 3, 2, 4), np.float32),
    ),
    "reduce": lambda: (lambda x: (x.sum(0), x.max(1), x.prod(), jnp.argmax(x, 1)), X),
    "reduce_window": lambda: (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 2), (1, 2), "SAME"), X),
    "max_pool_gradient": lambda: (
        jax.grad(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "VALID").sum()), X
    ),
    "sort": lambda: (lambda x: jax.lax.sort((x, x * 2), dimension=1, num_keys=1), X),
    "top_k": lambda: (lambda x: jax.lax.top_k(x, 2), X),
    "gather": lambda: (lambda x, i: x[i % 3, :2], X, I[0]),
    "scatter": lambda: (lambda x, i: x.at[i % 3].add(1.0), X, I[0]),
    "dynamic_slice": lambda: (lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (1, 2)), X, np.int32(1)),
    "dynamic_update": lambda: (lambda x, i: jax.lax.dynamic_update_slice(x, x[:1], (i, 0)), X, np.int32(1)),
    "while": lambda: (lambda x: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x)), X),
    "scan": lambda: (lambda x: jax.lax.scan(lambda c, v: (c + v, c * v), x[0], x), X),
    "scan_gradient": lambda: (jax.grad(lambda x: jax.lax.scan(lambda c, v: (jnp.tanh(c + v), c), x[0], x)[0].sum()), X),
    "cond": lambda: (lambda p, x: jax.lax.cond(p, jnp.sin, jnp.cos, x), np.bool_(True), X),
    "switch": lambda: (lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), np.int32(1), X),
    "random": lambda: (lambda k: (jax.random.normal(k, (3,)), jax.random.permutation(k, 5)), KEY),
    "bit_generator": lambda: (lambda k: jax.lax.rng_bit_generator(k, (4,)), np.zeros(4, np.uint32)),  # type: ignore[no-untyped-call]
    "cholesky": lambda: (lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), X),
    "solve": lambda: (lambda x: jax.scipy.linalg.solve_triangular(x[:, :3], x, lower=True), X),
    "qr": lambda: (jnp.linalg.qr, X),
    "fft": lambda: (lambda x: (jnp.fft.fft(x), jnp.fft.rfft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), X),
    "complex": lambda: (lambda x: (x + 1j * x) * jnp.conj(x * 2j), X),
    "bitwise": lambda: (lambda i: (i & 3, i << 2, ~i, jax.lax.population_count(i), jax.lax.clz(i)), I),
    "casts": lambda: (lambda x: (x.astype(jnp.bfloat16), x.astype(jnp.int8), x.view(jnp.uint32), x.astype(jnp.float8_e4m3fn)), X),
    "padding": lambda: (lambda x: jax.lax.pad(x, 0.0, ((1, -1, 1), (0, 2, 0))), X),
    "cumulative": lambda: (lambda x: (jnp.cumsum(x, 0), jax.lax.cumlogsumexp(x, 1), jax.lax.cummax(x, reverse=True)), X),
    "large_constant": lambda: (lambda x: x + np.arange(12, dtype=np.float32).reshape(3, 4) / 7, X),
    "special_constants": lambda: (lambda x: jnp.where(x > 0, np.float32(np.nan), np.float32(-np.inf)) * -0.0, X),
    "softmax_gradient": lambda: (jax.grad(lambda x: jnp.square(jax.nn.softmax(x)).sum()), X),
    "custom_gradient_call": lambda: (lambda x: jax.jit(lambda y: y * 2)(x) + jax.jit(lambda y: y * 3)(x), X),
}  # fmt: skip


@pytest.mark.parametrize("path", QUICKSTART, ids=lambda p: p.stem)
def test_quickstart(path: Any) -> None:
    verify(assert_round_trip(path.read_text()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_lowered_from_jax(name: Any) -> None:
    function, *args = FUNCTIONS[name]()
    module = lower(function, *args)
    verify(module)
    verify(assert_round_trip(str(module)))


def test_text_after_xla_has_optimised_it() -> None:
    from tests.oracle import optimized_text

    text = optimized_text(str(lower(jax.grad(lambda x: jnp.tanh(x @ x.T).sum()), X)))
    verify(assert_round_trip(text))


def test_the_fingerprint_forgets_names_order_and_metadata() -> None:
    one = 'HloModule a\nENTRY e {\n x = f32[2] parameter(0), metadata={op_name="p"}\n y = f32[2] parameter(1)\n s = sine(x)\n c = cosine(y)\n ROOT r = add(s, c)\n}'
    two = "HloModule b\nENTRY main {\n %b = f32[2]{0} parameter(1)\n %a = f32[2]{0} parameter(0)\n %k = f32[2] cosine(f32[2] %b)\n %l = f32[2] sine(f32[2] %a)\n ROOT %z = f32[2] add(%l, %k)\n}"
    three = two.replace("add(%l, %k)", "add(%k, %l)")
    assert parse(one).fingerprint() == parse(two).fingerprint() != parse(three).fingerprint()


def test_canonical_text_is_a_program() -> None:
    text = (
        "HloModule m\nadd { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }\n"
        "ENTRY e {\n x = f32[] parameter(0)\n z = f32[] constant(0)\n"
        " ROOT r = f32[] reduce(x, z), dimensions={}, to_apply=add\n}\n"
    )
    module = parse(text)
    again = parse(module.to_text(PrintOptions.canonical()))
    assert again.fingerprint() == module.fingerprint()
    assert again.entry.root.attr("dimensions") == ()
