"""Export of a trained agent's policy as files that the compiler reads with NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.network import TorchPointerNetwork
from compiler.learned.fusion_policy import save_policy

__all__ = ["export_policy"]


def export_policy(network: TorchPointerNetwork, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the policy folder of a network; a policy that is there is replaced, other files are left.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    wanted = network.shape.weights()
    weights = {k: v.detach().cpu().numpy().astype("<f4") for k, v in network.state_dict().items() if k in wanted}
    save_policy(folder, network.shape, weights, provenance)
