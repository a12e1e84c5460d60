"""Cases of elementwise ops and of conversions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sweeps.case import (
    ALL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    SIGNED,
    SMALL_FLOATS,
    Array,
    Case,
    Tolerance,
    dtype,
    edges,
    generator,
    integers,
    module,
    pairs,
    shape,
    simple,
    type_class,
    values,
)

DIMS = ((), (1,), (0,), (7,), (3, 4), (2, 0, 3), (1, 5, 1))
EXACT_UNARY = {
    "abs": (*FLOATS, *SIGNED, *SMALL_FLOATS),
    "ceil": (*FLOATS, *SMALL_FLOATS),
    "count-leading-zeros": INTEGERS,
    "floor": (*FLOATS, *SMALL_FLOATS),
    "is-finite": (*FLOATS, *SMALL_FLOATS),
    "negate": (*FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "not": ("pred", *INTEGERS),
    "popcnt": INTEGERS,
    "round-nearest-afz": (*FLOATS, *SMALL_FLOATS),
    "round-nearest-even": (*FLOATS, *SMALL_FLOATS),
    "sign": (*FLOATS, *SIGNED, *SMALL_FLOATS),
    "copy": ALL,
}
FLOAT_UNARY = {
    # opcode: lowest and highest ordinary argument, whether complex arguments are supported
    "acos": (-1, 1, True), "acosh": (1, 20, True), "asin": (-1, 1, True), "asinh": (-5, 5, True),
    "atanh": (-1, 1, True), "cbrt": (-9, 9, False), "cosine": (-9, 9, True), "cosh": (-5, 5, True),
    "erf": (-3, 3, False), "exponential": (-5, 5, True), "exponential-minus-one": (-3, 3, True),
    "log": (0, 9, True), "log-plus-one": (-1, 9, True), "logistic": (-9, 9, True), "rsqrt": (0, 9, True),
    "sine": (-9, 9, True), "sinh": (-5, 5, True), "sqrt": (0, 9, True), "tan": (-1.5, 1.5, True),
    "tanh": (-5, 5, True),
}  # fmt: skip
BINARY = {
    "add": ("pred", *FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "subtract": (*FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "multiply": ("pred", *FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "divide": (*FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "remainder": (*FLOATS, *INTEGERS, *SMALL_FLOATS),
    "power": (*FLOATS, *INTEGERS, *COMPLEX, *SMALL_FLOATS),
    "maximum": ("pred", *FLOATS, *INTEGERS, *SMALL_FLOATS),
    "minimum": ("pred", *FLOATS, *INTEGERS, *SMALL_FLOATS),
    "and": ("pred", *INTEGERS),
    "or": ("pred", *INTEGERS),
    "xor": ("pred", *INTEGERS),
    "atan2": (*FLOATS, *COMPLEX, *SMALL_FLOATS),
    "mulhi": INTEGERS,
    "shift-left": INTEGERS,
    "shift-right-arithmetic": INTEGERS,
    "shift-right-logical": INTEGERS,
}
FOLDED_ONLY = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh")
"""Ops that XLA:CPU cannot compile for f32, f64 and complex types, but evaluates by constant folding."""
INEXACT_BINARY = {"power": 16, "atan2": 4, "divide": 1, "remainder": 1}


def _tolerance(opcode: str, element_type: str, ulps: float) -> Tolerance | None:
    t = type_class(element_type)
    if t.is_integer or element_type == "pred":
        return None
    return Tolerance(ulps * (4 if t.is_complex else 1), 1.0 if t.is_complex else 1e-3)


def cases() -> Iterator[Case]:
    yield from _exact_unary()
    yield from _float_unary()
    yield from _complex_parts()
    yield from _binary()
    yield from _compare()
    yield from _select_and_clamp()
    yield from _convert()
    yield from _bitcast_convert()
    yield from _reduce_precision()
    yield from _stochastic_convert()


def _unary(op: str, t: str, x: Array, name: str, tolerance: Tolerance | None, fast: bool, to: str = "") -> Case:
    text = simple(op, shape(to or t, x.shape), [shape(t, x.shape)])
    return Case(op, t, name, text, (x,), tolerance, fast)


def _exact_unary() -> Iterator[Case]:
    for op, types in EXACT_UNARY.items():
        for t in types:
            to = "pred" if op == "is-finite" else t
            yield _unary(op, t, edges(t), "edges", None, t in ("f32", "s32", "bf16"), to)
            if t in ("f32", "s32", "u8"):
                for dims in DIMS:
                    yield _unary(op, t, values(t, dims), f"dims{list(dims)}", None, False, to)
    for t in COMPLEX:
        x = values(t, (20,))
        text = simple("abs", shape("f32" if t == "c64" else "f64", x.shape), [shape(t, x.shape)])
        yield Case("abs", t, "values", text, (x,), Tolerance(4))
        yield _unary("sign", t, x, "values", Tolerance(8), False)


def _float_unary() -> Iterator[Case]:
    for op, (low, high, takes_complex) in FLOAT_UNARY.items():
        for t in (*FLOATS, *SMALL_FLOATS):
            fast = t in ("f32", "bf16") and op not in FOLDED_ONLY
            # XLA computes some f64 functions with the accuracy of f32, although it promises a few ulps.
            ulps = 2 if type_class(t).bits < 32 else 32
            x = values(t, (200,), op, low, high)
            yield _unary(op, t, x, "values", Tolerance(ulps, 0.05), fast)
            yield _unary(op, t, edges(t), "edges", Tolerance(ulps, 0.05), fast)
        for dims in DIMS:
            yield _unary(op, "f32", values("f32", dims, op, low, high), f"dims{list(dims)}", Tolerance(32), False)
        for t in COMPLEX if takes_complex else ():
            fast = t == "c64" and op not in FOLDED_ONLY
            yield _unary(op, t, values(t, (50,), op, -2, 2), "values", Tolerance(64, 1), fast)
    for op in FOLDED_ONLY:
        for t in ("f32", "f64", "c64", "c128"):
            low, high, _ = FLOAT_UNARY[op]
            yield _folded(op, t, values(t, (50,), op, low, high))


def _folded(op: str, t: str, x: Array) -> Case:
    """Return the case with its argument as a constant of the module."""
    numbers = ", ".join(f"({v.real!r}, {v.imag!r})" if np.iscomplexobj(x) else repr(v) for v in x.tolist())
    body = f"c = {shape(t, x.shape)} constant({{{numbers}}})\nROOT r = {shape(t, x.shape)} {op}(c)"
    return Case(op, t, "folded", module(body), (), Tolerance(64, 1), True)


def _complex_parts() -> Iterator[Case]:
    for t, part in (("c64", "f32"), ("c128", "f64")):
        for op in ("real", "imag"):
            for dims in ((), (5,), (0,)):
                x = values(t, dims)
                text = simple(op, shape(part, dims), [shape(t, dims)])
                yield Case(op, t, f"dims{list(dims)}", text, (x,), None, t == "c64")
        a, b = pairs(part)
        text = simple("complex", shape(t, a.shape), [shape(part, a.shape)] * 2)
        yield Case("complex", part, "edges", text, (a, b), None, part == "f32")
    for op in ("real", "imag"):
        text = simple(op, shape("f32", (4,)), [shape("f32", (4,))])
        yield Case(op, "f32", "values", text, (values("f32", (4,)),))


def _binary() -> Iterator[Case]:
    for op, types in BINARY.items():
        for t in types:
            fast = t in ("f32", "bf16", "s32", "u8") and op != "mulhi"
            ulps = INEXACT_BINARY.get(op, 1)
            a, b = pairs(t)
            tolerance = _tolerance(op, t, ulps)
            if op == "power" and type_class(t).is_integer:
                # The result of an overflow is implementation-defined.
                small = [k for k in (-2, -1, 0, 1, 2, 3) if k >= 0 or t[0] == "s"]
                base = np.array([k for k in small if -2 <= k < 1 << (type_class(t).bits - 2)], np.int8).astype(dtype(t))
                a, b = np.repeat(base, len(base)), np.tile(base, len(base))
                yield _two(op, t, a, b, "small", None, fast)
                continue
            if op == "power" and type_class(t).is_complex:
                a, b = values(t, (40,), 1, 0.5, 2), values(t, (40,), 2, -2, 2)
                tolerance = Tolerance(128, 1)
            yield _two(op, t, a, b, "edges", tolerance, fast)
            yield _two(op, t, values(t, (100,), "a"), values(t, (100,), "b"), "values", tolerance, False)
        for t in ("f32", "s32"):
            if t in types:
                for dims in DIMS:
                    a, b = values(t, dims, "a", 0.5), values(t, dims, "b", 0.5)
                    if op == "power" and t == "s32":
                        a, b = a % 5, b % 5
                    yield _two(op, t, a, b, f"dims{list(dims)}", _tolerance(op, t, ulps), False)


def _two(op: str, t: str, a: Array, b: Array, name: str, tolerance: Tolerance | None, fast: bool) -> Case:
    text = simple(op, shape(t, a.shape), [shape(t, a.shape)] * 2)
    return Case(op, t, name, text, (a, b), tolerance, fast)


def _compare() -> Iterator[Case]:
    for t in ALL:
        a, b = pairs(t)
        if type_class(t).is_float and type_class(t).bits >= 16:
            a, b = np.concatenate([a, -a]), np.concatenate([b, b])
        directions = ("EQ", "NE") if type_class(t).is_complex else ("EQ", "NE", "LT", "LE", "GT", "GE")
        kinds = ("", "TOTALORDER") if type_class(t).is_float and t != "f8e8m0fnu" else ("",)
        for direction in directions:
            for kind in kinds:
                attributes = f"direction={direction}" + (f", type={kind}" if kind else "")
                text = simple("compare", shape("pred", a.shape), [shape(t, a.shape)] * 2, attributes)
                fast = t in ("f32", "s32") and direction in ("LT", "GE")
                yield Case("compare", t, f"{direction}{kind}", text, (a, b), None, fast)


def _select_and_clamp() -> Iterator[Case]:
    for t in ALL:
        for dims in ((), (6,), (0, 3)):
            p, a, b = values("pred", dims), values(t, dims, 1), values(t, dims, 2)
            text = simple("select", shape(t, dims), [shape("pred", dims), shape(t, dims), shape(t, dims)])
            yield Case("select", t, f"dims{list(dims)}", text, (p, a, b), None, t in ("f32", "s32") and dims == (6,))
        a, b = values(t, (4,), 1), values(t, (4,), 2)
        # XLA wants the predicate spread out; a scalar predicate chooses a whole array.
        text = simple("select", shape(t, (4,)), ["pred[]", shape(t, (4,)), shape(t, (4,))])
        yield Case("select", t, "scalar", text, (np.array(True), a, b))
    for t in (*FLOATS, *INTEGERS, *SMALL_FLOATS):
        x = edges(t)
        low, high = values(t, x.shape, "low"), values(t, x.shape, "high")
        text = simple("clamp", shape(t, x.shape), [shape(t, x.shape)] * 3)
        yield Case("clamp", t, "arrays", text, (low, x, high), None, t in ("f32", "s32"))
        text = simple("clamp", shape(t, x.shape), [shape(t), shape(t, x.shape), shape(t)])
        yield Case("clamp", t, "scalars", text, (low[0], x, high[0]), None, t == "f32")


def _convert() -> Iterator[Case]:
    for source in ALL:
        for target in ALL:
            if type_class(source).is_complex and not type_class(target).is_complex:
                continue
            x = edges(source)
            if type_class(source).is_integer and type_class(source).bits >= 8:
                x = np.concatenate([x, integers(source, (50,), generator("convert", source))])
            elif type_class(source).is_float:
                x = np.concatenate([x, values(source, (50,), "convert", -300, 300)])
            text = simple("convert", shape(target, x.shape), [shape(source, x.shape)])
            fast = source in ("f32", "s32", "bf16", "pred") and target in (
                "f32",
                "s32",
                "bf16",
                "u8",
                "f8e4m3fn",
                "pred",
            )
            yield Case("convert", source, f"to-{target}", text, (x,), None, fast)


def _bitcast_convert() -> Iterator[Case]:
    by_bits: dict[int, list[str]] = {}
    for t in ALL:
        if t != "pred" and not type_class(t).is_complex:
            by_bits.setdefault(type_class(t).bits, []).append(t)
    for types in by_bits.values():
        for source in types:
            for target in types:
                x = values(source, (9,))
                text = simple("bitcast-convert", shape(target, (9,)), [shape(source, (9,))])
                yield Case("bitcast-convert", source, f"to-{target}", text, (x,), None, source == "f32")
    for source, target in (
        ("f32", "u8"), ("f64", "s32"), ("u64", "u32"), ("s32", "bf16"), ("f32", "u16"), ("u8", "u4"), ("s32", "s4"),
    ):  # fmt: skip
        ratio = type_class(source).bits // type_class(target).bits
        x = values(source, (3, 5))
        text = simple("bitcast-convert", shape(target, (3, 5, ratio)), [shape(source, (3, 5))])
        yield Case("bitcast-convert", source, f"narrower-{target}", text, (x,), None, True)
        y = values(target, (3, 5, ratio))
        text = simple("bitcast-convert", shape(source, (3, 5)), [shape(target, (3, 5, ratio))])
        yield Case("bitcast-convert", target, f"wider-{source}", text, (y,), None, True)


def _reduce_precision() -> Iterator[Case]:
    for t in FLOATS:
        x = np.concatenate([edges(t), values(t, (100,), "rp", -500, 500)])
        for exponent, mantissa in ((8, 7), (5, 10), (4, 3), (5, 2), (8, 23), (11, 52), (3, 2), (2, 1), (8, 0)):
            attributes = f"exponent_bits={exponent}, mantissa_bits={mantissa}"
            text = simple("reduce-precision", shape(t, x.shape), [shape(t, x.shape)], attributes)
            fast = t == "f32" and (exponent, mantissa) in ((8, 7), (5, 2))
            yield Case("reduce-precision", t, f"e{exponent}m{mantissa}", text, (x,), None, fast)


def _stochastic_convert() -> Iterator[Case]:
    for source, random in (("f32", "u32"), ("f16", "u16"), ("bf16", "u16"), ("f64", "u64")):
        for target in ("s8", "s16", "s32"):
            x = values(source, (200,), "sc", -90, 90)
            bits = integers(random, (200,), generator("stochastic", source, target))
            text = simple("stochastic-convert", shape(target, (200,)), [shape(source, (200,)), shape(random, (200,))])
            yield Case("stochastic-convert", source, f"to-{target}", text, (x, bits), None, source == "f32")


def constant_cases() -> Iterator[Case]:
    """Yield cases of modules that return a constant."""
    for t in ALL:
        if type_class(t).is_complex:
            literal = "{(1, -2), (0, 3.5)}"
        elif type_class(t).is_float:
            literal = "{1, 2}"
        else:
            literal = "{1, 0}"
        yield Case("constant", t, "vector", module(f"ROOT c = {t}[2] constant({literal})"), (), None, t == "f32")


__all__ = ["cases", "constant_cases", "dtype"]
