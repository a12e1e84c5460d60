"""What the incremental parts of a fusion state should say, computed again from nothing but the module."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from compiler.analysis.order import TopologicalOrder
from compiler.fusion.actions import KINDS, FusionAction, FusionKind
from compiler.fusion.anatomy import Anatomy
from compiler.fusion.digests import Digests
from compiler.fusion.divisions import Divisions
from compiler.fusion.estimates import Estimates
from compiler.fusion.legality import Legality
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloComputation, HloModule, Opcode
from compiler.support.bounded_table import BoundedTable


def recomputed(s: SequenceState) -> SequenceState:
    """The same sequence without caches: only which values its nodes yield is taken over."""
    other = copy.copy(s)
    other.nodes = s.nodes.copy_for(s.computation)
    other.order = TopologicalOrder(s.computation)
    other.legality = Legality(other.order, other.nodes, s.legality.limits, s.legality.target)
    other.digests = Digests()
    other._digests = BoundedTable(other.nodes.most)
    other.estimates = Estimates(other.nodes, other.legality, s.cost_model)
    other.divisions = Divisions(other.nodes, other.legality, s.cost_model)
    other._start()
    return other


def check(state: FusionState) -> None:
    """Assert that actions, savings, time and digest of a state are those of a recomputation."""
    for s in state.sequences.values():
        fresh = recomputed(s)
        assert s.actions(splits=True) == fresh.actions(splits=True)
        assert set(s.actions(splits=True)) <= set(s.candidates(splits=True))
        assert s.seconds() == fresh.seconds()
        assert s.digest() == fresh.digest()
        savings = [seconds for t in s.tables(splits=True) for seconds in t.savings()]
        assert savings == [fresh.saving(a) for a in fresh.actions(splits=True)]
        check_origins(s)


def facts(state: FusionState) -> tuple[str, list[FusionAction], list[float], float, str]:
    """What must be as before after `undo`."""
    actions = state.actions(KINDS)
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


def check_origins(s: SequenceState) -> None:
    """Assert that ranks increase along every edge, and that each fusion is known down to original instructions."""
    for i in s.nodes.values:
        for o in i.operands:
            assert s.order.rank(o) < s.order.rank(i), (o.name, i.name)
        if i.opcode is Opcode.FUSION and s.legality.refusal_of(i) is None:
            anatomy = Anatomy(i, s.nodes)
            for inner, value in anatomy.pairs:
                if inner.opcode is Opcode.PARAMETER:
                    read = s.nodes.value_of(i.operands[inner.parameter_number or 0])
                    assert read == value
                elif anatomy.unknown is None:
                    assert inner.opcode is s.nodes.origins.values[value].opcode


def take_apart(state: FusionState, rng: np.random.Generator) -> None:
    """Apply random fissions until there are none."""
    while actions := state.actions(("fission",)):
        state.apply(actions[int(rng.integers(len(actions)))])


def walk(
    state: FusionState, rng: np.random.Generator, steps: int, kinds: Sequence[FusionKind] | None = None
) -> Iterator[FusionAction]:
    """Apply random legal actions, and yield each."""
    for _ in range(steps):
        actions = state.actions(kinds)
        if not actions:
            return
        action = actions[int(rng.integers(len(actions)))]
        state.apply(action)
        yield action
