"""What the incremental parts of a fusion state should say, computed again from nothing but the module."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.actions import FusionAction
from compiler.fusion.digests import Digests
from compiler.fusion.legality import Legality
from compiler.fusion.nodes import Nodes
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloComputation, HloModule


def recomputed(s: SequenceState) -> SequenceState:
    """The same sequence without caches: only which values its nodes yield is taken over."""
    other = copy.copy(s)
    other.nodes = Nodes(s.computation)
    other.nodes.values = dict(s.nodes.values)
    other.order = TopologicalOrder(s.computation)
    other.legality = Legality(other.order, other.nodes, s.legality.limits)
    other.digests, other._known = Digests(), type(s._known)()
    other._start()
    return other


def check(state: FusionState) -> None:
    """Assert that actions, savings, time and digest of a state are those of a recomputation."""
    for s in state.sequences.values():
        fresh = recomputed(s)
        assert s.actions() == fresh.actions()
        assert set(s.actions()) <= set(s.candidates())
        assert s.seconds() == fresh.seconds()
        assert s.digest() == fresh.digest()
        assert s.table.savings() == [fresh.saving(a) for a in fresh.actions()]


def facts(state: FusionState) -> tuple[str, list[FusionAction], list[float], float, str]:
    """What must be as before after `undo`."""
    actions = state.actions()
    return str(state.module), actions, [state.estimate(a) for a in actions], state.seconds(), state.fingerprint


def shuffled(module: HloModule, rng: np.random.Generator) -> HloModule:
    """A copy of a module that lists the instructions of each computation in another order."""
    copied = module.clone()
    for c in copied.computations:
        _shuffle(c, rng)
    return copied


def _shuffle(c: HloComputation, rng: np.random.Generator) -> None:
    for place, i in zip(rng.permutation(len(c)), c.instructions, strict=True):
        c._instructions[i] = int(place)
    c._in_places, c.order_is_known = False, False


def walk(state: FusionState, rng: np.random.Generator, steps: int) -> Iterator[FusionAction]:
    """Apply random legal actions, and yield each."""
    for _ in range(steps):
        actions = state.actions()
        if not actions:
            return
        action = actions[int(rng.integers(len(actions)))]
        state.apply(action)
        yield action
