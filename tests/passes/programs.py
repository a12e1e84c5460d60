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
from env.reference import Reference
from env.rounding import is_float
from env.suites import Tolerance, load_suite, random_inputs

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
def program_results(name: str) -> Reference:
    """What the interpreter makes of them."""
    return reference(parse(program_text(name)), program_inputs(name))


def reference(module: HloModule, args: Sequence[Array], iterations: int | None = None) -> Reference:
    """Results to hold others against; InterpreterError when the loops do more iterations than allowed."""
    return Reference.of(module, args) if iterations is None else Reference.of(module, args, iterations)


def run(module: HloModule, args: Sequence[Array], iterations: int | None = None) -> list[Array]:
    """The interpreter's results; InterpreterError when the loops do more iterations than allowed."""
    return evaluate(module, list(args), Context(iterations=iterations))


def difference(got: Sequence[Array], want: Reference, tolerance: Tolerance | None = None) -> str | None:
    """What differs beyond rounding, or None; where a wanted element is not finite, there may be anything."""
    free = [
        np.where(np.isfinite(w.astype(np.complex128)), g, w) if is_float(w.dtype) and g.shape == w.shape else g
        for g, w in zip(got, want.outputs, strict=False)
    ]
    return want.difference([*free, *got[len(free) :]], tolerance)
