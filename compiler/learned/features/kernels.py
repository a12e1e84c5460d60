"""What a policy sees of a kernel decision: a candidate per choice that is offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.learned.features.candidates import MAX_KNOBS, AlikeCandidates, Knobs, alike_kernels
from compiler.runtime.kernel_sites import KernelSite, OfferedChoices

__all__ = ["kernel_candidates"]

_SLOTS = {name: k for k, name in enumerate(tuple(FIELD_RANGES)[:MAX_KNOBS])}
"""The features of knobs, by field of `Schedule`; new fields belong at its end, so that features keep their meaning."""
_KNOWN: WeakKeyDictionary[OfferedChoices, tuple[KernelChoice, AlikeCandidates]] = WeakKeyDictionary()
"""The default and the candidates, without the kernel, of choices that equal kernels share."""


def kernel_candidates(site: KernelSite, choices: Sequence[KernelChoice]) -> AlikeCandidates:
    """Return the candidates of a kernel, one for each of the choices in their order."""
    if not isinstance(choices, OfferedChoices):
        return _candidates(site, choices)
    default, known = site.default, _KNOWN.get(choices)
    if known is None or known[0] != default:
        made = _candidates(site, choices)
        known = _KNOWN[choices] = default, replace(made, like=replace(made.like, producer=None))
    return replace(known[1], like=replace(known[1].like, producer=site.instruction))


def _candidates(site: KernelSite, choices: Sequence[KernelChoice]) -> AlikeCandidates:
    default, preset = site.default, site.default_schedule
    presets = {name: preset.value(name) for name in _SLOTS}
    return alike_kernels(
        site.instruction,
        keeps=[c == default for c in choices],
        generated=[c.implementation == GENERATED for c in choices],
        knobs=[_knobs(site, c, presets) for c in choices],
    )


def _knobs(site: KernelSite, choice: KernelChoice, presets: Mapping[str, int]) -> Knobs:
    """Return slot, default and value of the knobs that differ; knobs of a library share the slots by their order."""
    if choice.implementation == GENERATED:
        return tuple([(_SLOTS[k], presets[k], v) for k, v in choice.schedule.items() if k in _SLOTS])
    knobs = site.choices.options[choice.implementation].knobs[:MAX_KNOBS]
    return tuple((n, k.default, choice.schedule[k.name]) for n, k in enumerate(knobs) if k.name in choice.schedule)
