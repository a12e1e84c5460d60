"""Fused modules on XLA:CPU: the same results as our own, and reasons where XLA has no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.xla.fused_modules import FusedXlaProgram, module_for_xla, xla_refusal
from compiler.errors import UnsupportedError
from compiler.ir import HloModule, Opcode
from env.reference import Reference
from env.suites import find_program, random_inputs
from tests.oracle import XlaError, run_xla


def fusions(module: HloModule) -> int:
    return sum(i.opcode is Opcode.FUSION for c in module.control_flow_computations() for i in c.instructions)


@pytest.mark.parametrize("name", ["softmax", "layer_norm_forward", "swiglu", "transpose_scale_add"])
def test_xla_runs_our_fusions(name: str) -> None:
    program = find_program(name)
    module = parse(program.text())
    inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    fused = module_for_xla(compile(module).module)
    assert fusions(fused) > 0
    theirs = FusedXlaProgram(str(fused))
    assert Reference.of(module, inputs).difference(theirs(*inputs), program.tolerance) is None


def test_a_loop_kernel_is_a_loop_again_in_xla() -> None:
    program = find_program("cartpole_split")
    module = parse(program.text())
    inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    fused = module_for_xla(compile(module).module)
    assert [i.opcode for i in fused.entry.instructions].count(Opcode.WHILE) == 1
    theirs = FusedXlaProgram(str(fused))
    assert Reference.of(module, inputs).difference(theirs(*inputs), program.tolerance) is None


def test_softmax_stays_one_fusion_in_xla() -> None:
    program = find_program("softmax")
    theirs = FusedXlaProgram(str(module_for_xla(compile(program.text()).module)))
    assert theirs.text.count(" fusion(") == 1
    assert theirs.text.count(" reduce(") == 2


def test_transposed_products_are_equal() -> None:
    text = """
    HloModule m
    ENTRY e {
      x = f32[3,2,4] parameter(0)
      y = f32[5,4,3] parameter(1)
      s = f32[3,2,4] sine(x)
      t = f32[4,3,2] transpose(s), dimensions={2,0,1}
      d = f32[3,2,5] dot(t, y), lhs_batch_dims={1}, rhs_batch_dims={2},
          lhs_contracting_dims={0}, rhs_contracting_dims={1}
      ROOT r = f32[5,3,2] transpose(d), dimensions={2,0,1}
    }
    """
    module = parse(text)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.dimensions).astype(np.float32) for s in module.entry.parameter_shapes]
    (got,) = FusedXlaProgram(str(module_for_xla(compile(module).module)))(*arrays)
    np.testing.assert_allclose(got, np.einsum("pqk,nkp->npq", np.sin(arrays[0]), arrays[1]), rtol=1e-5, atol=1e-5)


def test_what_xla_has_no_code_for_is_dissolved() -> None:
    text = """
    HloModule m
    sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
    two { p = f32[4,8] parameter(0)  z = f32[] constant(0)  e = f32[4,8] exponential(p)
          r = f32[4] reduce(e, z), dimensions={1}, to_apply=sum  ROOT t = (f32[4,8], f32[4]) tuple(e, r) }
    ENTRY main { x = f32[4,8] parameter(0)  ROOT f = (f32[4,8], f32[4]) fusion(x), kind=kLoop, calls=two }
    """
    module = parse(text)
    (fusion,) = [i for i in module.entry.instructions if i.opcode is Opcode.FUSION]
    assert "outputs differ in shape" in str(xla_refusal(fusion))
    plain = module_for_xla(module)
    assert fusions(plain) == 0
    assert fusions(module) == 1
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    whole, rows = run_xla(str(plain), [x])
    np.testing.assert_allclose(whole, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(rows, np.exp(x).sum(1), rtol=1e-6)


def test_column_major_library_calls_are_refused() -> None:
    program = Path("env/suites/jax/cholesky_of_indefinite_matrix.hlo").read_text()
    with pytest.raises(UnsupportedError, match="column-major"):
        module_for_xla(compile(program).module)


def test_stock_xla_needs_kinds_that_it_knows() -> None:
    text = str(compile(find_program("softmax").text()).module)
    assert "kind=kLoop" in text
    with pytest.raises(XlaError, match="Unsupported fusion kind"):
        run_xla(text.replace("kind=kLoop", "kind=kInput"), [np.zeros((2048, 1024), np.float32)])
