"""Estimated times of loops, and which of them threads share by them."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.loop_prices import loop_nanoseconds
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running

ONE_THREAD = Schedule(threads=0)


def _loop(op: str, elements: int, operands: int = 1) -> str:
    names = ["a", "b"][:operands]
    parameters = "\n".join(f"{x} = f32[{elements}] parameter({n})" for n, x in enumerate(names))
    return f"{parameters}\n ROOT r = f32[{elements}] {op}({', '.join(names)})"


def _nanoseconds(text: str, schedule: Schedule = ONE_THREAD) -> float:
    kernel = bind_c(lower(running.fused(text), schedule), schedule)
    return loop_nanoseconds(kernel.body, kernel.arguments)


def _source(text: str, schedule: Schedule | None = None) -> str:
    return running.kernel_of(running.fused(text), "c", schedule).source


@pytest.mark.parametrize("schedule", [ONE_THREAD, Schedule(threads=0, vector=0)], ids=["vectors", "scalars"])
@pytest.mark.parametrize(("op", "operands"), [("add", 2), ("exponential", 1), ("divide", 2)])
def test_twice_the_elements_take_about_twice_as_long(op: str, operands: int, schedule: Schedule) -> None:
    one, two = (_nanoseconds(_loop(op, n, operands), schedule) for n in (16384, 32768))
    assert two / one == pytest.approx(2, rel=0.02)


def test_a_transcendental_takes_longer_than_a_division_and_that_longer_than_an_addition() -> None:
    add, divide, sine = (_nanoseconds(_loop(op, 8192, n)) for op, n in (("add", 2), ("divide", 2), ("sine", 1)))
    assert add < divide < sine


def test_vectors_are_faster_than_scalars() -> None:
    text = _loop("exponential", 8192)
    assert _nanoseconds(text) < _nanoseconds(text, Schedule(threads=0, vector=0))


def test_wider_elements_take_longer() -> None:
    text = _loop("add", 8192, 2)
    assert _nanoseconds(text) < _nanoseconds(text.replace("f32", "f64"))


@pytest.mark.parametrize(
    ("op", "elements", "call"),
    [
        ("negate", 64, None),
        ("negate", 4096, None),
        ("exponential", 4096, None),
        ("exponential", 20_000, "hlogym_parallel_brief"),
        ("negate", 20_000_000, "hlogym_parallel"),
        ("exponential", 20_000_000, "hlogym_parallel"),
    ],
)
def test_threads_share_long_loops_and_are_not_woken_for_brief_ones(op: str, elements: int, call: str | None) -> None:
    assert re.findall(r"hlogym_parallel\w*", _source(_loop(op, elements))) == ([] if call is None else [call])


def test_a_schedule_decides_against_the_estimate() -> None:
    assert "hlogym_parallel" not in _source(_loop("exponential", 20_000_000), ONE_THREAD)
    short = _loop("exponential", 4096)
    assert "hlogym_parallel" not in _source(short)
    assert "hlogym_parallel" in _source(short, Schedule(grain=1000))


def test_a_brief_loop_has_tasks_for_several_threads() -> None:
    found = re.search(r"hlogym_parallel_brief\(\w+, &shared, (\d+), (\d+)\)", _source(_loop("exponential", 20_000)))
    assert found is not None
    items, grain = map(int, found.groups())
    assert 4 * grain <= items
