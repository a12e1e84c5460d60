"""Quotients and remainders of integers in vector loops, against the interpreter."""

import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import CompileOptions, compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.toolchain import FLAGS, find_compiler
from compiler.codegen.printing.print_c import preamble
from compiler.interpreter import evaluate
from compiler.support.processor import processor
from compiler.text import parse
from tests.codegen.running import processor_has

TYPES = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32}
HEADER = (resources.files("compiler.codegen.printing") / "division.h").read_text()


def _operands(dtype: Any, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all pairs of edges, and pairs whose quotients are integers or next to them."""
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    near_zero = [n for n in range(-3, 4) if n >= info.min]
    ends = [info.min + n for n in range(3)] + [info.max - n for n in range(3)]
    edges = np.array(near_zero + ends + [info.max // 2, info.max // 2 + 1, info.max // 3], dtype)
    a, b = (x.ravel() for x in np.meshgrid(edges, edges))
    drawn = rng.integers(info.min, info.max, (2, count), dtype, endpoint=True)
    small = rng.integers(1, min(1000, info.max), count).astype(dtype)
    with np.errstate(over="ignore"):
        multiples = (small * (drawn[0] // small)).astype(dtype)
        beside = (multiples - np.array(1, dtype)).astype(dtype)
    dividends = [a, drawn[0], drawn[0], multiples, beside, drawn[0]]
    divisors = [b, drawn[1], small, small, small, drawn[0]]
    return np.concatenate(dividends), np.concatenate(divisors)


@pytest.mark.parametrize("op", ["divide", "remainder"])
@pytest.mark.parametrize("element", TYPES)
def test_division_in_vector_loops_is_that_of_the_interpreter(element: str, op: str) -> None:
    a, b = _operands(TYPES[element], 20_000)
    array = f"{element}[{a.size}]"
    text = f"ENTRY e {{ a = {array} parameter(0) b = {array} parameter(1) ROOT r = {array} {op}(a, b) }}"
    (want,) = evaluate(parse(text), [a, b])
    exe = compile(text, options=CompileOptions(optimize=False))
    np.testing.assert_array_equal(exe(a, b)[0], want)


@pytest.mark.parametrize("size", [0, 1, 3, 15, 16, 17, 50])
@pytest.mark.parametrize("divisor", ["array", "scalar", "constant"])
def test_divisors_of_any_kind_and_loops_of_any_length(size: int, divisor: str) -> None:
    given = {
        "array": f"b = s32[{size}] parameter(1)",
        "scalar": f"c = s32[] parameter(1) b = s32[{size}] broadcast(c), dimensions={{}}",
        "constant": f"c = s32[] constant(-7) b = s32[{size}] broadcast(c), dimensions={{}}",
    }[divisor]
    text = f"""ENTRY e {{ a = s32[{size}] parameter(0) {given}
      q = s32[{size}] divide(a, b) r = s32[{size}] remainder(a, b)
      ROOT t = (s32[{size}], s32[{size}]) tuple(q, r) }}"""
    a, b = (x[:size] for x in _operands(np.int32, 50))
    given_arrays: dict[str, list[Any]] = {"array": [a, b], "scalar": [a, np.int32(-3)], "constant": [a]}
    arguments = given_arrays[divisor]
    for got, want in zip(compile(text)(*arguments), evaluate(parse(text), arguments), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("element", ["s32", "u32"])
@pytest.mark.parametrize("op", ["divide", "remainder"])
def test_divisions_by_one_integer_for_all_elements(element: str, op: str) -> None:
    dtype = TYPES[element]
    a, divisors = _operands(dtype, 5_000)
    text = f"""ENTRY e {{ a = {element}[{a.size}] parameter(0) c = {element}[] parameter(1)
      b = {element}[{a.size}] broadcast(c), dimensions={{}} ROOT r = {element}[{a.size}] {op}(a, b) }}"""
    exe, module = compile(text), parse(text)
    assert f"one_divisor_{element} " in exe.kernels[0].source
    for divisor in [*np.unique(divisors[:400]), *divisors[-20:]]:
        np.testing.assert_array_equal(exe(a, divisor)[0], evaluate(module, [a, divisor])[0])


def test_a_loop_that_carries_remainders() -> None:
    text = """
body { s = (s32[], s32[50], s32[50]) parameter(0) n = s32[] get-tuple-element(s), index=0
  a = s32[50] get-tuple-element(s), index=1 b = s32[50] get-tuple-element(s), index=2
  one = s32[] constant(1) m = s32[] add(n, one) r = s32[50] remainder(a, b)
  ROOT t = (s32[], s32[50], s32[50]) tuple(m, b, r) }
condition { s = (s32[], s32[50], s32[50]) parameter(0) n = s32[] get-tuple-element(s), index=0
  last = s32[] constant(9) ROOT c = pred[] compare(n, last), direction=LT }
ENTRY e { z = s32[] constant(0) a = s32[50] parameter(0) b = s32[50] parameter(1)
  t = (s32[], s32[50], s32[50]) tuple(z, a, b)
  w = (s32[], s32[50], s32[50]) while(t), condition=condition, body=body
  ROOT g = s32[50] get-tuple-element(w), index=1 }"""
    a, b = (x[-50:] for x in _operands(np.int32, 50))
    np.testing.assert_array_equal(compile(text)(a, b)[0], evaluate(parse(text), [a, b])[0])


def test_reductions_of_tests_for_divisibility() -> None:
    text = """
both { x = pred[] parameter(0) y = pred[] parameter(1) ROOT z = pred[] and(x, y) }
sum { x = s32[] parameter(0) y = s32[] parameter(1) ROOT z = s32[] add(x, y) }
ENTRY e { a = s32[20] parameter(0) b = s32[33] parameter(1) zero = s32[] constant(0) yes = pred[] constant(true)
  rows = s32[20,33] broadcast(a), dimensions={0} columns = s32[20,33] broadcast(b), dimensions={1}
  r = s32[20,33] remainder(rows, columns) zeros = s32[20,33] broadcast(zero), dimensions={}
  c = pred[20,33] compare(r, zeros), direction=NE
  p = pred[20] reduce(c, yes), dimensions={1}, to_apply=both
  s = s32[20] reduce(r, zero), dimensions={1}, to_apply=sum
  ROOT t = (pred[20], s32[20]) tuple(p, s) }"""
    arguments = [np.arange(90, 110, dtype=np.int32), np.arange(2, 35, dtype=np.int32)]
    for got, want in zip(compile(text)(*arguments), evaluate(parse(text), arguments), strict=True):
        np.testing.assert_array_equal(got, want)


def _assembly(code: str, folder: Path) -> str:
    source, assembly = folder / "loops.c", folder / "loops.s"
    source.write_text(preamble() + code)
    flags = [f for f in FLAGS if f != "-shared"]
    command = [find_compiler(), *flags, "-mprefer-vector-width=256", "-S", str(source), "-o", str(assembly)]
    subprocess.run(command, check=True, timeout=120)
    return assembly.read_text()


@pytest.mark.skipif(not processor_has("avx2"), reason=f"needs AVX2; this is {processor()}")
@pytest.mark.parametrize("element", ["s8", "s16"])
def test_narrow_remainders_that_are_compared_stay_narrow(element: str, tmp_path: Path) -> None:
    exe = compile(f"""HloModule m
    ENTRY main {{
      x = {element}[4096] parameter(0)
      seven = {element}[] constant(7)
      sevens = {element}[4096] broadcast(seven), dimensions={{}}
      zero = {element}[] constant(0)
      zeros = {element}[4096] broadcast(zero), dimensions={{}}
      r = {element}[4096] remainder(x, sevens)
      more = {element}[4096] add(r, sevens)
      negative = pred[4096] compare(r, zeros), direction=LT
      ROOT modulo = {element}[4096] select(negative, more, r)
    }}""")
    assert isinstance(exe, CpuExecutable)
    (kernel,) = exe.kernels
    assert not re.search(r"\tvpmovsxwd\t", _assembly(kernel.source, tmp_path))  # extends 16 bits to 32


@pytest.mark.skipif(not processor_has("avx2"), reason=f"needs AVX2; this is {processor()}")
@pytest.mark.parametrize("element", TYPES)
def test_loops_divide_vectors(element: str, tmp_path: Path) -> None:
    c_type = {"s": "int", "u": "uint"}[element[0]] + element[1:] + "_t"
    loops = [
        f"void {name}(const {c_type} *a, const {c_type} *b, {c_type} *restrict c) {{\n#pragma omp simd\n"
        f"  for (int i = 0; i < 4096; i++) c[i] = {name}_{element}(a[i], b[i]);\n}}\n"
        for name in ("quotient", "remainder")
    ]
    text = _assembly(HEADER + "".join(loops), tmp_path)
    assert re.search(r"\tvdivp[sd]\t", text)
    assert not re.search(r"\ti?div[bwlq]\t", text)
