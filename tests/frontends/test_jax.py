import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler.errors import HloSyntaxError
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


def test_what_is_not_stablehlo_is_refused_in_one_message() -> None:
    with pytest.raises(HloSyntaxError, match="not StableHLO"):
        stablehlo("module { nonsense }")


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
