"""Whether plain reductions can be one kernel, found without lowering them.

Plain are reductions with elementwise ops and broadcasts around them, as in normalizations and softmax. The walk follows
the order in which `lower` emits them, nest by nest, with labels of dimensions in the place of indices. It answers only
where the answer is certain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.lower import BASE_STATEMENTS, STATEMENTS_PER_INSTRUCTION
from compiler.codegen.lowering.nests import looped_reductions, nests_of
from compiler.codegen.lowering.reductions import Domain, combiner_of
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, is_supported_type
from compiler.codegen.schedules.bind_cuda import SHARED_BYTES as BLOCK_BYTES
from compiler.codegen.schedules.cuda_shapes import COMBINE_BYTES
from compiler.codegen.schedules.lanes import lanes_of_tiles
from compiler.codegen.schedules.row_cache import ROW_CACHE_BYTES
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir import HloInstruction, Opcode

_Labels: TypeAlias = tuple[int, ...]
"""An index: for each dimension the loop that it runs over, -1 for one of size 1, or -2 - k for the number k."""
_ELEMENTWISE = frozenset(op for op in Opcode if op.is_elementwise)
_PLAIN = _ELEMENTWISE - {Opcode.MAP} | {Opcode.PARAMETER, Opcode.CONSTANT, Opcode.BROADCAST, Opcode.RESHAPE}


class _UncertainError(Exception):
    """Only lowering shows the answer."""


class _RefusedError(Exception):
    """There is certainly no kernel."""


def is_certainly_built(
    inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction], blocks: Schedule | None = None
) -> bool | None:
    """Return whether instructions can be one kernel; None if it is not certain.

    False holds for every language and schedule.

    Args:
        inside: the instructions, operands first, of which each can be in a kernel by itself. Others are read.
        outputs: those of them that the kernel yields.
        blocks: the schedule by which the kernel is bound to the blocks of a GPU, see `bind_cuda`; None: it is one in C.
    """
    try:
        nests = _nests([i for i in inside if i.opcode is not Opcode.TUPLE], outputs)
    except _RefusedError:
        return False
    except _UncertainError:
        return None
    return blocks is None or _fits_into_blocks(nests, blocks) or None


def _nests(inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction]) -> list[_Nest]:
    """Return the nests of a kernel.

    Raises:
        _RefusedError: there is no kernel.
        _UncertainError: it is not certain that there is one.
    """
    looped = frozenset(looped_reductions(inside))
    level = _levels(inside, looped)
    nests = []
    refused = False
    for group in nests_of(inside, outputs):
        nest = _Nest(looped, level, [outputs[n] for n in group])
        try:
            nest.walk()
        except _RefusedError:
            refused = True  # unless the walk of another one shows that the instructions are not plain
        nests.append(nest)
    if refused:
        raise _RefusedError
    statements = sum(n.statements for n in nests)
    if statements > min(STATEMENT_LIMIT, BASE_STATEMENTS + STATEMENTS_PER_INSTRUCTION * len(inside)):
        raise _UncertainError
    return nests


def _fits_into_blocks(nests: Sequence[_Nest], schedule: Schedule) -> bool:
    """Check whether a kernel certainly fits into the shared memory of the blocks of a GPU."""
    if len(nests) > 1 and any(n.heroes and not n.kept for n in nests):
        return False  # a block would have to reduce a whole array, unless it is a nest by itself
    held = sum(max(4, SCALAR_BYTES[h.shape.element_type]) for n in nests for h in n.heroes)
    if schedule.block * held > COMBINE_BYTES:
        return False
    return sum(n.block_bytes(schedule) for n in nests) + _bytes_between(nests) <= BLOCK_BYTES


def _bytes_between(nests: Sequence[_Nest]) -> int:
    """Return a bound of the values that nests share: those of two loops of one extent."""
    return sum(n.top_loops for n in nests) // 2 * ROW_CACHE_BYTES if len(nests) > 1 else 0


def _levels(inside: Sequence[HloInstruction], looped: frozenset[HloInstruction]) -> dict[HloInstruction, int]:
    """Return the number of looped reductions on the longest chain down from each instruction, itself included."""
    level: dict[HloInstruction, int] = {}
    known = level.get
    for i in inside:
        if not i.shape.num_elements:  # of no array, or of an empty one
            raise _UncertainError
        below = 0
        for o in i.operands:
            below = max(below, known(o, 0))
        level[i] = below + (i in looped)
        if i.opcode in _PLAIN:
            continue
        if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or combiner_of(i.attributes["to_apply"]) is None:
            raise _UncertainError
        if not is_supported_type(i.shape.element_type) or not i.operands[0].shape.num_elements:
            raise _UncertainError
    return level


@dataclass
class _Nest:
    """The walk over the instructions of one nest.

    Attributes:
        looped: the reductions of the kernel that need a loop.
        level: of each instruction in the kernel, see `_levels`.
        roots: the outputs of the nest.
        heroes: the reductions whose results it needs, in the order in which they are found.
        met: values, as a stage, an instruction and its index. The stage is that of reductions where the index runs over
            reduced dimensions, else 0.
        more: statements besides those of these values.
        dims: extents of the loops; of a nest with reductions these are its domain.
        kept, reduced: the loops around reductions, and those of them.
        big: whether there are outputs with all elements that are reduced.
    """

    looped: frozenset[HloInstruction]
    level: dict[HloInstruction, int]
    roots: Sequence[HloInstruction]
    heroes: dict[HloInstruction, None] = field(default_factory=dict)
    met: set[tuple[int, HloInstruction, _Labels]] = field(default_factory=set)
    more: int = 0
    dims: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    big: bool = False

    def walk(self) -> None:
        """Find what is computed.

        Raises:
            _RefusedError: it cannot be one nest.
            _UncertainError: it is not certain that it can.
        """
        self._find_heroes()
        if self.heroes:
            self._walk_reductions()
            return
        self.dims = _long(self.roots[0])
        self.kept = tuple(range(len(self.dims)))
        for r in self.roots:
            if _long(r) != self.dims:
                raise _UncertainError
            self._need(0, r, _with_units(self.kept, r))

    def _find_heroes(self) -> None:
        work, seen = list(self.roots), set(self.roots)
        while work:
            i = work.pop()
            if i in self.looped:
                self.heroes[i] = None
            for o in i.operands:
                if o not in seen and self.level.get(o):
                    seen.add(o)
                    work.append(o)

    def _walk_reductions(self) -> None:
        domain, *others = dict.fromkeys(Domain.of(h) for h in self.heroes)
        count, total = domain.result_and_operand
        if others or any(r.shape.num_elements not in (count, total) for r in self.roots):
            raise _RefusedError
        self.dims, self.kept, self.reduced = domain.sizes, domain.kept, domain.reduced
        results, everything = tuple(self.dims[k] for k in self.kept), tuple(range(len(self.dims)))
        for r in self.roots:
            if _long(r) == results:
                self._need(0, r, _with_units(self.kept, r))
            elif _long(r) == self.dims and (domain.is_by_rows or self.level[r]):
                self._need(0, r, _with_units(everything, r))
                self.big = True
            else:
                raise _UncertainError
        if not domain.is_by_rows and len(self.dims) - 1 in self.reduced:
            raise _UncertainError
        for h in self.heroes:
            self._need(self.level[h], h.operands[0], _with_units(everything, h.operands[0]))
            self._need(0, h.operands[1], ())

    def _need(self, stage: int, start: HloInstruction, labels: _Labels) -> None:
        """Walk from an instruction at an index to all that it is computed from, up to reductions."""
        work, met, heroes, reduced = [(start, labels)], self.met, self.heroes, self.reduced
        while work:
            i, at = work.pop()
            if i in heroes:
                if tuple([k for k, n in zip(at, i.shape.dimensions, strict=True) if n != 1]) != self.kept:
                    raise _UncertainError  # it may be computed more than once
                continue
            key = (0 if not stage or reduced.isdisjoint(at) else stage, i, at)
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
                if _long(o) != _long(i):
                    raise _UncertainError
                work.append((o, _with_units([k for k, n in zip(at, i.shape.dimensions, strict=True) if n != 1], o)))
            elif op is Opcode.REDUCE:
                self.more += self._need_elements(i, at, work)
            else:
                dims = i.shape.dimensions
                for o in i.operands:
                    shape = o.shape
                    if shape.dimensions == dims:
                        work.append((o, at))
                    elif shape.is_scalar:
                        work.append((o, ()))
                    else:
                        raise _UncertainError

    @staticmethod
    def _need_elements(i: HloInstruction, at: _Labels, work: list[tuple[HloInstruction, _Labels]]) -> int:
        """Add the elements that a short reduction combines at an index to `work`, and return their number."""
        source, start = i.operands
        work.append((start, ()))
        full, kept = source.shape.dimensions, iter(at)
        choices: list[Sequence[int]] = []
        for d, n in enumerate(full):
            if d not in i.dimensions:
                choices.append((next(kept),))
            else:
                choices.append((-1,) if n == 1 else range(-2, -2 - n, -1))
        found = list(itertools.product(*choices))
        work += [(source, labels) for labels in found]
        return len(found)

    # ---- size

    @property
    def statements(self) -> int:
        """A bound of the number of statements."""
        return 6 * len(self.met) + self.more + 8 * len(self.heroes) + 8 * len(self.dims)

    @property
    def top_loops(self) -> int:
        """The number of loops outside of all others."""
        return 1 if self.kept else self._sweeps

    @property
    def _sweeps(self) -> int:
        """The number of loops over what is reduced."""
        return len(self._by_level) + self.big

    @cached_property
    def _by_level(self) -> dict[int, list[int]]:
        """The sizes of the results of the reductions that share a loop, by level."""
        found: dict[int, list[int]] = {}
        for h in self.heroes:
            found.setdefault(self.level[h], []).append(SCALAR_BYTES[h.shape.element_type])
        return found

    def block_bytes(self, schedule: Schedule) -> int:
        """Return a bound of the shared memory of the nest in a block of a GPU."""
        return self._row_bytes + self._column_bytes(schedule) if self.heroes else 0

    @property
    def _row_bytes(self) -> int:
        """A bound of the values of a row that are kept for another loop over it."""
        if self._sweeps <= 1:
            return 0
        elements = math.prod(self.dims[k] for k in self.reduced)
        in_rows = [i for _, i, at in self.met if not self.reduced.isdisjoint(at)]
        return min(ROW_CACHE_BYTES, elements * sum(map(_bytes_of, in_rows)))

    def _column_bytes(self, schedule: Schedule) -> int:
        """Return a bound of what the lanes of a tile of columns hold."""
        return lanes_of_tiles(self._results, schedule) * self._held_bytes if self.kept else 0

    @property
    def _results(self) -> int:
        """The number of results of a reduction."""
        return math.prod(self.dims[k] for k in self.kept)

    @cached_property
    def _held_bytes(self) -> int:
        """The bytes of the values that are computed once for each result."""
        held = sum([_bytes_of(i) for _, i, at in self.met if at and self.reduced.isdisjoint(at)])
        return held + sum(map(sum, self._by_level.values()))


def _bytes_of(i: HloInstruction) -> int:
    return SCALAR_BYTES[i.shape.element_type]


def _long(i: HloInstruction) -> tuple[int, ...]:
    """Return the dimensions of an array that are not of size 1."""
    return tuple([n for n in i.shape.dimensions if n != 1])


def _with_units(labels: Sequence[int], i: HloInstruction) -> _Labels:
    """Return an index into an array, given the labels of its dimensions that are not of size 1."""
    rest = iter(labels)
    return tuple([-1 if n == 1 else next(rest) for n in i.shape.dimensions])
