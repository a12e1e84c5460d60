"""Run one HLO program on XLA:CPU and in the interpreter with the same random inputs, and compare the results.

    python -m tests.sweeps.xla_benchmark_run PROGRAM.hlo

prints one line of JSON (`Run`). Each program runs in its own process, so that memory and time can be limited.
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
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.text import parse
from env.comparison import parts
from env.reference import Reference
from tests.oracle import XlaError, run_xla

Array = npt.NDArray[Any]
WEIGHT_SIZE = 10_000
"""Matrices with at least this many elements are treated as weights, scaled so that activations stay of order one."""


@dataclass(frozen=True)
class Run:
    """The outcome of one program.

    Attributes:
        result: "agrees", "differs: ...", or why it could not be run.
        error: the largest difference, relative to the largest number of the same result.
        finite: the share of the results' numbers that are finite on both sides.
        xla_s: seconds of XLA:CPU, including compilation.
        ours_s: seconds of the interpreter.
    """

    result: str
    error: float = 0.0
    finite: float = 1.0
    xla_s: float = 0.0
    ours_s: float = 0.0


def random_input(shape: Shape, rng: np.random.Generator) -> Array:
    """Return values with which most programs do not overflow: weights, see `WEIGHT_SIZE`; floats in [0.1, 1);
    integers from 0 to 3; booleans.
    """
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
    """Run a module on XLA:CPU and in the interpreter."""
    rng = np.random.default_rng(0)
    args = [random_input(shape, rng) for shape in module.parameter_shapes]
    start = time.perf_counter()
    try:
        wanted = run_xla(str(module), args)
    except XlaError as e:
        return Run(f"XLA:CPU rejects it: {str(e).strip().splitlines()[0][:200]}")
    middle = time.perf_counter()
    try:
        reference = Reference.of(module, args)
    except HlogymError as e:
        return Run(f"not supported here: {str(e).splitlines()[0][:200]}")
    seconds = {"xla_s": middle - start, "ours_s": time.perf_counter() - middle}
    finding = reference.difference(wanted)
    return Run("agrees" if finding is None else f"differs: {finding}", *_size_of(reference.outputs, wanted), **seconds)


def _size_of(found: Sequence[Array], wanted: Sequence[Array]) -> tuple[float, float]:
    """Return `error` and `finite` of a `Run`."""
    worst, total, finite = 0.0, 0, 0
    for a, b in zip(found, wanted, strict=False):
        if a.shape != b.shape or not a.size:
            continue
        x, y = parts(a), parts(b)
        with np.errstate(all="ignore"):
            good = np.isfinite(x) & np.isfinite(y)
            largest = np.abs(y[good]).max(initial=0.0)
            worst = max(worst, float(np.abs(x[good] - y[good]).max(initial=0.0) / (largest or 1.0)))
        total, finite = total + x.size, finite + int(good.sum())
    return worst, finite / max(total, 1)


def main() -> int:
    """Run from the command line."""
    path = Path(sys.argv[1])
    module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    print(json.dumps(asdict(run(module))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
