"""A search that is guided by what was learned: it measures first what is most likely to save time.

Each decision that may change has a belief about its gain: for fusions from the forest of the policy that ships, for
choices of kernels from the learned model of their gains, for others from a fixed prior. The plan that is measured next
has the change of the greatest expected improvement. Times of single kernels are read from the same measurement, so that
one plan tries choices of several kernels, and what was seen of a knob in one kernel is expected of the others. A plan
that seems to be the fastest is measured again, because the fastest of many measurements is often luck.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar

from agents.deviations import Built, Deviation
from agents.kernel_arms import (
    UNKNOWN_CHOICE,
    Belief,
    KernelArms,
    KnobEffects,
    expected_gain,
    gain_belief,
)
from agents.plan_search import MARGIN, PlanSearch, relative_time
from agents.plan_space import read_groups
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.fusion.actions import KINDS
from compiler.fusion.state import FusionState
from compiler.learned.choice_gains import shipped_choice_gains
from compiler.learned.features.fusion_changes import Change, FusionChanges
from compiler.learned.fusion_changes import shipped_changes
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.learned.learned_costs import BACKEND
from compiler.passes import PASSES
from compiler.runtime.kernel_sites import KernelSite
from env.measurement import Measurement

__all__ = ["Guided"]

MOST_FUSIONS = 60
"""Number of fusions that are looked at after each structure of a program: those of the kernels that take longest."""
MOST_LEGAL = 180
"""Number of fusions whose legality is checked for that."""
WIDEST = 8
"""Number of kernels whose choices one plan may change."""
MOST_BASES = 6
"""Number of plans from which the next one is made: of those that were kept, the ones least behind the fastest."""
LEAST_SHARE = 0.01
"""Share of the time that a kernel takes at least to be looked at."""
WORSE = 0.03
"""Share of the default plan's time by which a change may make a plan slower so that it is changed further."""
ASIDE = 0.02
"""Share of the default plan's time that must be saved more where a plan is not clearly faster than an earlier one: its
kernels are often almost the same, and their choices would all be tried again. For each change since the last one that
was a gain it is added once more."""
PATIENCE = 3
"""Number of measurements after which the best choices of all kernels are measured together."""
SURE = 2
"""Number of measurements of the plan that seems to be the fastest."""
TRIES = 500
"""Proposals in a row that lead to no new plan before random changes follow."""
MOST_CHANGES = 4
"""Greatest number of random changes of a plan, made when no change is left that is expected to gain."""
LEAST_SPREAD = 0.05
"""Standard deviation of the gain of a fusion, as a logarithm, where the forest is surer than that."""
OPTIMISM = 0.06
"""What is subtracted from the gain of a fusion that the forest predicts, as a logarithm: the fusions with the greatest
predictions are measured first, and these are too high on average. Fitted to 280 changes of training programs."""
_UNKNOWN = Belief(-0.1, 0.15)
"""What is expected of a loop, or of anything if nothing learned is asked."""
_EXPANSION = Belief(-0.2, 0.15)
"""What is expected of an expansion: of 77 that were measured, none gained."""
_WITHOUT = Belief(-0.25, 0.15)
"""What is expected of a plan without one of the fusions."""
_PASS = Belief(-0.2, 0.12)
_KIND_TRIALS = 2
"""Number of gains in as many trials that every kind of change is assumed to have had."""


@dataclass(frozen=True, eq=False)
class _Step:
    """A change of anything but the choices of kernels.

    Attributes:
        deviation: what leads to it.
        kind: kinds of changes whose gains are counted together.
        belief: the log of the gain that is expected in the kernels that it changes.
        share: the time of these, as a share of the default plan's.
        names: of these kernels; empty for all of them.
    """

    deviation: Deviation
    kind: str
    belief: Belief
    share: float = 1.0
    names: frozenset[str] = frozenset()

    def gain(self, behind: float) -> float:
        """Return what is expected to be saved beyond a share of the default plan's time."""
        return self.share * expected_gain(self.belief, behind / self.share)


@dataclass(eq=False)
class _Base:
    """Plans that differ in the choices of kernels only, and what is next to them.

    Attributes:
        built: the best of them that was measured.
        relative: its time, as a share of the default plan's.
        last: the same as it was measured last.
        kernels: those that take time, by the ids of their sites.
        shares: the time of each kernel, as a share of the default plan's.
        steps: the changes that were not tried; None before they are first asked for, because finding them takes time.
        plain: number of changes since the last one that was a gain.
        since: number of measurements since the best choices were measured together.
        joined: the best choices when they were last looked at together.
    """

    built: Built
    relative: float
    last: float
    kernels: Mapping[str, KernelArms]
    shares: Mapping[str, float]
    steps: list[_Step] | None = None
    plain: int = 0
    since: int = 0
    joined: Mapping[str, KernelChoice] = field(default_factory=dict)

    def best_choices(self) -> dict[str, KernelChoice]:
        """Return the choices of kernels that are better than the default, by site."""
        return {i: k.choice for i, k in self.kernels.items() if k.choice is not None}


@dataclass(frozen=True)
class _Proposal:
    """Where a plan comes from: its base, the step, and numbers of choices of kernels; neither: the best choices."""

    base: _Base
    deviation: Deviation
    gain: float = math.inf
    step: _Step | None = None
    choices: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Guided(PlanSearch):
    """Guided search: the changes of which learned models expect most, and choices of several kernels at once.

    Attributes:
        learned: ask the learned models; else every change is expected to gain the same.
    """

    reads_kernels: ClassVar[bool] = True
    takes_model: ClassVar[bool] = False
    learned: bool = True

    def _begin(self, start: Built, measurement: Measurement) -> None:
        self._changing = read_groups(self.groups)
        self._asked: dict[str, _Proposal] = {}
        self._kernels: dict[tuple[str, str], KernelArms] = {}
        self._effects = KnobEffects()
        self._counts: dict[str, tuple[int, int]] = {}
        self._bases: list[_Base] = []
        self._measured: dict[str, tuple[Built, list[float]]] = {}
        self._codes = {_code(start)}
        self._settle(start, 1.0 if measurement.seconds is None else measurement.relative, measurement)

    def _propose(self, count: int) -> Sequence[Built]:
        doubtful, found = self._doubtful(), list[Built]()
        if doubtful is not None and (count == 1 or doubtful.text not in self._measured):
            found.append(doubtful)
        for _ in range(TRIES):
            made = self._next() if len(found) < count else None
            if made is None:
                break
            for site, number in made.choices.items():
                made.base.kernels[site].close(number)
            if made.step is not None and made.step.kind == "passes" and not self._is_passed(made):
                continue
            built = self.space.build(made.deviation)
            if built is not None and (code := _code(built)) not in self._codes:
                self._codes.add(code)
                self._asked[built.text] = made
                found.append(built)
        if found:
            return found
        near = sorted(self._bases, key=lambda b: b.relative)[:MOST_BASES]
        rng = self.space.rng
        return self.space.draw(count, lambda: self.space.walked(rng.choice(near).built, rng.randint(1, MOST_CHANGES)))

    def _is_passed(self, made: _Proposal) -> bool:
        """Check whether more passes change the program; most change nothing, which is seen before it is fused."""
        return self.space.is_changed(made.deviation.passes, made.base.built.deviation.passes)

    def _doubtful(self) -> Built | None:
        """Return the plan that seems to be the fastest, if it was measured less than `SURE` times.

        It may be lucky; or it is the plan of a base whose time was only estimated from another plan's.
        """
        times = [(fmean(t), len(t), built) for built, t in self._measured.values()]
        relative, count, built = min(times, key=lambda t: t[0], default=(1.0, 0, None))
        base = min(self._bases[1:], key=lambda b: b.relative, default=None)
        if base is not None and base.relative < min(relative, 1.0) - MARGIN and base.built.text not in self._measured:
            return base.built
        return built if relative < 1 - MARGIN and count < SURE else None

    def _next(self) -> _Proposal | None:
        """Return the change of which most is expected; None if nothing is left."""
        least = min(b.relative for b in self._bases)
        first = next(b for b in self._bases if b.relative <= least + MARGIN)
        behind = {b: 0.0 if b is first else ASIDE * max(1, b.plain) + b.relative - least for b in self._bases}
        made = (self._of_base(b, behind[b]) for b in sorted(behind, key=behind.__getitem__))
        found = list(itertools.islice((p for p in made if p is not None), MOST_BASES))
        best = max(found, key=lambda p: p.gain, default=None)
        if best is not None:
            best.base.since += 1
            if best.step is None and not best.choices:
                best.base.since, best.base.joined = 0, best.deviation.kernels
            if best.step is not None:
                self._steps_of(best.base).remove(best.step)
        return best

    def _of_base(self, base: _Base, behind: float) -> _Proposal | None:
        ranked = sorted(((*k.next(behind), site) for site, k in base.kernels.items()), reverse=True)
        ranked = [r for r in ranked if r[1]][:WIDEST]
        step = max(self._steps_of(base), key=lambda s: self._worth(s, behind), default=None)
        together = [r for r in ranked if step and step.names and base.kernels[r[2]].site.name not in step.names]
        gain, alone = sum(r[0] for r in together), sum(r[0] for r in ranked)
        if step is not None and self._worth(step, behind) + gain > alone:
            ranked, alone = together, self._worth(step, behind) + gain
        else:
            step = None
        best = base.best_choices()
        if best not in (base.built.deviation.kernels, base.joined) and (base.since >= PATIENCE or not (step or ranked)):
            return _Proposal(base, replace(base.built.deviation, kernels=best))
        if step is None and not ranked:
            return None
        choices = {site: n for _, n, site in ranked}
        tried = {site: base.kernels[site].chosen(n) for site, n in choices.items()}
        given = base.built.deviation if step is None else step.deviation
        return _Proposal(base, replace(given, kernels={**best, **tried}), alone, step, choices)

    def _worth(self, step: _Step, behind: float) -> float:
        tried, gained = self._counts.get(step.kind, (0, 0))
        return step.gain(behind) * (gained + _KIND_TRIALS) / (tried + _KIND_TRIALS)

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        asked = self._asked.pop(built.text, None)
        if measurement.seconds is None:
            return
        readings = self._measured.setdefault(built.text, (built, []))[1]
        readings.append(relative)
        if asked is None:
            base = next((b for b in self._bases if b.built.text == built.text), None)
            if base is not None:
                self._measured_base(base, fmean(readings), measurement)
            elif relative < min(b.relative for b in self._bases) - MARGIN:  # a random change
                self._settle(built, relative, measurement)
            return
        base, step = asked.base, asked.step
        if step is None and len(asked.choices) == 1 and relative == base.last:  # times are never equal by chance
            for site, number in asked.choices.items():
                base.kernels[site].same_code(number)
            return
        lost = self._read(asked, built, relative, measurement)
        if step is None:
            if relative < base.relative:
                base.built, base.relative, base.last = built, relative, relative
            return
        gained = relative - lost < base.relative - MARGIN
        is_new = bool(asked.choices) or all(relative != b.last for b in self._bases)  # else it is the same code
        tried, gains = self._counts.get(step.kind, (0, 0))
        self._counts[step.kind] = tried + 1, gains + gained
        if is_new and relative - lost < base.relative + WORSE:
            bare = replace(step.deviation, kernels=base.best_choices())
            found = built if not asked.choices else self.space.build(bare)
            if found is not None:
                self._settle(found, relative - lost, measurement, 0 if gained else base.plain + 1)

    def _measured_base(self, base: _Base, relative: float, measurement: Measurement) -> None:
        """Note a measurement of the plan of a base; `relative` is the mean of all of its times."""
        base.relative, base.last = relative, relative_time(measurement)
        shares = _shares(measurement, relative_time(measurement))
        for site, kernel in base.kernels.items():
            if shares.get(kernel.site.name, 0.0) > 0:
                kernel.read(kernel.number(base.built.deviation.kernels.get(site)), shares[kernel.site.name])

    def _read(self, asked: _Proposal, built: Built, relative: float, measurement: Measurement) -> float:
        """Note the times of kernels that the step of a proposal leaves as they are; return what its choices cost."""
        shares, step, lost = _shares(measurement, relative), asked.step, 0.0
        # A kernel that is changed may keep its name.
        same = {s.id: s.fingerprint for s in built.session.kernel_sites()}
        for site, kernel in asked.base.kernels.items():
            if step is not None and (not step.names or kernel.site.name in step.names):
                continue
            if same.get(site) != kernel.site.fingerprint:
                continue
            share, expected = shares.get(kernel.site.name, 0.0), kernel.expected_share
            if not shares and step is None and list(asked.choices) == [site]:  # the whole program tells it
                share = expected + relative - asked.base.relative
            if share > 0:
                kernel.read(kernel.number(built.deviation.kernels.get(site)), share)
                lost += share - expected if site in asked.choices else 0.0
        return lost

    def _settle(self, built: Built, relative: float, measurement: Measurement, plain: int = 0) -> None:
        """Look at what is next to a plan."""
        shares = _shares(measurement, relative) or _estimated_shares(built, relative)
        kernels: dict[str, KernelArms] = {}
        for site, _ in built.kernels if "kernels" in self._changing else ():
            share = shares.get(site.name, 0.0)
            if share >= LEAST_SHARE:
                key = site.id, site.fingerprint
                if key not in self._kernels:
                    self._kernels[key] = KernelArms(site, share, self._kernel_priors, self._effects)
                kernels[site.id] = self._kernels[key]
        self._bases.append(_Base(built, relative, relative, kernels, shares, plain=plain))

    def _kernel_priors(self, site: KernelSite, choices: Sequence[KernelChoice]) -> list[Belief]:
        costs, gains = shipped_kernel_cost(), shipped_choice_gains()
        if not self.learned or costs is None or gains is None or site.backend != BACKEND:
            return [self._varied(UNKNOWN_CHOICE) for _ in choices[1:]]
        return [gain_belief(float(g)) for g in gains.of_choices(costs, site, choices)]

    def _steps_of(self, base: _Base) -> list[_Step]:
        """Return the changes that were not tried."""
        if base.steps is None:
            base.steps = list(self._steps(base.built, base.shares))
        return base.steps

    def _steps(self, built: Built, shares: Mapping[str, float]) -> Iterator[_Step]:
        given, groups = built.deviation, self._changing
        if "fusion" in groups:
            yield from self._fusions(built, shares)
            for action in built.fused:
                yield self._step(replace(given, dropped=given.dropped ^ {action}), "without", _WITHOUT)
        for s in built.expansions if "expansions" in groups else ():
            for c in s.choices:
                if c != given.expansions.get(s.id):
                    changed = replace(given, expansions={**given.expansions, s.id: c})
                    yield self._step(changed, "expansions", _EXPANSION)
        for loop in built.loops if "loops" in groups else ():
            for c in loop.choices:
                if c != given.loops.get(loop.id):
                    yield self._step(replace(given, loops={**given.loops, loop.id: c}), "loops", _UNKNOWN)
        for name in sorted(PASSES) if "passes" in groups else ():
            yield self._step(replace(given, passes=(*given.passes, name)), "passes", _PASS)

    def _step(self, deviation: Deviation, kind: str, belief: Belief) -> _Step:
        """Return a step of which nothing was learned."""
        return _Step(deviation, kind, self._varied(belief))

    def _varied(self, belief: Belief) -> Belief:
        """Return a belief that differs a little, so that changes of which equally much is expected come at random."""
        return Belief(belief.mean + 0.01 * self.space.rng.random(), belief.spread)

    def _fusions(self, built: Built, shares: Mapping[str, float]) -> Iterator[_Step]:
        chooser, costs = shipped_changes()
        given, state = built.deviation, built.session.fork().fusion
        changes = list(self._described(state, shares, costs))
        if not changes:
            return
        learned = self.learned and state.target.backend == BACKEND
        means, spreads = chooser.forest.predict([c.row for c in changes])
        for c, mean, spread in zip(changes, means, spreads, strict=True):
            belief = Belief(float(mean) - OPTIMISM, max(LEAST_SPREAD, float(spread)))
            if not learned:
                belief = self._varied(_UNKNOWN)
            share = max(1e-3, sum(shares.get(n, 0.0) for n in c.before))
            added = replace(given, added=(*given.added, c.action))
            yield _Step(added, c.action.kind, belief, share, frozenset(c.before))

    def _described(self, state: FusionState, shares: Mapping[str, float], model: LearnedKernelCost) -> Iterator[Change]:
        """Yield what the actions about the kernels that take longest change."""
        weighed = [
            (-sum(shares.get(n, 0.0) for n in {a.producer, *a.consumers}), self.space.rng.random(), n, a)
            for n, a in enumerate(state.candidates(KINDS))
        ]
        changes, left = FusionChanges(state, model), MOST_FUSIONS
        for share, _, _, action in sorted(weighed)[:MOST_LEGAL]:
            if not left or -share < LEAST_SHARE:
                return
            change = changes.describe(action) if state.is_legal(action) else None
            if change is not None:
                left -= 1
                yield change


def _code(built: Built) -> tuple[object, ...]:
    """Return what is equal for plans that lead to the same program with the same choices of kernels."""
    chosen = built.deviation.kernels
    return built.session.module.fingerprint(), tuple(sorted((i, str(c)) for i, c in chosen.items()))


def _shares(measurement: Measurement, relative: float) -> dict[str, float]:
    """Return the time of each kernel of a measured plan as a share of the default plan's."""
    return _scaled(measurement.kernel_seconds, relative)


def _estimated_shares(built: Built, relative: float) -> dict[str, float]:
    """Return the same by the analytic cost model, where kernels were not timed."""
    state = built.session.fork().fusion
    times: dict[str, float] = {}
    for sequence in state.sequences.values():
        for i in sequence.computation.instructions:
            times[i.name] = times.get(i.name, 0.0) + sequence.weight * sequence.time_of(i)
    return _scaled({n: t for n, t in times.items() if t}, relative)


def _scaled(times: Mapping[str, float], total: float) -> dict[str, float]:
    """Return times scaled so that they add up to a total; none if they take no time."""
    taken = sum(times.values())
    return {n: total * t / taken for n, t in times.items()} if taken else {}
