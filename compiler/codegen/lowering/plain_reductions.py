"""Whether plain reductions can be one kernel, found without lowering them.

Plain are reductions of one domain with elementwise ops and broadcasts around them, as in normalizations and softmax.
The walk follows the order in which `lower` emits them, with labels of dimensions in the place of indices. It answers
only where the answer is certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.lower import BASE_STATEMENTS, STATEMENTS_PER_INSTRUCTION
from compiler.codegen.lowering.reductions import UNROLL_LIMIT, Domain, combiner_of
from compiler.codegen.nest.scalar_ops import is_supported_type
from compiler.codegen.schedules.bind_c import COPIES, WIDEST, accumulator_bytes
from compiler.codegen.schedules.distribution import VALUE_BYTES
from compiler.codegen.schedules.row_cache import ROW_CACHE_BYTES
from compiler.codegen.schedules.schedule import LOCAL_BYTES, Schedule
from compiler.codegen.schedules.shared_values import SHARED_BYTES
from compiler.codegen.schedules.short_rows import DIVISION_BYTES
from compiler.codegen.schedules.splits import ENOUGH_TASKS, MAX_PARTS, PARTIAL_BYTES, may_be_split
from compiler.codegen.schedules.stages import BLOCK, MAX_ARRAYS, is_long
from compiler.ir import HloInstruction, Opcode

_Labels: TypeAlias = tuple[int, ...]
"""An index: for each dimension the dimension of the domain that it runs over, or -1 for one of size 1."""
_MOST_PARTS = ENOUGH_TASKS // 4 + 1


class _UncertainError(Exception):
    """Only lowering shows the answer."""


class _RefusedError(Exception):
    """There is certainly no kernel."""


def is_certainly_built(inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction]) -> bool | None:
    """Return whether instructions can be one kernel in C with the default schedule; None if it is not certain.

    False holds for every language and schedule.

    Args:
        inside: the instructions, operands first, of which each can be in a kernel by itself. Others are read.
        outputs: those of them that the kernel yields.
    """
    try:
        return _Plain(inside, outputs).local_bytes() <= LOCAL_BYTES or None
    except _RefusedError:
        return False
    except _UncertainError:
        return None


@dataclass
class _Plain:
    """The walk over the instructions of one kernel.

    Attributes:
        level: number of reductions on the longest chain of them down from each instruction, itself included.
        met: instructions with their indices, and the stage of reductions where the index runs over reduced dimensions.
    """

    inside: Sequence[HloInstruction]
    roots: Sequence[HloInstruction]
    heroes: list[HloInstruction] = field(default_factory=list)
    level: dict[HloInstruction, int] = field(default_factory=dict)
    met: set[tuple[int, HloInstruction, _Labels]] = field(default_factory=set)

    def local_bytes(self) -> float:
        """Return a bound of the local memory of the kernel.

        Raises:
            _RefusedError: there is no kernel.
            _UncertainError: it is not certain that there is one.
        """
        self._find_reductions()
        domain = Domain.of(self.heroes[0])
        if 0 in domain.sizes:
            raise _RefusedError
        for h in self.heroes[1:]:
            if Domain.of(h) != domain:
                if len(self.roots) == 1:
                    raise _RefusedError
                raise _UncertainError  # they may be in different nests
        kept = domain.kept
        by_rows = domain.is_by_rows
        dims = tuple(domain.sizes[k] for k in kept)
        count, _ = sizes = domain.result_and_operand
        if any(r.shape.num_elements not in sizes for r in self.roots):
            if len(self.roots) == 1:
                raise _RefusedError
            raise _UncertainError  # it may be in another nest
        self.kept, self.reduced = kept, domain.reduced
        big = False
        for r in self.roots:
            if r.shape.dimensions == dims:
                self._need(0, r, kept)
            elif r.shape.dimensions == domain.sizes and (by_rows or self.level[r]):
                self._need(0, r, tuple(range(len(domain.sizes))))
                big = True
            else:
                raise _UncertainError
        for h in self.heroes:
            self._need(self.level[h], h.operands[0], _with_units(tuple(range(len(domain.sizes))), h.operands[0]))
            self._need(0, h.operands[1], ())
        statements = 6 * len(self.met) + 8 * len(self.heroes) + 8 * len(domain.sizes)
        if statements > min(STATEMENT_LIMIT, BASE_STATEMENTS + STATEMENTS_PER_INSTRUCTION * len(self.inside)):
            raise _UncertainError
        return self._row_bytes(big, count, domain) if by_rows else self._column_bytes(big, count, domain)

    def _find_reductions(self) -> None:
        level = self.level
        for i in self.inside:
            level[i] = max([level.get(o, 0) for o in i.operands], default=0)
            if i.opcode is Opcode.REDUCE:
                full = i.operands[0].shape.dimensions
                if len(i.operands) != 2 or math.prod(full[d] for d in i.dimensions) <= UNROLL_LIMIT:
                    raise _UncertainError
                if combiner_of(i.attributes["to_apply"]) is None or not is_supported_type(i.shape.element_type):
                    raise _UncertainError
                self.heroes.append(i)
                level[i] += 1
            elif i.opcode not in _MOVING and not (i.opcode.is_elementwise and i.opcode is not Opcode.MAP):
                raise _UncertainError
        if not self.heroes:
            raise _UncertainError

    def _need(self, stage: int, start: HloInstruction, labels: _Labels) -> None:
        """Walk from an instruction at an index to all that it is computed from, up to reductions."""
        work, met = [(start, labels)], self.met
        while work:
            i, at = work.pop()
            if i.opcode is Opcode.REDUCE and i in self.level:
                if tuple([k for k in at if k >= 0]) != self.kept:
                    raise _UncertainError  # it may be computed more than once
                continue
            key = (stage if any(k in self.reduced for k in at) else 0, i, at)
            if key in met:
                continue
            met.add(key)
            op = i.opcode
            if op is Opcode.PARAMETER or i not in self.level:
                if not i.shape.is_array:
                    raise _UncertainError
            elif op is Opcode.CONSTANT:
                if i.shape.num_elements != 1:
                    raise _UncertainError
            elif op is Opcode.BROADCAST:
                if list(i.dimensions) != sorted(i.dimensions):
                    raise _UncertainError
                work.append((i.operands[0], tuple([at[d] for d in i.dimensions])))
            elif op is Opcode.RESHAPE:
                o = i.operands[0]
                long = [n for n in o.shape.dimensions if n != 1]
                if self.level[i] or long != [n for n in i.shape.dimensions if n != 1]:
                    raise _UncertainError
                work.append((o, _with_units(tuple([k for k in at if k >= 0]), o)))
            elif op is Opcode.TUPLE:
                raise _UncertainError
            else:
                dims = i.shape.dimensions
                for o in i.operands:
                    if o.shape.dimensions == dims:
                        work.append((o, at))
                    elif o.shape.is_scalar:
                        work.append((o, ()))
                    else:
                        raise _UncertainError

    # ---- local memory, as in `bind_c.local_bytes_bound`

    def _row_bytes(self, big: bool, results: int, domain: Domain) -> float:
        levels = max(self.level[h] for h in self.heroes)
        total = (
            (levels + big) // 2 * ROW_CACHE_BYTES
            + levels * accumulator_bytes(len(self.heroes))
            + (levels + big) * self._stage_bytes()
        )
        if not domain.kept:  # each loop is one at the top
            return total + levels * min(PARTIAL_BYTES, (MAX_PARTS + 1) * len(self.heroes) * WIDEST)
        if big or levels > 1:  # a nest with several loops inside is not split
            return total
        tiles = -(-results // Schedule().columns)
        split = self._split_bytes(results, domain) if tiles < ENOUGH_TASKS // 8 else 0
        return total + (split + self._tile_bytes() if split else 0)

    def _column_bytes(self, big: bool, results: int, domain: Domain) -> float:
        if len(domain.sizes) - 1 not in domain.kept:
            raise _UncertainError
        sweeps = max(self.level[h] for h in self.heroes) + big
        return (
            ROW_CACHE_BYTES
            + accumulator_bytes(len(self.heroes))
            + sweeps * self._stage_bytes()
            + self._split_bytes(results, domain)
            + (VALUE_BYTES if sweeps > 1 else 0)
            + self._tile_bytes()
        )

    def _stage_bytes(self) -> int:
        """Return a bound of what the stages of one loop hold, which only chains of expensive operations have."""
        chain = sum(i.opcode.is_elementwise and is_long(i.opcode) for i in self.inside) > 1
        return SHARED_BYTES + DIVISION_BYTES + (COPIES * MAX_ARRAYS * BLOCK * WIDEST if chain else 0)

    def _split_bytes(self, results: int, domain: Domain) -> int:
        extent = domain.sizes[min(domain.reduced)]
        if not may_be_split(results, extent):
            return 0
        return min(PARTIAL_BYTES, _MOST_PARTS * results * len(self.heroes) * WIDEST)

    def _tile_bytes(self) -> int:
        """Return a bound of what a tile of adjacent results holds: every value outside of the reductions."""
        held = sum(1 for _, _, at in self.met if at and self.reduced.isdisjoint(at))
        return COPIES * Schedule().columns * (held + len(self.roots) + 2 * len(self.heroes)) * WIDEST


_MOVING = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.BROADCAST, Opcode.RESHAPE, Opcode.TUPLE})


def _with_units(labels: _Labels, i: HloInstruction) -> _Labels:
    """Return an index into an array, given the labels of its dimensions that are not of size 1."""
    rest = iter(labels)
    return tuple([-1 if n == 1 else next(rest) for n in i.shape.dimensions])
