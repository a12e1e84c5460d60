"""Searches for fast plans over all decisions of a compilation, with one interface.

A search proposes plans, receives the times of those that were measured, and proposes others. `agents.search_run` runs
one within a budget. With `model=analytic` a search proposes many plans, of which those with the least predicted time
are measured.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agents.deviations import Built
from agents.guided import Guided
from agents.plan_search import MARGIN, PREDICTORS, PlanSearch, relative_time
from compiler.errors import UnknownNameError
from compiler.support.options import describe_options, read_options
from env.measurement import Measurement

__all__ = [
    "PREDICTORS",
    "SEARCHES",
    "Annealing",
    "Beam",
    "Evolution",
    "Greedy",
    "Guided",
    "Local",
    "PlanSearch",
    "PolicySamples",
    "RandomPlans",
    "describe_searches",
    "make_search",
]


@dataclass(eq=False)
class RandomPlans(PlanSearch):
    """Random search: each plan changes a random number of decisions of the first one.

    Attributes:
        most: greatest number of changes; each number is as probable as any other.
    """

    most: int = 8

    def _propose(self, count: int) -> Sequence[Built]:
        space = self.space
        return space.draw(count, lambda: space.walked(space.start, space.rng.randint(1, self.most)))


@dataclass(eq=False)
class PolicySamples(PlanSearch):
    """Samples of the policy, after the plan that it prefers."""

    def _propose(self, count: int) -> Sequence[Built]:
        return self.space.draw(count, self.space.sampled)


@dataclass(eq=False)
class _Climb(PlanSearch):
    """The part of searches that move from a plan to one that is faster by MARGIN."""

    _best: tuple[float, Built] = field(init=False, repr=False)

    def _begin(self, start: Built, measurement: Measurement) -> None:
        self._move(start, measurement)

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        if relative < (1 - MARGIN) * self._best[0]:
            self._move(built, measurement)

    def _move(self, built: Built, measurement: Measurement) -> None:
        self._best = relative_time(measurement), built


@dataclass(eq=False)
class Local(_Climb):
    """Local search: one random decision of the best plan is changed at a time."""

    def _propose(self, count: int) -> Sequence[Built]:
        return self.space.draw(count, lambda: self.space.changed(self._best[1]))


@dataclass(eq=False)
class Greedy(_Climb):
    """Greedy search: the plans next to the best one in order, until none of them is faster.

    Expansions and loops come first, then kernels from the one that takes the most time to the one that takes the least,
    then fusions and single passes. The first plan that is faster becomes the best one.
    """

    def _move(self, built: Built, measurement: Measurement) -> None:
        super()._move(built, measurement)
        self._rest = self.space.neighbours(built, measurement.kernel_seconds)
        self._next: dict[str, Built] = {}

    def _propose(self, count: int) -> Sequence[Built]:
        while len(self._next) < count and (built := next(self._rest, None)) is not None:
            self._next.setdefault(built.text, built)
        return list(self._next.values())[:count]

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        self._next.pop(built.text, None)
        super()._note(built, relative, measurement)


@dataclass(eq=False)
class Annealing(PlanSearch):
    """Simulated annealing: random changes, of which those that lose time are kept ever more rarely.

    Attributes:
        hot, cold: temperature of the first and of the last measurement: the loss, as a share of the default plan's
            time, that is kept with probability 1/e.
    """

    hot: float = 0.05
    cold: float = 0.002

    def _begin(self, start: Built, measurement: Measurement) -> None:
        self._current, self._noted = (relative_time(measurement), start), 0

    def _propose(self, count: int) -> Sequence[Built]:
        return self.space.draw(count, lambda: self.space.changed(self._current[1]))

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        temperature = self.hot * (self.cold / self.hot) ** min(1.0, self._noted / self.measurements)
        self._noted += 1
        loss = relative - self._current[0]
        if loss <= 0 or self.space.rng.random() < math.exp(-loss / temperature):
            self._current = relative, built


@dataclass(eq=False)
class _Generations(PlanSearch):
    """The part of searches that keep several plans and replace them when a number of new ones was measured."""

    _kept: list[tuple[float, Built]] = field(init=False, repr=False)
    _made: list[tuple[float, Built]] = field(init=False, repr=False)

    def _begin(self, start: Built, measurement: Measurement) -> None:
        self._kept, self._made = [(relative_time(measurement), start)], []

    def _note(self, built: Built, relative: float, measurement: Measurement) -> None:
        self._made.append((relative, built))
        if len(self._made) >= self.size:
            ranked = sorted([*self._kept, *self._made], key=lambda k: k[0])
            self._kept, self._made = ranked[: self.survivors], []

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of plans of a generation."""

    @property
    @abstractmethod
    def survivors(self) -> int:
        """Number of plans from which the next generation is made."""


@dataclass(eq=False)
class Beam(_Generations):
    """Beam search: the best few plans, each changed in some ways by one decision, and the best of all of them again.

    Attributes:
        width: number of plans that are kept.
        branch: number of changes of each.
    """

    width: int = 4
    branch: int = 4

    @property
    def size(self) -> int:
        """Number of plans of a generation."""
        return self.width * self.branch if len(self._kept) > 1 else self.branch

    @property
    def survivors(self) -> int:
        """Number of plans from which the next generation is made."""
        return self.width

    def _propose(self, count: int) -> Sequence[Built]:
        space = self.space
        turn = len(self._made)

        def grown() -> Built | None:
            nonlocal turn
            turn += 1
            return space.changed(self._kept[turn % len(self._kept)][1])

        return space.draw(count, grown)


@dataclass(eq=False)
class Evolution(_Generations):
    """Evolutionary search: the best plans of each generation are crossed and changed at random.

    Attributes:
        population: number of plans of a generation.
        parents: number of plans that live on, and from which the others descend.
    """

    population: int = 16
    parents: int = 6

    @property
    def size(self) -> int:
        """Number of plans of a generation."""
        return self.population

    @property
    def survivors(self) -> int:
        """Number of plans from which the next generation is made."""
        return self.parents

    def _propose(self, count: int) -> Sequence[Built]:
        return self.space.draw(count, self._child)

    def _child(self) -> Built | None:
        space, rng = self.space, self.space.rng
        if len(self._kept) == 1:  # the first generation
            return space.walked(self._kept[0][1], rng.randint(1, 4))
        first, second = (b for _, b in rng.sample(self._kept, 2))
        crossed = space.crossed(first, second)
        return None if crossed is None else space.walked(crossed, rng.randint(0, 2))


SEARCHES: Mapping[str, type[PlanSearch]] = MappingProxyType(
    {
        "random": RandomPlans,
        "greedy": Greedy,
        "local": Local,
        "beam": Beam,
        "annealing": Annealing,
        "evolution": Evolution,
        "guided": Guided,
    }
)
"""The searches by name; their fields are their options."""
_SPEC = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:\{([^{}]*)\})?")


def make_search(text: str, seed: int | None = None) -> PlanSearch:
    """Make a search from its name and options: `local`, `evolution{population=8,model=analytic}`.

    Args:
        text: name and options.
        seed: replaces the seed of the options.

    Raises:
        UnknownNameError: there is no such search, group or cost model.
        OptionError: the search does not have these options, or they are malformed.
    """
    match = _SPEC.fullmatch(text.strip())
    name, options = match.groups() if match else (text, None)
    if name not in SEARCHES:
        raise UnknownNameError("search", name, SEARCHES)
    made = SEARCHES[name](**read_options(SEARCHES[name], options or "", f"search {name!r}"))
    return made if seed is None else replace(made, seed=seed)


def describe_searches() -> dict[str, tuple[str, str]]:
    """Return by name the first sentence of what a search does, and the options that it takes with their defaults."""
    return {
        name: (inspect.cleandoc(cls.__doc__ or "").partition("\n")[0], _options(cls)) for name, cls in SEARCHES.items()
    }


def _options(cls: type[PlanSearch]) -> str:
    return describe_options(cls, without=() if cls.takes_model else ("model", "drawn"))
