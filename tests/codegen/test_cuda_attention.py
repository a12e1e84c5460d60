"""Attention in CUDA C++: an online softmax over tiles of keys, in the emulator against the interpreter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.cubins import compile_cubins
from compiler.backends.cuda.nvrtc import source_of
from compiler.codegen.languages import default_schedule
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.text import parse
from tests.codegen import running
from tests.codegen.attentions import AttentionForm, random_attention
from tests.codegen.grouped_attention import grouped_attention
from tests.codegen.nvrtc_errors import has_nvrtc, nvrtc_errors
from tests.codegen.running import Array, Case, case_of, kernel_of, random_args

needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


def case(form: AttentionForm, schedule: Schedule | None = None, seed: int = 1) -> Case:
    """Return the case of a form with random arguments."""
    computation = form.computation()
    return case_of(
        computation, random_args(computation.parameter_shapes, np.random.default_rng(seed)), "cuda", schedule
    )


def check(cases: Sequence[Case], folder: Path) -> list[list[Array]]:
    """Assert that emulated kernels give what the interpreter gives; return the results."""
    assert {c.spec.kind for c in cases} == {"attention"}
    runs = running.run_emulated(cases, folder)
    for c, run in zip(cases, runs, strict=True):
        assert run.error == "", f"{c.spec.signature}: {run.error}"
        assert running.problem(run.outputs, c) is None, c.spec.signature
    return [run.outputs for run in runs]


def check_halves(cases: Sequence[Case], folder: Path) -> None:
    """Assert that results are near those of the interpreter, which rounds products and weights to halves.

    A product that another order of sums rounds to the next bf16 changes a weight by 2**-8 of the score; and results
    near 0 are differences of values of up to 2.
    """
    for c, run in zip(cases, running.run_emulated(cases, folder), strict=True):
        assert run.error == "", f"{c.spec.signature}: {run.error}"
        for found, wanted in zip(run.outputs, c.reference.outputs, strict=True):
            np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=0.05, atol=0.05)


@needs_emulator
def test_random_attention(tmp_path: Path) -> None:
    forms = [random_attention(random.Random(seed)) for seed in range(100, 114)]
    check([case(f) for f in forms if f.type == "f32"], tmp_path)
    check_halves([case(f) for f in forms if f.type != "f32"], tmp_path)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("first", [200, 300, 400])
def test_much_random_attention(first: int, tmp_path: Path) -> None:
    forms = [random_attention(random.Random(seed)) for seed in range(first, first + 100)]
    check([case(f) for f in forms if f.type == "f32"], tmp_path)
    check_halves([case(f) for f in forms if f.type != "f32"], tmp_path)


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_heads_of_every_size_with_tiles_that_are_skipped(t: str, tmp_path: Path) -> None:
    forms = [
        AttentionForm([2], 40, 100, head, head, mask, t, zero_if_masked=head == 32)
        for head, mask in ((32, "causal -inf"), (64, "lower"), (128, "causal added"), (256, "none"))
    ]
    check([case(f) for f in forms], tmp_path)


@needs_emulator
def test_tiles_of_other_sizes(tmp_path: Path) -> None:
    preset = default_schedule("cuda")
    cases = [
        case(AttentionForm([2], 130, 70, 16, 48, "causal -1e9", t), preset.with_values(values))
        for t, values in (
            ("bf16", {"tile_attention.queries": 128, "tile_attention.keys": 16}),
            ("bf16", {"tile_attention.queries": 16, "tile_attention.keys": 32}),
            ("f32", {"tile_attention.queries": 32, "tile_attention.keys": 32}),
        )
    ]
    check(cases, tmp_path)


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16"])
@pytest.mark.parametrize("zero_if_masked", [False, True])
def test_masked_rows(t: str, zero_if_masked: bool, tmp_path: Path) -> None:
    """A row without any visible key is NaN, or 0 where the program asks for it."""
    form = AttentionForm([2], 40, 70, 16, 8, "given", t, zero_if_masked=zero_if_masked)
    computation = form.computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(1))
    args[3][:] = False
    args[3][5:30, 50:] = True

    ((result,),) = check([case_of(computation, args, "cuda")], tmp_path)

    rows = result[:, 0].astype(np.float32)
    assert (rows == 0).all() if zero_if_masked else np.isnan(rows).all()


@needs_emulator
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(value: float, tmp_path: Path) -> None:
    cases = []
    for operand in range(3):
        computation = AttentionForm([2], 20, 90, 16, 8, "none").computation()
        args = random_args(computation.parameter_shapes, np.random.default_rng(2))
        args[operand].flat[37] = value
        cases.append(case_of(computation, args, "cuda"))
    check(cases, tmp_path)


@needs_emulator
@pytest.mark.parametrize("mask", ["causal -inf", "causal -1e9"])
def test_tiles_above_the_diagonal_are_skipped(mask: str, tmp_path: Path) -> None:
    """A NaN in a value that every query masks does not reach the results, as it would if 0 * NaN were added."""
    form = AttentionForm([], 32, 192, 16, 16, mask)
    computation = form.computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(3))
    assert args[2].shape.count(192) == 1
    np.moveaxis(args[2], args[2].shape.index(192), 0)[150:] = np.nan

    (run,) = running.run_emulated([case_of(computation, args, "cuda")], tmp_path)

    assert run.error == ""
    assert np.isfinite(run.outputs[0]).all()


def test_rounded_weights_are_a_choice_where_the_program_rounds_them() -> None:
    rounded = default_schedule("cuda").with_values({"tile_attention.rounded": 1})
    form = AttentionForm([2], 64, 64, 64, 64, "none", "bf16")

    plain, chosen = (kernel_of(form.computation(), "cuda", s).source for s in (None, rounded))

    assert "tensor_attention<bfloat16_t" in plain
    assert plain != chosen


def test_large_heads_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a head of 300 elements"):
        kernel_of(AttentionForm([2], 64, 64, 300, 64, "none").computation(), "cuda")


@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_attention_is_one_kernel_without_scores_in_memory(t: str) -> None:
    form = AttentionForm([2, 3], 64, 64, 32, 32, "causal -inf", t)
    module = form.computation().parent
    assert module is not None

    kernels = compile(str(module), backend="cuda").kernels

    assert [k.kind for k in kernels] == ["attention"]


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_nvrtc_compiles_attention(architecture: str) -> None:
    specs = [
        kernel_of(AttentionForm([2], 40, 70, 64, 32, "causal -1e9", t).computation(), "cuda") for t in ("f32", "bf16")
    ]
    assert nvrtc_errors(source_of(specs), architecture) == ""


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_registers_suffice_for_heads_of_every_size(architecture: str) -> None:
    specs = [
        kernel_of(AttentionForm([8, 16], 1024, 1024, head, head, mask, t).computation(), "cuda")
        for t in ("f32", "bf16")
        for head in (32, 64, 128, 256)
        for mask in ("none", "causal -inf", "given")
    ]

    found = compile_cubins(specs, architecture)

    assert {s.symbol: found[s.symbol].resources.spill_stores for s in specs} == {s.symbol: 0 for s in specs}


@pytest.mark.parametrize(("heads", "tile"), [(4, 16), (32, 32), (64, 64)])
def test_tiles_have_fewer_queries_where_multiprocessors_would_have_none(heads: int, tile: int) -> None:
    form = AttentionForm([heads], 128, 128, 64, 64, "none", "f32")
    assert kernel_of(form.computation(), "cuda").grid == heads * 128 // tile


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("queries", [1, 3, 4])
def test_four_blocks_of_few_queries_have_room_in_a_multiprocessor(queries: int, architecture: str) -> None:
    (kernel, *_) = compile(parse(grouped_attention("f32", 8, 4, queries, 2048, 128)), backend="cuda").kernels
    assert (kernel.kind, kernel.block) == ("attention", 128)
    resources = compile_cubins([kernel], architecture)[kernel.symbol].resources
    assert 4 * kernel.block * resources.registers <= 1 << 16
    assert resources.spill_stores == 0
