"""The choice for one kernel: which implementation computes it, and the schedule of that implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen.schedules.schedule import Schedule, parse_choice
from compiler.errors import PlanError
from compiler.support.untrusted import as_integer, is_name, short_repr

GENERATED = "generated"
"""The implementation by the code generator, which every kernel without a library has."""


@dataclass(frozen=True)
class KernelChoice:
    """An implementation and the fields of its schedule that differ from the defaults of the kernel.

    PlanError when the fields are not those of a choice. Whether a kernel supports the choice depends on the kernel;
    `KernelSite.check` says so.

    Attributes:
        implementation: the name of a registered implementation.
        schedule: values by knob; for generated kernels these are fields of `Schedule`.
    """

    implementation: str = GENERATED
    schedule: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_name(self.implementation):
            raise PlanError(f"the implementation of a kernel must be a name, not {short_repr(self.implementation)}")
        parse = parse_choice if self.implementation == GENERATED else _parse_integers
        object.__setattr__(self, "schedule", dict(sorted(parse(self.schedule).items())))

    @staticmethod
    def of_knobs(implementation: str, values: Mapping[str, int]) -> KernelChoice:
        """Return a choice of an implementation's knobs, which need no check."""
        made = object.__new__(KernelChoice)
        object.__setattr__(made, "implementation", implementation)
        object.__setattr__(made, "schedule", dict(sorted(values.items())))
        return made

    def __hash__(self) -> int:
        return hash((self.implementation, tuple(self.schedule.items())))

    def __str__(self) -> str:
        """Return the choice as text, for example `generated{columns=64,tile=8}`."""
        fields = ",".join(f"{name}={value}" for name, value in self.schedule.items())
        return f"{self.implementation}{{{fields}}}" if fields else self.implementation

    def to_json(self) -> dict[str, object]:
        """Return the choice as plain data."""
        return {"implementation": self.implementation, "schedule": dict(self.schedule)}

    @staticmethod
    def from_json(data: object) -> KernelChoice:
        """Read what `to_json` wrote; raise PlanError for anything else."""
        if not isinstance(data, Mapping):
            raise PlanError(f"a kernel choice must be an object, not {short_repr(data)}")
        unknown = [name for name in data if name not in ("implementation", "schedule")]
        if unknown:
            raise PlanError(
                f"a kernel choice has the entries implementation and schedule, not {short_repr(unknown[0])}"
            )
        return KernelChoice(data.get("implementation", GENERATED), data.get("schedule", {}))


@dataclass(frozen=True)
class BoundKernel:
    """A choice that was checked for one kernel: the implementation and its complete schedule.

    Attributes:
        implementation: the name of a registered implementation.
        schedule: every field of the schedule of a generated kernel; the defaults for other implementations.
        options: the values of the knobs that other implementations have of their own.
    """

    implementation: str
    schedule: Schedule
    options: Mapping[str, int] = field(default_factory=dict)


KernelBindings: TypeAlias = Mapping[tuple[str, str], BoundKernel]
"""Bound kernels by the names of sequence and instruction."""


def _parse_integers(data: Mapping[str, object]) -> dict[str, int]:
    if not isinstance(data, Mapping):
        raise PlanError(f"the choices of a kernel must map names to integers, not {short_repr(data)}")
    found: dict[str, int] = {}
    for name, value in data.items():
        number = as_integer(value)
        if not is_name(name) or number is None:
            raise PlanError(
                f"the choices of a kernel must map names to integers, not {short_repr(name)} to {short_repr(value)}"
            )
        found[name] = number
    return found
