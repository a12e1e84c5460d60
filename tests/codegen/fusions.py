"""Named fused computations, at least one for every kind of kernel."""

from __future__ import annotations

from functools import cache

from compiler.ir import HloComputation
from tests.codegen.running import fused

REDUCERS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
mul { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] multiply(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
min { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] minimum(a, b) }
add64 { a = f64[] parameter(0) b = f64[] parameter(1) ROOT r = f64[] add(a, b) }
max64 { a = f64[] parameter(0) b = f64[] parameter(1) ROOT r = f64[] maximum(a, b) }
addi { a = s32[] parameter(0) b = s32[] parameter(1) ROOT r = s32[] add(a, b) }
maxi8 { a = s8[] parameter(0) b = s8[] parameter(1) ROOT r = s8[] maximum(a, b) }
minu64 { a = u64[] parameter(0) b = u64[] parameter(1) ROOT r = u64[] minimum(a, b) }
both { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] and(a, b) }
either { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] or(a, b) }
apart { a = f32[] parameter(0) b = f32[] parameter(1) d = f32[] subtract(a, b) ROOT r = f32[] abs(d) }
addb { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT r = bf16[] add(a, b) }
argmax {
  v = f32[] parameter(0) i = s32[] parameter(1) w = f32[] parameter(2) j = s32[] parameter(3)
  gt = pred[] compare(v, w), direction=GT
  eq = pred[] compare(v, w), direction=EQ
  lt = pred[] compare(i, j), direction=LT
  tie = pred[] and(eq, lt)
  take = pred[] or(gt, tie)
  x = f32[] select(take, v, w)
  y = s32[] select(take, i, j)
  ROOT r = (f32[], s32[]) tuple(x, y)
}
"""


def softmax(dims: str, rows: str, reduced: str, kept: str) -> str:
    """Return a softmax over the dimensions `reduced`; `rows` is the shape of its row maxima and sums."""
    return f"""
    x = f32[{dims}] parameter(0)
    low = f32[] constant(-inf)
    zero = f32[] constant(0)
    m = f32[{rows}] reduce(x, low), dimensions={{{reduced}}}, to_apply=max
    mb = f32[{dims}] broadcast(m), dimensions={{{kept}}}
    d = f32[{dims}] subtract(x, mb)
    e = f32[{dims}] exponential(d)
    s = f32[{rows}] reduce(e, zero), dimensions={{{reduced}}}, to_apply=add
    sb = f32[{dims}] broadcast(s), dimensions={{{kept}}}
    ROOT r = f32[{dims}] divide(e, sb)
    """


LAYER_NORM = """
    x = f32[9,130] parameter(0)
    g = f32[130] parameter(1)
    zero = f32[] constant(0)
    inv = f32[] constant(0.0076923077)
    invb = f32[9] broadcast(inv), dimensions={}
    s = f32[9] reduce(x, zero), dimensions={1}, to_apply=add
    mean = f32[9] multiply(s, invb)
    mb = f32[9,130] broadcast(mean), dimensions={0}
    c = f32[9,130] subtract(x, mb)
    sq = f32[9,130] multiply(c, c)
    v = f32[9] reduce(sq, zero), dimensions={1}, to_apply=add
    var = f32[9] multiply(v, invb)
    eps = f32[] constant(1e-5)
    epsb = f32[9] broadcast(eps), dimensions={}
    ve = f32[9] add(var, epsb)
    rs = f32[9] rsqrt(ve)
    rb = f32[9,130] broadcast(rs), dimensions={0}
    n = f32[9,130] multiply(c, rb)
    gb = f32[9,130] broadcast(g), dimensions={1}
    y = f32[9,130] multiply(n, gb)
    ROOT r = (f32[9,130], f32[9], f32[9]) tuple(y, mean, rs)
"""

ARGMAX_BLOCK = """
    x = f32[7,100] parameter(0)
    low = f32[] constant(-inf)
    zero = s32[] constant(0)
    t = f32[7,100] tanh(x)
    i = s32[7,100] iota(), iota_dimension=1
    am = (f32[7], s32[7]) reduce(t, i, low, zero), dimensions={1}, to_apply=argmax
    m = f32[7] get-tuple-element(am), index=0
    k = s32[7] get-tuple-element(am), index=1
    mb = f32[7,100] broadcast(m), dimensions={0}
    y = f32[7,100] subtract(t, mb)
    ROOT r = (f32[7,100], s32[7]) tuple(y, k)
"""

BODIES = {
    "elementwise": """
        a = f32[33,70] parameter(0)
        b = f32[33,70] parameter(1)
        s = f32[33,70] add(a, b)
        t = f32[33,70] tanh(s)
        ROOT r = (f32[33,70], f32[33,70]) tuple(t, s)
    """,
    "scalar": """
        a = f32[] parameter(0)
        b = f32[1,1] parameter(1)
        c = f32[] reshape(b)
        ROOT r = f32[] multiply(a, c)
    """,
    "transpose": """
        a = f32[70,3,65] parameter(0)
        t = f32[65,3,70] transpose(a), dimensions={2,1,0}
        ROOT r = f32[65,3,70] negate(t)
    """,
    "movement": """
        a = f32[6,10] parameter(0)
        r0 = f32[10,6] reshape(a)
        rv = f32[10,6] reverse(r0), dimensions={0,1}
        r1 = f32[4,15] reshape(rv)
        z = f32[] constant(7)
        p = f32[6,28] pad(r1, z), padding=1_1x-1_0_1
        s = f32[3,9] slice(p), slice={[0:6:2], [1:28:3]}
        ROOT c = f32[3,18] concatenate(s, s), dimensions={1}
    """,
    "concatenate": """
        a = f32[5,7] parameter(0)
        b = f32[5,3] parameter(1)
        c = f32[5,0] parameter(2)
        d = f32[5,1] parameter(3)
        k = f32[5,18] concatenate(a, b, c, d, a), dimensions={1}
        ROOT n = f32[5,18] negate(k)
    """,
    "row_sum": """
        x = f32[5,300] parameter(0)
        init = f32[] parameter(1)
        e = f32[5,300] exponential(x)
        ROOT s = f32[5] reduce(e, init), dimensions={1}, to_apply=add
    """,
    "row_reductions": """
        x = f32[4,3,5,40] parameter(0)
        zero = f32[] constant(0)
        low = f32[] constant(-inf)
        s = f32[4,3] reduce(x, zero), dimensions={2,3}, to_apply=add
        m = f32[4,3] reduce(x, low), dimensions={2,3}, to_apply=max
        ROOT r = (f32[4,3], f32[4,3]) tuple(s, m)
    """,
    "full_sum": """
        x = f32[40,50] parameter(0)
        zero = f32[] constant(0)
        s = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
        ROOT r = f32[] sqrt(s)
    """,
    "scattered_rows": """
        x = f32[20,3,6] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[3] reduce(x, zero), dimensions={0,2}, to_apply=add
    """,
    "column_sum": """
        x = f32[37,300] parameter(0)
        zero = f32[] constant(0)
        low = f32[] constant(-inf)
        e = f32[37,300] exponential(x)
        s = f32[300] reduce(e, zero), dimensions={0}, to_apply=add
        m = f32[300] reduce(x, low), dimensions={0}, to_apply=max
        d = f32[300] subtract(s, m)
        ROOT r = (f32[300], f32[300]) tuple(d, m)
    """,
    "column_sum_wide": """
        x = f64[20,8192] parameter(0)
        zero = f64[] constant(0)
        ROOT s = f64[8192] reduce(x, zero), dimensions={0}, to_apply=add64
    """,
    "normal_two_columns": """
        x = f32[6,5,70] parameter(0)
        zero = f32[] constant(0)
        e = f32[6,5,70] exponential(x)
        s = f32[6] reduce(e, zero), dimensions={1,2}, to_apply=add
        sb = f32[6,5,70] broadcast(s), dimensions={0}
        ROOT r = f32[6,5,70] divide(e, sb)
    """,
    "normal_columns_apart": """
        x = f32[6,5,70] parameter(0)
        b = f32[70] parameter(1)
        zero = f32[] constant(0)
        bb = f32[6,5,70] broadcast(b), dimensions={2}
        xb = f32[6,5,70] add(x, bb)
        e = f32[6,5,70] exponential(xb)
        s = f32[6] reduce(e, zero), dimensions={1,2}, to_apply=add
        sb = f32[6,5,70] broadcast(s), dimensions={0}
        d = f32[6,5,70] divide(e, sb)
        m = f32[6] reduce(d, zero), dimensions={1,2}, to_apply=max
        mb = f32[6,5,70] broadcast(m), dimensions={0}
        ROOT r = f32[6,5,70] subtract(d, mb)
    """,
    "column_sum_one_left": """
        x = f32[37,257] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[257] reduce(x, zero), dimensions={0}, to_apply=add
    """,
    "column_sum_narrow": """
        x = f32[40,3,2] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[3,2] reduce(x, zero), dimensions={0}, to_apply=add
    """,
    "column_middle": """
        x = f32[3,40,70] parameter(0)
        zero = f32[] constant(1.5)
        s = f32[3,70] reduce(x, zero), dimensions={1}, to_apply=add
        ROOT n = f32[3,70] negate(s)
    """,
    "column_batch": """
        x = f32[5,6,7,33] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[6,33] reduce(x, zero), dimensions={0,2}, to_apply=add
    """,
    "softmax": softmax("6,200", "6", "1", "0"),
    "softmax_two_columns": softmax("5,6,50", "5", "1,2", "0"),
    "softmax_ragged": softmax("3,5,67", "3", "1,2", "0"),
    "softmax_one_row": softmax("77", "", "0", ""),
    "softmax_rank4": softmax("2,3,1,90", "2,3", "2,3", "0,1"),
    "layer_norm": LAYER_NORM,
    "argmax": """
        x = f32[7,100] parameter(0)
        low = f32[] constant(-inf)
        zero = s32[] constant(0)
        i = s32[7,100] iota(), iota_dimension=1
        am = (f32[7], s32[7]) reduce(x, i, low, zero), dimensions={1}, to_apply=argmax
        m = f32[7] get-tuple-element(am), index=0
        k = s32[7] get-tuple-element(am), index=1
        ROOT r = (f32[7], s32[7]) tuple(m, k)
    """,
    "argmax_block": ARGMAX_BLOCK,
    "max_then_argmax": """
        x = f32[7,100] parameter(0)
        low = f32[] constant(-inf)
        zero = s32[] constant(0)
        e = f32[7,100] exponential(x)
        m0 = f32[7] reduce(e, low), dimensions={1}, to_apply=max
        mb = f32[7,100] broadcast(m0), dimensions={0}
        d = f32[7,100] subtract(e, mb)
        i = s32[7,100] iota(), iota_dimension=1
        am = (f32[7], s32[7]) reduce(d, i, low, zero), dimensions={1}, to_apply=argmax
        m = f32[7] get-tuple-element(am), index=0
        k = s32[7] get-tuple-element(am), index=1
        mb2 = f32[7,100] broadcast(m), dimensions={0}
        y = f32[7,100] add(e, mb2)
        ROOT r = (f32[7,100], s32[7]) tuple(y, k)
    """,
    "types": """
        a = s8[9,50] parameter(0)
        b = u64[9,50] parameter(1)
        p = pred[9,50] parameter(2)
        low = s8[] constant(-128)
        high = u64[] constant(18446744073709551615)
        t = pred[] constant(true)
        f = pred[] constant(false)
        m = s8[9] reduce(a, low), dimensions={1}, to_apply=maxi8
        n = u64[9] reduce(b, high), dimensions={1}, to_apply=minu64
        q = pred[9] reduce(p, t), dimensions={1}, to_apply=both
        o = pred[9] reduce(p, f), dimensions={1}, to_apply=either
        ROOT r = (s8[9], u64[9], pred[9], pred[9]) tuple(m, n, q, o)
    """,
    "bf16_rows": """
        a = bf16[9,50] parameter(0)
        h = f16[9,50] parameter(1)
        zero = bf16[] constant(0)
        hb = bf16[9,50] convert(h)
        x = bf16[9,50] multiply(a, hb)
        m = bf16[9] reduce(x, zero), dimensions={1}, to_apply=addb
        ROOT r = bf16[9] negate(m)
    """,
    "softmax_f64_wide": """
        x = f64[2,3000] parameter(0)
        low = f64[] constant(-inf)
        zero = f64[] constant(0)
        m = f64[2] reduce(x, low), dimensions={1}, to_apply=max64
        mb = f64[2,3000] broadcast(m), dimensions={0}
        d = f64[2,3000] subtract(x, mb)
        e = f64[2,3000] exponential(d)
        t = f64[2,3000] tanh(x)
        te = f64[2,3000] multiply(t, e)
        s = f64[2] reduce(te, zero), dimensions={1}, to_apply=add64
        sb = f64[2,3000] broadcast(s), dimensions={0}
        q = f64[2,3000] divide(e, sb)
        ROOT r = f64[2,3000] add(q, t)
    """,
    "update_slice": """
        x = f32[12,40] parameter(0)
        u = f32[1,40] parameter(1)
        i = s32[] parameter(2)
        z = s32[] constant(0)
        n = f32[1,40] negate(u)
        ROOT r = f32[12,40] dynamic-update-slice(x, n, i, z)
    """,
    "dynamic_slices": """
        x = f32[12,40] parameter(0)
        i = s32[] parameter(1)
        j = u8[] parameter(2)
        d = f32[3,17] dynamic-slice(x, i, i), dynamic_slice_sizes={3,17}
        n = f32[3,17] negate(d)
        k = s32[] constant(2)
        u = f32[12,40] dynamic-update-slice(x, n, k, i)
        ROOT r = f32[12,40] exponential(u)
    """,
    "gather": """
        x = f32[30,20] parameter(0)
        i = s32[6,4,2] parameter(1)
        g = f32[6,4,5] gather(x, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0,1},
            index_vector_dim=2, slice_sizes={1,5}
        ROOT n = f32[6,4,5] negate(g)
    """,
    "conversions": """
        x = f64[300] parameter(0)
        h = f16[300] convert(x)
        f = f32[300] convert(h)
        b = bf16[300] iota(), iota_dimension=0
        n = s32[300] convert(b)
        u = u8[300] convert(x)
        ROOT r = (f32[300], s32[300], u8[300]) tuple(f, n, u)
    """,
    "zero_size": """
        x = f32[0,7] parameter(0)
        ROOT n = f32[0,7] negate(x)
    """,
}  # fmt: skip

NAMES = tuple(BODIES)


@cache
def fusion(name: str) -> HloComputation:
    """Return the fused computation of a name."""
    return fused(BODIES[name], REDUCERS)
