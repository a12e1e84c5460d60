"""Windows over small padded planes, which are copied with their padding: the results, and which kernels copy them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

ADD = "sum { a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT s = {t}[] add(a, b) }"


def window(
    rows: int, columns: int, size: int, stride: int = 1, padding: tuple[int, int] = (1, 1), t: str = "f32",
    value: str = "0", ends: str = "", joined: str = "add",
) -> str:  # fmt: skip
    """Return the exponentials of combined windows of [3, 4, rows, columns], and `ends` with other roots."""
    before, after = padding
    height, width = rows + before + after, columns + before + after
    out = [(n - size) // stride + 1 for n in (height, width)]
    to = f"{t}[3,4,{out[0]},{out[1]}]"
    lines = [
        f"x = {t}[3,4,{rows},{columns}] parameter(0)\n z = {t}[] constant({value})",
        f"p = {t}[3,4,{height},{width}] pad(x, z), padding=0_0x0_0x{before}_{after}x{before}_{after}",
    ]
    for n, (a, b) in enumerate(itertools.product(range(size), repeat=2)):
        spans = [f"[{k}:{k + (m - 1) * stride + 1}:{stride}]" for k, m in zip((a, b), out, strict=True)]
        lines.append(f"s{n} = {to} slice(p), slice={{[0:3],[0:4],{','.join(spans)}}}")
        if n:
            lines.append(f"a{n} = {to} {joined}({'s0' if n == 1 else f'a{n - 1}'}, s{n})")
    last = f"a{size * size - 1}"
    if not ends:
        return "\n".join([*lines, f"ROOT r = {to} tanh({last})"])
    lines += [f"e = {to} tanh({last})", f"i = {t}[] constant(0)"]
    lines += [f"m = {t}[3,4] reduce(e, i), dimensions={{2,3}}, to_apply=sum"]
    root = f"ROOT r = ({t}[3,4], {to}) tuple(m, e)" if ends == "both" else f"ROOT r = {t}[3,4] negate(m)"
    return "\n".join([*lines, root])


def checked(text: str, t: str = "f32", schedule: Schedule | None = None) -> str:
    """Return the source of the kernel of a computation, after comparing it with the interpreter."""
    fused = running.fused(text, ADD.replace("{t}", t))
    case = running.case_of(fused, running.random_args(fused.parameter_shapes, np.random.default_rng(0)), "c", schedule)
    assert running.problem(running.run_c([case])[0], case) is None
    return case.spec.source


@pytest.mark.parametrize("ends", ["", "sum", "both"])
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, (1, 1)), (3, 2, (1, 1)), (5, 2, (2, 1)), (4, 3, (1, 2))]
)
def test_results_are_those_of_the_interpreter(size: int, stride: int, padding: tuple[int, int], ends: str) -> None:
    assert "plane0" in checked(window(16, 16, size, stride, padding, ends=ends))
    for rows, columns in ((9, 13), (7, 30)):
        checked(window(rows, columns, size, stride, padding, ends=ends))


@pytest.mark.parametrize("t", ["f64", "bf16", "f16", "s32"])
def test_other_types(t: str) -> None:
    text = window(12, 14, 3, 2, t=t, ends="both")
    checked(text.replace("tanh", "negate") if t == "s32" else text, t)


def test_other_padding() -> None:
    assert "plane0" in checked(window(12, 14, 3, 2, value="-inf", joined="maximum"))
    assert "plane0" in checked(window(12, 14, 3, value="2.5", ends="both"))


@pytest.mark.parametrize("padding", [(0, 2), (2, 0), (3, 3), (-1, 2)])
def test_padding_of_some_sides(padding: tuple[int, int]) -> None:
    checked(window(15, 18, 3, 2, padding, ends="both"))


def test_reductions_and_stores_share_what_windows_compute() -> None:
    source = checked(window(16, 16, 3, 2, ends="both"))
    assert source.count(" tanh_f32(v") == 1
    assert "plane1" not in source


def test_two_paddings_are_two_planes() -> None:
    text = window(16, 16, 3, 2, ends="sum").replace("s4 =", "y = f32[] constant(1)\n q = f32[3,4,18,18] pad(x, y), "
                                                    "padding=0_0x0_0x1_1x1_1\n s4 =")  # fmt: skip
    text = "\n".join(line.replace("slice(p)", "slice(q)") if line.startswith(("s5", "s6", "s7", "s8")) else line
                     for line in text.splitlines())  # fmt: skip
    checked(text)


def test_large_planes_are_not_copied() -> None:
    assert "plane0" not in checked(window(90, 90, 3, 2, ends="both"))


def test_loops_whose_edges_are_split_copy_nothing() -> None:
    assert "plane0" not in checked(window(40, 48, 3).replace("tanh", "negate"))
    assert "plane0" not in checked(window(16, 16, 3, 2), schedule=Schedule(edges=0))


def test_a_plane_of_a_single_image() -> None:
    text = window(16, 16, 3, 2).replace("[3,4,", "[1,1,").replace("[0:3],[0:4]", "[0:1],[0:1]")
    checked(text)


@pytest.mark.parametrize("columns", [7, 13, 30])
def test_functions_of_short_rows_are_one_loop(columns: int) -> None:
    for ends in ("", "sum", "both"):
        # The sums of the windows lie in an array.
        assert f"[{6 * columns}]" in checked(window(6, columns, 3, ends=ends))


def test_functions_of_rows_of_whole_vectors_stay_beside_their_windows() -> None:
    assert "[256]" not in checked(window(16, 16, 3))


def test_other_schedules() -> None:
    text = window(14, 14, 3, ends="both")
    assert "plane0" not in checked(text, schedule=Schedule(edges=0))
    assert "[196]" not in checked(text, schedule=Schedule(stages=0))
    for schedule in (Schedule(vector=0), Schedule(cache=0), Schedule(threads=0), Schedule(lanes=1)):
        checked(text, schedule=schedule)
