"""Selects by the condition of a row: where rows branch, and results."""

from __future__ import annotations

import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.loop_transforms import collapse
from compiler.codegen.schedules.row_branches import branch_on_rows
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running
from tests.codegen.test_stages import checked

SELECTED = """
    x = f32[{m},{n}] parameter(0)
    mask = pred[{m}] parameter(1)
    rows = pred[{m},{n}] broadcast(mask), dimensions={{0}}
    e = f32[{m},{n}] {function}(x)
    f = f32[{m},{n}] multiply(e, x)
    ROOT r = f32[{m},{n}] select(rows, f, x)
"""
NESTED = """
    x = f32[{m},{n}] parameter(0)
    low = pred[{m}] parameter(1)
    high = pred[{m}] parameter(2)
    lows = pred[{m},{n}] broadcast(low), dimensions={{0}}
    highs = pred[{m},{n}] broadcast(high), dimensions={{0}}
    s = f32[{m},{n}] sine(x)
    e = f32[{m},{n}] exponential(x)
    l = f32[{m},{n}] log(s)
    inner = f32[{m},{n}] select(highs, e, l)
    both = f32[{m},{n}] select(lows, inner, s)
    ROOT r = f32[{m},{n}] add(both, x)
"""
FLIPPED = """
    x = u8[{m},{h},{w},{c}] parameter(0)
    mask = pred[{m}] parameter(1)
    images = pred[{m},{h},{w},{c}] broadcast(mask), dimensions={{0}}
    back = u8[{m},{h},{w},{c}] reverse(x), dimensions={{2}}
    chosen = u8[{m},{h},{w},{c}] select(images, back, x)
    wide = f32[{m},{h},{w},{c}] convert(chosen)
    scale = f32[{c}] parameter(2)
    scales = f32[{m},{h},{w},{c}] broadcast(scale), dimensions={{3}}
    ROOT r = f32[{m},{h},{w},{c}] multiply(wide, scales)
"""
SCHEDULES = (Schedule(), Schedule(threads=0), Schedule(stages=0, hoist=0), Schedule(vector=256), Schedule(edges=0))


def branches(text: str) -> int:
    """Return how many branches with loops inside there are."""
    body = branch_on_rows(collapse(lower(running.fused(text)).body))
    return sum(isinstance(s, lir.If) and any(isinstance(x, lir.For) for x in walk(s.then)) for s in walk(body))


@pytest.mark.parametrize(("m", "n"), [(7, 100), (20, 1000), (3, 64)])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("function", ["exponential", "log-plus-one", "tanh", "negate"])
def test_rows_that_a_mask_selects(m: int, n: int, schedule: Schedule, function: str) -> None:
    checked(SELECTED.format(m=m, n=n, function=function), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_with_two_masks(schedule: Schedule) -> None:
    checked(NESTED.format(m=9, n=130), schedule)


@pytest.mark.parametrize("c", [1, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_images_that_are_flipped(c: int, schedule: Schedule) -> None:
    checked(FLIPPED.format(m=6, h=8, w=16, c=c), schedule)


def test_rows_branch_where_that_saves_work() -> None:
    assert branches(SELECTED.format(m=20, n=100, function="exponential")) == 1
    assert branches(NESTED.format(m=20, n=100)) == 2
    assert branches(FLIPPED.format(m=6, h=8, w=16, c=3)) == 1


def test_short_rows_and_rows_that_save_little_do_not_branch() -> None:
    assert branches(SELECTED.format(m=20, n=8, function="exponential")) == 0
    assert branches(SELECTED.format(m=20, n=60, function="negate")) == 0


def test_rows_that_are_only_chosen_do_not_branch() -> None:
    text = """
    x = f32[20,1000] parameter(0)
    y = f32[20,1000] parameter(1)
    mask = pred[20] parameter(2)
    rows = pred[20,1000] broadcast(mask), dimensions={0}
    ROOT r = f32[20,1000] select(rows, x, y)
    """
    assert branches(text) == 0


def test_columns_that_a_reduction_chooses_do_not_branch() -> None:
    text = """
    x = f32[300,32] parameter(0)
    odd = pred[300,32] compare(x, x), direction=NE
    none = pred[] constant(false)
    any = pred[32] reduce(odd, none), dimensions={0}, to_apply=either
    columns = pred[300,32] broadcast(any), dimensions={1}
    e = f32[300,32] exponential(x)
    ROOT r = f32[300,32] select(columns, x, e)
    """
    either = "either { a = pred[] parameter(0) b = pred[] parameter(1) ROOT s = pred[] or(a, b) }"
    assert "_then" not in checked(text, Schedule(threads=0), either)


def test_a_select_of_each_element_does_not_branch() -> None:
    text = SELECTED.format(m=20, n=100, function="exponential").replace(
        "mask = pred[20] parameter(1)\n    rows = pred[20,100] broadcast(mask), dimensions={0}",
        "rows = pred[20,100] parameter(1)",
    )
    assert branches(text) == 0


def test_a_condition_of_the_whole_kernel_does_not_branch() -> None:
    text = SELECTED.format(m=20, n=100, function="exponential").replace(
        "mask = pred[20] parameter(1)\n    rows = pred[20,100] broadcast(mask), dimensions={0}",
        "mask = pred[] parameter(1)\n    rows = pred[20,100] broadcast(mask), dimensions={}",
    )
    assert branches(text) == 0


def test_a_short_loop_with_a_function_and_the_condition_of_a_row_runs_in_vectors() -> None:
    source = checked(SELECTED.format(m=20, n=25, function="log-plus-one"), Schedule(threads=0, short=0))
    assert "choose_float(" in source
