"""The speed of elementary functions in CPU kernels: inline code against calls of glibc's vector functions.

    python -m experiments.function_speed [--save]

Each row is a loop over arrays of 64 KiB, which stay in the cache, compiled with the flags of kernels for vectors of 256
and of 512 bits. The variants of a row run in turn, and the least time of each counts. `--save` writes
results/kernels/function_speed.md.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np

from compiler.backends.cpu import toolchain
from experiments.function_errors import FUNCTIONS
from experiments.module_command import plain_errors
from experiments.provenance import provenance

RESULT = Path("results/kernels/function_speed.md")
COUNT = 16384
"""Number of elements of each array."""
ROUNDS, CALLS = 60, 8
"""Number of times that each variant runs, and the number of calls of each run."""
WIDTHS = (256, 512)

EXPRESSIONS = {
    **{
        f.name: f.text.replace("tanh_f32", "tanhf")
        for f in FUNCTIONS.values()
        if f.name in ("exponential", "exponential-minus-one", "tanh", "erf", "power", "atan2")
    },
    "log-plus-one": "log1pf(u)",
    "asin": "asinf(u)",
    "acos": "acosf(u)",
    "softmax numerator": "expf(x - 3.0f) * y",
    "swish": "x / (1.0f + expf(-x))",
    "GELU (erf)": "0.5f * x * (1.0f + erff(x * 0.70710678f))",
    "softplus": "(x > 0 ? x : 0) + log1pf(expf(-__builtin_fabsf(x)))",
    "log-sum-exp": "x + logf(expf(y - x) + expf(u - x))",
}
"""Loop bodies, as expressions of `x` and `y` between -4 and 4 (`x` above 0 for powers) and of `u`
between -1 and 1."""

_POSITIVE = ("power",)


def _loop(name: str, text: str) -> str:
    return "\n".join(
        [
            f"void {name}(const float *xs, const float *ys, const float *us, float *restrict out) {{",
            "#pragma omp simd",
            f"  for (int i = 0; i < {COUNT}; i++) {{",
            "    const float x = xs[i], y = ys[i], u = us[i];",
            f"    out[i] = {text};",
            "  }",
            "}",
            "",
        ]
    )


def _library(is_inline: bool, width: int) -> ctypes.CDLL:
    names = ("preamble_c.h", "math_c.h") if is_inline else ("preamble_c.h",)
    preamble = "".join(resources.files("compiler.codegen.printing").joinpath(name).read_text() for name in names)
    loops = "".join(_loop(f"loop{k}", text) for k, text in enumerate(EXPRESSIONS.values()))
    flags = (*toolchain.FLAGS, f"-mprefer-vector-width={width}", *toolchain.LIBRARIES)
    return ctypes.CDLL(str(toolchain.toolchain().shared_object(preamble + loops, "function_speed", flags)))


def measure() -> list[tuple[str, list[float]]]:
    """Return, per loop, the times per element in ns: of calls and of inline code, for each vector width."""
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-4, 4, COUNT).astype(np.float32) for _ in range(2))
    u, out = rng.uniform(-1, 1, COUNT).astype(np.float32), np.empty(COUNT, np.float32)
    libraries = [_library(is_inline, width) for width in WIDTHS for is_inline in (False, True)]
    rows = []
    for k, name in enumerate(EXPRESSIONS):
        first = np.abs(x) + np.float32(0.01) if name in _POSITIVE else x
        arguments = [ctypes.c_void_p(a.ctypes.data) for a in (first, y, u, out)]
        best = [float("inf")] * len(libraries)
        for _ in range(ROUNDS):
            for variant, library in enumerate(libraries):
                best[variant] = min(best[variant], _seconds(getattr(library, f"loop{k}"), arguments))
        rows.append((name, [t / COUNT * 1e9 for t in best]))
    return rows


def _seconds(function: Callable[..., object], arguments: list[ctypes.c_void_p]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function(*arguments)
    return (time.perf_counter() - start) / CALLS


def _page(rows: list[tuple[str, list[float]]]) -> str:
    p = provenance()
    lines = [
        "# Speed of elementary functions in CPU kernels",
        "",
        f"`python -m experiments.function_speed --save`, commit {p['commit']}, {p['date']}, {p['machine']}, "
        f"{p['c_compiler']}.",
        "",
        "Nanoseconds per element on one thread, in the cache: calls of glibc's vector functions against inline code,",
        "and their ratio (above 1 the inline code is faster), for vectors of 256 and of 512 bits.",
        "",
        "| loop | calls 256 | inline 256 | ratio | calls 512 | inline 512 | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (a, b, c, d) in rows:
        lines.append(f"| {name} | {a:.3f} | {b:.3f} | {a / b:.2f} | {c:.3f} | {d:.3f} | {c / d:.2f} |")
    means = [float(np.exp(np.mean([np.log(t[k] / t[k + 1]) for _, t in rows]))) for k in (0, 2)]
    lines.append(f"| geometric mean | | | {means[0]:.2f} | | | {means[1]:.2f} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure the loops and print, or save, a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT}")
    a = parser.parse_args()
    page = _page(measure())
    print(page)
    if a.save:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
