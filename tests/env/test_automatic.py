"""Environments in which nothing runs by itself, and those with other phases and passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.errors import UnknownNameError
from compiler.plan import CompilationPlan
from env.environments import CompileEnv, FusionEnv
from tests.env.small_programs import CHAIN, LOOP, write_suite

PASSES = "algebraic-simplifier,while-loop-unroller{max_trips=8}"


def _played(env: CompileEnv, *wanted: str) -> CompilationPlan:
    """Return the plan of an episode that takes wanted decisions where they are legal, and the last one elsewhere."""
    env.reset(options={"program": "loop"})
    done = False
    info: dict[str, Any] = {}
    while not done:
        names = list(env.names)
        assert names == [str(m) for m in env.moves]
        at = next((n for n, t in enumerate(names) if any(w in t for w in wanted)), None)
        if at is None:
            at = next((n for n, t in enumerate(names) if t.endswith(": keep") or t.startswith("stop")), 0)
        _, _, done, _, info = env.step(at)
    return CompilationPlan.from_json(info["plan_json"])


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path)


def test_nothing_runs_that_was_not_chosen(suite: Path) -> None:
    env = CompileEnv(suite, phases="passes+loops+fusion", automatic=False)
    plan = _played(env)
    assert (plan.passes, plan.loop_passes) == ((), ())
    assert env.compilation.speedup() == pytest.approx(1.0)
    x = np.linspace(-1, 1, 256, dtype=np.float32)
    for made in (plan, _played(env, ": unroll-2"), _played(env, ": kernel")):
        assert set(made.loop_passes) <= {"tuple-simplifier", "dce"}
        np.testing.assert_allclose(compile_hlo(LOOP, plan=made)(x)[0], compile_hlo(LOOP)(x)[0], rtol=1e-5)


def test_the_baseline_is_the_program_as_it_is_written(suite: Path) -> None:
    env = FusionEnv(suite, automatic=False)
    program = env.suite.find("loop")
    plan = env.baseline(program).plan
    assert (plan.passes, plan.steps) == ((), ())
    env.reset(options={"program": "loop"})
    assert env.compilation.seconds == pytest.approx(env.baseline(program).seconds)


def test_only_given_passes_are_offered(suite: Path) -> None:
    env = CompileEnv(suite, phases="passes", passes=PASSES)
    env.reset(options={"program": "chain"})
    assert list(env.names) == ["pass algebraic-simplifier", "pass while-loop-unroller{max_trips=8}", "stop passes"]
    other = CompileEnv(suite, phases="passes", shared=env)
    other.reset(options={"program": "chain"})
    assert len(other.names) > 3
    same = CompileEnv(suite, phases="passes", passes=PASSES.split(","), shared=env)
    assert same.states(env.suite.find("chain")) is env.states(env.suite.find("chain"))


def test_phases_are_checked(suite: Path) -> None:
    assert CompileEnv(suite, phases="fusion+loops").phases == ("loops", "fusion")
    assert CompileEnv.phases == ("passes", "expansions", "loops", "fusion", "kernels")
    with pytest.raises(UnknownNameError, match="unknown phase 'loop'; did you mean 'loops'"):
        CompileEnv(suite, phases="loop")
    with pytest.raises(UnknownNameError, match="unknown pass 'no-pass'"):
        CompileEnv(suite, passes="no-pass")


def test_a_program_of_one_phase_is_complete_with_the_default_fusion(suite: Path) -> None:
    env = CompileEnv(suite, phases="loops", automatic=False)
    plan = _played(env, ": kernel")
    assert [c.choice for c in plan.loop_choices] == ["kernel"]
    assert compile_hlo(CHAIN).kernels


@pytest.mark.parametrize(
    "phases", ["expansions", "passes", "passes+fusion", "expansions+fusion+kernels", "expansions+kernels", "fusion"]
)
def test_loops_that_are_not_decided_run_as_in_compile(suite: Path, phases: str) -> None:
    env = CompileEnv(suite, phases=phases)
    plan = _played(env)
    assert [c.choice for c in plan.loop_choices] == ["kernel"]
    assert env.compilation.speedup() == pytest.approx(1.0)
    x = np.linspace(-1, 1, 256, dtype=np.float32)
    np.testing.assert_allclose(compile_hlo(LOOP, plan=plan)(x)[0], compile_hlo(LOOP)(x)[0], rtol=1e-5)
