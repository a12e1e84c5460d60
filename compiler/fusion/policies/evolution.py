"""Evolutionary search over scripts of fusions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.scripts import Objective, Script, ScriptRunner, ScriptSearch, estimated_seconds
from compiler.fusion.state import FusionState


@dataclass(eq=False)
class Evolution(ScriptSearch):
    """Evolutionary search: the best scripts of each generation are crossed and changed at random.

    Attributes:
        population: number of scripts in a generation.
        generations: number of generations after the first, which is random.
        survivors: number of scripts that live on as they are, and from which the others descend.
        seed: equal seeds give equal results.
        splits: whether fissions and moves are among the changes.
    """

    population: int = 24
    generations: int = 12
    survivors: int = 6
    seed: int = 0
    splits: bool = False
    objective: Objective = estimated_seconds

    def search(self, state: FusionState) -> tuple[FusionAction, ...]:
        """See `ScriptSearch.search`."""
        rng = random.Random(self.seed)
        runner = ScriptRunner(state, self.objective, self.splits)
        least = runner.cost()
        best: tuple[FusionAction, ...] = ()
        scripts: list[Script] = [()]
        ranked: list[tuple[float, Script]] = []
        for generation in range(self.generations + 1):
            children = [self._child(runner, scripts, rng, generation) for _ in range(self.population)]
            for script in children:
                done = runner.run(script)
                cost = runner.cost()
                ranked.append((cost, done))
                if cost < least:
                    least, best = cost, runner.history()
            ranked = sorted(dict.fromkeys(ranked), key=lambda r: r[0])[: self.survivors]
            scripts = [s for _, s in ranked]
        runner.restore()
        return best

    @staticmethod
    def _child(runner: ScriptRunner, scripts: list[Script], rng: random.Random, generation: int) -> Script:
        """Return a random script in the first generation, later two crossed at a random place and changed there."""
        first, second = rng.choice(scripts), rng.choice(scripts)
        cut = rng.randint(0, len(first))
        runner.run(first[:cut])
        for _ in range(rng.randint(0, 2) if generation else rng.randint(1, 40)):
            if not runner.extend(rng):
                break
        skip = rng.randint(0, 1) if generation else 0
        return (*runner.done, *second[min(cut, len(second)) + skip :])
