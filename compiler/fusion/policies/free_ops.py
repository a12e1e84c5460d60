"""A policy that fuses a kernel with the readers of a reshape of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from compiler.fusion.actions import FusionAction
from compiler.fusion.policies.queue import all_users_action
from compiler.fusion.policies.savings import LEAST_SAVING
from compiler.fusion.policies.walk import Walk, nodes_of
from compiler.fusion.rewriting import consumers_of, producers_of
from compiler.fusion.sequence import SequenceState
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction
from compiler.ir.opcodes import Opcode


@dataclass(eq=False)
class ThroughFreeOps(Walk):
    """Fuses a producer with the users of an op that costs nothing, such as a reshape, where both fusions save time.

    Neither the fusion of the producer with the free op nor that of the free op with its users saves time, so policies
    that look at one fusion at a time keep two kernels. This one looks at both: it tries to fuse the free op into its
    users, and keeps that if the producer should then be fused as well.

    Args:
        slices: whether to look only at producers that are slices.
    """

    slices: bool = False

    def steps(self, state: FusionState) -> Iterator[FusionAction]:
        """Yield pairs of actions: a free op into its users, and its producer into these."""
        for sequence in state.sequences.values():
            for free in reversed(nodes_of(sequence)):  # users first: chains of kernels become one
                if self.slices and not any(o.opcode is Opcode.SLICE for o in free.operands):
                    continue
                producer = _producer(sequence, free)
                if producer is None:
                    continue
                action = all_users_action(sequence, free)
                # Negative where a library computes a user, which the fusion would make a generated kernel.
                saved = sequence.estimates.into_all(free, consumers_of(free))
                # Kernels are made last.
                if not _after(state, action, partial(_would_save, sequence, producer, saved)):
                    continue
                if not sequence.can_go_into_all_users(free, sequence.consumers(free)):
                    continue
                if _after(state, action, partial(_can_go, sequence, producer)):
                    yield action
                    yield all_users_action(sequence, producer)


def _after(state: FusionState, action: FusionAction, question: Callable[[], bool]) -> bool:
    """Return the answer to a question after an action, which is taken back."""
    state.apply_unchecked(action)
    try:
        return question()
    finally:
        state.undo()


def _producer(sequence: SequenceState, free: HloInstruction) -> HloInstruction | None:
    """Return the kernel whose result a free op reads, if the op may go into its users; else None."""
    if free.parent is None or free not in sequence.nodes or sequence.time_of(free) > 0 or len(free.operands) != 1:
        return None
    users = consumers_of(free)
    found = [p for p in producers_of(free) if sequence.time_of(p) > 0 and sequence.legality.refusal_of(p) is None]
    if not users or not found or sequence.legality.refusal_of(free) is not None:
        return None
    if not _may_save(sequence, found[0], free, users):
        return None
    return found[0] if sequence.may_go_into_all_users(free, users) else None


def _may_save(
    sequence: SequenceState, producer: HloInstruction, free: HloInstruction, users: list[HloInstruction]
) -> bool:
    """Check for a bound of what fusing a producer and a free op into all their users saves, without making kernels."""
    others = [u for u in consumers_of(producer) if u is not free and u not in users]
    if others and not sequence.may_go_into_all_users(producer, others):
        return False
    lost = sum(sequence.estimates.edge(producer, u) for u in others)
    most = sequence.time_of(producer) + sum(sequence.time_of(u) for u in users)
    return most + lost + sequence.estimates.unused_constants([producer, *others, *users]) > LEAST_SAVING


def _would_save(sequence: SequenceState, producer: HloInstruction, already: float) -> bool:
    """Check whether fusing a producer into all its users saves time, also after what was lost already."""
    users = consumers_of(producer)
    if not users or not sequence.may_go_into_all_users(producer, users):
        return False
    return sequence.estimates.into_all(producer, users) + min(0.0, already) > LEAST_SAVING


def _can_go(sequence: SequenceState, producer: HloInstruction) -> bool:
    """Check whether there are kernels that compute a producer within its users."""
    return sequence.can_go_into_all_users(producer, consumers_of(producer))
