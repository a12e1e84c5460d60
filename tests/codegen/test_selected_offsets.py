"""Branches between elements of one array whose test is the same for a whole vector: one load at a selected offset."""

from __future__ import annotations

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

PLAIN = Schedule(threads=0, tile=0, stages=0, edges=0)
ROLLED = """
    x = f32[{n},{m}] parameter(0)
    last = f32[{k},{m}] slice(x), slice={{[{start}:{n}], [0:{m}]}}
    rest = f32[{start},{m}] slice(x), slice={{[0:{start}], [0:{m}]}}
    rolled = f32[{n},{m}] concatenate(last, rest), dimensions={{0}}
    ROOT r = f32[{n},{m}] subtract(x, rolled)
"""


@pytest.mark.parametrize("n, m, k", [(16, 16, 1), (7, 100, 3), (2, 33, 1)])
@pytest.mark.parametrize("schedule", [PLAIN, Schedule()])
def test_rolls_along_rows_select_an_offset(n: int, m: int, k: int, schedule: Schedule) -> None:
    source = checked(ROLLED.format(n=n, m=m, k=k, start=n - k), schedule)
    assert "if (" not in source


def test_a_roll_along_the_vector_is_a_branch() -> None:
    text = """
    x = f32[7,12] parameter(0)
    last = f32[7,2] slice(x), slice={[0:7], [10:12]}
    rest = f32[7,10] slice(x), slice={[0:7], [0:10]}
    rolled = f32[7,12] concatenate(last, rest), dimensions={1}
    ROOT r = f32[7,12] subtract(x, rolled)
    """
    assert "if (" in checked(text, PLAIN)


def test_rows_of_several_arrays_are_a_branch() -> None:
    text = """
    x = f32[7,12] parameter(0)
    y = f32[3,12] parameter(1)
    both = f32[10,12] concatenate(x, y), dimensions={0}
    w = f32[10,12] parameter(2)
    ROOT r = f32[10,12] multiply(both, w)
    """
    assert "if (" in checked(text, PLAIN)


def test_several_ranges_of_rows_are_selected_one_after_another() -> None:
    text = """
    x = f32[9,20] parameter(0)
    a = f32[2,20] slice(x), slice={[7:9], [0:20]}
    b = f32[4,20] slice(x), slice={[0:4], [0:20]}
    c = f32[3,20] slice(x), slice={[5:8], [0:20]}
    moved = f32[9,20] concatenate(a, b, c), dimensions={0}
    ROOT r = f32[9,20] subtract(x, moved)
    """
    assert "if (" not in checked(text, PLAIN)


def test_a_distance_that_changes_within_the_vector_is_a_branch() -> None:
    text = """
    x = f32[6,20] parameter(0)
    a = f32[2,20] slice(x), slice={[4:6], [0:20]}
    turned = f32[2,20] reverse(a), dimensions={1}
    b = f32[4,20] slice(x), slice={[0:4], [0:20]}
    moved = f32[6,20] concatenate(turned, b), dimensions={0}
    ROOT r = f32[6,20] subtract(x, moved)
    """
    assert "if (" in checked(text, PLAIN)
