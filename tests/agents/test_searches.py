"""Searches over all decisions: their plans are legal, they find what is faster, and they keep to their budgets."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.deviations import GROUPS, Deviation, PlanBuilder
from agents.guided import SURE, Guided, _Proposal, _Step
from agents.kernel_arms import Belief
from agents.plan_search import PlanSearch, learned_costs, learned_seconds
from agents.plan_space import PlanSpace, read_groups
from agents.search import NoPlanError, Starts, find_plan
from agents.search_run import Budget, SearchRun, run_search
from agents.searches import SEARCHES, describe_searches, make_search
from compiler.api import compile as compile_hlo
from compiler.errors import OptionError, UnknownNameError
from compiler.fusion.policies import NoFusion, RandomFusion
from compiler.learned.kernel_calibration import Calibration, store_calibration
from compiler.learned.kernel_model import shipped_kernel_cost
from compiler.passes import PASSES, PassPipeline
from compiler.plan import CompilationPlan
from compiler.policy import Policy
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import KernelTime, Measurement, Measurer
from env.reference import Reference
from env.service import MeasuringService
from env.suites import Program, load_suite
from tests.env.scripted import FAILED, taking
from tests.env.small_programs import CHAIN, LOOP
from tests.env.test_kernels import COLUMNS

Knobs = Mapping[str, int]


class _Timed(Measurer):
    """Times the plans of a program by a function of the knobs of their kernels, and keeps them."""

    def __init__(self, text: str, times: Callable[[Knobs], float | None]) -> None:
        super().__init__()
        self.text, self.times = text, times
        self.plans: list[CompilationPlan] = []

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, remeasure
        if plan is not None:
            self.plans.append(plan)
        seconds = self.times({} if plan is None else _schedule(plan))
        return FAILED if seconds is None else replace(taking(seconds), kernels=(KernelTime("s", "k", 1.0, seconds),))


def _distance(knobs: Knobs) -> float:
    """Return a time that is least, 2/6.5, for 64 columns and tiles of 8; the default plan takes 1."""
    return (2 + abs(knobs.get("columns", 256) - 64) / 64 + abs(knobs.get("tile", 32) - 8) / 16) / 6.5


def _program(folder: Path, text: str) -> Program:
    (folder / "p.hlo").write_text(text)
    return load_suite(folder).programs[0]


def _run(search: PlanSearch, measurer: _Timed, folder: Path, budget: Budget, **options: Any) -> SearchRun:
    builder = PlanBuilder(parse(measurer.text), "cpu")
    return run_search(search, builder, _program(folder, measurer.text), measurer, budget, **options)


def _schedule(plan: CompilationPlan) -> dict[str, int]:
    return {k: v for row in plan.kernels.values() for c in row.values() for k, v in c.schedule.items()}


def _schedules(plan: CompilationPlan) -> list[Knobs]:
    return [c.schedule for row in plan.kernels.values() for c in row.values()]


@pytest.fixture
def columns() -> _Timed:
    return _Timed(COLUMNS, _distance)


# ---- plans


def test_no_deviation_is_the_default_plan() -> None:
    for text in (CHAIN, LOOP, COLUMNS):
        found = PlanBuilder(parse(text), "cpu").build(Deviation())
        symbols = [k.symbol for k in compile_hlo(text, plan=found.plan).kernels]
        assert symbols == [k.symbol for k in compile_hlo(text).kernels]


def test_a_kept_compilation_leads_to_the_same_plans_as_a_new_one() -> None:
    builder = PlanBuilder(parse(CHAIN), "cpu")
    space = PlanSpace(builder, GROUPS, seed=1)
    for n in range(20):
        built = space.walked(space.start, n % 5)
        again = PlanBuilder(parse(CHAIN), "cpu").build(built.deviation)
        assert again.text == built.text


def test_a_plan_starts_from_the_decisions_of_a_policy() -> None:
    def policy(seed: int | None) -> Policy:
        return Policy("drawn", fusion=NoFusion() if seed is None else RandomFusion(seed, max_actions=1))

    builder = PlanBuilder(parse(CHAIN), "cpu", policy)
    assert len(builder.build(Deviation()).plan.steps) == 0
    assert len(builder.build(Deviation(draw=3)).plan.steps) == 1
    assert len(PlanSpace(builder, GROUPS).start.possible) > 0


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("group", ["loops", "all"])
def test_proposed_plans_are_different_and_compute_the_same(name: str, group: str, tmp_path: Path) -> None:
    text = LOOP if group == "loops" else CHAIN
    times = itertools.count(1)
    measurer = _Timed(text, lambda _: 0.9 ** next(times))  # each plan is faster, so that deviations pile up
    run = _run(make_search(f"{name}{{groups={group}}}", seed=2), measurer, tmp_path, Budget(4))
    assert 1 <= run.measurements == len(measurer.plans) <= 4
    counts = collections.Counter(p.to_json() for p in measurer.plans)
    assert set(counts.values()) <= ({1, SURE} if name == "guided" else {1})
    module = parse(text)
    inputs = [np.random.default_rng(n).normal(size=s.dimensions).astype(s.dtype)
              for n, s in enumerate(module.entry.parameter_shapes)]  # fmt: skip
    reference = Reference.of(module, inputs)
    for plan in measurer.plans:
        assert reference.difference(compile_hlo(text, plan=plan)(*inputs)) is None


def test_a_crossing_takes_each_decision_from_one_of_two_plans() -> None:
    builder = PlanBuilder(parse(COLUMNS), "cpu")
    space = PlanSpace(builder, ("kernels",), seed=0)
    near = list(space.neighbours(space.start, {}))
    first = next(b for b in near if _schedule(b.plan) == {"columns": 64})
    second = next(b for b in near if _schedule(b.plan) == {"tile": 8})
    found = [space.crossed(first, second) for _ in range(20)]
    schedules = [tuple(sorted(_schedule(b.plan).items())) for b in found if b is not None]
    assert set(schedules) == {(), (("columns", 64),), (("tile", 8),), (("columns", 64), ("tile", 8))}


# ---- searches


@pytest.mark.parametrize("name", [n for n in SEARCHES if n != "random"])
def test_a_search_finds_fast_kernels(name: str, columns: _Timed, tmp_path: Path) -> None:
    run = _run(make_search(f"{name}{{groups=kernels}}", 0), columns, tmp_path, Budget(100))
    best = run.best()
    assert best is not None
    assert _distance(_schedule(best)) < 0.4
    assert best == run.finalists.plans[0]


def test_equal_seeds_give_equal_plans(tmp_path: Path) -> None:
    def plans(seed: int) -> list[str]:
        run = _run(make_search("evolution", seed), _Timed(COLUMNS, _distance), tmp_path, Budget(12))
        return [t.plan.to_json() for t in run.trials]

    assert plans(3) == plans(3) != plans(4)


def test_greedy_search_starts_with_the_heaviest_kernel_and_ends_where_nothing_is_faster(
    columns: _Timed, tmp_path: Path
) -> None:
    columns.times = lambda k: 1.0 / (1 + k.get("columns", 0))
    greedy = make_search("greedy{groups=kernels}")
    assert _schedule(_run(greedy, columns, tmp_path, Budget(1)).trials[0].plan).keys() == {"columns"}
    columns.times = lambda k: 0.995 if k else 1.0
    run = _run(make_search("greedy{groups=kernels}"), columns, tmp_path, Budget(1000))
    near = PlanSpace(PlanBuilder(parse(COLUMNS), "cpu"), ("kernels",))
    assert run.measurements == len(list(near.neighbours(near.start, {}))) < 1000


def test_failed_plans_are_counted_and_not_kept(columns: _Timed, tmp_path: Path) -> None:
    columns.times = lambda k: None if "tile" in k else _distance(k)
    run = _run(make_search("greedy{groups=kernels}"), columns, tmp_path, Budget(60))
    assert run.failures > 0
    assert "all wrong" in run.reason
    best = run.best()
    assert best is not None
    assert "tile" not in _schedule(best)
    assert _schedule(best)["columns"] == 64


def test_annealing_moves_to_a_slower_plan_while_it_is_hot(columns: _Timed, tmp_path: Path) -> None:
    columns.times = lambda k: 1.0 + 0.001 * len(k)
    hot = _run(make_search("annealing{groups=kernels,hot=1000,cold=1000}", 1), columns, tmp_path, Budget(10))
    cold = _run(make_search("annealing{groups=kernels,hot=1e-9,cold=1e-9}", 1), columns, tmp_path, Budget(10))
    assert max(len(_schedule(t.plan)) for t in hot.trials) > 1
    assert max(len(_schedule(t.plan)) for t in cold.trials) == 1


# ---- guided search


def _unfused(text: str) -> PlanBuilder:
    return PlanBuilder(parse(text), "cpu", lambda _: Policy("none", fusion=NoFusion()))


class _KernelTimes(_Timed):
    """Times each kernel by a function of its own knobs; the first measurement of the default plan has no kernels."""

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        executable = compile_hlo(self.text, plan=plan)
        if plan is not None:
            self.plans.append(plan)
        chosen = {} if plan is None else {name: c for row in plan.kernels.values() for name, c in row.items()}
        kernels = []
        for n, k in enumerate(executable.thunks):
            seconds = (1 + 0.1 * n) * (self.times(chosen[k.name].schedule if k.name in chosen else {}) or 0.0)
            kernels.append(KernelTime(k.name, k.key, 1.0, seconds))
        total = sum(k.seconds for k in kernels) / sum(1 + 0.1 * n for n in range(len(kernels)))
        return replace(taking(total), kernels=tuple(kernels) if plan is not None or remeasure else ())


def _by_unrolling(knobs: Knobs) -> float:
    """Return a time that is least, 0.4, for loops unrolled by 8 or more; the default plan takes 1."""
    return 1 - 0.2 * math.log2(min(knobs.get("unroll", 1), 8))


FOUR = """add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  z = f32[] constant(0)
  x = f32[512,700] parameter(0)
  p = f32[700] reduce(x, z), dimensions={0}, to_apply=add
  y = f32[512,800] parameter(1)
  q = f32[800] reduce(y, z), dimensions={0}, to_apply=add
  u = f32[512,900] parameter(2)
  r = f32[900] reduce(u, z), dimensions={0}, to_apply=add
  v = f32[512,1000] parameter(3)
  s = f32[1000] reduce(v, z), dimensions={0}, to_apply=add
  ROOT t = (f32[700], f32[800], f32[900], f32[1000]) tuple(p, q, r, s)
}"""


def test_guided_search_tries_choices_of_several_kernels_in_one_plan(tmp_path: Path) -> None:
    measurer = _KernelTimes(FOUR, _by_unrolling)
    run = _run(make_search("guided{groups=kernels}", 0), measurer, tmp_path, Budget(60))
    assert max(len(p.kernels.get("e", {})) for p in measurer.plans[:3]) > 1
    tried = [n for n, p in enumerate(measurer.plans) if any("unroll" in k for k in _schedules(p))]
    assert len(set(tried) & set(range(tried[0] + 8))) > 1  # what gains in one kernel is tried in the others soon
    best = run.best()
    assert best is not None
    assert min(t.relative or math.inf for t in run.trials) < 0.7
    assert sorted(best.kernels["e"]) == ["p", "q", "r", "s"]


def test_guided_search_does_not_repeat_knobs_that_change_no_code(columns: _Timed, tmp_path: Path) -> None:
    columns.times = lambda k: 0.9 if "columns" in k else 1.0
    run = _run(make_search("guided{groups=kernels}", 0), columns, tmp_path, Budget(8))
    values = [k["columns"] for p in columns.plans if "columns" in (k := _schedule(p))]
    assert run.measurements == 8
    assert len({v for v in values if values.count(v) == 1}) < 3


def test_guided_search_measures_what_seems_to_be_the_fastest_again(columns: _Timed, tmp_path: Path) -> None:
    lucky: list[str] = []

    def once(knobs: Mapping[str, object]) -> float:
        text = str(knobs)
        if "vector" not in knobs or text in lucky:
            return 1.0
        lucky.append(text)
        return 0.5  # the first time only

    columns.times = once
    run = _run(make_search("guided{groups=kernels}", 0), columns, tmp_path, Budget(20))
    plans = [t.plan.to_json() for t in run.trials]
    fast = [n for n, t in enumerate(run.trials[:-1]) if t.relative == pytest.approx(0.5)]
    assert fast
    assert all(plans[n + 1] == plans[n] and run.trials[n + 1].relative == pytest.approx(1.0) for n in fast)


def test_a_plan_is_measured_again_in_a_fresh_process(
    columns: _Timed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(columns, "restart", lambda: ended.append(len(columns.plans)))
    columns.times = lambda k: 0.5 if "vector" in k else 1.0
    run = _run(make_search("guided{groups=kernels}", 0), columns, tmp_path, Budget(20))
    plans = [t.plan.to_json() for t in run.trials]
    again = [n for n, text in enumerate(plans) if text in plans[:n]]
    assert ended == again != []


def test_guided_search_goes_on_at_random_where_nothing_is_expected_to_gain(columns: _Timed, tmp_path: Path) -> None:
    run = _run(make_search("guided{groups=expansions+kernels}", 0), columns, tmp_path, Budget(300))
    assert run.measurements == 300
    assert max(len(_schedule(t.plan)) for t in run.trials[-20:]) > 1


def test_guided_search_fuses_what_is_expected_to_gain(tmp_path: Path) -> None:
    program, measurer = _program(tmp_path, CHAIN), _Timed(CHAIN, lambda _: 1.0)
    builder = PlanBuilder(parse(CHAIN), "cpu", lambda _: Policy("none", fusion=NoFusion()))
    run = run_search(make_search("guided{groups=fusion}"), builder, program, measurer, Budget(3))
    assert [len(t.plan.steps) for t in run.trials] == [0, 1, 1]


def test_guided_search_loses_no_change_that_it_does_not_measure(tmp_path: Path) -> None:
    program, measurer = _program(tmp_path, CHAIN), _Timed(CHAIN, lambda _: 1.0)
    search = make_search("guided{groups=fusion}")
    assert isinstance(search, Guided)
    run_search(search, _unfused(CHAIN), program, measurer, Budget(2))  # the plan without fusions, and one with a fusion
    base = search._bases[0]
    assert base.steps is not None
    assert len(base.steps) == len(list(search._steps(base.built, base.shares))) - 1 > 2


APART = """add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  z = f32[] constant(0)
  x = f32[512,700] parameter(0)
  p = f32[700] reduce(x, z), dimensions={0}, to_apply=add
  u = f32[300,1000] parameter(1)
  a = f32[300,1000] tanh(u)
  b = f32[300,1000] exponential(a)
  ROOT t = (f32[700], f32[300,1000]) tuple(p, b)
}"""


class _Misread(_KernelTimes):
    """Every plan takes the same time, though its kernels seem to be slower than the default ones."""

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        found = super().measure(program, plan, remeasure)
        return replace(taking(1.0), kernels=found.kernels)


def test_guided_search_measures_a_plan_that_was_only_estimated_to_be_the_fastest(tmp_path: Path) -> None:
    measurer = _Misread(APART, lambda knobs: 3.0 if knobs else 1.0)
    search, program = make_search("guided{groups=fusion+kernels}", 0), _program(tmp_path, APART)
    trials = run_search(search, _unfused(APART), program, measurer, Budget(40)).trials
    both = [n for n, t in enumerate(trials) if t.plan.steps and t.plan.kernels]
    assert both  # without the choice of the kernel, the fusion seems to save half of the time
    bare = trials[both[0] + 1].plan
    assert (bare.steps, dict(bare.kernels)) == (trials[both[0]].plan.steps, {})


def test_passes_that_change_nothing_are_known_without_a_plan() -> None:
    space = PlanSpace(PlanBuilder(parse(CHAIN), "cpu"), GROUPS)
    assert not space.is_changed((), ())
    assert not space.is_changed(("dce",), ())
    plain = PlanBuilder(parse(CHAIN), "cpu", lambda _: Policy("none", passes=PassPipeline("none", ())))
    changing = [n for n in sorted(PASSES) if PlanSpace(plain, GROUPS).is_changed((n,), ())]
    assert changing
    assert set(changing) < set(PASSES)


def test_guided_search_keeps_a_plan_that_beats_its_best_choices_together(tmp_path: Path) -> None:
    measurer = _KernelTimes(FOUR, lambda knobs: 0.9 if knobs else 1.0)
    together = replace(taking(2.0), kernels=())
    usual = measurer.measure

    def measure(program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        found = usual(program, plan, remeasure)
        return together if plan is not None and len(plan.kernels.get("e", {})) == 4 else found

    measurer.measure = measure  # type: ignore[method-assign]
    search = make_search("guided{groups=kernels}", 0)
    assert isinstance(search, Guided)
    run = _run(search, measurer, tmp_path, Budget(30))
    assert any(t.relative == 2.0 for t in run.trials)
    assert max(b.relative for b in search._bases) <= 1.0


def test_guided_search_tells_kernels_of_the_same_name_apart(tmp_path: Path) -> None:
    measurer, search = _KernelTimes(FOUR, _distance), make_search("guided{groups=kernels}", 0)
    assert isinstance(search, Guided)
    _run(search, measurer, tmp_path, Budget(0))
    base = search._bases[0]
    other = PlanBuilder(parse(FOUR.replace("512,700", "256,700")), "cpu").build(Deviation())
    step = _Step(Deviation(), "fission", Belief(0.0, 0.1), names=frozenset({"x"}))
    times = replace(taking(1.0), kernels=tuple(KernelTime(n, "k", 1.0, 1.0 + (n == "p")) for n in "pqrs"))
    before = {i: k.share for i, k in base.kernels.items()}
    search._read(_Proposal(base, Deviation(), step=step), other, 1.0, times)
    changed = {i for i, k in base.kernels.items() if k.share != before[i]}
    assert changed == {"e/q", "e/r", "e/s"}


# ---- budgets and cost models


def test_the_best_plan_within_a_part_of_the_budget(columns: _Timed, tmp_path: Path) -> None:
    clock = itertools.count()
    run = _run(make_search("greedy{groups=kernels}"), columns, tmp_path, Budget(1000, 30.0), now=lambda: next(clock))
    assert 0 < run.measurements < 30
    assert [t.seconds for t in run.trials] == sorted(t.seconds for t in run.trials)
    relative = [t.relative for t in run.trials]
    for n in range(run.measurements):
        best = run.best(n)
        least = min((r for r in relative[:n] if r is not None), default=1.0)
        assert best == (run.trials[relative.index(least)].plan if least < 1 else None)
        assert run.best(seconds=run.trials[n].seconds) == run.best(n + 1)


def test_the_plan_of_a_policy_is_measured_first(tmp_path: Path) -> None:
    program, measurer = _program(tmp_path, CHAIN), _Timed(CHAIN, lambda _: 0.5)
    builder = PlanBuilder(parse(CHAIN), "cpu", lambda _: Policy("none", fusion=NoFusion()))
    run = run_search(make_search("local{groups=fusion}"), builder, program, measurer, Budget(3))
    assert [len(t.plan.steps) for t in run.trials] == [0, 1, 1]


def test_a_cost_model_chooses_the_plans_that_are_measured(tmp_path: Path) -> None:
    def seconds(plan: CompilationPlan) -> float:
        session = CompilationSession(parse(CHAIN))
        session.replay(plan)
        return session.cost().seconds

    def measured(options: str) -> list[float]:
        search = make_search(f"random{{groups=fusion{options}}}", 0)
        run = _run(search, _Timed(CHAIN, lambda _: 1.0), tmp_path, Budget(3))
        return sorted(seconds(t.plan) for t in run.trials)

    assert sum(measured(",model=analytic,drawn=20")) < sum(measured(""))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("locale", "unknown search 'locale'; did you mean 'local'"),
        ("local{depth=3}", "search 'local' has no option 'depth'"),
        ("beam{width=0}", "option width of a search must be positive"),
        ("local{groups=kernel}", "unknown group of decisions 'kernel'; did you mean 'kernels'"),
        ("guided{model=analytic}", "guided search takes no option model"),
        ("local{model=analytical}", "unknown cost model 'analytical'; did you mean 'analytic'"),
    ],
)
def test_options_are_checked(text: str, message: str) -> None:
    with pytest.raises((UnknownNameError, OptionError), match=message):
        make_search(text)


def test_predicted_times_are_those_of_the_calibrated_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    learned_costs.cache_clear()  # of another folder
    session = PlanBuilder(parse(CHAIN), "cpu").build(Deviation()).session
    model = shipped_kernel_cost()
    assert model is not None
    plain = learned_seconds(session)
    slower = Calibration(np.eye(model.correction_size)[0] * math.log(3), 40, 2.0, 0.1)
    store_calibration(model, slower)
    learned_costs.cache_clear()
    assert learned_seconds(session) == pytest.approx(3 * plain)
    learned_costs.cache_clear()


def test_options_are_described_and_groups_read() -> None:
    assert "population=16" in describe_searches()["evolution"][1]
    assert "model=none" in describe_searches()["local"][1]
    assert "model" not in describe_searches()["guided"][1]
    assert read_groups("fusion+loops") == ("loops", "fusion")
    assert read_groups("all") == GROUPS


# ---- strategies


@pytest.fixture
def failing() -> Iterator[_Timed]:
    class Fails(_Timed):
        def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
            return taking(1.0) if plan is None else FAILED

    yield Fails(CHAIN, lambda _: None)


def test_a_search_in_which_every_plan_fails_says_why(failing: _Timed, tmp_path: Path) -> None:
    with pytest.raises(NoPlanError, match=r"each of the 3 plans .* has failed; the last reason: .*all wrong"):
        find_plan("local", Starts("cpu"), _program(tmp_path, CHAIN), failing, 3)


def test_a_search_that_finds_nothing_faster_returns_the_default_plan(tmp_path: Path) -> None:
    program, starts = _program(tmp_path, CHAIN), Starts("cpu")
    found = find_plan("beam{width=2}", starts, program, _Timed(CHAIN, lambda k: 1.0), 3)
    assert found.measurements == 3
    assert found.plan.steps == find_plan("default", starts, program, _Timed(CHAIN, lambda k: 1.0), 0).plan.steps


@pytest.mark.parametrize("name", ["random", "local", "evolution"])
def test_several_workers_measure_proposed_plans_at_once(name: str, tmp_path: Path) -> None:
    def timed() -> _Timed:
        return _Timed(COLUMNS, lambda knobs: 0.5 if knobs else 1.0)

    program, measurer = _program(tmp_path, COLUMNS), timed()
    builder = PlanBuilder(parse(COLUMNS), "cpu")
    with MeasuringService(3, make=lambda *_: timed()) as service:
        search = make_search(f"{name}{{groups=kernels}}")
        run = run_search(search, builder, program, measurer, Budget(20), service=service)
    assert run.measurements == 20
    assert len({t.plan.to_json() for t in run.trials}) == 20
    assert run.best() is not None
    assert not measurer.plans  # only the workers have measured
