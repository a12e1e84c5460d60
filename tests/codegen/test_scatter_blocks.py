"""Scatters whose targets are computed in vectors, block by block, before they are applied."""

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"


def histogram(count: int, bins: int) -> str:
    """Return a fused computation that counts in which bin each value is."""
    return f"""
    x = f32[{count}] parameter(0)
    scale = f32[] constant({bins / 4})
    scales = f32[{count}] broadcast(scale), dimensions={{}}
    half = f32[] constant({bins / 2})
    halves = f32[{count}] broadcast(half), dimensions={{}}
    scaled = f32[{count}] multiply(x, scales)
    shifted = f32[{count}] add(scaled, halves)
    floored = f32[{count}] floor(shifted)
    at = s32[{count}] convert(floored)
    index = s32[{count},1] reshape(at)
    zero = f32[] constant(0)
    start = f32[{bins}] broadcast(zero), dimensions={{}}
    one = f32[] constant(1)
    ones = f32[{count}] broadcast(one), dimensions={{}}
    ROOT h = f32[{bins}] scatter(start, index, ones), update_window_dims={{}}, inserted_window_dims={{0}},
      scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
    """


def weighted(count: int) -> str:
    """Return a fused computation that adds computed values at indices that are given."""
    return f"""
    i = s32[{count},1] parameter(0)
    x = f32[{count}] parameter(1)
    y = f32[{count}] exponential(x)
    zero = f32[] constant(0)
    start = f32[7] broadcast(zero), dimensions={{}}
    ROOT h = f32[7] scatter(start, i, y), update_window_dims={{}}, inserted_window_dims={{0}},
      scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
    """


@pytest.mark.parametrize("count", [32, 100, 256, 1000])
@pytest.mark.parametrize("bins", [4, 50])
def test_targets_are_computed_in_vectors(count: int, bins: int) -> None:
    source = checked(histogram(count, bins), Schedule(), ADD)
    computing = source.partition("_updates[")[2].rpartition("_updates[")[0]
    assert "#pragma omp simd" in computing


@pytest.mark.parametrize("count", [100, 513])
def test_values_are_computed_in_vectors(count: int) -> None:
    assert "_updates[" in checked(weighted(count), Schedule(), ADD)


@pytest.mark.parametrize("schedule", [Schedule(stages=0), Schedule(vector=0)], ids=["no stages", "no vectors"])
def test_the_schedule_may_keep_the_loop_whole(schedule: Schedule) -> None:
    assert "_updates[" not in checked(histogram(100, 4), schedule, ADD)


def test_few_updates_are_applied_as_they_are_computed() -> None:
    assert "_updates[" not in checked(histogram(20, 4), Schedule(), ADD)


def test_updates_that_are_only_loaded_are_not_copied() -> None:
    assert "_updates[" not in checked(weighted(100).replace("exponential(x)", "negate(x)"), Schedule(), ADD)
