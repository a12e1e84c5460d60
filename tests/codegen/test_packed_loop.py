"""Loop kernels that also pack and unpack the state of their loop: one kernel, equal to the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.loops import KernelLoops
from compiler.session import CompilationSession
from compiler.support.threads import program_threads
from compiler.text import parse
from env.suites import find_program

N, STEPS = 100, 20
LOOP = """
condition {
  c = (s32[], f32[N], f32[N], f32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  limit = s32[] constant(STEPS)
  ROOT less = pred[] compare(i, limit), direction=LT
}

body {
  c = (s32[], f32[N], f32[N], f32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  x = f32[N] get-tuple-element(c), index=1
  v = f32[N] get-tuple-element(c), index=2
  t = f32[] get-tuple-element(c), index=3
  one = s32[] constant(1)
  h = f32[] constant(0.125)
  hs = f32[N] broadcast(h), dimensions={}
  ts = f32[N] broadcast(t), dimensions={}
  next = s32[] add(i, one)
  step = f32[N] multiply(hs, v)
  x1 = f32[N] add(x, step)
  pull = f32[N] multiply(hs, x1)
  slower = f32[N] subtract(v, pull)
  v1 = f32[N] add(slower, ts)
  t1 = f32[] add(t, h)
  ROOT new = (s32[], f32[N], f32[N], f32[]) tuple(next, x1, v1, t1)
}
"""
START = """
  zero = s32[] constant(0)
  xs = f32[N,1] slice(state), slice={[0:N], [0:1]}
  vs = f32[N,1] slice(state), slice={[0:N], [1:2]}
  x0 = f32[N] reshape(xs)
  v0 = f32[N] reshape(vs)
  t0 = f32[] parameter(1)
  start = (s32[], f32[N], f32[N], f32[]) tuple(zero, x0, v0, t0)
  w = (s32[], f32[N], f32[N], f32[]) while(start), condition=condition, body=body
  x = f32[N] get-tuple-element(w), index=1
  v = f32[N] get-tuple-element(w), index=2
  t = f32[] get-tuple-element(w), index=3
"""
STACKED = """
  a = f32[N,1] reshape(x)
  b = f32[N,1] reshape(v)
  stacked = f32[N,2] concatenate(a, b), dimensions={1}
"""
ENDS = {
    "stacked": (STACKED + "ROOT r = (f32[N,2], f32[]) tuple(stacked, t)", "(f32[N,2], f32[])"),
    "stacked_and_alone": (STACKED + "ROOT r = (f32[N,2], f32[N], f32[]) tuple(stacked, x, t)", ""),
    "rows": (
        "a = f32[1,N] reshape(x)\n b = f32[1,N] reshape(v)\n ROOT r = f32[2,N] concatenate(a, b), dimensions={0}", ""
    ),
    "elementwise": ("sum = f32[N] add(x, v)\n e = f32[N] exponential(sum)\n ROOT r = (f32[N], f32[N]) tuple(e, x)", ""),
    "shared": ("u = f32[] negate(t)\n q = f32[1] reshape(u)\n ROOT r = (f32[N], f32[1]) tuple(v, q)", ""),
    "read by others": (
        """
  a = f32[N] abs(x)
  product = f32[] dot(a, v), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  e = f32[N] add(a, v)
  ROOT r = (f32[N], f32[]) tuple(e, product)""",
        "",
    ),
    "reversed": ("ROOT r = f32[N] reverse(x), dimensions={0}", ""),
}  # fmt: skip


def program(end: str) -> str:
    entry = f"ENTRY main {{\n  state = f32[N,2] parameter(0)\n{START}\n{ENDS[end][0]}\n}}\n"
    return (
        f"HloModule packed\n{LOOP}\n{entry}".replace("STEPS", str(STEPS))
        .replace("[N", f"[{N}")
        .replace(":N]", f":{N}]")
        .replace(",N]", f",{N}]")
    )


@pytest.mark.parametrize("end", ENDS)
def test_packing_equals_the_interpreter(end: str) -> None:
    module = parse(program(end))
    arguments = [np.random.default_rng(0).standard_normal((N, 2)).astype(np.float32), np.float32(0.5)]

    exe = compile_hlo(module)

    assert "loop-kernel" in [k.kind for k in exe.kernels]
    for got, want in zip(exe(*arguments), evaluate(module, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("end", sorted(set(ENDS) - {"reversed", "read by others"}))
def test_a_packed_loop_is_one_kernel(end: str) -> None:
    exe = compile_hlo(program(end))

    assert [k.kind for k in exe.kernels] == ["loop-kernel"]


def test_what_is_not_computed_position_by_position_has_a_kernel_of_its_own() -> None:
    exe = compile_hlo(program("reversed"))

    assert sorted(k.kind for k in exe.kernels) == ["loop", "loop-kernel"]


READ = """HloModule read
condition { c = (s32[], s32[], f32[N], f32[N]) parameter(0)
  i = s32[] get-tuple-element(c), index=0 n = s32[] get-tuple-element(c), index=1
  ROOT less = pred[] compare(i, n), direction=LT }
body { c = (s32[], s32[], f32[N], f32[N]) parameter(0)
  i = s32[] get-tuple-element(c), index=0 n = s32[] get-tuple-element(c), index=1
  x = f32[N] get-tuple-element(c), index=2 a = f32[N] get-tuple-element(c), index=3
  one = s32[] constant(1) next = s32[] add(i, one) y = f32[N] multiply(x, a) z = f32[N] add(y, a)
  ROOT new = (s32[], s32[], f32[N], f32[N]) tuple(next, n, z, a) }
ENTRY main {
  n = s32[] parameter(0) x = f32[N] parameter(1) zero = s32[] constant(0) a = f32[N] tanh(x)
  start = (s32[], s32[], f32[N], f32[N]) tuple(zero, n, x, a)
  w = (s32[], s32[], f32[N], f32[N]) while(start), condition=condition, body=body
  ROOT y = f32[N] get-tuple-element(w), index=2 }
"""


@pytest.mark.skipif(program_threads() < 2, reason="the cost model of one thread prefers other fusions")
def test_what_a_loop_only_reads_is_computed_once_in_its_kernel() -> None:
    module = parse(READ.replace("[N]", "[64]"))
    arguments = [np.int32(7), np.random.default_rng(0).standard_normal(64).astype(np.float32)]

    exe = compile_hlo(module)

    assert [k.kind for k in exe.kernels] == ["loop-kernel"]
    assert exe.kernels[0].source.count("tanh") == 1
    np.testing.assert_allclose(exe(*arguments)[0], evaluate(module, arguments)[0], rtol=1e-5)


def test_sums_by_doubling_are_not_computed_again_for_each_position() -> None:
    steps = ["s0 = f32[N] parameter(1)", "none = f32[] constant(0)"]
    for k in range(6):
        steps.append(f"p{k} = f32[N] pad(s{k}, none), padding={1 << k}_-{1 << k}")
        steps.append(f"s{k + 1} = f32[N] add(s{k}, p{k})")
    chain = " ".join(steps).replace("s0", "x").replace("s6", "a")
    text = READ.replace("x = f32[N] parameter(1)", chain).replace("a = f32[N] tanh(x)", "")
    module = parse(text.replace("[N]", f"[{N}]"))
    arguments = [np.int32(7), np.random.default_rng(0).standard_normal(N).astype(np.float32)]

    exe = compile_hlo(module)

    (loop,) = [i for i in exe.module.entry.instructions if i.attributes.get("kind") == "kCustom"]
    (body,) = loop.called_computations()
    assert sum(i.opcode is Opcode.PAD for i in body.instructions) <= 1
    np.testing.assert_allclose(exe(*arguments)[0], evaluate(module, arguments)[0], rtol=1e-4)


def test_a_packed_loop_has_cuda_source() -> None:
    exe = compile_hlo(program("stacked"), backend="cuda")

    assert [(k.kind, k.language) for k in exe.kernels] == [("loop-kernel", "cuda")]


def test_the_module_is_valid_text() -> None:
    module = compile_hlo(program("stacked")).module

    assert str(parse(str(module))) == str(module)


def test_the_plan_and_a_chosen_schedule_are_replayed() -> None:
    session = CompilationSession(parse(program("stacked")))
    session.run_passes()
    session.run_loop_policy(KernelLoops())
    (site,) = session.kernel_sites()
    session.set_kernel(site, {"lanes": 32})
    arguments = [np.random.default_rng(1).standard_normal((N, 2)).astype(np.float32), np.float32(0.5)]

    plan = compiler.CompilationPlan.from_json(session.plan.to_json())
    exe = compile_hlo(program("stacked"), plan=plan)

    assert exe.plan is not None
    assert exe.plan.kernels == session.plan.kernels
    for got, want in zip(exe(*arguments), evaluate(parse(program("stacked")), arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


SCAN = """
HloModule scan

condition {
  c = (s32[], f32[100], f32[20,100]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  limit = s32[] constant(20)
  ROOT less = pred[] compare(i, limit), direction=LT
}

body {
  c = (s32[], f32[100], f32[20,100]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  x = f32[100] get-tuple-element(c), index=1
  ys = f32[20,100] get-tuple-element(c), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  half = f32[] constant(0.5)
  halves = f32[100] broadcast(half), dimensions={}
  scaled = f32[100] multiply(x, halves)
  x1 = f32[100] cosine(scaled)
  row = f32[1,100] reshape(x1)
  ys1 = f32[20,100] dynamic-update-slice(ys, row, i, zero)
  ROOT new = (s32[], f32[100], f32[20,100]) tuple(next, x1, ys1)
}

ENTRY main {
  state = f32[100,2] parameter(0)
  given = f32[20,100] parameter(1)
  zero = s32[] constant(0)
  column = f32[100,1] slice(state), slice={[0:100], [1:2]}
  x0 = f32[100] reshape(column)
  start = (s32[], f32[100], f32[20,100]) tuple(zero, x0, INIT)
  w = (s32[], f32[100], f32[20,100]) while(start), condition=condition, body=body
  x = f32[100] get-tuple-element(w), index=1
  ys = f32[20,100] get-tuple-element(w), index=2
  a = f32[100,1] reshape(x)
  both = f32[100,2] concatenate(a, column), dimensions={1}
  ROOT r = (f32[100,2], f32[20,100]) tuple(both, ys)
}
"""


@pytest.mark.parametrize("start", ["given", "zeros", "negated"])
def test_stacked_results_of_a_packed_loop(start: str) -> None:
    made = {
        "given": "",
        "zeros": "fill = f32[] constant(0)\n  zeros = f32[20,100] broadcast(fill), dimensions={}\n  ",
        "negated": "negated = f32[20,100] negate(given)\n  ",
    }[start]
    text = SCAN.replace("  start = ", f"  {made}start = ").replace("INIT", start)
    rng = np.random.default_rng(2)
    arguments = [rng.standard_normal(s).astype(np.float32) for s in ((100, 2), (20, 100))]
    before = arguments[1].copy()

    exe = compile_hlo(text)

    assert "loop-kernel" in [k.kind for k in exe.kernels]
    for got, want in zip(exe(*arguments), evaluate(parse(text), arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(arguments[1], before)


def test_the_explanation_names_the_decision() -> None:
    explanation = str(compile_hlo(program("stacked")).explain())

    assert "run the whole loop in one kernel, with the packing of its state" in explanation


@pytest.mark.parametrize("form", ["naive", "precomputed", "split"])
def test_cartpole_is_one_loop_kernel(form: str) -> None:
    text = find_program(f"cartpole_{form}").text()

    exe = compile_hlo(text)

    assert [k.kind for k in exe.kernels] == ["loop-kernel"]
