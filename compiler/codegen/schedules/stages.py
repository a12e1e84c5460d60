"""Long chains of expensive operations in stages: a vector loop becomes several over small blocks.

A processor overlaps the iterations of a loop whose instructions fit into its window, which holds some 200 to 500. Where
one value passes through several transcendental functions, few iterations fit, and the loop waits for the latency of the
chain. Stages that pass their values on in local arrays of a block have short iterations again, for the price of a store
and a load.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import map_indices, names_assigned, names_of, names_used, walk
from compiler.codegen.schedules.streams import has_whole_blocks
from compiler.ir import Opcode, Trait
from compiler.ir.types import PrimitiveType as T

BLOCK, MIN_ELEMENTS, SHORT = 256, 32, 128
"""Elements of a block, so that its arrays stay in the first-level cache; of the shortest loop that is divided; and of
the shortest that is if few of its operations wait for each other."""
MAX_ARRAYS = 16
"""Maximum number of values that stages pass on; more loads and stores cost what the shorter iterations save."""
WAITING = 0.5
"""Part of the long operations that follow one of a lower level, for which they probably wait, from which on another
order is worth it: eight exponentials and the logarithm of their sum hardly wait for each other."""
MOST_PASSED = 2
"""Number of values per long operation from which on a short loop, or one that stores into other local arrays, loses
more by loads and stores than it saves."""
CHEAP = 4
"""Number of instructions up to which a stage computes a value again instead of loading it."""
LONG_CHAIN, MANY = 26, 24
"""Latency of operations in a row, in cycles, and number of operations for each expensive one, from which on they fill
the window of the processor as a function does: the polynomial of an inverse error function, the rounds of a random
number."""
SINGLE_LATENCY, FLOAT_LATENCY = 4, 2
"""Cycles of a division or a root, and of an addition or a multiplication. Divisions take longer, but their unit works
beside the functions of a stage; a multiplication and an addition often become one instruction."""
_ARITHMETIC = frozenset({Opcode.ADD, Opcode.SUBTRACT, Opcode.MULTIPLY})
_SINGLE = frozenset({Opcode.DIVIDE, Opcode.SQRT, Opcode.RSQRT, Opcode.REMAINDER})
"""Expensive operations that are one or two instructions."""


@dataclass(frozen=True)
class Stages:
    """The values of a loop over single elements, by stage.

    Attributes:
        of: name -> number of its stage.
        count: number of stages.
        passed: the values that a later stage than their own needs.
    """

    of: Mapping[str, int]
    count: int
    passed: tuple[lir.Let, ...]


def stages_of(s: For, depth: int) -> Stages | None:
    """Return the stages of a loop over single elements; None if it has one only, or cannot be divided.

    Args:
        s: the loop.
        depth: maximum number of expensive operations in a row in one stage, or twice as many if stages would pass on
            too many values; 0 for any number.
    """
    found = None if _has_narrow_elements(s) else _divided(s, depth, LONG_CHAIN)
    return found or _divided(s, depth, math.inf) or _divided(s, 2 * depth, math.inf)


def _has_narrow_elements(s: For) -> bool:
    """Check for a loop of which the C compiler computes several vectors at once, to fill those of narrow elements."""
    of = {x.name: x for x in s.body if isinstance(x, lir.Let)}
    moved_values = [x for x in of.values() if isinstance(x.value, lir.Load | lir.LocalLoad)]
    moved_values += [of[x.value] for x in s.body if isinstance(x, lir.Store | lir.LocalStore) and x.value in of]
    return any(SCALAR_BYTES[x.type] < 4 for x in moved_values)


def _divided(s: For, depth: int, chain: float) -> Stages | None:
    """Return the stages for a depth; None if there is one only, or if they pass on too many values.

    Args:
        s: the loop.
        depth: maximum number of expensive operations in a row in one stage.
        chain: latency of other operations in a row from which on they are a stage of their own.
    """
    if not depth or s.var.extent < MIN_ELEMENTS or not has_whole_blocks(s, BLOCK):
        return None
    choices = [x for x in s.body if isinstance(x, lir.Accumulator | lir.If)]
    chosen = {x.name for x in choices if isinstance(x, lir.Accumulator)}
    if not all(
        isinstance(x, lir.Let | lir.Store | lir.LocalStore | lir.Accumulator | lir.If)
        or (isinstance(x, lir.Assign) and x.name not in chosen)
        for x in s.body
    ):
        return None
    lets = [x for x in s.body if isinstance(x, lir.Let)]
    level = levels(lets)
    if choices and not _are_first(choices, chosen, lets, level):
        return None
    of = _stage_numbers(lets, level, depth, chain)
    count = 1 + max(of.values(), default=0)
    if count < 2 or (s.var.extent < SHORT and not are_waiting(lets, level)):
        return None
    # Only the last stage assigns accumulators, so their values are known there alone.
    current: set[str] = set()
    for let in lets:
        is_carried = isinstance(let.value, lir.Current) and let.value.name not in chosen
        if is_carried or not current.isdisjoint(names_of(let)):
            current.add(let.name)
            of[let.name] = count - 1
    names: set[str] = set()
    for n in range(1, count):
        now = [x for x in s.body if _stage_of(x, of, count - 1) == n]
        earlier = [let for let in lets if of[let.name] < n]
        names |= values_to_pass(earlier, {name for x in now for name in names_of(x)})
    passed = tuple(let for let in lets if let.name in names)
    most = MAX_ARRAYS
    if s.var.extent < SHORT or any(isinstance(x, lir.LocalStore) for x in s.body):
        most = min(most, MOST_PASSED * sum(map(is_long_value, lets)) - 1)
    return None if len(passed) > most else Stages(of, count, passed)


def _stage_numbers(lets: Sequence[lir.Let], level: Mapping[str, int], depth: int, chain: float) -> dict[str, int]:
    """Return the number of the stage of each value, by name; see `_divided`.

    A stage starts with expensive operations, and with others if they are a long chain; short ones belong to the stage
    that precedes them.
    """
    chained = _chained_levels(lets, level, chain)
    stage, expensive, is_full = 0, 0, False
    of_long, of_others = {0: 0}, {}
    for n in range(1 + max(level.values(), default=0)):
        if n:
            if is_full or expensive == depth:
                stage, expensive, is_full = stage + 1, 0, False
            expensive += 1
            of_long[n] = stage
        if n in chained:
            stage, expensive, is_full = stage + bool(expensive), 0, True
        of_others[n] = stage
    return {x.name: (of_long if is_long_value(x) else of_others)[level[x.name]] for x in lets}


def _chained_levels(lets: Sequence[lir.Let], level: Mapping[str, int], chain: float) -> set[int]:
    """Return the levels whose values that are not expensive are a long chain; see `_divided`."""
    awaited: set[str] = set()  # by expensive operations
    for x in reversed(lets):
        if is_long_value(x) or x.name in awaited:
            awaited.update(names_of(x))
    latencies: dict[str, int] = {}  # since the last expensive operation
    longest: Counter[int] = Counter()  # by level, as the following
    long: Counter[int] = Counter()
    others: Counter[int] = Counter()
    for x in lets:
        n = level[x.name]
        if is_long_value(x):
            latencies[x.name] = 0
            long[n] += 1
            continue
        before = max((latencies[o] for o in names_of(x) if level.get(o) == n), default=0)
        latencies[x.name] = before + _latency(x)
        if n or x.name in awaited:
            longest[n] = max(longest[n], latencies[x.name])
            others[n] += isinstance(x.value, lir.Apply)
    return {n for n in level.values() if longest[n] >= chain and others[n] >= MANY * max(1, long[n])}


def _latency(let: lir.Let) -> int:
    """Return about how many cycles a value that is no long operation waits for its operands."""
    if not isinstance(let.value, lir.Apply):
        return 0
    if let.value.op.opcode in _SINGLE:
        return SINGLE_LATENCY
    return FLOAT_LATENCY if let.type.is_float and let.value.op.opcode in _ARITHMETIC else 1


def _are_first(
    choices: Sequence[lir.Accumulator | lir.If], chosen: set[str], lets: Sequence[lir.Let], level: Mapping[str, int]
) -> bool:
    """Check whether branches only choose values of the first stage, such as elements and padding.

    Args:
        choices: the branches of a loop, and the accumulators that they assign.
        chosen: the names of these accumulators.
        lets: the values of the loop outside of the branches.
        level: their levels.
    """
    inside = [x for c in choices if isinstance(c, lir.If) for x in walk((*c.then, *c.otherwise))]
    simple = all((isinstance(x, lir.Assign) and x.name in chosen) or isinstance(x, lir.Let) for x in inside)
    if not simple or any(isinstance(x, lir.Let) and is_long_value(x) for x in inside):
        return False
    if any(isinstance(x.value, lir.Current) and x.value.name in chosen and x.type is T.PRED for x in lets):
        return False  # loops over arrays of predicates are not vectorized
    return all(level.get(n, 0) == 0 for c in choices for n in names_used((c,)))


def staged(s: For, stages: Stages, leaf: Callable[[For], For]) -> For:
    """Return a loop over single elements as a loop over blocks, in which each stage is a loop over the block.

    Args:
        s: the loop.
        stages: its stages, see `stages_of`.
        leaf: binds the loop of a stage.
    """
    v, size = s.var, min(s.var.extent, BLOCK)
    block = Var(f"{v.name}g", -(-v.extent // size))
    base, limit = s.base, s.limit
    if s.base is not None or v.extent % size:
        base = ix.of(block) * size + (ix.const(0) if s.base is None else s.base)
        limit = v.extent if s.limit is None else s.limit
    arrays: list[lir.Stmt] = [lir.LocalArray(array_of(x), x.type, size) for x in stages.passed]
    loops: list[lir.Stmt] = []
    for n in range(stages.count):
        lane = Var(f"{v.name}g{n}", size)
        body = moved(statements_of_stage(s.body, stages, n, ix.of(lane)), v, ix.of(block) * size + ix.of(lane))
        combined = s.combined if n == stages.count - 1 else ()
        loops.append(leaf(replace(s, var=lane, body=body, combined=combined, base=base, limit=limit)))
    return For(block, LoopKind.SERIAL, (*arrays, *loops))


def statements_of_stage(body: Body, stages: Stages, n: int, at: ix.IndexExpr) -> Body:
    """Return the statements of one stage: what it passes on or stores, and what these need."""
    passed = {let.name for let in stages.passed}
    kept: list[lir.Stmt] = []
    needed: set[str] = set()
    for x in reversed(body):
        if isinstance(x, lir.Let):
            if x.name in passed and stages.of[x.name] < n:
                if x.name in needed:
                    kept.append(lir.Let(x.name, x.type, lir.LocalLoad(array_of(x), at)))
                continue
            if x.name in passed and stages.of[x.name] == n:
                kept.append(lir.LocalStore(array_of(x), at, x.name))
            elif x.name not in needed:
                continue
        elif isinstance(x, lir.Accumulator | lir.If):
            if needed.isdisjoint({x.name} if isinstance(x, lir.Accumulator) else names_assigned((x,))):
                continue
        elif n < stages.count - 1:
            continue
        kept.append(x)
        needed.update(names_used((x,)))
    return tuple(reversed(kept))


def moved(body: Body, var: Var, to: ix.IndexExpr) -> Body:
    """Return statements in which an index takes the place of a variable."""
    return map_indices(body, lambda i: i.substitute({var: to}))


def array_of(let: lir.Let) -> str:
    """Return the name of the array in which later stages find a value."""
    return f"{let.name}_block"


def _stage_of(x: lir.Stmt, of: Mapping[str, int], last: int) -> int:
    """Return the stage that computes a value, or stores one."""
    if isinstance(x, lir.Accumulator | lir.If):
        return 0
    return of[x.name] if isinstance(x, lir.Let) else last


def values_to_pass(lets: Sequence[lir.Let], used: set[str]) -> set[str]:
    """Return the names of the values that a later loop loads, so that it can compute the values that it uses.

    A later loop computes cheap values again, but not what branches chose, and predicates, because loops over arrays of
    them are not vectorized.

    Args:
        lets: the values of earlier loops, in order.
        used: names of values that the later loop uses.
    """
    costs: dict[str, int] = {}  # as arguments; what is kept costs a load
    for let in lets:
        own = 0 if isinstance(let.value, lir.Constant) else 1
        costs[let.name] = 1 if _is_kept(let) else own + sum(costs.get(n, 0) for n in names_of(let))
    passed: set[str] = set()
    needed = set(used)
    for let in reversed(lets):
        if let.name not in needed:
            continue
        if let.type is not T.PRED and (_is_kept(let) or costs[let.name] > CHEAP):
            passed.add(let.name)
        else:
            needed.update(names_of(let))
    return passed


def _is_kept(let: lir.Let) -> bool:
    """Check whether a later loop loads a value whatever it costs: the result of a long function or of a branch."""
    return is_long_value(let) or isinstance(let.value, lir.Current)


def levels(lets: Sequence[lir.Let]) -> dict[str, int]:
    """Return the number of long operations on the longest chain up to each value, itself included, by name."""
    level: dict[str, int] = {}
    for let in lets:
        below = max((level.get(n, 0) for n in names_of(let)), default=0)
        level[let.name] = below + is_long_value(let)
    return level


def are_waiting(lets: Sequence[lir.Let], level: Mapping[str, int]) -> bool:
    """Check whether the long operations of a loop mostly follow others for which they wait, given their levels."""
    order = [level[x.name] for x in lets if is_long_value(x)]
    return sum(a < b for a, b in itertools.pairwise(order)) >= WAITING * len(order)


def is_long(op: Opcode) -> bool:
    """Check whether an operation takes many instructions that wait for each other."""
    return op.has(Trait.EXPENSIVE) and op not in _SINGLE


def is_long_value(let: lir.Let) -> bool:
    """Check whether a value is computed by one long operation, see `is_long`."""
    return isinstance(let.value, lir.Apply) and is_long(let.value.op.opcode)
