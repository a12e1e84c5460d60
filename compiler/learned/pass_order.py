"""A pass order that was learned elsewhere and exported: a pass like any other, run with NumPy alone.

Its folder (see `compiler.learned.policy_folder`) tells the passes, the layers of the network and the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError, PolicyError
from compiler.ir import HloModule
from compiler.learned.features.passes import FEATURE_VERSION, observation_size
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_states import PassGraph
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import PipelineRun
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.completion import complete
from compiler.passes.pipelines.default import default_pipeline

__all__ = ["FORMAT", "Layer", "LearnedPassOrder", "load_pass_order"]

FORMAT = "hlogym-pass-order"
Activation: TypeAlias = Literal["tanh", "relu", "none"]
Completion: TypeAlias = Literal["none", "fewer-ops", "default"]
Array = npt.NDArray[np.float32]
MOST_APPLICATIONS = 1_000_000
"""No order has more: what a file asks for beyond is a mistake in it."""


@dataclass(frozen=True)
class Layer:
    """`activation(weight @ x + bias)`; weight [out, in], bias [out]."""

    weight: Array
    bias: Array
    activation: Activation

    def __call__(self, x: Array) -> Array:
        y: Array = self.weight @ x + self.bias
        if self.activation == "none":
            return y
        return np.tanh(y) if self.activation == "tanh" else np.maximum(y, np.float32(0))


@dataclass(frozen=True, eq=False)
class LearnedPassOrder:
    """Runs the pass that its network ranks highest, among those not known to be idle, until it ranks stop highest.

    What is left then is tried in the network's order too, up to `finish` applications, and kept only where it leaves
    no more ops: stopping says that nothing more is worth much, and this finds the rest of it. `completion` says
    whether the default pipeline comes after that: "none", where it leaves "fewer-ops", or always ("default").

    Attributes:
        actions: texts of the passes, in the order the network knows them.
        layers: of the network; the last has an output for each pass and one for stop.
        budget: applications until it stops, at most.
        finish: applications after that, at most.
        completion: what comes last.
        provenance: what the policy file says about its making.
        name: as statistics show it.
    """

    actions: tuple[str, ...]
    layers: tuple[Layer, ...]
    budget: int = 150
    finish: int = 150
    completion: Completion = "none"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    name: str = "learned-order"

    @property
    def passes(self) -> tuple[HloPass, ...]:
        """What it chooses from."""
        return tuple(make_pass(text) for text in self.actions)

    def scores(self, observation: Array) -> Array:
        """A number for each pass, and for stop: greater is better."""
        x = observation
        for layer in self.layers:
            x = layer(x)
        return x

    def choose(self, episode: PassEpisode, rng: np.random.Generator | None = None) -> int:
        """The action for a moment: the best, or one drawn from the policy's distribution if there is an `rng`."""
        return self._best(episode, episode.mask(), rng)

    def _best(self, episode: PassEpisode, mask: npt.NDArray[np.bool_], rng: np.random.Generator | None = None) -> int:
        scores = self.scores(episode.observation())
        if rng is not None:
            # The greatest of scores with such noise added is a draw from their softmax.
            scores = scores + rng.gumbel(size=scores.shape).astype(np.float32)
        return int(np.argmax(np.where(mask, scores, -np.inf)))

    def follow(self, graph: PassGraph, rng: np.random.Generator | None = None, limit: int | None = None) -> PassEpisode:
        """Decide from the start of a graph to the end.

        Args:
            graph: with this policy's actions.
            rng: draw until the stop instead of taking the best.
            limit: applications in all, at most; None: `budget + finish`.
        """
        limit = self.budget + self.finish if limit is None else limit
        episode = PassEpisode(graph, self.budget)
        while not episode.done and len(episode.taken) < limit:
            episode.take(self.choose(episode, rng))
        end = min(limit, len(episode.taken) + self.finish)
        while len(episode.taken) < end:
            mask = episode.mask()
            mask[episode.stop] = False
            if not mask.any():
                break
            episode.attempt(self._best(episode, mask))
        return episode

    def run(self, module: HloModule) -> bool:
        """Order and run the passes; whether anything changed."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """`run`, recorded in `run`: decided on copies, then what changed something is run."""
        episode = self.follow(PassGraph(module, self.actions))
        texts = episode.effective()
        if self.completion == "fewer-ops":
            texts += complete(episode.state.module, episode.state.ops).passes
        changed = False
        for text in texts:
            changed |= run.apply(make_pass(text), module)
        if self.completion == "default":
            changed |= run.apply(default_pipeline(), module)
        return changed

    def save(self, folder: Path) -> None:
        """Write the policy folder; a policy that is there is replaced, other files are left.

        Raises:
            PolicyError: the folder cannot be written, or holds something else and no policy of hlogym.
        """
        arrays = {}
        for n, layer in enumerate(self.layers):
            arrays[f"{n}.weight"], arrays[f"{n}.bias"] = layer.weight, layer.bias
        description = {
            "format": FORMAT,
            "feature_version": FEATURE_VERSION,
            "passes": list(self.actions),
            "activations": [layer.activation for layer in self.layers],
            "budget": self.budget,
            "finish": self.finish,
            "completion": self.completion,
            "provenance": dict(self.provenance),
        }
        write_policy_folder(folder, description, arrays)


def load_pass_order(folder: Path) -> LearnedPassOrder:
    """The pass order in a folder.

    Raises:
        PolicyError: there is none, it is of another version, or its weights do not fit its passes.
    """
    told, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        return _order(told, weights)
    except KeyError as error:
        raise PolicyError(f"{folder} is not a usable pass order: {error} is missing") from error
    except (ValueError, HlogymError) as error:
        raise PolicyError(f"{folder} is not a usable pass order: {error}") from error


def _order(told: Mapping[str, Any], weights: Mapping[str, Array]) -> LearnedPassOrder:
    actions, activations = _texts(told, "passes"), _texts(told, "activations")
    layers = []
    for n, activation in enumerate(activations):
        if activation not in get_args(Activation):
            raise ValueError(f"layer {n} has the unknown activation {activation!r:.80}")
        layers.append(Layer(weights[f"{n}.weight"], weights[f"{n}.bias"], cast(Activation, activation)))
    completion = told.get("completion", "none")
    if completion not in get_args(Completion):
        raise ValueError(f"its completion is the unknown {completion!r:.80}")
    made = LearnedPassOrder(
        actions, tuple(layers), _limit(told, "budget"), _limit(told, "finish"), completion, told["provenance"]
    )
    _check(made)
    return made


def _texts(told: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = told[name]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"its {name} must be a list of texts")
    return tuple(value)


def _limit(told: Mapping[str, Any], name: str) -> int:
    value = told[name]
    if type(value) is not int or not 0 <= value <= MOST_APPLICATIONS:
        raise ValueError(f"its {name} must be a whole number from 0 to {MOST_APPLICATIONS}, not {value!r:.80}")
    return value


def _check(order: LearnedPassOrder) -> None:
    for text in order.actions:
        make_pass(text)
    size = observation_size(len(order.actions))
    for n, layer in enumerate(order.layers):
        if layer.weight.ndim != 2 or layer.weight.shape[1] != size or layer.bias.shape != layer.weight.shape[:1]:
            raise ValueError(f"layer {n} takes {layer.weight.shape[-1:]} numbers where {size} are expected")
        size = layer.weight.shape[0]
    if size != len(order.actions) + 1:
        raise ValueError(f"its network ranks {size} actions, and it has {len(order.actions)} passes and stop")
