"""Tests of kernels with many schedules that share work, against making each by itself."""

import numpy as np
import pytest

from compiler.codegen.kernel_spec import KernelSpec, KernelVariants, LoweredKernel, flops_of
from compiler.codegen.languages import default_schedule
from compiler.codegen.lowering.lower import lower, roots_of
from compiler.codegen.schedules.schedule import FIELD_RANGES, Schedule
from compiler.codegen.schedules.schedule_space import typical_values
from compiler.errors import UnsupportedError
from tests.codegen.random_fusions import random_fusion, random_nests


def _kernel(seed: int, language: str) -> LoweredKernel | None:
    make = random_fusion if seed % 2 else random_nests
    fused = make(np.random.default_rng(seed))
    try:
        nest = lower(fused)
    except UnsupportedError:
        return None
    outputs = tuple(r.shape for r in roots_of(fused))
    return LoweredKernel("k", fused, nest, language, fused.parameter_shapes, outputs, flops_of(fused))


def _schedules(rng: np.random.Generator, language: str) -> list[Schedule]:
    """Return schedules that differ in few fields, several times the same field."""
    preset = default_schedule(language)
    names = [str(n) for n in rng.choice(list(FIELD_RANGES), 6)]
    found = [preset]
    for name in names:
        for value in rng.choice(typical_values(name, preset.value(name)), 3):
            found.append(found[int(rng.integers(len(found)))].with_values({name: int(value)}))
    return found


def _spec(make: LoweredKernel | KernelVariants, schedule: Schedule) -> KernelSpec | None:
    try:
        return make(schedule)
    except UnsupportedError:
        return None


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_kernels_that_share_work_are_those_that_are_made_alone(language: str) -> None:
    met = set()
    for seed in range(16):
        kernel = _kernel(seed, language)
        if kernel is None:
            continue
        variants = KernelVariants(kernel)
        for schedule in _schedules(np.random.default_rng(seed), language):
            alone = _spec(kernel, schedule)
            assert _spec(variants, schedule) == alone
            assert variants.is_refused(schedule) == (alone is None)
            met.add(None if alone is None else alone.symbol)
    assert len(met) > 10


def test_fields_that_one_kernel_reads_are_noted_whatever_was_made_before() -> None:
    kernel = _kernel(1, "c")
    assert kernel is not None
    variants = KernelVariants(kernel)
    variants(Schedule(vector=256))
    assert variants(Schedule(vector=512)).source == kernel.bind(Schedule(vector=512)).source
    assert variants(Schedule(vector=256)).source == kernel.bind(Schedule(vector=256)).source


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_changes_of_one_schedule_are_refused_as_the_changed_schedules_are(language: str) -> None:
    """Also narrow columns and long rows, which need more local memory than there is."""
    met = set()
    preset = default_schedule(language)
    for seed in range(10):
        kernel, rng = _kernel(seed, language), np.random.default_rng(seed)
        if kernel is None:
            continue
        variants = KernelVariants(kernel, preset)
        for _ in range(40):
            names = sorted({str(n) for n in rng.choice(["columns", "stages", "block", "grain", "cache", "unroll"], 3)})
            changes = {n: int(rng.choice([*typical_values(n, preset.value(n)), FIELD_RANGES[n][-1]])) for n in names}
            refused = _spec(kernel, preset.with_values(changes)) is None
            assert variants.is_change_refused(changes) == refused
            met.add(refused)
    assert False in met
