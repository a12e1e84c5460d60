"""The order of steps, buffers that kernels share, and offsets in the arena."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler import compile
from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.ir.shape import array_shape
from compiler.ir.types import PrimitiveType
from compiler.loops import KeepLoops
from compiler.runtime.buffers import ALIGNMENT, PAGE, PLACE, Buffer, BufferKind, Interval, assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.executable import Executable
from compiler.runtime.live_arrays import find_peak
from compiler.runtime.sharing import share_buffers
from compiler.runtime.thunk_emitter import ThunkEmitter, ThunkProgram
from compiler.runtime.thunk_order import live_bytes, order_for_memory
from compiler.runtime.thunks import KernelThunk
from compiler.text import parse

spans = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 5000))


def emitted(text: str) -> ThunkProgram:
    """Return the thunks of a program without its needless copies."""
    program = ThunkEmitter("c").emit(parse(text))
    coalesce(program.thunks, program.results)
    return program


def unfused(module: HloModule) -> Executable:
    """Compile a program as it is written, each instruction as a kernel."""
    return compile(module, pipeline=[], fusion_policy="none", loop_policy=KeepLoops())


def peak(program: ThunkProgram) -> int:
    """Return the most bytes of temporaries that are alive at once."""
    return live_bytes(timeline(program.thunks, program.results).intervals())


@given(st.lists(spans, max_size=40))
def test_buffers_that_live_at_the_same_time_do_not_overlap(drawn: list[tuple[int, int, int]]) -> None:
    intervals = {
        Buffer(array_shape(PrimitiveType.U8, size), BufferKind.TEMPORARY): Interval(start, start + length)
        for start, length, size in drawn
    }
    arena = assign_offsets(intervals)
    assert arena >= live_bytes(intervals)
    listed = list(intervals.items())
    for n, (a, x) in enumerate(listed):
        assert 0 <= a.index <= arena - a.size
        assert a.index % ALIGNMENT == 0
        for b, y in listed[:n]:
            assert x.end < y.start or y.end < x.start or a.index + a.size <= b.index or b.index + b.size <= a.index


def test_a_gap_between_large_buffers_is_used() -> None:
    # A linear scan puts the last buffer behind the others: the third one has taken a part of the first one's place.
    sizes = [(50, 0, 1), (25, 0, 3), (10, 2, 5), (50, 2, 4)]
    intervals = {Buffer(array_shape(PrimitiveType.U8, n * 64)): Interval(a, b) for n, a, b in sizes}
    assert assign_offsets(intervals) == live_bytes(intervals) == 85 * 64


@pytest.mark.parametrize("count", [2, 6, 12])
def test_large_buffers_that_live_together_begin_at_different_places_of_a_page(count: int) -> None:
    intervals = {Buffer(array_shape(PrimitiveType.U8, 1 << 20)): Interval(0, 1) for _ in range(count)}
    size = assign_offsets(intervals)
    places = sorted(b.index % PAGE for b in intervals)
    assert all(high - low >= PLACE for low, high in pairwise(places))
    assert size <= count * ((1 << 20) + PAGE)


def test_large_buffers_one_after_the_other_take_the_same_memory() -> None:
    intervals = {Buffer(array_shape(PrimitiveType.U8, 1 << 20)): Interval(n, n + 1) for n in range(0, 40, 2)}
    assert assign_offsets(intervals) <= (1 << 20) + PAGE


GRADIENTS = """HloModule gradients
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY e {
  x = f32[64,64] parameter(0)
  z = f32[] constant(0)
STEPS
  ROOT r = (RESULTS) tuple(SUMS)
}"""


def sums_at_the_end(count: int) -> str:
    """Return a program that computes a row of matrix products and then sums each of them."""
    steps = [f"  d{k} = f32[64,64] dot({'x' if not k else f'd{k - 1}'}, x), lhs_contracting_dims={{1}}, "
             "rhs_contracting_dims={0}" for k in range(count)]  # fmt: skip
    steps += [f"  s{k} = f32[64] reduce(d{k}, z), dimensions={{1}}, to_apply=add" for k in range(count)]
    results = ", ".join(["f32[64]"] * count)
    sums = ", ".join(f"s{k}" for k in range(count))
    return GRADIENTS.replace("STEPS", "\n".join(steps)).replace("RESULTS", results).replace("SUMS", sums)


def test_steps_that_free_arrays_come_early() -> None:
    program = emitted(sums_at_the_end(8))
    assert peak(program) >= 8 * 64 * 64 * 4
    before = set(program.thunks)
    order_for_memory(program.thunks, program.results)
    assert set(program.thunks) == before
    assert peak(program) <= 3 * 64 * 64 * 4


def test_the_peak_is_described_by_the_arrays_alive_at_it() -> None:
    program = emitted(sums_at_the_end(3))
    found = find_peak(program.thunks)
    assert found.bytes == peak(program) == sum(a.bytes for a in found.arrays)
    assert found.step == "d2"  # each product is summed after the last one
    assert {(a.first, a.last) for a in found.arrays} == {("d0", "s0"), ("d1", "s1"), ("d2", "s2")}
    assert find_peak([]).arrays == ()


def test_an_explanation_shows_the_peak() -> None:
    explanation = compile(parse(sums_at_the_end(3)), pipeline=[]).explain()
    assert explanation.peak is not None
    assert f"of temporary arrays at %{explanation.peak.step}" in str(explanation)
    assert explanation.to_dict()["peak"] == explanation.peak.to_dict()


def test_programs_in_another_order_compute_the_same() -> None:
    module = parse(sums_at_the_end(6))
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    for got, wanted in zip(compile(module, pipeline=[])(x), evaluate(module, [x]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


UPDATES = """HloModule updates
body {
  t = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  a = f32[64] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  b = f32[64] sine(a)
  ROOT r = (s32[], f32[64]) tuple(j, b)
}
test {
  t = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT p = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[64] parameter(0)
  zero = s32[] constant(0)
  a = f32[64] exponential(x)
  s = (s32[], f32[64]) tuple(zero, a)
  w = (s32[], f32[64]) while(s), condition=test, body=body
  y = f32[64] get-tuple-element(w), index=1
  b = f32[64] cosine(a)
  ROOT r = (f32[64], f32[64]) tuple(y, b)
}"""


def test_a_value_that_a_loop_overwrites_is_read_before() -> None:
    module = parse(UPDATES)
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for got, wanted in zip(
        unfused(module)(x),
        evaluate(module, [x]),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


CHAIN = """HloModule chain
ENTRY e {
  x = f32[100] parameter(0)
  a = f32[100] exponential(x)
  b = f32[100] sine(a)
  c = f32[100] cosine(b)
  d = f32[100] add(c, x)
  ROOT r = (f32[100], f32[100]) tuple(d, LAST)
}"""


@pytest.mark.parametrize("last", ["d", "b", "x"])
def test_a_chain_of_kernels_runs_in_place(last: str) -> None:
    program = emitted(CHAIN.replace("LAST", last))
    share_buffers(program.thunks, program.results)
    assert peak(program) == 0


def test_an_operand_that_is_read_later_keeps_its_memory() -> None:
    module = parse(CHAIN.replace("LAST", "b"))
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    x[:3] = np.nan, np.inf, -np.inf
    for got, wanted in zip(
        unfused(module)(x),
        evaluate(module, [x]),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_transposed_operand_is_not_overwritten() -> None:
    program = emitted("""HloModule transposed
ENTRY e {
  x = f32[32,32] parameter(0)
  a = f32[32,32] exponential(x)
  t = f32[32,32] transpose(a), dimensions={1,0}
  ROOT r = f32[32,32] add(t, x)
}""")
    share_buffers(program.thunks, program.results)
    moved = next(t for t in program.thunks if isinstance(t, KernelThunk) and t.name == "t")
    assert moved.inputs[0].resolve() is not moved.outputs[0].resolve()
