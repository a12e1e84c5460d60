"""Kernels of convolutions with what is computed before and after them, in C and in the emulator of CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from compiler import compile, parse
from compiler.analysis.convolutions import suits_windows
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET
from compiler.codegen.buildability import node_refusal
from compiler.codegen.lowering.windows import windows_of
from compiler.codegen.templates.convolutions import convolution_of, with_convolution_expanded
from compiler.errors import UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, Opcode
from compiler.runtime.thunks import KernelThunk
from tests.codegen import running
from tests.codegen.running import case_of, fused, random_args
from tests.sweeps.convolution_cases import FORMS

needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


def with_neighbours(t: str, form: str) -> HloComputation:
    """Return a convolution of one of the forms of `tests.sweeps` with a conversion before it and two outputs."""
    sizes = FORMS[form]
    x, kernel, result = (",".join(map(str, s)) for s in sizes[:3])
    window, labels, more = sizes[3:]
    window = f"window={{{window}}}, " if window else ""
    return fused(f"""
  p0 = s8[{x}] parameter(0)
  p1 = {t}[{kernel}] parameter(1)
  p2 = {t}[{result}] parameter(2)
  x = {t}[{x}] convert(p0)
  k = {t}[{kernel}] negate(p1)
  c = {t}[{result}] convolution(x, k), {window}dim_labels={labels}{more}
  s = {t}[{result}] add(c, p2)
  a = {t}[{result}] abs(s)
  ROOT r = ({t}[{result}], {t}[{result}]) tuple(s, a)
""")


def kernels(*types: str) -> Iterator[HloComputation]:
    """Yield `with_neighbours` of every form and type."""
    for form in FORMS:
        if form not in ("nothing-fits", "empty-batch"):
            for t in types:
                yield with_neighbours(t, form)


def test_every_form_in_c() -> None:
    rng = np.random.default_rng(3)
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "c") for c in kernels("f32", "bf16")]
    for case, got in zip(cases, running.run_c(cases), strict=True):
        assert running.problem(got, case) is None, case.spec.signature


@needs_emulator
def test_every_form_in_cuda(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "cuda") for c in kernels("f32")]
    cases += [case_of(c, random_args(c.parameter_shapes, rng), "cuda") for c in list(kernels("bf16"))[::5]]
    for case, run in zip(cases, running.run_emulated(cases, tmp_path), strict=True):
        assert run.error == ""
        assert running.problem(run.outputs, case) is None, case.spec.signature


def test_nan_of_an_input_stays_under_its_windows() -> None:
    computation = with_neighbours("f32", "pad-uneven")
    rng = np.random.default_rng(5)
    x, kernel, residual = random_args(computation.parameter_shapes, rng)
    residual[0, 2, 1, 0] = np.nan
    case = case_of(computation, [x, kernel, residual], "c")
    ((s, a),) = running.run_c([case])
    assert np.argwhere(np.isnan(s)).tolist() == np.argwhere(np.isnan(a)).tolist() == [[0, 2, 1, 0]]


def test_the_windows_are_index_arithmetic() -> None:
    computation = with_neighbours("f32", "plain")
    convolution = convolution_of(computation)
    assert convolution is not None
    copy = with_convolution_expanded(computation, convolution, tiles=True)
    (windows,) = [i for i in copy.instructions if windows_of(i) is not None]
    assert windows.shape.dimensions == (2, 5, 5, 3, 3, 2)  # batch, positions, features, elements of the kernel
    assert {i.name for i in computation.instructions if i.opcode.text == "convolution"} == {
        i.name for i in copy.instructions if i.opcode.text == "dot"
    }


@pytest.mark.parametrize("t", ["f32", "f64", "bf16", "f16", "s32", "u8", "pred", "f8e4m3fn"])
@pytest.mark.parametrize(
    ("x", "kernel", "out", "window", "labels", "groups"),
    [
        ("2,3,9,20", "3,1,5,5", "2,3,9,20", "size=5x5 pad=2_2x2_2", "bf01_oi01->bf01", 3),
        ("2,9,20,3", "4,5,1,3", "2,6,20,3", "size=4x5 pad=0_0x2_2", "b01f_01io->b01f", 3),
        ("1,2,40", "2,2,7", "1,2,25", "size=7 pad=3_0 rhs_dilate=3", "bf0_oi0->bf0", 1),
        ("1,40,12", "9,12,1", "1,37,1", "size=9 pad=2_3 rhs_reversal=1", "b0f_0io->b0f", 1),
        ("6,5,4,33,2", "2,1,3,2,6", "2,4,4,31,2", "size=2x1x3", "f012b_012oi->b012f", 1),
    ],
    ids=["rows", "features last", "dilated", "reversed", "other order"],
)
def test_sums_of_scaled_rows(t: str, x: str, kernel: str, out: str, window: str, labels: str, groups: int) -> None:
    module = parse(
        f"HloModule m\nENTRY e {{ x = {t}[{x}] parameter(0)\n k = {t}[{kernel}] parameter(1)\n"
        f" ROOT c = {t}[{out}] convolution(x, k), window={{{window}}}, dim_labels={labels}, "
        f"feature_group_count={groups} }}"
    )
    (convolution,) = [i for i in module.entry.instructions if i.opcode is Opcode.CONVOLUTION]
    assert suits_windows(convolution)
    exe = compile(module)
    assert all(isinstance(t, KernelThunk) for t in exe.thunks)
    rng = np.random.default_rng(0)
    small = [rng.integers(0, 2, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    for got, want in zip(exe(*small), evaluate(module, small), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_has_no_kernel_says_why() -> None:
    integers = convolution_of(with_neighbours("u8", "plain"))
    empty = convolution_of(with_neighbours("f32", "nothing-fits"))
    assert integers is not None
    assert empty is not None
    named = "%c: a convolution of these types has no generated kernel: u8, u8, u8"
    assert node_refusal(integers, C_TARGET) == node_refusal(integers, CUDA_TARGET) == named
    assert node_refusal(empty, C_TARGET) == "%c: an empty convolution has no kernel"


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_a_reduction_beside_a_convolution_is_refused(language: str) -> None:
    computation = fused(
        "p0 = f32[1,40,40] parameter(0)\np1 = f32[1,40,40] parameter(1)\n"
        "c = f32[1,40,40] convolution(p0, p1), window={size=1}, dim_labels=b0f_0io->b0f\n"
        "zero = f32[] constant(0)\nROOT r = f32[1,40] reduce(c, zero), dimensions={2}, to_apply=sum",
        "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n",
    )
    with pytest.raises(
        UnsupportedError, match="%c is computed in blocks, in whose loops the reduction %r has no place"
    ):
        running.kernel_of(computation, language)
