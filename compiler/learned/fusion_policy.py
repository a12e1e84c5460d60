"""A learned policy for fusions and loops, exported as a folder with weights and a description, and run with NumPy.

policy.json          format, feature version, network shape, names of the passes in the order of their slots, provenance
policy.safetensors   weights, float32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.errors import PolicyError
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.learned.features.decisions import (
    CANDIDATE_FEATURES,
    FEATURE_VERSION,
    GLOBAL_FEATURES,
    NODE_FEATURES,
    decision_graph,
)
from compiler.learned.features.fusion import FusionFeatures, WeighedEntry
from compiler.learned.features.loops import loop_candidates
from compiler.learned.features.pass_slots import PASS_SLOTS, remap_pass_slots
from compiler.learned.features.programs import ModuleFeatures
from compiler.learned.pointer_network import CANDIDATE_WEIGHTS, Array, DecisionGraph, NetworkShape, PointerNetwork
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.loops import LoopSite

__all__ = ["FORMAT", "LearnedFusionPolicy", "load_policy", "network_shape", "save_policy"]

FORMAT = "hlogym-fusion-policy"


@dataclass
class LearnedFusionPolicy:
    """Takes the action with the highest score, until stopping has it; decides loops in the same way.

    Attributes:
        network: scores candidates.
        provenance: how the policy was made, as recorded in its folder.
        device: device model by which loops are priced; None: the CPU's.
        seed: None takes the best action; an integer seeds draws from the policy's distribution, for searches.
        name: the name that plans record.
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
        """Return one of `site.choices`."""
        if len(site.choices) == 1:
            return site.choices[0]
        facts = ModuleFeatures(module, CostModel(self.device))
        graph = decision_graph(loop_candidates(site, module), facts, "loops", facts.instructions())
        return site.choices[self._best(graph)]

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next fusion, or None to stop."""
        if self._features is None or self._features.state is not state:
            self._features = FusionFeatures(state)
        entries = [e for e in self._features.entries() if e.saving > 0 or not _concerns_template(e)]
        if not entries:
            return None
        best = self._best(self._features.graph(entries))
        return entries[best].entry.action if best < len(entries) else None

    def _best(self, graph: DecisionGraph) -> int:
        scores = self.network.scores(graph)
        if self._rng is not None:
            # The greatest of scores with Gumbel noise added is a draw from their softmax.
            scores = scores + self._rng.gumbel(size=scores.shape).astype(np.float32)
        return int(np.argmax(scores))


def _concerns_template(e: WeighedEntry) -> bool:
    """Check for an action on a product, scatter or sort: networks were trained before these could be fused."""
    facts = e.sequence.legality.facts
    return any(facts(i).template is not None for i in (e.entry.producer, *e.entry.consumers))


def network_shape(hidden: int, rounds: int) -> NetworkShape:
    """Return the shape of a network for the features of this version."""
    return NetworkShape(NODE_FEATURES, CANDIDATE_FEATURES, GLOBAL_FEATURES, hidden, rounds)


def save_policy(folder: Path, shape: NetworkShape, weights: Mapping[str, Array], provenance: Mapping[str, Any]) -> None:
    """Write a policy folder; a policy that is there is replaced, other files are left.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    description = {
        "format": FORMAT,
        "feature_version": FEATURE_VERSION,
        "network": shape.to_json(),
        "passes": list(PASS_SLOTS),
        "provenance": dict(provenance),
    }
    write_policy_folder(folder, description, weights)


def load_policy(path: str | Path) -> LearnedFusionPolicy:
    """Read an exported policy.

    A policy that was exported with other passes is remapped to those of this version, see `features.pass_slots`.

    Raises:
        PolicyError: the folder is missing or incomplete, belongs to another feature version, or its weights are
            damaged, of another shape, or not finite.
    """
    folder = Path(path)
    description, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        stored = PointerNetwork(NetworkShape.from_json(description.get("network")), weights)
        network = _with_current_passes(stored, _pass_names(description.get("passes")))
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}") from error
    return LearnedFusionPolicy(network, description["provenance"])


def _pass_names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise PolicyError("its passes must be a list of different names")
    return names


def _with_current_passes(network: PointerNetwork, names: list[str]) -> PointerNetwork:
    """Return the network with candidate columns for the passes of this version instead of those of `names`."""
    shape = network.shape
    wanted = network_shape(shape.hidden, shape.rounds)
    other_features = CANDIDATE_FEATURES - len(PASS_SLOTS)
    given = (shape.node_features, shape.candidate_features - len(names), shape.global_features)
    if given != (wanted.node_features, other_features, wanted.global_features):
        raise PolicyError(
            f"its network takes {shape.node_features}, {shape.candidate_features} and {shape.global_features} features "
            f"of nodes, candidates and programs; with {len(names)} passes they must be {wanted.node_features}, "
            f"{other_features + len(names)} and {wanted.global_features}"
        )
    weights = {n: remap_pass_slots(w, names) if n in CANDIDATE_WEIGHTS else w for n, w in network.weights.items()}
    return PointerNetwork(wanted, weights)
