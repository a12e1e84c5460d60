"""Programs for testing the output check: those of the suites and of `check_programs`, with their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.text import parse
from env.reference import Reference, drawn_reference
from env.suites import Program, load_suite, random_inputs
from tests.sweeps.check_programs import PROGRAMS, built

Array = npt.NDArray[Any]
SUITES = ("quickstart", "linear_algebra", "jax")
OWN = "sizes"
"""The name of the suite made of the programs in `check_programs`."""


@dataclass(frozen=True)
class Subject:
    """A program with a function that generates its inputs from a seed."""

    program: Program
    draw: Callable[[int], Sequence[Array]]

    @cached_property
    def module(self) -> HloModule:
        """The parsed program."""
        return parse(self.program.text())

    def reference(self, seed: int) -> Reference:
        """Return the reference for the inputs of a seed."""
        return drawn_reference(self.module, lambda number: self.draw(seed + number))

    def outputs(self, seed: int) -> list[Array]:
        """Return the interpreter's outputs for the inputs of a seed."""
        return [np.asarray(o) for o in evaluate(self.module, self.draw(seed))]


def subjects(suites: Sequence[str], folder: Path) -> Iterator[Subject]:
    """Yield the programs of the suites; those of `check_programs` are written to the folder first."""
    for suite in suites:
        programs = _own(folder) if suite == OWN else load_suite(suite).programs
        yield from (Subject(p, _own_draw(p) if suite == OWN else _suite_draw(p)) for p in programs)


def _own(folder: Path) -> Sequence[Program]:
    home = folder / OWN
    home.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (home / f"{name}.hlo").write_text(built(name, 0)[0], encoding="utf-8")
    return load_suite(home).programs


def _own_draw(program: Program) -> Callable[[int], Sequence[Array]]:
    return lambda seed: built(program.name, seed)[1]


def _suite_draw(program: Program) -> Callable[[int], Sequence[Array]]:
    shapes = [(s.dtype, s.dimensions) for s in parse(program.text()).entry.parameter_shapes]
    return lambda seed: random_inputs(program, shapes, seed)
