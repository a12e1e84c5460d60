"""States of a program under passes, for whoever chooses their order: explored lazily, shared, never changed.

A state is a module as some passes have left it. Applying a pass to a state gives another state, or the same one when
the pass found nothing; what has been applied once is remembered, and sequences that lead to the same text lead to the
same state. So a fork costs nothing, an episode that repeats decisions of an earlier one runs no pass, and a search
can weigh alternatives without undoing anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.collector import collector_paused
from compiler.ir import HloModule
from compiler.ir.reverifier import reverify
from compiler.passes.base import HloPass, op_count
from compiler.passes.default import xla_order
from compiler.passes.pipeline import leaves
from compiler.passes.registry import make_pass, pass_text

__all__ = ["PassGraph", "PassState", "default_pass_actions"]

MAX_INSTRUCTIONS = 300_000
"""What a graph keeps in all its states, some 300 MB; past it, it forgets everything but the start."""


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
    _next: dict[int, PassState] = field(default_factory=dict)


class PassGraph:
    """The states of one program.

    Args:
        module: the start; it is copied.
        actions: texts of passes; a pass is called by its index here.
        verified: check each module that a pass has changed; a state is checked once, however often it is reached.

    Raises:
        UnknownNameError: no such pass.

    Attributes:
        root: the start.
        runs: how many passes have run, and how many applications were remembered.
    """

    def __init__(self, module: HloModule, actions: Sequence[str], verified: bool = False) -> None:
        self.actions = tuple(actions)
        self._passes: tuple[HloPass, ...] = tuple(make_pass(text) for text in actions)
        self._verified = verified
        self.runs, self.remembered = 0, 0
        self._spare: tuple[PassState, HloModule] | None = None
        start = module.clone()
        self.root = PassState(start, start.fingerprint(), op_count(start))
        self._forget()

    def _forget(self) -> None:
        self.root._next.clear()
        self._states = {self.root.key: self.root}
        self._kept = self.root.module.instruction_count

    def apply(self, state: PassState, action: int) -> PassState:
        """The state after a pass; `state` itself when the pass changes nothing there.

        Raises:
            HloVerificationError: the graph verifies, and the pass broke a rule.
        """
        found = state._next.get(action)
        if found is not None:
            self.remembered += 1
            return found
        self.runs += 1
        with collector_paused():
            found = state._next[action] = self._run(state, action)
        return found

    def _run(self, state: PassState, action: int) -> PassState:
        module = self._copy(state)
        if not self._passes[action].run(module):
            self._spare = (state, module)  # as good as new
            return state
        module.reorder()  # as a pipeline does, so that plans replay alike; and nobody has to sort this state again
        if self._verified:
            reverify(module)
        key = module.fingerprint()
        known = self._states.get(key)
        if known is not None:
            return known
        if self._kept > MAX_INSTRUCTIONS:
            self._forget()
        self._kept += module.instruction_count
        made = self._states[key] = PassState(module, key, op_count(module))
        return made

    def _copy(self, state: PassState) -> HloModule:
        spare, self._spare = self._spare, None
        return spare[1] if spare is not None and spare[0] is state else state.module.clone()
