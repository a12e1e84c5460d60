"""Spaces of schedules: knobs that matter, and the order of their combinations."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product
from math import prod

import pytest

from compiler.codegen.schedules.schedule import FIELD_RANGES, Schedule
from compiler.codegen.schedules.schedule_space import Knob, ScheduleSpace, schedule_space, typical_values

KNOBS = (Knob("a", (0, 1, 2), 1), Knob("b", (5, 6), 5), Knob("c", (1, 2, 4, 8), 8))


@pytest.mark.parametrize("knobs", [(), KNOBS[:1], KNOBS[:2], KNOBS])
def test_every_combination_occurs_once_and_those_with_fewer_varied_knobs_come_first(knobs: tuple[Knob, ...]) -> None:
    space = ScheduleSpace(knobs)
    found = [space.combination(n) for n in range(space.size)]
    complete = {tuple(c.get(k.name, k.default) for k in knobs) for c in found}
    assert complete == set(product(*(k.values for k in knobs)))
    assert len(found) == prod(len(k.values) for k in knobs)
    sizes = [len(c) for c in found]
    assert sizes == sorted(sizes)
    assert space.variations == sum(s == 1 for s in sizes)
    assert all(c in space for c in found)
    with pytest.raises(IndexError, match=f"has {space.size}"):
        space.combination(space.size)


def test_a_space_contains_only_varied_values() -> None:
    space = ScheduleSpace(KNOBS)
    assert {} in space and {"b": 6} in space
    assert {"b": 5} not in space and {"b": 7} not in space and {"d": 1} not in space and 3 not in space


def test_a_huge_space_is_enumerated_lazily() -> None:
    space = ScheduleSpace(tuple(Knob(f"k{n}", tuple(range(8)), 0) for n in range(30)))
    assert space.size == 8**30
    assert space.combination(space.size - 1) == {f"k{n}": 7 for n in range(30)}


@pytest.mark.parametrize("values", [(1, 1), (1, 2)])
def test_a_knob_has_distinct_values_and_its_default_among_them(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="knob x"):
        Knob("x", values, 3 if values == (1, 2) else 1)


@pytest.mark.parametrize("name", FIELD_RANGES)
def test_typical_values_are_legal_few_and_contain_the_default(name: str) -> None:
    default = Schedule().value(name)
    values = typical_values(name, default)
    assert default in values and values == tuple(sorted(set(values)))
    assert len(values) <= 10 and all(v in FIELD_RANGES[name] for v in values)


def test_a_knob_without_effect_and_refused_or_equal_values_are_left_out() -> None:
    def generate(schedule: Schedule) -> Hashable | None:
        return None if schedule.tile == 128 else min(schedule.tile, 32)

    space = schedule_space(generate, Schedule())
    assert space.knobs == (Knob("tile", (0, 8, 16, 32), 32),)
    assert schedule_space(lambda _: None, Schedule()).size == 1


def test_only_fields_that_the_generation_reads_are_tried() -> None:
    changed: set[str] = set()

    def generate(schedule: Schedule) -> Hashable | None:
        if type(schedule) is Schedule:  # not the first, whose reads are noted
            changed.update(schedule.to_json())
        return schedule.columns, schedule.order.run

    assert [k.name for k in schedule_space(generate, Schedule()).knobs] == ["columns", "order.run"]
    assert "columns" in changed and "order.digit" in changed
    assert not any(name == "tile" or name.startswith(("product.", "attention.")) for name in changed)
