"""Loops and conditionals on the cpu backend against the interpreter: buffers of carried values and copy elision."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.runtime import allocation
from compiler.runtime.thunks import CopyThunk
from compiler.text import parse
from env.reference import Reference
from tests.codegen.running import problem
from tests.runtime.random_loops import arguments_for, random_loops

PLAIN = CompileOptions(optimize=False)


def _seeds(fast: int, slow: int) -> list[object]:
    return [*range(fast), *(pytest.param(s, marks=pytest.mark.slow) for s in range(fast, slow))]


def _compare(module: HloModule, args: list[np.ndarray], options: CompileOptions | None) -> None:
    exe = compile(module, options=options)
    wanted = Reference.of(module, args)
    for _ in range(2):  # the second call reuses the arena of the first
        assert problem(exe(*args), wanted) is None, str(module)


@pytest.mark.parametrize("seed", _seeds(40, 400))
def test_random_loops_match_the_interpreter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    module = random_loops(rng)
    verify(module)
    _compare(module, arguments_for(module, rng), PLAIN)


@pytest.mark.parametrize("seed", _seeds(10, 80))
def test_optimized_random_loops_match_the_interpreter(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    module = random_loops(rng)
    _compare(module, arguments_for(module, rng), None)


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_copy_elision_does_not_change_results(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    module = random_loops(rng)
    args = arguments_for(module, rng)
    lean = compile(module, options=PLAIN)
    monkeypatch.setattr(allocation, "coalesce", lambda thunks, results: None)
    full = compile(module, options=PLAIN)
    assert problem(lean(*args), full(*args)) is None
    assert _copies(lean) <= _copies(full)


def _copies(exe: object) -> int:
    return sum(isinstance(t, CopyThunk) for t in exe.thunks)  # type: ignore[attr-defined]


# ---- programs for one case each

LOOP = """
HloModule m
body {{
  s = ({state}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  {body}
}}
condition {{
  s = ({state}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  limit = s32[] constant({trips})
  ROOT r = pred[] compare(i, limit), direction=LT
}}
ENTRY main {{
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  zero = s32[] constant(0)
  {entry}
}}
"""

TWO = "s32[], f32[8], f32[8]"
READ = """
  x = f32[8] get-tuple-element(s), index=1
  y = f32[8] get-tuple-element(s), index=2
"""
ENTRY = f"""
  t = ({TWO}) tuple(zero, a, b)
  w = ({TWO}) while(t), condition=condition, body=body
  p = f32[8] get-tuple-element(w), index=1
  q = f32[8] get-tuple-element(w), index=2
  ROOT r = (f32[8], f32[8]) tuple(p, q)
"""

BODIES = {
    "swap": f"{READ} ROOT r = ({TWO}) tuple(n, y, x)",
    "duplicate": f"{READ} ROOT r = ({TWO}) tuple(n, y, y)",
    "swap with work": f"{READ} z = f32[8] add(x, y) ROOT r = ({TWO}) tuple(n, y, z)",
    "keep one": f"{READ} z = f32[8] add(x, y) ROOT r = ({TWO}) tuple(n, x, z)",
    "one value twice": f"{READ} z = f32[8] add(x, y) ROOT r = ({TWO}) tuple(n, z, z)",
    "both, crossed": f"{READ} z = f32[8] add(x, y) u = f32[8] subtract(x, y) ROOT r = ({TWO}) tuple(n, u, z)",
    "one from the other": f"{READ} z = f32[8] negate(x) u = f32[8] negate(z) ROOT r = ({TWO}) tuple(n, u, z)",
    "constant": f"{READ} c = f32[8] constant({{1,2,3,4,5,6,7,8}}) ROOT r = ({TWO}) tuple(n, c, x)",
    "read after its update": (
        f"{READ} p = f32[2] slice(y), slice={{[3:5]}} u = f32[8] dynamic-update-slice(x, p, i) "
        f"z = f32[8] add(x, u) ROOT r = ({TWO}) tuple(n, u, z)"
    ),
    "read before its update": (
        f"{READ} z = f32[8] add(x, y) p = f32[2] slice(z), slice={{[3:5]}} "
        f"u = f32[8] dynamic-update-slice(x, p, i) ROOT r = ({TWO}) tuple(n, u, z)"
    ),
    "updated by itself": (
        f"{READ} p = f32[2] slice(x), slice={{[3:5]}} u = f32[8] dynamic-update-slice(x, p, i) "
        f"v = f32[8] reverse(u), dimensions={{0}} ROOT r = ({TWO}) tuple(n, u, v)"
    ),
    "updated twice": (
        f"{READ} p = f32[2] slice(y), slice={{[3:5]}} u = f32[8] dynamic-update-slice(x, p, i) "
        f"v = f32[8] dynamic-update-slice(u, p, n) w = f32[8] dynamic-update-slice(x, p, n) "
        f"z = f32[8] add(v, w) ROOT r = ({TWO}) tuple(n, v, z)"
    ),
}


@pytest.mark.parametrize("options", [PLAIN, None], ids=["plain", "optimized"])
@pytest.mark.parametrize("trips", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("name", BODIES)
def test_two_carried_arrays_match_the_interpreter(name: str, trips: int, options: CompileOptions | None) -> None:
    module = parse(LOOP.format(state=TWO, body=BODIES[name], trips=trips, entry=ENTRY))
    rng = np.random.default_rng(5)
    _compare(module, [rng.normal(size=8).astype(np.float32) for _ in range(2)], options)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", BODIES)
def test_a_loop_whose_end_is_known_at_run_time_matches_the_interpreter(name: str, trips: int) -> None:
    state = f"{TWO}, s32[]"
    body = BODIES[name].replace(TWO, state).replace(READ, f"{READ} end = s32[] get-tuple-element(s), index=3\n")
    text = LOOP.replace("limit = s32[] constant({trips})", "limit = s32[] get-tuple-element(s), index=3")
    entry = ENTRY.replace(TWO, state).replace("tuple(zero, a, b)", "tuple(zero, a, b, end)")
    module = parse(
        text.format(state=state, body=f"{body.rstrip()[:-1]}, end)", entry=f"end = s32[] parameter(2) {entry}")
    )
    rng = np.random.default_rng(9)
    arrays = [rng.normal(size=8).astype(np.float32) for _ in range(2)]
    _compare(module, [*arrays, np.array(trips, np.int32)], PLAIN)


def test_two_carried_arrays_may_start_from_one_parameter() -> None:
    entry = ENTRY.replace("tuple(zero, a, b)", "tuple(zero, a, a)")
    module = parse(LOOP.format(state=TWO, body=BODIES["swap with work"], trips=3, entry=entry))
    rng = np.random.default_rng(6)
    _compare(module, [rng.normal(size=8).astype(np.float32) for _ in range(2)], PLAIN)


def test_an_initial_value_may_be_used_after_the_loop() -> None:
    entry = f"""
      e = f32[8] exponential(a)
      t = ({TWO}) tuple(zero, e, b)
      w = ({TWO}) while(t), condition=condition, body=body
      p = f32[8] get-tuple-element(w), index=1
      q = f32[8] add(p, e)
      ROOT r = (f32[8], f32[8], f32[8], f32[8]) tuple(p, q, e, a)
    """
    module = parse(LOOP.format(state=TWO, body=BODIES["swap with work"], trips=3, entry=entry))
    rng = np.random.default_rng(7)
    _compare(module, [rng.normal(size=8).astype(np.float32) for _ in range(2)], PLAIN)


def test_a_loop_that_updates_one_row_per_iteration_copies_no_array() -> None:
    state = "s32[], f32[8], f32[50,8]"
    body = f"""
      x = f32[8] get-tuple-element(s), index=1
      y = f32[50,8] get-tuple-element(s), index=2
      z = f32[8] negate(x)
      row = f32[1,8] reshape(z)
      c = s32[] constant(0)
      u = f32[50,8] dynamic-update-slice(y, row, i, c)
      ROOT r = ({state}) tuple(n, z, u)
    """
    entry = f"""
      f = f32[] constant(0)
      fill = f32[50,8] broadcast(f), dimensions={{}}
      t = ({state}) tuple(zero, a, fill)
      w = ({state}) while(t), condition=condition, body=body
      ROOT q = f32[50,8] get-tuple-element(w), index=2
    """
    module = parse(LOOP.format(state=state, body=body, trips=50, entry=entry))
    args = [np.arange(8, dtype=np.float32), np.zeros(8, np.float32)]
    _compare(module, args, PLAIN)
    copies = [t for t in compile(module, options=PLAIN).thunks if isinstance(t, CopyThunk)]
    assert [t for t in copies if t.executions > 1 and t.source.size > 4] == []


@pytest.mark.parametrize("trips", [4, 7, None])
@pytest.mark.parametrize(
    "body",
    [
        f"{READ} z = f32[8] reverse(x), dimensions={{0}} ROOT r = ({TWO}) tuple(n, z, y)",
        f"{READ} z = f32[8] reverse(y), dimensions={{0}} u = f32[8] add(x, z) ROOT r = ({TWO}) tuple(n, y, u)",
    ],
    ids=["out of place", "the state before the last one"],
)
def test_two_iterations_at_once_copy_no_array(body: str, trips: int | None) -> None:
    text = LOOP.format(state=TWO, body=body, trips=trips or 5, entry=ENTRY)
    if trips is None:  # the condition also depends on an array, so that the trip count is unknown
        first = "x = f32[8] get-tuple-element(s), index=1 e = f32[1] slice(x), slice={[0:1]} f = f32[] reshape(e)"
        small = f"{first} c = f32[] constant(100) small = pred[] compare(f, c), direction=LT"
        end = "pred[] compare(i, limit), direction=LT"
        text = text.replace(f"ROOT r = {end}", f"{small} before = {end} ROOT r = pred[] and(small, before)")
    module = parse(text)
    rng = np.random.default_rng(8)
    _compare(module, [rng.normal(size=8).astype(np.float32) for _ in range(2)], PLAIN)
    copies = [t for t in compile(module, options=PLAIN).thunks if isinstance(t, CopyThunk)]
    assert [t for t in copies if t.executions > 1 and t.source.size > 4] == []
