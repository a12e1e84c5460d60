"""What decides about changes of the default fusions: a forest, or the rules that were distilled from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from compiler.learned.features.fusion_changes import CHANGE_FEATURES, Change
from compiler.learned.forest import Forest
from compiler.learned.rule_list import Rule, RuleList

__all__ = ["UNCHANGED", "ChangeChooser", "ChangeForest", "ChangeRules", "Prediction"]

UNCHANGED = "the default fusions"
"""What rules say that an action replaces."""


class Prediction(NamedTuple):
    """An action with its predicted gain and the lower bound of that, as logs of speedups of its kernels.

    `rule` is the rule that applies to it, if rules decide.
    """

    change: Change
    mean: float
    low: float
    rule: Rule | None = None


class ChangeChooser(Protocol):
    """Predicts the gain of actions, and says from which gain on one is taken."""

    @property
    def margin(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def opcodes(self) -> frozenset[str]: ...

    def expected(self, changes: Sequence[Change]) -> list[Prediction]:
        """Return predictions for those of some actions of which anything is known."""
        ...

    def reason(self, p: Prediction) -> str:
        """Return what a prediction says, as a part of a sentence."""
        ...


@dataclass(frozen=True)
class ChangeRules:
    """Predicts by readable rules, whose speedups are lower bounds already.

    Attributes:
        rules: about kinds of actions, instead of UNCHANGED.
        margin, steps, provenance, opcodes: see `ChangeForest`.
    """

    rules: RuleList
    margin: float
    steps: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    opcodes: frozenset[str] = frozenset()

    def expected(self, changes: Sequence[Change]) -> list[Prediction]:
        """See `ChangeChooser.expected`: actions to which a rule applies."""
        found: list[Prediction] = []
        for c in changes:
            rule = self.rules.rule_for(c.action.kind, UNCHANGED, c.row)
            if rule is not None:
                log = math.log(rule.speedup)
                found.append(Prediction(c, log, log, rule))
        return found

    def reason(self, p: Prediction) -> str:
        """See `ChangeChooser.reason`."""
        return "no rule applies" if p.rule is None else p.rule.text(self.rules.features, p.change.row)


@dataclass(frozen=True, eq=False)
class ChangeForest:
    """Predicts the gain of an action by a forest.

    Attributes:
        forest: predicts the log of the speedup of the kernels that an action replaces.
        margin: share of their time that an action must save by its lower bound.
        errors: standard deviations between the prediction and its lower bound.
        steps: greatest number of actions after the default ones.
        costs: `LearnedKernelCost.digest` of the model of kernel times on which it was learned.
        provenance: how it was made.
        rules: the same decisions, distilled into rules whose choices are kinds of actions.
        opcodes: those of the programs it was grown on, without rare ones; programs with others keep the default
            fusions. Empty: every program may be changed.
    """

    forest: Forest
    margin: float
    errors: float
    steps: int
    costs: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    rules: RuleList = field(default_factory=lambda: RuleList((), CHANGE_FEATURES))
    opcodes: frozenset[str] = frozenset()

    def expected(self, changes: Sequence[Change]) -> list[Prediction]:
        """See `ChangeChooser.expected`: actions that are like those it was grown on."""
        rows = [c.row for c in changes]
        mean, deviation = self.forest.predict(rows)
        known = self.forest.knows(rows)
        return [
            Prediction(c, float(m), float(m - self.errors * d))
            for c, m, d, k in zip(changes, mean, deviation, known, strict=True)
            if k
        ]

    def reason(self, p: Prediction) -> str:
        """See `ChangeChooser.reason`."""
        return f"predicted {math.exp(p.mean):.2f}x (at least {math.exp(p.low):.2f}x); needed {1 + self.margin:.2f}x"

    def readable(self) -> ChangeRules:
        """Return what decides by the rules instead."""
        return ChangeRules(self.rules, self.margin, self.steps, self.provenance, self.opcodes)
