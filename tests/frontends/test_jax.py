import io
import subprocess
import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler.errors import ArgumentError, HloSyntaxError, UnsupportedError
from compiler.frontends.jax import argument_names, lower, stablehlo
from compiler.ir.verifier import verify
from tests.oracle import run_xla


def model(x: Any, params: Any, scale: Any = 2.0) -> Any:
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return hidden * scale, hidden.sum()


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
PARAMS = {"b": np.arange(4, dtype=np.float32), "w": np.full((3, 4), 0.25, np.float32)}


def test_a_lowered_function_computes_what_jax_computes() -> None:
    module = lower(model, X, PARAMS)
    verify(module)
    got = run_xla(str(module), [X, PARAMS["b"], PARAMS["w"]])
    for a, b in zip(got, jax.tree.leaves(model(X, PARAMS)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_argument_names_follow_the_pytree() -> None:
    assert argument_names(lower(model, X, PARAMS)) == {0: "x", 1: "params['b']", 2: "params['w']"}


def test_unused_arguments_keep_their_position() -> None:
    module = lower(lambda a, b: b + 1, X, X)
    assert len(module.parameter_shapes) == 2


def test_large_constants_are_in_full() -> None:
    table = np.arange(1000, dtype=np.float32)
    module = lower(lambda x: x + jnp.asarray(table), table)
    constants: list[Any] = [i for c in module.computations for i in c.instructions if i.literal is not None]
    assert any(np.array_equal(c.literal.value, table) for c in constants)


def test_shapes_without_values_do() -> None:
    module = lower(model, jax.ShapeDtypeStruct((2, 3), "bfloat16"), PARAMS)  # type: ignore[no-untyped-call]
    assert str(module.parameter_shapes[0]) == "bf16[2,3]"


def test_stablehlo_text_bytecode_and_portable_artefact_agree() -> None:
    lowered = jax.jit(model).lower(X, PARAMS)
    exported = jax.export.export(jax.jit(model))(X, PARAMS)
    text, portable = stablehlo(lowered.as_text()), stablehlo(exported.mlir_module_serialized)
    assert text.fingerprint() == portable.fingerprint() == lower(model, X, PARAMS).fingerprint()


def test_mlir_bytecode_is_read() -> None:
    lowered = jax.jit(model).lower(X, PARAMS)
    stream = io.BytesIO()
    ir: Any = lowered.compiler_ir("stablehlo")
    ir.operation.write_bytecode(stream)
    expected = lower(model, X, PARAMS).fingerprint()
    assert stablehlo(stream.getvalue()).fingerprint() == expected
    assert stablehlo(bytearray(stream.getvalue())).fingerprint() == expected


def test_what_is_not_stablehlo_is_refused_in_one_message() -> None:
    with pytest.raises(HloSyntaxError, match="not StableHLO"):
        stablehlo("module { nonsense }")
    with pytest.raises(
        HloSyntaxError, match=r"f\.mlir:2:3: this is not StableHLO: custom op 'stablehlo\.foo' is unknown"
    ):
        stablehlo("module {\n  stablehlo.foo\n}", "f.mlir")
    with pytest.raises(HloSyntaxError, match=r"HLO text.*parse"):
        stablehlo("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }")
    with pytest.raises(ArgumentError, match="NoneType"):
        stablehlo(None)  # type: ignore[arg-type]


class Pair(NamedTuple):
    w: Any
    b: Any


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "names"),
    [
        (lambda p, q: p[0] + q[1][0], ([X, X], (X, [X])), {}, ["p[0]", "p[1]", "q[0]", "q[1][0]"]),
        (lambda p: p.w + p.b, (Pair(X, X),), {}, ["p.w", "p.b"]),
        (lambda p: p["w"] * 2, ({"w": X, "b": None},), {}, ["p['w']"]),
        (lambda x, *, scale: x * scale, (X,), {"scale": 2.0}, ["x", "scale"]),
        (jax.jit(lambda x, n: x * n, static_argnums=1), (X, 3), {}, ["x"]),
        (jax.jit(lambda x, mode: x if mode == "a" else -x, static_argnames="mode"), (X,), {"mode": "a"}, ["x"]),
        (jax.jit(lambda x, y, z: y + z["b"]), (X, X, {"a": X, "b": X}), {}, ["y", "z['b']"]),
        (jax.jit(lambda x, y: x + y, donate_argnums=0), (X, X), {}, ["x", "y"]),
        (partial(lambda a, x: a * x, 2.0), (X,), {}, ["x"]),
    ],
)
def test_names_by_position(fn: Any, args: Any, kwargs: Any, names: Any) -> None:
    module = lower(fn, *args, **kwargs)
    verify(module)
    assert argument_names(module) == dict(enumerate(names))


def test_weights_that_are_closed_over_become_constants() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    module = lower(lambda x: x @ jnp.asarray(table), X)
    assert argument_names(module) == {0: "x"}
    np.testing.assert_allclose(run_xla(str(module), [X])[0], X @ table, rtol=1e-6)


def test_a_donated_argument_is_said_in_the_header() -> None:
    module = lower(jax.jit(lambda x, y: x + y, donate_argnums=0), X, X)
    assert "{}: (0, {}, may-alias)" in str(module).splitlines()[0]


def test_double_precision_follows_jax() -> None:
    wide = np.ones(3)
    assert str(lower(lambda x: x * 2, wide).parameter_shapes[0]) == "f32[3]"
    with jax.enable_x64(True):
        assert str(lower(lambda x: x * 2, wide).parameter_shapes[0]) == "f64[3]"


def test_sizes_that_are_not_fixed_are_refused() -> None:
    (n,) = jax.export.symbolic_shape("n")
    open_shape = jax.ShapeDtypeStruct((n, 3), np.float32)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedError, match=r"argument 0 has shape \('n', '3'\)"):
        lower(lambda x: x * 2, open_shape)
    exported = jax.export.export(jax.jit(lambda x: x * 2))(open_shape)
    for program in (exported.mlir_module_serialized, str(exported.mlir_module())):
        with pytest.raises(UnsupportedError, match=r"without a fixed size.*concrete shapes"):
            stablehlo(program)


def test_an_argument_that_jax_cannot_trace_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"argument mode is a str.*static_argnames"):
        lower(lambda x, mode: x, X, mode="a")


def test_a_missing_framework_is_said_clearly() -> None:
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from compiler.errors import BackendError\n"
        "from compiler.frontends.jax import lower\n"
        "try: lower(abs, 1.0)\n"
        "except BackendError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'hlogym[jax]'" in out
