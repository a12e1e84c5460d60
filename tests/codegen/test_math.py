"""The elementary functions in the C preamble: errors, special values, and the machine code of loops that use them."""

import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import CompileOptions, compile
from compiler.backends.cpu.toolchain import FLAGS, find_compiler
from compiler.codegen.printing.print_c import preamble
from compiler.support.processor import processor
from experiments.function_errors import FUNCTIONS, INLINE, measure
from tests.codegen.running import processor_has

BOUNDS = {
    "power": 0.6, "exponential": 1.2, "erf": 6, "acos": 1.2, "exponential-minus-one": 1.7,
    "log": 1.0, "log-plus-one": 1.7, "tanh": 2.6, "logistic": 2.6, "asin": 2.6, "atan2": 2.6,
}  # fmt: skip
"""Largest errors in units in the last place, as ARCHITECTURE.md states them."""


@pytest.mark.parametrize("name", INLINE)
def test_errors_of_sampled_numbers_are_within_the_stated_bounds(name: str) -> None:
    assert measure(FUNCTIONS[name], step=1009).ulps <= BOUNDS[name]


Array = NDArray[np.float64]


def _evaluate(op: str, *arguments: list[float], element: str = "f32") -> Array:
    """Return the results of an elementwise op on the CPU backend, which computes them in a vector loop."""
    n = 40
    names = [f"p{k}" for k in range(len(arguments))]
    lines = [f"{name} = {element}[{n}] parameter({k})" for k, name in enumerate(names)]
    text = f"ENTRY e {{ {' '.join(lines)} ROOT r = {element}[{n}] {op}({', '.join(names)}) }}"
    dtype = np.float32 if element == "f32" else np.float64
    padded = [np.array(a + [0.5] * (n - len(a)), dtype) for a in arguments]
    (y,) = compile(text, options=CompileOptions(optimize=False))(*padded)
    return np.asarray(y[: len(arguments[0])], np.float64)


INF, NAN = math.inf, math.nan
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exponential": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (89.0, INF), (-104.5, 0.0)],
    "exponential-minus-one": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (NAN, NAN), (1e-45, 1e-45)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN), (NAN, NAN)],
    "log-plus-one": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (NAN, NAN), (1e-45, 1e-45)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (9.5, 1.0), (-9.5, -1.0), (1e30, 1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (4.0, 1.0), (-1e30, -1.0)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (NAN, NAN), (-INF, NAN)],
    "acos": [(1.0, 0.0), (1.5, NAN), (NAN, NAN), (-INF, NAN)],
}


def _same(got: Array, want: list[float]) -> bool:
    expected = np.array(want, np.float32).astype(np.float64)
    finite = ~np.isnan(expected)
    return np.array_equal(got, expected, equal_nan=True) and np.array_equal(
        np.signbit(got[finite]), np.signbit(expected[finite])
    )


@pytest.mark.parametrize("op", SPECIAL)
def test_infinities_nan_and_signed_zeros(op: str) -> None:
    arguments, want = zip(*SPECIAL[op], (-NAN, NAN), strict=True)
    assert _same(_evaluate(op, list(arguments)), list(want))


@pytest.mark.parametrize(
    "op", ["exponential", "log", "log-plus-one", "exponential-minus-one", "tanh", "erf", "logistic"]
)
def test_equal_numbers_have_equal_results_wherever_they_are(op: str) -> None:
    for n in (1, 7, 9, 23, 40):
        exe = compile(f"HloModule m\nENTRY e {{ x = f32[{n}] parameter(0)\n ROOT y = f32[{n}] {op}(x) }}")
        for value in np.random.default_rng(n).uniform(0.01, 3, 20).astype(np.float32):
            assert len(np.unique(exe(np.full(n, value))[0])) == 1, (op, n, value)


def test_exponential_gives_subnormal_numbers() -> None:
    got = _evaluate("exponential", [-88.0, -95.0, -103.0])
    assert np.all(np.abs(got - np.exp([-88.0, -95.0, -103.0])) <= 2.0**-149)


def test_log_of_subnormal_numbers() -> None:
    x = [1e-45, 1e-40, 1.1754942e-38]
    assert np.allclose(_evaluate("log", x), np.log(np.array(x, np.float32).astype(np.float64)), rtol=1e-7, atol=0)


def test_power_follows_c_at_every_pair_of_special_numbers() -> None:
    numbers = [0.0, 1.0, 0.5, 2.0, 3.0, 1e30, 3e38, 1e-40, 16777217.0, INF]
    numbers += [-x for x in numbers]
    numbers.append(NAN)
    pairs = [(x, y) for x in numbers for y in numbers]
    for start in range(0, len(pairs), 40):
        x, y = (np.array(v, np.float32) for v in zip(*pairs[start : start + 40], strict=True))
        with np.errstate(all="ignore"):
            want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
        got = _evaluate("power", x.tolist(), y.tolist())
        assert np.array_equal(got, want, equal_nan=True)
        known = ~np.isnan(want)
        assert np.array_equal(np.signbit(got[known]), np.signbit(want[known]))


@pytest.mark.parametrize("exponent", [0.0, -0.5, 0.5, 1.5, -2.5, -3.0, 2.2, -0.75, 1e30, INF, -INF, NAN])
def test_powers_with_a_constant_exponent_follow_c(exponent: float) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3e38, 1e-40, INF, -INF, NAN] + [1.25] * 29, np.float32)
    text = (
        f"ENTRY e {{ x = f32[40] parameter(0) c = f32[] constant({exponent})\n"
        "y = f32[40] broadcast(c), dimensions={} ROOT r = f32[40] power(x, y) }"
    )
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.float64(np.float32(exponent))).astype(np.float32)
    if exponent == 0.5:
        want[x == -INF], want[x == 0] = INF, 0.0  # NumPy takes the square root
    for optimize in (False, True):
        (got,) = compile(text, options=CompileOptions(optimize=optimize))(x)
        np.testing.assert_allclose(got, want, rtol=3e-7, atol=0)
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))


def test_atan2_follows_c_at_every_pair_of_special_numbers() -> None:
    numbers = [0.0, 1.0, 2.0, 1e-40, 3e38, INF]
    numbers += [-x for x in numbers]
    numbers.append(NAN)
    pairs = [(x, y) for x in numbers for y in numbers]
    for start in range(0, len(pairs), 40):
        y, x = (np.array(v, np.float32) for v in zip(*pairs[start : start + 40], strict=True))
        want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
        got = _evaluate("atan2", y.tolist(), x.tolist())
        spacing = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
        assert np.all((np.abs(got - want) <= 2.6 * spacing) | (np.isnan(got) & np.isnan(want)))
        known = ~np.isnan(want)
        assert np.array_equal(np.signbit(got[known]), np.signbit(want[known]))


def test_tanh_of_f64() -> None:
    x = [float(v) for v in np.concatenate([np.geomspace(1e-300, 0.59, 15), np.linspace(0.5, 25, 20)])]
    x += [0.0, -0.0, INF, -INF, NAN]
    got = _evaluate("tanh", x, element="f64")
    want = np.array([math.tanh(v) for v in x])  # itself within 1 unit of the exact result
    known = ~np.isnan(want)
    assert np.all(np.abs(got - want)[known] <= 3 * np.spacing(np.abs(want[known])))
    assert np.isnan(got[-1])
    assert np.array_equal(np.signbit(got[known]), np.signbit(want[known]))


@pytest.mark.skipif(not processor_has("avx2", "fma"), reason=f"needs AVX2 and FMA; this is {processor()}")
@pytest.mark.parametrize(("width", "register"), [(256, "ymm"), (512, "zmm")])
def test_loops_use_vector_registers_and_make_no_calls(width: int, register: str, tmp_path: Path) -> None:
    if width == 512 and not processor_has("avx512dq"):
        pytest.skip("needs AVX-512")
    expressions = {name: FUNCTIONS[name].text for name in INLINE} | {"tanh64": "tanh((double)x)"}
    forms = [(name, text, "xs[i]", "ys[i]") for name, text in expressions.items()]
    for name, text in expressions.items():
        if re.search(r"\by\b", text):  # one of the arguments may be the same for all elements
            forms += [(f"{name}_of", text, "xs[i]", "ys[0]"), (f"{name}_by", text, "xs[i]", "0.7f")]
            forms += [(f"of_{name}", text, "xs[0]", "ys[i]"), (f"by_{name}", text, "0.7f", "ys[i]")]
    loops = [
        f"void loop_{name.replace('-', '_')}(const float *xs, const float *ys, {kind} *restrict o) {{\n"
        "#pragma omp simd\n"
        f"  for (int i = 0; i < 4096; i++) {{ const float x = {x}, y = {y}; o[i] = {text}; }}\n}}"
        for name, text, x, y in forms
        for kind in ("double" if name.endswith("64") else "float",)
    ]
    source, assembly = tmp_path / "loops.c", tmp_path / "loops.s"
    source.write_text(preamble() + "\n".join(loops) + "\n")
    flags = [f for f in FLAGS if f != "-shared"]
    command = [find_compiler(), *flags, f"-mprefer-vector-width={width}", "-S", str(source), "-o", str(assembly)]
    subprocess.run(command, check=True, timeout=120)
    functions = re.findall(r"^(loop_\w+):\n(.*?)\.size\t\1", assembly.read_text(), re.MULTILINE | re.DOTALL)
    assert len(functions) == len(loops)
    for name, body in functions:
        assert not re.search(r"\t(call|jmp\t[a-z_])", body), name
        assert register in body, name


def test_remainders_are_exact() -> None:
    rng = np.random.default_rng(0)
    edges = np.array([0, -0.0, 1, -1, 6, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, INF, -INF, NAN], np.float32)
    bits = rng.integers(0, 2**32, (2, 200_000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    x, y = (np.concatenate([e.ravel(), b]) for e, b in zip(np.meshgrid(edges, edges), bits, strict=True))
    with np.errstate(all="ignore"):
        near = np.nextafter(y * rng.integers(1, 1000, y.shape).astype(np.float32), np.float32(0))
    shape = f"f32[{x.size}]"
    text = f"ENTRY e {{ a = {shape} parameter(0) b = {shape} parameter(1) ROOT r = {shape} remainder(a, b) }}"
    exe = compile(text, options=CompileOptions(optimize=False))
    for dividend in (x, near):
        with np.errstate(all="ignore"):
            want = np.fmod(dividend, y)
        (got,) = exe(dividend, y)
        np.testing.assert_array_equal(got, want)
        finite = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(want)[finite])
