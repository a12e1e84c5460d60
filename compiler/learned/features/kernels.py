"""What a policy sees of a kernel decision: a candidate per choice that is offered."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.learned.features.candidates import MAX_KNOBS, Candidate
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["kernel_candidates"]

_SLOTS = {name: k for k, name in enumerate(tuple(FIELD_RANGES)[:MAX_KNOBS])}
"""The features of knobs, by field of `Schedule`; new fields belong at its end, so that features keep their meaning."""


def kernel_candidates(site: KernelSite, choices: Sequence[KernelChoice]) -> list[Candidate]:
    """Return the candidates of a kernel, one for each of the choices in their order."""
    return [
        Candidate(
            "kernel",
            site.instruction,
            keeps=choice == site.default,
            generated=choice.implementation == GENERATED,
            knobs=_knobs(site, choice),
        )
        for choice in choices
    ]


def _knobs(site: KernelSite, choice: KernelChoice) -> tuple[tuple[int, int, int], ...]:
    """Return slot, default and value of the knobs that differ; knobs of a library share the slots by their order."""
    if choice.implementation == GENERATED:
        preset = site.default_schedule
        return tuple((_SLOTS[k], preset.value(k), v) for k, v in choice.schedule.items() if k in _SLOTS)
    knobs = site.choices.options[choice.implementation].knobs[:MAX_KNOBS]
    return tuple((n, k.default, choice.schedule[k.name]) for n, k in enumerate(knobs) if k.name in choice.schedule)
