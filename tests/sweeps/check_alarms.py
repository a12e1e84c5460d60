"""False alarms of the output check: correct programs, compiled with many plans and by XLA, must pass it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.search import Starts, random_plans
from compiler.api import compile as compile_hlo
from compiler.errors import UnsupportedError
from compiler.passes import PASSES
from env.comparison import FEW_RUNS, find_difference
from env.reference import Reference
from env.suites import Program, Tolerance
from tests.oracle import XlaError, run_xla
from tests.sweeps.check_subjects import Subject

Array = npt.NDArray[Any]
Compiled = Callable[[Sequence[Array]], Sequence[Array]]

PASSES_IN_A_ROW = 12
NONE, FEW, MANY = "none", "few", "many"


@dataclass(frozen=True)
class Check:
    """The output check of one compiled program on one set of inputs.

    Attributes:
        suite: suite of the program.
        program: name of the program.
        way: how it was compiled.
        seed: seed of the inputs.
        runs: how many evaluations with random rounding were needed: NONE, FEW or MANY.
        finding: why it failed; None if it passed.
    """

    suite: str
    program: str
    way: str
    seed: int
    runs: str
    finding: str | None


def check_subject(subject: Subject, seeds: Sequence[int], plans: int) -> Iterator[Check]:
    """Check a program, compiled in all ways, on the inputs of all seeds."""
    program = subject.program
    references = [subject.reference(seed) for seed in seeds]
    for way, compiled in compiled_in_all_ways(program, plans):
        for seed, reference in zip(seeds, references, strict=True):
            with suppress(XlaError):
                got = [np.asarray(o) for o in compiled(reference.inputs)]
                runs, finding = judge(got, reference, program.tolerance)
                yield Check(program.suite, program.name, way, seed, runs, finding)


def compiled_in_all_ways(program: Program, plans: int) -> Iterator[tuple[str, Compiled]]:
    """Yield the program compiled in several ways, with their names; plans that cannot be built are skipped."""
    text = program.text()
    yield "default", _called(compile_hlo(text))
    yield "no fusion", _called(compile_hlo(text, fusion_policy="none"))
    for plan in islice(random_plans(Starts("cpu"), program, seed=1), plans):
        with suppress(UnsupportedError):
            yield "random fusions and loops", _called(compile_hlo(text, plan=plan))
    for n in range(plans):
        passes = random.Random(n).choices(sorted(PASSES), k=PASSES_IN_A_ROW)
        with suppress(UnsupportedError):
            yield "random passes", _called(compile_hlo(text, pipeline=passes))
    yield "XLA", lambda inputs: run_xla(text, inputs)


def _called(executable: Callable[..., Sequence[Array]]) -> Compiled:
    return lambda inputs: executable(*inputs)


def judge(got: Sequence[Array], reference: Reference, tolerance: Tolerance | None) -> tuple[str, str | None]:
    """Return how many evaluations with random rounding are needed to check outputs, and what is wrong with them."""
    if find_difference(got, reference.outputs, tolerance) is None:
        return NONE, None
    finding = reference.difference(got, tolerance)
    few = find_difference(got, reference.outputs, tolerance, reference.spread(FEW_RUNS)) is None
    return FEW if few else MANY, finding
