"""Simulated annealing over scripts of fusions."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.scripts import Objective, Script, ScriptRunner, ScriptSearch, estimated_seconds
from compiler.fusion.state import FusionState


@dataclass(eq=False)
class Annealing(ScriptSearch):
    """Simulated annealing: random changes, of which those that lose time are kept ever more rarely.

    A change leaves out one step, adds a random one, or does everything after a random place again. The temperature is
    a share of the time at the start and falls geometrically.

    Attributes:
        changes: number of changes tried.
        hot, cold: temperature of the first and of the last change: the loss, as a share, kept with probability 1/e.
        seed: equal seeds give equal results.
        splits: whether fissions and moves are among the changes.
    """

    changes: int = 300
    hot: float = 0.05
    cold: float = 0.0005
    seed: int = 0
    splits: bool = False
    objective: Objective = estimated_seconds

    def search(self, state: FusionState) -> tuple[FusionAction, ...]:
        """See `ScriptSearch.search`."""
        rng = random.Random(self.seed)
        runner = ScriptRunner(state, self.objective, self.splits)
        start = cost = least = runner.cost()
        current: Script = ()
        best: tuple[FusionAction, ...] = ()
        for n in range(self.changes):
            temperature = start * self.hot * (self.cold / self.hot) ** (n / self.changes)
            tried = self._change(runner, current, rng)
            new = runner.cost()
            if new <= cost or rng.random() < math.exp((cost - new) / temperature):
                current, cost = tried, new
            if new < least:
                least, best = new, runner.history()
        runner.restore()
        return best

    @staticmethod
    def _change(runner: ScriptRunner, script: Script, rng: random.Random) -> Script:
        kind = rng.random()
        if script and kind < 0.3:
            n = rng.randrange(len(script))
            return runner.run(script[:n] + script[n + 1 :])
        if script and kind < 0.4:
            runner.run(script[: rng.randrange(len(script))])
            while rng.random() < 0.8 and runner.extend(rng):
                pass
            return tuple(runner.done)
        runner.run(script)
        runner.extend(rng)
        return tuple(runner.done)
