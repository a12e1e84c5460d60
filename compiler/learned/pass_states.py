"""States of a program under passes, for whoever chooses their order: explored lazily, shared, never changed.

A state is a module as some passes have left it. Applying a pass to a state gives another state, or the same one when
the pass found nothing; what has been applied once is remembered, and sequences that lead to the same text lead to the
same state. So a fork costs nothing, an episode that repeats decisions of an earlier one runs no pass, and a search
can weigh alternatives without undoing anything. What is remembered is bounded: states that were not used for the
longest time are forgotten and, when they are reached again, made again.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.ir import HloModule
from compiler.ir.reverifier import reverify
from compiler.passes.infrastructure.base import HloPass, op_count
from compiler.passes.infrastructure.pipeline import leaves
from compiler.passes.infrastructure.registry import make_pass, pass_text
from compiler.passes.pipelines.default import xla_order
from compiler.support.gc_pause import gc_paused
from compiler.support.lru_dict import LruDict

__all__ = ["PassGraph", "PassState", "StateMemory", "default_pass_actions"]

MEMORY_BYTES = 300 << 20
INSTRUCTION_BYTES = 1000  # an instruction with its share of everything around it, as Python keeps them
COLLECTED_BYTES = 32 << 20  # forgotten before it is worth to look for all garbage there is
STATE_BYTES = 8000  # what a state has besides: its vector, its edges, a plan


def default_pass_actions() -> tuple[str, ...]:
    """The single passes that the default pipeline is made of, each once and one sweep an application, by name."""
    single = (*leaves(xla_order()), make_pass("computation-deduplication"))
    return tuple(f"{text}@1" for text in sorted({pass_text(p) for p in single}))


@dataclass(eq=False)
class PassState:
    """A program as some passes have left it; nobody changes `module`.

    Attributes:
        module: the program.
        key: hash of its text.
        ops: what `op_count` says of it.
        notes: facts that users of the state have worked out, by their names for them.
    """

    module: HloModule
    key: str
    ops: int
    notes: dict[str, Any] = field(default_factory=dict)
    _next: dict[int, str] = field(default_factory=dict)  # keys, so that a state keeps no other one alive


class StateMemory(LruDict[tuple[int, str], PassState]):
    """States by the number of their graph and their key; several graphs may share one memory.

    Args:
        limit: bytes of all states together, by estimate.
    """

    def __init__(self, limit: float = MEMORY_BYTES) -> None:
        super().__init__(limit, lambda _, s: STATE_BYTES + INSTRUCTION_BYTES * s.module.instruction_count)
        self._collected = 0.0

    def put(self, key: tuple[int, str], value: PassState, kept: Collection[tuple[int, str]] = ()) -> None:
        """As any mapping; memory of what is forgotten is given back now and then.

        Modules are full of cycles, and a program with millions of objects makes Python look for them seldom.
        """
        super().put(key, value, kept)
        if self.dropped - self._collected > max(self.limit / 2, COLLECTED_BYTES):
            self._collected = self.dropped
            gc.collect()


_numbers = itertools.count()


class PassGraph:
    """The states of one program.

    Args:
        module: the start; it is copied.
        actions: texts of passes; a pass is called by its index here.
        verified: check each module that a pass has changed.
        memory: where states are kept; None: one of the graph's own.

    Raises:
        UnknownNameError: no such pass.

    Attributes:
        root: the start.
        runs: how many passes have run, and how many applications were remembered.
    """

    def __init__(
        self, module: HloModule, actions: Sequence[str], verified: bool = False, memory: StateMemory | None = None
    ) -> None:
        self.actions = tuple(actions)
        self._passes: tuple[HloPass, ...] = tuple(make_pass(text) for text in actions)
        self._verified = verified
        self.runs, self.remembered = 0, 0
        self._spare: tuple[PassState, HloModule] | None = None
        self._memory = StateMemory() if memory is None else memory
        self._number = next(_numbers)
        start = module.clone()
        self.root = PassState(start, start.fingerprint(), op_count(start))

    def apply(self, state: PassState, action: int) -> PassState:
        """The state after a pass; `state` itself when the pass changes nothing there.

        Raises:
            HloVerificationError: the graph verifies, and the pass broke a rule.
        """
        key = state._next.get(action)
        found = None if key is None else self._known(state, key)
        if found is not None:
            self.remembered += 1
            return found
        self.runs += 1
        with gc_paused():
            found = self._run(state, action)
        state._next[action] = found.key
        return found

    def _known(self, state: PassState, key: str) -> PassState | None:
        """The state of that key, unless it was forgotten; the one that is at hand is never forgotten."""
        if key == state.key:
            return state
        return self.root if key == self.root.key else self._memory.get((self._number, key))

    def _run(self, state: PassState, action: int) -> PassState:
        module = self._copy(state)
        if not self._passes[action].run(module):
            self._spare = (state, module)  # as good as new
            return state
        module.reorder()  # as a pipeline does, so that plans replay alike; and nobody has to sort this state again
        if self._verified:
            reverify(module)
        key = module.fingerprint()
        known = self._known(state, key)
        if known is None:
            known = self._memory[self._number, key] = PassState(module, key, op_count(module))
        return known

    def _copy(self, state: PassState) -> HloModule:
        spare, self._spare = self._spare, None
        return spare[1] if spare is not None and spare[0] is state else state.module.clone()
