"""Every elementwise op on every supported element type, on corner cases and random values, against the interpreter.

One module per type contains all ops, each in a kernel of its own, so that the C compiler runs once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.codegen.nest.scalar_ops import COMPUTE_BYTES, scalar_op_of
from compiler.errors import HlogymError
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.opcodes import Trait
from compiler.ir.shape import Shape, array_shape
from compiler.ir.types import BY_TEXT
from compiler.text import parse
from tests.sweeps.case import Array, Tolerance, difference, edges, generator, integers, pairs

T = PrimitiveType
TYPES = tuple(t.text for t in COMPUTE_BYTES)
FAST = ("f32", "bf16", "s32", "u8", "pred")
EXACT = frozenset(
    {
        Opcode.ABS, Opcode.ADD, Opcode.CEIL, Opcode.COPY, Opcode.DIVIDE, Opcode.FLOOR, Opcode.MULTIPLY, Opcode.NEGATE,
        Opcode.REMAINDER, Opcode.ROUND_NEAREST_AFZ, Opcode.ROUND_NEAREST_EVEN, Opcode.SIGN, Opcode.SQRT,
        Opcode.SUBTRACT, Opcode.SELECT,
    }
)  # fmt: skip
"""Ops with bitwise equal results; others may differ by a few units in the last place, and -0 from 0."""
ULPS = {Opcode.POWER: 32.0}
SPECIAL = (Opcode.COMPARE, Opcode.CONVERT, Opcode.BITCAST_CONVERT, Opcode.SELECT, Opcode.CLAMP)


def type_params(fast: Sequence[str] = FAST) -> list[object]:
    return [pytest.param(t, marks=() if t in fast else pytest.mark.slow) for t in TYPES]


@dataclass
class Bench:
    """A module under construction with its arguments and the tolerance of each result."""

    entry: HloComputation = field(default_factory=lambda: HloComputation("main"))
    args: list[Array] = field(default_factory=list)
    results: list[HloInstruction] = field(default_factory=list)
    tolerances: list[Tolerance | None] = field(default_factory=list)

    def parameter(self, array: Array, t: T) -> HloInstruction:
        self.args.append(array)
        return self.entry.add_parameter(len(self.args) - 1, Shape(t, array.shape))

    def add_result(self, result: HloInstruction, tolerance: Tolerance | None = None) -> None:
        self.results.append(result)
        self.tolerances.append(tolerance)

    def problems(self) -> dict[str, str]:
        """Return the differences between the cpu backend and the interpreter, by result."""
        module = HloModule("bench")
        self.entry.root = self.entry.add(Opcode.TUPLE, self.results)
        module.add(self.entry, entry=True)
        found = compile(module, options=CompileOptions(optimize=False))(*self.args)
        wanted = evaluate(module, self.args)
        problems = {}
        for i, a, b, tolerance in zip(self.results, found, wanted, self.tolerances, strict=True):
            what = difference([a], [b], tolerance)
            if what is not None:
                problems[f"{i.opcode.text} {i.attributes or ''} {[str(o.shape) for o in i.operands]}"] = (
                    what + self._operands_of(i, what)
                )
        return problems

    def _operands_of(self, i: HloInstruction, what: str) -> str:
        """Return the operands' values at the element that a difference names."""
        at = re.search(r"the first at \[(\d+)\]", what)
        arrays = [self.args[o.parameter_number] for o in i.operands if o.parameter_number is not None]
        if at is None:
            return ""
        return f" for operands {[str(a if a.ndim == 0 else a[int(at[1])]) for a in arrays]}"


def corners(t: T) -> Array:
    """Return corner cases of a type, including subnormal numbers and values next to the limits of other types."""
    plain = edges(t.text)
    if t.bits == 64 and t.is_integer:
        return np.concatenate([plain, np.array([2**40 + 2**32 + 1, 2**24 + 1, 65519, 2**53 + 1], t.dtype)])
    if not t.is_float:
        return plain
    tiny = np.array([1e-40, -1e-40, 1e-310, 6e-8, -6e-8, 3.4e38, 65504, 65519.9, 65520, 2.0**31, -(2.0**31), 2.0**63])
    near = np.array([127.5, 128, -128.5, -129, 255.5, 256, 2147483520, 4294967040, 4294967296, 2.0**64, 1 + 2.0**-11])
    between = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 2.0**-25 + 2.0**-60, 1e-41, 5e-324])
    with np.errstate(all="ignore"):
        return np.concatenate([plain, *(x.astype(t.dtype) for x in (tiny, near, between))])


def random_values(t: T, n: int) -> Array:
    rng = generator("scalar", t.text, n)
    if t is T.PRED:
        return rng.integers(0, 2, n).astype(np.bool_)
    if t.is_integer:
        return integers(t.text, (n,), rng)
    with np.errstate(all="ignore"):
        small, wide = rng.normal(0, 2, n - n // 4), np.exp(rng.uniform(-200, 200, n // 4))
        return np.concatenate([small, wide]).astype(t.dtype)


def tolerance_for(op: Opcode, t: T) -> Tolerance | None:
    if not t.is_float or op in EXACT:
        return None
    if op in (Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.CLAMP):
        return Tolerance(0, 0)
    return Tolerance(ULPS.get(op, 8.0), 1e-3)


def plain_ops(arity: int) -> Iterator[Opcode]:
    for op in Opcode:
        if op.has(Trait.ELEMENTWISE) and op not in SPECIAL and op.row.arity.least == arity:
            yield op


def defined(op: Opcode, operands: Sequence[HloInstruction]) -> bool:
    """Check whether HLO and kernels both define the op on these operands."""
    alone = HloComputation("alone")
    inputs = [alone.add_parameter(n, o.shape) for n, o in enumerate(operands)]
    module = HloModule("alone")
    try:
        alone.root = alone.add(op, inputs)
        scalar_op_of(alone.root)
        module.add(alone, entry=True)
        evaluate(module, [np.zeros(o.shape.dimensions, o.shape.dtype) for o in operands])
    except HlogymError:
        return False
    return True


@pytest.mark.parametrize("text", type_params())
def test_unary_and_binary_ops_match_the_interpreter(text: str) -> None:
    t = BY_TEXT[text]
    bench = Bench()
    unary = bench.parameter(np.concatenate([corners(t), random_values(t, 400)]), t)
    a, b = pairs(text)
    binary = [bench.parameter(np.concatenate([x, random_values(t, 400 + k)[:400]]), t) for k, x in enumerate((a, b))]
    count = 0
    for arity, operands in ((1, [unary]), (2, binary)):
        for op in plain_ops(arity):
            if defined(op, operands):
                bench.add_result(bench.entry.add(op, operands), tolerance_for(op, t))
                count += 1
    assert count >= 5
    assert bench.problems() == {}


@pytest.mark.parametrize("text", type_params())
def test_compare_select_and_clamp_match_the_interpreter(text: str) -> None:
    t = BY_TEXT[text]
    bench = Bench()
    a, b = (bench.parameter(x, t) for x in pairs(text))
    p = bench.parameter(np.arange(a.shape.num_elements) % 3 == 0, T.PRED)
    for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        bench.add_result(bench.entry.add(Opcode.COMPARE, [a, b], direction=direction))
    bench.add_result(bench.entry.add(Opcode.SELECT, [p, a, b]))
    one = bench.parameter(np.array(True), T.PRED)
    bench.add_result(bench.entry.add(Opcode.SELECT, [one, b, a]))
    if t is not T.PRED:
        low, x, high = _bounds(t)
        bench.add_result(
            bench.entry.add(Opcode.CLAMP, [bench.parameter(v, t) for v in (low, x, high)]), Tolerance(0, 0)
        )
        scalars = [bench.parameter(np.array(v, t.dtype), t) for v in (low[1], high[1])]
        bench.add_result(bench.entry.add(Opcode.CLAMP, [scalars[0], a, scalars[1]]), Tolerance(0, 0))
    assert bench.problems() == {}


def _bounds(t: T) -> tuple[Array, Array, Array]:
    """Return all triples of corner cases, among them low > high and NaN."""
    e = edges(t.text)
    low, x, high = (e[k.reshape(-1)] for k in np.indices((len(e),) * 3))
    return low, x, high


@pytest.mark.parametrize("text", type_params())
def test_conversions_match_the_interpreter(text: str) -> None:
    t = BY_TEXT[text]
    bench = Bench()
    x = bench.parameter(np.concatenate([corners(t), random_values(t, 1000)]), t)
    for other in COMPUTE_BYTES:
        shape = Shape(other, x.shape.dimensions)
        bench.add_result(bench.entry.add(Opcode.CONVERT, [x], shape))
        if other.bits == t.bits and T.PRED not in (t, other):
            bench.add_result(bench.entry.add(Opcode.BITCAST_CONVERT, [x], shape))
    assert bench.problems() == {}


@pytest.mark.parametrize("text", ["f32", "f64", "s32", "u32", "s64"])
def test_constants_keep_their_exact_value(text: str) -> None:
    t = BY_TEXT[text]
    bench = Bench()
    for value in corners(t):
        c = bench.entry.add_constant(np.array(value))
        x = bench.parameter(np.zeros(3, bool), T.PRED)
        spread = bench.entry.add(Opcode.BROADCAST, [c], array_shape(t, 3), dimensions=())
        bench.add_result(bench.entry.add(Opcode.SELECT, [x, spread, spread]))
    assert bench.problems() == {}


@pytest.mark.parametrize("text", ["bf16", "f16", "f32", "s8", "u64"])
def test_iotas_match_the_interpreter(text: str) -> None:
    bench = Bench()
    for dim, dims in ((0, (300,)), (1, (3, 70)), (0, (3, 70)), (0, ())):
        if dims:
            bench.add_result(bench.entry.add(Opcode.IOTA, [], array_shape(BY_TEXT[text], *dims), iota_dimension=dim))
    assert bench.problems() == {}


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_the_payload_of_a_nan_survives_a_kernel(kind: str) -> None:
    text = f"""HloModule m
      ENTRY main {{
        p = u16[6] parameter(0)
        x = {kind}[6] bitcast-convert(p)
        turned = {kind}[6] reverse(x), dimensions={{0}}
        ROOT out = u16[6] bitcast-convert(turned)
      }}"""
    bits = np.array([0xFFFA, 0x7FC0, 0x7FFF, 0x8000, 0xFF80, 0x3F80], np.uint16)
    made = compile(text, pipeline=[], fusion_policy="greedy")
    np.testing.assert_array_equal(made(bits)[0], bits[::-1])


@pytest.mark.parametrize("bounds", [("-1", "2"), ("2", "-1"), ("nan", "1"), ("0", "nan"), ("-inf", "inf"), ("0", "0")])
def test_clamps_to_constants_are_two_extremes(bounds: tuple[str, str]) -> None:
    x = np.array((np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0, -1.0, 2.5), np.float32)
    text = (
        f"HloModule m\nENTRY e {{ x = f32[8] parameter(0) low = f32[] constant({bounds[0]})\n"
        f"high = f32[] constant({bounds[1]}) ROOT r = f32[8] clamp(low, x, high) }}"
    )
    made = compile(parse(text), options=CompileOptions(optimize=False))
    np.testing.assert_array_equal(made(x)[0], evaluate(parse(text), [x])[0])
    assert "minimum_f32(maximum_f32(" in made.kernels[0].source


@pytest.mark.parametrize("source", ["f32", "f64", "bf16"])
def test_conversions_in_vector_loops_saturate(source: str) -> None:
    ends = [sign * 2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (-1, 1)]
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5, -0.5, *ends, *(np.nextafter(e, 0) for e in ends)])
    for to in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        text = f"HloModule m\nENTRY e {{ x = {source}[{len(x)}] parameter(0) ROOT r = {to}[{len(x)}] convert(x) }}"
        module = parse(text)
        values = x.astype(module.entry.parameter_shapes[0].dtype)
        made = compile(module, options=CompileOptions(optimize=False))
        np.testing.assert_array_equal(made(values)[0], evaluate(parse(text), [values])[0])
        assert re.search(r"f(32|64)_to_[su](32|64)\(", made.kernels[0].source)
