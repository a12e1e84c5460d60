"""Tests of the bound of local memory, against binding."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.scalar_ops import COMPUTE_BYTES
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import DIVIDING_STAGES, bind_c, check_binding, divided_bytes_bound
from compiler.codegen.schedules.local_memory import local_bytes_bound
from compiler.codegen.schedules.observed import bind_in_stages
from compiler.codegen.schedules.schedule import FIELD_RANGES, LOCAL_BYTES, Schedule
from compiler.codegen.schedules.schedule_space import typical_values
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation, PrimitiveType
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


def _divided_bound(kernel: lir.Kernel, schedule: Schedule) -> float:
    return divided_bytes_bound(bind_in_stages(DIVIDING_STAGES, kernel, schedule), schedule)


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
            assert held[-1] <= _divided_bound(kernel, schedule)
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


def _rare_kernel(n: int) -> lir.Kernel:
    steps = "\n".join(f"e{k + 1} = f32[{n}] {'sine' if k % 2 else 'tanh'}(e{k})" for k in range(12))
    return _kernel(f"""
        e0 = f32[{n}] parameter(0)
        m = pred[{n}] parameter(1)
        {steps}
        y = f32[{n}] negate(e0)
        s = f32[{n}] select(m, e12, y)
        c = f32[{n}] cosine(e0)
        ROOT r = f32[{n}] add(s, c)""")


def test_rare_work_is_bounded_once_it_is_separated() -> None:
    kernel, schedule = _rare_kernel(4096), Schedule(rare=1024)
    divided = bind_in_stages(DIVIDING_STAGES, kernel, schedule)
    assert any(isinstance(s, lir.ForFlagged) for s in walk(divided.body))
    assert local_bytes_bound(kernel, schedule) == float("inf")
    assert 4 * 1024 <= _held(kernel, schedule) <= divided_bytes_bound(divided, schedule) <= LOCAL_BYTES
    check_binding(kernel, schedule)


@pytest.mark.parametrize("kib", [64, 128, 192, 248, 256, 257])
def test_rare_work_is_refused_exactly_where_binding_refuses_it(kib: int) -> None:
    kernel, schedule = _rare_kernel(4096), Schedule(rare=1024)
    array = lir.LocalArray("large", PrimitiveType.F32, kib << 8)
    read = lir.Let("one", PrimitiveType.F32, lir.LocalLoad("large", ix.const(0)))
    store = lir.Store(kernel.arguments[-1].name, ix.const(0), "one")
    crowded = replace(kernel, body=(array, *kernel.body, read, store))
    with pytest.raises(UnsupportedError) if _held(crowded, schedule) == float("inf") else nullcontext():
        check_binding(crowded, schedule)
