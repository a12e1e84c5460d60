"""FusionState: a module whose fusions are being chosen, with the legal actions kept up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.analysis.trip_count import annotate_trip_counts
from compiler.errors import FusionError
from compiler.fusion.actions import FusionAction, FusionKind
from compiler.fusion.legality import Limits
from compiler.fusion.sequence import Sequence
from compiler.ir import HloInstruction, HloModule, Opcode


class FusionState:
    """The fusions of one module: what is legal now, what has been done, what it should cost.

    The module is changed in place. The same actions on the same module give the same module, names included.

    Attributes:
        module: the module as it stands.
        history: the actions applied so far. made: the names of the fusions that each of them made.
        sequences: by computation name, every sequence that control flow reaches (entry, loops, branches), callees
            first.
    """

    def __init__(self, module: HloModule, device: DeviceModel | None = None, limits: Limits | None = None) -> None:
        annotate_trip_counts(module)
        self.module = module
        self.limits = limits or Limits()
        self.cost_model = CostModel(device)
        self.history: list[FusionAction] = []
        self.made: list[tuple[str, ...]] = []
        weights = self.cost_model.weights(module)
        self.sequences: dict[str, Sequence] = {
            c.name: Sequence(c, weights[c], self.cost_model, self.limits) for c in weights
        }

    # ---- what may be done

    def actions(self, kinds: Iterable[FusionKind] | None = None) -> list[FusionAction]:
        """The legal actions, sequence by sequence, each by consumer in topological order.

        Of siblings and horizontal pairs only neighbours are offered (the next fusible user of the same value, the next
        instruction of the same shape), so the list grows with the module; `why_not` judges any other pair.
        """
        found = [a for s in self.sequences.values() for a in s.actions()]
        if kinds is None:
            return found
        wanted = frozenset(kinds)
        return [a for a in found if a.kind in wanted]

    def why_not(self, action: FusionAction) -> str | None:
        """The reason an action is refused, or None when it is legal now."""
        sequence = self.sequences.get(action.computation)
        if sequence is None:
            return f"there is no sequence %{action.computation}"
        return sequence.decide(action).reason

    def estimate(self, action: FusionAction) -> float:
        """Seconds a legal action saves in one run of the module, by the cost model; negative when it loses."""
        sequence = self.sequences[action.computation]
        return sequence.saving(action) * sequence.weight

    # ---- doing it

    def apply(self, action: FusionAction) -> HloInstruction:
        """Fuse; returns the fusion instruction (the last one made, for a producer put into all users).

        Raises:
            FusionError: the action is not legal; the message says why.
        """
        reason = self.why_not(action)
        if reason is not None:
            raise FusionError(f"cannot apply {action}: {reason}")
        made = self.sequences[action.computation].apply(action)
        self.history.append(action)
        self.made.append(tuple(f.name for f in made))
        return made[-1]

    def seconds(self) -> float:
        """Estimated time of one run of the module as it stands."""
        return sum(s.seconds() * s.weight for s in self.sequences.values())

    def instructions(self) -> Iterator[tuple[Sequence, HloInstruction]]:
        """Every instruction of every sequence, with its sequence, in topological order."""
        for s in self.sequences.values():
            for i in s.nodes():
                yield s, i

    def find(self, computation: str, name: str) -> HloInstruction:
        """An instruction by name; FusionError when it is not there."""
        sequence = self.sequences.get(computation)
        found = None if sequence is None else sequence.computation.find(name)
        if found is None:
            raise FusionError(f"there is no instruction %{name} in computation %{computation}")
        return found

    def kernels(self) -> list[HloInstruction]:
        """The fusions made so far, sequence by sequence."""
        return [i for _, i in self.instructions() if i.opcode is Opcode.FUSION]

    def fork(self) -> FusionState:
        """An independent copy that goes on from here."""
        other = FusionState.__new__(FusionState)
        other.module = self.module.clone()
        other.limits, other.cost_model = self.limits, self.cost_model
        other.history, other.made = list(self.history), list(self.made)
        other.sequences = {}
        for name, s in self.sequences.items():
            computation = other.module.find(name)
            if computation is None:
                raise ValueError(f"the clone lacks computation %{name}")
            other.sequences[name] = s.copy_for(computation)
        return other
