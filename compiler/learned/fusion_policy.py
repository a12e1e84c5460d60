"""A learned policy for fusions and loops, exported as a folder with weights and a description, and run with NumPy.

policy.json          format, feature version, network shape, names of the passes in the order of their slots,
                     provenance; for some the fusion policy that completes what the network began, and the device model
policy.safetensors   weights, float32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.cost_model import DEVICES, CostModel, DeviceModel, device_model
from compiler.backends.backend import default_fusion
from compiler.backends.registry import find_backend
from compiler.errors import PolicyError
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import POLICIES, SEARCHES, make_policy
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.learned.features.decisions import (
    CANDIDATE_FEATURES,
    FEATURE_VERSION,
    GLOBAL_FEATURES,
    NODE_FEATURES,
    decision_graph,
)
from compiler.learned.features.fusion import FusionFeatures, Offer
from compiler.learned.features.loops import loop_candidates
from compiler.learned.features.pass_slots import PASS_SLOTS, remap_pass_slots
from compiler.learned.features.programs import ModuleFeatures
from compiler.learned.pointer_network import CANDIDATE_WEIGHTS, Array, DecisionGraph, NetworkShape, PointerNetwork
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.loops import LoopSite
from compiler.support.untrusted import short_repr

__all__ = ["FORMAT", "LearnedFusionPolicy", "load_policy", "network_shape", "save_policy"]

FORMAT = "hlogym-fusion-policy"
MOST_DECISIONS = 400
"""Number of fusions of the network in a program, so that large programs take seconds; its completion does the rest."""
_RANKED = 3
"""Number of choices that an explanation names."""


@dataclass
class LearnedFusionPolicy:
    """Takes the action with the highest score, until stopping has it; decides loops in the same way.

    If it has a completion, that policy takes over where the network stops: the network makes the fusions that rules
    miss, and the rules make those that are obvious.

    Attributes:
        network: scores candidates.
        provenance: how the policy was made, as recorded in its folder.
        device: device model by which loops are priced; None: the CPU's.
        seed: None takes the best action; an integer seeds draws from the policy's distribution, for searches.
        name: the name that plans record.
        completion: the name of the fusion policy that takes over where the network stops, or after MOST_DECISIONS of
            its decisions, or several with commas, one after the other. Empty: none where the network stops, and that
            of `compile` for the backend after so many decisions.
    """

    network: PointerNetwork
    provenance: Mapping[str, Any] = field(default_factory=dict)
    device: DeviceModel | None = None
    seed: int | None = None
    name: str = "learned"
    completion: str = ""

    def __post_init__(self) -> None:
        """Set up the state of the draws and of the completion."""
        self._rng = None if self.seed is None else np.random.default_rng(self.seed)
        self._features: FusionFeatures | None = None
        self._undone = 0
        self._decisions = 0
        self._rest: FusionPolicy | None = None  # while it takes over

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
            self._features, self._undone, self._decisions, self._rest = FusionFeatures(state), state.undone, 0, None
        if state.undone != self._undone:
            self._undone, self._decisions, self._rest = state.undone, 0, None
        if self._rest is None:
            action = self._scored(self._features)
            if action is not None or not (self.completion or self._is_used_up):
                return action
            self._rest = make_policy(self.completion or default_fusion(find_backend(state.target.backend)))
        return self._rest.choose(state)

    @property
    def _is_used_up(self) -> bool:
        return self._decisions >= MOST_DECISIONS

    def _scored(self, features: FusionFeatures) -> FusionAction | None:
        """Return the fusion with the highest score, or None where stopping has it."""
        if self._is_used_up:
            return None
        self._decisions += 1
        offer = _offered(features)
        if not offer.entries:
            return None
        best = self._best(features.graph(offer))
        return offer.entries[best].action if best < len(offer.entries) else None

    def explain(self, state: FusionState) -> str:
        """Return what has the highest score in a state, its probability, and the next best choices."""
        if self._features is None or self._features.state is not state:
            self._features = FusionFeatures(state)
        entries = self._features.entries()
        if not entries:
            return "stops: nothing can be fused"
        scores = self.network.scores(self._features.graph(entries)).astype(np.float64)
        weights = np.exp(scores - scores.max())
        shares = weights / weights.sum()
        names = [*(str(e.entry.action) for e in entries), "stop"]
        ranked = [int(n) for n in np.argsort(-shares, kind="stable")[:_RANKED]]
        return ", ".join(f"{names[n]} {shares[n]:.0%} (score {scores[n]:.2f})" for n in ranked)

    def _best(self, graph: DecisionGraph) -> int:
        scores = self.network.scores(graph)
        if self._rng is not None:
            # The greatest of scores with Gumbel noise added is a draw from their softmax.
            scores = scores + self._rng.gumbel(size=scores.shape).astype(np.float32)
        return int(np.argmax(scores))


def _offered(features: FusionFeatures) -> Offer:
    """Return the offer without actions on products, scatters and sorts that lose time by the cost model.

    Networks that were trained before these could be fused know nothing of them.
    """
    offer, sequences = features.offer(), features.state.sequences
    kept = [
        n
        for n, e in enumerate(offer.entries)
        if offer.savings[n] > 0
        or all(sequences[e.action.computation].legality.facts(i).template is None for i in (e.producer, *e.consumers))
    ]
    if len(kept) == len(offer.entries):
        return offer
    return Offer([offer.entries[n] for n in kept], offer.savings[kept], offer.facts[kept])


def network_shape(hidden: int, rounds: int) -> NetworkShape:
    """Return the shape of a network for the features of this version."""
    return NetworkShape(NODE_FEATURES, CANDIDATE_FEATURES, GLOBAL_FEATURES, hidden, rounds)


def save_policy(
    folder: Path,
    shape: NetworkShape,
    weights: Mapping[str, Array],
    provenance: Mapping[str, Any],
    completion: str = "",
    device: str = "",
) -> None:
    """Write a policy folder; a policy that is there is replaced, other files are left.

    Args:
        folder: to write.
        shape: of the network.
        weights: of the network, by name.
        provenance: how it was made.
        completion: the fusion policy that takes over where the network stops; empty: none.
        device: the device model by which it sees loops, by name; empty: the CPU's.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    description = {
        "format": FORMAT,
        "feature_version": FEATURE_VERSION,
        "network": shape.to_json(),
        "passes": list(PASS_SLOTS),
        "provenance": dict(provenance),
        **({"completion": completion} if completion else {}),
        **({"device": device} if device else {}),
    }
    write_policy_folder(folder, description, weights)


def load_policy(path: str | Path) -> LearnedFusionPolicy:
    """Read an exported policy.

    A policy that was exported with other passes is remapped to those of this version, see `features.pass_slots`.

    Raises:
        PolicyError: the folder is missing or incomplete, belongs to another feature version, or its weights are
            damaged, of another shape, or not finite; its completion or its device does not exist.
    """
    folder = Path(path)
    description, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        stored = PointerNetwork(NetworkShape.from_json(description.get("network")), weights)
        network = _with_current_passes(stored, _pass_names(description.get("passes")))
        completion, device = _completion(description.get("completion", "")), _device(description.get("device", ""))
    except PolicyError as error:
        raise PolicyError(f"the policy in {folder} cannot be used: {error}") from error
    return LearnedFusionPolicy(network, description["provenance"], device, completion=completion)


def _completion(name: Any) -> str:
    """Return the names of a completion; they must be policies of the compiler that decide at once."""
    if isinstance(name, str) and (not name or all(n in POLICIES and n not in SEARCHES for n in name.split(","))):
        return name
    raise PolicyError(f"there is no fusion policy {short_repr(name)} that could complete it")


def _device(name: Any) -> DeviceModel | None:
    if name == "":
        return None
    if isinstance(name, str) and name in DEVICES:
        return device_model(name)
    raise PolicyError(f"there is no device model {short_repr(name)}")


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
