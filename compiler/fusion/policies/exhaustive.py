"""Exhaustive search: the best of all states that fusions can reach, with a proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.fusion.actions import FUSING_KINDS, KINDS, FusionAction
from compiler.fusion.policies.scripts import Objective, estimated_seconds
from compiler.fusion.policies.walk import Walk
from compiler.fusion.state import FusionState


@dataclass(frozen=True)
class Proof:
    """What an exhaustive search has seen.

    Attributes:
        states: number of different states, by fingerprint.
        complete: whether these are all that actions can reach, so that `best` is the optimum.
        start, best, worst: the objective of the first, the best and the worst state, in seconds.
    """

    states: int
    complete: bool
    start: float
    best: float
    worst: float


@dataclass(eq=False)
class Exhaustive(Walk):
    """Visits every state that can be reached and takes the best, of equal ones the first.

    Control flow calls sequences that do not depend on each other's fusions: under the cost model, whose estimate is a
    sum over sequences, each is searched by itself.

    Attributes:
        limit: greatest number of states; the search ends there without a proof.
        splits: whether fissions and moves are actions too; each state is still visited once.
        proofs: by sequence, what was seen.
    """

    limit: int = 100_000
    splits: bool = False
    objective: Objective = estimated_seconds
    proofs: dict[str, Proof] = field(init=False, default_factory=dict)

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield the actions that lead to the best state of each sequence."""
        self.proofs = {}
        if self.objective is not estimated_seconds:
            self.proofs[""], actions = self._search(state, None)
            yield from actions
            return
        for name in list(state.sequences):
            self.proofs[name], actions = self._search(state, name)
            yield from actions

    def _search(self, state: FusionState, sequence: str | None) -> tuple[Proof, tuple[FusionAction, ...]]:
        """Search the states that actions on one sequence reach, or on all of them; leave the state as it was."""
        begin = len(state.history)
        start = best = worst = self.objective(state)
        found: tuple[FusionAction, ...] = ()
        seen = {state.fingerprint}
        # Depth first: each entry holds the actions of a state that are still to be tried, the next one last.
        work = [self._actions(state, sequence)]
        complete = True
        while work:
            if not work[-1]:
                work.pop()
                if work:
                    state.undo()
                continue
            action = work[-1].pop()
            state.apply(action)
            if state.fingerprint in seen:
                state.undo()
                continue
            if len(seen) >= self.limit:
                complete = False
                state.undo()
                while len(work) > 1:
                    work.pop()
                    state.undo()
                break
            seen.add(state.fingerprint)
            cost = self.objective(state)
            worst = max(worst, cost)
            if cost < best:
                best, found = cost, tuple(state.history[begin:])
            work.append(self._actions(state, sequence))
        return Proof(len(seen), complete, start, best, worst), found

    def _actions(self, state: FusionState, sequence: str | None) -> list[FusionAction]:
        kinds = KINDS if self.splits else FUSING_KINDS
        actions = [a for a in state.actions(kinds) if sequence is None or a.computation == sequence]
        return actions[::-1]
