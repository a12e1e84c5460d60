"""Pass orders by search: random, greedy and beam search, each within a budget of pass applications.

An application counts once: repeating it in the same state is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from compiler.errors import UnknownNameError
from compiler.ir import HloModule
from compiler.learned.pass_states import PassGraph, PassState

__all__ = ["PASS_SEARCHES", "FoundOrder", "Score", "beam", "greedy", "random_orders", "search_order"]

Score: TypeAlias = Callable[[PassState], float]
"""The quantity that a search minimizes."""
LONGEST = 60
BEAM_WIDTH = 4


@dataclass(frozen=True)
class FoundOrder:
    """The best result of a search: actions from the start, the state they lead to, and the applications used."""

    actions: tuple[int, ...]
    state: PassState
    applications: int


class _Best:
    """The best result so far; of equal ones, the first."""

    def __init__(self, graph: PassGraph, score: Score, budget: int) -> None:
        self.graph, self.score, self.budget = graph, score, budget
        self.actions: tuple[int, ...] = ()
        self.state, self.value = graph.root, score(graph.root)

    def exhausted(self) -> bool:
        return self.graph.runs >= self.budget

    def offer(self, actions: tuple[int, ...], state: PassState) -> float:
        value = self.score(state)
        if value < self.value:
            self.actions, self.state, self.value = actions, state, value
        return value

    def found(self) -> FoundOrder:
        return FoundOrder(self.actions, self.state, self.graph.runs)


def random_orders(graph: PassGraph, score: Score, budget: int, seed: int = 0) -> FoundOrder:
    """Draw passes at random, starting over after LONGEST passes; return the best prefix of all sequences."""
    best, rng = _Best(graph, score, budget), np.random.default_rng(seed)
    # Sequences that only repeat known applications cost nothing, so their number has a limit of its own.
    for _ in range(budget):
        state, idle = graph.root, frozenset[int]()
        actions: tuple[int, ...] = ()
        for _ in range(LONGEST):
            choices = [a for a in range(len(graph.actions)) if a not in idle]
            if best.exhausted() or not choices:
                break
            action = int(rng.choice(choices))
            after = graph.apply(state, action)
            idle = idle | {action} if after is state else frozenset()
            actions, state = (*actions, action), after
            best.offer(actions, state)
    return best.found()


def greedy(graph: PassGraph, score: Score, budget: int, seed: int = 0) -> FoundOrder:
    """Try every pass and apply the best, repeatedly; of equal ones, one that changes something."""
    return _by_levels(graph, score, budget, 1, seed)


def beam(graph: PassGraph, score: Score, budget: int, seed: int = 0) -> FoundOrder:
    """Search as `greedy`, but keep the BEAM_WIDTH best states at each level."""
    return _by_levels(graph, score, budget, BEAM_WIDTH, seed)


def _by_levels(graph: PassGraph, score: Score, budget: int, width: int, seed: int) -> FoundOrder:
    best, rng = _Best(graph, score, budget), np.random.default_rng(seed)
    seen = {graph.root.key}
    level: list[tuple[tuple[int, ...], PassState]] = [((), graph.root)]
    while level and not best.exhausted():
        made: list[tuple[float, tuple[int, ...], PassState]] = []
        for actions, state in level:
            # In random order, so that a budget too small for all passes favours none of them.
            for action in map(int, rng.permutation(len(graph.actions))):
                if best.exhausted():
                    break
                after = graph.apply(state, action)
                if after.key not in seen:
                    seen.add(after.key)
                    made.append((best.offer((*actions, action), after), (*actions, action), after))
        made.sort(key=lambda m: m[0])
        level = [(actions, state) for _, actions, state in made[:width]]
    return best.found()


PASS_SEARCHES: dict[str, Callable[[PassGraph, Score, int, int], FoundOrder]] = {
    "random": random_orders,
    "greedy": greedy,
    "beam": beam,
}


def search_order(
    name: str, module: HloModule, actions: tuple[str, ...], score: Score, budget: int, seed: int = 0
) -> FoundOrder:
    """Run a search on a new graph of a module and return its result.

    Raises:
        UnknownNameError: no search of that name, or no such pass.
    """
    if name not in PASS_SEARCHES:
        raise UnknownNameError("search", name, PASS_SEARCHES)
    return PASS_SEARCHES[name](PassGraph(module, actions), score, budget, seed)
