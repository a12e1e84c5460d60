"""Loops that blocks of threads run, as CUDA C++ in the emulator, against the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.backends.cuda.emulation import stand_in
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET
from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Var
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates import loop_kernel
from compiler.codegen.templates.block_stages import BlockStages
from compiler.codegen.templates.loop_state import LoopState
from compiler.codegen.templates.shared_pitches import SharedRead, best_pitch
from compiler.errors import UnsupportedError
from compiler.interpreter import Context, evaluate, evaluate_op
from compiler.ir import HloInstruction
from compiler.text import parse
from env.reference import Reference
from tests.codegen import running
from tests.codegen.test_loop_kernel import loop

N = "n = s32[] add(i, one)"
STORE = "o = s32[] constant(0)"
ZERO = "zero = f32[] constant(0)"
LOOPS = {
    "a product with a matrix, stacked": (
        "f32[7]; f32[5,7]; f32[7,7]",
        f"""{N} {STORE} y = f32[7] dot(x3, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        t = f32[7] tanh(y) t1 = f32[1,7] reshape(t) z = f32[5,7] dynamic-update-slice(x2, t1, i, o)
        ROOT r = STATE tuple(n, t, z, x3)""",
        5,
    ),
    "a cell for each sequence of a batch": (
        "f32[5,9]; f32[6,5,9]; f32[9,18]; f32[6,5,18]",
        f"""{N} {STORE} p = f32[5,18] dot(x1, x3), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        a = f32[1,5,18] dynamic-slice(x4, i, o, o), dynamic_slice_sizes={{1,5,18}} b = f32[5,18] reshape(a)
        q = f32[5,18] add(p, b) g = f32[5,9] slice(q), slice={{[0:5], [0:9]}}
        c = f32[5,9] slice(q), slice={{[0:5], [9:18]}}
        h = f32[5,9] logistic(g) d = f32[5,9] tanh(c) e = f32[5,9] multiply(h, x1) y = f32[5,9] subtract(d, e)
        y1 = f32[1,5,9] reshape(y) z = f32[6,5,9] dynamic-update-slice(x2, y1, i, o, o)
        ROOT r = STATE tuple(n, y, z, x3, x4)""",
        6,
    ),
    "two arrays that depend on each other": (
        "f32[6]; f32[6]; f32[6,6]",
        f"""{N} y = f32[6] dot(x2, x3), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
        z = f32[6] subtract(x1, y) ROOT r = STATE tuple(n, x2, z, x3)""",
        7,
    ),
    "a norm": (
        "f32[70]",
        f"""{N} {ZERO} q = f32[70] multiply(x1, x1) t = f32[] reduce(q, zero), dimensions={{0}}, to_apply=add
        h = f32[] rsqrt(t) b = f32[70] broadcast(h), dimensions={{}} y = f32[70] multiply(x1, b)
        c = f32[70] cosine(y) ROOT r = STATE tuple(n, c)""",
        4,
    ),
    "elements of their neighbours": (
        "f32[300]; f32[3,300]",
        f"""{N} {STORE} a = f32[1] slice(x1), slice={{[299:300]}} b = f32[299] slice(x1), slice={{[0:299]}}
        c = f32[300] concatenate(a, b), dimensions={{0}} d = f32[300] subtract(c, x1) y = f32[300] sine(d)
        y1 = f32[1,300] reshape(y) z = f32[3,300] dynamic-update-slice(x2, y1, i, o)
        ROOT r = STATE tuple(n, y, z)""",
        3,
    ),
    "more elements than threads": (
        "f32[37,41]; f32[41,41]",
        f"""{N} a = f32[41,37] transpose(x1), dimensions={{1,0}}
        p = f32[41,41] dot(a, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        h = f32[41,41] tanh(p) y = f32[37,41] dot(x1, h), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
        z = f32[37,41] cosine(y) ROOT r = STATE tuple(n, z, p)""",
        2,
    ),
    "numbers": (
        "f32[3,3]; f32[3]",
        f"""{N} c = f32[3,3] constant({{{{1, 0, 0.5}}, {{0, 1, 0}}, {{-2, 0, 1}}}})
        y = f32[3,3] dot(c, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        z = f32[3] dot(y, x2), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
        w = f32[3,3] cosine(y) ROOT r = STATE tuple(n, w, z)""",
        5,
    ),
    "a sum in a scalar": (
        "f32[33]; f32[]; f32[33,33]",
        f"""{N} {ZERO} y = f32[33] dot(x3, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        h = f32[33] sine(y) t = f32[] reduce(h, zero), dimensions={{0}}, to_apply=add
        u = f32[] add(x2, t) ROOT r = STATE tuple(n, h, u, x3)""",
        4,
    ),
    "integers": (
        "s32[20]; s32[20,20]; u32[4,4]",
        f"""{N} y = s32[20] dot(x2, x1), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
        z = u32[4,4] dot(x3, x3), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        ROOT r = STATE tuple(n, y, x2, z)""",
        6,
    ),
    "f64": (
        "f64[5]; f64[5,5]; f32[5]",
        f"""{N} y = f64[5] dot(x2, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        w = f64[5] sine(y) v = f32[5] convert(w) ROOT r = STATE tuple(n, w, x2, v)""",
        4,
    ),
    "halves with sums of f32": (
        "bf16[2,6]; f16[6]; bf16[6,6]; f16[6,6]",
        f"""{N} a = f32[2,6] dot(x1, x3), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} t = f32[2,6] tanh(a)
        b = bf16[2,6] convert(t) c = f16[6] dot(x4, x2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        d = f16[6] tanh(c) ROOT r = STATE tuple(n, b, d, x3, x4)""",
        2,
    ),
    "an update of a part that is read": (
        "f32[12]; f32[12,12]",
        f"""{N} y = f32[12] dot(x2, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        p = f32[1] dynamic-slice(y, i), dynamic_slice_sizes={{1}} q = f32[1] sine(p)
        z = f32[12] dynamic-update-slice(x1, q, i) ROOT r = STATE tuple(n, z, x2)""",
        12,
    ),
    "a sum beside other elements": (
        "f32[4,40]",
        f"""{N} {ZERO} h = f32[4] reduce(x1, zero), dimensions={{1}}, to_apply=add c = f32[4] cosine(h)
        d = f32[4,1] reshape(c) e = f32[4,39] slice(x1), slice={{[0:4], [0:39]}}
        y = f32[4,40] concatenate(d, e), dimensions={{1}} ROOT r = STATE tuple(n, y)""",
        5,
    ),
    "a state of one sequence and a counter that is stored": (
        "f32[4,3]; s32[6]; f32[3,3]",
        f"""{N} y = f32[4,3] dot(x1, x3), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} w = f32[4,3] sine(y)
        i1 = s32[1] reshape(i) z = s32[6] dynamic-update-slice(x2, i1, i) ROOT r = STATE tuple(n, w, z, x3)""",
        6,
    ),
    "no iteration": (
        "f32[7]; f32[7,7]",
        f"""{N} y = f32[7] dot(x2, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        ROOT r = STATE tuple(n, y, x2)""",
        0,
    ),
}  # fmt: skip


def _case(i: HloInstruction, schedule: Schedule | None = None) -> running.Case:
    made = loop_kernel.make_loop_kernel(i, "cuda", schedule)
    assert made.spec.kind == "block-loop"
    rng = np.random.default_rng(len(i.shape.tuple_shapes))
    args = [np.asarray(0, np.int32), *running.random_args(i.shape.tuple_shapes[1:], rng)]

    def run(arrays: Sequence[Any], context: Context) -> list[running.Array]:
        value: Any = evaluate_op(i, [tuple(arrays)], context)
        return [np.asarray(value[k]) for k in made.outputs]

    return running.Case(made.spec, tuple(args[k] for k in made.inputs), Reference(run, args))


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize("schedule", [None, Schedule(lanes=1, block=32), Schedule(lanes=1, block=96)], ids=str)
def test_loops_that_blocks_run_match_the_interpreter(schedule: Schedule | None, tmp_path: Path) -> None:
    cases = {name: _case(loop(*LOOPS[name]), schedule) for name in LOOPS}
    problems = {}
    for (name, case), run in zip(
        cases.items(), running.run_emulated(list(cases.values()), tmp_path, max_grid=4), strict=True
    ):
        what = run.error or running.problem(run.outputs, case)
        if what:
            problems[name] = what
    assert problems == {}


@pytest.mark.parametrize("name", LOOPS)
def test_they_have_no_kernel_in_c_and_none_of_single_threads(name: str) -> None:
    i = loop(*LOOPS[name])
    assert loop_kernel.loop_refusal(i, C_TARGET) is not None
    assert loop_kernel.loop_refusal(i, CUDA_TARGET, in_blocks=False) is not None
    assert loop_kernel.loop_refusal(i, CUDA_TARGET) is None


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("a cell for each sequence of a batch", 5), ("a sum beside other elements", 4), ("a norm", None),
     ("more elements than threads", None), ("halves with sums of f32", None)],
)  # fmt: skip
def test_blocks_divide_an_axis_along_which_nothing_is_mixed(name: str, blocks: int | None) -> None:
    state = LoopState(loop(*LOOPS[name]))
    if blocks is None:
        with pytest.raises(UnsupportedError, match=r"axis|position|sum"):
            BlockStages(state, divided=True)
    else:
        assert BlockStages(state, divided=True).blocks == blocks


def test_what_several_elements_need_is_a_stage() -> None:
    stages = BlockStages(LoopState(loop(*LOOPS["a norm"])), divided=False)
    assert [[(s.value.name, s.threads) for s in phase] for phase in stages.phases] == [[("t", 32)]]


@pytest.mark.parametrize(
    ("columns", "threads", "turns"), [(64, 8, 1), (32, 1, 1), (40, 4, 1), (33, 1, 1), (128, 32, 1), (6, 2, 2)]
)
def test_rows_are_apart_so_that_threads_read_different_banks(columns: int, threads: int, turns: int) -> None:
    lane = Var("l", 64)
    row, column = ix.of(lane).floordiv(threads), ix.of(lane).mod(threads)
    pitch = best_pitch(columns, [SharedRead(row, column, lane)])
    assert columns <= pitch < columns + 32
    words = [t // threads * pitch + t % threads for t in range(32)]
    assert max(Counter(w % 32 for w in words).values()) <= turns


LAUNCH = 3e-6
LARGE = f"""{N} y = f32[70,70] dot(x1, x1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
z = f32[70,70] dot(y, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} ROOT r = STATE tuple(n, z)"""

SEARCH = """
HloModule m
larger { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2) d = s32[] parameter(3)
  p = pred[] compare(a, c), direction=GE x = f32[] select(p, a, c) y = s32[] select(p, b, d)
  ROOT r = (f32[], s32[]) tuple(x, y) }
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
body {
  s = (f32[19], s32[19], s32[], f32[19,19]) parameter(0)
  x = f32[19] get-tuple-element(s), index=0 i = s32[] get-tuple-element(s), index=2
  w = f32[19,19] get-tuple-element(s), index=3 one = s32[] constant(1) n = s32[] add(i, one)
  b = f32[19,19] broadcast(x), dimensions={1} t = f32[19,19] add(b, w) at = s32[19,19] iota(), iota_dimension=1
  low = f32[] constant(-inf) none = s32[] constant(0)
  m = (f32[19], s32[19]) reduce(t, at, low, none), dimensions={1}, to_apply=larger
  best = f32[19] get-tuple-element(m), index=0 from = s32[19] get-tuple-element(m), index=1
  half = f32[] constant(0.5) h = f32[19] broadcast(half), dimensions={} y = f32[19] multiply(best, h)
  ROOT r = (f32[19], s32[19], s32[], f32[19,19]) tuple(y, from, n, w)
}
condition {
  s = (f32[19], s32[19], s32[], f32[19,19]) parameter(0) x = f32[19] get-tuple-element(s), index=0
  zero = f32[] constant(0) q = f32[19] multiply(x, x) t = f32[] reduce(q, zero), dimensions={0}, to_apply=add
  limit = f32[] parameter_limit ROOT r = pred[] compare(t, limit), direction=GT
}
ENTRY main {
  x = f32[19] parameter(0) w = f32[19,19] parameter(1) zero = s32[] constant(0)
  z = s32[19] broadcast(zero), dimensions={}
  t = (f32[19], s32[19], s32[], f32[19,19]) tuple(x, z, zero, w)
  l = (f32[19], s32[19], s32[], f32[19,19]) while(t), condition=condition, body=body
  a = f32[19] get-tuple-element(l), index=0 b = s32[19] get-tuple-element(l), index=1
  c = s32[] get-tuple-element(l), index=2 ROOT r = (f32[19], s32[19], s32[]) tuple(a, b, c)
}
"""


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize(("size", "limit"), [(19, 1e30), (19, 400.0), (19, 100.0), (70, 1e30), (70, 600.0)])
def test_the_number_of_iterations_depends_on_the_state(size: int, limit: float) -> None:
    text = SEARCH.replace("parameter_limit", f"constant({limit})").replace("19", str(size))
    rng = np.random.default_rng(3)
    args = [rng.uniform(5, 9, size).astype(np.float32), rng.uniform(-2, 2, (size, size)).astype(np.float32)]
    executable = compile_hlo(text, backend="cuda")
    assert "block-loop" in [k.kind for k in executable.kernels]
    with stand_in.installed():
        found = [x.get() for x in executable(*args)]
    assert running.problem(found, evaluate(parse(text), args)) is None
    assert (found[2] == 0) == (limit == 1e30)


def test_large_iterations_are_left_to_kernels_of_their_own() -> None:
    body = f"""{N} y = f32[96,128] dot(x1, x2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        a = f32[128,128] dot(y, x1), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
        ROOT r = STATE tuple(n, y, a)"""
    large, small = loop("f32[96,128]; f32[128,128]", body, 9), loop(*LOOPS["a cell for each sequence of a batch"])
    assert loop_kernel.is_slow_in_blocks(loop("f32[70,70]", LARGE, 9), LAUNCH)
    assert not loop_kernel.is_slow_in_blocks(small, LAUNCH)
    assert loop_kernel.loop_refusal(large, CUDA_TARGET) is not None  # its state exceeds shared memory
