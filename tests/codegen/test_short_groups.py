"""Loops that join or divide short groups of elements: the results, and which run over whole groups."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import For, LoopKind
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running


def joined(t: str, n: int, rows: int, group: int) -> str:
    """Return planes that become groups of adjacent elements, each plus a number of its plane."""
    result = f"{t}[{n},{rows},{group}]"
    return (
        f"x = {t}[{n},{group},{rows}] parameter(0)\n w = {t}[{group}] parameter(1)\n"
        f"b = {result} broadcast(w), dimensions={{2}}\n t = {result} transpose(x), dimensions={{0,2,1}}\n"
        f"ROOT r = {result} add(t, b)"
    )


def divided(t: str, n: int, rows: int, group: int, first: int = 0) -> str:
    """Return the elements of groups from the given one on as planes, each plus a number of its plane."""
    result = f"{t}[{n},{group - first},{rows}]"
    return (
        f"x = {t}[{n},{rows},{group}] parameter(0)\n w = {t}[{group - first}] parameter(1)\n"
        f"s = {t}[{n},{rows},{group - first}] slice(x), slice={{[0:{n}],[0:{rows}],[{first}:{group}]}}\n"
        f"b = {result} broadcast(w), dimensions={{1}}\n t = {result} transpose(s), dimensions={{0,2,1}}\n"
        f"ROOT r = {result} add(t, b)"
    )


def changed(t: str, n: int, rows: int, group: int, is_reversed: bool) -> str:
    """Return groups, in order or reversed, each plus a number of its row of groups."""
    shape = f"{t}[{n},{rows},{group}]"
    return (
        f"x = {shape} parameter(0)\n w = {t}[{n},{group}] parameter(1)\n b = {shape} broadcast(w), dimensions={{0,2}}\n"
        f"y = {shape} {'reverse(x), dimensions={2}' if is_reversed else 'abs(x)'}\n ROOT r = {shape} add(y, b)"
    )


def test_results_are_those_of_the_interpreter() -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for t in ("u8", "s16", "f32", "f64", "pred", "bf16"):
        for n, rows, group in ((1, 300, 3), (5, 67, 2), (3, 40, 4), (70, 16, 8), (2, 1000, 8), (2, 64, 5)):
            for make in (joined, divided):
                text = make(t, n, rows, group)
                text = text.replace("add(", "or(") if t == "pred" else text
                cases[f"{make.__name__} {t} {n} {rows} {group}"] = text
    for t, rows, group in (("s8", 50, 2), ("s16", 67, 3), ("f32", 30, 2), ("s8", 33, 8)):
        for is_reversed in (False, True):
            cases[f"changed {t} {rows} {group} {is_reversed}"] = changed(t, 7, rows, group, is_reversed)
    cases["without alpha"] = divided("u8", 3, 70, 4, first=1)
    built = {}
    for name, text in cases.items():
        f = running.fused(text)
        built[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c")
    found = running.run_c(list(built.values()))
    problems = {n: running.problem(r, c) for (n, c), r in zip(built.items(), found, strict=True)}
    assert {n: p for n, p in problems.items() if p is not None} == {}


def stores_per_iteration(text: str, schedule: Schedule) -> list[int]:
    """Return how many elements the vector loops of a kernel store in an iteration."""
    kernel = bind_c(lower(running.fused(text)), schedule)
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    return [sum(isinstance(s, lir.Store) for s in loop.body) for loop in loops]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (joined("u8", 8, 1000, 3), 3),
        (joined("f32", 8, 1000, 8), 8),
        (joined("f64", 8, 1000, 4), 4),
        (joined("f32", 8, 1024, 5), 5),  # elements whose distance is a power of two
        (divided("u8", 8, 1000, 3), 3),
        (divided("f64", 8, 1000, 4), 4),
        (divided("u8", 8, 1000, 4, first=1), 3),
        (changed("s8", 7, 50, 4, False), 4),
        (changed("s8", 7, 50, 8, True), 8),
        (changed("s8", 7, 50, 8, False), 1),  # half a vector
        (changed("f32", 7, 50, 4, True), 1),
        (joined("f32", 8, 1000, 5), 1),  # not shuffled
        (joined("f64", 8, 1000, 8), 1),  # large
        (joined("f32", 8, 1000, 12), 1),  # long
        (divided("u8", 8, 1000, 6), 1),
    ],
)
def test_which_loops_run_over_groups(text: str, expected: int) -> None:
    assert set(stores_per_iteration(text, Schedule())) == {expected}


@pytest.mark.parametrize("off", [{"short": 0}, {"vector": 0}])
def test_a_schedule_without_unrolling_or_vectors_has_no_groups(off: dict[str, int]) -> None:
    assert 3 not in stores_per_iteration(joined("u8", 8, 1000, 3), Schedule().with_values(off))
