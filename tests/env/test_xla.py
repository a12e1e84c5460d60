"""The environments on the xla backend: pass orders in front of stock XLA, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from compiler import CompilationPlan, compile, parse
from compiler.ir import Opcode
from env.measurement import Measurer, MeasurerOptions
from env.suites import load_suite
from tests.env.small_programs import CHAIN, write_suite

pytest.importorskip("jax")
OPTIONS = MeasurerOptions(backend="xla", rounds=3, seconds=0.1, patience=1, timeout=60)


def play(env: gym.Env[Any, Any], rng: np.random.Generator) -> tuple[float, dict[str, Any]]:
    """Play an episode of random valid actions; return its reward and the last info."""
    env.reset(seed=0, options={"program": "chain"})
    total, done = 0.0, False
    info: dict[str, Any] = {}
    while not done:
        action = int(rng.choice(np.flatnonzero(env.unwrapped.action_masks())))  # type: ignore[attr-defined]
        _, reward, done, _, info = env.step(action)
        total += float(reward)
    return total, info


@pytest.mark.parametrize("name", ["PassOrderMeasured", "FusionMeasured"])
def test_episodes_are_measured_on_xla(name: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    with Measurer(options=OPTIONS) as measurer:
        env = gym.make(f"env:hlogym/{name}-v0", suite=str(suite), backend="xla", measurer=measurer)
        reward, info = play(env, np.random.default_rng(0))
        env.close()
    assert np.isfinite(reward)
    assert info["measurement"]["failure"] == ""
    plan = CompilationPlan.from_json(info["plan_json"])
    assert plan.backend == "xla"
    x = np.linspace(-2, 2, 12, dtype=np.float32)
    shapes = [s.dimensions for s in parse(CHAIN).entry.parameter_shapes]
    arrays = [np.resize(x, d) for d in shapes]
    for got, want in zip(compile(CHAIN, "xla", plan=plan)(*arrays), compile(CHAIN, "cpu")(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_pass_order_ends_without_fusions(tmp_path: Path) -> None:
    env = gym.make("env:hlogym/PassOrder-v0", suite=str(write_suite(tmp_path)), backend="xla")
    _, info = play(env, np.random.default_rng(1))
    made = compile(CHAIN, "xla", plan=CompilationPlan.from_json(info["plan_json"]))
    assert not any(i.opcode is Opcode.FUSION for i in made.module.entry.instructions)
    env.close()


def test_programs_that_xla_gets_tell_measurements_apart(tmp_path: Path) -> None:
    program = load_suite(write_suite(tmp_path)).find("chain")
    with Measurer(options=OPTIONS) as measurer:
        fused = compile(CHAIN, "xla", fusion_policy="default").plan
        assert fused is not None
        measured = measurer.measure(program, fused)
        assert measured.failure is None
        assert measured.seconds is not None and measured.seconds.value > 0
        assert measured.verdict is not None
