"""Whole programs of the cuda backend on a stand-in for CuPy and a GPU, by the code that runs on a GPU."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cuda.emulation import available, stand_in
from compiler.backends.cuda.executable import CudaExecutable
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.text import parse
from env.comparison import difference
from env.reference import Reference, drawn_reference
from env.suites import load_suite, random_inputs
from tests.codegen.nvrtc_errors import has_nvrtc
from tests.passes.programs import PROGRAMS, program_inputs, program_text

pytestmark = pytest.mark.skipif(not available(), reason="the emulator needs g++")

FEW = ("seed_broadcast_add_after", "mlp_train_step", "attention")


@pytest.fixture(autouse=True)
def no_refused_captures() -> Iterator[None]:
    """Make a stretch that cannot be captured an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_programs_match_the_interpreter_launched_captured_and_replayed(name: str) -> None:
    module = parse(program_text(name))
    args = program_inputs(name)
    wanted = evaluate(module, args)
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        for _ in range(3):
            for got, expected in zip(executable(*args), wanted, strict=True):
                np.testing.assert_allclose(got.get(), expected, rtol=2e-4, atol=1e-4)


LOOPS = ("conjugate_gradient", "edit_distance", "runge_kutta", "random_walk_with_resets", "random_binomial")


@pytest.mark.parametrize("name", [LOOPS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in LOOPS[1:])])
def test_the_state_of_a_loop_is_read_before_other_blocks_write_it(name: str) -> None:
    program = load_suite("jax").find(name)
    module = parse(program.text())
    args = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        found = [o.get() for o in executable(*args)]
    assert Reference.of(module, args).difference(found, program.tolerance) is None


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), [(s, p.name) for s in ("jax", "models") for p in load_suite(s).programs])
def test_programs_of_a_suite_match_the_interpreter(suite: str, name: str) -> None:
    program = load_suite(suite).find(name)
    module = parse(program.text())
    shapes = [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes]
    reference = drawn_reference(module, lambda number: random_inputs(program, shapes, number))
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        for _ in range(3):
            got = [r.get() for r in executable(*reference.inputs)]
            assert difference(got, reference.outputs, program.tolerance, reference.spread) is None


def test_the_stand_in_is_gone_after_the_block() -> None:
    before = sys.modules.get("cupy")
    with stand_in.installed():
        assert sys.modules["cupy"] is not before
    assert sys.modules.get("cupy") is before


CONVOLUTIONS = """HloModule m
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] maximum(a, b) }
ENTRY e {
  x = f32[2,3,8,6] parameter(0)
  v = f32[5,3,3,3] parameter(1)
  w = f32[4,5,3,3] parameter(2)
  d = f32[2,4,8,6] parameter(3)
  bias = f32[5] parameter(4)
  zero = f32[] constant(0)
  c = f32[2,5,8,6] convolution(x, v), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01
  b = f32[2,5,8,6] broadcast(bias), dimensions={1}
  s = f32[2,5,8,6] add(c, b)
  z = f32[2,5,8,6] broadcast(zero), dimensions={}
  h = f32[2,5,8,6] maximum(s, z)
  y = f32[2,4,8,6] convolution(h, w), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01
  g = f32[4,5,3,3] convolution(h, d), window={size=8x6 pad=1_1x1_1}, dim_labels=fb01_io01->fb01
  ROOT t = (f32[2,4,8,6], f32[4,5,3,3]) tuple(y, g)
}"""


def test_activations_between_convolutions_keep_their_features_last() -> None:
    module = parse(CONVOLUTIONS)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in module.parameter_shapes]
    wanted = evaluate(module, args)
    with stand_in.installed():
        executable = compile(module, backend="cuda")
        outputs = [np.asarray(r.get()) for r in executable(*args)]
    for output, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-4)
    everywhere = [i for c in executable.module.computations for i in c.instructions]
    moved = [i.name for i in everywhere if i.opcode is Opcode.TRANSPOSE and i.shape.num_elements == 2 * 5 * 8 * 6]
    assert moved == []


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
def test_cubins_for_a_gpu_and_the_stand_in_do_not_mix(tmp_path: Path) -> None:
    text = "HloModule m\nENTRY e { x = f32[300] parameter(0) ROOT r = f32[300] negate(x) }"
    executable = compile(text, backend="cuda")
    assert isinstance(executable, CudaExecutable)
    images = {s: c.image for s, c in executable.cubins("sm_90").items()}
    x = np.arange(300, dtype=np.float32)
    with stand_in.installed():
        (found,) = executable(x)
        np.testing.assert_array_equal(found.get(), -x)
        executable.save(tmp_path / "program")
    again = load(tmp_path / "program")
    assert isinstance(again, CudaExecutable)
    assert {s: c.image for s, c in again.cubins("sm_90").items()} == images
