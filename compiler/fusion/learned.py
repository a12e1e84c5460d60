"""A fusion policy that was learned elsewhere and exported: a folder with weights and a description, used with NumPy.

policy.json          format, feature version, network shape, provenance
policy.safetensors   weights, float32
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import PolicyError
from compiler.fusion.actions import FusionAction
from compiler.fusion.features import FEATURE_VERSION, FusionFeatures, decision_graph
from compiler.fusion.pointer_network import NetworkShape, PointerNetwork
from compiler.fusion.state import FusionState
from compiler.fusion.weights import read_weights

__all__ = ["FORMAT", "LearnedFusionPolicy", "load_policy"]

FORMAT = "hlogym-fusion-policy"
DESCRIPTION_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"


@dataclass
class LearnedFusionPolicy:
    """Chooses the action with the highest score; stops when stopping has it.

    Attributes:
        network: scores candidates.
        provenance: what the policy file says about its making.
        seed: None takes the best action; a number draws from the policy's distribution instead, for searches.
        name: as plans record it.
    """

    network: PointerNetwork
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    name: str = "learned"

    def __post_init__(self) -> None:
        self._rng = None if self.seed is None else np.random.default_rng(self.seed)
        self._features: FusionFeatures | None = None

    def choose(self, state: FusionState) -> FusionAction | None:
        """The next fusion, or None to stop."""
        if self._features is None or self._features.state is not state:
            self._features = FusionFeatures(state)
        actions, candidates = self._features.choices()
        if not actions:
            return None
        scores = self.network.scores(decision_graph(candidates, self._features, "fusion"))
        if self._rng is not None:
            scores = scores + self._rng.gumbel(size=scores.shape)  # argmax of this is a draw from the softmax
        best = int(np.argmax(scores))
        return actions[best] if best < len(actions) else None


def load_policy(path: str | Path) -> LearnedFusionPolicy:
    """Read an exported policy.

    Raises:
        PolicyError: the folder is missing or incomplete, belongs to another feature version, or its weights are
            damaged, of another shape, or not finite.
    """
    folder = Path(path)
    description = _description(folder)
    version = description.get("feature_version")
    if version != FEATURE_VERSION:
        raise PolicyError(
            f"the policy in {folder} was learned on feature version {version}, and this compiler has "
            f"version {FEATURE_VERSION}; train it again, or use the hlogym that made it"
        )
    try:
        network = PointerNetwork(
            NetworkShape.from_json(description.get("network")), read_weights(folder / WEIGHTS_FILE)
        )
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}") from error
    return LearnedFusionPolicy(network, description.get("provenance", {}))


def _description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION_FILE
    if not folder.is_dir():
        raise PolicyError(f"there is no policy folder {folder}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"{folder} is no policy: cannot read {DESCRIPTION_FILE} ({error.strerror})") from error
    except ValueError as error:
        raise PolicyError(f"{file} is damaged: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PolicyError(f"{file} does not describe a policy of hlogym")
    return data
