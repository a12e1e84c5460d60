"""Runs one HLO program on XLA:CPU and in the interpreter with the same random inputs, and says how far they differ.

    python -m tests.sweeps.xla_benchmark_run PROGRAM.hlo

prints one line of JSON (`Run`). A process runs one program, so that its memory and its time can be limited.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError
from compiler.interpreter import evaluate
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.text import parse
from tests.oracle import XlaError, run_xla

Array = npt.NDArray[Any]
WEIGHT_SIZE = 10_000
"""From so many elements on, a matrix is taken for a weight and gets values that keep activations of size one."""
TOLERANCES = {T.BF16: 0.05, T.F16: 0.01, T.F32: 1e-3, T.C64: 1e-3}
"""Largest accepted error relative to the largest number of a result, by element type; 1e-8 for wider ones."""


@dataclass(frozen=True)
class Run:
    """What came of one program.

    Attributes:
        result: "agrees", "differs", or why it could not be run.
        error: the largest difference relative to the largest number of the same result; NaN agrees with NaN.
        finite: the share of the results' numbers that are finite on both sides.
        xla_s, ours_s: seconds, compilation included.
    """

    result: str
    error: float = 0.0
    finite: float = 1.0
    xla_s: float = 0.0
    ours_s: float = 0.0


def random_input(shape: Shape, rng: np.random.Generator) -> Array:
    """Values that keep most programs away from overflow: see `WEIGHT_SIZE`; else (0.1, 1), integers 0 to 3."""
    t, dims = shape.element_type, shape.dimensions
    if t is T.PRED:
        return rng.integers(0, 2, dims).astype(np.bool_)
    if not (t.is_float or t.is_complex):
        return np.asarray(rng.integers(0, 4, dims)).astype(shape.dtype)
    if len(dims) > 1 and math.prod(dims) >= WEIGHT_SIZE:
        scale = 1 / math.sqrt(math.prod(dims) / dims[-1])
        return (rng.standard_normal(dims, np.float32) * np.float32(scale)).astype(shape.dtype)
    return np.asarray(rng.uniform(0.1, 1, dims)).astype(shape.dtype)


def run(module: HloModule) -> Run:
    """Run a module on both sides."""
    rng = np.random.default_rng(0)
    args = [random_input(shape, rng) for shape in module.parameter_shapes]
    start = time.perf_counter()
    try:
        wanted = run_xla(str(module), args)
    except XlaError as e:
        return Run(f"XLA:CPU refuses it: {str(e).strip().splitlines()[0][:200]}")
    middle = time.perf_counter()
    try:
        found = evaluate(module, args)
    except HlogymError as e:
        return Run(f"not supported here: {str(e).splitlines()[0][:200]}")
    seconds = {"xla_s": middle - start, "ours_s": time.perf_counter() - middle}
    result, error, finite = compare(found, wanted)
    return Run(result, error, finite, **seconds)


def compare(found: Sequence[Array], wanted: Sequence[Array]) -> tuple[str, float, float]:
    """`result`, `error` and `finite` of a `Run`."""
    worst, verdict, total, finite = 0.0, "agrees", 0, 0
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"differs: result {i} is {a.dtype}{list(a.shape)}, wanted {b.dtype}{list(b.shape)}", math.inf, 0.0
        if a.size == 0:
            continue
        kind, error, good = _error(a, b)
        total, finite = total + a.size, finite + good
        worst = max(worst, error)
        if not error <= kind and verdict == "agrees":
            verdict = f"differs: result {i} of {len(found)}"
    return verdict, worst, finite / max(total, 1)


def _error(a: Array, b: Array) -> tuple[float, float, int]:
    """The tolerance, the error, and how many numbers are finite."""
    if a.dtype.kind in "biu" or "int" in a.dtype.name:
        return 0.0, float(np.mean(a != b)), a.size
    t = next(t for t in T if t.dtype == a.dtype)
    wide = np.complex128 if t.is_complex else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        good = np.isfinite(x) & np.isfinite(y)
        same = good | (np.isnan(x) & np.isnan(y)) | (x == y)
        if not same.all():
            return 0.0, math.inf, int(good.sum())
        largest = np.abs(y[good]).max(initial=0.0)
        error = np.abs(x[good] - y[good]).max(initial=0.0) / (largest or 1.0)
    return TOLERANCES.get(t, 1e-8), float(error), int(good.sum())


def main() -> int:
    """The command line."""
    path = Path(sys.argv[1])
    module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    print(json.dumps(asdict(run(module))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
