"""The recipes of the documentation work as written, and touch as few files as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.learned.features.passes import observation_size
from tests.docs.applying import apply_recipe, copy_tree, run_python


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_tree(tmp_path)


def test_an_op_is_a_row_an_evaluator_an_expression_and_a_test(tree: Path) -> None:
    touched = apply_recipe("op", tree)

    assert len(touched.all) <= 4
    assert len(touched.new) == 1
    run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, touched.new), *COMPLETENESS)
    assert run_python(tree, "-c", SOFTSIGN).split() == ["True", "1", "True", str(observation_size(5))]


COMPLETENESS = (
    "tests/ir/test_opcode_coverage.py",
    "tests/ir/test_shape_inference.py::test_every_opcode_is_inferred_or_written_out",
    "tests/interpreter/test_conformance.py::test_every_opcode_has_cases_or_a_reason",
)
"""Tests that ask something of every op; a new one must not need changes to them."""

SOFTSIGN = """
import numpy as np
from compiler import compile, parse

text = '''HloModule m
ENTRY main {
  x = f32[1000] parameter(0)
  n = f32[1000] negate(x)
  s = f32[1000] softsign(n)
  ROOT e = f32[1000] exponential(s)
}'''
x = np.linspace(-5, 5, 1000, dtype=np.float32)
exe = compile(text)
print(np.allclose(exe(x)[0], np.exp(-x / (1 + np.abs(x))), rtol=1e-5))
print(len(exe.kernels))  # it fuses with its neighbours
print("fabs" in compile(text, backend="cuda").kernels[0].source)
from compiler.learned.features.passes import observation_size
print(observation_size(5))  # policies that were learned before still fit
"""


def test_a_pass_is_a_file_and_a_golden_test(tree: Path) -> None:
    touched = apply_recipe("pass", tree)

    assert (len(touched.new), len(touched.changed)) == (2, 0)
    golden = run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden", "-k", "hyperbolic")
    assert "2 passed" in golden
    assert "hyperbolic-tangent" in run_python(tree, "-m", "experiments.cli", "opt", "--list-passes")
    assert run_python(tree, "-c", TANH).split() == ["True", "tanh"]


TANH = """
import numpy as np
from compiler import compile

text = "ENTRY main { x = f32[9] parameter(0) s = f32[9] sinh(x) c = f32[9] cosh(x) ROOT q = f32[9] divide(s, c) }"
exe = compile(text, pipeline=["hyperbolic-tangent", "dce"])
x = np.linspace(-200, 200, 9, dtype=np.float32)
print(np.allclose(exe(x)[0], np.tanh(x)))
print(exe.module.entry.root.opcode.text)
"""
