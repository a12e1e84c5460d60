"""Fitting of site policies: a forest with its margin chosen by cross-validation over families, and readable rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.learned.features.sites import CHOICE_COLUMNS, OP_COLUMNS
from compiler.learned.rule_list import Condition, Rule, RuleList
from compiler.learned.site_policy import PHASE_FEATURES, Bandit, Chooser, RuleChooser, SitePhase
from experiments.learning.settings import TrainSettings
from experiments.learning.trees import Leaf, grow_forest, grow_tree, merged_leaves
from experiments.yardstick.rows import Row

__all__ = ["NOISE", "Fitted", "Outcome", "Sample", "family_folds", "fit_bandit", "merged_bounds", "samples_of"]

Floats: TypeAlias = npt.NDArray[np.float64]
LARGEST_LOG = 1.5
"""Measured logs of speedups are clipped to this: choices that are many times slower must not dominate the fit."""
LEAST_ERROR = 0.05
"""Standard error that is added to every measurement, so that no sample dominates the others."""
NOISE = 0.01
"""Share of the time beyond which a program counts as slower, apart from the error of its measurement."""
MOST_WORSE = 0.1
"""Share of the samples of a rule, and of the sites that rules change, that may become slower."""
LEAST_CHANGED = 8
"""Number of sites that a policy must change in cross-validation, because a few gains may be luck."""
ERRORS, MARGINS = (0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), (0.02, 0.03, 0.05, 0.1)
"""The candidates of cross-validation."""


@dataclass(frozen=True)
class Sample:
    """A measured deviation.

    Attributes:
        phase, program, family: where it was measured.
        choice: what was chosen instead of the default.
        default: the choice of the rules.
        row: features of the site and the choice.
        log: log of the speedup of the program.
        error: its standard error.
    """

    phase: SitePhase
    program: str
    family: str
    choice: str
    default: str
    row: tuple[float, ...]
    log: float
    error: float

    @property
    def site(self) -> tuple[str, tuple[float, ...]]:
        """What identifies the site: the program, and the features without those of the choice."""
        skipped = CHOICE_COLUMNS[self.phase]
        return self.program, tuple(v for n, v in enumerate(self.row) if n not in skipped)

    @property
    def op(self) -> tuple[float, ...]:
        """Which op the site has, as features; empty in phases in which all sites are alike."""
        return tuple(self.row[n] for n in OP_COLUMNS[self.phase])


@dataclass(frozen=True)
class Outcome:
    """What a policy would have gained on measured sites that it was not fitted on.

    Attributes:
        sites: number of sites.
        changed: share of them on which it leaves the default.
        mean: geometric mean of the speedup over all sites.
        changed_mean: geometric mean over the sites that it changes.
        slower: share of the changed sites that become slower beyond the noise.
        possible: geometric mean of the best measured choice of each site.
    """

    sites: int
    changed: float
    mean: float
    changed_mean: float
    slower: float
    possible: float

    def to_json(self) -> dict[str, float]:
        """Return the outcome as plain data."""
        return {name: round(float(value), 4) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Fitted:
    """A fitted bandit with what cross-validation says; `bandit` is None if no margin was safe."""

    bandit: Bandit | None
    forest: Outcome | None
    rules: Outcome | None

    def to_json(self) -> dict[str, Any]:
        """Return what cross-validation says, as plain data."""
        found = {"forest": self.forest, "rules": self.rules}
        return {name: outcome.to_json() for name, outcome in found.items() if outcome is not None}


def samples_of(rows: Iterable[Row], phase: SitePhase) -> list[Sample]:
    """Return the samples of a phase among collected rows."""
    found = [(row, s) for row in rows for s in row.get("samples", ()) if s["phase"] == phase and "log" in s]
    return [_sample(phase, row, s) for row, s in found]


def _sample(phase: SitePhase, row: Row, s: Row) -> Sample:
    log = min(LARGEST_LOG, max(-LARGEST_LOG, float(s["log"])))
    family = row.get("family") or row["program"]
    return Sample(phase, row["program"], family, s["choice"], s["default"], tuple(s["row"]), log, float(s["error"]))


def fit_bandit(samples: Sequence[Sample], phase: SitePhase, settings: TrainSettings, seed: int) -> Fitted:
    """Fit a bandit; its margin is the most profitable one whose changes are safe in cross-validation over families.

    Samples of ops that few programs have are left out: a forest without any sample of an op keeps the default, and one
    with a few would expect of it what it does of others.
    """
    programs = Counter(op for op, _ in {(s.op, s.program) for s in samples})
    samples = [s for s in samples if programs[s.op] >= settings.seen]
    folds = family_folds((s.family for s in samples), settings.folds)
    if len(folds) < 2:
        return Fitted(None, None, None)
    held_out: list[tuple[list[Sample], Bandit]] = []
    for fold in folds:
        rest = [s for s in samples if s.family not in fold]
        held_out.append(([s for s in samples if s.family in fold], _fitted(rest, phase, settings, seed)))
    best: tuple[float, float, float] | None = None
    for errors, margin in product(ERRORS, MARGINS):
        found = _outcome([(part, replace(b, errors=errors, margin=margin)) for part, b in held_out])
        enough = round(found.changed * found.sites) >= LEAST_CHANGED
        if enough and found.slower <= settings.slower and (best is None or found.mean > best[0]):
            best = found.mean, errors, margin
    if best is None or best[0] <= 1:
        return Fitted(None, None, None)
    _, errors, margin = best
    chosen = [(part, replace(b, errors=errors, margin=margin)) for part, b in held_out]
    whole = replace(_fitted(samples, phase, settings, seed), errors=errors, margin=margin)
    others = [[s for s in samples if s.family not in fold] for fold in folds]
    rules, by_rules = _safe_rules(chosen, others, phase, settings)
    if rules is not None:
        whole = replace(whole, rules=_distilled(replace(whole, errors=rules), samples, phase, settings))
    return Fitted(whole, _outcome(chosen), by_rules)


def _safe_rules(
    held_out: Sequence[tuple[list[Sample], Bandit]],
    rest: Sequence[Sequence[Sample]],
    phase: SitePhase,
    settings: TrainSettings,
) -> tuple[float | None, Outcome | None]:
    """Return the number of deviations with which rules are the most profitable among the safe ones; None: none are."""
    best: tuple[float | None, Outcome | None] = (None, None)
    for errors in ERRORS:
        choosers = [
            (part, RuleChooser(_distilled(replace(bandit, errors=errors), others, phase, settings)))
            for (part, bandit), others in zip(held_out, rest, strict=True)
        ]
        found = _outcome(choosers)
        if found.changed and found.slower <= MOST_WORSE and (best[1] is None or found.mean > best[1].mean):
            best = errors, found
    return best


def family_folds(families: Iterable[str], count: int) -> list[frozenset[str]]:
    """Return the families of samples in `count` parts of about as many samples."""
    sizes: dict[str, int] = {}
    for f in families:
        sizes[f] = sizes.get(f, 0) + 1
    parts: list[set[str]] = [set() for _ in range(min(count, len(sizes)))]
    totals = [0] * len(parts)
    for family in sorted(sizes, key=lambda f: (-sizes[f], f)):
        at = totals.index(min(totals))
        parts[at].add(family)
        totals[at] += sizes[family]
    return [frozenset(p) for p in parts]


def _fitted(samples: Sequence[Sample], phase: SitePhase, settings: TrainSettings, seed: int) -> Bandit:
    rows, targets, weights = _arrays(samples)
    programs = [s.program for s in samples]
    # All features are tried for each split, because every split may need to know which choice replaces which.
    forest = grow_forest(
        rows, targets, weights, programs, settings.trees, settings.depth, settings.leaf, seed, share=1.0
    )
    return Bandit(forest, 0.0, 0.0, RuleList((), PHASE_FEATURES[phase]))


def _arrays(samples: Sequence[Sample]) -> tuple[Floats, Floats, Floats]:
    return (
        np.array([s.row for s in samples], dtype=np.float64),
        np.array([s.log for s in samples]),
        np.array([1 / (s.error**2 + LEAST_ERROR**2) for s in samples]),
    )


def _outcome(parts: Sequence[tuple[Sequence[Sample], Chooser]]) -> Outcome:
    """Return what choosers gain on the sites of samples; a chooser may take any measured choice of a site."""
    gains, best, changed, slower = [], [], [], []
    for samples, chooser in parts:
        sites: dict[tuple[str, tuple[float, ...]], list[Sample]] = {}
        for s in samples:
            sites.setdefault(s.site, []).append(s)
        for members in sites.values():
            default = members[0].default
            rows = [members[0].row, *(s.row for s in members)]
            at = chooser.pick([default, *(s.choice for s in members)], default, rows)
            chosen = members[at - 1] if at else None
            gains.append(0.0 if chosen is None else chosen.log)
            best.append(max(0.0, *(s.log for s in members)))
            if chosen is not None:
                changed.append(chosen.log)
                slower.append(chosen.log < -max(NOISE, 2 * chosen.error))
    return Outcome(
        len(gains), len(slower) / max(1, len(gains)), math.exp(float(np.mean(gains))),
        math.exp(float(np.mean(changed))) if changed else 1.0, sum(slower) / max(1, len(slower)),
        math.exp(float(np.mean(best))),
    )  # fmt: skip


def _distilled(bandit: Bandit, samples: Sequence[Sample], phase: SitePhase, settings: TrainSettings) -> RuleList:
    """Return rules that agree with a bandit: for each choice, the leaves of a small tree grown on its predictions.

    A leaf becomes a rule if its measurements support it: their mean less `errors` deviations must exceed the margin.
    """
    rules: list[Rule] = []
    skipped = CHOICE_COLUMNS[phase]
    arms = sorted({(s.default, s.choice) for s in samples})
    for default, choice in arms:
        mine = [s for s in samples if (s.default, s.choice) == (default, choice)]
        rows, logs, weights = _arrays(mine)
        predicted, _ = bandit.forest.predict(rows)
        columns = [c for c in range(rows.shape[1]) if c not in skipped and np.ptp(rows[:, c]) > 0]
        if not columns:
            columns = [0]
        tree = grow_tree(rows, predicted, weights, settings.rules_depth, settings.leaf, columns)

        def supported(leaf: Leaf, logs: Floats = logs) -> bool:
            mine_logs = logs[leaf.samples]
            lower = float(mine_logs.mean()) - bandit.errors * float(mine_logs.std())
            worse = float((mine_logs < -NOISE).mean())
            return len(leaf.samples) >= settings.leaf and lower > math.log1p(bandit.margin) and worse <= MOST_WORSE

        for leaf in merged_leaves(tree, supported):
            mean = float(np.average(logs[leaf.samples], weights=weights[leaf.samples]))
            rules.append(Rule(choice, default, merged_bounds(leaf.bounds), round(math.exp(mean), 3), len(leaf.samples)))
    return RuleList(tuple(sorted(rules, key=lambda r: -r.speedup)), PHASE_FEATURES[phase])


def merged_bounds(bounds: Sequence[tuple[int, bool, float]]) -> tuple[Condition, ...]:
    """Return the bounds of a leaf as conditions, with the tightest of each kind only."""
    tightest: dict[tuple[int, bool], float] = {}
    for column, at_most, bound in bounds:
        known = tightest.get((column, at_most))
        if known is None or (bound < known) is at_most:
            tightest[column, at_most] = bound
    return tuple(Condition(column, at_most, bound) for (column, at_most), bound in tightest.items())
