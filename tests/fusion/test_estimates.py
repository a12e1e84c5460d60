"""Tests of estimates that are kept for equal pairs of nodes."""

import pytest

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.text import parse

# Two updates of equal structure, of which only one may be in place: the other's array is read again.
UPDATES = """HloModule m
ENTRY main {
  free = f32[65536] parameter(0)
  read = f32[65536] parameter(1)
  a = f32[256] parameter(2)
  b = f32[256] parameter(3)
  at = s32[] parameter(4)
  ea = f32[256] exponential(a)
  eb = f32[256] exponential(b)
  ua = f32[65536] dynamic-update-slice(free, ea, at)
  ub = f32[65536] dynamic-update-slice(read, eb, at)
  again = f32[65536] negate(read)
  ROOT t = (f32[65536], f32[65536], f32[65536]) tuple(ua, ub, again)
}"""


def test_equal_pairs_differ_where_only_one_updates_in_place() -> None:
    pairs = [FusionAction("producer-consumer", "main", e, (u,)) for e, u in (("ea", "ua"), ("eb", "ub"))]
    alone = [FusionState(parse(UPDATES)).estimate(p) for p in pairs]
    assert alone[0] != alone[1]
    for order in (pairs, pairs[::-1]):
        state = FusionState(parse(UPDATES))
        found = {p: state.estimate(p) for p in order}
        assert [found[p] for p in pairs] == alone


MOVED = """HloModule m
ENTRY main {
  x = bf16[64,64] parameter(0)
  a = bf16[64,64] add(x, x)
  b = bf16[64,64] multiply(x, x)
  t = bf16[64,64] transpose(x), dimensions={1,0}
  ROOT c = bf16[192,64] concatenate(a, b, t), dimensions={0}
}"""


def test_what_is_moved_and_rounded_is_estimated_as_it_is_after_fusion() -> None:
    state = FusionState(parse(MOVED))
    for producer in ("a", "b", "t"):
        user = state.sequences["main"].computation.root.name
        action = FusionAction("producer-consumer", "main", producer, (user,))
        before, saved = state.seconds(), state.estimate(action)
        state.apply(action)
        assert before - state.seconds() == pytest.approx(saved)


DISTANCES = """HloModule m
add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q) }
ENTRY main {
  x = f32[64,8] parameter(0)
  zero = f32[] constant(0)
  a = f32[64,64,8] broadcast(x), dimensions={1,2}
  s = f32[64,64,8] multiply(a, a)
  d = f32[64,8] reduce(s, zero), dimensions={1}, to_apply=add
  ROOT e = f32[64,8] exponential(d)
}"""


def test_what_rows_repeat_is_estimated_as_it_is_after_fusion() -> None:
    state = FusionState(parse(DISTANCES))
    for producer, user in (("a", "s"), ("fusion", "d")):
        action = FusionAction("producer-consumer", "main", producer, (user,))
        before, saved = state.seconds(), state.estimate(action)
        state.apply(action)
        assert before - state.seconds() == pytest.approx(saved)
