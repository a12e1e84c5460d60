"""Deviations from the default plan are legal plans, and the local search over them finds what is faster."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.deviations import GROUPS, Deviation, LocalSearch, build
from compiler.api import compile as compile_hlo
from compiler.plan import CompilationPlan
from compiler.text import parse
from env.measurement import Measurement
from env.reference import Reference
from env.suites import load_suite
from tests.agents.test_kernel_search import _Timed
from tests.env.scripted import taking
from tests.env.small_programs import CHAIN, LOOP
from tests.env.test_kernels import COLUMNS


def test_no_deviation_is_the_default_plan() -> None:
    for text in (CHAIN, LOOP, COLUMNS):
        found = build(parse(text), "cpu", Deviation())
        symbols = [k.symbol for k in compile_hlo(text, plan=found.plan).kernels]
        assert symbols == [k.symbol for k in compile_hlo(text).kernels]


class _Recorder(_Timed):
    def __init__(self) -> None:
        super().__init__(lambda _: 1.0)
        self.plans: list[CompilationPlan] = []

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, remeasure
        assert plan is not None
        self.plans.append(plan)
        return taking(0.9 ** len(self.plans))  # each plan is faster, so that deviations pile up


@pytest.mark.parametrize("group", [*GROUPS, "all"])
def test_deviations_compute_the_same(group: str, tmp_path: Path) -> None:
    text = LOOP if group == "loops" else CHAIN
    (tmp_path / "p.hlo").write_text(text)
    measurer = _Recorder()
    groups = tuple(g for g in GROUPS if group in (g, "all"))
    search = LocalSearch(parse(text), load_suite(tmp_path).programs[0], measurer, groups)
    search.run(4)
    assert search.measurements == len(measurer.plans) <= 4
    assert measurer.plans or group == "expansions"  # there is no such decision in this program
    assert len({p.to_json() for p in measurer.plans}) == len(measurer.plans)
    module = parse(text)
    inputs = [np.random.default_rng(n).normal(size=s.dimensions).astype(s.dtype)
              for n, s in enumerate(module.entry.parameter_shapes)]  # fmt: skip
    reference = Reference.of(module, inputs)
    for plan in measurer.plans:
        assert reference.difference(compile_hlo(text, plan=plan)(*inputs)) is None


def test_the_search_climbs_to_the_fastest_kernels(tmp_path: Path) -> None:
    (tmp_path / "columns.hlo").write_text(COLUMNS)
    program = load_suite(tmp_path).programs[0]
    measurer = _Timed(lambda k: (2 + abs(k.get("columns", 256) - 64) / 64 + abs(k.get("tile", 32) - 8)) / 30)
    search = LocalSearch(parse(COLUMNS), program, measurer, ("kernels",))
    search.run(150)
    best = search.finalists.plans[0]
    knobs = {k: v for row in best.kernels.values() for c in row.values() for k, v in c.schedule.items()}
    assert (knobs["columns"], knobs["tile"]) == (64, 8)
