"""Tests of the masks of what depends on each node, against searches in the graph."""

import numpy as np
import pytest

from compiler.fusion.actions import KINDS
from compiler.fusion.reach import Reach
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from tests.fusion.programs import random_graph


def _check(s: SequenceState, reach: Reach) -> None:
    nodes = list(s.nodes.values)
    for a in nodes:
        for b in nodes:
            assert reach.reaches(a, b) == s.order.reaches(a, b)
            if a is not b:
                assert reach.has_path_around(a, b) == (s.order.path_around(a, b) is not None)


@pytest.mark.parametrize("seed", range(6))
def test_paths_are_those_of_the_graph_after_actions_and_undo(seed: int) -> None:
    state, rng = FusionState(random_graph(seed, 14)), np.random.default_rng(seed)
    s = state.sequences["main"]
    assert s.reach is not None
    for step in range(16):
        _check(s, s.reach)
        actions = state.actions(KINDS)
        if step % 4 == 3 and state.can_undo:
            state.undo()
        elif actions:
            state.apply(actions[int(rng.integers(len(actions)))])


def test_bits_are_numbered_again_when_many_were_given() -> None:
    state = FusionState(random_graph(1, 10))
    s = state.sequences["main"]
    assert s.reach is not None
    for _ in range(150):
        state.apply(state.actions()[0])
        _ = state.actions()
        state.undo()
        _ = state.actions()
    assert s.reach.bits(next(iter(s.nodes.values))).bit_length() <= 2 * len(s.nodes.values) + 257
    _check(s, s.reach)
