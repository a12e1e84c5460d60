"""What a policy sees of a kernel decision: a candidate per choice that is offered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.codegen.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedule import FIELD_RANGES
from compiler.learned.features.candidates import MAX_CANDIDATES, MAX_KNOBS, Candidate
from compiler.runtime.kernel_sites import KernelSite

__all__ = ["kernel_candidates", "offered_choices"]

_SLOTS = {name: k for k, name in enumerate(tuple(FIELD_RANGES)[:MAX_KNOBS])}
"""The features of knobs, by field of `Schedule`; new fields belong at its end, so that features keep their meaning."""


def offered_choices(site: KernelSite, limit: int = MAX_CANDIDATES) -> list[KernelChoice]:
    """Return the choices of a kernel that a policy decides among, at most `limit`, the default first.

    They are the default, the choices that differ from it in one knob or in the implementation, and a sample of the
    others that depends on their number alone. Choices that the code generator refuses are left out.
    """
    near = min(site.choices.nearest, limit)
    found = list(site.choices[:near])
    found += (c for c in _sample(site, near, limit - near) if site.check(c) is None)
    return found


def _sample(site: KernelSite, start: int, count: int) -> Iterator[KernelChoice]:
    """Yield up to `count` choices from position `start` on, evenly spaced."""
    left = site.choices.size - start
    for n in range(min(left, count)):
        yield site.choices[start + n * left // min(left, count)]


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
        return tuple((_SLOTS[k], getattr(preset, k), v) for k, v in choice.schedule.items() if k in _SLOTS)
    knobs = site.choices.options[choice.implementation].knobs[:MAX_KNOBS]
    return tuple((n, k.default, choice.schedule[k.name]) for n, k in enumerate(knobs) if k.name in choice.schedule)
