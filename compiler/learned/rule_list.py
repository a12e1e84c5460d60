"""A list of rules over features with units: a readable policy for sites, which prints why it chose.

A rule is a conjunction of conditions, such as `rows <= 4 elements and contraction <= 16 elements`, and the choice it
recommends instead of the default. The rule with the greatest expected speedup among those that apply decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import PolicyError
from compiler.learned.features.sites import Feature
from compiler.support.untrusted import short_repr

__all__ = ["Condition", "Rule", "RuleList"]

_MOST_RULES, _MOST_CONDITIONS = 1000, 100


@dataclass(frozen=True)
class Condition:
    """A bound of one feature: at most `bound`, or above it.

    Attributes:
        feature: position in the row.
        at_most: whether the value must be at most the bound, instead of above it.
        bound: the bound, in the unit of the feature.
    """

    feature: int
    at_most: bool
    bound: float

    def holds(self, row: Sequence[float]) -> bool:
        """Check whether a row fulfils the condition."""
        return bool(row[self.feature] <= self.bound) is self.at_most

    def text(self, features: Sequence[Feature], row: Sequence[float] | None = None) -> str:
        """Return the condition with its unit, and with the value of a row if there is one."""
        feature = features[self.feature]
        if not feature.unit:
            return feature.name if self.at_most is False else f"not {feature.name}"
        value = "" if row is None else f" is {row[self.feature]:g},"
        return f"{feature.name}{value} {'at most' if self.at_most else 'above'} {self.bound:g} {feature.unit}"


@dataclass(frozen=True)
class Rule:
    """What to choose where all conditions hold.

    Attributes:
        choice: the recommended choice.
        default: the choice of the rules of the compiler that it replaces.
        conditions: all must hold.
        speedup: expected speedup of the program.
        samples: number of measurements behind it.
    """

    choice: str
    default: str
    conditions: tuple[Condition, ...]
    speedup: float
    samples: int

    def applies(self, choice: str, default: str, row: Sequence[float]) -> bool:
        """Check whether the rule recommends a choice for a row."""
        return choice == self.choice and default == self.default and all(c.holds(row) for c in self.conditions)

    def text(self, features: Sequence[Feature], row: Sequence[float] | None = None) -> str:
        """Return the rule as a sentence."""
        conditions = " and ".join(c.text(features, row) for c in self.conditions) or "always"
        return (
            f"{self.choice} instead of {self.default} if {conditions} "
            f"(expected {self.speedup:.2f}x, {self.samples} samples)"
        )


@dataclass(frozen=True)
class RuleList:
    """Rules about the choices of one kind of site.

    Attributes:
        rules: the rules, the greatest expected speedup first.
        features: what the entries of rows mean.
    """

    rules: tuple[Rule, ...]
    features: tuple[Feature, ...]

    def find(self, choices: Sequence[str], default: str, rows: Sequence[Sequence[float]]) -> tuple[int, Rule | None]:
        """Return the position of the recommended choice with its rule, or that of the default and None.

        Args:
            choices: of the site.
            default: one of them.
            rows: features of each choice.
        """
        for rule in self.rules:
            for n, (choice, row) in enumerate(zip(choices, rows, strict=True)):
                if rule.applies(choice, default, row):
                    return n, rule
        return list(choices).index(default), None

    def rule_for(self, choice: str, default: str, row: Sequence[float]) -> Rule | None:
        """Return the rule with the greatest expected speedup that recommends one choice, or None."""
        return next((rule for rule in self.rules if rule.applies(choice, default, row)), None)

    def __str__(self) -> str:
        """Return one rule per line."""
        return "\n".join(rule.text(self.features) for rule in self.rules) or "no rules: always the default"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rules as plain data with the names of the features."""
        return [
            {
                "choice": rule.choice,
                "instead_of": rule.default,
                "if": [[self.features[c.feature].name, "<=" if c.at_most else ">", c.bound] for c in rule.conditions],
                "speedup": rule.speedup,
                "samples": rule.samples,
            }
            for rule in self.rules
        ]

    @staticmethod
    def from_json(data: Any, features: tuple[Feature, ...]) -> RuleList:
        """Return the rules of plain data.

        Raises:
            PolicyError: it is not a list of rules about these features.
        """
        if not isinstance(data, list) or len(data) > _MOST_RULES:
            raise PolicyError(f"its rules must be a list of at most {_MOST_RULES} rules")
        names = {f.name: n for n, f in enumerate(features)}
        rules = [_rule(entry, names) for entry in data]
        return RuleList(tuple(sorted(rules, key=lambda r: -r.speedup)), features)


def _rule(entry: Any, names: Mapping[str, int]) -> Rule:
    if not isinstance(entry, dict) or set(entry) != {"choice", "instead_of", "if", "speedup", "samples"}:
        raise PolicyError(f"a rule has choice, instead_of, if, speedup and samples, and is not {short_repr(entry)}")
    choice, default, speedup, samples = (entry[k] for k in ("choice", "instead_of", "speedup", "samples"))
    if not (isinstance(choice, str) and isinstance(default, str)):
        raise PolicyError("the choices of a rule must be strings")
    if not (_is_number(speedup) and speedup > 0 and type(samples) is int and samples >= 0):
        raise PolicyError("a rule must have a positive speedup and a number of samples")
    given = entry["if"]
    if not isinstance(given, list) or len(given) > _MOST_CONDITIONS:
        raise PolicyError(f"a rule has a list of at most {_MOST_CONDITIONS} conditions")
    return Rule(choice, default, tuple(_condition(c, names) for c in given), float(speedup), samples)


def _condition(entry: Any, names: Mapping[str, int]) -> Condition:
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and entry[1] in ("<=", ">")):
        raise PolicyError(f"a condition is a feature, <= or >, and a number, and not {short_repr(entry)}")
    if entry[0] not in names or not _is_number(entry[2]):
        raise PolicyError(f"a condition needs a known feature and a number, and not {short_repr(entry)}")
    return Condition(names[entry[0]], entry[1] == "<=", float(entry[2]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
