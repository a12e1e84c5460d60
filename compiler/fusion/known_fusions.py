"""The fusions of instruction sequences, remembered: of two compilations that share a sequence, only one fuses it.

What a policy does with a sequence depends on this sequence alone, if the policy judges each fusion by the nodes around
it, as the default ones do. So a program whose loops were decided otherwise is fused again only where it differs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from compiler.analysis.body_digest import sequence_digest, sequence_loops
from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.analysis.trip_count import annotate_trip_counts
from compiler.codegen.build_target import BuildTarget
from compiler.fusion.actions import FusionAction
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule
from compiler.support.lru_dict import LruDict

MOST_KNOWN = 5_000
"""Fusions and timed instructions of all sequences that are remembered, some two megabytes."""


Made: TypeAlias = tuple[FusionAction, tuple[str, ...]]
"""An action, and the names of the fusions that it makes."""
_NAME = "fusion"


@dataclass(frozen=True)
class FusedSequence:
    """What a policy makes of a sequence.

    Attributes:
        steps: the fusions; what they make has names of its own, not those in a module, which depend on the other
            sequences.
        seconds: estimated time of each instruction afterwards that takes any, per run of the sequence; without loops.
    """

    steps: tuple[Made, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class FusedModule:
    """What a policy makes of the sequences of a module, by their names, and the estimated time of all of it."""

    sequences: Mapping[str, FusedSequence]
    seconds: float


class KnownFusions:
    """What one policy makes of the sequences of similar modules, for one device and target.

    Args:
        device: the device model that estimates costs.
        target: what kernels are built for.
        most: maximum number of fusions and timed instructions that are remembered.
    """

    def __init__(self, device: DeviceModel, target: BuildTarget, most: int = MOST_KNOWN) -> None:
        self._target, self._cost_model = target, CostModel(device)
        self._known: LruDict[bytes, FusedSequence] = LruDict(most, lambda _, s: 1 + len(s.steps) + len(s.seconds))

    def of(self, module: HloModule, policy: Callable[[], FusionPolicy]) -> FusedModule:
        """Return what a policy makes of the sequences of a module.

        Args:
            module: the module when fusion begins; its loops are annotated with their trip counts.
            policy: makes the policy, always the same.
        """
        annotate_trip_counts(module)
        weights = self._cost_model.weights(module)
        digests = {c.name: sequence_digest(c, weights) + str(w).encode() for c, w in weights.items()}
        found = {name: self._known.get(digest) for name, digest in digests.items()}
        missing = [name for name, known in found.items() if known is None]
        for name, fused in self._fused(module, policy(), missing) if missing else ():
            found[name] = self._known[digests[name]] = fused
        sequences = {name: known for name, known in found.items() if known is not None}
        parts = [
            (w, (*sequences[c.name].seconds, *self._times(sequence_loops(c, weights)))) for c, w in weights.items()
        ]
        return FusedModule(sequences, math.fsum(w * seconds for w, times in parts for seconds in times))

    def _fused(
        self, module: HloModule, policy: FusionPolicy, names: Iterable[str]
    ) -> Iterator[tuple[str, FusedSequence]]:
        state = FusionState(module.clone(), self._cost_model.device, target=self._target, only=frozenset(names))
        run_policy(state, policy)
        made = list(zip(state.history, state.made, strict=True))
        weights = self._cost_model.weights(state.module)
        for name, s in state.sequences.items():
            taken = {i.name for c in module.computations if c.name == name for i in c.instructions}
            steps = _renamed((step for step in made if step[0].computation == name), taken)
            loops = set(sequence_loops(s.computation, weights))
            timed = [i for i in s.computation.post_order() if i not in loops]
            yield name, FusedSequence(tuple(steps), self._times(timed))
        state.dismantle()

    def _times(self, instructions: Iterable[HloInstruction]) -> tuple[float, ...]:
        return tuple(filter(None, map(self._cost_model.instruction, instructions)))


def _renamed(steps: Iterable[Made], taken: Collection[str]) -> Iterator[Made]:
    """Yield steps of one sequence in which fusions are numbered as they are made, around names that are taken."""
    free = (f for f in map(f"{_NAME}.{{}}".format, itertools.count()) if f not in taken)
    names: dict[str, str] = {}
    for action, made in steps:
        nodes = action.producer, *action.consumers
        producer, *consumers = [names.get(n, n) for n in nodes]
        for name in made:
            if name not in nodes:  # else the fusion has grown
                names[name] = next(free)
        renamed = tuple(names.get(name, name) for name in made)
        yield replace(action, producer=producer, consumers=tuple(consumers)), renamed
