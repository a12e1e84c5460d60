"""A trained agent's policy as files that the compiler reads with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.network import TorchPointerNetwork
from compiler.learned.fusion_policy import LearnedFusionPolicy, save_policy
from compiler.learned.pointer_network import Array, PointerNetwork

__all__ = ["export_policy", "numpy_policy"]


def numpy_policy(network: TorchPointerNetwork, seed: int | None = None) -> LearnedFusionPolicy:
    """The network as the compiler runs it, without a detour through files."""
    return LearnedFusionPolicy(PointerNetwork(network.shape, _weights(network)), seed=seed)


def export_policy(network: TorchPointerNetwork, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the policy folder; a policy that is there is replaced, other files are left.

    Raises:
        PolicyError: the folder cannot be written, or holds something else and no policy of hlogym.
    """
    save_policy(folder, network.shape, _weights(network), provenance)


def _weights(network: TorchPointerNetwork) -> dict[str, Array]:
    wanted = network.shape.weights()
    return {k: v.detach().cpu().numpy().astype("<f4") for k, v in network.state_dict().items() if k in wanted}
