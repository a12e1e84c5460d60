"""The plans of a program next to a plan: random changes, neighbours one by one, and crossings of two plans."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from agents.deviations import GROUPS, Built, Deviation, Group, PlanBuilder
from compiler.errors import HlogymError, UnknownNameError
from compiler.passes import PASSES

__all__ = ["ALL_GROUPS", "PlanSpace", "read_groups"]

ALL_GROUPS = "all"
MOST_PASSES = 4
"""Number of passes that one change may add."""
TRIES = 40
"""Changes in a row that lead to no new plan before a search ends."""

T = TypeVar("T")


def read_groups(text: str) -> tuple[Group, ...]:
    """Return groups of decisions given as text: `all`, or names joined by +, such as `loops+fusion`.

    Raises:
        UnknownNameError: there is no such group.
    """
    names = text.split("+")
    for name in names:
        if name not in (*GROUPS, ALL_GROUPS):
            raise UnknownNameError("group of decisions", name, (*GROUPS, ALL_GROUPS))
    return tuple(g for g in GROUPS if g in names or ALL_GROUPS in names)


class PlanSpace:
    """The plans that a search may propose for a program.

    Args:
        builder: builds them.
        groups: the decisions that may change.
        seed: of all random changes.

    Attributes:
        start: the plan without a deviation.
        rng: the source of all random numbers of a search.
        tried: the plans that were measured, as text; they are not proposed again.
    """

    def __init__(self, builder: PlanBuilder, groups: Sequence[Group], seed: int = 0) -> None:
        self._builder, self._groups = builder, tuple(groups)
        self.rng = random.Random(seed)
        self.start = builder.build(Deviation())
        self.tried = {self.start.text} if builder.is_default else set()

    def draw(self, count: int, make: Callable[[], Built | None]) -> list[Built]:
        """Return up to `count` different plans that were not tried; fewer if TRIES plans in a row are known."""
        found: dict[str, Built] = {}
        idle = 0
        while len(found) < count and idle < TRIES:
            built = make()
            if built is None or built.text in self.tried or built.text in found:
                idle += 1
                continue
            found[built.text], idle = built, 0
        return list(found.values())

    def build(self, deviation: Deviation | None) -> Built | None:
        """Return the plan of a deviation; None if there is none."""
        if deviation is None:
            return None
        try:
            return self._builder.build(deviation)
        except HlogymError:
            return None

    def is_changed(self, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
        """Check whether two sequences of passes lead to different programs; not if one of them fails."""
        try:
            return self._builder.passed(one) != self._builder.passed(other)
        except HlogymError:
            return False

    def changed(self, built: Built) -> Built | None:
        """Return a plan with one decision changed at random; None if the change is not possible."""
        return self.build(self._mutated(built, self.rng.choice(self._groups)))

    def walked(self, built: Built, changes: int) -> Built:
        """Return a plan with up to `changes` decisions changed, one after the other."""
        for _ in range(changes):
            built = self.changed(built) or built
        return built

    def sampled(self) -> Built | None:
        """Return a plan that the policy samples."""
        return self.build(Deviation(draw=self.rng.getrandbits(32)))

    def crossed(self, first: Built, second: Built) -> Built | None:
        """Return a plan that takes each decision from one of two plans."""
        one, other, rng = first.deviation, second.deviation, self.rng
        pick = rng.choice
        dropped = {a for a in one.dropped | other.dropped if a in pick((one, other)).dropped}
        added = [a for a in dict.fromkeys((*one.added, *other.added)) if a in pick((one, other)).added]
        return self.build(
            Deviation(
                pick((one, other)).passes,
                _mixed(one.expansions, other.expansions, rng),
                _mixed(one.loops, other.loops, rng),
                frozenset(dropped),
                tuple(added),
                _mixed(one.kernels, other.kernels, rng),
                pick((one, other)).draw,
            )
        )

    def neighbours(self, built: Built, seconds: Mapping[str, float]) -> Iterator[Built]:
        """Yield the plans that differ in one decision: expansions, loops, kernels, fusions, single passes.

        Args:
            built: the plan.
            seconds: time of its kernels by name, as far as known; those that take the most time come first.
        """
        given = built.deviation
        by_group: dict[Group, Callable[[], Iterator[Deviation]]] = {
            "expansions": lambda: (
                replace(given, expansions={**given.expansions, s.id: c})
                for s in built.expansions for c in s.choices
            ),
            "loops": lambda: (replace(given, loops={**given.loops, s.id: c}) for s in built.loops for c in s.choices),
            "kernels": lambda: (
                replace(given, kernels={**given.kernels, site.id: choice})
                for site, now in sorted(built.kernels, key=lambda k: -seconds.get(k[0].name, 0.0))
                for choice in site.neighbours(now)
                if site.check(choice) is None
            ),
            "fusion": lambda: itertools.chain(*_fusion_changes(built)),
            "passes": lambda: (replace(given, passes=(*given.passes, n)) for n in sorted(PASSES)),
        }  # fmt: skip
        for group, deviations in by_group.items():
            if group in self._groups:
                for deviation in deviations():
                    found = self.build(deviation)
                    if found is not None and found.text not in self.tried:
                        yield found

    def _mutated(self, built: Built, group: Group) -> Deviation | None:
        given, rng = built.deviation, self.rng
        match group:
            case "passes":
                return replace(given, passes=_edited(given.passes, sorted(PASSES), rng))
            case "expansions":
                choices = {s.id: s.choices for s in built.expansions if len(s.choices) > 1}
                return None if not choices else replace(given, expansions=_chosen(given.expansions, choices, rng))
            case "loops":
                choices = {s.id: s.choices for s in built.loops if len(s.choices) > 1}
                return None if not choices else replace(given, loops=_chosen(given.loops, choices, rng))
            case "fusion":
                # As many chances for fusions that the policy makes as for those that it does not make.
                groups = [g for g in map(list, _fusion_changes(built)) if g]
                return rng.choice(rng.choice(groups)) if groups else None
            case "kernels":
                return _other_kernel(built, rng)


def _fusion_changes(built: Built) -> tuple[Iterator[Deviation], Iterator[Deviation]]:
    """Return the deviations that drop or restore one fusion of the policy, and those that add or remove another."""
    given = built.deviation
    policys = (replace(given, dropped=given.dropped ^ {action}) for action in built.fused)
    added = itertools.chain(
        (replace(given, added=(*given.added, a)) for a in built.possible),
        (replace(given, added=tuple(a for a in given.added if a != old)) for old in given.added),
    )
    return policys, added


def _edited(names: tuple[str, ...], known: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """Return a sequence of passes with some added, since most change nothing alone, or with one removed."""
    at = rng.randrange(len(names) + 1)
    if names and rng.random() < 1 / 3:
        return names[: max(0, at - 1)] + names[max(1, at) :]
    return (*names[:at], *rng.choices(known, k=rng.randint(1, MOST_PASSES)), *names[at:])


def _chosen(given: Mapping[str, str], choices: Mapping[str, Sequence[str]], rng: random.Random) -> dict[str, str]:
    site = rng.choice(sorted(choices))
    return {**given, site: rng.choice([c for c in choices[site] if c != given.get(site)])}


def _other_kernel(built: Built, rng: random.Random) -> Deviation | None:
    if not built.kernels:
        return None
    site, now = rng.choice(built.kernels)
    near = site.neighbours(now)
    rng.shuffle(near)
    # Checked in turn: each check generates the kernel.
    choice = next((c for c in near if site.check(c) is None), None)
    return None if choice is None else replace(built.deviation, kernels={**built.deviation.kernels, site.id: choice})


def _mixed(one: Mapping[str, T], other: Mapping[str, T], rng: random.Random) -> dict[str, T]:
    """Return for each site the choice of one of two mappings, or none where the one that is picked has none."""
    picked = {site: rng.choice((one, other)) for site in dict.fromkeys((*one, *other))}
    return {site: of[site] for site, of in picked.items() if site in of}
