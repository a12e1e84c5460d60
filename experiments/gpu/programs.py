"""The programs of the suites, with the references that their results are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from compiler.ir import HloModule
from compiler.runtime.executable import parameter_leaves
from compiler.text import parse
from env.reference import Reference, drawn_reference
from env.suites import Program, load_suite, random_inputs
from experiments.gpu.settings import SUITES, Settings

__all__ = ["chosen_programs", "find", "inputs_of", "reference_of"]

SMALL = ("softmax", "chain_f32_128x256", "partial_product")
"""The programs that are run with the stand-in, which is slow."""


def chosen_programs(settings: Settings, suites: Sequence[str] = SUITES) -> list[Program]:
    """Return the programs of suites that take part, those with the least HLO first."""
    wanted = settings.programs or (SMALL if settings.stand_in else ())
    found = [p for suite in suites for p in load_suite(suite).programs]
    chosen = [p for p in found if not wanted or p.name in wanted]
    return sorted(chosen, key=lambda p: p.path.stat().st_size)


def find(suite: str, program: str) -> Program:
    """Return a program of a suite."""
    return load_suite(suite).find(program)


def inputs_of(program: Program, module: HloModule, seed: int) -> list[npt.NDArray[Any]]:
    """Return random arguments of a program."""
    return random_inputs(program, [(s.dtype, s.dimensions) for s in parameter_leaves(module)], seed)


def reference_of(program: Program, seed: int) -> tuple[HloModule, Reference]:
    """Return a program's module, and the interpreter's results on random arguments."""
    module = parse(program.text())
    return module, drawn_reference(module, lambda number: inputs_of(program, module, seed + number))
