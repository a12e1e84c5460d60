"""Loops over pads and windows, whose edges are split out: the results, and which loops have no tests left."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.edges import MAX_STATEMENTS
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running
from tests.codegen.test_short_loops import SUM


def pad(shape: str, padding: str, to: str, dtype: str = "f32") -> str:
    return (
        f"x = {dtype}[{shape}] parameter(0)\n z = {dtype}[] constant(7)\n "
        f"ROOT r = {dtype}[{to}] pad(x, z), padding={padding}"
    )


def window(rows: int, columns: int, size: int, stride: int = 1, dilation: int = 0) -> str:
    """Return the sum of the slices under each element of a window over a padded, dilated array."""
    edge = size // 2
    height, width = (n + dilation * (n - 1) + 2 * edge for n in (rows, columns))
    out = [(n - size) // stride + 1 for n in (height, width)]
    lines = [
        f"x = f32[3,{rows},{columns}] parameter(0)\n z = f32[] constant(0)",
        f"p = f32[3,{height},{width}] pad(x, z), padding=0_0x{edge}_{edge}_{dilation}x{edge}_{edge}_{dilation}",
    ]
    to = f"f32[3,{out[0]},{out[1]}]"
    for n, (a, b) in enumerate(itertools.product(range(size), repeat=2)):
        last = [s + (k - 1) * stride + 1 for s, k in zip((a, b), out, strict=True)]
        lines.append(f"s{n} = {to} slice(p), slice={{[0:3],[{a}:{last[0]}:{stride}],[{b}:{last[1]}:{stride}]}}")
        if n:
            root = "ROOT " if n == size * size - 1 else ""
            lines.append(f"{root}a{n} = {to} add({'s0' if n == 1 else f'a{n - 1}'}, s{n})")
    return "\n".join(lines)


def wavelet(columns: int, levels: int) -> str:
    """Return levels of a wavelet: sums of pairs, followed by their differences."""
    half, lines = columns // 2, [f"x0 = f32[40,{columns}] parameter(0)"]
    for n in range(levels):
        root = "ROOT " if n == levels - 1 else ""
        lines += [
            f"e{n} = f32[40,{half}] slice(x{n}), slice={{[0:40], [0:{columns}:2]}}",
            f"o{n} = f32[40,{half}] slice(x{n}), slice={{[0:40], [1:{columns}:2]}}",
            f"s{n} = f32[40,{half}] add(e{n}, o{n})",
            f"d{n} = f32[40,{half}] subtract(e{n}, o{n})",
            f"{root}x{n + 1} = f32[40,{columns}] concatenate(s{n}, d{n}), dimensions={{1}}",
        ]
    return "\n".join(lines)


def joined_rows(arrays: int, columns: int) -> str:
    """Return rows of several arrays, joined in each of 5 examples; the first is computed, the others are copied."""
    lines = [f"x{k} = f32[5,1,{columns}] parameter({k})" for k in range(arrays)]
    names = ", ".join(["e", *(f"x{k}" for k in range(1, arrays))])
    lines += [
        f"e = f32[5,1,{columns}] multiply(x0, x1)",
        f"c = f32[5,{arrays},{columns}] concatenate({names}), dimensions={{1}}",
        f"y = f32[5,{arrays},{columns}] parameter({arrays})",
        f"ROOT r = f32[5,{arrays},{columns}] add(c, y)",
    ]
    return "\n".join(lines)


PROGRAMS = {
    "joined rows": joined_rows(9, 70),
    "wavelet of short rows": wavelet(48, 2),
    "pad": pad("5,60", "1_2x3_4", "8,67"),
    "pad of bf16": pad("5,60", "1_2x3_4", "8,67", "bf16"),
    "pad of f16": pad("5,60", "1_2x3_4", "8,67", "f16"),
    "pad of integers": pad("5,60", "1_2x3_4", "8,67", "s8"),
    "negative pad": pad("9,70", "-1_2x-3_4", "10,71"),
    "dilated pad": pad("7,33", "1_1_1x0_2_2", "15,99"),
    "dilated pad with a rest": pad("7,33", "1_1_1x1_3_2", "15,101"),
    "dilated by five": pad("40", "0_0_4", "196"),
    "one dimension": pad("100", "20_30", "150"),
    "window": window(40, 50, 3),
    "large window": window(40, 50, 5),
    "strided window": window(40, 51, 3, stride=2),
    "gradient of a window": window(20, 27, 2, dilation=1),
    "short rows": window(20, 9, 3),
    "chosen start": """
        x = f32[64,80] parameter(0)
        i = s32[] parameter(1)
        z = f32[] constant(1)
        k = s32[] constant(0)
        s = f32[30,50] dynamic-slice(x, i, k), dynamic_slice_sizes={30,50}
        e = f32[30,50] exponential(s)
        ROOT r = f32[34,60] pad(e, z), padding=2_2x4_6
        """,
    "pieces": """
        x = f32[6,40] parameter(0)
        y = f32[6,30] parameter(1)
        c = f32[6,70] concatenate(x, y), dimensions={1}
        n = f32[6,70] negate(c)
        z = f32[] constant(0)
        ROOT r = f32[8,75] pad(n, z), padding=1_1x2_3
        """,
    "halves of rolled rows": """
        x = f32[50,64] parameter(0)
        y = f32[50,64] parameter(1)
        last = f32[50,1] slice(x), slice={[0:50], [63:64]}
        before = f32[50,63] slice(x), slice={[0:50], [0:63]}
        right = f32[50,64] concatenate(last, before), dimensions={1}
        after = f32[50,63] slice(x), slice={[0:50], [1:64]}
        first = f32[50,1] slice(x), slice={[0:50], [0:1]}
        left = f32[50,64] concatenate(after, first), dimensions={1}
        beside = f32[50,64] add(left, right)
        change = f32[50,64] subtract(beside, x)
        scaled = f32[50,64] multiply(change, y)
        sum = f32[50,64] add(scaled, x)
        low = f32[50,32] slice(sum), slice={[0:50], [0:32]}
        high = f32[50,32] slice(sum), slice={[0:50], [32:64]}
        minus = f32[50,32] negate(high)
        halves = f32[50,64] concatenate(minus, low), dimensions={1}
        ROOT r = f32[50,64] tanh(halves)
        """,
    "position": """
        x = f32[6,40] parameter(0)
        z = f32[] constant(0)
        p = f32[6,44] pad(x, z), padding=0_0x2_2
        i = f32[6,44] iota(), iota_dimension=1
        q = f32[6,44] multiply(p, i)
        b = pred[6,40] compare(x, x), direction=EQ
        f = pred[] constant(false)
        o = pred[6,44] pad(b, f), padding=0_0x2_2
        ROOT r = f32[6,44] select(o, q, i)
        """,
}


@pytest.mark.parametrize("edges", [0, 1])
def test_results_are_those_of_the_interpreter(edges: int) -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for name, text in PROGRAMS.items():
        f = running.fused(text)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", Schedule(edges=edges))
    found = running.run_c(list(cases.values()))
    problems = {n: running.problem(r, c) for (n, c), r in zip(cases.items(), found, strict=True)}
    assert {n: p for n, p in problems.items() if p is not None} == {}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_pad_keeps_the_bits_of_narrow_floats(dtype: str) -> None:
    f = running.fused(pad("512,128", "0_0x1_1", "512,130", dtype))
    x = np.arange(1 << 16, dtype=np.uint16).reshape(512, 128)
    case = running.case_of(f, [x.view(f.parameter_shapes[0].element_type.dtype)], "c")
    ((found,),) = running.run_c([case])
    np.testing.assert_array_equal(found.view(np.uint16)[:, 1:-1], x)


def loops_of(text: str, schedule: Schedule | None = None, reducers: str = "") -> list[tuple[int, bool]]:
    """Return, for each loop over single elements, its extent and whether it tests an index."""
    body = bind_c(lower(running.fused(text, reducers)), schedule or Schedule()).body
    loops = [s for s in walk(body) if isinstance(s, lir.For)]
    leaves = [s for s in loops if not any(isinstance(x, lir.For) for x in walk(s.body))]
    return [(s.var.extent, any(_is_test(x) for x in walk(s.body))) for s in leaves]


def _is_test(s: lir.Stmt) -> bool:
    return isinstance(s, lir.Let) and isinstance(s.value, lir.IndexTest)


def test_the_middle_of_a_pad_has_no_tests() -> None:
    assert (60, False) in loops_of(PROGRAMS["pad"])
    assert not any(tests for _, tests in loops_of(PROGRAMS["pad"]))


@pytest.mark.parametrize(("arrays", "columns", "loops"), [(9, 70, 9), (16, 300, 16), (20, 300, 1), (2, 300, 1)])
def test_rows_of_many_arrays_have_a_loop_for_each(arrays: int, columns: int, loops: int) -> None:
    found = loops_of(joined_rows(arrays, columns))
    assert found == [(columns, loops == 1)] * loops


def test_short_rows_whose_padding_depends_on_an_outer_loop_have_a_branch_around_them() -> None:
    text = """
        x = f32[5,40,2] parameter(0)
        z = f32[] constant(7)
        p = f32[8,40,2] pad(x, z), padding=1_2x0_0x0_0
        y = f32[2] parameter(1)
        b = f32[8,40,2] broadcast(y), dimensions={2}
        ROOT r = f32[8,40,2] multiply(p, b)"""
    assert [tests for _, tests in loops_of(text)] == [False, False]


def test_a_dilated_pad_has_a_loop_over_groups() -> None:
    assert (32, False) in loops_of(PROGRAMS["dilated pad"])


def test_short_rows_read_a_copy_and_large_dilations_stay_whole() -> None:
    assert loops_of(PROGRAMS["short rows"])[-1] == (9, False)
    assert loops_of(PROGRAMS["dilated by five"]) == [(196, True)]


@pytest.mark.parametrize(("columns", "ranges"), [(48, 2), (32, 2), (24, 1)])
def test_ranges_of_half_a_vector_have_no_tests_where_elements_are_apart(columns: int, ranges: int) -> None:
    half = columns // 2
    assert loops_of(wavelet(columns, 2)) == [(half // ranges, ranges == 1)] * ranges


def test_indices_that_are_known_in_a_range_are_no_values() -> None:
    body = bind_c(lower(running.fused(PROGRAMS["halves of rolled rows"])), Schedule()).body
    assert not any(isinstance(s, lir.Let) and isinstance(s.value, lir.IndexValue) for s in walk(body))


def test_the_schedule_keeps_loops_whole() -> None:
    assert loops_of(PROGRAMS["pad"], Schedule(edges=0)) == [(67, True)]


def test_only_the_middle_rows_of_a_large_window_are_split() -> None:
    loops = loops_of(PROGRAMS["large window"])
    assert (46, False) in loops
    assert (50, True) in loops


def test_copies_of_large_windows_are_bounded() -> None:
    kernel = lower(running.fused(window(40, 50, 7)))
    whole = sum(1 for _ in walk(bind_c(kernel, Schedule(edges=0)).body))
    assert sum(1 for _ in walk(bind_c(kernel, Schedule()).body)) <= max(MAX_STATEMENTS, whole)


def test_a_row_with_a_long_function_whose_edge_is_one_element_stays_whole() -> None:
    text = """
    x = f32[50,20] parameter(0)
    z = f32[] constant(7)
    s = f32[50,19] slice(x), slice={[0:50], [0:19]}
    p = f32[50,20] pad(s, z), padding=0_0x1_0
    d = f32[50,20] subtract(x, p)
    ROOT r = f32[50,20] exponential(d)
    """
    assert loops_of(text) == [(16, True), (4, True)]


@pytest.mark.parametrize("n", [3, 4])
def test_rows_of_a_few_elements_are_split_from_the_first_or_last_row(n: int) -> None:
    text = f"""
    x = f32[64,{n}] parameter(0)
    z = f32[] constant(0)
    a = f32[63,{n}] slice(x), slice={{[1:64], [0:{n}]}}
    b = f32[1,{n}] slice(x), slice={{[0:1], [0:{n}]}}
    c = f32[64,{n}] concatenate(a, b), dimensions={{0}}
    d = f32[64,{n}] subtract(c, x)
    q = f32[64,{n}] multiply(d, d)
    s = f32[64] reduce(q, z), dimensions={{1}}, to_apply=add_f32
    w = f32[64] sqrt(s)
    o = f32[64,{n}] broadcast(w), dimensions={{0}}
    ROOT r = f32[64,{n}] divide(d, o)
    """
    found = loops_of(text, reducers=SUM)
    assert 63 in {n for n, _ in found}
    assert not any(has_test for _, has_test in found)
