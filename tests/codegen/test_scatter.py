"""Scatter kernels against the interpreter."""

import numpy as np
import pytest

from compiler import CompileOptions, compile, parse
from compiler.interpreter import evaluate

REDUCERS = {
    "add": "ROOT r = {t}[] add(a, b)",
    "maximum": "ROOT r = {t}[] maximum(a, b)",
    "multiply": "ROOT r = {t}[] multiply(b, a)",
    "replace": "ROOT r = {t}[] parameter(1)",
}

CASES = {
    "rows": (
        "{t}[9,4]", "s32[5,1]", "{t}[5,4]",
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1",
    ),
    "elements": (
        "{t}[6,5]", "s32[7,2]", "{t}[7]",
        "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1",
    ),
    "windows": (
        "{t}[6,5]", "s32[2,3]", "{t}[3,2,3]",
        "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={1,0}, index_vector_dim=0",
    ),
    "batched": (
        "{t}[3,8]", "s32[3,4]", "{t}[3,4]",
        "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=2",
    ),
    "implicit index vector": (
        "{t}[8]", "s32[3,4]", "{t}[3,4]",
        "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2",
    ),
}  # fmt: skip


def module_text(case: str, reducer: str, t: str) -> str:
    operand, indices, updates, attributes = CASES[case]
    a, b = "a = {t}[] parameter(0)", "b = {t}[] parameter(1)"
    body = " ".join([a, b, REDUCERS[reducer]]) if reducer != "replace" else f"{a} {REDUCERS[reducer]}"
    return f"""HloModule scatter
f {{ {body.format(t=t)} }}
ENTRY e {{
  x = {operand.format(t=t)} parameter(0)
  i = {indices} parameter(1)
  u = {updates.format(t=t)} parameter(2)
  ROOT s = {operand.format(t=t)} scatter(x, i, u), {attributes}, to_apply=f
}}"""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("t", ["f32", "s32"])
def test_a_scatter_kernel_equals_the_interpreter(case: str, reducer: str, t: str) -> None:
    module = parse(module_text(case, reducer, t))
    executable = compile(module, options=CompileOptions(optimize=False))
    assert [k.kind for k in executable.kernels] == ["scatter"]
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, i, u = (rng.integers(-2, 8, s.dimensions).astype(s.dtype) for s in module.entry.parameter_shapes)
        if reducer == "replace":  # duplicates may land in any order
            i[...] = np.resize(np.arange(i.size) % 5, i.shape) if case != "elements" else i
        (got,), (want,) = executable(x, i, u), evaluate(module, [x, i, u])
        np.testing.assert_array_equal(got, want)
