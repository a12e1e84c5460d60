"""A trained agent's policy as files that the compiler reads with NumPy alone."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.network import TorchPointerNetwork
from compiler.errors import PolicyError
from compiler.fusion.features import FEATURE_VERSION
from compiler.fusion.learned import DESCRIPTION_FILE, FORMAT, WEIGHTS_FILE, LearnedFusionPolicy
from compiler.fusion.pointer_network import Array, PointerNetwork
from compiler.weights import write_weights

__all__ = ["export_policy", "numpy_policy"]


def numpy_policy(network: TorchPointerNetwork, seed: int | None = None) -> LearnedFusionPolicy:
    """The network as the compiler runs it, without a detour through files."""
    return LearnedFusionPolicy(PointerNetwork(network.shape, _weights(network)), seed=seed)


def export_policy(network: TorchPointerNetwork, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write the policy folder; one that is there is replaced when the new one is complete.

    Raises:
        PolicyError: the folder cannot be written, or holds something that is no policy.
    """
    if folder.exists() and not (folder / DESCRIPTION_FILE).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise PolicyError(f"{folder} is there and is no policy folder; name another one")
    description = {
        "format": FORMAT,
        "feature_version": FEATURE_VERSION,
        "network": network.shape.to_json(),
        "provenance": dict(provenance),
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as made:
            draft = Path(made) / "policy"
            draft.mkdir()
            write_weights(draft / WEIGHTS_FILE, _weights(network))
            (draft / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error


def _weights(network: TorchPointerNetwork) -> dict[str, Array]:
    wanted = network.shape.weights()
    return {k: v.detach().cpu().numpy().astype("<f4") for k, v in network.state_dict().items() if k in wanted}
