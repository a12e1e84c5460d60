"""The observation of pass ordering: opcode counts, facts of the graph and the history of an episode, as a vector.

    opcodes   log(1 + instructions of that opcode), one number per opcode of XLA
    looped    the same for the instructions inside loops
    facts     FACTS, logarithms of sizes and shares
    passes    for each pass: log(1 + times it has run), whether it is idle here, and by how much its last
              application lowered the log of the op count
    budget    share of the applications used; log(1 + applications since the last that changed something)
    mask      1 where an action is worth trying: passes that are not idle, and stop

All but the history depends on the module only, and is computed once per state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from compiler.analysis.flops import module_flops
from compiler.ir import HloComputation, HloModule, Opcode, Trait
from compiler.learned.pass_states import PassState

__all__ = ["FACTS", "FEATURE_VERSION", "LIMIT", "History", "describe", "mask_of", "observation_size", "observe"]

FEATURE_VERSION = 1
"""Changes when a number here changes its meaning; policies of other versions are refused."""
FACTS = (
    "ops", "share of ops left", "instructions", "computations", "longest path", "flops", "elements made",
    "share elementwise", "share data movement", "share with several users", "constants", "parameters",
)  # fmt: skip
"""The facts of the whole graph."""

Vector = npt.NDArray[np.float32]
_OPCODES = {opcode: n for n, opcode in enumerate(op for op in Opcode if not op.has(Trait.EXTENSION))}
"""Opcodes with their places in the vector; those of extensions have none, so policies outlive a new op."""
_ELEMENTWISE, _MOVEMENT = (frozenset(op for op in Opcode if op.has(t)) for t in (Trait.ELEMENTWISE, Trait.MOVEMENT))
LIMIT = 8.0
"""Largest absolute value; greater values are clipped."""


@dataclass
class History:
    """The history of an episode, with one entry per pass.

    Attributes:
        times: how often each pass has run.
        gains: by how much its last application lowered the log of the op count.
        used: number of applications so far.
        quiet: number of applications since the last that changed something.
    """

    times: npt.NDArray[np.int64]
    gains: npt.NDArray[np.float64]
    used: int = 0
    quiet: int = 0

    @staticmethod
    def empty(passes: int) -> History:
        """Return the history before the first pass."""
        return History(np.zeros(passes, np.int64), np.zeros(passes))

    def record(self, action: int, before: PassState, after: PassState) -> None:
        """Record the application of a pass."""
        self.used += 1
        self.quiet = self.quiet + 1 if after is before else 0
        self.times[action] += 1
        self.gains[action] = math.log(max(before.ops, 1) / max(after.ops, 1))


def observation_size(passes: int) -> int:
    """Return the length of the vector for a number of passes."""
    return 2 * len(_OPCODES) + len(FACTS) + 3 * passes + 2 + passes + 1


def mask_of(observation: npt.NDArray[Any], actions: int) -> npt.NDArray[np.bool_]:
    """Return the mask in an observation, or in each row of a batch of observations.

    Args:
        observation: [..., size].
        actions: number of passes and stop together.
    """
    return np.asarray(observation[..., -actions:] > 0.5)


def observe(state: PassState, start: PassState, history: History, budget: int, idle: Sequence[bool]) -> Vector:
    """Return the observation of an episode.

    Args:
        state: the current program.
        start: the program at the start of the episode.
        history: of the episode.
        budget: number of applications in an episode.
        idle: for each pass, whether it is known to change nothing in this state.
    """
    is_idle = np.asarray(idle, np.float64)
    facts = describe(state).copy()
    facts[2 * len(_OPCODES) + 1] = state.ops / max(start.ops, 1)
    progress = [history.used / max(budget, 1), math.log1p(history.quiet)]
    parts = (facts, np.log1p(history.times), is_idle, history.gains, progress, 1.0 - is_idle, [1.0])
    return np.concatenate(parts).clip(-LIMIT, LIMIT).astype(np.float32)


def describe(state: PassState) -> Vector:
    """Return the part of the observation that depends on the module only."""
    known: Vector | None = state.notes.get("described")
    if known is None:
        known = state.notes["described"] = state.read(lambda m: _describe(m, state.ops))
    return known


def _describe(module: HloModule, ops: int) -> Vector:
    reachable = module.post_order()
    inside = _inside_loops(module)
    counts: Counter[Opcode] = Counter()
    looped: Counter[Opcode] = Counter()
    shared = elements = longest = 0
    for computation in reachable:
        counts.update(computation.opcodes)
        if computation in inside:
            looped.update(computation.opcodes)
        sizes = _sizes(computation)
        shared, elements, longest = shared + sizes.shared, elements + sizes.elements, max(longest, sizes.depth)
    total = counts.total()
    elementwise, movement = (sum([n for op, n in counts.items() if op in kind]) for kind in (_ELEMENTWISE, _MOVEMENT))
    facts = (
        math.log1p(ops), 0.0, math.log1p(total), math.log1p(len(reachable)),
        math.log1p(longest), 0.2 * math.log1p(module_flops(module)),
        0.2 * math.log1p(elements), elementwise / max(total, 1), movement / max(total, 1), shared / max(total, 1),
        counts[Opcode.CONSTANT] / max(total, 1), counts[Opcode.PARAMETER] / max(total, 1),
    )  # fmt: skip
    return np.concatenate([_logs(counts), _logs(looped), facts]).astype(np.float32)


class _Sizes(NamedTuple):
    """Instructions with several users, elements of all of them, and instructions on the longest path."""

    shared: int
    elements: int
    depth: int


def _sizes(computation: HloComputation) -> _Sizes:
    found: _Sizes | None = computation.facts.get(_Sizes)
    if found is None:
        instructions = computation.instructions
        found = computation.facts[_Sizes] = _Sizes(
            sum([len(i.users) > 1 for i in instructions]),
            sum([i.shape.num_elements for i in instructions]),
            _depth(computation),
        )
    return found


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
