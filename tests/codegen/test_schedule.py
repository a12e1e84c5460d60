"""Schedules: which choices are valid, and how they reach the kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cpu.toolchain import balanced_groups
from compiler.codegen.languages import default_schedule
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.template_schedules import ProductSchedule
from compiler.errors import PlanError
from compiler.runtime.kernel_sites import KernelSite

TEXT = """
HloModule m
ENTRY main {
  a = f32[200,300] parameter(0)
  t = f32[300,200] transpose(a), dimensions={1,0}
  ROOT r = f32[300,200] negate(t)
}
"""


class Choose:
    """A kernel selector that makes the same choice for every kernel."""

    def __init__(self, **choice: int) -> None:
        self.choice = choice

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        return KernelChoice(schedule=self.choice)


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_a_choice_changes_only_the_fields_it_names(language: str) -> None:
    default = default_schedule(language)
    chosen = Schedule.from_json({"block": 64}, default)
    assert (chosen.block, chosen.tile, chosen.lanes) == (64, default.tile, default.lanes)
    assert Schedule.from_json({}, default) == default
    assert Schedule.from_json(Schedule(columns=16).to_json()) == Schedule(columns=16)
    blocks = Schedule.from_json({"product.row_block": 8, "product.tasks": 1, "tile": 8})
    assert blocks == Schedule(tile=8, product=ProductSchedule(row_block=8, tasks=1))
    assert blocks.to_json() == {"tile": 8, "product.row_block": 8, "product.tasks": 1}
    assert blocks.value("product.row_block") == 8


@pytest.mark.parametrize(
    "choice", [{"tiles": 3}, {"block": 42}, {"columns": 0}, {"lanes": -1}, {"tile": "8"}, {"product": 1}, {"flags": 99}]
)
def test_invalid_choices_are_refused(choice: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=next(iter(choice))):
        Schedule.from_json(choice)


def test_kernels_with_other_flags_are_other_kernels_and_built_apart(tmp_path: Path) -> None:
    plain, tuned = (compile(TEXT, kernel_selector=Choose(flags=n)) for n in (0, 1))
    (a,), (b,) = plain.kernels, tuned.kernels
    assert (a.flags, b.flags) == (0, 1) and a.symbol != b.symbol
    assert a.source.replace(a.symbol, "") == b.source.replace(b.symbol, "")
    assert [{k.flags for k in group} for group in balanced_groups([a, b], 1)] == [{0}, {1}]
    x = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    tuned.save(tmp_path / "tuned")
    assert load(tmp_path / "tuned").kernels[0].flags == 1
    for exe in (plain, tuned, load(tmp_path / "tuned")):
        np.testing.assert_array_equal(exe(x)[0], -x.T)


def test_the_choice_of_a_selector_reaches_the_kernel() -> None:
    assert compile(TEXT, backend="cuda", kernel_selector=Choose(block=64)).kernels[0].block == 64
    plain = compile(TEXT).kernels[0]
    assert plain.kind == "transpose"
    assert compile(TEXT, kernel_selector=Choose(tile=0)).kernels[0].kind == "loop"
    with pytest.raises(PlanError, match="columns"):
        compile(TEXT, kernel_selector=Choose(columns=0))


@pytest.mark.parametrize(("threads", "tasks"), [("1", "1"), ("wrong", "16")])
def test_products_are_divided_for_threads_that_programs_get(threads: str, tasks: str) -> None:
    code = "from compiler.codegen.languages import default_schedule; print(default_schedule('c').product.tasks)"
    environment = {**os.environ, "HLOGYM_NUM_THREADS": threads}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == tasks
