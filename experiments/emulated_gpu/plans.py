"""Plans of a program on the emulated GPU, and a search for good ones.

The search is the teacher of the network, and the map of the headroom. A plan here is a choice for each loop, and
fusions after which the rules take over. The rules alone are the plan with their own choices for loops, and no fusions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from compiler.fusion.policies import make_policy
from compiler.fusion.policies.scripts import Script, ScriptRunner, Step
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.loops import FULL, LoopPolicy, LoopSite, unroll_factor_of
from compiler.session import CompilationSession
from experiments.emulated_gpu.settings import EmulatedSettings

__all__ = ["LEAST_GAIN", "Found", "GivenLoops", "completed_seconds", "loop_choices", "open_session", "search_plan"]

LEAST_GAIN = 1e-3
"""Share of the time that a change must save to be kept."""


@dataclass(frozen=True)
class GivenLoops:
    """Chooses for loops what is given by their id, and otherwise as the rules do.

    Attributes:
        rules: those of the backend.
        choices: what is given.
    """

    rules: LoopPolicy
    choices: Mapping[str, str] = field(default_factory=dict)

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return the choice for one loop."""
        given = self.choices.get(site.id)
        return given if given in site.choices else self.rules.choose_loop(site, module)


def open_session(module: HloModule, backend: str, loops: Mapping[str, str] | None = None) -> CompilationSession:
    """Return a session in which passes and loops are decided."""
    session = CompilationSession(module, backend)
    session.run_passes()
    session.run_loop_policy(GivenLoops(session.default_loops(), loops or {}))
    return session


def completed_seconds(state: FusionState, completion: str) -> float:
    """Return the predicted time once a policy has gone on from a state; the state stays as it is."""
    before = len(state.history)
    run_policy(state, make_policy(completion))
    seconds = state.seconds()
    while len(state.history) > before:
        state.undo()
    return seconds


def loop_choices(site: LoopSite, instructions: int) -> list[str]:
    """Return the choices for a loop by which the module does not grow beyond so many instructions."""
    return [c for c in site.choices if _copies(site, c) * site.size <= instructions]


def _copies(site: LoopSite, choice: str) -> int:
    """Return how many copies of its body a loop has after a choice."""
    return (site.trip_count or 1) if choice == FULL else unroll_factor_of(choice) or 1


@dataclass
class Found:
    """What a search found for one program.

    Attributes:
        rules: predicted seconds of the rules alone.
        fused: the least predicted seconds with the rules' choices for loops.
        best: the least predicted seconds of all.
        loops: the best choices, by the ids of loops.
        choices: predicted seconds by id of a loop and choice, with the best choices for the loops before it.
        script: the fusions after which the rules lead to `best`.
        tried: number of fusions of the script that were there, a fusion that was tried after them, and the log of the
            speedup that it brought.
        evaluations: number of plans that were tried.
    """

    rules: float = 0.0
    fused: float = 0.0
    best: float = 0.0
    loops: dict[str, str] = field(default_factory=dict)
    choices: dict[str, dict[str, float]] = field(default_factory=dict)
    script: Script = ()
    tried: list[tuple[int, Step, float]] = field(default_factory=list)
    evaluations: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as a row of a file of plans."""
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Found:
        """Read it from such a row."""
        values = {f.name: row[f.name] for f in fields(Found)}
        values["script"] = tuple(map(_read_step, row["script"]))
        values["tried"] = [(int(n), _read_step(step), float(gain)) for n, step, gain in row["tried"]]
        return Found(**values)


def _read_step(data: Any) -> Step:
    kind, computation, producer, others = data
    return str(kind), str(computation), int(producer), tuple(map(int, others))


def search_plan(module: HloModule, settings: EmulatedSettings, only_loops: bool = False) -> Found:
    """Return the best plan that a local search from the plan of the rules finds by predicted time.

    For each loop every choice is tried. Then fusions are tried before those of the rules, those with the smallest
    effect first, because the rules miss what saves nothing by itself; a fusion that saves time in the end stays.
    With `only_loops` no fusions are tried.
    """
    found = Found()
    start = open_session(module, settings.backend).fusion
    if _instructions(start) > settings.instructions:
        return found
    found.rules = completed_seconds(start, settings.completion)
    if not found.rules:
        return found
    if only_loops:
        _choose_loops(module, settings, found)
        return found
    script, found.fused, tried = _climb(start, found.rules, settings, found)
    _choose_loops(module, settings, found)
    if found.loops:
        state = open_session(module, settings.backend, found.loops).fusion
        script, found.best, tried = _climb(state, completed_seconds(state, settings.completion), settings, found)
    else:
        found.best = found.fused
    found.script, found.tried = script, tried
    return found


def _instructions(state: FusionState) -> int:
    return sum(len(s.computation) for s in state.sequences.values())


def _choose_loops(module: HloModule, settings: EmulatedSettings, found: Found) -> None:
    session = CompilationSession(module, settings.backend)
    session.run_passes()
    least, rules = found.rules, session.default_loops()
    for site in session.loops():
        usual = rules.choose_loop(site, module)
        seconds = found.choices[site.id] = {usual: least}
        for choice in loop_choices(site, settings.instructions):
            if choice != usual:
                state = open_session(module, settings.backend, {**found.loops, site.id: choice}).fusion
                seconds[choice] = completed_seconds(state, settings.completion)
                found.evaluations += 1
        best = min(seconds, key=lambda c: seconds[c])
        if seconds[best] < least * (1 - LEAST_GAIN):
            found.loops[site.id], least = best, seconds[best]


def _climb(
    state: FusionState, seconds: float, settings: EmulatedSettings, found: Found
) -> tuple[Script, float, list[tuple[int, Step, float]]]:
    """Return the fusions to begin with, the predicted time that they lead to, and what was tried; see `Found`.

    The state stays as it is.
    """
    rng, runner, least = random.Random(0), ScriptRunner(state), seconds
    kept: list[Step] = []
    tried: dict[Step, None] = {}
    record: list[tuple[int, Step, float]] = []
    budget = min(settings.evaluations, settings.work // max(1, _instructions(state)))
    while budget:
        actions = {s: a for s, a in runner.actions().items() if s not in tried}
        if not actions:
            break
        step = min(actions, key=lambda s: (abs(state.estimate(actions[s])), rng.random()))
        tried[step] = None
        state.apply(actions[step])
        new = completed_seconds(state, settings.completion)
        budget -= 1
        found.evaluations += 1
        record.append((len(kept), step, math.log(least / new)))
        if new < least * (1 - LEAST_GAIN):
            kept.append(step)
            least = new
        else:
            state.undo()
    for _ in kept:
        state.undo()
    return tuple(kept), least, record
