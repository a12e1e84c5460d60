"""A program and the passes run on it so far, as a vector: opcode counts, facts of the graph, the history.

    opcodes   log(1 + instructions of that opcode), one number for each opcode of XLA
    looped    the same of what stands inside loops
    facts     FACTS, logarithms of sizes and shares
    passes    for each pass: log(1 + times it has run), whether it is idle here, and by how much its last
              application lowered the log of the op count
    budget    share of the applications used; log(1 + applications since the last that changed something)
    mask      1 where an action is worth trying: passes not idle, and stop

Everything but the history is the same for the same text, and is worked out once for a state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.analysis.flops import module_flops
from compiler.ir import HloComputation, HloModule, Opcode, Trait
from compiler.learned.pass_states import PassState

__all__ = ["FACTS", "FEATURE_VERSION", "LIMIT", "History", "describe", "mask_of", "observation_size", "observe"]

FEATURE_VERSION = 1
"""Changes when a number here changes its meaning: what was learned on others is refused."""
FACTS = (
    "ops", "share of ops left", "instructions", "computations", "longest path", "flops", "elements made",
    "share elementwise", "share data movement", "share with several users", "constants", "parameters",
)  # fmt: skip
"""What is told of the graph as a whole."""

Vector = npt.NDArray[np.float32]
_OPCODES = {opcode: n for n, opcode in enumerate(op for op in Opcode if not op.has(Trait.EXTENSION))}
"""Opcodes with their places in the vector; those of extensions have none, so policies outlive a new op."""
_ELEMENTWISE, _MOVEMENT = (frozenset(op for op in Opcode if op.has(t)) for t in (Trait.ELEMENTWISE, Trait.MOVEMENT))
LIMIT = 8.0
"""No number is larger."""


@dataclass
class History:
    """What an episode has done: one entry a pass.

    Attributes:
        times: how often each has run.
        gains: by how much its last application lowered the log of the op count.
        used: applications so far.
        quiet: applications since the last that changed something.
    """

    times: npt.NDArray[np.int64]
    gains: npt.NDArray[np.float64]
    used: int = 0
    quiet: int = 0

    @staticmethod
    def empty(passes: int) -> History:
        """Before the first pass."""
        return History(np.zeros(passes, np.int64), np.zeros(passes))

    def note(self, action: int, before: PassState, after: PassState) -> None:
        """A pass has run."""
        self.used += 1
        self.quiet = self.quiet + 1 if after is before else 0
        self.times[action] += 1
        self.gains[action] = math.log(max(before.ops, 1) / max(after.ops, 1))


def observation_size(passes: int) -> int:
    """Length of the vector for so many passes."""
    return 2 * len(_OPCODES) + len(FACTS) + 3 * passes + 2 + passes + 1


def mask_of(observation: npt.NDArray[Any], actions: int) -> npt.NDArray[np.bool_]:
    """The mask within an observation, or within each row of a batch of them.

    Args:
        observation: [..., size].
        actions: passes and stop, counted together.
    """
    return np.asarray(observation[..., -actions:] > 0.5)


def observe(state: PassState, start: PassState, history: History, budget: int, idle: Sequence[bool]) -> Vector:
    """The vector of a moment.

    Args:
        state: the program now.
        start: as it was at first.
        history: what has been done.
        budget: how many applications an episode has.
        idle: for each pass, whether it is known to change nothing now.
    """
    quiet = np.asarray(idle, np.float64)
    facts = describe(state).copy()
    facts[2 * len(_OPCODES) + 1] = state.ops / max(start.ops, 1)
    moment = [history.used / max(budget, 1), math.log1p(history.quiet)]
    parts = (facts, np.log1p(history.times), quiet, history.gains, moment, 1.0 - quiet, [1.0])
    return np.concatenate(parts).clip(-LIMIT, LIMIT).astype(np.float32)


def describe(state: PassState) -> Vector:
    """The part of the vector that hangs on the text alone."""
    known: Vector | None = state.notes.get("described")
    if known is None:
        known = state.notes["described"] = _describe(state.module, state.ops)
    return known


def _describe(module: HloModule, ops: int) -> Vector:
    reachable = module.post_order()
    inside = _inside_loops(module)
    counts: Counter[Opcode] = Counter()
    looped: Counter[Opcode] = Counter()
    shared = elements = 0
    for computation in reachable:
        instructions = computation.instructions
        opcodes = [i.opcode for i in instructions]
        counts.update(opcodes)
        if computation in inside:
            looped.update(opcodes)
        shared += sum([len(i.users) > 1 for i in instructions])
        elements += sum([i.shape.num_elements for i in instructions])
    total = counts.total()
    elementwise, movement = (sum([n for op, n in counts.items() if op in kind]) for kind in (_ELEMENTWISE, _MOVEMENT))
    facts = (
        math.log1p(ops), 0.0, math.log1p(total), math.log1p(len(reachable)),
        math.log1p(max((_depth(c) for c in reachable), default=0)), 0.2 * math.log1p(module_flops(module)),
        0.2 * math.log1p(elements), elementwise / max(total, 1), movement / max(total, 1), shared / max(total, 1),
        counts[Opcode.CONSTANT] / max(total, 1), counts[Opcode.PARAMETER] / max(total, 1),
    )  # fmt: skip
    return np.concatenate([_logs(counts), _logs(looped), facts]).astype(np.float32)


def _logs(counts: Counter[Opcode]) -> npt.NDArray[np.float64]:
    found = np.zeros(len(_OPCODES))
    for opcode, n in counts.items():
        if opcode in _OPCODES:
            found[_OPCODES[opcode]] = n
    return np.log1p(found)


def _inside_loops(module: HloModule) -> set[HloComputation]:
    bodies = [
        called
        for c in module.post_order()
        for i in c.notable
        if i.opcode is Opcode.WHILE
        for called in i.called_computations()
    ]
    return set(module.post_order(bodies)) if bodies else set()


def _depth(computation: HloComputation) -> int:
    depth: dict[Any, int] = {}
    for i in computation.post_order():
        depth[i] = 1 + max([depth[o] for o in i.operands], default=0)
    return max(depth.values(), default=0)
