"""Decisions as samples for imitation: what there was to choose, and what the search knows about each choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.analysis.cost_model import CostModel
from compiler.fusion.policies.scripts import step_of
from compiler.learned.features.decisions import decision_graph
from compiler.learned.features.fusion import FusionFeatures
from compiler.learned.features.loops import loop_candidates
from compiler.learned.features.programs import ModuleFeatures
from compiler.learned.pointer_network import DecisionGraph
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.emulated_gpu.mapping import Searched
from experiments.emulated_gpu.plans import open_session

__all__ = ["Sample", "samples_of"]

UNTRIED = -0.5
"""Log of the speedup that counts for choices of loops that were not tried, because the module would grow too large."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One decision.

    Attributes:
        graph: the decision.
        gains: [c] log of the speedup that a candidate brings, over stopping or over the choice of the rules; NaN where
            it is unknown.
        usual: the candidate over which the others gain.
        program: name of the program.
    """

    graph: DecisionGraph
    gains: npt.NDArray[np.float32]
    usual: int
    program: str


def samples_of(searched: Sequence[Searched], backend: str) -> list[Sample]:
    """Return the decisions of which the search tried some choices."""
    return [s for each in searched for s in (*_loops(each, backend), *_fusions(each, backend))]


def _loops(searched: Searched, backend: str) -> Iterator[Sample]:
    found = searched.found
    if not found.choices:
        return
    session = CompilationSession(parse(searched.program.text()), backend)
    session.run_passes()
    for site in session.loops():
        seconds = found.choices.get(site.id, {})
        if len(site.choices) > 1 and seconds:
            usual = next(iter(seconds))  # the choice of the rules
            facts = ModuleFeatures(session.module, CostModel(session.device))
            graph = decision_graph(loop_candidates(site, session.module), facts, "loops", facts.instructions())
            gains = [math.log(seconds[usual] / seconds[c]) if c in seconds else UNTRIED for c in site.choices]
            at = site.choices.index(usual)
            yield Sample(graph, np.array(gains, np.float32), at, searched.program.name)
        if seconds:
            session.set_loop(site, found.loops.get(site.id) or next(iter(seconds)))


def _fusions(searched: Searched, backend: str) -> Iterator[Sample]:
    found = searched.found
    if not found.tried:
        return
    state = open_session(parse(searched.program.text()), backend, found.loops).fusion
    features = FusionFeatures(state)
    for made in range(len(found.script) + 1):
        offer = features.offer()
        steps = {step_of(state.sequences[e.action.computation], e): n for n, e in enumerate(offer.entries)}
        gains = np.full(len(steps) + 1, np.nan, np.float32)
        gains[-1] = 0.0
        for before, step, gain in found.tried:
            if before == made and step in steps:
                gains[steps[step]] = gain
        if len(steps) and np.isfinite(gains[:-1]).any():
            yield Sample(features.graph(offer), gains, len(steps), searched.program.name)
        taken = None if made == len(found.script) else steps.get(found.script[made])
        if taken is None:
            return
        state.apply(offer.entries[taken].action)
