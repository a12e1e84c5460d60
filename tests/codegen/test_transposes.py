"""Kernels that read along one dimension and write along another, in tiles of every size."""

from __future__ import annotations

import re

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.loop_transforms import LARGE_BYTES
from compiler.codegen.schedules.schedule import Schedule
from compiler.support.processor import AVX2, AVX512, VectorUnit
from tests.codegen import running

SUM = """
    a = {t}[{m},{n}] parameter(0)
    b = {t}[{m},{n}] parameter(1)
    c = {t}[{m},{n}] add(a, b)
    ROOT r = {t}[{n},{m}] transpose(c), dimensions={{1,0}}
"""
"""Both operands are read along other dimensions than the result is written."""


def checked(m: int, n: int, t: str = "f32", schedule: Schedule | None = None) -> str:
    """Return the kind of the kernel of a transposed sum, after comparing it with the interpreter."""
    fused = running.fused(SUM.format(m=m, n=n, t=t))
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.kind


@pytest.mark.parametrize("tile", [8, 16, 33, 64])
@pytest.mark.parametrize("across", [0, 8, 24])
def test_tiles_of_any_edges(tile: int, across: int) -> None:
    for m, n in ((24, 300), (300, 24), (130, 65)):
        checked(m, n, schedule=Schedule(tile=tile, across=across))


PADDED = """
    a = f32[64,{n}] parameter(0)
    z = f32[] constant(0)
    p = f32[66,{n}] pad(a, z), padding=1_1x0_0
    t = f32[{n},66] transpose(p), dimensions={{1,0}}
    ROOT r = f32[{n},66] tanh(t)
"""


@pytest.mark.parametrize(("n", "edge"), [(512, 8), (1536, 8), (520, 32)])
def test_tiles_of_padded_rows_are_as_narrow_as_the_cache_holds_their_lines(n: int, edge: int) -> None:
    fused = running.fused(PADDED.format(n=n))
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c")
    assert running.problem(running.run_c([case])[0], case) is None
    edges = {int(n) for n in re.findall(r"\b(\d+)\*i\d+o\b", case.spec.source)}
    assert edge in edges
    assert not edges & ({8, 16, 32} - {edge})


@pytest.mark.parametrize("t", ["s8", "u8", "s16", "u16", "bf16", "f16", "s64"])
def test_tiles_of_every_width(t: str) -> None:
    for m, n in ((100, 8), (100, 33), (130, 65), (700, 90)):
        assert checked(m, n, t) == "transpose"


@pytest.mark.parametrize("t", ["f32", "f64", "bf16", "s16"])
def test_few_rows_are_one_tile(t: str) -> None:
    for n in (8, 16, 20, 31, 33, 63):
        assert checked(100, n, t) == "transpose"


def test_few_columns_and_a_handful_of_rows_need_no_tiles() -> None:
    assert checked(20, 100) == "loop"
    assert checked(100, 6) == "loop"


@pytest.mark.parametrize("t", ["f32", "f64", "bf16", "s8"])
def test_few_columns(t: str) -> None:
    for m, n in ((16, 300), (32, 40), (48, 100)):
        assert checked(m, n, t) == ("loop" if t == "f64" else "transpose")
    for m in (17, 24, 40, 48, 63):  # the rows are a multiple of a power of two apart in memory
        for n in (4096, 4100):
            assert checked(m, n, t) == ("transpose" if n == 4096 or (m == 48 and t != "f64") else "loop")


def test_few_columns_in_tiles_of_any_edges() -> None:
    for tile, across in ((8, 8), (16, 0), (64, 8), (64, 24), (48, 64)):
        for m, n in ((24, 2048), (48, 50), (90, 4096)):
            checked(m, n, schedule=Schedule(tile=tile, across=across))


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_large_arrays(t: str) -> None:
    n = 40
    m = LARGE_BYTES // (3 * 4 * n) + 3
    assert checked(m, n, t) == "transpose"
    assert checked(1500, 1301, t) == "transpose"


@pytest.mark.parametrize("t", ["pred", "s4", "u8", "s16", "f16", "bf16", "f32", "s64", "c64"])
@pytest.mark.parametrize(
    ("m", "n"), [(100, 128), (130, 65), (65, 500), (1000, 37), (512, 1024), (500, 16), (500, 8), (500, 24), (104, 32)]
)
def test_what_is_only_moved_goes_from_memory_to_memory(t: str, m: int, n: int) -> None:
    fused = running.fused(f"a = {t}[{m},{n}] parameter(0)\n ROOT r = {t}[{n},{m}] transpose(a), dimensions={{1,0}}")
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c")
    assert running.problem(running.run_c([case])[0], case) is None
    pitch = m * fused.parameter_shapes[0].element_type.byte_size
    assert ("_tile[" in case.spec.source) == (pitch % 2048 == 0)


@pytest.mark.parametrize(("m", "n"), [(100, 128), (130, 65), (70, 40)])
def test_transposes_with_values_of_rows(m: int, n: int) -> None:
    text = f"""
        x = f32[{m},{n}] parameter(0)
        s = f32[{n}] parameter(1)
        t = f32[{n},{m}] transpose(x), dimensions={{1,0}}
        e = f32[{n}] exponential(s)
        b = f32[{n},{m}] broadcast(e), dimensions={{0}}
        ROOT r = f32[{n},{m}] divide(t, b)
    """
    fused = running.fused(text)
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c")
    assert running.problem(running.run_c([case])[0], case) is None
    assert case.spec.kind == "transpose"


MOVED = "a = f32[{n},300] parameter(0)\n ROOT r = f32[300,{n}] transpose(a), dimensions={{1,0}}"
REVERSED = "a = {t}[{n},7,20,{m}] parameter(0)\n ROOT r = {t}[{m},20,7,{n}] transpose(a), dimensions={{3,2,1,0}}"


@pytest.mark.parametrize("t", ["u8", "s16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("n", [3, 4, 5, 8, 11, 15])
@pytest.mark.parametrize("m", [16, 40, 53])
def test_reversed_dimensions(t: str, n: int, m: int) -> None:
    fused = running.fused(REVERSED.format(t=t, n=n, m=m))
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c")
    assert running.problem(running.run_c([case])[0], case) is None
    if t in ("u8", "f64") or n == 3:
        assert case.spec.kind == "loop"
    elif n != 8:
        assert case.spec.kind == "transpose"


@pytest.mark.parametrize(("n", "unit", "kind"), [(3, AVX2, "loop"), (8, AVX2, "transpose"), (8, AVX512, "loop")])
def test_vectors_decide_about_tiles_of_few_columns(n: int, unit: VectorUnit, kind: str) -> None:
    assert bind_c(lower(running.fused(MOVED.format(n=n))), Schedule(unit=unit)).kind == kind
