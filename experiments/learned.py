"""A policy folder of either kind: of fusion, or of pass order."""

from __future__ import annotations

import json
from pathlib import Path

from compiler.fusion.learned import LearnedFusionPolicy, load_policy
from compiler.passes.learned import FORMAT, LearnedPassOrder, load_pass_order
from compiler.weights import DESCRIPTION_FILE

__all__ = ["load_learned"]


def load_learned(folder: Path) -> LearnedFusionPolicy | LearnedPassOrder:
    """What the folder holds.

    Raises:
        PolicyError: nothing that can be used.
    """
    try:
        told = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return load_policy(folder)  # which says what is wrong
    if isinstance(told, dict) and told.get("format") == FORMAT:
        return load_pass_order(folder)
    return load_policy(folder)
