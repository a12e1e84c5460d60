"""The f16 and bf16 conversions of the C preamble, for every number of the type and for numbers between them."""

import ctypes

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.backends.cpu import toolchain as cpu
from compiler.codegen.printing.print_c import preamble

F16_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
SOURCE = """
#define LOOP(name, from, to, expression) \\
  void name(const from *x, to *y, long n) { for (long i = 0; i < n; i++) y[i] = expression; }
LOOP(widen, uint16_t, float, BITS_TO_F16(x[i]))
LOOP(narrow, float, uint16_t, F16_TO_BITS(x[i]))
LOOP(rounded, float, float, ROUND_F16(x[i]))
void widen_vectors(const half_t *x, float *y, long n) { for (long i = 0; i < n; i += 16) widen_halves(y + i, x + i); }
void narrow_vectors(const float *x, half_t *y, long n) { for (long i = 0; i < n; i += 16) narrow_halves(y + i, x + i); }
LOOP(from_double, double, float, ROUND_F64_TO_F16(x[i]))
"""


def run(name: str, x: npt.NDArray[np.generic], out: type[np.generic]) -> npt.NDArray[np.generic]:
    library = ctypes.CDLL(str(cpu.toolchain().shared_object(preamble() + SOURCE, "conversions")))
    y = np.empty(x.shape, out)
    getattr(library, name)(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size))
    return y


def floats() -> npt.NDArray[np.float32]:
    """Return every f16, the midpoints between neighbours, the floats next to those, and floats of all magnitudes."""
    halves = F16_BITS.view(np.float16).astype(np.float32)
    halves = np.sort(halves[np.isfinite(halves)])
    middle = (halves[:-1] + halves[1:]) / 2
    near = [np.nextafter(middle, np.float32(s * np.inf)) for s in (1, -1)]
    any_ = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    edges = np.array(
        [65504, 65519.99, 65520, 65536, 1e30, np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 2**-25], np.float32
    )
    return np.concatenate([halves, middle, *near, any_, edges, -edges])


def same(found: npt.NDArray[np.generic], wanted: npt.NDArray[np.generic]) -> bool:
    """Check whether arrays are bitwise equal, except that any NaN equals any other."""
    bits = np.dtype(f"u{found.dtype.itemsize}")
    both_nan = np.isnan(found) & np.isnan(wanted)
    return bool(np.all(both_nan | (found.view(bits) == wanted.view(bits))))


def test_every_f16_converts_to_float_exactly() -> None:
    assert same(run("widen", F16_BITS, np.float32), F16_BITS.view(np.float16).astype(np.float32))


def test_floats_round_to_the_nearest_f16() -> None:
    x = floats()
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    assert same(run("narrow", x, np.uint16).view(np.float16), wanted)
    assert same(run("rounded", x, np.float32), wanted.astype(np.float32))


def test_vectors_are_converted_like_single_numbers() -> None:
    assert same(run("widen_vectors", F16_BITS, np.float32), F16_BITS.view(np.float16).astype(np.float32))
    x = floats()
    x = x[: x.size // 16 * 16]
    with np.errstate(over="ignore"):
        assert same(run("narrow_vectors", x, np.uint16).view(np.float16), x.astype(np.float16))


def test_every_f16_survives_a_round_trip_through_float() -> None:
    there = run("widen", F16_BITS, np.float32)
    back = run("narrow", there, np.uint16)
    quiet = np.isnan(F16_BITS.view(np.float16))
    np.testing.assert_array_equal(back[~quiet], F16_BITS[~quiet])
    np.testing.assert_array_equal(back[quiet], F16_BITS[quiet] | 0x200)


def test_doubles_are_rounded_to_f16_once() -> None:
    x = floats().astype(np.float64)
    rng = np.random.default_rng(1)
    x = np.concatenate([x, x * (1 + rng.uniform(-1e-9, 1e-9, x.size)), rng.normal(size=1000) * 1e5, [1e300, 5e-324]])
    with np.errstate(over="ignore"):
        assert same(run("from_double", x, np.float32), x.astype(np.float16).astype(np.float32))


def test_rounding_to_bfloat16_matches_ml_dtypes() -> None:
    x = floats()
    source = (
        preamble()
        + "void f(const float *x, float *y, long n) { for (long i = 0; i < n; i++) y[i] = ROUND_BF16(x[i]); }"
    )
    library = ctypes.CDLL(str(cpu.toolchain().shared_object(source, "conversions")))
    y = np.empty_like(x)
    library.f(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size))
    assert same(y, x.astype(ml_dtypes.bfloat16).astype(np.float32))
