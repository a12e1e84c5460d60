"""Cases of control flow, tuples, random bits, collectives on one replica, asynchronous ops and transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tests.sweeps.case import MAIN, Case, Tolerance, binary_computation, module, shape, simple, values


def cases() -> Iterator[Case]:
    yield from _control()
    yield from _tuples()
    yield from _random()
    yield from _collectives()
    yield from _async()
    yield from _dynamic_sizes()
    yield from _calls()


_LOOP = """cond {{
  s = (s32[], {t}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(LIMIT)
  ROOT r = pred[] compare(i, n), direction=LT
}}
body {{
  s = (s32[], {t}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {t} get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = {t} {op}(x, x)
  ROOT r = (s32[], {t}) tuple(j, y)
}}
"""
_BRANCHES = """a {{
  x = {t} parameter(0)
  ROOT r = {t} copy(x)
}}
b {{
  x = {t} parameter(0)
  ROOT r = {t} {op}(x, x)
}}
c {{
  x = {t} parameter(0)
  y = {t} {op}(x, x)
  ROOT r = {t} {op}(y, x)
}}
"""


def _op(t: str) -> str:
    return "xor" if t == "pred" else "add"


def _control() -> Iterator[Case]:
    args: tuple[Any, ...]
    for t in MAIN:
        x = shape(t, (2, 3))
        arg = values(t, (2, 3))
        tolerance = Tolerance(4) if t in ("f32", "bf16", "c64") else None
        for limit in (0, 1, 5):
            computations = _LOOP.format(t=x, op=_op(t)).replace("LIMIT", str(limit))
            body = f"""i = s32[] parameter(0)
            x = {x} parameter(1)
            s = (s32[], {x}) tuple(i, x)
            ROOT r = (s32[], {x}) while(s), condition=cond, body=body"""
            text = module(body, computations)
            yield Case("while", t, f"{limit}-times", text, (np.int32(0), arg), tolerance, t == "f32")
        branches = _BRANCHES.format(t=x, op=_op(t))
        for index in (-1, 0, 1, 2, 7):
            attributes = "branch_computations={a, b, c}"
            text = simple("conditional", x, ["s32[]", x, x, x], attributes, branches)
            args = (np.int32(index), arg, values(t, (2, 3), 2), values(t, (2, 3), 3))
            yield Case("conditional", t, f"index{index}", text, args, tolerance, t == "f32")
        for flag in (False, True):
            attributes = "true_computation=a, false_computation=b"
            text = simple("conditional", x, ["pred[]", x, x], attributes, branches)
            args = (np.array(flag), arg, values(t, (2, 3), 2))
            yield Case("conditional", t, f"pred{flag}", text, args, tolerance, t == "f32")
        text = simple("call", x, [x], "to_apply=c", branches)
        yield Case("call", t, "one", text, (arg,), tolerance, t == "f32")
        text = simple("fusion", x, [x], "kind=kLoop, calls=c", branches)
        yield Case("fusion", t, "loop", text, (arg,), tolerance, t == "f32")


def _tuples() -> Iterator[Case]:
    for t in MAIN:
        x = shape(t, (2,))
        arg = values(t, (2,))
        yield Case("tuple", t, "pair", simple("tuple", f"({x}, {x})", [x, x]), (arg, arg), None, t == "f32")
        nested = f"""p0 = {x} parameter(0)
        t0 = ({x}) tuple(p0)
        ROOT r = (({x}), {x}) tuple(t0, p0)"""
        yield Case("tuple", t, "nested", module(nested), (arg,), None, t == "f32")
        body = f"""p0 = {x} parameter(0)
        t0 = ({x}, {x}) tuple(p0, p0)
        ROOT r = {x} get-tuple-element(t0), index=1"""
        yield Case("get-tuple-element", t, "second", module(body), (arg,), None, t == "f32")
        body = f"""p0 = {x} parameter(0)
        t0 = ({x}, {x}) tuple(p0, p0)
        b = ({x}, {x}) opt-barrier(t0)
        ROOT r = {x} get-tuple-element(b), index=0"""
        yield Case("opt-barrier", t, "tuple", module(body), (arg,), None, t == "f32")
        body = f"""p0 = {x} parameter(0)
        t0 = token[] after-all()
        ROOT r = ({x}, token[]) tuple(p0, t0)"""
        yield Case("after-all", t, "empty", module(body), (arg,), None, t == "f32")
        body = f"""p0 = {x} parameter(0)
        t0 = token[] after-all()
        ROOT r = {x} add-dependency(p0, t0)"""
        yield Case("add-dependency", t, "token", module(body), (arg,), None, t == "f32")
        yield Case("bitcast", t, "reshape", simple("bitcast", shape(t, (2, 1)), [x]), (arg,))


def _random() -> Iterator[Case]:
    for algorithm in ("rng_three_fry", "rng_philox", "rng_default"):
        for words in (2, 3):
            if words == 3 and algorithm == "rng_three_fry":
                continue
            for t in ("u8", "u16", "u32", "u64"):
                for dims in ((), (1,), (4,), (7,), (3, 5), (3, 4), (2, 3, 5), (5, 6, 3)):
                    # The counter of the second state wraps around.
                    for start in ((3, 5, 7), (2**63 + 1, 2**64 - 2, 2**64 - 1)):
                        state = np.array(start[:words], np.uint64)
                        result = f"(u64[{words}], {shape(t, dims)})"
                        text = simple("rng-bit-generator", result, [f"u64[{words}]"], f"algorithm={algorithm}")
                        name = f"{algorithm}{words}{list(dims)}from{start[0]}"
                        fast = t == "u32" and dims in ((), (7,), (3, 4))
                        yield Case("rng-bit-generator", t, name, text, (state,), None, fast)


def _collectives() -> Iterator[Case]:
    for t in ("f32", "s32", "pred"):
        x = shape(t, (4, 3))
        arg = values(t, (4, 3))
        f = binary_computation("f", "or" if t == "pred" else "add", t)
        groups = "replica_groups={{0}}"
        for op, attributes, computations in (
            ("all-reduce", f"{groups}, to_apply=f", f),
            ("all-gather", f"{groups}, dimensions={{0}}", ""),
            ("reduce-scatter", f"{groups}, dimensions={{0}}, to_apply=f", f),
            ("all-to-all", f"{groups}, dimensions={{0}}", ""),
            ("collective-broadcast", groups, ""),
            ("collective-permute", "source_target_pairs={{0,0}}", ""),
        ):
            yield Case(
                op,
                t,
                "alone",
                simple(op, x, [x], attributes, computations),
                (arg,),
                None,
                t == "f32" and op != "collective-broadcast",
            )
        text = simple("collective-permute", x, [x], "source_target_pairs={}")
        yield Case("collective-permute", t, "no-pairs", text, (arg,), None, t == "f32")
        text = simple("all-reduce", f"({x}, {x})", [x, x], f"{groups}, to_apply=f", f)
        yield Case("all-reduce", t, "two", text, (arg, values(t, (4, 3), 2)))
        body = f"""p0 = {x} parameter(0)
        s = {x} all-reduce-start(p0), {groups}, to_apply=f
        ROOT r = {x} all-reduce-done(s)"""
        yield Case("all-reduce-start", t, "done", module(body, f), (arg,))
        body = f"""p0 = {x} parameter(0)
        s = ({x}, {x}) all-gather-start(p0), {groups}, dimensions={{0}}
        ROOT r = {x} all-gather-done(s)"""
        yield Case("all-gather-start", t, "done", module(body), (arg,))
        body = f"""p0 = {x} parameter(0)
        s = ({x}, {x}) collective-permute-start(p0), source_target_pairs={{{{0,0}}}}
        ROOT r = {x} collective-permute-done(s)"""
        yield Case("collective-permute-start", t, "done", module(body), (arg,))
        indices = ["s32[1]"] * 4
        operands = [x, x, *indices]
        text = simple("ragged-all-to-all", x, operands, groups)
        numbers = tuple(np.array([k], np.int32) for k in (1, 2, 0, 2))
        yield Case("ragged-all-to-all", t, "alone", text, (arg, values(t, (4, 3), 2), *numbers))
    for op in ("partition-id", "replica-id"):
        yield Case(op, "u32", "zero", module(f"ROOT r = u32[] {op}()"), (), None, True)


def _async() -> Iterator[Case]:
    f = "f {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x)\n}\n"
    body = """p0 = f32[2] parameter(0)
    s = ((f32[2]), f32[2], s32[]) async-start(p0), calls=f
    u = ((f32[2]), f32[2], s32[]) async-update(s)
    ROOT d = f32[2] async-done(u)"""
    for op in ("async-start", "async-update", "async-done"):
        yield Case(op, "f32", "negate", module(body, f), (values("f32", (2,)),))
    body = """p0 = f32[2] parameter(0)
    s = (f32[2], f32[2], u32[]) copy-start(p0)
    ROOT d = f32[2] copy-done(s)"""
    for op in ("copy-start", "copy-done"):
        yield Case(op, "f32", "copy", module(body), (values("f32", (2,)),))
    body = """p0 = f32[2] parameter(0)
    t = token[] after-all()
    s = (f32[2], u32[], token[]) send(p0, t), channel_id=1
    sd = token[] send-done(s), channel_id=1
    r = (f32[2], u32[], token[]) recv(sd), channel_id=1
    rd = (f32[2], token[]) recv-done(r), channel_id=1
    ROOT x = f32[2] get-tuple-element(rd), index=0"""
    for op in ("send", "send-done", "recv", "recv-done"):
        yield Case(op, "f32", "to-itself", module(body), (values("f32", (2,)),))


def _dynamic_sizes() -> Iterator[Case]:
    for t in ("f32", "s32"):
        text = simple("get-dimension-size", "s32[]", [shape(t, (3, 4))], "dimensions={1}")
        yield Case("get-dimension-size", t, "static", text, (values(t, (3, 4)),), None, True)
        text = simple("set-dimension-size", shape(t, (3, 4)), [shape(t, (3, 4)), "s32[]"], "dimensions={1}")
        yield Case("set-dimension-size", t, "whole", text, (values(t, (3, 4)), np.int32(4)))
    text = simple("dynamic-reshape", "f32[2,6]", ["f32[3,4]", "s32[]", "s32[]"])
    yield Case("dynamic-reshape", "f32", "static", text, (values("f32", (3, 4)), np.int32(2), np.int32(6)))
    text = simple("domain", "f32[3]", ["f32[3]"], 'domain={kind="sharding", entry={replicated}, exit={replicated}}')
    yield Case("domain", "f32", "identity", text, (values("f32", (3,)),))


def _calls() -> Iterator[Case]:
    x = "f32[2,3]"
    text = simple("custom-call", x, [x], 'custom_call_target="Sharding", sharding={replicated}')
    yield Case("custom-call", "f32", "Sharding", text, (values("f32", (2, 3)),), None, True)
    for target, more in (
        ("ShardBarrierFrom", "custom_call_has_side_effect=true"),
        ("ShardBarrierTo", "custom_call_has_side_effect=true"),
        ("SetBound", "literal=s32[] 2"),
    ):
        text = simple("custom-call", x, [x], f'custom_call_target="{target}", {more}')
        yield Case("custom-call", "f32", target, text, (values("f32", (2, 3)),))
    body = """
    p0 = f32[2,3] parameter(0)
    n = f32[2,3] negate(p0)
    o = () custom-call(p0, n), custom_call_target="control_dep", custom_call_has_side_effect=true
    ROOT c = f32[2,3] copy(n)"""
    yield Case("custom-call", "f32", "control_dep", module(body), (values("f32", (2, 3)),))
    # The interpreter's random numbers differ from XLA's, so only values that do not depend on them are compared.
    body = """a = f32[] parameter(0)
    b = f32[] parameter(1)
    x = f32[1000] rng(a, b), distribution=rng_uniform
    lo = f32[1000] broadcast(a), dimensions={}
    hi = f32[1000] broadcast(b), dimensions={}
    p = pred[1000] compare(x, lo), direction=GE
    q = pred[1000] compare(x, hi), direction=LT
    ROOT r = pred[1000] and(p, q)"""
    yield Case("rng", "f32", "uniform-in-range", module(body), (np.float32(-2), np.float32(3)), None, True)
    body = """a = f32[] parameter(0)
    b = f32[] parameter(1)
    x = f32[1000] rng(a, b), distribution=rng_normal
    ROOT r = pred[1000] is-finite(x)"""
    yield Case("rng", "f32", "normal-finite", module(body), (np.float32(-2), np.float32(3)))
    body = """a = s32[] parameter(0)
    b = s32[] parameter(1)
    x = s32[1000] rng(a, b), distribution=rng_uniform
    lo = s32[1000] broadcast(a), dimensions={}
    hi = s32[1000] broadcast(b), dimensions={}
    p = pred[1000] compare(x, lo), direction=GE
    q = pred[1000] compare(x, hi), direction=LT
    ROOT r = pred[1000] and(p, q)"""
    yield Case("rng", "s32", "uniform-in-range", module(body), (np.int32(-2), np.int32(3)))
    body = """a = u64[2] rng-get-and-update-state(), delta=4
    ROOT c = pred[2] compare(a, a), direction=EQ"""
    yield Case("rng-get-and-update-state", "u64", "runs", module(body), ())
    attributes = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    ragged = f"{attributes}, lhs_ragged_dims={{0}}, rhs_group_dims={{0}}"
    text = simple("ragged-dot", "f32[5,2]", ["f32[5,3]", "f32[2,3,2]", "s32[2]"], ragged)
    args = (values("f32", (5, 3)), values("f32", (2, 3, 2)), np.array([2, 2], np.int32))
    yield Case("ragged-dot", "f32", "rows", text, args, Tolerance(8, 1))
    operands = ["f8e4m3fn[2,4]", "f8e4m3fn[3,4]", "f8e8m0fnu[2,2]", "f8e8m0fnu[3,1]"]
    text = simple("scaled-dot", "f32[2,3]", operands, attributes)
    scales = (np.array([[1, 2], [2, 4]]), np.array([[1], [2], [4]]))
    args4 = (
        values("f8e4m3fn", (2, 4)), values("f8e4m3fn", (3, 4)), *(s.astype(ml_dtypes.float8_e8m0fnu) for s in scales)
    )  # fmt: skip
    yield Case("scaled-dot", "f8e4m3fn", "blocks", text, args4, Tolerance(8, 1))
