"""Sums over functions of pairs of rows on a GPU, such as distances, in the emulator against the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.backends.cuda.nvrtc import source_of
from compiler.codegen.languages import default_schedule
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir import HloComputation
from tests.codegen import running
from tests.codegen.nvrtc_errors import has_nvrtc, nvrtc_errors
from tests.codegen.running import case_of, fused, kernel_of, random_args

needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
SQUARES = ("s = {T} subtract(x, y)", "t = {T} multiply(s, s)")
ABSOLUTE = ("s = {T} subtract(x, y)", "t = {T} abs(s)")
AFFINE = (
    "o = {t}[] constant(1)",
    "os = {T} broadcast(o), dimensions={{}}",
    "s = {T} subtract(x, y)",
    "t = {T} add(s, os)",
)


def pairs(
    left: tuple[str, str],
    right: tuple[str, str],
    terms: str,
    over: str,
    result: str,
    body: Sequence[str] = SQUARES,
    after: Sequence[str] = (),
    t: str = "f32",
) -> HloComputation:
    """Return a sum over the terms of two arrays, each given by its sizes and the dimensions of its broadcast."""
    lines = [
        f"a = {t}[{left[0]}] parameter(0)",
        f"b = {t}[{right[0]}] parameter(1)",
        f"x = {t}[{terms}] broadcast(a), dimensions={{{left[1]}}}",
        f"y = {t}[{terms}] broadcast(b), dimensions={{{right[1]}}}",
        *(line.format(T=f"{t}[{terms}]", t=t) for line in body),
        f"z = {t}[] constant(0)",
        f"r = {t}[{result}] reduce(t, z), dimensions={{{over}}}, to_apply=add",
        *(line.format(R=f"{t}[{result}]", t=t) for line in after),
    ]
    lines[-1] = f"ROOT {lines[-1]}"
    adder = f"add {{ p = {t}[] parameter(0) q = {t}[] parameter(1) ROOT o = {t}[] add(p, q) }}"
    return fused("\n".join(lines), adder)


CASES = {
    "distances": pairs(("150,64", "0,2"), ("140,64", "1,2"), "150,140,64", "2", "150,140", after=["q = {R} sqrt(r)"]),
    "transposed": pairs(("64,150", "2,0"), ("140,64", "1,2"), "150,140,64", "2", "150,140", ABSOLUTE),
    "sums first": pairs(("64,150", "0,1"), ("64,140", "0,2"), "64,150,140", "0", "150,140"),
    "depth that is no multiple": pairs(("150,61", "0,2"), ("140,61", "1,2"), "150,140,61", "2", "150,140", AFFINE),
    "batch": pairs(("6,70,40", "0,1,3"), ("6,80,40", "0,2,3"), "6,70,80,40", "3", "6,70,80", AFFINE),
    "two sums": pairs(("150,8,9", "0,2,3"), ("140,8,9", "1,2,3"), "150,140,8,9", "2,3", "150,140"),
    "turned": pairs(("150,64", "1,2"), ("140,64", "0,2"), "140,150,64", "2", "140,150", AFFINE),
    "f64": pairs(("150,64", "0,2"), ("140,64", "1,2"), "150,140,64", "2", "150,140", AFFINE, t="f64"),
    "few tiles": pairs(("40,700", "0,2"), ("48,700", "1,2"), "40,48,700", "2", "40,48", AFFINE),
    "dimensions of one": pairs(
        ("150,1,64", "0,2,3"), ("140,64", "1,3"), "150,140,1,64", "3", "150,140,1", after=["q = {R} negate(r)"]
    ),
}  # fmt: skip


def check(computations: Sequence[HloComputation], folder: Path, schedule: Schedule | None = None) -> None:
    rng = np.random.default_rng(5)
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "cuda", schedule) for c in computations]
    for computation, case, run in zip(computations, cases, running.run_emulated(cases, folder), strict=True):
        assert run.error == "", f"{computation.root}: {run.error}"
        assert running.problem(run.outputs, case) is None, str(computation)


@needs_emulator
def test_sums_over_pairs_are_tiles(tmp_path: Path) -> None:
    check(list(CASES.values()), tmp_path)
    assert {name: kernel_of(c, "cuda").kind for name, c in CASES.items()} == dict.fromkeys(CASES, "product")


@needs_emulator
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_terms_beyond_the_depth_are_not_added(parts: int, tmp_path: Path) -> None:
    """A term of two zeros is 1."""
    schedule = default_schedule("cuda").with_values({"tiles.depth_parts": parts, "tiles.depth": 8})
    check([CASES["depth that is no multiple"], CASES["few tiles"]], tmp_path, schedule)


@needs_emulator
def test_all_pairs_of_one_array(tmp_path: Path) -> None:
    computation = fused(
        """
        a = f32[160,48] parameter(0)
        x = f32[160,160,48] broadcast(a), dimensions={0,2}
        y = f32[160,160,48] broadcast(a), dimensions={1,2}
        s = f32[160,160,48] subtract(x, y)
        m = f32[160,160,48] maximum(s, x)
        z = f32[] constant(0)
        ROOT r = f32[160,160] reduce(m, z), dimensions={2}, to_apply=add
        """,
        "add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT o = f32[] add(p, q) }",
    )
    check([computation], tmp_path)
    assert kernel_of(computation, "cuda").kind == "product"


@pytest.mark.parametrize(
    "computation",
    [
        pytest.param(pairs(("150,4", "0,2"), ("140,4", "1,2"), "150,140,4", "2", "150,140"), id="short sums"),
        pytest.param(pairs(("9000,64", "0,2"), ("4,64", "1,2"), "9000,4,64", "2", "9000,4"), id="few rows"),
        pytest.param(
            pairs(
                ("150,64", "0,2"), ("140,64", "1,2"), "150,140,64", "2", "150,140", (*SQUARES[:1], "t = {T} tanh(s)")
            ),
            id="a function",
        ),
        pytest.param(pairs(("150,64", "0,2"), ("140", "1"), "150,140,64", "2", "150,140"), id="no depth"),
    ],
)
def test_other_sums_are_reductions(computation: HloComputation) -> None:
    assert kernel_of(computation, "cuda").kind != "product"


@needs_nvrtc
@pytest.mark.parametrize("name", ["distances", "depth that is no multiple", "f64"])
def test_nvrtc_compiles_sums_over_pairs(name: str) -> None:
    assert nvrtc_errors(source_of([kernel_of(CASES[name], "cuda")]), "sm_90") == ""
