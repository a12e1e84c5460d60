"""Rules about changes of fusions: a forest of them, distilled into the leaves of a small tree for each kind of action.

Nothing is measured for this: the rules repeat what the forest expects of the actions that programs offer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agents.deviations import Deviation, PlanBuilder
from compiler.errors import HlogymError
from compiler.fusion.actions import KINDS
from compiler.learned.change_choosers import UNCHANGED, ChangeForest
from compiler.learned.features.fusion_changes import CHANGE_FEATURES, Change, FusionChanges
from compiler.learned.fusion_changes import LEAST_SECONDS, offered_changes
from compiler.learned.kernel_model import LearnedKernelCost
from compiler.learned.rule_list import Rule, RuleList
from compiler.text import parse
from env.suites import Program
from experiments.learning.fitting import family_folds, merged_bounds
from experiments.learning.fusion_fitting import LARGEST_LOG
from experiments.learning.settings import RuleSettings
from experiments.learning.trees import Leaf, grow_tree, merged_leaves

__all__ = ["Agreement", "Offered", "agreement", "distilled_rules", "offered"]

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Offered:
    """An action that a program offers after the default fusions."""

    program: str
    family: str
    change: Change


@dataclass(frozen=True)
class Agreement:
    """How rules agree with a forest on actions of families that they were not distilled from.

    Attributes:
        taken: number of actions that the forest would take.
        found: share of these that the rules would take too.
        right: share of the actions that the rules would take that the forest would take.
        slower: share of these that the forest expects to be slower.
    """

    taken: int
    found: float
    right: float
    slower: float


def offered(programs: Iterable[Program], backend: str, model: LearnedKernelCost, instructions: int) -> list[Offered]:
    """Return the actions of programs that a policy would look at; programs that cannot be compiled offer none.

    Args:
        programs: of training families.
        backend: for which they are compiled.
        model: predicts the times of kernels.
        instructions: larger programs are left out.
    """
    found: list[Offered] = []
    for program in programs:
        module = parse(program.text())
        if module.instruction_count > instructions:
            continue
        try:
            state = PlanBuilder(module, backend).build(Deviation()).session.fork().fusion
        except HlogymError:
            continue
        if state.seconds() >= LEAST_SECONDS:
            changes = offered_changes(FusionChanges(state, model))
            found += [Offered(program.name, program.family, c) for c in changes]
    return found


def distilled_rules(chooser: ChangeForest, actions: Sequence[Offered], settings: RuleSettings) -> RuleList:
    """Return rules that say of which actions a forest expects enough."""
    low, taken = _expected(chooser, actions)
    kinds = np.array([o.change.action.kind for o in actions])
    rows = np.array([o.change.row for o in actions], np.float64).reshape(len(actions), len(CHANGE_FEATURES))
    rules: list[Rule] = []
    for kind in KINDS:
        mine = np.flatnonzero(kinds == kind)
        if taken[mine].any():
            rules += _of_kind(kind, rows[mine], low[mine], taken[mine], settings)
    return RuleList(tuple(sorted(rules, key=lambda r: -r.speedup)), CHANGE_FEATURES)


def _of_kind(kind: str, rows: Floats, low: Floats, taken: Mask, settings: RuleSettings) -> list[Rule]:
    columns = [c for c in range(rows.shape[1]) if np.ptp(rows[:, c]) > 0] or [0]
    weights = np.where(taken, settings.emphasis, 1.0)
    tree = grow_tree(rows, low, weights, settings.depth, settings.leaf, columns)

    def wanted(leaf: Leaf) -> bool:
        return len(leaf.samples) >= settings.leaf and float(taken[leaf.samples].mean()) >= settings.agreement

    return [
        Rule(
            kind, UNCHANGED, merged_bounds(leaf.bounds), round(math.exp(float(low[leaf.samples].mean())), 3),
            len(leaf.samples),
        )
        for leaf in merged_leaves(tree, wanted)
    ]  # fmt: skip


def _expected(chooser: ChangeForest, actions: Sequence[Offered]) -> tuple[Floats, Mask]:
    """Return the lower bound of the log of each action's speedup, and whether the forest would take it."""
    if not actions:
        return np.zeros(0), np.zeros(0, bool)
    known = {id(p.change): p.low for p in chooser.expected([o.change for o in actions])}
    low = np.array([known.get(id(o.change), -LARGEST_LOG) for o in actions])
    return np.clip(low, -LARGEST_LOG, LARGEST_LOG), low > math.log1p(chooser.margin)


def agreement(chooser: ChangeForest, actions: Sequence[Offered], settings: RuleSettings) -> Agreement:
    """Return how rules agree with a forest, by cross-validation over families."""
    low, taken = _expected(chooser, actions)
    hit = np.zeros(len(actions), bool)
    for fold in family_folds([o.family for o in actions], settings.folds):
        rules = distilled_rules(chooser, [o for o in actions if o.family not in fold], settings)
        for n, o in enumerate(actions):
            if o.family in fold:
                hit[n] = rules.rule_for(o.change.action.kind, UNCHANGED, o.change.row) is not None
    both = float((hit & taken).sum())
    return Agreement(
        int(taken.sum()), both / max(1, int(taken.sum())), both / max(1, int(hit.sum())),
        float((hit & (low < 0)).sum()) / max(1, int(hit.sum())),
    )  # fmt: skip
