"""Pass orders learned by imitation and improved by PPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from sb3_contrib import MaskablePPO

from agents.baseline import ProgramBaseline
from agents.pass_agents import make_pass_agent
from agents.vectors import make_vector
from env.suites import ManifestError, load_suite
from experiments import imitation
from experiments.imitation import AGENTS, IMITATION, WARM, ImitationSettings
from experiments.results import ResultError
from tests.env.small_programs import write_suite

SMALL = ImitationSettings(
    programs=2, applications=12, teacher_budget=120, starts=2, epochs=300, timesteps=64, every=32, n_steps=32,
    hidden=32, seeds=1,
)  # fmt: skip


def test_imitation_takes_the_decisions_of_the_search(tmp_path: Path) -> None:
    env = imitation.make_environment(load_suite(write_suite(tmp_path)).programs, SMALL)
    shown = imitation.demonstrations(env, SMALL)
    assert shown.observations.shape == (len(shown.actions), *(env.observation_space.shape or ()))
    assert all(mask[action] for mask, action in zip(shown.masks, shown.actions.tolist(), strict=True))
    assert (shown.actions == len(env.actions)).sum() == 2 * SMALL.starts  # each order ends with a stop
    vector = ProgramBaseline(make_vector([lambda: env]))
    agent = cast(MaskablePPO, make_pass_agent("maskable-ppo", vector, SMALL.learning(IMITATION, 0)))
    losses = imitation.imitate(agent, shown, SMALL.epochs, SMALL.imitation_rate, seed=0)
    assert losses[-1] < 0.2 * losses[0]
    chosen, _ = agent.predict(shown.observations.numpy(), deterministic=True, action_masks=shown.masks)
    assert (chosen == shown.actions.numpy()).mean() > 0.8


def test_a_run_writes_a_page_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, page = write_suite(tmp_path / "suite"), tmp_path / "page.md"
    config = tmp_path / "small.yaml"
    config.write_text(
        f"train: {suite}\nvalidation: {suite}\nprograms: 2\napplications: 8\nteacher_budget: 60\nstarts: 1\n"
        "epochs: 5\ntimesteps: 16\nevery: 16\nn_steps: 16\nhidden: 16\nseeds: 1\n"
    )
    given = ["--config", str(config), "--out", str(page)]
    imitation.main(given)
    text = page.read_text()
    rows = [json.loads(line) for line in page.with_suffix(".jsonl").read_text().splitlines()[1:]]
    assert [r["agent"] for r in rows] == list(AGENTS)
    assert all(set(r["validation"]) == {"chain", "loop"} for r in rows)
    assert {r["agent"]: r["curve"][-1][0] for r in rows} == {a: 0 if a == IMITATION else 16 for a in AGENTS}
    warm, imitated = (next(r for r in rows if r["agent"] == a) for a in (WARM, IMITATION))
    assert warm["curve"][0] == imitated["curve"][0]  # PPO begins where imitation ends
    assert page.with_suffix(".svg").is_file()
    imitation.main(given)
    assert page.read_text().partition("\n\n`")[2] == text.partition("\n\n`")[2]
    capsys.readouterr()
    config.write_text(config.read_text().replace("seeds: 1", "seeds: 2"))
    with pytest.raises(ResultError, match="other settings"):
        imitation.main(given)


def test_test_programs_are_refused() -> None:
    with pytest.raises(ManifestError, match="held out for tests"):
        imitation.small_programs("test", SMALL)
