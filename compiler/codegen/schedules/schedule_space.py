"""The space of schedules of one kernel: its knobs, the values that are worth trying, and their combinations.

The fields of `Schedule` and FIELD_RANGES are the only source of names and legal values. Generating a kernel shows which
of them affect it: a field that is not read or whose values all give the same code does not belong to the kernel's
space, and neither do values that the code generator refuses. A new field of `Schedule` therefore becomes a knob without
a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from compiler.codegen.schedules.observed import ObservedSchedule
from compiler.codegen.schedules.schedule import FIELD_RANGES, Schedule

MAX_VALUES = 8
"""Greatest number of values per knob, besides the default."""
TYPICAL_VALUES: Mapping[str, tuple[int, ...]] = {
    "tile": (0, 8, 16, 32, 64, 128),
    "columns": (16, 32, 64, 128, 256, 512, 1024),
    "block": (32, 64, 128, 256, 512, 1024),
    "lanes": (16, 32, 64, 128, 256, 512, 1024),
    "rare": (0, 256, 1024),
    "edges": (0, 1),
    "across": (0, 8, 16, 32, 64, 128),
    "tile_attention.queries": (0, 16, 32, 64, 128),
    "tile_attention.keys": (0, 16, 32, 64),
    "tiles.rows": (0, 16, 32, 64, 128),
    "tiles.columns": (0, 32, 64, 128),
    "tiles.depth": (0, 8, 16, 32, 64),
    "tiles.row_parts": (0, 1, 2, 4, 8, 16),
    "tiles.column_parts": (0, 1, 2, 4, 8, 16, 32),
    "tiles.depth_parts": (0, 1, 2, 4),
    "order.insertion": (0, 16, 64, 256),
    "order.digit": (6, 8, 11),
    "gpu.team": (0, 1, 8, 32, 128, 256, 1024),
    "gpu.width": (0, 1, 2, 4, 8),
    "gpu.items": (0, 1, 2, 4),
    "gpu.waves": (0, 2, 4, 8, 16),
    "gpu.resident": (0, 1, 2, 4, 8),
    "gpu.ahead": (0, 8, 16, 32, 64),
}
"""The values worth trying of fields for which the rule of `typical_values` does not suffice."""
NEVER_TRIED = frozenset({"gpu.atomics"})
"""Fields with which results would differ from run to run; they are changed only by who names them."""


@dataclass(frozen=True)
class Knob:
    """One parameter of a kernel.

    Attributes:
        name: a field of `Schedule`, or a name that the implementation defines.
        values: the values worth trying in ascending order, with the default among them.
        default: the value that the kernel has when none is chosen.
    """

    name: str
    values: tuple[int, ...]
    default: int

    def __post_init__(self) -> None:
        if self.default not in self.values or len(set(self.values)) < len(self.values):
            raise ValueError(f"knob {self.name}: the values {self.values} must be distinct and contain {self.default}")

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The values that differ from the default."""
        return tuple(v for v in self.values if v != self.default)


@dataclass(frozen=True)
class ScheduleSpace:
    """All combinations of the values of some knobs, in order of the number of knobs that differ from their defaults.

    Combination 0 is the default; then each knob is varied alone, then each pair of knobs, and so on.
    """

    knobs: tuple[Knob, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of combinations."""
        return sum(self._counts[0])

    @property
    def variations(self) -> int:
        """Number of combinations that vary one knob alone."""
        return self._counts[0][1] if self.knobs else 0

    @cached_property
    def _counts(self) -> tuple[tuple[int, ...], ...]:
        """Number of combinations of the knobs from position k on in which r of them are varied, at [k][r]."""
        n = len(self.knobs)
        rows = [[1] + [0] * n]
        for knob in reversed(self.knobs):
            below = rows[-1]
            rows.append([1] + [below[r] + len(knob.others) * below[r - 1] for r in range(1, n + 1)])
        return tuple(map(tuple, reversed(rows)))

    def combination(self, index: int) -> dict[str, int]:
        """Return the values of combination `index` that differ from the defaults; IndexError if there is none."""
        if not 0 <= index < self.size:
            raise IndexError(f"there is no combination {index}; the space has {self.size}")
        varied = 0
        while index >= self._counts[0][varied]:
            index -= self._counts[0][varied]
            varied += 1
        found: dict[str, int] = {}
        for k, knob in enumerate(self.knobs):
            if not varied:
                break
            rest = self._counts[k + 1][varied - 1]  # combinations of later knobs for each value of this one
            if index >= rest * len(knob.others):
                index -= rest * len(knob.others)
                continue
            found[knob.name] = knob.others[index // rest]
            index, varied = index % rest, varied - 1
        return found

    def __contains__(self, schedule: object) -> bool:
        """Check whether values by name, without those that are the default, are one of the combinations."""
        if not isinstance(schedule, Mapping):
            return False
        others = {k.name: k.others for k in self.knobs}
        return all(value in others.get(name, ()) for name, value in schedule.items())


@cache
def typical_values(name: str, default: int) -> tuple[int, ...]:
    """Return the values of a field of `Schedule` that are worth trying, in ascending order, with the default.

    They are all legal values if those are few, else powers of two, in steps of the range, that are at most 16 times
    smaller or greater than the default. TYPICAL_VALUES comes first, unless the default is below all that it lists and
    not 0. Of the fields in NEVER_TRIED it is the default alone.
    """
    allowed = FIELD_RANGES[name]
    if name in NEVER_TRIED:
        return (default,)
    if len(allowed) <= MAX_VALUES:
        return tuple(allowed)
    if name in TYPICAL_VALUES and (not default or default >= min(TYPICAL_VALUES[name])):
        return tuple(sorted({v for v in TYPICAL_VALUES[name] if v in allowed} | {default}))
    steps = (allowed.step << k for k in range(31))
    powers = [v for v in steps if v in allowed and default / 16 <= v <= max(64, 16 * default)]
    nearest = sorted(powers, key=lambda v: abs(v.bit_length() - max(1, default).bit_length()))[:MAX_VALUES]
    return tuple(sorted({*nearest, default, *({0} & set(allowed))}))


def schedule_space(generate: Callable[[Schedule], Hashable | None], default: Schedule) -> ScheduleSpace:
    """Return the knobs that affect a kernel, each with the values that give different code.

    Args:
        generate: returns what identifies the code of the kernel with a schedule, or None if it refuses the schedule.
        default: the schedule of the kernel when none is chosen.
    """
    plain, names = fields_read(generate, default)
    if plain is None:
        return ScheduleSpace()
    found = (_knob(name, generate, default, plain) for name in names)
    return ScheduleSpace(tuple(k for k in found if k is not None))


def fields_read(
    generate: Callable[[Schedule], Hashable | None], default: Schedule
) -> tuple[Hashable | None, tuple[str, ...]]:
    """Return what `generate` returns for the default, and the names of the fields that may affect it."""
    observed = ObservedSchedule.of(default)
    plain = generate(observed)
    return plain, tuple(name for name in FIELD_RANGES if name.partition(".")[0] in observed.reads)


def _knob(
    name: str, generate: Callable[[Schedule], Hashable | None], default: Schedule, plain: Hashable
) -> Knob | None:
    preset = default.value(name)
    values = [v for v in typical_values(name, preset) if v != preset]
    # The extremes show whether the field matters at all, so that fields without effect cost two kernels each.
    ends = {v: generate(default.with_values({name: v})) for v in values[:: max(1, len(values) - 1)]}
    if all(code == plain for code in ends.values()):
        return None
    codes: dict[Hashable, int] = {plain: preset}
    for v in values:
        code = ends[v] if v in ends else generate(default.with_values({name: v}))
        if code is not None:
            codes.setdefault(code, v)
    kept = tuple(sorted(codes.values()))
    return Knob(name, kept, preset) if len(kept) > 1 else None
