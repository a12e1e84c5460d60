"""Fusions as scripts: lists of what to fuse, named by original instructions, so that parts can be exchanged.

Actions name fusions, and the name of a fusion depends on everything fused before. The steps of a script hold instead
the number of a value that a kernel yields, which is the same however the kernel was made.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from compiler.fusion.actions import FusionAction
from compiler.fusion.kinds import Entry
from compiler.fusion.policies.walk import Walk
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState

Step: TypeAlias = tuple[str, str, int, tuple[int, ...]]
"""Kind, sequence, and the keys of the producer and of the consumers, see `Nodes.key`; for a fission that of its cut.

A move has its value before the kernel that takes it."""
Script: TypeAlias = tuple[Step, ...]
Objective: TypeAlias = Callable[[FusionState], float]
"""What a search makes small: the estimated or measured time of a state, in seconds."""


def estimated_seconds(state: FusionState) -> float:
    """Return the time of a state by the cost model."""
    return state.seconds()


class ScriptSearch(Walk):
    """A policy that searches for the best state by scripts, and then takes the actions that lead there."""

    @abstractmethod
    def search(self, state: FusionState) -> tuple[FusionAction, ...]:
        """Return the actions that lead to the best state found; the state is left as it was."""

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the actions that lead to the best state found."""
        yield from self.search(state)


class ScriptRunner:
    """Takes a state from script to script; what two scripts begin with in common is not done again.

    Args:
        splits: whether fissions and moves are among the steps.

    Attributes:
        state: the state; after `restore` it is as it was.
        done: the steps that are applied, without those that were not legal.
        costs: by fingerprint, the objective of every state met.
    """

    def __init__(self, state: FusionState, objective: Objective = estimated_seconds, splits: bool = False) -> None:
        self.state, self.splits = state, splits
        self.objective = objective
        self.done: list[Step] = []
        self.costs: dict[str, float] = {}
        self._start = len(state.history)

    def cost(self) -> float:
        """Return the objective of the current state, computed once for equal states."""
        key = self.state.fingerprint
        found = self.costs.get(key)
        if found is None:
            found = self.costs[key] = self.objective(self.state)
        return found

    def run(self, script: Sequence[Step]) -> Script:
        """Make the fusions of a script, without those that are not legal by then; return the others."""
        same = 0
        while same < min(len(script), len(self.done)) and script[same] == self.done[same]:
            same += 1
        self._undo_to(same)
        for step in script[same:]:
            action = self.actions().get(step)
            if action is not None:
                self.state.apply(action)
                self.done.append(step)
        return tuple(self.done)

    def actions(self) -> dict[Step, FusionAction]:
        """Return the legal actions by step, in order."""
        tables = [(s, t) for s in self.state.sequences.values() for t in s.tables(self.splits)]
        return {step_of(s, e): e.action for s, t in tables for e in t.entries()}

    def extend(self, rng: random.Random) -> bool:
        """Apply one random legal action; return whether there was one."""
        actions = self.actions()
        if not actions:
            return False
        step = rng.choice(list(actions))
        self.state.apply(actions[step])
        self.done.append(step)
        return True

    def history(self) -> tuple[FusionAction, ...]:
        """Return the actions that lead from the start to the current state."""
        return tuple(self.state.history[self._start :])

    def restore(self) -> None:
        """Undo everything."""
        self._undo_to(0)

    def _undo_to(self, length: int) -> None:
        while len(self.done) > length:
            self.state.undo()
            self.done.pop()


def step_of(s: SequenceState, e: Entry) -> Step:
    """Return the step of an action of a sequence."""
    others = () if e.action.kind == "fission" else tuple(map(s.nodes.key, e.consumers))
    if e.cut >= 0:
        others = (e.cut, *others)
    return e.action.kind, s.computation.name, s.nodes.key(e.producer), others
