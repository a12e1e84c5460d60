"""Donated arguments: results that take over their memory, and the cases in which a call works on a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import compile, load
from compiler.backends.cpu.executable import CpuExecutable
from compiler.interpreter import evaluate
from compiler.ir.header import Alias, Aliases
from compiler.loops import KeepLoops, KernelLoops, LoopPolicy
from compiler.runtime.donation import donations
from compiler.text import parse
from tests.codegen import running
from tests.runtime.random_loops import random_loops

Array = np.ndarray[Any, np.dtype[Any]]
ALIAS = "input_output_alias={ {}: (0, {}, must-alias) }"
UPDATE = """
HloModule m, HEADER
ENTRY main {
  a = f32[64] parameter(0)
  u = f32[2] parameter(1)
  i = s32[] constant(3)
  ROOT r = f32[64] dynamic-update-slice(a, u, i)
}
"""
ADD = """
HloModule m, HEADER
ENTRY main {
  a = f32[64] parameter(0)
  u = f32[64] parameter(1)
  ROOT r = f32[64] add(a, u)
}
"""
SCATTER = """
HloModule m, HEADER
add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] add(x, y) }
ENTRY main {
  a = f32[64] parameter(0)
  u = f32[5] parameter(1)
  i = s32[5,1] constant({{3},{1},{4},{1},{59}})
  ROOT r = f32[64] scatter(a, i, u), update_window_dims={}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
}
"""
LOOP = """
HloModule m, HEADER
c { s = (s32[], f32[64], f32[2]) parameter(0) n = s32[] get-tuple-element(s), index=0 k = s32[] constant(9)
    ROOT p = pred[] compare(n, k), direction=LT }
b { s = (s32[], f32[64], f32[2]) parameter(0) n = s32[] get-tuple-element(s), index=0
    x = f32[64] get-tuple-element(s), index=1 u = f32[2] get-tuple-element(s), index=2
    y = f32[64] dynamic-update-slice(x, u, n) e = f32[64] cosine(y) one = s32[] constant(1) m = s32[] add(n, one)
    ROOT r = (s32[], f32[64], f32[2]) tuple(m, e, u) }
ENTRY main {
  a = f32[64] parameter(0)
  u = f32[2] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[64], f32[2]) tuple(z, a, u)
  w = (s32[], f32[64], f32[2]) while(t), condition=c, body=b
  ROOT r = f32[64] get-tuple-element(w), index=1
}
"""
PROGRAMS = {"update": (UPDATE, 2), "add": (ADD, 64), "scatter": (SCATTER, 5), "loop": (LOOP, 2)}


def build(text: str, header: str = ALIAS, **options: Any) -> CpuExecutable:
    exe = compile(text.replace("HEADER", header), **options)
    assert isinstance(exe, CpuExecutable)
    return exe


def arguments(updates: int = 2) -> list[Array]:
    return [np.arange(64, dtype=np.float32) / 64, -np.ones(updates, np.float32)]


@pytest.mark.parametrize("header", [ALIAS, "input_output_alias={ {}: (0, {}) }", "buffer_donor={ (0, {}) }"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_donated_argument_is_updated_and_returned(name: str, header: str) -> None:
    text, updates = PROGRAMS[name]
    exe = build(text, header)
    for _ in range(3):  # the first call goes through Python, later ones do not
        a, u = arguments(updates)
        (wanted,) = evaluate(exe.module, [a.copy(), u.copy()])
        (found,) = exe(a, u)
        assert found is a
        np.testing.assert_allclose(found, wanted, rtol=2e-6)
        np.testing.assert_array_equal(u, arguments(updates)[1])


@pytest.mark.parametrize("loops", [KeepLoops(), KernelLoops()])
@pytest.mark.parametrize("name", PROGRAMS)
def test_donated_arguments_are_not_copied(name: str, loops: LoopPolicy) -> None:
    exe = build(PROGRAMS[name][0], loop_policy=loops)
    assert [t.name for t in exe.program.thunks if t.kind == "copy" and t.reads()[0].size > 8] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_donated_without_a_header(name: str) -> None:
    text, updates = PROGRAMS[name]
    exe = build(text.replace(", HEADER", ""))
    given = arguments(updates)
    for _ in range(2):
        (found,) = exe(*given)
        assert not np.shares_memory(found, given[0])
        np.testing.assert_array_equal(given[0], arguments()[0])


def unsuitable() -> dict[str, tuple[Any, Any, Array]]:
    """Return calls whose first argument must not be overwritten, with an array that would show it."""
    a, u = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    locked = a.copy()
    locked.flags.writeable = False
    wide, strided = np.arange(128, dtype=np.float32), np.arange(128, dtype=np.float32)
    return {
        "read-only": (locked, u, locked),
        "a view": (wide[:64], u, wide),
        "strided": (strided[::2], u, strided),
        "passed twice": (a, a, a),
        "shared with another argument": (a, a[:], a),
    }


@pytest.mark.parametrize("what", unsuitable())
def test_a_call_copies_an_argument_that_it_must_not_overwrite(what: str) -> None:
    exe = build(ADD)
    for _ in range(2):
        first, second, shown = unsuitable()[what]
        before = shown.copy()
        wanted = first + second
        (found,) = exe(first, second)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(shown, before)
        assert not np.shares_memory(found, shown)


def test_two_donated_arguments_may_exchange_their_values() -> None:
    header = "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"
    text = """
    HloModule m, HEADER
    ENTRY main { a = s32[5] parameter(0) b = s32[5] parameter(1) ROOT r = (s32[5], s32[5]) tuple(b, a) }
    """
    exe = build(text, header)
    for _ in range(2):
        a, b = np.arange(5, dtype=np.int32), np.arange(5, 10, dtype=np.int32)
        x, y = exe(a, b)
        assert (x is a, y is b) == (True, True)
        assert (x.tolist(), y.tolist()) == ([5, 6, 7, 8, 9], [0, 1, 2, 3, 4])


def test_a_donated_argument_may_also_be_another_result() -> None:
    text = """
    HloModule m, HEADER
    ENTRY main { a = s32[5] parameter(0) b = s32[5] negate(a) c = s32[5] add(a, b)
      ROOT r = (s32[5], s32[5]) tuple(b, a) }
    """
    exe = build(text, "input_output_alias={ {0}: (0, {}) }")
    for _ in range(2):
        a = np.arange(5, dtype=np.int32)
        x, y = exe(a)
        assert x is a
        assert (x.tolist(), y.tolist()) == ([0, -1, -2, -3, -4], [0, 1, 2, 3, 4])


def test_parts_of_tuples_are_donated_by_their_leaves() -> None:
    module = parse("""
    HloModule m, input_output_alias={ {1}: (1, {1,0}) }, buffer_donor={ (0, {}), (1, {0}) }
    ENTRY main {
      a = f32[3] parameter(0)
      p = (f32[2], (f32[4], f32[2])) parameter(1)
      q = (f32[4], f32[2]) get-tuple-element(p), index=1
      x = f32[4] get-tuple-element(q), index=0
      y = f32[2] get-tuple-element(q), index=1
      ROOT r = (f32[2], f32[4]) tuple(y, x)
    }
    """)
    assert donations(module) == {2: 1, 1: 0}


def test_a_saved_program_takes_over_arguments_too(tmp_path: Path) -> None:
    build(ADD).save(tmp_path / "program")
    exe = load(tmp_path / "program")
    for _ in range(2):
        a, u = arguments(64)
        (found,) = exe(a, u)
        assert found is a
        np.testing.assert_array_equal(found, arguments()[0] - 1)


def test_timing_keeps_the_arguments() -> None:
    exe = build(ADD)
    a, u = arguments(64)
    assert len(exe.benchmark([a, u], 3)) == 3
    exe.profile(a, u)
    np.testing.assert_array_equal(a, arguments()[0])


@pytest.mark.parametrize("loops", [KeepLoops(), KernelLoops()])
@pytest.mark.parametrize("seed", range(6))
def test_random_loops_are_right_when_everything_possible_is_donated(seed: int, loops: LoopPolicy) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        module = random_loops(rng)
        inputs = [s for p in module.entry.parameter_shapes for s in p.leaves()]
        outputs = list(module.entry.root.shape.leaves())
        pairs: dict[int, int] = {}
        for n, wanted in enumerate(outputs):
            source = next((k for k, s in enumerate(inputs) if k not in pairs and s == wanted), None)
            if source is not None:
                pairs[source] = n
        indices = {n: (n,) if module.entry.root.shape.is_tuple else () for n in pairs.values()}
        module.header["input_output_alias"] = Aliases(tuple(Alias(indices[n], k, ()) for k, n in pairs.items()))
        exe = compile(module, loop_policy=loops)
        args = running.random_args(module.entry.parameter_shapes, rng)
        wanted_arrays = evaluate(module, [a.copy() for a in args])
        for given in (args, [a.copy() for a in args], [a.copy() for a in args]):
            views = [a[...] for a in given] if given is args else given
            found = exe(*views)
            assert running.problem(found, wanted_arrays) is None
            if given is not args:
                assert all(found[n] is given[k] for k, n in pairs.items())
