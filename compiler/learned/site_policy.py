"""Learned policies for expansions and loops: contextual bandits, as forests and as readable rules.

A model predicts for each choice of a site by how much it makes the program faster than the default. Another choice than
the default is taken only where the lower bound of that prediction exceeds a margin; elsewhere the rules of the compiler
decide.

policy.json          format, phase, features, margin, readable rules, provenance, checksum of the weights
policy.safetensors   the forest
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

from compiler.analysis.flops import instruction_flops
from compiler.errors import PolicyError
from compiler.expansions import ExpansionSite
from compiler.ir import HloModule, Opcode
from compiler.learned.features.sites import (
    EXPANSION_FEATURES,
    FEATURE_VERSION,
    LOOP_FEATURES,
    Feature,
    default_loop,
    described,
    expansion_rows,
    loop_rows,
)
from compiler.learned.forest import Forest
from compiler.learned.policy_folder import read_number, read_policy_folder, write_policy_folder
from compiler.learned.rule_list import RuleList
from compiler.loops import LoopSite

__all__ = [
    "FORMAT",
    "PHASE_FEATURES",
    "Bandit",
    "Chooser",
    "RuleChooser",
    "SiteExpansions",
    "SiteLoops",
    "SitePhase",
    "load_bandit",
    "save_bandit",
    "site_policy",
]

FORMAT = "hlogym-site-policy"
LEAST_FLOPS = 2_500
"""Products and convolutions of less work keep their default expansion: they take some 0.1 us, of which a call is most.
What was predicted for such ops in training programs was noise: 18 changes made them as fast as before as a geometric
mean, and 3 of them slower by a fifth or more; 14 changes of larger products made those 1.5 times as fast."""
SitePhase: TypeAlias = Literal["expansions", "loops"]
PHASE_FEATURES: Mapping[SitePhase, tuple[Feature, ...]] = {"expansions": EXPANSION_FEATURES, "loops": LOOP_FEATURES}
Rows: TypeAlias = Sequence[Sequence[float]]


class Chooser(Protocol):
    """Picks one of the choices of a site."""

    def pick(self, choices: Sequence[str], default: str, rows: Rows) -> int:
        """Return the position of the choice to take; `rows` holds the features of each choice."""
        ...

    def why(self, choices: Sequence[str], default: str, rows: Rows) -> str:
        """Return why `pick` takes what it takes."""
        ...


@dataclass(frozen=True)
class RuleChooser:
    """Picks by readable rules."""

    rules: RuleList

    def pick(self, choices: Sequence[str], default: str, rows: Rows) -> int:
        """See `Chooser.pick`."""
        return self.rules.find(choices, default, rows)[0]

    def why(self, choices: Sequence[str], default: str, rows: Rows) -> str:
        """Return the rule that applies, with the values of the site."""
        n, rule = self.rules.find(choices, default, rows)
        if rule is None:
            return f"{default}, the default: no rule applies"
        return rule.text(self.rules.features, rows[n])


@dataclass(frozen=True, eq=False)
class Bandit:
    """Picks the choice with the greatest lower bound of the predicted gain, if it exceeds the margin.

    Attributes:
        forest: predicts the log of the speedup over the default.
        margin: share of the time that a choice must save by its lower bound.
        errors: standard deviations between the prediction and its lower bound.
        rules: the same decisions, distilled into rules.
        provenance: how it was made.
    """

    forest: Forest
    margin: float
    errors: float
    rules: RuleList
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def bounds(self, choices: Sequence[str], default: str, rows: Rows) -> list[tuple[float, float]]:
        """Return the predicted log speedup of each choice and its lower bound; zeros for the default.

        The bound is minus infinity for a site that is unlike every sample.
        """
        mean, deviation = self.forest.predict(rows)
        known = self.forest.knows(rows)
        return [
            (0.0, 0.0) if choice == default else (float(m), float(m - self.errors * d) if k else -math.inf)
            for choice, m, d, k in zip(choices, mean, deviation, known, strict=True)
        ]

    def pick(self, choices: Sequence[str], default: str, rows: Rows) -> int:
        """See `Chooser.pick`."""
        lower = [bound for _, bound in self.bounds(choices, default, rows)]
        best = max(range(len(choices)), key=lower.__getitem__)
        return best if lower[best] > math.log1p(self.margin) else list(choices).index(default)

    def why(self, choices: Sequence[str], default: str, rows: Rows) -> str:
        """Return the predictions, and the readable rule if it says the same."""
        chosen = choices[self.pick(choices, default, rows)]
        found = zip(choices, self.bounds(choices, default, rows), strict=True)
        listed = ", ".join(f"{c} {_factor(m)} (at least {_factor(low)})" for c, (m, low) in found if c != default)
        n, rule = self.rules.find(choices, default, rows)
        because = f"; rule: {rule.text(self.rules.features, rows[n])}" if rule and choices[n] == chosen else ""
        kept = ", the default" if chosen == default else ""
        return f"{chosen}{kept}: predicted {listed}; needed {1 + self.margin:.2f}x{because}"


def _is_short(site: ExpansionSite) -> bool:
    """Check whether a product or convolution takes so little time that its default is kept."""
    i = site.instruction
    return i is not None and i.opcode in (Opcode.DOT, Opcode.CONVOLUTION) and instruction_flops(i) < LEAST_FLOPS


def _factor(log: float) -> str:
    return "unknown" if math.isinf(log) else f"{math.exp(log):.2f}x"


@dataclass(frozen=True)
class SiteExpansions:
    """An expansion policy that asks a chooser.

    Attributes:
        chooser: a bandit or rules.
        name: the name in plans.
    """

    chooser: Chooser
    name: str = "learned"

    def choose_expansion(self, site: ExpansionSite) -> str:
        """Return one of `site.choices`."""
        site = described(site)
        rows = expansion_rows(site) if len(site.choices) > 1 and not _is_short(site) else None
        return site.default if rows is None else site.choices[self.chooser.pick(site.choices, site.default, rows)]

    def explain(self, site: ExpansionSite) -> str:
        """Return what is chosen for a site and why."""
        if _is_short(site):
            return f"{site.default}, the default: the op has less than {LEAST_FLOPS} flops"
        site = described(site)
        rows = expansion_rows(site)
        return (
            f"{site.default}: the site is unknown"
            if rows is None
            else self.chooser.why(site.choices, site.default, rows)
        )


@dataclass(frozen=True)
class SiteLoops:
    """A loop policy that asks a chooser.

    Attributes:
        chooser: a bandit or rules.
        name: the name in plans.
    """

    chooser: Chooser
    name: str = "learned"

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """Return one of `site.choices`."""
        default = default_loop(site)
        rows = loop_rows(site, module) if len(site.choices) > 1 else None
        return default if rows is None else site.choices[self.chooser.pick(site.choices, default, rows)]

    def explain(self, site: LoopSite, module: HloModule) -> str:
        """Return what is chosen for a loop of a module and why."""
        default, rows = default_loop(site), loop_rows(site, module)
        return f"{default}: the loop is too large" if rows is None else self.chooser.why(site.choices, default, rows)


def site_policy(phase: SitePhase, chooser: Chooser, name: str = "learned") -> SiteExpansions | SiteLoops:
    """Return the policy of a phase that asks a chooser."""
    return SiteExpansions(chooser, name) if phase == "expansions" else SiteLoops(chooser, name)


def save_bandit(folder: Path, phase: SitePhase, bandit: Bandit) -> None:
    """Write the folder of a bandit; one that is there is replaced, other files are left.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    description = {
        "format": FORMAT,
        "feature_version": FEATURE_VERSION,
        "phase": phase,
        "features": [f.name for f in PHASE_FEATURES[phase]],
        "margin": bandit.margin,
        "errors": bandit.errors,
        "rules": bandit.rules.to_json(),
        "provenance": dict(bandit.provenance),
    }
    write_policy_folder(folder, description, bandit.forest.to_arrays())


def load_bandit(folder: Path) -> tuple[SitePhase, Bandit]:
    """Return the phase and the bandit of a folder.

    Raises:
        PolicyError: there is none, it is of another version, or it is damaged.
    """
    data, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        phase = _phase(data.get("phase"))
        features = PHASE_FEATURES[phase]
        if data.get("features") != [f.name for f in features]:
            raise PolicyError("its features are not those of this compiler")
        margin, errors = (read_number(data, name) for name in ("margin", "errors"))
        rules = RuleList.from_json(data.get("rules"), features)
        forest = Forest.from_arrays(weights, len(features))
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}") from error
    return phase, Bandit(forest, margin, errors, rules, data["provenance"])


def _phase(value: Any) -> SitePhase:
    for phase in get_args(SitePhase):
        if value == phase:
            found: SitePhase = phase
            return found
    raise PolicyError(f"its phase must be one of {', '.join(get_args(SitePhase))}, not {value!r:.80}")
