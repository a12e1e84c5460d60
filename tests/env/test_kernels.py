"""The decisions about kernels in environments."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.codegen.schedules.schedule_space import Knob, ScheduleSpace
from compiler.learned.features.candidates import MAX_CANDIDATES
from compiler.learned.features.decisions import GLOBAL_FEATURES
from compiler.learned.features.kernels import kernel_candidates
from compiler.plan import CompilationPlan
from compiler.runtime.kernel_sites import KernelChoices, KernelSite
from compiler.session import CompilationSession
from compiler.text import parse
from env.environments import CompileEnv, KernelsEnv
from env.episode import KernelMove
from env.observations import unflatten
from env.suites import find_program
from tests.env.scripted import ScriptedMeasurer, taking
from tests.env.small_programs import LOOP

COLUMNS = """HloModule columns
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[64,480] parameter(0)
  z = f32[] constant(0)
  s = f32[480] reduce(x, z), dimensions={0}, to_apply=sum
  t = f32[480,64] transpose(x), dimensions={1,0}
  n = f32[480,64] negate(t)
  ROOT r = (f32[480], f32[480,64]) tuple(s, n)
}
"""


NOTHING = """HloModule nothing
ENTRY e {
  x = f32[] parameter(0)
  ROOT n = f32[] negate(x)
}
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    for name, text in (("columns", COLUMNS), ("loop", LOOP), ("nothing", NOTHING)):
        (folder / f"{name}.hlo").write_text(text)
    return folder


def test_each_kernel_with_choices_is_decided_once(suite: Path) -> None:
    env = KernelsEnv(suite)
    observation, info = env.reset(options={"program": "columns"})
    seen = []
    ended = False
    while not ended:
        assert info["phase"] == "kernels"
        moves = [m for m in env.moves if isinstance(m, KernelMove)]
        assert len(moves) == len(env.moves) == observation["counts"][2] == env.action_masks().sum()
        assert moves[0].choice == moves[0].site.default
        seen.append(moves[0].site.id)
        observation, reward, ended, _, info = env.step(1)
        assert reward == 0 and info["refused"] == ""
    assert len(seen) == len(set(seen)) == 2
    assert info["speedup"] == 1 and info["phase"] == "done"
    plan = CompilationPlan.from_json(info["plan_json"])
    assert sum(map(len, plan.kernels.values())) == 2
    x = np.random.default_rng(0).standard_normal((64, 480)).astype(np.float32)
    sums, turned = compile_hlo(COLUMNS, plan=plan)(x)
    np.testing.assert_allclose(sums, x.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(turned, -x.T)


def test_a_loop_in_one_kernel_is_a_kernel_to_decide(suite: Path) -> None:
    env = KernelsEnv(suite, render_mode="ansi")
    env.reset(options={"program": "loop"})
    env.step(1)
    text = env.render()
    assert text is not None and "1. kernel e/w: generated{" in text


def test_a_program_without_choices_offers_only_to_stop(suite: Path) -> None:
    env = KernelsEnv(suite)
    _, info = env.reset(options={"program": "nothing"})
    assert [str(m) for m in env.moves] == ["stop kernels"] and info["phase"] == "kernels"
    *_, terminated, _, info = env.step(0)
    assert terminated and CompilationPlan.from_json(info["plan_json"]).kernels == {}


def test_kernels_are_the_last_phase_of_a_compilation(suite: Path) -> None:
    env = CompileEnv(suite)
    _, info = env.reset(options={"program": "columns"})
    phases = []
    ended = False
    while not ended:
        phases.append(info["phase"])
        last = len(env.moves) - 1  # stop, or the last choice of a kernel
        *_, ended, _, info = env.step(last)
    assert list(dict.fromkeys(phases)) == ["passes", "fusion", "kernels"]
    assert CompilationPlan.from_json(info["plan_json"]).kernels
    assert env.why_not(0) is not None


def test_the_observation_describes_the_kernel_and_its_choices(suite: Path) -> None:
    env = KernelsEnv(suite)
    observation, _ = env.reset(options={"program": "columns"})
    graph = unflatten(observation)
    (move, *_) = env.moves
    assert isinstance(move, KernelMove)
    features = move.site.features()
    np.testing.assert_allclose(graph.globals[GLOBAL_FEATURES - len(features) :], features, rtol=1e-3, atol=1e-3)
    assert len({row.tobytes() for row in graph.candidates}) == len(env.moves)
    assert set(graph.endpoints[:, 0]) == {graph.endpoints[0, 0]} and graph.endpoints[0, 0] >= 0


def test_a_measured_episode_is_rewarded_by_the_measured_speedup(suite: Path) -> None:
    env = KernelsEnv(suite, measured=True, measurer=ScriptedMeasurer(taking(0.5), taking(0.25)))
    for expected in (2.0, 4.0):
        env.reset(options={"program": "loop"})
        _, reward, ended, _, info = env.step(2)
        assert ended and info["speedup"] == expected
        assert reward == pytest.approx(math.log(expected))


@pytest.mark.parametrize("text", [COLUMNS, LOOP])
def test_a_site_that_has_offered_nothing_accepts_what_another_one_offers(text: str) -> None:
    session = CompilationSession(parse(text))
    session.run_loop_policy()
    for site in session.kernel_sites():
        fresh = KernelSite(site.instruction, site.target)
        for choice in site.offered(24):
            assert fresh.check(choice) is None
            assert site.bind(choice) == fresh.bind(choice)


# ---- large spaces


class _LargeSite(KernelSite):
    """A site with more choices than an action space has actions; some are refused."""

    def __init__(self) -> None:
        session = CompilationSession(parse(COLUMNS))
        base = next(s for s in session.kernel_sites() if len(s.choices) > 1)
        super().__init__(base.instruction, base.target)
        knobs = tuple(Knob(n, tuple(range(1, 21)), 8) for n in ("tile", "columns", "lanes"))
        self.choices = KernelChoices({"generated": ScheduleSpace(knobs)})

    def check(self, choice: object) -> str | None:
        return "odd" if sum(self.choice(choice).schedule.values()) % 2 else None  # type: ignore[arg-type]

    def is_refused(self, choice: KernelChoice) -> bool:
        return self.check(choice) is not None


@pytest.mark.parametrize("program", ["softmax", "transpose_scale_add"])
def test_choices_are_refused_as_the_code_generator_refuses_them(program: str) -> None:
    session = CompilationSession(parse(find_program(program).text()))
    session.run_passes()
    site = next(s for s in session.kernel_sites() if len(s.choices) > 1)
    sample = [site.choices[n] for n in range(0, len(site.choices), max(1, len(site.choices) // 12))]
    narrow = [KernelChoice(schedule={"columns": n}) for n in (1, 1 << 16)]
    for choice in (*sample, *narrow):
        assert site.is_refused(choice) == (site.check(choice) is not None)


def test_of_many_choices_a_sample_is_offered() -> None:
    site = _LargeSite()
    offered = site.offered(MAX_CANDIDATES)
    assert len(site.choices) == 8000 and site.choices.nearest == 1 + 3 * 19
    assert offered[: site.choices.nearest] == list(site.choices[: site.choices.nearest])
    assert site.choices.nearest + 20 < len(offered) <= MAX_CANDIDATES and len(set(offered)) == len(offered)
    assert all(site.check(c) is None for c in offered[site.choices.nearest :])
    assert _LargeSite().offered(MAX_CANDIDATES) == offered
    assert len(site.offered(10)) == 10
    assert len(kernel_candidates(site, offered)) == len(offered)
