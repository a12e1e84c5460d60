"""Measured fusions beside the default ones: the data on which changes of fusions are learned.

Each sample is one more action after the default fusions, or after others that were found to be faster, with how the run
time of the whole program changed. What a policy sees of an action is computed from it when a model is fitted, so that
features may change without measuring again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from agents.deviations import Built, Deviation, PlanBuilder
from compiler.fusion.actions import KINDS, FusionAction
from compiler.fusion.state import FusionState
from compiler.learned.fusion_changes import action_seconds
from compiler.text import parse
from env.measurement import Measurement, Measurer
from env.suites import Program
from experiments.learning.deviations import measured_plan
from experiments.learning.settings import FusionSettings
from experiments.yardstick.rows import Row

__all__ = ["Draw", "drawn_actions", "fusion_row", "measured_again"]

Draw: TypeAlias = Callable[[FusionState, int, random.Random], Sequence[FusionAction]]
"""Returns up to a number of legal actions of a state."""
LEAST_SECONDS = 2e-6
"""Programs that take less time are not measured further: a difference counts from a microsecond on."""


def fusion_row(
    measurer: Measurer, program: Program, settings: FusionSettings, seed: int, draw: Draw | None = None
) -> Row:
    """Measure fusions beside the default ones of a program; return them with their speedups.

    Args:
        measurer: measures.
        program: the program.
        settings: which are measured.
        seed: of what is drawn.
        draw: picks actions; None: `drawn_actions`.

    Raises:
        HlogymError: the program cannot be measured.
    """
    module = parse(program.text(), filename=str(program.path))
    backend = measurer.options.backend
    if module.instruction_count > 4 * settings.instructions:
        return {"skipped": "it is too large"}
    builder = PlanBuilder(module, backend)
    start = builder.build(Deviation())
    if sum(map(len, start.session.fusion_base.instructions)) > settings.instructions:
        return {"skipped": "it is too large"}
    if start.session.cost().seconds > settings.longest:
        return {"skipped": "it takes too long"}
    rng = random.Random(f"{seed} {program.name}")
    draw = draw or drawn_actions
    drawn = draw(start.session.fork().fusion, settings.changes, rng)
    if not drawn:
        return {"skipped": "there is nothing to choose"}
    default = measurer.measure_reference(program)
    if default.time.value < LEAST_SECONDS:
        return {"skipped": "it takes too little time"}
    samples: list[Row] = []
    added: tuple[FusionAction, ...] = ()
    best = 0.0
    for step in range(settings.steps):
        found = [_sample(measurer, program, builder, (*added, a)) for a in drawn]
        samples += found
        gains = [(s["log"], n) for n, s in enumerate(found) if s.get("counts")]
        log, n = max(gains, default=(0.0, -1))
        if log <= best + math.log1p(settings.gain) or step + 1 == settings.steps:
            break
        best, added = log, (*added, drawn[n])
        drawn = draw(_built(builder, added).session.fork().fusion, settings.further, rng)
    facts = {"actions": len(start.possible), "kernels": _kernels(default), "samples": samples}
    return {"family": program.family, "seconds": default.time.value, **facts}


def measured_again(measurer: Measurer, program: Program, row: Row, least: float) -> None:
    """Measure the samples of a row whose log of the speedup is above `least` again, and note it in the row.

    A sample that cannot be measured now stays without a speedup.
    """
    builder = PlanBuilder(parse(program.text(), filename=str(program.path)), measurer.options.backend)
    measurer.measure_reference(program)
    for n, sample in enumerate(row["samples"]):
        if sample.get("log", 0.0) > least:
            actions = [FusionAction.from_json(a) for a in sample["actions"]]
            row["samples"][n] = _sample(measurer, program, builder, actions)
    row["confirmed"] = True


def drawn_actions(state: FusionState, count: int, rng: random.Random) -> list[FusionAction]:
    """Return up to `count` legal actions: of each kind about as many, those about kernels that take long more often."""
    rest: dict[str, dict[FusionAction, float]] = {}
    for action in state.actions(KINDS):
        rest.setdefault(action.kind, {})[action] = action_seconds(state, action)
    found: list[FusionAction] = []
    while rest and len(found) < count:
        kind = rng.choice(sorted(rest))
        actions, weights = zip(*rest[kind].items(), strict=True)
        drawn = rng.choices(actions, [w + 1e-9 for w in weights])[0]
        found.append(drawn)
        del rest[kind][drawn]
        if not rest[kind]:
            del rest[kind]
    return found


def _built(builder: PlanBuilder, added: Iterable[FusionAction]) -> Built:
    return builder.build(Deviation(added=tuple(added)))


def _sample(measurer: Measurer, program: Program, builder: PlanBuilder, added: Sequence[FusionAction]) -> Row:
    facts, found = measured_plan(measurer, program, lambda: _built(builder, added).plan)
    kernels = {} if found is None else {"kernels": _kernels(found)}
    return {"actions": [a.to_json() for a in added], **facts, **kernels}


def _kernels(measured: Measurement) -> list[tuple[str, float]]:
    """Return the instructions that take time, with their seconds per run of the program."""
    return [(k.name, k.executions * k.seconds) for k in measured.kernels]
