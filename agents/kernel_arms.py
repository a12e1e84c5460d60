"""What is expected of the choices of a kernel, from a model and from what was measured in the same program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

from agents.plan_search import MARGIN
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.runtime.kernel_sites import KernelSite

__all__ = [
    "UNKNOWN_CHOICE",
    "Belief",
    "KernelArms",
    "KnobEffects",
    "Priors",
    "expected_gain",
    "gain_belief",
]

NOISE = 0.03
"""Standard deviation of the log of a kernel's time as it is read in one measurement of its program."""
CONTEXT = 0.12
"""Standard deviation of what a value of a knob changes, between kernels of a program, by the measured choices of
`results/learning/data/kernel_times.jsonl.gz`: their correlation is 0.3."""
SHARED = 0.06
"""The same for knobs whose effects are alike in all kernels of a program: their correlation is 0.5 to 0.9."""
_SHARED_KNOBS = frozenset({"columns", "splits", "accumulators", "product.accumulators"})
LEAST_SPREAD = 0.008
"""Standard deviation of the same, however often the value was tried."""
AGAIN = 0.15
"""What a value of a knob is worth after it was tried in the same kernel beside other choices."""
NEAR = 0.03
"""Choices that are slower than the best one by more are not measured again."""
MOST_READINGS = 3
FLAT = 0.01
"""Log of a gain or a loss below which a value of a knob changes nothing."""
LESS = 0.5
"""Factor of what a value is expected to gain, for each other value of its knob that changed nothing in the kernel."""
_NAMES = frozenset({"implementation", "flags"})
"""Knobs whose values have nothing to do with each other."""
NEW = 2.0
"""Factor of what a value is expected to gain while no value of its knob was tried in the kernel: the beliefs are from
measurements of other machines, which may differ from this one."""
_APART = frozenset({"implementation", "vector"})
"""Knobs whose values say so little about each other that each counts as a knob of its own."""


class Belief(NamedTuple):
    """A normal distribution of the log of a gain."""

    mean: float
    spread: float

    def after(self, readings: Sequence[float], noise: float) -> Belief:
        """Return the belief after some readings with a standard deviation of `noise`."""
        prior, each = self.spread**-2, noise**-2
        total = prior + each * len(readings)
        return Belief((prior * self.mean + each * sum(readings)) / total, total**-0.5)


Priors: TypeAlias = Callable[[KernelSite, Sequence[KernelChoice]], Sequence[Belief]]
"""Returns what is expected of choices of a kernel over the first of them, without that one."""
Item: TypeAlias = tuple[str, object]
"""A knob and its value, or "implementation" and its name."""


UNKNOWN_CHOICE = Belief(-0.05, 0.07)
"""What is expected of a choice that nothing predicts."""


def expected_gain(belief: Belief, bar: float = 0.0) -> float:
    """Return the expected improvement over `bar`: the mean of what a gain exceeds it by, 0 where it does not."""
    z = (belief.mean - bar) / belief.spread
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return belief.spread * (density + z * 0.5 * math.erfc(-z / math.sqrt(2)))


def gain_belief(mean_gain: float) -> Belief:
    """Return a belief whose expected improvement over nothing is a mean gain where losses count as 0.

    Its spread grows with that mean: choices that gain much on average are those that either gain or lose a lot. The
    constants are a choice, not fitted.
    """
    spread = 0.04 + 1.5 * mean_gain
    return Belief(spread * float(np.interp(mean_gain / spread, _GAINS, _MEANS)), spread)


_MEANS = np.linspace(-4.0, 4.0, 801)
_GAINS = np.array([expected_gain(Belief(float(mean), 1.0)) for mean in _MEANS])
"""Expected improvements of normal distributions of spread 1, ascending."""


class KnobEffects:
    """What values of knobs have changed in a program, wherever they were tried."""

    def __init__(self) -> None:
        self._found: dict[Item, list[float]] = {}

    def note(self, item: Item, gain: float) -> None:
        """Note the log of a gain."""
        self._found.setdefault(item, []).append(gain)

    def expected(self, item: Item, prior: Belief) -> Belief:
        """Return what is expected of a value where it has not been tried."""
        found = prior.after(self._found.get(item, ()), SHARED if item[0] in _SHARED_KNOBS else CONTEXT)
        return Belief(found.mean, math.hypot(found.spread, LEAST_SPREAD))


@dataclass
class _Arm:
    """A choice.

    Attributes:
        choice: the choice.
        parent: number of the choice from which it differs in one knob.
        item: the value of that knob.
        prior: what is expected of it over its parent.
        readings: logs of its gains over the default choice.
        closed: whether it is not measured: it is refused, asked for, or the same code as another choice.
        checked: whether a kernel can be made with it.
    """

    choice: KernelChoice
    parent: int
    item: Item
    prior: Belief
    readings: list[float] = field(default_factory=list)
    closed: bool = False
    checked: bool = False


class KernelArms:
    """The choices of one kernel: the default one, those next to it, and those next to each that became the best.

    Args:
        site: the kernel.
        share: its time with the default choice, as a share of the program's.
        priors: what is expected of its choices.
        effects: what is known from other kernels of the program.
    """

    def __init__(self, site: KernelSite, share: float, priors: Priors, effects: KnobEffects) -> None:
        self.site = site
        self._priors, self._effects = priors, effects
        self._shares = [share]
        self._arms = [_Arm(site.default, 0, ("", ""), Belief(0.0, 0.0))]
        self._numbers = {site.default: 0}
        self._best, self._around = 0, -1
        self._tried: set[Item] = set()
        self._flat: Counter[str] = Counter()
        self._inert: set[str] = set()

    @property
    def share(self) -> float:
        """The time with the default choice, as a share of the program's."""
        return median(self._shares)

    @property
    def choice(self) -> KernelChoice | None:
        """The best choice that was measured; None: the default."""
        return self._arms[self._best].choice if self._best else None

    @property
    def expected_share(self) -> float:
        """The time with the best choice."""
        return self.share * math.exp(-self._belief(self._best).mean)

    def chosen(self, number: int) -> KernelChoice:
        """Return the choice of a number."""
        return self._arms[number].choice

    def number(self, choice: KernelChoice | None) -> int:
        """Return the number of a choice; 0 for None and for choices that are not known."""
        return 0 if choice is None else self._numbers.get(choice, 0)

    def read(self, number: int, share: float) -> None:
        """Note the time of the kernel with a choice, as a share of that of the program with the default plan."""
        if not number:
            self._shares.append(share)
            return
        arm = self._arms[number]
        arm.closed = False
        gain = math.log(self.share / share)
        arm.readings.append(gain)
        if len(arm.readings) == 1:
            changed = gain - self._level(arm.parent)
            self._effects.note(arm.item, min(0.5, max(-0.5, changed)))
            self._flat[arm.item[0]] += abs(changed) < FLAT and arm.item[0] not in _NAMES
        self._tried.add(arm.item)
        means = [self._belief(n).mean if a.readings or not n else -math.inf for n, a in enumerate(self._arms)]
        n = max(range(len(means)), key=means.__getitem__)
        if means[n] > means[self._best] + MARGIN:
            self._best = n

    def close(self, number: int) -> None:
        """Do not offer a choice any more, or not before it was read."""
        self._arms[number].closed = True

    def same_code(self, number: int) -> None:
        """Note that a choice makes the same code as another: the knob in which it differs does nothing here."""
        arm = self._arms[number]
        arm.closed = True
        if arm.item[0] != "implementation":
            self._inert.add(str(arm.item[0]))

    def next(self, behind: float) -> tuple[float, int]:
        """Return the number of the choice to measure next, 0 if there is none, and what it is expected to save.

        Args:
            behind: how much slower than the best plan the program is, as a share of the default plan's time; only what
                is saved beyond that counts.
        """
        if self._around != self._best:
            self._extend()
        best = self._belief(self._best).mean
        bar = best + behind / max(1e-9, self.share)
        ranked = sorted(((self._worth(n, best, bar), n) for n in range(1, len(self._arms))), reverse=True)
        for worth, n in ranked:
            if not worth > 0:
                break
            arm = self._arms[n]
            if arm.checked or self.site.check(arm.choice) is None:
                arm.checked = True
                return worth * self.share, n
            arm.closed = True
        return 0.0, 0

    def _worth(self, number: int, best: float, bar: float) -> float:
        arm = self._arms[number]
        if arm.closed or arm.item[0] in self._inert or len(arm.readings) >= MOST_READINGS:
            return 0.0
        belief = self._belief(number)
        if arm.readings and belief.mean < best - NEAR:
            return 0.0
        again = AGAIN if arm.item in self._tried else NEW if self._is_new(arm.item) else 1.0
        return float(expected_gain(belief, bar) * again * LESS ** self._flat[arm.item[0]])

    def _is_new(self, item: Item) -> bool:
        """Check whether no value of the same knob was tried in this kernel, or of a knob of `_APART`."""
        return item[0] in _APART or all(i[0] != item[0] for i in self._tried)

    def _extend(self) -> None:
        now = self._arms[self._best].choice
        found = [c for c in self.site.neighbours(now) if c not in self._numbers]
        for choice, prior in zip(found, self._priors(self.site, [now, *found]) if found else (), strict=True):
            self._numbers[choice] = len(self._arms)
            self._arms.append(_Arm(choice, self._best, _changed(now, choice), prior))
        self._around = self._best

    def _belief(self, number: int) -> Belief:
        arm = self._arms[number]
        if not number:
            return arm.prior
        if len(arm.readings) > 1:
            return Belief(sum(arm.readings) / len(arm.readings), NOISE / math.sqrt(len(arm.readings)))
        over = self._effects.expected(arm.item, arm.prior)
        return Belief(over.mean + self._level(arm.parent), over.spread).after(arm.readings, NOISE)

    def _level(self, number: int) -> float:
        readings = self._arms[number].readings
        return sum(readings) / len(readings) if readings else 0.0


def _changed(now: KernelChoice, other: KernelChoice) -> Item:
    """Return what one choice has that a neighbour has not."""
    if now.implementation != other.implementation:
        return "implementation", other.implementation
    changed = (k for k in {**now.schedule, **other.schedule} if now.schedule.get(k) != other.schedule.get(k))
    knob = next(changed, "")
    return knob, other.schedule.get(knob)
