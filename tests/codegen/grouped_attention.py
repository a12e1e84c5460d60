"""Programs of attention in which several heads of queries share each head of keys."""

from __future__ import annotations

from typing import Literal, TypeAlias

CacheOrder: TypeAlias = Literal["keys first", "heads first"]
ScoreOrder: TypeAlias = Literal["queries first", "groups first"]


def grouped_attention(
    t: str,
    heads: int,
    groups: int,
    queries: int,
    keys: int,
    size: int,
    cache: CacheOrder = "keys first",
    scores: ScoreOrder = "queries first",
) -> str:
    """Return the HLO of attention whose queries are [queries, heads, groups, size].

    Args:
        t: element type.
        heads: heads of keys.
        groups: heads of queries per head of keys.
        queries, keys, size: of a head.
        cache: whether keys and values are [keys, heads, size], as models keep them, or [heads, keys, size].
        scores: whether scores are [heads, queries, groups, keys], as the product yields them, or transposed to
            [heads, groups, queries, keys].
    """
    h, g, q, k, d = heads, groups, queries, keys, size
    cached, batch, along = (f"{k},{h},{d}", 1, 0) if cache == "keys first" else (f"{h},{k},{d}", 0, 1)
    if scores == "queries first":
        turned, row, turn, back = "dot", f"{h},{q},{g}", "", "1,0,2,3"
    else:
        turned, row, back = "turned", f"{h},{g},{q}", "2,0,1,3"
        turn = f"turned = {t}[{row},{k}] transpose(dot), dimensions={{0,2,1,3}}"
    return f"""HloModule grouped
    max {{ a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT m = f32[] maximum(a, b) }}
    sum {{ a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT s = f32[] add(a, b) }}
    ENTRY e {{
      q = {t}[{q},{h},{g},{d}] parameter(0)
      k = {t}[{cached}] parameter(1)
      v = {t}[{cached}] parameter(2)
      low = f32[] constant(-inf)
      zero = f32[] constant(0)
      dot = {t}[{h},{q},{g},{k}] dot(q, k), lhs_batch_dims={{1}}, rhs_batch_dims={{{batch}}},
        lhs_contracting_dims={{3}}, rhs_contracting_dims={{2}}
      {turn}
      scores = f32[{row},{k}] convert({turned})
      most = f32[{row}] reduce(scores, low), dimensions={{3}}, to_apply=max
      mosts = f32[{row},{k}] broadcast(most), dimensions={{0,1,2}}
      below = f32[{row},{k}] subtract(scores, mosts)
      w = f32[{row},{k}] exponential(below)
      total = f32[{row}] reduce(w, zero), dimensions={{3}}, to_apply=sum
      totals = f32[{row},{k}] broadcast(total), dimensions={{0,1,2}}
      p = f32[{row},{k}] divide(w, totals)
      weights = {t}[{row},{k}] convert(p)
      out = {t}[{row},{d}] dot(weights, v), lhs_batch_dims={{0}}, rhs_batch_dims={{{batch}}},
        lhs_contracting_dims={{3}}, rhs_contracting_dims={{{along}}}
      ROOT r = {t}[{q},{h},{g},{d}] transpose(out), dimensions={{{back}}}
    }}"""
