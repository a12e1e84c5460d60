"""Updates of one array after each other in one kernel, which writes their windows in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.analysis.kernel_summary import summarize_body
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir import HloComputation
from tests.codegen import running

START = "zero = s32[] constant(0)\none = s32[] constant(1)\nk = s32[] parameter(3)\nj = s32[] subtract(k, one)"


def chain(window: str, other: str = "", size: str = "f32[6,64,64]", first: str = "k") -> HloComputation:
    """Return two updates of an array; `other` is a line before them."""
    return running.fused(f"""
        x = {size} parameter(0)
        a = {window} parameter(1)
        b = {window} parameter(2)
        {START}
        s = {window} sine(a)
        {other}
        y = {size} dynamic-update-slice(x, s, {first}, zero, zero)
        ROOT z = {size} dynamic-update-slice(y, b, j, zero, zero)
    """)


CHAINS = {
    "rows": chain("f32[1,64,64]"),
    "the same row": chain("f32[1,64,64]", first="j"),
    "single elements": chain("f32[1,1,1]", size="f32[6,512,512]"),
}


def _is_in_place(spec: KernelSpec) -> bool:
    return spec.kind == "in-place-update"


def _case(fused: HloComputation, at: int, language: str) -> running.Case:
    rng = np.random.default_rng(at + 5)
    args = running.random_args(fused.parameter_shapes, rng)
    args[3] = np.asarray(at, np.int32)
    return running.case_of(fused, args, language)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("at", [3, 0, 9])
def test_the_windows_of_all_updates_are_written(name: str, at: int, tmp_path: Path) -> None:
    for language in ("c", "cuda"):
        case = _case(CHAINS[name], at, language)
        assert _is_in_place(case.spec), language
        assert len(case.spec.must_alias) == 1
        if language == "c":
            (found,) = running.run_c([case])
        elif running.has_emulator():
            (run,) = running.run_emulated([case], tmp_path)
            assert not run.error
            found = run.outputs
        else:
            continue
        assert running.problem(found, case) is None, language


def test_small_windows_of_small_arrays_are_no_chain() -> None:
    assert not _is_in_place(running.kernel_of(chain("f32[1,4,5]", size="f32[6,4,5]"), "cuda"))


def test_windows_that_may_overlap_in_part_are_no_chain() -> None:
    assert not _is_in_place(running.kernel_of(chain("f32[2,64,64]"), "cuda"))


def test_an_array_that_is_read_besides_is_not_written_in_place() -> None:
    read = "r = f32[1,64,64] slice(x), slice={[0:1],[0:64],[0:64]}\nb2 = f32[1,64,64] add(b, r)"
    text = chain("f32[1,64,64]", read)
    assert not _is_in_place(running.kernel_of(text, "cuda"))


def test_the_estimate_counts_the_windows_alone() -> None:
    summary = summarize_body(CHAINS["rows"])
    assert summary.in_place
    assert summary.bytes_written == 2 * 4 * 4096
    assert summary.inputs[0].loads == 0
    assert summarize_body(chain("f32[2,64,64]")).bytes_written == 4 * 6 * 4096
