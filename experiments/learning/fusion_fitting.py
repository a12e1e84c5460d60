"""Fitting of changes of fusions: a forest on measured actions, with its margin chosen by cross-validation."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agents.deviations import Deviation, PlanBuilder
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.learned.change_choosers import ChangeForest
from compiler.learned.features.fusion_changes import CHANGE_FEATURES, FusionChanges
from compiler.learned.forest import Forest
from compiler.learned.fusion_changes import module_opcodes, offered_changes
from compiler.learned.kernel_model import LearnedKernelCost
from compiler.text import parse
from env.suites import Program
from experiments.learning.fitting import NOISE, Outcome, family_folds
from experiments.learning.fusion_deviations import Draw
from experiments.learning.settings import ChangeSettings
from experiments.learning.trees import grow_forest
from experiments.yardstick.rows import Row

__all__ = ["ChangeSample", "FittedChanges", "change_forest", "change_samples", "fit_changes", "guided_draw",
           "known_opcodes"]  # fmt: skip

Floats: TypeAlias = npt.NDArray[np.float64]
LARGEST_LOG = 0.4
"""Predicted logs of speedups are clipped to this: how much faster or slower an extreme change is does not matter."""
LEAST_LEFT = 0.1
"""Share of their time that changed kernels take at least: what is measured beyond it happens elsewhere."""
LEAST_ERROR = 0.05
"""Standard error that is added to every measurement, so that no sample dominates the others."""
LEAST_CHANGED = 8
"""Number of programs that a policy must change in cross-validation, because a few gains may be luck."""
ERRORS, MARGINS = (0.0, 0.1, 0.25, 0.35, 0.5, 0.75, 1.0), (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
"""The candidates of cross-validation."""


@dataclass(frozen=True)
class ChangeSample:
    """A measured action after the default fusions, or after others.

    Attributes:
        program, family: where it was measured.
        before: the actions before it.
        row: what it changes, see CHANGE_FEATURES.
        log: log of the speedup of the program by this action.
        error: its standard error.
        share: measured share of the kernels that it replaces in the time of the program.
    """

    program: str
    family: str
    before: tuple[FusionAction, ...]
    row: tuple[float, ...]
    log: float
    error: float
    share: float

    @property
    def kernels_log(self) -> float:
        """Log of the speedup of the replaced kernels, if nothing else became faster or slower."""
        left = max(LEAST_LEFT, 1 - (1 - math.exp(-self.log)) / self.share)
        return min(LARGEST_LOG, max(-LARGEST_LOG, -math.log(left)))

    @property
    def weight(self) -> float:
        """The inverse of the variance of `kernels_log`."""
        return 1 / ((self.error / self.share) ** 2 + LEAST_ERROR**2)

    @property
    def is_slower(self) -> bool:
        """Whether the program became slower beyond the noise."""
        return self.log < -max(NOISE, 2 * self.error)


@dataclass(frozen=True)
class FittedChanges:
    """A fitted forest with what cross-validation says; `chooser` is None if no margin was safe."""

    chooser: ChangeForest | None
    outcome: Outcome | None


def change_samples(
    rows: Iterable[Row], programs: Mapping[str, Program], backend: str, model: LearnedKernelCost
) -> list[ChangeSample]:
    """Return the samples of measured rows; actions that change no kernel have none.

    Args:
        rows: as `fusion_row` makes them.
        programs: by name.
        backend: for which they were measured.
        model: predicts the times of kernels.
    """
    found: list[ChangeSample] = []
    for row in rows:
        program = programs.get(row["program"])
        if program is not None and row.get("samples"):
            found += _of_program(row, PlanBuilder(parse(program.text()), backend), model)
    return found


def _of_program(row: Row, builder: PlanBuilder, model: LearnedKernelCost) -> list[ChangeSample]:
    measured = {tuple(map(FusionAction.from_json, s["actions"])): s for s in row["samples"] if "log" in s}
    start = {"log": 0.0, "error": 0.0, "kernels": row["kernels"]}
    described: dict[tuple[FusionAction, ...], FusionChanges] = {}
    found: list[ChangeSample] = []
    for actions, s in measured.items():
        before = actions[:-1]
        if before not in described:
            built = builder.build(Deviation(added=before))
            described[before] = FusionChanges(built.session.fork().fusion, model)
        changes = described[before]
        change = changes.describe(actions[-1]) if changes.state.is_legal(actions[-1]) else None
        former = start if not before else measured.get(before)
        if change is None or former is None:
            continue
        seconds = row["seconds"] * math.exp(-former["log"])
        times = dict(map(tuple, former["kernels"]))
        own = sum(times.get(name, 0.0) for name in change.before)
        share = min(1.0, max(0.02, own / seconds))
        error = math.hypot(s["error"], former["error"])
        log = s["log"] - former["log"]
        found.append(ChangeSample(row["program"], row["family"], before, change.row, log, error, share))
    return found


def known_opcodes(programs: Iterable[Program], backend: str, seen: int) -> frozenset[str]:
    """Return the opcodes that at least `seen` programs have where their fusions are decided."""
    counts: Counter[str] = Counter()
    for program in programs:
        start = PlanBuilder(parse(program.text()), backend).build(Deviation())
        counts.update(module_opcodes(start.session.module))
    return frozenset(o for o, n in counts.items() if n >= seen)


def fit_changes(
    samples: Sequence[ChangeSample],
    settings: ChangeSettings,
    costs: str,
    seed: int,
    opcodes: frozenset[str] = frozenset(),
) -> FittedChanges:
    """Fit a forest; its margin is the most profitable one whose changes are safe in cross-validation over families.

    Args:
        samples: measured actions.
        settings: of the fit.
        costs: identity of the model of kernel times.
        seed: of all draws.
        opcodes: what a program may have, see `ChangeForest`.
    """
    folds = family_folds([s.family for s in samples], settings.folds)
    if len(folds) < 2:
        return FittedChanges(None, None)
    low: list[tuple[ChangeSample, float, float]] = []
    for fold in folds:
        forest = change_forest([s for s in samples if s.family not in fold], settings, seed)
        part = [s for s in samples if s.family in fold]
        rows = [s.row for s in part]
        means, errors = forest.predict(rows)
        means[~forest.knows(rows)] = -math.inf
        low += zip(part, means.tolist(), errors.tolist(), strict=True)
    best: tuple[Outcome, float, float] | None = None
    for error, margin in product(ERRORS, MARGINS):
        found = _outcome(low, error, margin)
        enough = round(found.changed * found.sites) >= LEAST_CHANGED
        if enough and found.slower * found.changed <= settings.slower and (best is None or found.mean > best[0].mean):
            best = found, error, margin
    if best is None or best[0].mean <= 1:
        return FittedChanges(None, None)
    outcome, error, margin = best
    chooser = ChangeForest(
        change_forest(samples, settings, seed), margin, error, settings.steps, costs, opcodes=opcodes
    )
    return FittedChanges(chooser, outcome)


def change_forest(samples: Sequence[ChangeSample], settings: ChangeSettings, seed: int) -> Forest:
    """Return a forest that predicts `kernels_log` of samples."""
    rows = np.array([s.row for s in samples], dtype=np.float64).reshape(len(samples), len(CHANGE_FEATURES))
    targets, weights = np.array([s.kernels_log for s in samples]), np.array([s.weight for s in samples])
    programs = [s.program for s in samples]
    return grow_forest(rows, targets, weights, programs, settings.trees, settings.depth, settings.leaf, seed,
                       seen=settings.seen)  # fmt: skip


def guided_draw(forest: Forest, model: LearnedKernelCost) -> Draw:
    """Return what draws the actions of which a forest expects most, and one of the others.

    Measured, they show where the forest is wrong about what it would take.
    """

    def draw(state: FusionState, count: int, rng: random.Random) -> list[FusionAction]:
        found = offered_changes(FusionChanges(state, model))
        if not found:
            return []
        mean, _ = forest.predict([c.row for c in found])
        ranked = [found[n].action for n in np.argsort(-mean, kind="stable").tolist()]
        most = max(1, count - 1)
        return ranked[:most] + rng.sample(ranked[most:], min(1, len(ranked[most:])))

    return draw


def _outcome(predicted: Iterable[tuple[ChangeSample, float, float]], errors: float, margin: float) -> Outcome:
    """Return what a policy gains that may take any measured action of each state, by predicted means and deviations."""
    states: dict[tuple[str, tuple[FusionAction, ...]], list[tuple[float, ChangeSample]]] = {}
    for s, mean, deviation in predicted:
        states.setdefault((s.program, s.before), []).append((mean - errors * deviation, s))
    gains, best, changed = [], [], list[ChangeSample]()
    for (_, before), members in states.items():
        bound, sample = max(members, key=lambda m: m[0])
        taken = bound > math.log1p(margin)
        if taken:
            changed.append(sample)
        if not before:
            gains.append(sample.log if taken else 0.0)
            best.append(max(0.0, *(s.log for _, s in members)))
    logs = [s.log for s in changed]
    return Outcome(
        len(gains), len(changed) / max(1, len(gains)), math.exp(float(np.mean(gains))),
        math.exp(float(np.mean(logs))) if logs else 1.0, sum(s.is_slower for s in changed) / max(1, len(changed)),
        math.exp(float(np.mean(best))),
    )  # fmt: skip
