"""Bandits made by hand, for tests."""

from pathlib import Path

import numpy as np

from compiler.learned.features.sites import EXPANSION_FEATURES, LOOP_FEATURES
from compiler.learned.forest import Forest
from compiler.learned.rule_list import Condition, Rule, RuleList
from compiler.learned.site_policy import PHASE_FEATURES, Bandit, SitePhase, save_bandit
from compiler.learned.tree_nodes import TreeNodes
from compiler.learned.whole_folder import write_whole


def column(phase: SitePhase, name: str) -> int:
    """Return the position of a feature."""
    return next(n for n, f in enumerate(PHASE_FEATURES[phase]) if f.name == name)


def bandit(phase: SitePhase, choice: str, default: str, gain: float, deviation: float = 0.0) -> Bandit:
    """Return a bandit that predicts a gain for one choice, a loss for others, and says so in one rule."""
    width = len(PHASE_FEATURES[phase])
    at = column(phase, f"choice is {choice}")
    forest = Forest(
        nodes=TreeNodes(
            roots=np.array([0]),
            feature=np.array([at, -1, -1]),
            threshold=np.array([0.5, 0, 0]),
            left=np.array([1, 1, 2]),
            right=np.array([2, 1, 2]),
        ),
        mean=np.array([0, -1.0, np.log(gain)]),
        variance=np.array([0, deviation**2, deviation**2]),
        low=np.full(width, -1.0),
        high=np.full(width, 1e6),
    )
    where = column(phase, "rows" if phase == "expansions" else "body")
    rules = RuleList((Rule(choice, default, (Condition(where, True, 1000.0),), gain, 7),), PHASE_FEATURES[phase])
    return Bandit(forest, margin=0.05, errors=1.0, rules=rules, provenance={"samples": 7})


def whole_folder(folder: Path, version: str = "3") -> Path:
    """Write a whole policy that computes small products by kernels of their own and keeps loops; return its folder."""
    save_bandit(folder / "parts" / "expansions", "expansions", bandit("expansions", "keep", "loops", 1.5))
    save_bandit(folder / "parts" / "loops", "loops", bandit("loops", "keep", "kernel", 1.3))
    parts = {name: folder / "parts" / name for name in ("expansions", "loops")}
    write_whole(folder / "whole", "learned", version, parts, ["cpu"], [], {"programs": ["a"]}, "# Card\n")
    return folder / "whole"


__all__ = ["EXPANSION_FEATURES", "LOOP_FEATURES", "bandit", "column", "whole_folder"]
