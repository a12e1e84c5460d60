"""Several iterations between two checks of a condition give the results of a loop that checks it each time."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import parse
from compiler.analysis.loop_marks import assumed_trips, unroll_factor
from compiler.codegen.build_target import C_TARGET
from compiler.codegen.languages import CUDA
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import verify
from compiler.loops import KernelOrUnrolledLoops, apply_loop_choice, loop_sites, unroll_choice
from compiler.passes.loops.loop_editing import Loops, make_explicit
from compiler.passes.loops.while_loop_unroller import guarded_refusal
from compiler.session import CompilationSession

# Halves x until it is small, keeps what it was in each iteration, and carries an array that never changes.
HALVING = """
HloModule halving

body {
  s = (f32[3], f32[12,3], s32[], f32[3]) parameter(0)
  x = f32[3] get-tuple-element(s), index=0
  kept = f32[12,3] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  factor = f32[3] get-tuple-element(s), index=3
  y = f32[3] multiply(x, factor)
  row = f32[1,3] reshape(y)
  zero = s32[] constant(0)
  one = s32[] constant(1)
  more = f32[12,3] dynamic-update-slice(kept, row, n, zero)
  next = s32[] add(n, one)
  ROOT r = (f32[3], f32[12,3], s32[], f32[3]) tuple(y, more, next, factor)
}

max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b)
}

condition {
  s = (f32[3], f32[12,3], s32[], f32[3]) parameter(0)
  x = f32[3] get-tuple-element(s), index=0
  least = f32[] constant(1)
  none = f32[] constant(0)
  largest = f32[] reduce(x, none), dimensions={0}, to_apply=max
  ROOT again = pred[] compare(largest, least), direction=GT
}

ENTRY e {
  x = f32[3] parameter(0)
  factor = f32[3] parameter(1)
  zero = f32[] constant(0)
  kept = f32[12,3] broadcast(zero), dimensions={}
  n = s32[] constant(0)
  start = (f32[3], f32[12,3], s32[], f32[3]) tuple(x, kept, n, factor)
  loop = (f32[3], f32[12,3], s32[], f32[3]) while(start), condition=condition, body=body
  y = f32[3] get-tuple-element(loop), index=0
  all = f32[12,3] get-tuple-element(loop), index=1
  count = s32[] get-tuple-element(loop), index=2
  ROOT r = (f32[3], f32[12,3], s32[]) tuple(y, all, count)
}
"""
FACTOR = np.full(3, 0.5, np.float32)
TARGET = CompilationSession(parse(HALVING), backend="cuda").target


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_the_state_stays_once_the_condition_is_false(factor: int) -> None:
    module = parse(HALVING)
    assert apply_loop_choice(module, 0, unroll_choice(factor), target=TARGET)
    verify(module)
    (loop,) = module.entry.of_opcode(Opcode.WHILE)
    assert unroll_factor(loop) == factor
    assert assumed_trips(loop, 10) == -(-10 // factor)
    for iterations in range(11):
        x = np.array([0.3, 2.0**iterations, 0.0], np.float32)
        for got, want in zip(evaluate(module, [x, FACTOR]), evaluate(parse(HALVING), [x, FACTOR]), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_part_of_an_array_alone_is_selected() -> None:
    module = parse(HALVING)
    apply_loop_choice(module, 0, unroll_choice(4), target=TARGET)
    (loop,) = module.entry.of_opcode(Opcode.WHILE)
    selected = [i for i in loop.attributes["body"].instructions if i.opcode is Opcode.SELECT]
    assert max(i.shape.num_elements for i in selected) == 3
    assert len(selected) == 3 * 3  # what is carried unchanged needs none


def test_only_backends_that_wait_for_the_condition_have_the_choice() -> None:
    assert TARGET.language == CUDA.name
    (on_gpu,), (on_cpu,) = (loop_sites(parse(HALVING), target=t) for t in (TARGET, C_TARGET))
    assert {unroll_choice(n) for n in (2, 4, 8)} <= set(on_gpu.choices)
    assert not any(c.startswith("unroll") for c in on_cpu.choices)
    module = parse(HALVING)
    apply_loop_choice(module, 0, unroll_choice(2), target=TARGET)
    (again,) = loop_sites(module, target=TARGET)
    assert not any(c.startswith("unroll") for c in again.choices)


def test_long_iterations_are_checked_each_time() -> None:
    for size, wanted in ((3, "unroll-4"), (1 << 24, "keep")):
        module = parse(
            HALVING.replace("12,3", f"12,{size}").replace("[3]", f"[{size}]").replace("[1,3]", f"[1,{size}]")
        )
        (site,) = loop_sites(module, target=TARGET)
        unrolled = [c for c in site.choices if c != "kernel"]
        site = type(site)(site.id, site.position, site.trip_count, site.size, tuple(unrolled))
        assert KernelOrUnrolledLoops().choose_loop(site, module) == wanted


def test_loops_with_loops_or_effects_are_refused() -> None:
    body, tested = HALVING[HALVING.index("body {") : HALVING.index("max {")], HALVING[HALVING.index("max {") :]
    outer = body.replace("body {", "outer {").replace(
        "y = f32[3] multiply(x, factor)",
        "t = (f32[3], f32[12,3], s32[], f32[3]) while(s), condition=condition, body=body\n"
        "  y = f32[3] get-tuple-element(t), index=0",
    )
    at = tested.index("ENTRY")
    nested = f"HloModule nested\n\n{body}{tested[:at]}{outer}{tested[at:].replace('body=body', 'body=outer')}"
    # The inner loop carries the parameter itself, so that the state of both is made explicit first.
    module = parse(nested)
    (inner,) = (i for c in module.computations if c.name == "outer" for i in c.of_opcode(Opcode.WHILE))
    make_explicit(inner)
    reasons = {view.body.name: guarded_refusal(view) for view in Loops(module).views()}
    assert reasons["body"] is None
    assert reasons["outer"] is not None
    effect = HALVING.replace(
        "y = f32[3] multiply(x, factor)",
        'y = f32[3] custom-call(x), custom_call_target="print", custom_call_has_side_effect=true',
    )
    (view,) = Loops(parse(effect)).views()
    assert guarded_refusal(view) == "it has side effects"
