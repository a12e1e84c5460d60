"""The xla backend: results against the interpreter, arrays in and out, decisions, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import CompilationPlan, compile, parse
from compiler.api import CompileOptions
from compiler.backends.registry import BACKENDS, find_backend
from compiler.backends.xla import library
from compiler.errors import ArgumentError, BackendError, UnknownNameError
from compiler.ir import Opcode
from compiler.passes.infrastructure.pipeline import leaves
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.for_xla import LEFT_TO_XLA, xla_pipeline
from env.reference import Reference
from env.suites import find_program, random_inputs

jax = pytest.importorskip("jax")
from compiler.jit import jit  # noqa: E402 - imports JAX

ADD = "ENTRY e { x = f32[3] parameter(0) y = s64[] parameter(1) c = f32[] convert(y) b = f32[3] broadcast(c), " \
      "dimensions={} ROOT r = f32[3] add(x, b) }"  # fmt: skip
X = np.array([1, 2, 3], np.float32)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, policy) for name in ("softmax", "swiglu") for policy in (None, "default", "xla-instruction")),
        *((name, "default") for name in ("layer_norm_forward", "cartpole_split", "attention", "lstm_scan_gradient")),
    ],
)
def test_results_are_the_interpreters(name: str, policy: str | None) -> None:
    program = find_program(name)
    module = parse(program.text())
    inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    exe = compile(module, backend="xla", fusion_policy=policy)
    assert Reference.of(module, inputs).difference(exe(*inputs), program.tolerance) is None


def test_no_fusions_unless_asked_for() -> None:
    text = find_program("bias_gelu").text()
    plain, fused = compile(text, "xla"), compile(text, "xla", fusion_policy="default")
    assert [i for i in plain.module.entry.instructions if i.opcode is Opcode.FUSION] == []
    assert [i for i in fused.module.entry.instructions if i.opcode is Opcode.FUSION] != []
    assert plain.plan is not None and plain.plan.backend == "xla"
    assert plain.kernels == [] and plain.plan.decided_by["fusion"] == "none"


def test_arrays_of_numpy_and_of_jax() -> None:
    exe = compile(ADD, backend="xla")
    (out,) = exe(X, np.int64(2))
    assert isinstance(out, np.ndarray) and out.tolist() == [3, 4, 5]
    (out,) = exe(jax.numpy.asarray(X), np.int64(2))
    assert isinstance(out, jax.Array) and out.tolist() == [3, 4, 5]
    torch = pytest.importorskip("torch")
    assert exe(torch.ones(3), torch.tensor(2))[0].tolist() == [3, 3, 3]
    assert all(s > 0 for s in exe.benchmark([X, np.int64(2)], 2))


def test_wrong_arguments_are_named() -> None:
    exe = compile(ADD, backend="xla")
    for arguments in ([X], [X, np.int32(1)], [X[:2], np.int64(1)], [jax.numpy.ones(2), np.int64(1)]):
        with pytest.raises(ArgumentError, match=r"takes 2|expected"):
            exe(*arguments)


def test_tuples_are_flattened() -> None:
    exe = compile(
        """ENTRY e { p = (f32[3], (s32[], f32[2])) parameter(0)  q = f32[3] parameter(1)
        a = f32[3] get-tuple-element(p), index=0  i = (s32[], f32[2]) get-tuple-element(p), index=1
        d = f32[3] subtract(a, q)  o = (f32[3]) tuple(d)
        ROOT r = ((f32[3]), (s32[], f32[2]), f32[3]) tuple(o, i, q) }""",
        backend="xla",
    )
    outs = exe(X, np.int32(7), np.array([8, 9], np.float32), X + 1)
    assert [o.tolist() for o in outs] == [[-1, -1, -1], 7, [8, 9], [2, 3, 4]]


def test_donated_arguments_keep_their_values() -> None:
    exe = compile("HloModule m, input_output_alias={ {}: (0, {}, may-alias) }\n"
                  "ENTRY e { x = f32[3] parameter(0) ROOT r = f32[3] negate(x) }", backend="xla")  # fmt: skip
    x = jax.numpy.asarray(X)
    assert exe(x)[0].tolist() == [-1, -2, -3] and x.tolist() == [1, 2, 3]


def test_plans_are_replayed() -> None:
    text = find_program("layer_norm_forward").text()
    exe = compile(text, "xla", fusion_policy="default")
    assert exe.plan is not None
    again = compile(text, "xla", plan=CompilationPlan.from_json(exe.plan.to_json()))
    assert str(again.module) == str(exe.module)


def test_a_refusal_of_xla_is_one_line() -> None:
    text = 'ENTRY e { x = f32[3] parameter(0) ROOT r = f32[3] custom-call(x), custom_call_target="nobody_has_this" }'
    with pytest.raises(BackendError, match=r"XLA refuses the program: [^\n]*nobody_has_this[^\n]*$"):
        compile(text, backend="xla", options=CompileOptions(optimize=False))


def test_without_jax_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    library.xla.cache_clear()
    with pytest.raises(BackendError, match=r"pip install 'hlogym\[jax\]'"):
        compile(ADD, backend="xla")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "hlogym[jax]" in str(find_backend("xla").why_unavailable())


def test_auto_never_means_xla() -> None:
    assert BACKENDS["xla"].priority == 0 and BACKENDS["xla"].optional


@pytest.mark.parametrize("pass_name", ["dot-simplifier", "transpose-folding", "reduce-window-rewriter"])
def test_the_pipeline_leaves_products_to_xla(pass_name: str) -> None:
    assert pass_name in LEFT_TO_XLA
    names = [p.name for p in leaves(xla_pipeline())]
    assert pass_name not in names
    assert "algebraic-simplifier" in names


def test_members_of_the_simplifier_can_be_left_out() -> None:
    text = """ENTRY e { x = f32[4,3] parameter(0)  y = f32[4,5] parameter(1)
    t = f32[3,4] transpose(x), dimensions={1,0}
    ROOT d = f32[3,5] dot(t, y), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""
    specs = ("algebraic-simplifier", "algebraic-simplifier{without=dot-simplifier+transpose-folding}")
    folded, kept = (compile(text, "xla", pipeline=[spec]).module.entry for spec in specs)
    assert not any(i.opcode is Opcode.TRANSPOSE for i in folded.instructions)
    assert any(i.opcode is Opcode.TRANSPOSE for i in kept.instructions)
    with pytest.raises(UnknownNameError, match="arithmetic-identities"):
        make_pass("algebraic-simplifier{without=arithmetic-identitie}")


def test_jit_runs_our_passes_in_front_of_xla() -> None:
    def f(x: Any, w: Any) -> Any:
        return {"a": jax.numpy.tanh(x @ w).sum(), "b": jax.numpy.cumsum(x, 0)}

    ours = jit(f, backend="xla")
    x, w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((3, 2), np.float32)
    expected = f(x, w)
    for arrays in ((x, w), (jax.numpy.asarray(x), jax.numpy.asarray(w))):
        got = ours(*arrays)
        np.testing.assert_allclose(got["a"], expected["a"], rtol=1e-6)
        np.testing.assert_allclose(got["b"], expected["b"], rtol=1e-6)
    plan = ours.plan(x, w)
    assert plan is not None and plan.backend == "xla"
    gradient = jax.grad(lambda x: ours(x, w)["a"])(jax.numpy.asarray(x))
    np.testing.assert_allclose(gradient, (1 - np.tanh(x @ w) ** 2) @ w.T, rtol=1e-5)
    batch = jax.vmap(lambda x: ours(x, w)["b"])(jax.numpy.stack([x, 2 * x]))
    np.testing.assert_allclose(batch[1], 2 * np.cumsum(x, 0), rtol=1e-6)
    twice = jax.jit(lambda x: ours(ours(x, w)["b"], w)["a"])(jax.numpy.asarray(x))
    np.testing.assert_allclose(twice, np.tanh(np.cumsum(x, 0) @ w).sum(), rtol=1e-6)
