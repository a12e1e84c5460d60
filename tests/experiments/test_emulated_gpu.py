"""Learning on the emulated GPU: the search, its decisions as samples, imitation, and the whole way to a policy."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import run_policy
from compiler.learned.fusion_policy import load_policy
from compiler.loops import KernelLoops
from compiler.text import parse
from env.suites import load_suite
from experiments.emulated_gpu.comparison import Starts
from experiments.emulated_gpu.learning import batch_of, imitate, make_network, numpy_network, reinforce
from experiments.emulated_gpu.mapping import Searched, search_suite
from experiments.emulated_gpu.page import evaluate
from experiments.emulated_gpu.plans import completed_seconds, open_session, search_plan
from experiments.emulated_gpu.rules import compare_rules
from experiments.emulated_gpu.samples import samples_of
from experiments.emulated_gpu.settings import DEFAULT_FILE, EmulatedSettings
from experiments.emulated_gpu.stages import KINDS, WHOLE, learn, policy_folder
from experiments.settings_file import read_settings
from tests.fusion.test_policies import SLICES_BEHIND_RESHAPES

LOOP = """
%step (s: (s32[], f32[16384])) -> (s32[], f32[16384]) {
  %s = (s32[], f32[16384]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[16384] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %r = f32[16384] reverse(%x), dimensions={0}
  %y = f32[16384] sine(%r)
  ROOT %t = (s32[], f32[16384]) tuple(%next, %y)
}

%more (s: (s32[], f32[16384])) -> pred[] {
  %s = (s32[], f32[16384]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(16)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[16384]) -> f32[16384] {
  %x = f32[16384] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[16384]) tuple(%zero, %x)
  %w = (s32[], f32[16384]) while(%start), condition=%more, body=%step
  ROOT %y = f32[16384] get-tuple-element(%w), index=1
}
"""
TINY = EmulatedSettings(
    evaluations=60, work=4000, seeds=2, hidden=8, rounds=1, epochs=30, batch=4, learning_rate=0.02, iterations=1,
    programs=2, rollouts=2, train_per_family=2, validation_per_family=1, test_per_family=1, loops_per_family=1,
    completion="priority",
)  # fmt: skip


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    programs = []
    for name, text, family in (("slices", SLICES_BEHIND_RESHAPES, "a"), ("loop", LOOP, "b")):
        (folder / f"{name}.hlo").write_text(f"HloModule {name}\n{text}")
        programs.append({"name": name, "file": f"{name}.hlo", "split": "train", "description": name, "family": family})
    (folder / "manifest.json").write_text(json.dumps({"programs": programs}))
    return folder


@pytest.fixture(scope="module")
def searched(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Searched]:
    path = tmp_path_factory.mktemp("work") / "train.jsonl"
    found = search_suite(load_suite(str(suite)).programs, TINY, path)
    again = search_suite(load_suite(str(suite)).programs, TINY, path)
    assert [s.found for s in again] == [s.found for s in found]  # read from the file
    return found


def test_the_search_finds_the_fusions_that_the_rules_miss() -> None:
    found = search_plan(parse(SLICES_BEHIND_RESHAPES), TINY)
    assert found.rules / found.best == pytest.approx(3, rel=0.05)  # one kernel instead of three
    state = open_session(parse(SLICES_BEHIND_RESHAPES), "cuda").fusion
    assert found.rules == completed_seconds(state, TINY.completion) != state.seconds()
    run_policy(state, make_policy(TINY.completion))
    assert state.seconds() == found.rules


def test_the_search_tries_every_choice_for_a_loop() -> None:
    found = search_plan(parse(LOOP), TINY)
    ((name, choices),) = found.choices.items()
    assert next(iter(choices)) == "unroll-8"  # the choice of the rules comes first
    assert set(choices) == {"keep", "unroll-2", "unroll-4", "unroll-8", "full"}
    assert choices["keep"] > 4 * found.rules == 4 * choices["unroll-8"]
    assert found.loops == (
        {} if min(choices.values()) == found.rules else {name: min(choices, key=choices.__getitem__)}
    )
    assert not search_plan(parse(LOOP), replace(TINY, instructions=1)).rules  # too large


def test_samples_say_what_each_choice_gains(searched: list[Searched]) -> None:
    slices = samples_of([s for s in searched if s.program.name == "slices"], "cuda")
    first, last = slices[0], slices[-1]
    assert len(slices) >= 2
    assert first.usual == len(first.gains) - 1 and first.gains[first.usual] == 0
    assert np.nanmax(first.gains) > 0.1 and np.nanmax(last.gains) == 0
    loop = samples_of([s for s in searched if s.program.name == "loop"], "cuda")[0]
    assert loop.usual == 3 and loop.gains[3] == 0 and loop.gains[0] < -1  # unrolling by 8 rather than keeping it


def test_imitation_learns_the_decisions(searched: list[Searched]) -> None:
    samples = samples_of(searched, "cuda")
    network = make_network(TINY, seed=0)
    regrets = [regret for _, regret in imitate(network, samples, TINY, seed=0)]
    assert regrets[-1] < 0.2 * regrets[0] + 1e-9
    shown = numpy_network(network)
    scores, _ = network(batch_of([s.graph for s in samples]))
    for n, s in enumerate(samples):
        np.testing.assert_allclose(shown.scores(s.graph), scores[n, : len(s.gains)].detach(), rtol=1e-3, atol=1e-3)


def test_policy_gradient_makes_better_plans_more_probable(searched: list[Searched]) -> None:
    state = open_session(parse(SLICES_BEHIND_RESHAPES), "cuda").fusion
    rules = completed_seconds(state, TINY.completion)
    settings = replace(TINY, iterations=12, rollouts=8, tuning_rate=0.02)
    returns = list(reinforce(make_network(TINY, seed=1), [(state, rules)], settings, seed=0))
    assert sum(returns[-3:]) > sum(returns[:3])
    assert not state.history


def test_learning_writes_a_policy_with_which_the_compiler_decides(suite: Path, tmp_path: Path) -> None:
    settings = replace(TINY, train=str(suite), validation=str(suite), test=str(suite))
    learn(settings, tmp_path)
    program = load_suite(str(suite)).find("slices")
    starts = Starts(program, "cuda")
    policies = [load_policy(policy_folder(tmp_path, kind, seed)) for kind in KINDS for seed in range(2)]
    completed = starts.seconds(KernelLoops(), make_policy(settings.completion))
    assert completed / min(starts.of_policy(p) for p in policies) == pytest.approx(3, rel=0.05)
    assert starts.of_rules("rules") == min(starts.of_policy(p) for p in policies)  # they fuse through reshapes, too
    executable = compile(SLICES_BEHIND_RESHAPES, backend="cuda", policy=tmp_path / WHOLE)
    assert executable.plan is not None
    assert executable.plan.decided_by["fusion"] == "emulated-gpu@1"
    assert len(executable.kernels) == 1
    rules = compile(SLICES_BEHIND_RESHAPES, backend="cpu", policy=tmp_path / WHOLE).plan  # made for another backend
    assert rules is not None and rules.decided_by["fusion"] == "default"
    evaluate(settings, tmp_path, tmp_path / "page.md", DEFAULT_FILE)
    page = (tmp_path / "page.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.split("|---|")[-1].splitlines()[1:] if line]
    assert rows == ["former rules", "greedy", "priority", "random", *KINDS, f"{KINDS[1]}, {settings.other_completion}",
                    "untrained", "exported", "search on the program"]  # fmt: skip
    assert "experiments.emulated_gpu learn --config" in page and "experiments.emulated_gpu evaluate --config" in page
    assert len((tmp_path / "page.jsonl").read_text().splitlines()) == 2
    evaluate(settings, tmp_path, tmp_path / "validation.md", DEFAULT_FILE, held_out=False)
    assert "2 validation families" in (tmp_path / "validation.md").read_text()


def test_the_rules_are_compared_with_the_former_ones(suite: Path, tmp_path: Path) -> None:
    page = tmp_path / "rules.md"
    compare_rules(replace(TINY, train=str(suite)), 1, page, "command")
    rows = [json.loads(line) for line in page.with_suffix(".jsonl").read_text().splitlines()[1:]]
    seconds = {r["program"]: r["seconds"] for r in rows}
    slices, loop = seconds["slices"], seconds["loop"]
    assert loop["loops unrolled"] == loop["rules"] < loop["reshapes first"] == loop["former rules"]
    assert slices["reshapes first"] == slices["rules"] <= slices["loops unrolled"] == slices["former rules"]
    assert "| reshapes first |" in page.read_text() and "2 training programs of 2 families" in page.read_text()


def test_the_settings_that_ship_are_read() -> None:
    assert read_settings(DEFAULT_FILE, EmulatedSettings).backend == "cuda"
