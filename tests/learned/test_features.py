"""What a policy sees of a module that is being fused."""

import random

import numpy as np
import pytest

from compiler.fusion.state import FusionState
from compiler.learned.features.decisions import decision_graph
from compiler.learned.features.fusion import FusionFeatures
from tests.fusion.programs import optimized, random_graph


@pytest.mark.parametrize("program", ["layer_norm_backward", "mlp_train_step", "cartpole_naive", 0, 1, 2, 3, 4, 5])
def test_savings_kept_over_actions_are_those_of_now(program: str | int) -> None:
    module = random_graph(program, 16) if isinstance(program, int) else optimized(program)
    state, chooser = FusionState(module), random.Random(5)
    features = FusionFeatures(state)
    for _ in range(30):
        actions, candidates = features.choices()
        if not actions:
            break
        savings = [c.saving for c in candidates[:-1]]
        assert savings == pytest.approx([state.estimate(a) for a in actions], rel=1e-9, abs=1e-15)
        state.apply(chooser.choice(actions))


@pytest.mark.parametrize(("program", "seed"), [("cartpole_naive", 2), ("cartpole_split", 0), ("mlp_train_step", 1)])
def test_savings_of_long_walks_follow_the_readers_of_constants(program: str, seed: int) -> None:
    """Constants lose readers far from an action that would make them superfluous, and get them back by `undo`."""
    state, chooser = FusionState(optimized(program)), random.Random(seed)
    features = FusionFeatures(state)
    for step in range(100):
        offer = features.offer()
        wanted = [state.estimate(e.action) for e in offer.entries]
        assert offer.savings.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-15)
        if step < 60 and offer.entries:
            state.apply(chooser.choice(offer.entries).action)
        else:
            state.undo()


@pytest.mark.parametrize("program", ["layer_norm_backward", "cartpole_split", "mlp_train_step", 0, 1])
def test_numbers_kept_over_actions_and_undo_are_those_of_each_decision(program: str | int) -> None:
    module = random_graph(program, 16) if isinstance(program, int) else optimized(program)
    state, chooser = FusionState(module), random.Random(5)
    features = FusionFeatures(state)
    for step in range(24):
        actions, candidates = features.choices()
        if not actions or step % 3 == 2:
            state.undo()
            continue
        wanted, graph = decision_graph(candidates, features, "fusion"), features.graph(features.entries())
        for name in ("nodes", "edges", "candidates", "endpoints", "globals"):
            np.testing.assert_allclose(getattr(graph, name), getattr(wanted, name), rtol=2e-3, atol=1e-3)
        state.apply(chooser.choice(actions))
