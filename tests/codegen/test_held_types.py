"""Values that kernels hold as integers: floats of 8 bits, integers of up to 4, and complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.codegen.nest.scalar_ops import HELD_TYPES
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.types import BY_TEXT
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from tests.sweeps.case import generator

T = PrimitiveType
SMALL_FLOATS = [t for t in HELD_TYPES if t.is_float]
SMALL_INTEGERS = [t for t in HELD_TYPES if t.is_integer]
OTHERS = [BY_TEXT[t] for t in ("f32", "f64", "f16", "bf16", "s8", "u8", "s32", "u64", "pred", "s4", "u2", "f8e5m2")]
BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor")
UNARY = ("not", "negate", "abs", "sign")


def run(module: HloModule, *args: Any, flush_denormals: bool = False) -> list[np.ndarray[Any, Any]]:
    """Return the results of kernels; fail if anything else computes them."""
    exe = compile(module, options=CompileOptions(optimize=False, flush_denormals=flush_denormals))
    assert not [t for t in exe.thunks if isinstance(t, HostThunk)]
    return [np.asarray(x) for x in exe(*args)]


def check(module: HloModule, *args: Any, flush_denormals: bool = False) -> None:
    with np.errstate(all="ignore"):
        wanted = evaluate(module, args)
    for n, (a, b) in enumerate(zip(run(module, *args, flush_denormals=flush_denormals), wanted, strict=True)):
        if b.dtype.kind in "fV" or b.dtype.name.startswith(("float", "bfloat")):
            b, a = b.astype(np.float64), a.astype(np.float64)
            np.testing.assert_array_equal(np.signbit(a)[~np.isnan(b)], np.signbit(b)[~np.isnan(b)])
        np.testing.assert_array_equal(a, b, err_msg=f"result {n}")


def conversions(pairs: list[tuple[Any, T, T]]) -> tuple[HloModule, list[Any]]:
    """Return a program that converts arrays, each from a type to another one, and the arrays."""
    module, entry = HloModule("conversions"), HloComputation("main")
    results: list[HloInstruction] = []
    args: list[Any] = []
    for values, source, target in pairs:
        x = entry.add_parameter(len(args), Shape(source, values.shape))
        results.append(entry.add(Opcode.CONVERT, [x], Shape(target, values.shape)))
        args.append(values)
    entry.root = entry.add(Opcode.TUPLE, results)
    module.add(entry, entry=True)
    return module, args


def codes(t: T) -> np.ndarray[Any, Any]:
    return np.arange(256, dtype=np.uint8).view(t.dtype) if t.is_float else np.arange(2**t.bits).astype(t.dtype)


def numbers_near(t: T) -> np.ndarray[Any, Any]:
    """Return all numbers of a type, those half way between, their neighbors, and special and random numbers."""
    exact = codes(t).astype(np.float64)
    exact = np.sort(exact[np.isfinite(exact)])
    middle = (exact[1:] + exact[:-1]) / 2
    above = exact[-1] * np.array([1.01, 1.03, 1.0625, 1.07, 1.2, 3, 1e30, 1e300])
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-40])
    rng = generator("held", t.text)
    random = rng.standard_normal(1000) * np.exp(rng.uniform(-15, 13, 1000))
    near = (np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf))
    return np.concatenate([exact, middle, *near, above, -above, special, random])


@pytest.mark.parametrize("t", SMALL_FLOATS + SMALL_INTEGERS, ids=lambda t: t.text)
def test_every_number_of_a_small_type_is_converted_to_other_types(t: T) -> None:
    module, args = conversions([(codes(t), t, other) for other in OTHERS if other is not t])
    check(module, *args)


@pytest.mark.parametrize("t", SMALL_FLOATS, ids=lambda t: t.text)
@pytest.mark.parametrize("flush_denormals", [False, True])
def test_conversions_to_small_floats_round_to_nearest_even(t: T, flush_denormals: bool) -> None:
    near = numbers_near(t)
    if flush_denormals:
        near = near[(np.abs(near) > 1e-30) | (near == 0)]
    sources = (T.F64, T.F32, T.BF16) if flush_denormals else (T.F64, T.F32, T.BF16, T.F16)
    with np.errstate(all="ignore"):
        pairs = [(near.astype(s.dtype), s, t) for s in sources]
    integers = np.concatenate([np.arange(-300, 300), 2 ** np.arange(62), -(2 ** np.arange(62))])
    pairs += [(integers.astype(s.dtype), s, t) for s in (T.S32, T.U8, T.S64)]
    module, args = conversions(pairs)
    check(module, *args, flush_denormals=flush_denormals)


@pytest.mark.parametrize("t", SMALL_INTEGERS, ids=lambda t: t.text)
def test_conversions_to_small_integers_wrap_or_saturate(t: T) -> None:
    numbers = np.concatenate([np.arange(-300, 300) / 4, [np.nan, np.inf, -np.inf, 1e20, -1e20, -0.0]])
    integers = np.arange(-300, 300)
    pairs = [(numbers.astype(s.dtype), s, t) for s in (T.F32, T.F64, T.BF16)]
    pairs += [(integers.astype(s.dtype), s, t) for s in (T.S8, T.U8, T.S32, T.U64)]
    pairs.append((np.array([False, True]), T.PRED, t))
    module, args = conversions(pairs)
    check(module, *args)


@pytest.mark.parametrize("t", SMALL_INTEGERS, ids=lambda t: t.text)
def test_arithmetic_of_small_integers_wraps_around(t: T) -> None:
    each = np.arange(2**t.bits)
    x, y = (part.ravel().astype(t.dtype) for part in np.meshgrid(each, each))
    unary = UNARY if t.is_signed else ("not",)
    shape = f"{t.text}[{x.size}]"
    ops = [f"r{k} = {shape} {op}(x, y)" for k, op in enumerate(BINARY)]
    ops += [f"u{k} = {shape} {op}(x)" for k, op in enumerate(unary)]
    ops += [f"c = {shape} clamp(y, x, y)", f"l = pred[{x.size}] compare(x, y), direction=LT"]
    names = [op.split(" = ")[0] for op in ops]
    text = f"ENTRY e {{ x = {shape} parameter(0) y = {shape} parameter(1) {' '.join(ops)} "
    types = ", ".join([shape] * (len(ops) - 1) + [f"pred[{x.size}]"])
    check(parse(f"{text} ROOT t = ({types}) tuple({', '.join(names)}) }}"), x, y)


def moves(t: str, filler: str) -> str:
    return f"""
ENTRY e {{
  x = {t}[6,7] parameter(0)
  y = {t}[6,7] parameter(1)
  p = pred[7,6] parameter(2)
  i = s32[4,1] parameter(3)
  k = s32[] parameter(4)
  f = {t}[] constant({filler})
  a = {t}[7,6] transpose(x), dimensions={{1,0}}
  b = {t}[7,6] reshape(y)
  s = {t}[7,6] select(p, a, b)
  w = {t}[9,8] pad(s, f), padding=1_1x0_2
  c = {t}[18,8] concatenate(w, w), dimensions={{0}}
  r = {t}[18,8] reverse(c), dimensions={{1}}
  g = {t}[4,8] gather(r, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1,
    slice_sizes={{1,8}}
  d = {t}[2,3] dynamic-slice(r, k, k), dynamic_slice_sizes={{2,3}}
  ROOT u = {t}[4,8] dynamic-update-slice(g, d, k, k)
}}"""


@pytest.mark.parametrize(("t", "filler"), [("f8e4m3fn", "nan"), ("f8e5m2", "-0"), ("s4", "-8"), ("c64", "(nan, -inf)")])
def test_data_movement_keeps_every_bit(t: str, filler: str) -> None:
    dtype = BY_TEXT[t].dtype
    rng = generator("moves", t)
    bits = rng.integers(0, 2 ** min(64, BY_TEXT[t].bits), (2, 6, 7), dtype=np.uint64)
    x, y = bits.astype(f"u{dtype.itemsize}").view(dtype)
    args = (x, y, rng.integers(0, 2, (7, 6)).astype(bool), np.array([[5], [0], [17], [99]], np.int32), np.int32(1))
    module = parse(moves(t, filler))
    (found,), (wanted,) = run(module, *args), evaluate(module, args)
    assert found.tobytes() == wanted.tobytes()


def test_parts_of_complex_numbers_are_exact() -> None:
    text = """ENTRY e { z = c64[256] parameter(0) a = f32[256] real(z) b = f32[256] imag(z) n = f32[256] negate(b)
      ROOT c = c64[256] complex(n, a) }"""
    bits = generator("parts").integers(0, 2**64, 256, dtype=np.uint64)
    z = bits.view(np.complex64)
    (found,) = run(parse(text), z)
    assert found.tobytes() == np.stack([-z.imag, z.real], axis=-1).tobytes()


def test_kernels_read_complex_arrays_at_any_address_of_a_float() -> None:
    memory = np.arange(2002, dtype=np.float32)
    z = memory[1:2001].view(np.complex64)
    exe = compile("ENTRY e { z = c64[1000] parameter(0) w = c64[1000] multiply(z, z) ROOT n = c64[1000] negate(w) }")
    np.testing.assert_allclose(exe(z)[0], -z * z, rtol=1e-6)


@pytest.mark.parametrize("t", ["f8e4m3fn", "s4", "c64"])
def test_ops_without_kernels_still_run(t: str) -> None:
    op = "multiply" if t != "c64" else "divide"
    text = f"""
f {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT m = {t}[] multiply(a, b) }}
ENTRY e {{ x = {t}[5,3] parameter(0) o = {t}[] constant(1) r = {t}[3] reduce(x, o), dimensions={{0}}, to_apply=f
  ROOT q = {t}[3] {op}(r, r) }}"""
    x = np.array([1, 2, 1, 3, 1] * 3).reshape(5, 3).astype(BY_TEXT[t].dtype)
    module = parse(text)
    found, wanted = (np.asarray(y).astype(np.complex64) for (y,) in (compile(module)(x), evaluate(module, [x])))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_cuda_kernels_convert_small_types() -> None:
    text = """ENTRY e { x = f8e4m3fn[1000] parameter(0) w = s4[1000] parameter(1) z = c64[1000] parameter(2)
      a = f32[1000] convert(x) b = f32[1000] convert(w) c = f32[1000] imag(z) m = f32[1000] multiply(a, b)
      s = f32[1000] add(m, c) ROOT r = f8e5m2[1000] convert(s) }"""
    kernels = compile(text, backend="cuda").kernels
    assert [k.kind for k in kernels] == ["loop"]
    source = kernels[0].source
    assert "F8E4M3FN_TO_F32" in source
    assert "F32_TO_F8E5M2" in source


@pytest.mark.parametrize("t", ["f8e4m3fn", "s4", "c64"])
@pytest.mark.parametrize("combiner", ["add(a, b)", "multiply(a, b)", "copy(b)"])
def test_scatters_combine_or_replace_whole_values(t: str, combiner: str) -> None:
    module = parse(f"""
f {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] {combiner} }}
ENTRY e {{
  x = {t}[9,3] parameter(0)
  i = s32[4,1] parameter(1)
  u = {t}[4,3] parameter(2)
  ROOT s = {t}[9,3] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, unique_indices=true, to_apply=f
}}""")
    rng = generator("scatter", t)
    x, u = (rng.integers(-3, 4, (n, 3)).astype(BY_TEXT[t].dtype) for n in (9, 4))
    if t == "c64":
        x, u = x * (2 - 1j), u * (1 + 3j)
    args = (x.astype(BY_TEXT[t].dtype), np.array([[7], [0], [3], [11]], np.int32), u.astype(BY_TEXT[t].dtype))
    found, wanted = (np.asarray(y) for (y,) in (compile(module)(*args), evaluate(module, args)))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("t", list(HELD_TYPES), ids=lambda t: t.text)
def test_an_iota_counts_in_numbers(t: T) -> None:
    check(parse(f"ENTRY e {{ ROOT i = {t.text}[2,40] iota(), iota_dimension=1 }}"))
