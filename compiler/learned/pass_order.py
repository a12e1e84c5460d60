"""A learned pass order, exported as a folder: a pass like any other, run with NumPy only.

The folder (see `compiler.learned.policy_folder`) lists the passes, the layers of the network and the limits.
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
from compiler.support.paths import given_path

__all__ = ["FORMAT", "Layer", "LearnedPassOrder", "load_pass_order"]

FORMAT = "hlogym-pass-order"
Activation: TypeAlias = Literal["tanh", "relu", "none"]
Completion: TypeAlias = Literal["none", "fewer-ops", "default"]
Array = npt.NDArray[np.float32]
MOST_APPLICATIONS = 1_000_000
"""Greatest number of applications; a file that asks for more is damaged."""


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
    """Applies the pass that its network ranks highest, among those not known to be idle, until stop ranks highest.

    Afterwards the other passes are tried in the network's order, up to `finish` applications, and each is kept if it
    leaves no more ops: the network stops when little is left to gain, and this step gains it. `completion` says
    whether the default pipeline follows: "none", where it leaves "fewer-ops", or always ("default").

    Attributes:
        actions: the passes as text, in the order of the network's outputs.
        layers: of the network; the last has one output per pass and one for stop.
        budget: greatest number of applications until it stops.
        finish: greatest number of applications after that.
        completion: when the default pipeline follows.
        provenance: how the policy was made, as recorded in its folder.
        name: the name in statistics.
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
        """The passes it chooses from."""
        return tuple(make_pass(text) for text in self.actions)

    def scores(self, observation: Array) -> Array:
        """Return one score per pass and one for stop; greater is better."""
        x = observation
        for layer in self.layers:
            x = layer(x)
        return x

    def choose(self, episode: PassEpisode, rng: np.random.Generator | None = None) -> int:
        """Return the best action, or one drawn from the policy's distribution if there is an `rng`."""
        return self._best(episode, episode.mask(), rng)

    def _best(self, episode: PassEpisode, mask: npt.NDArray[np.bool_], rng: np.random.Generator | None = None) -> int:
        scores = self.scores(episode.observation())
        if rng is not None:
            # The greatest of scores with Gumbel noise added is a draw from their softmax.
            scores = scores + rng.gumbel(size=scores.shape).astype(np.float32)
        return int(np.argmax(np.where(mask, scores, -np.inf)))

    def follow(self, graph: PassGraph, rng: np.random.Generator | None = None, limit: int | None = None) -> PassEpisode:
        """Run a whole episode and return it.

        Args:
            graph: states of a program under this policy's actions.
            rng: draw actions until stop instead of taking the best ones.
            limit: greatest number of applications in total; None: `budget + finish`.
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
        """Choose and run passes; return whether anything changed."""
        return PipelineRun().run(self, module)

    def run_within(self, run: PipelineRun, module: HloModule) -> bool:
        """Choose passes on copies, then run those that changed something as a part of `run`."""
        episode = self.follow(PassGraph(module, self.actions))
        passes = episode.effective()
        if self.completion == "fewer-ops":
            passes += complete(episode.state.module, episode.state.ops).passes
        changed = False
        for text in passes:
            changed |= run.apply(make_pass(text), module)
        if self.completion == "default":
            changed |= run.apply(default_pipeline(), module)
        return changed

    def save(self, folder: Path) -> None:
        """Write the policy folder; a policy that is there is replaced, other files are left.

        Raises:
            PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
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


def load_pass_order(folder: str | Path) -> LearnedPassOrder:
    """Read the pass order of a folder.

    Raises:
        PolicyError: there is none, it is of another version, or its weights do not fit its passes.
    """
    folder = given_path(folder, "a pass order", PolicyError)
    data, weights = read_policy_folder(folder, FORMAT, FEATURE_VERSION)
    try:
        return _order(data, weights)
    except KeyError as error:
        raise PolicyError(f"{folder} is not a usable pass order: {error} is missing") from error
    except (ValueError, HlogymError) as error:
        raise PolicyError(f"{folder} is not a usable pass order: {error}") from error


def _order(data: Mapping[str, Any], weights: Mapping[str, Array]) -> LearnedPassOrder:
    actions, activations = _strings(data, "passes"), _strings(data, "activations")
    layers = []
    for n, activation in enumerate(activations):
        if activation not in get_args(Activation):
            raise ValueError(f"layer {n} has the unknown activation {activation!r:.80}")
        layers.append(Layer(weights[f"{n}.weight"], weights[f"{n}.bias"], cast(Activation, activation)))
    completion = data.get("completion", "none")
    if completion not in get_args(Completion):
        raise ValueError(f"its completion is the unknown {completion!r:.80}")
    made = LearnedPassOrder(
        actions, tuple(layers), _limit(data, "budget"), _limit(data, "finish"), completion, data["provenance"]
    )
    _check(made)
    return made


def _strings(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data[name]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"its {name} must be a list of strings")
    return tuple(value)


def _limit(data: Mapping[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or not 0 <= value <= MOST_APPLICATIONS:
        raise ValueError(f"its {name} must be an integer from 0 to {MOST_APPLICATIONS}, not {value!r:.80}")
    return value


def _check(order: LearnedPassOrder) -> None:
    for text in order.actions:
        make_pass(text)
    size = observation_size(len(order.actions))
    for n, layer in enumerate(order.layers):
        if layer.weight.ndim != 2 or layer.weight.shape[1] != size or layer.bias.shape != layer.weight.shape[:1]:
            raise ValueError(f"layer {n} takes {layer.weight.shape[-1:]} inputs instead of {size}")
        size = layer.weight.shape[0]
    if size != len(order.actions) + 1:
        raise ValueError(
            f"its network has {size} outputs instead of one for each of {len(order.actions)} passes and one for stop"
        )
