"""The states of a program under passes, for policies that choose their order: explored lazily, shared, immutable.

A state is the module after some passes. Applying a pass to a state gives another state, or the same state when the pass
changes nothing. Applications are cached, and sequences of passes that lead to the same module lead to the same state.
So forks are cheap, an episode that repeats the decisions of an earlier one runs no pass, and a search can compare
alternatives without undoing anything. Memory is bounded: the least recently used states are dropped, and computed again
when they are reached again. Modules are much larger than what else is known of a state, so fewer of them are kept; the
others are made again from those before them when a pass is to run on them.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
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
INSTRUCTION_BYTES = 1000  # of an instruction with its operands, users and shape, in Python
COLLECTED_BYTES = 32 << 20  # dropped before a full garbage collection is worth its time
STATE_BYTES = 8000  # of a state without its module: observation, edges, a plan
MODULE_SHARE = 0.5  # of the memory, for modules


def default_pass_actions() -> tuple[str, ...]:
    """Return the passes of the default pipeline as text, sorted, each once and with one sweep per application."""
    single = (*leaves(xla_order()), make_pass("computation-deduplication"))
    return tuple(f"{text}@1" for text in sorted({pass_text(p) for p in single}))


@dataclass(frozen=True, eq=False)
class _Path:
    """The passes that led to a state: the last one, the key of what it made, and those before it."""

    before: _Path | None
    action: int
    key: str


@dataclass(eq=False)
class PassState:
    """A program after some passes.

    Attributes:
        key: hash of its text.
        ops: its `op_count`.
        notes: facts that users of the state have computed, by names of their choice.
    """

    key: str
    ops: int
    _graph: PassGraph
    _path: _Path | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    _next: dict[int, str] = field(default_factory=dict)  # keys, so that a state keeps no other one alive

    @property
    def module(self) -> HloModule:
        """The program, which must not be changed; it may be made again."""
        return self._graph.module_at(self._path)


class StateMemory(LruDict[tuple[int, str], PassState]):
    """States by the number of their graph and their key; several graphs may share one memory.

    Args:
        limit: estimated bytes of all states and modules together.

    Attributes:
        modules: the modules of some of them.
    """

    def __init__(self, limit: float = MEMORY_BYTES) -> None:
        super().__init__(limit, lambda _, s: STATE_BYTES / (1 - MODULE_SHARE))
        self.modules: LruDict[tuple[int, str], HloModule] = LruDict(
            limit, lambda _, m: INSTRUCTION_BYTES * m.instruction_count
        )
        self._collected = 0.0

    def put_module(self, key: tuple[int, str], module: HloModule) -> None:
        """Set the module of a state, and collect garbage when many have been dropped since the last collection.

        Modules contain reference cycles, and Python seldom runs a full collection in a process with many objects.
        """
        self.modules.limit = MODULE_SHARE * self.limit
        self.modules[key] = module
        if self.modules.dropped - self._collected > max(self.modules.limit, COLLECTED_BYTES):
            self._collected = self.modules.dropped
            gc.collect()


_numbers = itertools.count()


class PassGraph:
    """The states of one program.

    Args:
        module: the program at the start; it is copied.
        actions: passes as text; an action is an index into them.
        verified: verify each module that a pass has changed.
        memory: where states are stored; None: a memory of its own.

    Raises:
        UnknownNameError: no such pass.

    Attributes:
        root: the state at the start.
        runs: number of passes that were run.
        remembered: number of applications that were answered from memory.
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
        self._start = module.clone()
        self.root = PassState(self._start.fingerprint(), op_count(self._start), self)

    def apply(self, state: PassState, action: int) -> PassState:
        """Return the state after a pass; `state` itself when the pass changes nothing.

        Raises:
            HloVerificationError: the graph verifies modules, and the pass made an invalid one.
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
        """Return the state with a key, or None when it was dropped; `state` itself and the root are never dropped."""
        if key == state.key:
            return state
        return self.root if key == self.root.key else self._memory.get((self._number, key))

    def _run(self, state: PassState, action: int) -> PassState:
        module = self._copy(state)
        if not self._passes[action].run(module):
            self._spare = (state, module)  # unchanged, so it serves as the next copy
            return state
        module.reorder()  # as a pipeline does, so that plans replay to the same module
        if self._verified:
            reverify(module)
        key = module.fingerprint()
        known = self._known(state, key)
        path = _Path(state._path, action, key)
        if known is None:
            known = self._memory[self._number, key] = PassState(key, op_count(module), self, path)
        if known is not self.root:
            self._memory.put_module((self._number, key), module)
        return known

    def module_at(self, path: _Path | None) -> HloModule:
        """Return the module after some passes; those that are not known are run again."""
        missing: list[_Path] = []
        module: HloModule | None = None
        while path is not None and (module := self._memory.modules.get((self._number, path.key))) is None:
            missing.append(path)
            path = path.before
        module = self._start if module is None else module
        for step in reversed(missing):
            module = module.clone()
            self._passes[step.action].run(module)
            module.reorder()
        if missing:
            self._memory.put_module((self._number, missing[0].key), module)
        return module

    def _copy(self, state: PassState) -> HloModule:
        spare, self._spare = self._spare, None
        return spare[1] if spare is not None and spare[0] is state else state.module.clone()
