"""A fusion policy that was learned elsewhere and exported: a folder with weights and a description, used with NumPy.

policy.json          format, feature version, network shape, provenance
policy.safetensors   weights, float32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.errors import PolicyError
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.learned.features.decisions import (
    FEATURE_VERSION,
    MAX_CANDIDATES,
    FusionFeatures,
    ModuleFeatures,
    decision_graph,
    loop_candidate,
)
from compiler.learned.pointer_network import DecisionGraph, NetworkShape, PointerNetwork
from compiler.learned.policy_folder import read_policy_folder

if TYPE_CHECKING:
    from compiler.loops import LoopSite

__all__ = ["FORMAT", "LearnedFusionPolicy", "load_policy"]

FORMAT = "hlogym-fusion-policy"


@dataclass
class LearnedFusionPolicy:
    """Chooses the action with the highest score; stops when stopping has it. Decides loops the same way.

    Attributes:
        network: scores candidates.
        provenance: what the policy file says about its making.
        device: by which loops are priced; None: the CPU's.
        seed: None takes the best action; a number draws from the policy's distribution instead, for searches.
        name: as plans record it.
    """

    network: PointerNetwork
    provenance: Mapping[str, Any] = field(default_factory=dict)
    device: DeviceModel | None = None
    seed: int | None = None
    name: str = "learned"

    def __post_init__(self) -> None:
        self._rng = None if self.seed is None else np.random.default_rng(self.seed)
        self._features: FusionFeatures | None = None

    def choose_loop(self, site: LoopSite, module: HloModule) -> str:
        """What to do with a loop: one of `site.choices`."""
        if len(site.choices) == 1:
            return site.choices[0]
        home, _, name = site.id.partition("/")
        computation = module.find(home)
        loop = None if computation is None else computation.find(name)
        candidates = [loop_candidate(c, loop, site.trip_count) for c in site.choices[:MAX_CANDIDATES]]
        facts = ModuleFeatures(module, CostModel(self.device))
        return site.choices[self._best(decision_graph(candidates, facts, "loops", facts.instructions()))]

    def choose(self, state: FusionState) -> FusionAction | None:
        """The next fusion, or None to stop."""
        if self._features is None or self._features.state is not state:
            self._features = FusionFeatures(state)
        actions, candidates = self._features.choices()
        if not actions:
            return None
        best = self._best(decision_graph(candidates, self._features, "fusion"))
        return actions[best] if best < len(actions) else None

    def _best(self, graph: DecisionGraph) -> int:
        scores = self.network.scores(graph)
        if self._rng is not None:
            # The greatest of scores with such noise added is a draw from their softmax.
            scores = scores + self._rng.gumbel(size=scores.shape).astype(np.float32)
        return int(np.argmax(scores))


def load_policy(path: str | Path) -> LearnedFusionPolicy:
    """Read an exported policy.

    Raises:
        PolicyError: the folder is missing or incomplete, belongs to another feature version, or its weights are
            damaged, of another shape, or not finite.
    """
    folder = Path(path)
    description, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        network = PointerNetwork(NetworkShape.from_json(description.get("network")), weights)
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}") from error
    return LearnedFusionPolicy(network, description["provenance"])
