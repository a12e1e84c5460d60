"""What both sides of a branch compute, and the loads in branches of vector loops."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

WHOLE = Schedule(threads=0, edges=0, stages=0, tile=0, short=0)
"""Loops over rows stay whole, so that their bodies have branches."""
HALVES = """
    x = {t}[9,{m}] parameter(0)
    w = {t}[{m}] parameter(1)
    {first}
    high = {t}[9,{k}] slice(f), slice={{[0:9], [{h}:{m}]}}
    low = {t}[9,{h}] slice(f), slice={{[0:9], [0:{h}]}}
    other = {t}[9,{k}] negate(high)
    both = {t}[9,{m}] concatenate(other, low), dimensions={{1}}
    b = {t}[9,{m}] broadcast(w), dimensions={{1}}
    ROOT r = {t}[9,{m}] multiply(both, b)
"""


def halves(first: str, m: int = 48, t: str = "f32") -> str:
    """Return a program that exchanges the halves of rows and negates one of them, after some ops with result f."""
    return HALVES.format(t=t, m=m, h=m // 2, k=m - m // 2, first=first.format(t=t, m=m))


@pytest.mark.parametrize("op", ["sine", "cosine", "exponential", "sqrt", "abs"])
@pytest.mark.parametrize("m", [48, 99])
def test_a_function_of_both_sides_is_computed_once(op: str, m: int) -> None:
    source = checked(halves("f = {t}[9,{m}] " + op + "(x)", m), WHOLE)
    loop = source[source.index("#pragma omp simd") :]
    calls = re.findall(r"\b(?:sinf|cosf|expf|sqrtf|fabsf)\(", loop)
    assert len(calls) == 1


def test_sides_that_differ_stay_apart() -> None:
    text = """
    x = f32[9,48] parameter(0)
    s = f32[9,48] sine(x)
    c = f32[9,48] exponential(x)
    high = f32[9,24] slice(s), slice={[0:9], [24:48]}
    low = f32[9,24] slice(c), slice={[0:9], [0:24]}
    ROOT r = f32[9,48] concatenate(high, low), dimensions={1}
    """
    source = checked(text, WHOLE)
    assert source.count("sinf(") == source.count("expf(") == 1


@pytest.mark.parametrize("t", ["f32", "bf16", "f16", "f64", "s32"])
def test_adjacent_elements_in_a_branch_have_no_sums_of_the_loop_variable(t: str) -> None:
    source = checked(halves("f = {t}[9,{m}] negate(x)", t=t), WHOLE)
    branches = source[source.index("if (") :]
    reads = re.findall(r"\(p0 \+ \([^)]*\)\)\[(\w+)\]", branches[: branches.index("o0[")])
    assert len(set(reads)) == 1
    assert len(reads) == 2


@pytest.mark.parametrize("wide", ["s64", "u32", "s32"])
@pytest.mark.parametrize("t", ["f32", "f64", "bf16"])
def test_gathers_by_wide_indices(wide: str, t: str) -> None:
    text = f"""
    x = {t}[40] parameter(0)
    i = {wide}[200,1] parameter(1)
    g = {t}[200] gather(x, i), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1,
      slice_sizes={{1}}
    ROOT r = {t}[200] add(g, g)
    """
    source = checked(text, Schedule(threads=0))
    assert ("(int32_t)" in source[source.index("o0[") - 400 : source.index("o0[")]) or wide != "s64"
