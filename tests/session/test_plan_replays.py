"""Replays that share the work before fusion lead to the same programs as `compile`."""

import random
from dataclasses import replace

import numpy as np
import pytest

from compiler import CompilationPlan, CompilationSession, compile, parse
from compiler.errors import HloSyntaxError, PlanError
from compiler.plan_replays import PlanReplays

TEXT = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[16,32] parameter(0)
  y = f32[16,32] parameter(1)
  zero = f32[] constant(0)
  p = f32[16,32] multiply(x, y)
  q = f32[16,32] add(p, x)
  e = f32[16,32] exponential(q)
  s = f32[16] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[16,32] broadcast(s), dimensions={0}
  d = f32[16,32] divide(e, b)
  t = f32[16,32] subtract(d, y)
  ROOT r = (f32[16,32], f32[16]) tuple(t, s)
}"""
OTHER = TEXT.replace("multiply(x, y)", "subtract(x, y)")


def random_plans(text: str, count: int) -> list[CompilationPlan]:
    rng, plans = random.Random(3), []
    start = CompilationSession(parse(text))
    start.run_passes()
    for _ in range(count):
        session = start.fork()
        while (actions := session.actions()) and rng.random() < 0.8:
            session.apply(rng.choice(actions))
        plans.append(CompilationPlan.from_json(session.plan.to_json()))
    return plans


def test_replays_are_those_of_compile() -> None:
    replays = PlanReplays(most=20)  # instructions, so that the programs evict each other
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((16, 32)).astype(np.float32) for _ in range(2)]
    plans = [(text, plan) for text in (TEXT, OTHER) for plan in random_plans(text, 6)]
    assert len({plan.to_json() for _, plan in plans}) > 6
    random.Random(0).shuffle(plans)
    for text, plan in plans:
        expected, found = compile(text, plan=plan), replays.compile(text, "cpu", plan)
        assert found.plan == expected.plan == plan
        assert [t.key for t in found.thunks] == [t.key for t in expected.thunks]
        for a, b in zip(found(*arguments), expected(*arguments), strict=True):
            np.testing.assert_array_equal(a, b)


def test_plans_that_end_before_fusion_are_replayed() -> None:
    session = CompilationSession(parse(TEXT))
    session.run_passes()
    assert not session.plan.base
    found = PlanReplays().compile(TEXT, "cpu", session.plan)
    assert len(found.thunks) == len(compile(TEXT, plan=session.plan).thunks)


def test_errors_are_those_of_compile() -> None:
    replays, plan = PlanReplays(), max(random_plans(TEXT, 6), key=lambda p: len(p.steps))
    replays.compile(TEXT, "cpu", plan)
    twice = replace(plan, steps=(*plan.steps, plan.steps[-1]))
    for bad in (twice, replace(plan, fingerprint="0" * 64), replace(plan, base="0" * 64)):
        with pytest.raises(PlanError) as expected:
            compile(TEXT, plan=bad)
        for _ in range(2):
            with pytest.raises(PlanError) as found:
                replays.compile(TEXT, "cpu", bad)
            assert str(found.value) == str(expected.value)
    with pytest.raises(HloSyntaxError):
        replays.compile("HloModule", "cpu", plan)
    assert replays.compile(TEXT, "cpu", plan).plan == plan  # what failed has left no trace


def test_a_session_continues_only_its_own_decisions() -> None:
    session = CompilationSession(parse(OTHER))
    session.run_passes()
    assert session.actions()
    with pytest.raises(PlanError, match="does not continue"):
        session.replay_fusions(random_plans(TEXT, 1)[0])
