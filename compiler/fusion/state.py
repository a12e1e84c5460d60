"""FusionState: a module whose fusions are being chosen, with its legal actions."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.analysis.trip_count import annotate_trip_counts
from compiler.codegen.build_target import C_TARGET, BuildTarget
from compiler.errors import FusionError, UnknownNameError
from compiler.fusion.actions import FUSING_KINDS, KINDS, SPLITTING_KINDS, FusionAction, FusionKind
from compiler.fusion.digests import DIGEST_BYTES, Digests
from compiler.fusion.legality import Limits
from compiler.fusion.rules import Restrictions
from compiler.fusion.sequence import SequenceState, Step
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.printing import canonical_computations


class FusionState:
    """The fusions of one module: what is legal now, what has been done, and what the module should cost.

    The module is changed in place. The same actions on the same module give the same module, names included.

    Args:
        module: the module; it is changed.
        device: the device model that estimates costs.
        limits: of the size of one kernel.
        target: the backend for which every kernel must be buildable; None: C with its defaults.
        only: names of the sequences whose fusions are chosen; None: all.

    Attributes:
        module: the module in its current form.
        target: what every kernel must be buildable for.
        history: the actions applied so far.
        made: the names of the fusions that each action of `history` made.
        sequences: by computation name, every sequence that control flow reaches (entry, loops, branches), callees
            first, in an order that depends on the graph alone.
        undone: how many actions have been taken back; policies that keep data about a state start again when it
            changes.
    """

    def __init__(
        self,
        module: HloModule,
        device: DeviceModel | None = None,
        limits: Limits | None = None,
        target: BuildTarget | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        annotate_trip_counts(module)
        self.module, self.target = module, target or C_TARGET
        self.limits = limits or Limits()
        self.cost_model = CostModel(device)
        self.history: list[FusionAction] = []
        self.made: list[tuple[str, ...]] = []
        self.undone = 0
        self._journal: list[tuple[SequenceState, Step]] = []
        weights = self.cost_model.weights(module)
        self.sequences: dict[str, SequenceState] = {
            c.name: SequenceState(c, weights[c], self.cost_model, self.limits, self.target)
            for c in canonical_computations(module.entry)
            if c in weights and (only is None or c.name in only)
        }
        self._base: bytes | None = None

    # ---- queries

    def actions(self, kinds: Iterable[FusionKind] | None = None) -> list[FusionAction]:
        """Return the legal actions, sequence by sequence, in an order that depends on the fusions alone.

        After an action or `undo` only what these changed is looked at again; the rest is copied.

        Of siblings and horizontal pairs only neighbours are listed (the next fusible user of the same value, the next
        instruction of the same shape, the next instruction if it has another shape), so the length of the list is
        linear in the size of the module. `why_not` judges any other pair.

        Args:
            kinds: the kinds of actions to list; None: those that make fusions, and none that take them apart.

        Raises:
            UnknownNameError: there is no such kind.
        """
        wanted = _checked(kinds)
        splits = not SPLITTING_KINDS.isdisjoint(wanted)
        return _of_kinds((a for s in self.sequences.values() for a in s.actions(splits)), wanted)

    def candidates(self, kinds: Iterable[FusionKind] | None = None) -> list[FusionAction]:
        """Return the legal actions, in the order of `actions`, and others that fail only when their kernel is made.

        They are listed much faster than `actions`, because no kernels are made. A policy that drops most actions by
        their estimates asks `why_not` only about the rest.
        """
        wanted = _checked(kinds)
        splits = not SPLITTING_KINDS.isdisjoint(wanted)
        return _of_kinds((a for s in self.sequences.values() for a in s.candidates(splits)), wanted)

    def weighed_candidates(self, kinds: Iterable[FusionKind] | None = None) -> list[tuple[FusionAction, float]]:
        """Return `candidates`, each with its `estimate`; after an action only what it changed is estimated again."""
        wanted = _checked(kinds)
        splits = not SPLITTING_KINDS.isdisjoint(wanted)
        found = ((a, v * s.weight) for s in self.sequences.values() for a, v in s.weighed_candidates(splits))
        return [(a, v) for a, v in found if a.kind in wanted]

    def why_not(self, action: FusionAction) -> str | None:
        """Return the reason why an action is refused, or None when it is legal now."""
        sequence = self.sequences.get(action.computation)
        if sequence is None:
            return f"there is no sequence %{action.computation}"
        return sequence.decide(action).reason

    def is_legal(self, action: FusionAction) -> bool:
        """Check whether `why_not` has no reason; faster, because no reason is stated."""
        sequence = self.sequences.get(action.computation)
        return sequence is not None and sequence.is_legal(action)

    def is_possible(self, action: FusionAction) -> bool:
        """Check whether at most its kernels speak against an action now; `is_legal` makes them."""
        sequence = self.sequences.get(action.computation)
        return sequence is not None and sequence.is_possible(action)

    def estimate(self, action: FusionAction) -> float:
        """Return the seconds that a possible action saves per run of the module by the cost model, or loses if < 0."""
        sequence = self.sequences[action.computation]
        return sequence.saving(action) * sequence.weight

    def seconds(self) -> float:
        """Return the estimated time of one run of the module in its current form."""
        return sum(s.seconds() * s.weight for s in self.sequences.values())

    @property
    def fingerprint(self) -> str:
        """A digest of the module with its fusions, 32 hexadecimal digits, the same in every process.

        Two states of a module are equal in it if and only if their fusions are equal up to names and the order of
        parameters and outputs, whatever actions led to them.
        """
        sequences = b"".join(s.digest().to_bytes(DIGEST_BYTES, "little") for s in self.sequences.values())
        return blake2b(self._start_digest() + sequences, digest_size=DIGEST_BYTES).hexdigest()

    def _start_digest(self) -> bytes:
        """Return the digest of what the module computes, which fusions do not change."""
        if self._base is None:
            self._base = Digests().module(self.module)
        return self._base

    def instructions(self) -> Iterator[tuple[SequenceState, HloInstruction]]:
        """Yield every instruction of every sequence, with its sequence, in topological order."""
        for s in self.sequences.values():
            for i in s.instructions():
                yield s, i

    def find(self, computation: str, name: str) -> HloInstruction:
        """Return an instruction by name; raise FusionError when there is none."""
        sequence = self.sequences.get(computation)
        found = None if sequence is None else sequence.computation.find(name)
        if found is None:
            raise FusionError(f"there is no instruction %{name} in computation %{computation}")
        return found

    def fusions(self) -> list[HloInstruction]:
        """Return the fusion instructions of the module, sequence by sequence."""
        return [i for _, i in self.instructions() if i.opcode is Opcode.FUSION]

    # ---- changes

    def restrict(self, restrictions: Restrictions) -> None:
        """Make fusions illegal that rules of the user forbid; rules given before no longer hold."""
        for s in self.sequences.values():
            s.restrict(restrictions)

    def apply(self, action: FusionAction) -> HloInstruction:
        """Apply an action and return the fusion instruction; for a producer fused into all users, the last one.

        Raises:
            FusionError: the action is not legal; the message says why.
        """
        reason = self.why_not(action)
        if reason is not None:
            raise FusionError(f"cannot apply {action}: {reason}")
        return self.apply_unchecked(action)

    def apply_unchecked(self, action: FusionAction) -> HloInstruction:
        """Apply an action as `apply` does, without asking whether its kernels can be made.

        So it is known at little cost what would follow from the action. If there may be no kernel, take it back.
        """
        sequence = self.sequences[action.computation]
        sequence.begin()
        made = sequence.apply(action)
        self._journal.append((sequence, sequence.end()))
        self.history.append(action)
        self.made.append(tuple(f.name for f in made))
        return made[-1]

    @property
    def can_undo(self) -> int:
        """Number of actions that `undo` can take back: those since the state or its fork was made."""
        return len(self._journal)

    def last_changed(self) -> tuple[list[HloInstruction], list[HloInstruction]]:
        """Return the nodes that the last action removed or changed, and those that it made or changed.

        The former are instructions of the module again after `undo`.

        Raises:
            FusionError: nothing was done since the state, or the fork that it is, was made.
        """
        if not self._journal:
            raise FusionError("there is no fusion to look at: none was made since this state, or its fork, was made")
        sequence, step = self._journal[-1]
        former = dict.fromkeys(i for i, _, values in step.nodes if values)
        # What a step made and changed again is saved twice, and was no node before it.
        made = {i for i, revision, _ in step.nodes if revision is None}
        return [i for i in former if i not in made], [i for i in dict.fromkeys(step.changed) if i in sequence.nodes]

    def undo(self) -> FusionAction:
        """Take back the last action and return it; the module has its former text, names included.

        It takes time proportional to what the action changed.

        Raises:
            FusionError: nothing was done since the state, or the fork that it is, was made.
        """
        if not self._journal:
            raise FusionError("there is no fusion to undo: none was made since this state, or its fork, was made")
        sequence, step = self._journal.pop()
        sequence.undo(step)
        self.made.pop()
        self.undone += 1
        return self.history.pop()

    def dismantle(self) -> None:
        """Take the state and its module apart, so that their memory is freed at once; see `HloModule.dismantle`.

        Forks stay as they are.
        """
        for s in self.sequences.values():
            s.dismantle()
        self.sequences, self._journal = {}, []
        self.module.dismantle()

    def fork(self) -> FusionState:
        """Return an independent copy, which cannot undo what was done before; `undo` is faster than forks."""
        other = copy.copy(self)
        other._journal = []
        other.module = self.module.clone()
        other.history, other.made = list(self.history), list(self.made)
        other.sequences = {}
        for name, s in self.sequences.items():
            computation = other.module.find(name)
            if computation is None:
                raise ValueError(f"the clone lacks computation %{name}")
            other.sequences[name] = s.copy_for(computation)
        return other


def _checked(kinds: Iterable[FusionKind] | None) -> frozenset[FusionKind]:
    """Return the kinds; None: those that make fusions."""
    wanted = frozenset(FUSING_KINDS if kinds is None else kinds)
    for kind in wanted.difference(KINDS):
        raise UnknownNameError("kind of fusion", kind, KINDS)
    return wanted


def _of_kinds(actions: Iterable[FusionAction], wanted: frozenset[FusionKind]) -> list[FusionAction]:
    return list(actions) if wanted.issuperset(FUSING_KINDS) else [a for a in actions if a.kind in wanted]
