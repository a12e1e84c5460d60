"""Tests of kernels whose schedule needs more local memory than there is."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import hlogym
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.bind_c import FRUGAL, bind_c, check_binding, check_room
from compiler.codegen.schedules.local_memory import local_bytes
from compiler.codegen.schedules.schedule import FIELD_RANGES, LOCAL_BYTES, Schedule
from compiler.codegen.schedules.schedule_space import typical_values
from compiler.errors import UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, PrimitiveType
from compiler.text import parse
from tests.codegen.random_fusions import random_fusion, random_nests

FIELDS = [name for name in FIELD_RANGES if "." not in name]
STANDARDIZED = """HloModule m
add { a = f64[] parameter(0)
  b = f64[] parameter(1)
  ROOT r = f64[] add(a, b) }
ENTRY main {
  x = f64[30,20000] parameter(0)
  zero = f64[] constant(0)
  s = f64[20000] reduce(x, zero), dimensions={0}, to_apply=add
  n = f64[] constant(30)
  ns = f64[20000] broadcast(n), dimensions={}
  mean = f64[20000] divide(s, ns)
  means = f64[30,20000] broadcast(mean), dimensions={1}
  ROOT d = f64[30,20000] subtract(x, means)
}"""


def _random_schedule(rng: np.random.Generator) -> Schedule:
    default = Schedule()
    names = rng.choice(FIELDS, size=int(rng.integers(1, 8)), replace=False)
    return default.with_values({n: int(rng.choice(typical_values(n, default.value(n)))) for n in names})


@pytest.mark.parametrize("make", [random_fusion, random_nests])
def test_kernels_of_any_schedule_fit(make: Callable[[np.random.Generator], HloComputation]) -> None:
    held = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        try:
            kernel = lower(make(rng))
        except UnsupportedError:
            continue
        for schedule in (Schedule(), _random_schedule(rng)):
            check_binding(kernel, schedule)
            held.append(local_bytes(bind_c(kernel, schedule).body))
            assert held[-1] <= LOCAL_BYTES
            assert local_bytes(bind_c(kernel, schedule.with_values(FRUGAL)).body) <= LOCAL_BYTES // 8
    assert max(held) > 0


def test_what_would_hold_too_much_is_left_out() -> None:
    kernel = lower(parse(STANDARDIZED).entry)
    assert local_bytes(bind_c(kernel, Schedule(columns=8192)).body) > LOCAL_BYTES // 4
    assert local_bytes(bind_c(kernel, Schedule(columns=65_536)).body) < LOCAL_BYTES // 8


def test_the_default_schedule_leaves_out_what_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = STANDARDIZED.replace("20000", "20004")  # whose kernel no other test makes
    kernel = lower(parse(text).entry)
    assert local_bytes(bind_c(kernel, Schedule()).body) > 1000
    monkeypatch.setattr("compiler.codegen.schedules.bind_c.LOCAL_BYTES", 1000)
    assert local_bytes(bind_c(kernel, Schedule()).body) <= 1000
    x = np.random.default_rng(0).standard_normal((30, 20_004))
    executable = hlogym.compile(text)
    assert "_lanes[16]" in "".join(k.source for k in executable.kernels)
    (got,), (expected,) = executable(x), evaluate(parse(text), [x])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


def test_a_schedule_that_is_chosen_has_to_fit() -> None:
    kernel = lower(parse(STANDARDIZED).entry)
    check_room(kernel, Schedule(columns=8192))
    with pytest.raises(UnsupportedError, match="bytes of local arrays, more than 262144"):
        check_room(kernel, Schedule(columns=65_536))


@pytest.mark.parametrize(("kib", "fits"), [(64, True), (128, True), (192, True), (255, True), (257, False)])
def test_only_a_nest_that_has_too_large_arrays_itself_is_refused(kib: int, fits: bool) -> None:
    kernel = lower(parse(STANDARDIZED).entry)
    array = lir.LocalArray("large", PrimitiveType.F32, kib << 8)
    read = lir.Let("one", PrimitiveType.F32, lir.LocalLoad("large", ix.const(0)))
    store = lir.Store(kernel.arguments[-1].name, ix.const(0), "one")
    crowded = replace(kernel, body=(array, *kernel.body, read, store))
    if fits:
        check_binding(crowded, Schedule())
        assert kib << 10 <= local_bytes(bind_c(crowded, Schedule()).body) <= LOCAL_BYTES
    else:
        with pytest.raises(UnsupportedError, match="bytes of local arrays, more than 262144"):
            check_binding(crowded, Schedule())
