"""A schedule that notes which of its fields are read, and results that are kept by the fields that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.schedule import Schedule

BindStage: TypeAlias = Callable[[lir.Kernel, Schedule], lir.Kernel]
"""One step of binding a nest: it depends on the nest and on the fields of the schedule that it reads."""
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")
_FIELDS = frozenset(Schedule.__dataclass_fields__)
_SLOTS = tuple(vars(Schedule)[name] for name in Schedule.__dataclass_fields__)


class ObservedSchedule(Schedule):
    """A schedule that notes which of its fields are read; a field that is not read cannot change the result."""

    reads: set[str]

    @staticmethod
    def of(schedule: Schedule) -> ObservedSchedule:
        """Return a copy of a schedule with no reads so far; this is no read of the schedule itself."""
        observed = object.__new__(ObservedSchedule)
        for slot in _SLOTS:
            slot.__set__(observed, slot.__get__(schedule))
        object.__setattr__(observed, "reads", set())
        return observed

    def with_values(self, values: Mapping[str, int]) -> Schedule:
        """Return the schedule with some fields changed; reads of these and of the others count for this one, too."""
        made = ObservedSchedule.of(super().with_values(values))
        object.__setattr__(made, "reads", self.reads)
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            object.__getattribute__(self, "reads").add(name)
        return object.__getattribute__(self, name)


def bind_in_stages(stages: Sequence[BindStage], kernel: lir.Kernel, schedule: Schedule) -> lir.Kernel:
    """Return what the stages make of a nest, one after the other; errors are those of the stages."""
    for stage in stages:
        kernel = stage(kernel, schedule)
    return kernel


class StageMemo(Generic[_Given, _Result]):
    """The results of one stage, for few given objects and many schedules.

    A result is found again by the object and by the fields that were read. Equal results are the same object, so that
    later stages find theirs again, too: a field that changes nothing costs only the stages that read it.

    Args:
        stage: the stage; it depends on nothing else.
    """

    def __init__(self, stage: Callable[[_Given, Schedule], _Result]) -> None:
        self._stage = stage
        # By the id of what was given and the names of the fields that were read: how to read them, and results.
        self._known: dict[int, dict[tuple[str, ...], tuple[Callable[[Schedule], Any], dict[Any, _Result]]]] = {}
        self._given: list[_Given] = []  # kept, so that their ids stay theirs
        self._results: list[_Result] = []

    def __call__(self, given: _Given, schedule: Schedule) -> _Result:
        """Return the result of the stage; errors are those of the stage, and are not kept."""
        known = self._known.get(id(given))
        if known is None:
            known = self._known[id(given)] = {}
            self._given.append(given)
        for read, results in known.values():
            result = results.get(read(schedule))
            if result is not None:
                return result
        observed = ObservedSchedule.of(schedule)
        made = self._stage(given, observed)
        found = next((r for r in self._results if r is made or r == made), None)
        if found is None:
            self._results.append(made)
            found = made
        names = tuple(sorted(observed.reads))
        if names not in known:
            known[names] = (attrgetter(*names) if names else _read_nothing), {}
        read, results = known[names]
        results[read(schedule)] = found  # read from the schedule itself, which may be observed, too
        return found


def _read_nothing(schedule: Schedule) -> None:
    del schedule
