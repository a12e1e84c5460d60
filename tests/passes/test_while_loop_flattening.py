"""Loops whose neighbouring dimensions become one dimension of positions."""

import numpy as np
import numpy.typing as npt
import pytest

import hlogym
from compiler.interpreter import evaluate
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.loops import KERNEL, KernelLoops
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.loops.loop_editing import Loops
from compiler.passes.loops.while_loop_flattening import flattened_copy
from compiler.session import CompilationSession
from compiler.text import parse


def loop(state: str, body: str, *, others: str = "", condition: str = "", trips: int = 3) -> str:
    """Return a loop that carries `x` of shape `state`, arrays `a`, `b`, ... of shapes `others`, and a counter.

    The body computes `y`, the next value of `x`; the other arrays keep their values unless it defines `next_a`.
    """
    shapes = [s for s in others.split(";") if s]
    names = "abcdef"[: len(shapes)]
    whole = f"(s32[], {', '.join([state, *shapes])})"
    reads = [f"x = {state} get-tuple-element(s), index=1"]
    reads += [
        f"{n} = {s} get-tuple-element(s), index={k + 2}" for k, (n, s) in enumerate(zip(names, shapes, strict=True))
    ]
    ends = ["y", *(f"next_{n}" if f"next_{n} =" in body else n for n in names)]
    test = condition or f"last = s32[] constant({trips})\n  ROOT r = pred[] compare(i, last), direction=LT"
    parameters = [f"p{k} = {s} parameter({k})" for k, s in enumerate([state, *shapes])]
    lines = "\n  ".join
    return f"""HloModule m
add {{
  u = f32[] parameter(0)
  v = f32[] parameter(1)
  ROOT w = f32[] add(u, v)
}}
any {{
  u = pred[] parameter(0)
  v = pred[] parameter(1)
  ROOT w = pred[] or(u, v)
}}
body {{
  s = {whole} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  {lines(reads)}
  one = s32[] constant(1)
  j = s32[] add(i, one)
  {body}
  ROOT t = {whole} tuple(j, {", ".join(ends)})
}}
condition {{
  s = {whole} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {state} get-tuple-element(s), index=1
  {test}
}}
ENTRY main {{
  {lines(parameters)}
  zero = s32[] constant(0)
  t = {whole} tuple(zero, {", ".join(f"p{k}" for k in range(len(shapes) + 1))})
  loop = {whole} while(t), condition=condition, body=body
  {lines(f"r{k} = {s} get-tuple-element(loop), index={k + 1}" for k, s in enumerate([state, *shapes]))}
  ROOT r = ({", ".join([state, *shapes])}) tuple({", ".join(f"r{k}" for k in range(len(shapes) + 1))})
}}"""


POINTWISE = loop(
    "f32[6,8]",
    "h = f32[6,8] multiply(x, a) c = f32[] constant(0.5) k = f32[6,8] broadcast(c), dimensions={} "
    "y = f32[6,8] add(h, k)",
    others="f32[6,8]",
)
COMPONENTS_FIRST = loop(
    "f32[3,6,8]",
    "q = f32[3,6,8] multiply(x, x) z = f32[] constant(0) n = f32[6,8] reduce(q, z), dimensions={0}, to_apply=add "
    "m = f32[3,6,8] broadcast(n), dimensions={1,2} y = f32[3,6,8] subtract(x, m)",
)
COMPONENTS_LAST = loop(
    "f32[6,8,3]",
    "q = f32[6,8,2] slice(x), slice={[0:6], [0:8], [0:2]} l = f32[6,8,1] slice(x), slice={[0:6], [0:8], [2:3]} "
    "o = f32[6,8,3] concatenate(l, q), dimensions={2} e = f32[6,8,3] reverse(o), dimensions={2} "
    "z = f32[] constant(0.25) w = f32[6,8,4] pad(e, z), padding=0_0x0_0x0_1 "
    "u = f32[6,8,3] slice(w), slice={[0:6], [0:8], [1:4]} y = f32[6,8,3] subtract(u, x)",
)
TURNED = loop(
    "f32[6,8,3]",
    "q = f32[3,6,8] transpose(x), dimensions={2,0,1} v = f32[3,6,8] negate(q) "
    "r = f32[1,3,6,8] reshape(v) k = f32[3,6,8] reshape(r) y = f32[6,8,3] transpose(k), dimensions={1,2,0}",
)
ROW = loop("f32[6,8]", "k = f32[6,8] broadcast(a), dimensions={1} y = f32[6,8] add(x, k)", others="f32[8]")
NUMBERED = loop(
    "f32[6,8]",
    "n = s32[6,8] iota(), iota_dimension=1 m = s32[6,8] broadcast(i), dimensions={} l = s32[6,8] multiply(n, m) "
    "k = f32[6,8] convert(l) y = f32[6,8] add(x, k)",
)
SCAN = loop(
    "f32[6,8]",
    "zero = s32[] constant(0) o = f32[1,6,8] dynamic-slice(a, i, zero, zero), dynamic_slice_sizes={1,6,8} "
    "k = f32[6,8] reshape(o) y = f32[6,8] add(x, k) u = f32[1,6,8] reshape(y) "
    "next_b = f32[8,6,8] dynamic-update-slice(b, u, i, zero, zero)",
    others="f32[8,6,8];f32[8,6,8]",
    trips=8,
)
ACTIVE = loop(
    "f32[6,8]",
    "c = f32[] constant(4) k = f32[6,8] broadcast(c), dimensions={} l = pred[6,8] compare(x, k), direction=LT "
    "d = f32[6,8] add(x, x) g = f32[6,8] multiply(d, a) y = f32[6,8] select(l, g, x)",
    others="f32[6,8]",
    condition="c = f32[] constant(4) k = f32[6,8] broadcast(c), dimensions={} "
    "l = pred[6,8] compare(x, k), direction=LT f = pred[] constant(false) "
    "p = pred[] reduce(l, f), dimensions={0,1}, to_apply=any m = s32[] constant(20) "
    "n = pred[] compare(i, m), direction=LT ROOT r = pred[] and(p, n)",
)
BATCHES = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
body {
  s = (s32[], f32[6,8,5], f32[7,6,8], f32[6,7,8], f32[6,7,5]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  h = f32[6,8,5] get-tuple-element(s), index=1
  out = f32[7,6,8] get-tuple-element(s), index=2
  x = f32[6,7,8] get-tuple-element(s), index=3
  w = f32[6,7,5] get-tuple-element(s), index=4
  one = s32[] constant(1)
  zero = s32[] constant(0)
  none = f32[] constant(0)
  next = s32[] add(n, one)
  xs = f32[6,1,8] dynamic-slice(x, zero, n, zero), dynamic_slice_sizes={6,1,8}
  xn = f32[6,8] reshape(xs)
  xb = f32[6,8,5] broadcast(xn), dimensions={0,1}
  ws = f32[6,1,5] dynamic-slice(w, zero, n, zero), dynamic_slice_sizes={6,1,5}
  wn = f32[6,5] reshape(ws)
  wb = f32[6,8,5] broadcast(wn), dimensions={0,2}
  p = f32[6,8,5] multiply(xb, wb)
  g = f32[6,8,5] add(h, p)
  y = f32[6,8] reduce(g, none), dimensions={2}, to_apply=add
  row = f32[1,6,8] reshape(y)
  stored = f32[7,6,8] dynamic-update-slice(out, row, n, zero, zero)
  ROOT t = (s32[], f32[6,8,5], f32[7,6,8], f32[6,7,8], f32[6,7,5]) tuple(next, g, stored, x, w)
}
condition {
  s = (s32[], f32[6,8,5], f32[7,6,8], f32[6,7,8], f32[6,7,5]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  last = s32[] constant(7)
  ROOT r = pred[] compare(n, last), direction=LT
}
ENTRY main {
  h = f32[6,8,5] parameter(0)
  x = f32[6,7,8] parameter(1)
  w = f32[6,7,5] parameter(2)
  zero = s32[] constant(0)
  none = f32[] constant(0)
  out = f32[7,6,8] broadcast(none), dimensions={}
  t = (s32[], f32[6,8,5], f32[7,6,8], f32[6,7,8], f32[6,7,5]) tuple(zero, h, out, x, w)
  loop = (s32[], f32[6,8,5], f32[7,6,8], f32[6,7,8], f32[6,7,5]) while(t), condition=condition, body=body
  last = f32[6,8,5] get-tuple-element(loop), index=1
  rows = f32[7,6,8] get-tuple-element(loop), index=2
  ROOT r = (f32[6,8,5], f32[7,6,8]) tuple(last, rows)
}
"""
"""A state-space scan: each iteration reads its inputs between the dimensions to join, and a row of each batch."""
FLATTENED = {
    "pointwise": POINTWISE, "first": COMPONENTS_FIRST, "last": COMPONENTS_LAST, "turned": TURNED, "row": ROW,
    "numbered": NUMBERED, "scan": SCAN, "active": ACTIVE, "batches": BATCHES,
}  # fmt: skip
LEFT = {
    "product": loop(
        "f32[6,6]", "y = f32[6,6] dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}", others="f32[6,6]"
    ),
    "rows": loop(
        "f32[6,8]",
        "z = f32[] constant(0) n = f32[6] reduce(x, z), dimensions={1}, to_apply=add "
        "m = f32[6,8] broadcast(n), dimensions={0} y = f32[6,8] subtract(x, m)",
    ),
    "neighbours": loop(
        "f32[6,8]",
        "q = f32[6,7] slice(x), slice={[0:6], [1:8]} l = f32[6,1] slice(x), slice={[0:6], [0:1]} "
        "y = f32[6,8] concatenate(q, l), dimensions={1}",
    ),
    "transpose": loop("f32[6,6]", "k = f32[6,6] transpose(x), dimensions={1,0} y = f32[6,6] add(x, k)"),
    "changing row": loop(
        "f32[6,8]",
        "k = f32[6,8] broadcast(a), dimensions={1} y = f32[6,8] add(x, k) next_a = f32[8] add(a, a)",
        others="f32[8]",
    ),
    "sum": loop(
        "f32[6,8]",
        "z = f32[] constant(0) n = f32[] reduce(x, z), dimensions={0,1}, to_apply=add "
        "m = f32[6,8] broadcast(n), dimensions={} y = f32[6,8] subtract(x, m)",
    ),
}  # fmt: skip


def arguments(text: str) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s.dimensions).astype(np.float32) for s in parse(text).entry.parameter_shapes]


def the_loop(module: HloModule) -> HloInstruction:
    (found,) = (i for i in module.entry.instructions if i.opcode is Opcode.WHILE)
    return found


@pytest.mark.parametrize("name", FLATTENED)
def test_independent_dimensions_become_one(name: str) -> None:
    text = FLATTENED[name]
    module = parse(text)
    assert make_pass("while-loop-flattening").run(module)
    check_module(module)
    assert 48 in the_loop(module).shape.tuple_shapes[1].dimensions
    for got, expected in zip(evaluate(module, arguments(text)), evaluate(parse(text), arguments(text)), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert not make_pass("while-loop-flattening").run(module)


@pytest.mark.parametrize("name", LEFT)
def test_other_loops_are_left(name: str) -> None:
    module = parse(LEFT[name])
    before = module.to_text()
    assert not make_pass("while-loop-flattening").run(module)
    assert module.to_text() == before


def test_an_array_with_several_blocks_is_sliced_outside_of_its_positions() -> None:
    text = SCAN.replace("[8,6,8]", "[8,8,8]").replace("[6,8]", "[8,8]").replace("1,6,8", "1,8,8")
    module = parse(text)
    assert make_pass("while-loop-flattening").run(module)
    assert [s.dimensions for s in the_loop(module).shape.tuple_shapes] == [(), (64,), (8, 64), (8, 64)]
    for got, expected in zip(evaluate(module, arguments(text)), evaluate(parse(text), arguments(text)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_only_what_all_arrays_have_in_common_becomes_one_dimension() -> None:
    text = loop(
        "f32[6,8]",
        "z = f32[] constant(0) n = f32[6,8] reduce(a, z), dimensions={2}, to_apply=add y = f32[6,8] add(x, n) "
        "m = f32[6,8,4] broadcast(x), dimensions={0,1} next_a = f32[6,8,4] multiply(a, m)",
        others="f32[6,8,4]",
    )
    module = parse(text)
    assert make_pass("while-loop-flattening").run(module)
    assert [s.dimensions for s in the_loop(module).shape.tuple_shapes] == [(), (48,), (48, 4)]


def test_a_loop_around_a_flattened_loop_is_flattened() -> None:
    inner = "(s32[], f32[6,8])"
    text = loop(
        "f32[6,8]",
        f"h = f32[6,8] negate(x) zero = s32[] constant(0) q = {inner} tuple(zero, h) "
        f"l = {inner} while(q), condition=inner_condition, body=inner_body y = f32[6,8] get-tuple-element(l), index=1",
    ).replace(
        "body {",
        f"""inner_body {{
  s = {inner} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[6,8] get-tuple-element(s), index=1
  j = s32[] add(i, i)
  one = s32[] constant(1)
  k = s32[] add(i, one)
  y = f32[6,8] cosine(x)
  ROOT t = {inner} tuple(k, y)
}}
inner_condition {{
  s = {inner} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(2)
  ROOT r = pred[] compare(i, n), direction=LT
}}
body {{""",
        1,
    )
    module = parse(text)
    assert make_pass("while-loop-flattening").run(module)
    check_module(module)
    assert the_loop(module).shape.tuple_shapes[1].dimensions == (48,)
    (got,), (expected,) = evaluate(module, arguments(text)), evaluate(parse(text), arguments(text))
    np.testing.assert_array_equal(got, expected)


def test_a_body_that_two_loops_share_is_changed_for_one_only() -> None:
    text = POINTWISE.replace(
        "  r0 = f32[6,8] get-tuple-element(loop), index=1\n",
        "  again = (s32[], f32[6,8], f32[6,8]) while(t), condition=condition, body=body\n"
        "  first = f32[6,8] get-tuple-element(again), index=1\n"
        "  second = f32[6,8] get-tuple-element(loop), index=1\n  r0 = f32[6,8] add(first, second)\n",
    )
    module = parse(text)
    assert make_pass("while-loop-flattening").run(module)
    check_module(module)
    for got, expected in zip(evaluate(module, arguments(text)), evaluate(parse(text), arguments(text)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_copy_leaves_the_loop_as_it_is() -> None:
    module = parse(NUMBERED)
    before = module.to_text()
    (view,) = Loops(module).views()
    copy = flattened_copy(view)
    assert copy is not None
    assert copy.shape.tuple_shapes[1].dimensions == (48,)
    assert module.to_text() == before


@pytest.mark.parametrize("name", FLATTENED)
def test_kernels_of_flattened_loops_compute_the_same(name: str) -> None:
    text = FLATTENED[name]
    session = CompilationSession(parse(text))
    session.run_passes([])
    (site,) = session.loops()
    assert KERNEL in site.choices
    session.set_loop(site, KERNEL)
    assert not session.loops()
    got = session.finish()(*arguments(text))
    for g, expected in zip(got, evaluate(parse(text), arguments(text)), strict=True):
        np.testing.assert_allclose(g, expected, rtol=1e-6, atol=1e-6)


def test_large_arrays_of_two_dimensions_run_in_one_kernel() -> None:
    text = POINTWISE.replace("[6,8]", "[300,200]")
    executable = hlogym.compile(text, backend="cpu")
    assert len(executable.kernels) == 1
    expected = evaluate(parse(text), arguments(text))
    for got, e in zip(executable(*arguments(text)), expected, strict=True):
        np.testing.assert_allclose(got, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dims", "choice"), [("300,200", "keep"), ("30,40", "kernel")])
def test_loops_over_functions_of_many_elements_are_kept(dims: str, choice: str) -> None:
    module = parse(loop("f32[6,8]", "h = f32[6,8] tanh(x) y = f32[6,8] add(x, h)", trips=30).replace("6,8", dims))
    (site,) = CompilationSession(module).loops()
    assert KERNEL in site.choices
    assert KernelLoops().choose_loop(site, module) == choice
