"""The errors of elementary functions in CPU kernels: every float32 number, against float64.

    python -m experiments.function_errors [NAME ...] [--step N] [--save]

An error is given in units in the last place (ulp) of the exact result rounded to float32. Functions of two arguments
are sampled: sign, exponent and fraction of both numbers are random. `--save` puts the rows into the table
results/kernels/function_errors.md.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compiler.backends.cpu import toolchain
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.codegen.printing import print_c
from experiments.module_command import plain_errors
from experiments.provenance import provenance

RESULT = Path("results/kernels/function_errors.md")
FLOATS = 2**32
THINNING = 16
"""Functions of two arguments are sampled at `FLOATS / THINNING` pairs."""
BLOCK = 2**26
"""Number of samples of one call into the compiled program."""


INLINE = (
    "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf", "asin", "acos", "power",
    "atan2",
)  # fmt: skip
"""The ops whose functions are in math_c.h."""


@dataclass(frozen=True)
class Function:
    """A float32 function as kernels call it, and the same function in double.

    Attributes:
        name: name of the HLO op.
        text: C expression of `x`, and of `y` for a function of two arguments.
        reference: C expression in double.
    """

    name: str
    text: str
    reference: str

    @property
    def is_binary(self) -> bool:
        """Return whether the function has two arguments."""
        return "y" in self.text.replace("exp", "")


def _libm(name: str, c_name: str) -> Function:
    return Function(name, f"{c_name}f(x)", f"{c_name}(x)")


FUNCTIONS = {
    f.name: f
    for f in (
        _libm("exponential", "exp"),
        _libm("exponential-minus-one", "expm1"),
        _libm("log", "log"),
        _libm("log-plus-one", "log1p"),
        # Below, exp(-x) overflows and the result is 0, as in the interpreter.
        Function("logistic", "1.0f / (1.0f + expf(-x))", "(x < -88.722839 ? 0 : 1 / (1 + exp(-x)))"),
        Function("tanh", "tanh_f32(x)", "tanh(x)"),
        _libm("erf", "erf"),
        _libm("sine", "sin"),
        _libm("cosine", "cos"),
        _libm("tan", "tan"),
        _libm("asin", "asin"),
        _libm("acos", "acos"),
        _libm("sinh", "sinh"),
        _libm("cosh", "cosh"),
        _libm("asinh", "asinh"),
        _libm("acosh", "acosh"),
        _libm("atanh", "atanh"),
        _libm("cbrt", "cbrt"),
        Function("power", "powf(x, y)", "pow(x, y)"),
        Function("atan2", "atan2f(x, y)", "atan2(x, y)"),
    )
}

_SOURCE = """
#undef tanh
/* The error in ulp; 1e30 for a result that is wrong in kind: a NaN, an infinity or the sign of a zero. */
static inline double ulps(float y, double exact) {
  const float want = (float)exact;
  const uint32_t exponent = (F32_TO_BITS(want) & 0x7fffffffu) >> 23, last = exponent > 254 ? 254 : exponent;
  const double unit = last < 1 ? 0x1p-149 : BITS_TO_F64((uint64_t)(last - 127 - 23 + 1023) << 52);
  const double difference = y - exact, size = difference < 0 ? -difference : difference;
  const bool is_same = (F32_TO_BITS(y) == F32_TO_BITS(want)) | ((y != y) & (want != want));
  const bool is_finite = (y - y == 0) & (want - want == 0) & !((y == 0) & (want == 0));
  /* Just below overflow, the exact result may round to the largest number or to infinity. */
  const bool is_edge = (size <= 4 * unit) & (last == 254);
  const double error = is_finite | is_edge | is_same ? size / unit : 1e30;
  return is_same & !(size <= unit) ? 0 : error;
}
static inline uint32_t mixed(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
void scan(uint64_t first, uint64_t last, uint64_t step, double *worst, float *where) {
  enum { N = 1024 };
  float xs[N], ys[N], got[N];
  double want[N], errors[N];
  for (uint64_t begin = first; begin < last; begin += step * N) {
#pragma omp simd
    for (int i = 0; i < N; i++) {
      const uint64_t k = begin + step * i;
      const uint32_t bits = (uint32_t)(k < last ? k : begin);
      xs[i] = BITS_TO_F32(X_BITS);
      ys[i] = BITS_TO_F32(mixed(bits ^ 0x9e3779b9u));
    }
#pragma omp simd
    for (int i = 0; i < N; i++) {
      const float x = xs[i], y = ys[i];
      got[i] = TEXT;
    }
#pragma omp simd
    for (int i = 0; i < N; i++) {
      const double x = xs[i], y = ys[i];
      want[i] = REFERENCE;
    }
    double largest = -1;
#pragma omp simd reduction(maximum : largest)
    for (int i = 0; i < N; i++) {
      errors[i] = ulps(got[i], want[i]);
      largest = largest >= errors[i] ? largest : errors[i];
    }
    if (!(largest > *worst)) continue;
    for (int i = 0; i < N; i++) {
      if (errors[i] > *worst) *worst = errors[i], where[0] = xs[i], where[1] = ys[i];
    }
  }
}
"""


@dataclass(frozen=True)
class Error:
    """The largest error of a function in ulp, and the arguments at which it occurs."""

    function: Function
    ulps: float
    arguments: tuple[float, float]


def measure(function: Function, step: int = 1) -> Error:
    """Return the largest error of a function over every `step`-th float32 number, or over random pairs."""
    x_bits = "mixed(bits)" if function.is_binary else "bits"
    source = _SOURCE.replace("X_BITS", x_bits).replace("TEXT", function.text).replace("REFERENCE", function.reference)
    flags = (*toolchain.FLAGS, "-mprefer-vector-width=512")
    RUNTIME.load(toolchain.toolchain().runtime())  # with the functions of glibc
    library = toolchain.toolchain().shared_object(print_c.preamble() + source, "function_errors", flags)
    scan = ctypes.CDLL(str(library)).scan
    scan.argtypes = [ctypes.c_uint64] * 3 + [ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_float)]
    scan.restype = None
    step *= THINNING if function.is_binary else 1

    def part(first: int) -> tuple[float, tuple[float, float]]:
        worst, where = ctypes.c_double(-1), (ctypes.c_float * 2)()
        scan(first, min(FLOATS, first + BLOCK * step), step, ctypes.byref(worst), where)
        return worst.value, (where[0], where[1])

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(part, range(0, FLOATS, BLOCK * step)))
    ulps, arguments = max(parts, key=lambda p: p[0])
    return Error(function, ulps, arguments)


def _row(e: Error, step: int) -> str:
    shown = e.arguments if e.function.is_binary else e.arguments[:1]
    bits = ", ".join(f"0x{struct.unpack('<I', struct.pack('<f', a))[0]:08x}" for a in shown)
    where = ", ".join(f"{a:.9g}" for a in shown)
    code = "inline" if e.function.name in INLINE else "glibc"
    count = FLOATS // step // (THINNING if e.function.is_binary else 1)
    covered = "all" if count == FLOATS else f"{count / 1e6:.0f} million"
    return f"| {e.function.name} | {code} | {covered} | {e.ulps:.3f} | {where} | {bits} |"


def main() -> int:
    """Measure the functions and print a table, or put its rows into the saved one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *FUNCTIONS], metavar="NAME", help="HLO ops (default: all)")
    parser.add_argument("--step", type=int, default=1, help="measure every STEP-th number only")
    parser.add_argument("--save", action="store_true", help=f"put the rows into {RESULT}")
    a = parser.parse_args()
    for name in a.names or FUNCTIONS:
        row = _row(measure(FUNCTIONS[name], a.step), a.step)
        print(row, flush=True)
        if a.save:
            _save(name, row)
    return 0


def _save(name: str, row: str) -> None:
    """Put a row into the saved table; the rows of other ops stay."""
    text = RESULT.read_text(encoding="utf-8") if RESULT.exists() else ""
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    rows[name] = row
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(_page([rows[n] for n in FUNCTIONS if n in rows]), encoding="utf-8")


def _page(rows: list[str]) -> str:
    p = provenance()
    return "\n".join(
        [
            "# Errors of elementary functions in CPU kernels",
            "",
            f"`python -m experiments.function_errors --save`, commit {p['commit']}, {p['date']}, {p['machine']}, "
            f"{p['c_compiler']}.",
            "",
            "The largest difference from float64 over float32 numbers, or over random pairs for functions of two",
            "arguments, in units in the last place of the exact result; subnormal results count. 1e30 would mean a",
            "wrong NaN, infinity or sign of a zero. *Inline* functions are in",
            "`compiler/codegen/printing/math_c.h`; the others are from glibc's libmvec. `logistic` is compared with 0",
            "below -88.7, where `exp(-x)` overflows in float32 as it does in the interpreter.",
            "",
            "| op | code | numbers | largest error (ulp) | where | bits |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
