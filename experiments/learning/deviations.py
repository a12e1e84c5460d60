"""Measured deviations from the default plan: the data on which expansions and loops are learned.

Each sample is one change of one decision, with what a policy sees of it and how the run time of the whole program
changed. Sites of a program that look the same are changed together, as a policy would.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from agents.deviations import Deviation, PlanBuilder
from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.learned.features.sites import UNROLLED_COLUMN, default_loop, described, expansion_rows, loop_rows
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurement, Measurer
from env.suites import Program
from experiments.learning.settings import CollectSettings
from experiments.yardstick.rows import Row

__all__ = ["Change", "SitePhase", "changes_of", "measured_plan", "measured_row"]

SitePhase: TypeAlias = Literal["expansions", "loops"]


@dataclass(frozen=True)
class Change:
    """A choice that is not the default, for all sites of a program that look the same.

    Attributes:
        phase: the kind of decision.
        sites: ids.
        choice: what is chosen.
        default: what the rules choose.
        row: the features of the site and the choice.
    """

    phase: SitePhase
    sites: tuple[str, ...]
    choice: str
    default: str
    row: tuple[float, ...] = field(repr=False)

    @property
    def deviation(self) -> Deviation:
        """The plan, as a difference to the default plan."""
        chosen = dict.fromkeys(self.sites, self.choice)
        return Deviation(expansions=chosen) if self.phase == "expansions" else Deviation(loops=chosen)


def changes_of(module: HloModule, backend: str, instructions: int, longest: float) -> list[Change]:
    """Return every change of one decision about expansions or loops, in the order of the sites.

    There are none for a module with more `instructions` after the passes or an estimated time beyond `longest` seconds,
    and none that unrolls a loop to more than half as many instructions: these take long to build or to check.

    Raises:
        HlogymError: the module cannot be compiled.
    """
    if module.instruction_count > 4 * instructions:
        return []
    session = CompilationSession(module, backend=backend)
    session.run_passes()
    if session.module.instruction_count > instructions or session.cost().seconds > longest:
        return []
    found: dict[tuple[SitePhase, str, str, tuple[float, ...]], list[str]] = {}
    for site in map(described, session.expansions()):
        for choice, row in zip(site.choices, expansion_rows(site) or (), strict=False):
            if choice != site.default:
                found.setdefault(("expansions", choice, site.default, tuple(row)), []).append(site.id)
    for loop in session.loops():
        default = default_loop(loop)
        for choice, row in zip(loop.choices, loop_rows(loop, session.module) or (), strict=False):
            if choice != default and row[UNROLLED_COLUMN] <= instructions / 2:
                found.setdefault(("loops", choice, default, tuple(row)), []).append(loop.id)
    return [Change(phase, tuple(ids), choice, default, row) for (phase, choice, default, row), ids in found.items()]


def measured_row(measurer: Measurer, program: Program, settings: CollectSettings, seed: int) -> Row:
    """Measure some changes of a program, drawn at random; return them with their speedups over the default.

    Raises:
        HlogymError: the program cannot be measured.
    """
    module = parse(program.text(), filename=str(program.path))
    backend = measurer.options.backend
    changes = changes_of(module, backend, settings.instructions, settings.longest)
    if not changes:
        return {"skipped": "there is nothing to choose"}
    drawn = random.Random(f"{seed} {program.name}").sample(changes, min(settings.changes, len(changes)))
    default = measurer.measure_reference(program)
    samples = list(_samples(measurer, program, module, drawn))
    return {"family": program.family, "seconds": default.time.value, "samples": samples}


def _samples(measurer: Measurer, program: Program, module: HloModule, changes: Sequence[Change]) -> Iterator[Row]:
    builder = PlanBuilder(module, measurer.options.backend)
    for change in changes:
        facts = {
            "phase": change.phase, "sites": len(change.sites), "choice": change.choice, "default": change.default,
            "row": list(change.row),
        }  # fmt: skip
        measured, _ = measured_plan(measurer, program, partial(_plan, builder, change))
        yield {**facts, **measured}


def _plan(builder: PlanBuilder, change: Change) -> CompilationPlan:
    return builder.build(change.deviation).plan


def measured_plan(
    measurer: Measurer, program: Program, build: Callable[[], CompilationPlan]
) -> tuple[Row, Measurement | None]:
    """Measure a plan; return the log of its speedup over the default with its standard error, and the measurement.

    A plan that cannot be built or measured has a row with the `failure`, and no measurement.
    """
    try:
        found = measurer.measure(program, build())
    except HlogymError as e:
        return {"failure": " ".join(str(e).split())[:200]}, None
    if found.verdict is None:
        return {"failure": found.reason[:200]}, None
    speedup = found.verdict.speedup
    error = math.log(speedup.high / speedup.low) / 4 if 0 < speedup.low < speedup.high < math.inf else 0.0
    return {"log": math.log(speedup.value), "error": error, "counts": found.verdict.counts}, found
