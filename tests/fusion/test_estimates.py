"""Tests of estimates that are kept for equal pairs of nodes."""

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
