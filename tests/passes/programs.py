"""Programs for the tests of passes: the quickstart suite, reduced to sizes that the interpreter evaluates quickly."""

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
from env.reference import Reference
from env.rounding import is_float
from env.suites import Tolerance, load_suite, random_inputs

Array = npt.NDArray[Any]

_SMALLER = {
    "1048576": "64", "16384": "48", "8192": "24", "4096": "16", "2048": "6", "1024": "8", "512": "8", "256": "8",
    "200": "4", "128": "4",
}  # fmt: skip


def shrunk(text: str) -> str:
    """Return the same program with smaller arrays and smaller trip counts."""
    pattern = r"(?<![\d.])(" + "|".join(_SMALLER) + r")(?![\d.])"
    return re.sub(pattern, lambda m: _SMALLER[m.group(1)], text)


PROGRAMS = tuple(p.name for p in load_suite("quickstart").programs)


@cache
def program_text(name: str) -> str:
    """Return a program of the quickstart suite, reduced, as our printer writes it."""
    return str(parse(shrunk(load_suite("quickstart").find(name).text())))


@cache
def program_inputs(name: str) -> tuple[Array, ...]:
    """Return inputs for the program, drawn as its manifest requests."""
    shapes = parse(program_text(name)).parameter_shapes
    drawn = random_inputs(load_suite("quickstart").find(name), [(s.dtype, s.dimensions) for s in shapes], seed=3)
    # A target index must lie within the shrunk axis.
    return tuple(a % 8 if a.dtype.kind == "i" and a.size > 1 and a.max() > 8 else a for a in drawn)


@cache
def program_results(name: str) -> Reference:
    """Return the interpreter's results for the program and its inputs."""
    return reference(parse(program_text(name)), program_inputs(name))


def reference(module: HloModule, args: Sequence[Array], iterations: int | None = None) -> Reference:
    """Return results to compare others with.

    Raises:
        InterpreterError: the loops do more iterations than allowed.
    """
    return Reference.of(module, args) if iterations is None else Reference.of(module, args, iterations)


def run(module: HloModule, args: Sequence[Array], iterations: int | None = None) -> list[Array]:
    """Return the interpreter's results.

    Raises:
        InterpreterError: the loops do more iterations than allowed.
    """
    return evaluate(module, list(args), Context(iterations=iterations))


def difference(got: Sequence[Array], want: Reference, tolerance: Tolerance | None = None) -> str | None:
    """Describe what differs beyond rounding, or return None; any value matches an expected infinity or NaN."""
    free = [
        np.where(np.isfinite(w.astype(np.complex128)), g, w) if is_float(w.dtype) and g.shape == w.shape else g
        for g, w in zip(got, want.outputs, strict=False)
    ]
    return want.difference([*free, *got[len(free) :]], tolerance)
