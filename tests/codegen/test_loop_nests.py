"""Loop kernels with trip counts known only at run time and with inner loops, against the interpreter."""

from __future__ import annotations

import _thread
import signal
import threading
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.api import compile as compile_hlo
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_kernel import loop_refusal
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.loops import KERNEL, loop_sites
from compiler.text import parse
from tests.codegen import running
from tests.codegen.test_stages import checked
from tests.fuzz.loop_nests import fuzz

N = 300
HEADER = """HloModule loops
any { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] or(a, b) }
sum { a = s32[] parameter(0) b = s32[] parameter(1) ROOT r = s32[] add(a, b) }
"""
GCD = """
condition { s = (s32[N], s32[N]) parameter(0) zero = s32[] constant(0)
  b = s32[N] get-tuple-element(s), index=1 zeros = s32[N] broadcast(zero), dimensions={}
  active = pred[N] compare(b, zeros), direction=NE false = pred[] constant(false)
  ROOT some = pred[] reduce(active, false), dimensions={0}, to_apply=any }
body { s = (s32[N], s32[N]) parameter(0) zero = s32[] constant(0)
  a = s32[N] get-tuple-element(s), index=0 b = s32[N] get-tuple-element(s), index=1
  zeros = s32[N] broadcast(zero), dimensions={}
  active = pred[N] compare(b, zeros), direction=NE
  rest = s32[N] remainder(a, b)
  a1 = s32[N] select(active, b, a) b1 = s32[N] select(active, rest, b)
  ROOT r = (s32[N], s32[N]) tuple(a1, b1) }
ENTRY main { a = s32[N] parameter(0) b = s32[N] parameter(1)
  t = (s32[N], s32[N]) tuple(a, b)
  w = (s32[N], s32[N]) while(t), condition=condition, body=body
  ROOT g = s32[N] get-tuple-element(w), index=0 }
"""
"""The greatest common divisor of each pair, as `vmap` of a `while_loop` computes it."""
LIMIT = """
condition { s = (s32[], s32[], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(i, n), direction=LT }
body { s = (s32[], s32[], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
  x = f32[N] get-tuple-element(s), index=2 one = s32[] constant(1)
  next = s32[] add(i, one) y = f32[N] cosine(x)
  ROOT r = (s32[], s32[], f32[N]) tuple(next, n, y) }
ENTRY main { n = s32[] parameter(0) x = f32[N] parameter(1) zero = s32[] constant(0)
  t = (s32[], s32[], f32[N]) tuple(zero, n, x)
  w = (s32[], s32[], f32[N]) while(t), condition=condition, body=body
  i = s32[] get-tuple-element(w), index=0 y = f32[N] get-tuple-element(w), index=2
  ROOT r = (s32[], f32[N]) tuple(i, y) }
"""
"""As many iterations as an argument says."""
NESTED = """
inner_condition { s = (s32[], s32[], f32[N], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(i, n), direction=LT }
inner_body { s = (s32[], s32[], f32[N], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
  x = f32[N] get-tuple-element(s), index=2 f = f32[N] get-tuple-element(s), index=3 one = s32[] constant(1)
  next = s32[] add(i, one) y = f32[N] multiply(x, f)
  ROOT r = (s32[], s32[], f32[N], f32[N]) tuple(next, n, y, f) }
condition { s = (s32[], s32[], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 ten = s32[] constant(10)
  ROOT less = pred[] compare(i, ten), direction=LT }
body { s = (s32[], s32[], f32[N]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 n = s32[] get-tuple-element(s), index=1
  x = f32[N] get-tuple-element(s), index=2 one = s32[] constant(1) zero = s32[] constant(0)
  next = s32[] add(i, one) f = f32[N] cosine(x)
  t = (s32[], s32[], f32[N], f32[N]) tuple(zero, n, x, f)
  w = (s32[], s32[], f32[N], f32[N]) while(t), condition=inner_condition, body=inner_body
  y = f32[N] get-tuple-element(w), index=2 count = s32[] get-tuple-element(w), index=0
  c = f32[] convert(count) cs = f32[N] broadcast(c), dimensions={}
  z = f32[N] add(y, f) d = f32[N] multiply(z, cs) u = f32[N] tanh(d)
  ROOT r = (s32[], s32[], f32[N]) tuple(next, n, u) }
ENTRY main { n = s32[] parameter(0) x = f32[N] parameter(1) zero = s32[] constant(0)
  t = (s32[], s32[], f32[N]) tuple(zero, n, x)
  w = (s32[], s32[], f32[N]) while(t), condition=condition, body=body
  ROOT y = f32[N] get-tuple-element(w), index=2 }
"""
"""Ten steps, each with as many steps inside as an argument says."""


def program(text: str) -> HloModule:
    return parse(HEADER + text.replace("[N]", f"[{N}]"))


def refusal(text: str) -> str:
    """Return why the loop of the entry has no kernel; empty if it has one."""
    loop = next(i for i in program(text).entry.instructions if i.opcode is Opcode.WHILE)
    return loop_refusal(loop) or ""


def _gcd_arguments() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 10_000, N).astype(np.int32) for _ in range(2)]


def test_each_tile_ends_when_its_positions_do() -> None:
    a, b = _gcd_arguments()
    exe = compile_hlo(program(GCD))

    assert [k.kind for k in exe.kernels] == ["loop-kernel"]
    np.testing.assert_array_equal(exe(a, b)[0], np.gcd(a, b))


@pytest.mark.parametrize("trips", [-3, 0, 1, 25])
@pytest.mark.parametrize("text", [LIMIT, NESTED], ids=["limit", "nested"])
def test_an_argument_is_the_number_of_iterations(text: str, trips: int) -> None:
    module = program(text)
    arguments = [np.int32(trips), np.random.default_rng(1).uniform(-1, 1, N).astype(np.float32)]
    exe = compile_hlo(module)

    assert [k.kind for k in exe.kernels] == ["loop-kernel"]
    for got, want in zip(exe(*arguments), evaluate(module, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_a_plan_decides_both_loops_of_a_nest() -> None:
    exe = compile_hlo(program(NESTED))
    assert exe.plan is not None
    again = compile_hlo(program(NESTED), plan=compiler.CompilationPlan.from_json(exe.plan.to_json()))

    assert exe.plan.loops == {"body/w": KERNEL, "main/w": KERNEL}
    assert [k.source for k in again.kernels] == [k.source for k in exe.kernels]


def test_a_loop_of_unknown_length_is_a_site_with_two_choices() -> None:
    (site,) = loop_sites(program(LIMIT))

    assert (site.trip_count, site.choices) == (None, ("keep", KERNEL))


def test_an_expensive_value_is_computed_once_per_iteration() -> None:
    (kernel,) = compile_hlo(program(NESTED)).kernels

    angles = kernel.source.count("hlogym_cosf") + kernel.source.count("cosf(")
    once = compile_hlo(program(LIMIT)).kernels[0].source
    assert angles == once.count("hlogym_cosf") + once.count("cosf(") > 0


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_loop_nests_in_cuda_match_the_interpreter() -> None:
    counts, problems = fuzz(20, seed=3, language="cuda")

    assert problems == []
    assert counts["right"] > 10


def test_loop_nests_in_c_match_the_interpreter() -> None:
    counts, problems = fuzz(40, seed=4)

    assert problems == []
    assert counts["right"] > 25


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_loop_nests_in_c_match_the_interpreter() -> None:
    _, problems = fuzz(5000, seed=5)

    assert problems == []


# ---- refusals


def test_positions_that_go_on_changing_are_named() -> None:
    why = refusal(GCD.replace("b1 = s32[N] select(active, rest, b)", "b1 = s32[N] copy(rest)"))

    assert "may change carried value 1 of positions that its condition no longer tests" in why


def test_a_comparison_that_is_not_the_one_of_the_condition_is_not_enough() -> None:
    other = GCD.replace(
        "active = pred[N] compare(b, zeros), direction=NE\n  rest",
        "active = pred[N] compare(b, zeros), direction=GT\n  rest",
    )

    assert "may change carried value" in refusal(other)
    assert refusal(GCD) == ""


def test_a_sum_over_positions_in_a_condition_is_named() -> None:
    total = GCD.replace("ROOT some = pred[] reduce(active, false), dimensions={0}, to_apply=any",
                        "all = s32[] reduce(b, zero), dimensions={0}, to_apply=sum "
                        "ROOT some = pred[] compare(all, zero), direction=NE")  # fmt: skip

    assert "its condition computes %some from positions of different tiles" in refusal(total)


COUNTED = (
    GCD.replace("(s32[N], s32[N])", "(s32[N], s32[N], s32[])")
    .replace("tuple(a1, b1)", "tuple(a1, b1, next)")
    .replace(
        "rest = s32",
        "i = s32[] get-tuple-element(s), index=2 one = s32[] constant(1) next = s32[] add(i, one)\n  rest = s32",
    )
    .replace(
        "t = (s32[N], s32[N], s32[]) tuple(a, b)",
        "zero = s32[] constant(0) t = (s32[N], s32[N], s32[]) tuple(a, b, zero)",
    )
)


def test_the_number_of_iterations_may_not_be_read_where_tiles_end_on_their_own() -> None:
    read = COUNTED.replace("ROOT g = s32[N] get-tuple-element(w), index=0",
                           "g = s32[N] get-tuple-element(w), index=0 i = s32[] get-tuple-element(w), index=2 "
                           "ROOT r = (s32[N], s32[]) tuple(g, i)")  # fmt: skip

    assert refusal(COUNTED) == ""
    assert "the number of iterations differs between positions, and %i depends on it" in refusal(read)


def test_positions_that_a_counter_may_wake_are_refused() -> None:
    counted = COUNTED.replace("b = s32[N] get-tuple-element(s), index=1 zeros = s32[N] broadcast(zero)",
                              "b = s32[N] get-tuple-element(s), index=1 i0 = s32[] get-tuple-element(s), index=2 "
                              "zeros = s32[N] broadcast(i0)")  # fmt: skip

    assert "positions may become active again" in refusal(counted)


# ---- interrupts


@pytest.mark.timeout(120)
def test_a_kernel_that_never_ends_can_be_interrupted() -> None:
    endless = LIMIT.replace("next = s32[] add(i, one)", "next = s32[] copy(i)")
    exe = compile_hlo(program(endless))
    assert [k.kind for k in exe.kernels] == ["loop-kernel"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores the signal
    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()

    try:
        with pytest.raises(KeyboardInterrupt):
            exe(np.int32(1), np.zeros(N, np.float32))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("columns", [2, 3, 8, 16])
@pytest.mark.parametrize("start", [1, 250])
def test_short_rows_with_tests_of_their_number_are_one_loop(columns: int, start: int) -> None:
    text = f"""
    x = f32[255,{columns}] parameter(0)
    first = f32[{start},{columns}] slice(x), slice={{[{255 - start}:255], [0:{columns}]}}
    rest = f32[{255 - start},{columns}] slice(x), slice={{[0:{255 - start}], [0:{columns}]}}
    rolled = f32[255,{columns}] concatenate(first, rest), dimensions={{0}}
    ROOT d = f32[255,{columns}] subtract(x, rolled)
    """
    source = checked(text, Schedule(threads=0))
    assert (f"{columns}*i1" in source) == (columns == 16)
