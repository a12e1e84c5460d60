"""Loading a policy that was named on the command line: a folder of any kind, or a name."""

from __future__ import annotations

from pathlib import Path

from compiler.errors import PolicyError
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.learned.pass_order import FORMAT as ORDER_FORMAT
from compiler.learned.pass_order import LearnedPassOrder, load_pass_order
from compiler.learned.policy_folder import describe_policy
from compiler.learned.whole_folder import FORMAT as WHOLE_FORMAT
from compiler.learned.whole_folder import SHIPPED
from compiler.policy import LEARNED, Policy, load_policy, load_whole, policy_names, resolve_policy

__all__ = ["load_learned", "load_order", "policy_folder"]


def load_learned(folder: Path) -> LearnedFusionPolicy | LearnedPassOrder | Policy:
    """Load the policy in a folder; a whole policy that only orders passes gives the pass order.

    Raises:
        PolicyError: the folder holds no policy that can be used.
    """
    kind = describe_policy(folder).get("format")
    if kind == ORDER_FORMAT:
        return load_pass_order(folder)
    found = load_policy(folder)
    if isinstance(found, Policy) and list(found.parts) == ["passes"] and isinstance(found.passes, LearnedPassOrder):
        return found.passes
    return found


def load_order(folder: Path) -> LearnedPassOrder:
    """Load a pass order, from its own folder or from that of a whole policy.

    Raises:
        PolicyError: there is none.
    """
    kind = describe_policy(folder).get("format")
    if kind == ORDER_FORMAT:
        return load_pass_order(folder)
    found = load_whole(folder).passes if kind == WHOLE_FORMAT else None
    if isinstance(found, LearnedPassOrder):
        return found
    raise PolicyError(
        f"{folder} holds no pass order, which hlogym train --env hlogym/PassOrder-v0 learns; a policy for other "
        "decisions is given by --policy"
    )


def policy_folder(name: str) -> Path | None:
    """Return the folder of a policy given on the command line; None for one that has none, such as "priority".

    Raises:
        UnknownNameError: it is neither a name nor a folder.
    """
    if name == LEARNED:
        return SHIPPED
    if name not in policy_names() and ("/" in name or Path(name).is_dir()):
        return Path(name)
    resolve_policy(name, "cpu")  # raises if there is no such policy
    return None
