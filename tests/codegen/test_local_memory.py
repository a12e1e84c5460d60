"""Tests of the bound of local memory, against binding."""

from collections.abc import Callable

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.scalar_ops import COMPUTE_BYTES
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.local_memory import local_bytes_bound
from compiler.codegen.schedules.schedule import FIELD_RANGES, LOCAL_BYTES, Schedule
from compiler.codegen.schedules.schedule_space import typical_values
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation
from compiler.text import parse
from tests.codegen.random_fusions import random_fusion, random_nests

FIELDS = [name for name in FIELD_RANGES if "." not in name]
SUM = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b) }"


def _held(kernel: lir.Kernel, schedule: Schedule) -> float:
    """Return the bytes of the local arrays of the bound nest, infinite if it cannot be bound."""
    try:
        body = bind_c(kernel, schedule).body
    except UnsupportedError:
        return float("inf")
    return sum(s.size * COMPUTE_BYTES[s.type] for s in walk(body) if isinstance(s, lir.LocalArray))


def _random_schedule(rng: np.random.Generator) -> Schedule:
    default = Schedule()
    names = rng.choice(FIELDS, size=int(rng.integers(1, 8)), replace=False)
    return default.with_values({n: int(rng.choice(typical_values(n, default.value(n)))) for n in names})


@pytest.mark.parametrize("make", [random_fusion, random_nests])
def test_no_kernel_needs_more_local_memory_than_its_bound(
    make: Callable[[np.random.Generator], HloComputation],
) -> None:
    held, bounded = [], 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        try:
            kernel = lower(make(rng))
        except UnsupportedError:
            continue
        for schedule in (Schedule(), _random_schedule(rng)):
            bound = local_bytes_bound(kernel, schedule)
            held.append(_held(kernel, schedule))
            bounded += bound <= LOCAL_BYTES
            assert held[-1] <= bound
    assert max(held) > 0
    assert bounded > len(held) // 2


def _kernel(body: str) -> lir.Kernel:
    return lower(parse(f"HloModule m\n{SUM}\nENTRY main {{\n{body}\n}}").entry)


def test_values_of_many_cheap_operations_count_as_kept() -> None:
    steps = "\n".join(f"v{n + 1} = f32[64,4000] add(v{n}, y)" for n in range(12))
    kernel = _kernel(f"""
        v0 = f32[64,4000] parameter(0)
        y = f32[64,4000] parameter(1)
        {steps}
        zero = f32[] constant(0)
        s = f32[64] reduce(v12, zero), dimensions={{1}}, to_apply=add
        b = f32[64,4000] broadcast(s), dimensions={{0}}
        ROOT d = f32[64,4000] subtract(v12, b)""")
    assert 4 * 4000 <= _held(kernel, Schedule()) <= local_bytes_bound(kernel, Schedule()) <= LOCAL_BYTES


def test_parts_that_do_not_fit_are_not_bounded() -> None:
    kernel = _kernel("""
        x = f32[100000,1000] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[1000] reduce(x, zero), dimensions={0}, to_apply=add""")
    schedule = Schedule(splits=256)
    assert _held(kernel, schedule) == float("inf")
    assert local_bytes_bound(kernel, schedule) == float("inf")
    assert _held(kernel, Schedule()) <= local_bytes_bound(kernel, Schedule()) <= LOCAL_BYTES


def test_several_loops_over_the_same_rows_are_not_split() -> None:
    kernel = _kernel("""
        x = f32[2048,1024] parameter(0)
        zero = f32[] constant(0)
        s = f32[2048] reduce(x, zero), dimensions={1}, to_apply=add
        b = f32[2048,1024] broadcast(s), dimensions={0}
        d = f32[2048,1024] subtract(x, b)
        q = f32[2048,1024] multiply(d, d)
        v = f32[2048] reduce(q, zero), dimensions={1}, to_apply=add
        w = f32[2048,1024] broadcast(v), dimensions={0}
        ROOT o = f32[2048,1024] divide(d, w)""")
    bound = local_bytes_bound(kernel, Schedule())
    assert _held(kernel, Schedule()) <= bound < 4 * 2048 * 16  # parts of each sum would take more
