"""Loading a policy folder of either kind: a fusion policy or a pass order."""

from __future__ import annotations

from pathlib import Path

from compiler.learned.fusion_policy import LearnedFusionPolicy, load_policy
from compiler.learned.pass_order import FORMAT, LearnedPassOrder, load_pass_order
from compiler.learned.policy_folder import describe_policy

__all__ = ["load_learned"]


def load_learned(folder: Path) -> LearnedFusionPolicy | LearnedPassOrder:
    """Load the policy in a folder.

    Raises:
        PolicyError: the folder holds no policy that can be used.
    """
    if describe_policy(folder).get("format") == FORMAT:
        return load_pass_order(folder)
    return load_policy(folder)
