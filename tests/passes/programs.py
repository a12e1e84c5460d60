"""Programs for the tests of passes: the quickstart suite cut down to sizes the interpreter runs at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.interpreter import Context, evaluate
from compiler.ir import HloModule
from compiler.text import parse
from env.suites import load_suite, random_inputs

Array = npt.NDArray[Any]

_SMALLER = {
    "1048576": "64", "16384": "48", "8192": "24", "4096": "16", "2048": "6", "1024": "8", "512": "8", "256": "8",
    "200": "4", "128": "4",
}  # fmt: skip


def shrunk(text: str) -> str:
    """The same program on smaller arrays, its loops with fewer steps."""
    pattern = r"(?<![\d.])(" + "|".join(_SMALLER) + r")(?![\d.])"
    return re.sub(pattern, lambda m: _SMALLER[m.group(1)], text)


PROGRAMS = tuple(p.name for p in load_suite("quickstart").programs)


@cache
def program_text(name: str) -> str:
    """A program of the quickstart suite, cut down, as our printer spells it."""
    return str(parse(shrunk(load_suite("quickstart").find(name).text())))


@cache
def program_inputs(name: str) -> tuple[Array, ...]:
    """Inputs for the program, as its manifest asks for."""
    shapes = parse(program_text(name)).parameter_shapes
    drawn = random_inputs(load_suite("quickstart").find(name), [(s.dtype, s.dimensions) for s in shapes], seed=3)
    # A target index must lie within the shrunk axis.
    return tuple(a % 8 if a.dtype.kind == "i" and a.size > 1 and a.max() > 8 else a for a in drawn)


@cache
def program_results(name: str) -> tuple[Array, ...]:
    """What the interpreter makes of them."""
    return tuple(run(parse(program_text(name)), program_inputs(name)))


def run(module: HloModule, args: Sequence[Array], iterations: int | None = None) -> list[Array]:
    """The interpreter's results; InterpreterError when the loops do more iterations than allowed."""
    return evaluate(module, list(args), Context(iterations=iterations))


def difference(got: Sequence[Array], want: Sequence[Array], rtol: float = 2e-4) -> str | None:
    """What differs beyond rounding, or None.

    Floats may differ by `rtol` of the array's greatest magnitude (a sum that cancels keeps only that); elements that
    are not finite in `want` may be anything but a finite number of usual size.
    """
    if len(got) != len(want):
        return f"{len(got)} results, expected {len(want)}"
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {n} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        found = _array_difference(a, b, rtol)
        if found is not None:
            return f"result {n}: {found}"
    return None


def _array_difference(a: Array, b: Array, rtol: float) -> str | None:
    if a.dtype.kind in "iub":
        wrong = a != b
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        if a.dtype.itemsize <= 2 and a.dtype.kind != "c":
            rtol = max(rtol, 0.05)
        with np.errstate(all="ignore"):
            finite = np.isfinite(y)
            scale = np.max(np.abs(y[finite]), initial=0.0)
            near = np.abs(x - y) <= rtol * (np.abs(y) + scale) + 1e-6
            wrong = np.where(finite, ~near, False)
    if not np.any(wrong):
        return None
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"{int(np.sum(wrong))} of {a.size} elements differ, first at {list(at)}: {a[at]} instead of {b[at]}"
