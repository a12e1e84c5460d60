"""Loop kernels, as C and as CUDA C++ in the emulator, against the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.backends.cuda.emulation import stand_in
from compiler.codegen.build_target import CUDA_TARGET
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.template_schedules import GpuSchedule
from compiler.codegen.templates import loop_kernel, loop_state
from compiler.interpreter import Context, evaluate, evaluate_op
from compiler.ir import HloInstruction
from compiler.runtime.thunks import KernelThunk
from compiler.support.processor import AVX2, AVX512, VectorUnit
from compiler.text import parse
from env.reference import Reference
from tests.codegen import running

TEMPLATE = """
HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
body {{
  s = ({state}) parameter(0)
  {reads}
  one = s32[] constant(1)
  {body}
}}
condition {{
  s = ({state}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  limit = s32[] constant({trips})
  ROOT r = pred[] compare(i, limit), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  {parameters}
  t = ({state}) tuple(zero{names})
  w = ({state}) while(t), condition=condition, body=body
  ROOT g = s32[] get-tuple-element(w), index=0
}}
"""


def loop(state: str, body: str, trips: int) -> HloInstruction:
    """Return a `while` that carries a counter i and the values x1, x2...; its body defines the next counter as `n`."""
    types = [t.strip() for t in state.split(";")]
    whole = ", ".join(["s32[]", *types])
    reads = ["i = s32[] get-tuple-element(s), index=0"]
    reads += [f"x{k} = {t} get-tuple-element(s), index={k}" for k, t in enumerate(types, 1)]
    text = TEMPLATE.format(
        state=whole,
        reads="\n  ".join(reads),
        body=body.replace("STATE", f"({whole})").strip(),
        trips=trips,
        parameters="\n  ".join(f"a{k} = {t} parameter({k - 1})" for k, t in enumerate(types, 1)),
        names="".join(f", a{k}" for k in range(1, len(types) + 1)),
    )
    return parse(text).entry.root.operands[0]


N = "n = s32[] add(i, one)"
HASH = "\n".join(
    f"g{k} = u32[300] add(h{k}, cb) q{k} = u32[300] multiply(g{k}, g{k}) h{k + 1} = u32[300] xor(q{k}, h{k})"
    for k in range(40)
)
"""A number per position that takes 120 ops."""
LOOPS = {
    "a condition of the iteration": (
        "f32[300]; f32[300]",
        f"""{N}
        three = s32[] constant(3)
        bits = s32[] and(i, three)
        zero = s32[] constant(0)
        odd = pred[] compare(bits, zero), direction=NE
        odds = pred[300] broadcast(odd), dimensions={{}}
        w = f32[300] sine(x1)
        e = f32[300] exponential(w)
        y = f32[300] select(odds, e, x1)
        z = f32[300] add(x2, y)
        ROOT r = STATE tuple(n, y, z)""",
        6,
    ),
    "vector": ("f32[1000]", f"{N} y = f32[1000] tanh(x1) ROOT r = STATE tuple(n, y)", 9),
    "ragged": ("f32[257]; f32[257]", f"{N} y = f32[257] add(x1, x2) ROOT r = STATE tuple(n, y, x1)", 4),
    "swapped": ("f32[40]; f32[40]", f"{N} ROOT r = STATE tuple(n, x2, x1)", 3),
    "constants at fixed positions": (
        "f32[100]; s32[2]",
        f"""{N}
        c = s32[2] constant({{3, -5}})
        y = s32[2] add(x2, c)
        f = f32[2] constant({{0.5, 2}})
        f1 = f32[1] slice(f), slice={{[1:2]}}
        fs = f32[] reshape(f1)
        fb = f32[100] broadcast(fs), dimensions={{}}
        z = f32[100] multiply(x1, fb)
        ROOT r = STATE tuple(n, z, y)""",
        4,
    ),
    "rows": (
        "f32[100,4]",
        f"""{N}
        a = f32[100,1] slice(x1), slice={{[0:100], [0:1]}}
        b = f32[100,3] slice(x1), slice={{[0:100], [1:4]}}
        y = f32[100,4] concatenate(b, a), dimensions={{1}}
        z = f32[100,4] negate(y)
        ROOT r = STATE tuple(n, z)""",
        5,
    ),
    "columns": (
        "f32[4,100]; s32[100]",
        f"""{N}
        a = f32[1,100] slice(x1), slice={{[2:3], [0:100]}}
        b = f32[100] reshape(a)
        c = s32[100] convert(b)
        d = s32[100] add(c, x2)
        e = f32[4,100] reverse(x1), dimensions={{0}}
        ROOT r = STATE tuple(n, e, d)""",
        6,
    ),
    "shared key": (
        "u32[2]; f32[70]; f32[]",
        f"""{N}
        k0 = u32[1] slice(x1), slice={{[0:1]}}
        k1 = u32[1] slice(x1), slice={{[1:2]}}
        m = u32[1] multiply(k0, k1)
        key = u32[2] concatenate(k1, m), dimensions={{0}}
        k = u32[] reshape(m)
        bits = u32[70] broadcast(k), dimensions={{}}
        place = u32[70] iota(), iota_dimension=0
        mix = u32[70] xor(bits, place)
        f = f32[70] convert(mix)
        small = f32[] constant(1e-10)
        sb = f32[70] broadcast(small), dimensions={{}}
        g = f32[70] multiply(f, sb)
        h = f32[70] add(g, x2)
        two = f32[] add(x3, x3)
        ROOT r = STATE tuple(n, key, h, two)""",
        7,
    ),
    "scan": (
        "f32[90]; f32[12,90]; f32[12,90]",
        f"""{N}
        c0 = s32[] constant(0)
        row = f32[1,90] dynamic-slice(x3, i, c0), dynamic_slice_sizes={{1,90}}
        in = f32[90] reshape(row)
        y = f32[90] add(x1, in)
        o = f32[1,90] reshape(y)
        u = f32[12,90] dynamic-update-slice(x2, o, i, c0)
        ROOT r = STATE tuple(n, y, u, x3)""",
        12,
    ),
    "scan, one step beyond": (
        "f32[33]; f32[5,33]",
        f"""{N}
        c0 = s32[] constant(0)
        y = f32[33] negate(x1)
        o = f32[1,33] reshape(x1)
        u = f32[5,33] dynamic-update-slice(x2, o, n, c0)
        ROOT r = STATE tuple(n, y, u)""",
        8,
    ),
    "update computed from other state": (
        "f32[64]; f32[64]; f32[6,64]",
        f"""{N}
        c0 = s32[] constant(0)
        d = f32[64] subtract(x2, x1)
        o = f32[1,64] reshape(d)
        u = f32[6,64] dynamic-update-slice(x3, o, i, c0)
        ROOT r = STATE tuple(n, x2, d, u)""",
        6,
    ),
    "no trips": ("f32[50]; f32[]", f"{N} y = f32[50] tanh(x1) ROOT r = STATE tuple(n, y, x2)", 0),
    "one trip": ("f32[50]", f"{N} y = f32[50] tanh(x1) ROOT r = STATE tuple(n, y)", 1),
    "types": (
        "pred[60]; u8[60]; bf16[60]; f64[60]",
        f"""{N}
        p = pred[60] not(x1)
        u = u8[60] add(x2, x2)
        b = bf16[60] negate(x3)
        f = f64[60] convert(x2)
        g = f64[60] select(x1, f, x4)
        ROOT r = STATE tuple(n, p, u, b, g)""",
        5,
    ),
    "choices": (
        "f32[80]; pred[80]",
        f"""{N}
        z = f32[] constant(0)
        zb = f32[80] broadcast(z), dimensions={{}}
        up = f32[80] add(x1, x1)
        y = f32[80] select(x2, up, x1)
        c = f32[80] compare(y, zb), direction=GT
        ROOT r = STATE tuple(n, y, q)""".replace("c = f32[80]", "q = pred[80]"),
        5,
    ),
    "updated by itself": (
        "f32[50]; f32[60,50]",
        f"""{N} c0 = s32[] constant(0) y = f32[50] negate(x1)
        u = f32[60,50] dynamic-update-slice(x2, x2, i, c0) ROOT r = STATE tuple(n, y, u)""",
        3,
    ),
    "resets": (
        "u32[300]; u32[300]; s32[300]; f32[300]",
        f"""{N}
        c = u32[] constant(2654435761)
        cb = u32[300] broadcast(c), dimensions={{}}
        k = u32[] convert(i)
        kb = u32[300] broadcast(k), dimensions={{}}
        at = u32[300] iota(), iota_dimension=0
        h0 = u32[300] xor(at, kb)
        {HASH}
        e = u32[300] add(x1, x2)
        high = u32[] constant(3000000000)
        hb = u32[300] broadcast(high), dimensions={{}}
        done = pred[300] compare(e, hb), direction=GT
        y = u32[300] select(done, h40, e)
        z = u32[300] select(done, cb, x2)
        d = s32[300] convert(done)
        m = s32[300] add(x3, d)
        seen = f32[300] convert(y)
        more = f32[300] maximum(x4, seen)
        ROOT r = STATE tuple(n, y, z, m, more)""",
        40,
    ),
    "one row": ("f32[1,20]", f"{N} y = f32[1,20] negate(x1) ROOT r = STATE tuple(n, y)", 3),
}

REFUSED = {
    "neighbours": (
        "f32[50]",
        f"""{N} y = f32[50] reverse(x1), dimensions={{0}} ROOT r = STATE tuple(n, y)""",
        "a position other than the current one",
    ),
    "a sum over positions": (
        "f32[50]; f32[]",
        f"""{N} z = f32[] constant(0) t = f32[] reduce(x1, z), dimensions={{0}}, to_apply=add
        y = f32[50] negate(x1) ROOT r = STATE tuple(n, y, t)""",
        "",
    ),
    "no arrays": ("f32[]", f"{N} y = f32[] negate(x1) ROOT r = STATE tuple(n, y)", "no array large enough"),
    "no common axis": (
        "f32[50]; f32[60]",
        f"{N} y = f32[50] negate(x1) z = f32[60] negate(x2) ROOT r = STATE tuple(n, y, z)",
        "no axis in common",
    ),
    "the tuple as a whole": ("f32[50]", "ROOT r = STATE copy(s)", ""),
    "complex": ("c64[50]", f"{N} y = c64[50] negate(x1) ROOT r = STATE tuple(n, y)", "no kernel"),
    "a table read at a run-time index": (
        "f32[50]; f32[8]",
        f"""{N} y = f32[50] negate(x1) w = f32[1] dynamic-slice(x2, i), dynamic_slice_sizes={{1}}
        z = f32[8] broadcast(w0), dimensions={{}} ROOT r = STATE tuple(n, y, z)""".replace(
            "z = f32", "w0 = f32[] reshape(w) z = f32"
        ),
        "varies",
    ),
}


SEQUENTIAL = {
    "a recurrence": (
        "f32[]; f32[7]; f32[7]",
        f"""{N} at = f32[1] dynamic-slice(x2, i), dynamic_slice_sizes={{1}} a = f32[] reshape(at)
        p = f32[] multiply(x1, x1) q = f32[] add(a, p) y = f32[] tanh(q) y1 = f32[1] reshape(y)
        z = f32[7] dynamic-update-slice(x3, y1, i) ROOT r = STATE tuple(n, y, x2, z)""",
        7,
    ),
    "elements that depend on each other": (
        "f32[3]; f32[5,3]",
        f"""{N} a = f32[1] slice(x1), slice={{[0:1]}} b = f32[2] slice(x1), slice={{[1:3]}}
        c = f32[3] concatenate(b, a), dimensions={{0}} y = f32[3] sine(c) y1 = f32[1,3] reshape(y) o = s32[] constant(0)
        z = f32[5,3] dynamic-update-slice(x2, y1, i, o) ROOT r = STATE tuple(n, y, z)""",
        5,
    ),
    "a sum of few elements": (
        "f32[4]; f32[]",
        f"""{N} zero = f32[] constant(0) t = f32[] reduce(x1, zero), dimensions={{0}}, to_apply=add
        u = f32[] add(t, x2) h = f32[4] broadcast(u), dimensions={{}} y = f32[4] cosine(h)
        ROOT r = STATE tuple(n, y, u)""",
        6,
    ),
}  # fmt: skip
"""Loops that one thread of a GPU runs and that have no kernel in C."""


def _case(name: str, language: str, schedule: Schedule | None = None) -> running.Case:
    return _case_of(loop(*LOOPS[name]), language, schedule)


def _case_of(i: HloInstruction, language: str, schedule: Schedule | None = None) -> running.Case:
    made = loop_kernel.make_loop_kernel(i, language, schedule)
    rng = np.random.default_rng(len(i.shape.tuple_shapes))
    args = [np.asarray(0, np.int32), *running.random_args(i.shape.tuple_shapes[1:], rng)]

    def run(arrays: Sequence[Any], context: Context) -> list[running.Array]:
        value: Any = evaluate_op(i, [tuple(arrays)], context)
        return [np.asarray(value[k]) for k in made.outputs]

    return running.Case(made.spec, tuple(args[k] for k in made.inputs), Reference(run, args))


@pytest.mark.parametrize("schedule", [None, Schedule(lanes=16), Schedule(lanes=100, rare=64)], ids=str)
def test_loop_kernels_in_c_match_the_interpreter(schedule: Schedule | None) -> None:
    cases = {name: _case(name, "c", schedule) for name in LOOPS}
    problems = {}
    for (name, case), found in zip(cases.items(), running.run_c(list(cases.values())), strict=True):
        what = running.problem(found, case)
        if what:
            problems[name] = what
    assert problems == {}


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize(
    "schedule", [None, Schedule(lanes=100, block=32), Schedule(lanes=4, block=16, rare=64)], ids=str
)
def test_loop_kernels_in_cuda_match_the_interpreter(schedule: Schedule | None, tmp_path: Path) -> None:
    cases = {name: _case(name, "cuda", schedule) for name in LOOPS}
    problems = {}
    for (name, case), run in zip(
        cases.items(), running.run_emulated(list(cases.values()), tmp_path, max_grid=4), strict=True
    ):
        what = run.error or running.problem(run.outputs, case)
        if what:
            problems[name] = what
    assert problems == {}


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_loops_of_one_thread_are_not_crowded(name: str) -> None:
    i = loop(*SEQUENTIAL[name])
    assert loop_kernel.loop_refusal(i, CUDA_TARGET) is None
    assert not loop_state.is_crowded(i)


def test_a_thread_branches_around_work_that_few_positions_need() -> None:
    def hashed(source: str) -> bool:
        """Check whether the 120 ops of the hash are inside a branch: more of them than at the level of the loop."""
        deep = [line for line in source.splitlines() if line.startswith(" " * 8 + "const uint32_t")]
        return len(deep) >= 3 * 40 - 1

    assert hashed(_case("resets", "cuda").spec.source)
    assert not hashed(_case("resets", "cuda", Schedule(lanes=1, rare=0)).spec.source)


KEY = "\n".join(
    f"a{k} = u32[] add(h{k}, odd) q{k} = u32[] multiply(a{k}, a{k}) h{k + 1} = u32[] xor(q{k}, h{k})" for k in range(60)
)
RANDOM_WALK = (
    "u32[]; f32[70]; f32[37,70]",
    f"""{N}
    odd = u32[] constant(2654435761)
    h0 = u32[] xor(x1, odd)
    {KEY}
    own = u32[] multiply(h60, odd)
    more = u32[] add(own, h30)
    b = u32[70] broadcast(more), dimensions={{}}
    place = u32[70] iota(), iota_dimension=0
    mixed = u32[70] xor(b, place)
    f = f32[70] convert(mixed)
    small = f32[] constant(1e-10)
    sb = f32[70] broadcast(small), dimensions={{}}
    g = f32[70] multiply(f, sb)
    c0 = s32[] constant(0)
    row = f32[1,70] dynamic-slice(x3, i, c0), dynamic_slice_sizes={{1,70}}
    in = f32[70] reshape(row)
    w = f32[70] add(g, in)
    y = f32[70] add(w, x2)
    ROOT r = STATE tuple(n, h60, y, x3)""",
)
"""A loop whose state has a key, which takes 180 ops, and numbers made of it."""


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_a_warp_makes_the_state_that_positions_share(tmp_path: Path) -> None:
    cases = {}
    for trips in (1, 16, 37):
        for ahead, block in ((16, 8), (8, 40), (64, 64), (0, 32)):
            schedule = Schedule(lanes=1, block=block, gpu=GpuSchedule(ahead=ahead))
            cases[trips, ahead, block] = _case_of(loop(*RANDOM_WALK, trips), "cuda", schedule)
    for (trips, ahead, block), case in cases.items():
        warps = -(-block // 32) * 32 + 32 if ahead else block
        assert case.spec.block == warps, (trips, ahead)
    runs = running.run_emulated(list(cases.values()), tmp_path, max_grid=4)
    for (name, case), run in zip(cases.items(), runs, strict=True):
        assert not run.error, name
        assert running.problem(run.outputs, case) is None, name


COUNTED = """
HloModule m
body { s = (s32[], f32[70], f32[40,70]) parameter(0)
  i = s32[] get-tuple-element(s), index=0 x = f32[70] get-tuple-element(s), index=1
  t = f32[40,70] get-tuple-element(s), index=2
  two = s32[] constant(2) c0 = s32[] constant(0) n = s32[] add(i, two)
  row = f32[1,70] dynamic-slice(t, i, c0), dynamic_slice_sizes={1,70} in = f32[70] reshape(row)
  d = f32[] convert(i) b = f32[70] broadcast(d), dimensions={} m = f32[70] multiply(in, b) y = f32[70] add(x, m)
  ROOT r = (s32[], f32[70], f32[40,70]) tuple(n, y, t) }
condition { s = (s32[], f32[70], f32[40,70]) parameter(0) i = s32[] get-tuple-element(s), index=0
  limit = s32[] constant(40) ROOT r = pred[] compare(i, limit), direction=LT }
ENTRY main { three = s32[] constant(3) x = f32[70] parameter(0) t = f32[40,70] parameter(1)
  start = (s32[], f32[70], f32[40,70]) tuple(three, x, t)
  w = (s32[], f32[70], f32[40,70]) while(start), condition=condition, body=body
  ROOT y = f32[70] get-tuple-element(w), index=1 }
"""


def test_a_thread_loads_what_the_next_step_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(d).astype(np.float32) for d in ((70,), (40, 70))]
    (kernel,) = compile_hlo(COUNTED, backend="cuda").kernels
    table = f"p{[s.dimensions for s in kernel.inputs].index((40, 70))}["
    assert kernel.source.count(table) == 2  # the row of the first step, and in each step that of the next
    if running.has_emulator():
        given = [*args, np.array(3, np.int32)]
        inputs = tuple(next(a for a in given if a.shape == s.dimensions) for s in kernel.inputs)
        (run,) = running.run_emulated([running.Case(kernel, inputs, Reference(lambda *_: [], []))], tmp_path)
        assert not run.error
        (found,) = [a for a in run.outputs if a.shape == (70,)]
        np.testing.assert_allclose(found, evaluate(parse(COUNTED), args)[0], rtol=1e-5)


@pytest.mark.parametrize(("positions", "block"), [(300, 8), (4096, 8), (1 << 20, 128)])
def test_few_positions_run_in_small_blocks_over_all_multiprocessors(positions: int, block: int) -> None:
    made = loop_kernel.make_loop_kernel(
        loop(f"f32[{positions}]", f"{N} y = f32[{positions}] tanh(x1) ROOT r = STATE tuple(n, y)", 9), "cuda"
    )

    assert made.spec.block == block
    assert made.spec.grid * made.spec.block * 4 >= positions


@pytest.mark.parametrize(("lanes", "positions", "tile"), [(4, 12, 4), (4, 10, 2), (8, 7, 7), (4, 11, 1), (1, 100, 1)])
def test_tiles_of_threads_divide_the_positions(lanes: int, positions: int, tile: int) -> None:
    assert Schedule(lanes=lanes).lane_tile(positions) == tile


@pytest.mark.parametrize(
    ("unit", "lanes", "positions", "tile"),
    [
        (AVX2, 64, 100_000, 64), (AVX512, 128, 100_000, 128), (AVX2, 64, 50, 50),
        (AVX2, 128, 100_000, 125), (AVX512, 1024, 100_000, 1000),
    ],
)  # fmt: skip
def test_tiles_that_are_unrolled_have_whole_vectors(unit: VectorUnit, lanes: int, positions: int, tile: int) -> None:
    assert Schedule(lanes=lanes, unit=unit).lane_tile(positions) == tile


@pytest.mark.parametrize("schedule", [None, Schedule(lanes=100, rare=64), Schedule(lanes=256, rare=64)], ids=str)
def test_reset_numbers_are_made_for_the_positions_that_need_them(schedule: Schedule | None) -> None:
    assert "hlogym_flagged" in _case("resets", "c", schedule).spec.source


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_loop_is_divided_along_the_chosen_axis(axis: int) -> None:
    i = loop("f32[20,30]", f"{N} y = f32[20,30] tanh(x1) ROOT r = STATE tuple(n, y)", 3)
    made = loop_kernel.make_loop_kernel(i, "c", Schedule(axis=axis, lanes=16))
    x = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    case = running.Case(made.spec, (np.array(0, np.int32), x), Reference(lambda *_: [], []))

    (found,) = running.run_c([case])

    np.testing.assert_allclose(found[1], np.tanh(np.tanh(np.tanh(x))), rtol=1e-6)
    assert (made.spec.source == loop_kernel.make_loop_kernel(i, "c", Schedule(lanes=16)).spec.source) == (axis != 1)


def test_carried_state_is_in_registers_on_a_gpu() -> None:
    assert "__shared__" not in _case("rows", "cuda").spec.source


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_states_its_reason(name: str) -> None:
    state, body, reason = REFUSED[name]
    why = loop_kernel.loop_refusal(loop(state, body, 4))
    assert why is not None
    assert reason in why


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_one_thread_runs_a_loop_of_few_values(tmp_path: Path) -> None:
    cases = {name: _case_of(loop(*SEQUENTIAL[name]), "cuda") for name in SEQUENTIAL}
    for (name, case), run in zip(
        cases.items(), running.run_emulated(list(cases.values()), tmp_path, max_grid=1), strict=True
    ):
        assert case.spec.grid == 1
        assert not run.error, name
        assert running.problem(run.outputs, case) is None, name


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_loop_of_few_values_has_no_kernel_in_c(name: str) -> None:
    assert "no array large enough" in (loop_kernel.loop_refusal(loop(*SEQUENTIAL[name])) or "")


def test_an_iteration_of_much_work_is_for_many_threads() -> None:
    body = f"""{N} o = f32[] constant(0) p = f32[500] multiply(x2, x2)
    t = f32[] reduce(p, o), dimensions={{0}}, to_apply=add
    y = f32[] add(x1, t) ROOT r = STATE tuple(n, y, x2)"""
    i = loop("f32[]; f32[500]", body, 9)
    assert loop_kernel.loop_refusal(i, CUDA_TARGET, in_blocks=False) is not None
    assert loop_kernel.make_loop_kernel(i, "cuda").spec.kind == "block-loop"


NEWTON = """
HloModule m
body { s = (f32[], f32[], s32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0 a = f32[] get-tuple-element(s), index=1
  i = s32[] get-tuple-element(s), index=2
  q = f32[] divide(a, x) t = f32[] add(q, x) half = f32[] constant(0.5) y = f32[] multiply(t, half)
  one = s32[] constant(1) n = s32[] add(i, one) ROOT r = (f32[], f32[], s32[]) tuple(y, a, n) }
condition { s = (f32[], f32[], s32[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0 a = f32[] get-tuple-element(s), index=1
  i = s32[] get-tuple-element(s), index=2
  p = f32[] multiply(x, x) d = f32[] subtract(p, a) m = f32[] abs(d) e = f32[] constant(1e-5)
  far = pred[] compare(m, e), direction=GT most = s32[] constant(50) more = pred[] compare(i, most), direction=LT
  ROOT r = pred[] and(far, more) }
ENTRY main { a = f32[] parameter(0) one = f32[] constant(1) zero = s32[] constant(0)
  start = (f32[], f32[], s32[]) tuple(one, a, zero)
  w = (f32[], f32[], s32[]) while(start), condition=condition, body=body
  ROOT g = f32[] get-tuple-element(w), index=0 }
"""


def test_a_loop_until_values_converge_needs_no_host() -> None:
    executable = compile_hlo(NEWTON, backend="cuda")
    assert [type(t) for t in executable.thunks] == [KernelThunk]
    if running.has_emulator():
        args = [np.array(3, np.float32)]
        with stand_in.installed():
            found = [x.get() for x in executable(*args)]
        for x, wanted in zip(found, evaluate(parse(NEWTON), args), strict=True):
            np.testing.assert_allclose(x, wanted, rtol=1e-5)


SHORT = {
    "an array": ("f32[8]", f"{N} z = f32[8] sine(x1) y = f32[8] add(z, x1) ROOT r = STATE tuple(n, y)", 8),
    "with a number": (
        "f32[5]; f32[]",
        f"""{N} b = f32[5] broadcast(x2), dimensions={{}} y = f32[5] multiply(x1, b) z = f32[] cosine(x2)
        ROOT r = STATE tuple(n, y, z)""",
        5,
    ),
}


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_short_arrays_are_divided_among_threads_where_no_thread_needs_the_elements_of_another(tmp_path: Path) -> None:
    divided = {name: _case_of(loop(state, body, 6), "cuda") for name, (state, body, _) in SHORT.items()}
    for name, case in divided.items():
        assert f"< {SHORT[name][2]}" in case.spec.source, name
    one = _case_of(loop(*SEQUENTIAL["elements that depend on each other"]), "cuda")
    assert one.spec.block * one.spec.grid == 1 or "< 1;" in one.spec.source
    cases = [*divided.values(), one]
    for case, run in zip(cases, running.run_emulated(cases, tmp_path), strict=True):
        assert not run.error
        assert running.problem(run.outputs, case) is None


@pytest.mark.parametrize(
    ("dtype", "op", "repeats", "of_avx512", "of_avx2"),
    [
        ("f32", "multiply", 15, 128, 64),
        ("f64", "multiply", 15, 64, 32),
        ("f32", "multiply", 17, 1024, 1024),
        ("f32", "divide", 1, 1024, 1024),
        ("s32", "xor", 3, 128, 64),
    ],
)
def test_tiles_are_smaller_where_iterations_do_little(
    dtype: str, op: str, repeats: int, of_avx512: int, of_avx2: int
) -> None:
    steps = [f"y{n} = {dtype}[1048576] {op}(y{n - 1}, x1)" for n in range(1, repeats + 1)]
    lines = "\n  ".join([steps[0].replace("y0", "x1"), *steps[1:]])
    body = f"{lines}\n  n = s32[] add(i, one)\n  ROOT r = STATE tuple(n, y{repeats})"
    made = loop(f"{dtype}[1048576]", body, 3)
    state = loop_state.LoopState(made)
    assert (state.most_lanes(AVX512), state.most_lanes(AVX2)) == (of_avx512, of_avx2)
    assert loop_state.default_loop_schedule(made, "c").lanes in (of_avx512, of_avx2)
    assert loop_state.default_loop_schedule(made, "cuda").lanes <= loop_state.MAX_THREAD_LANES


def test_tiles_of_iterations_with_sums_are_not_smaller() -> None:
    body = """z = f32[] constant(0)
  y = f32[1048576] reduce(x1, z), dimensions={1}, to_apply=add
  w = f32[1048576,2] broadcast(y), dimensions={0}
  n = s32[] add(i, one)
  ROOT r = STATE tuple(n, w)"""
    assert loop_state.LoopState(loop("f32[1048576,2]", body, 3)).most_lanes(AVX2) == loop_state.MAX_LANES
