"""The states of a program under passes, for policies that choose their order: explored lazily, shared, immutable.

A state is the module after some passes. Applying a pass to a state gives another state, or the same state when the pass
changes nothing. Applications are cached, and sequences of passes that lead to the same module lead to the same state.
So forks are cheap, an episode that repeats the decisions of an earlier one runs no pass, and a search can compare
alternatives without undoing anything. Pipelines run over states, too (`PassGraph.run`): what follows a state that is
known is looked up. Memory is bounded: the least recently used states are dropped, and computed again when they are
reached again. Modules are much larger than what else is known of a state, so fewer of them are kept; the others are
made again from those before them when a pass is to run on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from compiler.ir import HloModule
from compiler.ir.reverifier import reverify
from compiler.passes.infrastructure.base import HloPass, Swept, op_count
from compiler.passes.infrastructure.pipeline import FixedPoint, PassPipeline, PipelineRun, is_composite, leaves
from compiler.passes.infrastructure.registry import make_pass, pass_text
from compiler.passes.pipelines.default import xla_order
from compiler.support.gc_pause import gc_paused
from compiler.support.lru_dict import LruDict

__all__ = ["PassGraph", "PassState", "StateMemory", "default_pass_actions"]

MEMORY_BYTES = 300 << 20
INSTRUCTION_BYTES = 1000  # of an instruction with its operands, users and shape, in Python
STATE_BYTES = 8000  # of a state without its module: observation, edges, a plan
MODULE_SHARE = 0.5  # of the memory, for modules

T = TypeVar("T")


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
        key: its `canonical_key`.
        ops: its `op_count`.
        notes: facts that users of the state have computed, by names of their choice.
    """

    key: str
    ops: int
    _graph: PassGraph
    _path: _Path | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    # By number of a pass; keys, so that a state keeps no other one alive.
    _next: dict[int, str] = field(default_factory=dict)

    @property
    def module(self) -> HloModule:
        """The program, which must not be changed; it may be made again."""
        module = self._graph.module_at(self._path)
        self._graph.lent.add(module)
        return module

    def read(self, function: Callable[[HloModule], T]) -> T:
        """Return what a function returns for the program.

        The function must not keep the program or a part of it, unlike `module`: its memory is freed when the state is
        dropped.
        """
        return function(self._graph.module_at(self._path))


class _Modules(LruDict[tuple[int, str], HloModule]):
    """Modules of bounded size in all; those that are dropped are dismantled, unless a user of a state may read them.

    Modules contain reference cycles, and to find the garbage, Python walks over all objects of the process.
    """

    def __init__(self, limit: float) -> None:
        super().__init__(limit, lambda _, m: INSTRUCTION_BYTES * m.instruction_count)
        self.lent: WeakSet[HloModule] = WeakSet()

    def free(self, module: HloModule) -> None:
        """Free the memory of a module that nothing uses, unless it was lent."""
        if module not in self.lent:
            module.dismantle()

    def _drop(self, key: tuple[int, str]) -> None:
        module = self._entries[key][0]
        super()._drop(key)
        self.free(module)


class StateMemory(LruDict[tuple[int, str], PassState]):
    """States by the number of their graph and their key; several graphs may share one memory.

    Args:
        limit: estimated bytes of all states and modules together.

    Attributes:
        modules: the modules of some of them.
    """

    def __init__(self, limit: float = MEMORY_BYTES) -> None:
        super().__init__(limit, lambda _, s: STATE_BYTES / (1 - MODULE_SHARE))
        self.modules = _Modules(limit)

    def put_module(self, key: tuple[int, str], module: HloModule) -> None:
        """Set the module of a state, which must not be in use elsewhere; if it has one, that one is kept."""
        self.modules.limit = MODULE_SHARE * self.limit
        if self.modules.get(key) is None:
            self.modules[key] = module
        else:
            self.modules.free(module)


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
        lent: modules that users of states may still use.
    """

    def __init__(
        self, module: HloModule, actions: Sequence[str], verified: bool = False, memory: StateMemory | None = None
    ) -> None:
        self.actions = tuple(actions)
        self._passes: list[HloPass] = []  # those of the actions first, then others that were met
        self._whole: list[int] = []  # for each, the number of the pass without a limit of sweeps
        self._numbers: dict[tuple[type[HloPass], HloPass], int] = {}  # all passes without options have the same hash
        self._add(*map(make_pass, self.actions))
        self._verified = verified
        self.runs, self.remembered = 0, 0
        self._spare: tuple[PassState, HloModule] | None = None
        self._memory = StateMemory() if memory is None else memory
        self._number = next(_numbers)
        self._start = module.clone()
        self.lent = self._memory.modules.lent
        self.root = PassState(self._start.canonical_key(), op_count(self._start), self)

    def apply(self, state: PassState, action: int) -> PassState:
        """Return the state after a pass; `state` itself when the pass changes nothing.

        Raises:
            HloVerificationError: the graph verifies modules, and the pass made an invalid one.
        """
        whole = self._whole[action]
        # A pass that would change something changes it in its first sweep.
        key = state.key if state._next.get(whole) == state.key else state._next.get(action)
        found = None if key is None else self._known(state, key)
        if found is not None:
            self.remembered += 1
            return found
        self.runs += 1
        with gc_paused():
            found = self._run(state, action)
        state._next[whole if found is state else action] = found.key
        return found

    def run(self, state: PassState, hlo_pass: HloPass) -> tuple[PassState, tuple[str, ...]]:
        """Return the state after a pass or pipeline, and the passes that changed something; it need not be an action.

        Raises:
            HloVerificationError: the graph verifies modules, and a pass made an invalid one.
        """
        run = _StateRun(self, state)
        run.apply(hlo_pass, self._start)
        return run.state, tuple(run.effective)

    def apply_pass(self, state: PassState, hlo_pass: HloPass) -> PassState:
        """Return the state after a pass, which need not be an action, as `apply` does."""
        return self.apply(state, self._number_of(hlo_pass))

    def _number_of(self, hlo_pass: HloPass) -> int:
        key = type(hlo_pass), hlo_pass
        if key not in self._numbers:
            self._add(hlo_pass)
        return self._numbers[key]

    def _add(self, *passes: HloPass) -> None:
        """Give each of some passes a number, in order, also where two of them are equal."""
        first = len(self._passes)
        self._passes += passes
        self._whole += range(first, len(self._passes))
        for number, hlo_pass in enumerate(passes, first):
            self._numbers.setdefault((type(hlo_pass), hlo_pass), number)
        for number, hlo_pass in enumerate(passes, first):
            if isinstance(hlo_pass, Swept):
                self._whole[number] = self._number_of(hlo_pass.within)

    def _known(self, state: PassState, key: str) -> PassState | None:
        """Return the state with a key, or None when it was dropped; `state` itself and the root are never dropped."""
        if key == state.key:
            return state
        return self.root if key == self.root.key else self._memory.get((self._number, key))

    def _run(self, state: PassState, action: int) -> PassState:
        module = self._taken(state)
        if not self._passes[action].run(module):
            self._spare = (state, module)
            return state
        module.reorder()  # as a pipeline does, so that plans replay to the same module
        if self._verified:
            reverify(module)
        key = module.canonical_key()
        known = self._known(state, key)
        if known is None:
            path = _Path(state._path, action, key)
            known = self._memory[self._number, key] = PassState(key, op_count(module), self, path)
        self._spare = (known, module)
        return known

    def module_at(self, path: _Path | None) -> HloModule:
        """Return the module after some passes; those that are not known are run again."""
        missing: list[_Path] = []
        module: HloModule | None = None
        while path is not None and (module := self._module_of(path.key)) is None:
            missing.append(path)
            path = path.before
        module = self._start if module is None else module
        for step in reversed(missing):
            before = module
            module = module.clone()
            if step is not missing[-1]:
                self._memory.modules.free(before)
            self._passes[step.action].run(module)
            module.reorder()
        if missing:
            self._memory.put_module((self._number, missing[0].key), module)
        return module

    def _module_of(self, key: str) -> HloModule | None:
        """Return the module of the state with a key if there is one now."""
        if self._spare is not None and self._spare[0].key == key:
            return self._spare[1]
        return self._memory.modules.get((self._number, key))

    def _taken(self, state: PassState) -> HloModule:
        """Return a module of a state that may be changed.

        The module of the latest state is not copied: most are not needed again. If it is left for another state, it is
        kept, because there may be more than one way on from it.
        """
        spare, self._spare = self._spare, None
        if spare is not None and spare[0] is state and spare[1] not in self.lent:
            return spare[1]
        if spare is not None and spare[0] is self.root:
            self._memory.modules.free(spare[1])
        elif spare is not None:
            self._memory.put_module((self._number, spare[0].key), spare[1])
        return state.read(HloModule.clone)


class _StateRun(PipelineRun):
    """A run of a pipeline over states instead of a module.

    Attributes:
        state: where it is.
        effective: the passes that changed something, as text.
    """

    def __init__(self, graph: PassGraph, state: PassState) -> None:
        super().__init__()
        self._graph, self.state = graph, state
        self.effective: list[str] = []

    def apply(self, hlo_pass: HloPass, module: HloModule) -> bool:
        """Apply a pass to the state; `module` is passed on to sequences of passes, which do not read it."""
        if isinstance(hlo_pass, PassPipeline | FixedPoint):
            return hlo_pass.run_within(self, module)
        if is_composite(hlo_pass):
            return hlo_pass.run_within(self, self.state.module)
        before, self.state = self.state, self._graph.apply_pass(self.state, hlo_pass)
        if self.state is before:
            return False
        self.effective.append(pass_text(hlo_pass))
        return True
