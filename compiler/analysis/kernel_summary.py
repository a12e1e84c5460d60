"""Summarizes what one kernel reads, writes and computes, from its instructions.

The walk goes from outputs to inputs and records in which *contexts* each value is needed. A context is a way of
indexing a value: by the kernel's own index, shifted by a slice, transposed... A value needed in three contexts is
computed three times, while elementwise users share one context. This models recomputation and repeated reads within a
fusion.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from compiler.analysis.element_work import (
    FLOPS,
    LOOP_FROM,
    MOST_JOINED,
    NESTED_PAD,
    SPECIFIC,
    flops_per_element,
    needs_loop,
    reduced_elements,
)
from compiler.analysis.index_moves import INDEX_ATTRIBUTES, evaluation_share, index_move, long_dimensions
from compiler.analysis.library_work import TEMPLATE_OPS, library_flops, operand_reads, product_time, scans_rows
from compiler.analysis.post_operations import epilogue_of, suits_call
from compiler.analysis.update_chains import updates_of
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation, HloInstruction, Opcode, Trait
from compiler.ir.types import PrimitiveType as T

SHARED_FROM = 8
"""Shorter reductions, such as pools of 2x2, are no work that cores share beyond that of their results."""
CONTEXT_LIMIT = 64
"""Largest number of contexts of one value; further ones are merged into one."""

CACHE_LINE = 64
"""Bytes of a cache line."""
ROW_BYTES = 1 << 15
"""Size of a row up to which the values that one loop over it computes are kept for the next one."""
SHORT_ROWS = frozenset(range(5, 16)) - {8}
"""Lengths of rows that are reduced without a loop and whose values are kept all the same, beside what else a loop over
the rows computes of them."""
ROW_TYPES = frozenset({T.F32, T.S32, T.U32})
"""Element types of such rows, of which a vector register of a CPU has 16."""
COLUMNS = 256
"""Number of adjacent columns that a block computes together."""

# Special contexts: the outputs' index, an element of a reduced row, one value per row, merged ones, a scalar.
OWN, _ROW, _KEPT, _MANY, SCALAR = -1, -2, -3, -4, -5
# An element of what is reduced along columns or along long rows, read by loop number n over it: _SWEEP - n. Number 0
# stores outputs.
_SWEEP, _MAX_SWEEPS = -10, 50


class Use(NamedTuple):
    """One context of a value: total evaluations, distinct elements among them, and copies of the code."""

    evaluations: float
    distinct: float
    copies: int = 1


Contexts: TypeAlias = dict[int, Use]
"""Maps the ways in which a value is indexed to its uses; `OWN` is the index of the kernel's outputs."""


@dataclass(slots=True)
class Input:
    """How a kernel reads one of its inputs; it does not change.

    Attributes:
        bytes: distinct bytes that are read.
        sweeps: number of loops over the columns of a block that read it, each from the first to the last element.
        loads: total number of element loads.
    """

    elements: int
    element_bytes: float
    contexts: Contexts
    bytes: float = field(init=False)
    sweeps: int = field(init=False)
    loads: float = field(init=False)

    def __post_init__(self) -> None:
        distinct, loads, sweeps = 0.0, 0.0, 0
        for context, (evaluations, elements, _) in self.contexts.items():
            distinct += elements
            loads += evaluations
            sweeps += _SWEEP - _MAX_SWEEPS <= context <= _SWEEP
        self.bytes = min(float(self.elements), distinct) * self.element_bytes
        self.sweeps, self.loads = max(1, sweeps), loads

    @property
    def largest_part(self) -> float:
        """Distinct bytes that are read in one context, such as by one of several slices."""
        return min(float(self.elements), max([u.distinct for u in self.contexts.values()])) * self.element_bytes

    @property
    def copies(self) -> int:
        """Number of loads in the code, which is the number of different indices."""
        return sum([u.copies for u in self.contexts.values()])


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """A kernel in numbers.

    Attributes:
        inputs: by position of the operand; repeated operands of a single instruction share one entry.
        bytes_read, loads: bytes and element loads over all inputs; distinct bytes, but for each nest and each sweep.
        bytes_written, largest_output: over all outputs, and of the largest; of an in-place update only the window.
        flops: scalar operations; expensive functions count as in the opcode table.
        statements: scalar statements of the code, without constants.
        elements: independent units of work: elements of the largest output, or rows of a row reduction.
        looped_reduction: whether it contains a reduction that needs a loop.
        in_place: whether it only writes the window of an update.
        template: the opcode of its instruction for which there is a template, such as a product or a sort.
        nests: loop nests for outputs of different shapes, which follow each other.
        products: scalar operations of a matrix product, as many as a library has in the same time.
        called: those of a convolution that a library computes with what follows in one call, faster than apart; else 0.
        block_bytes: of a block that is no row, the bytes of one input that it reads again.
        row_elements: elements of a row that is too long for the cache of a core and that several loops read; else 0.
        serial: those of `flops` that expensive functions in the steps of a scan along rows take, one step at a time.
        strided: elements of large arrays that are read across their rows, by transposes.
        spreads: whether it pads a value between its elements.
        halves: elements that are stored as floats of 16 bits.
        rounded: those of them that are computed, and not only moved.
        reduced: elements that a reduction without a loop combines, over all of its results; 0 below `SHARED_FROM` each.
    """

    inputs: tuple[Input, ...] = ()
    bytes_read: float = 0.0
    loads: float = 0.0
    bytes_written: float = 0.0
    flops: float = 0.0
    statements: int = 0
    elements: float = 1.0
    looped_reduction: bool = False
    in_place: bool = False
    largest_output: float = 0.0
    template: Opcode | None = None
    products: float = 0.0
    called: float = 0.0
    nests: int = 1
    block_bytes: float = 0.0
    row_elements: float = 0.0
    serial: float = 0.0
    reduced: float = 0.0
    strided: float = 0.0
    spreads: bool = False
    halves: float = 0.0
    rounded: float = 0.0


NEAR_BYTES = 1 << 15
"""Size of an array up to which it does not matter in which order it is read."""
SHORT_ROW = 16
"""Number of elements of a row below which an array may be read across its rows."""


def summarize(instruction: HloInstruction) -> KernelSummary:
    """Return the summary of the kernel of a fusion or a single instruction."""
    if instruction.opcode is Opcode.FUSION:
        return summarize_body(instruction.attributes["calls"])
    return _Walk([instruction], (instruction,), instruction.operands).summary()


def summary_key(instruction: HloInstruction) -> Hashable:
    """Return a key of the kernel of a single, unfused instruction; equal keys imply equal summaries."""
    i, operands = instruction, instruction.operands
    same = tuple(map(operands.index, operands)) if len(operands) > 1 else ()
    static = tuple([i.attributes.get(a) for a in INDEX_ATTRIBUTES]) if i.attributes else ()
    called = flops_per_element(i) if i.opcode in SPECIFIC else 0.0
    in_place = i.opcode is Opcode.DYNAMIC_UPDATE_SLICE and _may_be_overwritten(operands[0])
    return i.opcode, i.shape, tuple([o.shape for o in operands]), same, static, called, in_place


def summarize_body(body: HloComputation) -> KernelSummary:
    """Return the summary of the kernel of a fused computation."""
    root = body.root
    outputs = root.operands if root.opcode is Opcode.TUPLE else (root,)
    inside = [i for i in body.post_order() if i.opcode is not Opcode.PARAMETER]
    if root.opcode is Opcode.TUPLE:
        inside.remove(root)
    return _Walk(inside, outputs, body.parameters).summary()


def summarize_instructions(inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction]) -> KernelSummary:
    """Return the summary of the kernel of some instructions of a computation, none of which updates in place.

    Args:
        inside: what it computes, operands first. It reads the other operands, which are its inputs in this order.
        outputs: those of them that it yields.
    """
    members = set(inside)
    inputs = dict.fromkeys(o for i in inside for o in i.operands if o not in members)
    return _Walk(inside, outputs, tuple(inputs)).summary()


def add_use(contexts: Contexts, context: int, use: Use) -> None:
    """Add a use; uses in the same context are the same elements, and are not counted twice."""
    found = contexts.get(context)
    if found is None and len(contexts) >= CONTEXT_LIMIT:
        context = _MANY
        found = contexts.get(_MANY)
    if found is None:
        contexts[context] = use
    elif context == _MANY:
        copies = min(found.copies + use.copies, 1 << 20)
        contexts[context] = Use(found.evaluations + use.evaluations, found.distinct + use.distinct, copies)
    elif found is not use and found != use:
        most = max(found.evaluations, use.evaluations), max(found.distinct, use.distinct), max(found.copies, use.copies)
        contexts[context] = Use(*most)


def _extent(reduce: HloInstruction) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of elements that are reduced, their dimensions, and those that are kept."""
    dims = reduce.operands[0].shape.dimensions
    kept = [n for d, n in enumerate(dims) if d not in reduce.dimensions]
    return math.prod(dims), tuple(long_dimensions(dims)), tuple(long_dimensions(kept))


def _is_by_rows(reduce: HloInstruction) -> bool:
    """Check whether the dimensions that are kept come before those that are reduced."""
    dims = reduce.operands[0].shape.dimensions
    over = [d in reduce.dimensions for d, n in enumerate(dims) if n != 1]
    return over == sorted(over)


def _is_along_columns(reduce: HloInstruction) -> bool:
    """Check whether the last dimension is kept."""
    dims = reduce.operands[0].shape.dimensions
    over = [d in reduce.dimensions for d, n in enumerate(dims) if n != 1]
    return not over[-1]


def crosses_rows(i: HloInstruction) -> bool:
    """Check whether a transpose or broadcast reads a large array across its rows, one element of each cache line."""
    source, result = i.operands[0].shape, i.shape.dimensions
    if source.byte_size <= NEAR_BYTES or not source.dimensions:
        return False
    last, kept = len(result) - 1, i.dimensions
    if kept[-1] == last if i.opcode is Opcode.TRANSPOSE else (kept[-1] == last or last not in kept):
        return False
    return min(source.dimensions[-1], result[-1]) >= SHORT_ROW


def first_leaf_elements(instruction: HloInstruction) -> int:
    """Return the number of elements of an array, or of the first array of a tuple."""
    shape = instruction.shape
    if shape.is_array:
        return shape.num_elements
    return next((s.num_elements for s in shape.leaves()), 0)


_ONCE = Use(1, 1)
_CROSSING = (Opcode.TRANSPOSE, Opcode.BROADCAST)


class _Walk:
    def __init__(
        self, inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction], inputs: Sequence[HloInstruction]
    ) -> None:
        self.inside, self.outputs, self.inputs = inside, outputs, inputs
        self.members = set(inside)
        self.uses: dict[HloInstruction, Contexts] = {}
        self.own: set[HloInstruction] = set()  # the values whose contexts are not those of what reads them
        # Without calls for most instructions: a summary is made after every fusion.
        self.looped = dict.fromkeys([i for i in inside if i.opcode is Opcode.REDUCE and needs_loop(i)])
        # Reductions of several domains have nests of their own: the largest one, whatever the order of `inside`. Of a
        # square array, that along columns says more: what it needs is not kept, and a gather may pick the columns.
        self.hero = max(self.looped, key=lambda i: (_extent(i), not _is_by_rows(i)), default=None)
        self.largest = 1
        self.full: tuple[int, ...] = ()
        self.kept_count = 0
        self.keeps_rows = True
        self.level: dict[HloInstruction, int] = {}
        self.picks_columns = False  # whether a gather reads what is reduced along columns
        if self.hero is not None:
            self.full = self.hero.operands[0].shape.dimensions
            self.kept_count = first_leaf_elements(self.hero)
            by_rows = _is_by_rows(self.hero)
            self.keeps_rows = by_rows and self.hero.operands[0].shape.byte_size <= ROW_BYTES * self.kept_count
            if not self.keeps_rows:
                self._find_levels()
            if not by_rows:
                level = self.level
                self.picks_columns = any(i.opcode is Opcode.GATHER and level.get(i.operands[0]) for i in inside)

    def _find_levels(self) -> None:
        """Find how many reductions there are on the longest chain of them down from each instruction."""
        level = self.level
        for i in self.inside:
            level[i] = max([level.get(o, 0) for o in i.operands], default=0) + (i in self.looped)

    def _row_of(self, i: HloInstruction) -> int:
        """Return the context of an element of what is reduced, for a reduction or a loop over the outputs.

        The values of a row are kept for the next loop over it, and those of many rows or of a long one are not.
        """
        if self.keeps_rows:
            return _ROW
        level = self.level.get(i, 0)
        if i not in self.looped:
            return _SWEEP if level else _SWEEP - 1  # a loop that needs no reduction stores what the first one combines
        return _SWEEP - min(level, _MAX_SWEEPS)

    def summary(self) -> KernelSummary:
        updates = {o: o.operands[1].shape.num_elements for o in self.outputs if self._in_place(o)}
        changes = {u for o in updates for u in updates_of(o, self.members)}
        self.largest = largest = max((updates.get(o, first_leaf_elements(o)) for o in self.outputs), default=1)
        for o in self.outputs:
            n = updates.get(o, first_leaf_elements(o))
            self._need(o, self._root_context(o, n, n if updates else largest), Use(n, n))
        flops, statements, products, serial, reduced, strided = 0.0, 0, 0.0, 0.0, 0.0, 0.0
        templates = [i for i in self.inside if i.opcode in TEMPLATE_OPS]
        in_steps = any(i.opcode is Opcode.REDUCE_WINDOW and scans_rows(i) for i in templates)
        spread = {i for i in self.inside if i.opcode is Opcode.PAD and any(d.interior for d in i.attributes["padding"])}
        nested = self._above(spread) if len(spread) > 1 else set()
        summed: Contexts = {}  # chains of elementwise ops have the same contexts
        evaluations, copies = 0.0, 0
        for i in reversed(self.inside):
            contexts = self.uses.get(i)
            if contexts is None:
                continue
            op = i.opcode
            if i in self.looped:
                # A row is reduced once, whatever the number of its users.
                n = first_leaf_elements(i)
                contexts = {_KEPT: Use(n, n, 1)}
            if op in TEMPLATE_OPS:
                if op in (Opcode.DOT, Opcode.CONVOLUTION):
                    products += product_time(i)
                else:
                    flops += library_flops(i)
                statements += 1
                self._propagate_template(i)
                continue
            if contexts is not summed:
                summed, evaluations, copies = contexts, 0.0, 0
                for each, _, uses in contexts.values():
                    evaluations += each
                    copies += uses
            per_element = flops_per_element(i) if op in SPECIFIC else FLOPS[op]
            if i in nested:
                per_element = NESTED_PAD
            own = evaluations * per_element
            flops += own
            if in_steps and per_element > 1.0:
                serial += own
            if op in _CROSSING and crosses_rows(i):
                strided += evaluations
            if op is Opcode.REDUCE:
                statements += copies * _unrolled(i)
                if SHARED_FROM <= reduced_elements(i) < LOOP_FROM:
                    reduced = max(reduced, evaluations * reduced_elements(i))
            elif op is not Opcode.CONSTANT:
                statements += copies
            if changes and i in changes:
                self._propagate_update(i, contexts, changes)
            elif i.operands:
                self._propagate(i, contexts)
        inputs = {p: self._input(p) for p in self.inputs}
        elements, block_bytes, row_elements = largest, 0.0, 0.0
        if self.hero is not None:
            elements = self.kept_count
            if any(i.sweeps > 1 for i in inputs.values()):
                elements, block_bytes = self._blocks(inputs)
                if _is_by_rows(self.hero):
                    row_elements = math.prod(self.full) / max(1, self.kept_count)
        written = [self._written(o) for o in self.outputs]
        halves = [(o, w) for o, w in zip(self.outputs, written, strict=True) if _is_half(o)]
        nests = self._nests(set(updates))
        return KernelSummary(
            inputs=tuple(inputs[p] for p in self.inputs),
            bytes_read=sum(r.bytes * r.sweeps * self._reads(p, nests) for p, r in inputs.items()),
            loads=sum(r.loads for r in inputs.values()),
            bytes_written=sum(written),
            flops=flops,
            statements=statements,
            elements=max(1, elements),
            looped_reduction=self.hero is not None,
            in_place=bool(updates),
            largest_output=max(written, default=0.0),
            template=templates[0].opcode if templates else None,
            products=products,
            called=self._called() if products else 0.0,
            nests=nests,
            block_bytes=block_bytes,
            row_elements=row_elements,
            serial=serial,
            reduced=reduced,
            strided=strided,
            spreads=bool(spread),
            halves=sum(w / 2 for _, w in halves),
            rounded=self._rounded(halves),
        )

    def _rounded(self, halves: Sequence[tuple[HloInstruction, float]]) -> float:
        """Return the elements of some outputs, given with their bytes, that are computed and not only moved."""
        if not halves:
            return 0.0
        share: dict[HloInstruction, float] = {}
        for i in self.inside:
            if i.opcode is Opcode.CONCATENATE:
                parts = [o.shape.num_elements * share.get(o, 0.0) for o in i.operands]
                share[i] = sum(parts) / max(1, i.shape.num_elements)
            elif i.opcode.has(Trait.MOVEMENT):
                share[i] = share.get(i.operands[0], 0.0)
            else:
                share[i] = float(i.opcode is not Opcode.CONSTANT)
        return sum(w / 2 * share.get(o, 0.0) for o, w in halves)

    def _above(self, some: Set[HloInstruction]) -> set[HloInstruction]:
        """Return those of some instructions that are computed from others of them."""
        reached, found = set[HloInstruction](), set[HloInstruction]()
        for i in self.inside:
            above = not reached.isdisjoint(i.operands)
            if above and i in some:
                found.add(i)
            if above or i in some:
                reached.add(i)
        return found

    def _called(self) -> float:
        """Return the operations of a convolution of f32 that a library should compute with what follows, or 0."""
        root = self.outputs[0]
        hero = next((i for i in self.inside if i.opcode is Opcode.CONVOLUTION), None)
        if hero is None or len(self.outputs) > 1 or root is hero:
            return 0.0
        if {i.shape.element_type for i in (hero, *hero.operands, root)} != {T.F32} or not suits_call(hero):
            return 0.0
        try:
            epilogue = epilogue_of(self.inside, root)
        except UnsupportedError:
            return 0.0
        return library_flops(hero) if epilogue.is_faster else 0.0

    def _blocks(self, inputs: Mapping[HloInstruction, Input]) -> tuple[int, float]:
        """Return the number of blocks along columns, and the bytes of the largest input that one reads again."""
        columns = COLUMNS if self.hero is not None and _is_along_columns(self.hero) else 1
        again = max(i.bytes for i in inputs.values() if i.sweeps > 1)
        share = min(1.0, columns / max(1, self.kept_count))
        if columns > 1:
            # Rows at a large power of two from each other share few sets of a cache, which they may fill.
            stride = int(again) * self.kept_count // max(1, math.prod(self.full))
            share = min(1.0, max(share, (stride & -stride) / max(1, 4 * stride)))
        return max(1, self.kept_count // columns), again * share

    def _reads(self, p: HloInstruction, nests: int) -> int:
        """Return how many nests read an input: each reads it again."""
        lines = self._lines(p)
        if nests == 1:
            return lines
        rows = {_ROW, _KEPT, *range(_SWEEP - _MAX_SWEEPS, _SWEEP + 1)}
        of_one = {*rows, _MANY, SCALAR}  # a nest of rows and what is computed once
        own = set(self.uses.get(p, ()))
        return lines * max(1, min(nests, len(own - of_one) + (not own.isdisjoint(rows))))

    def _lines(self, p: HloInstruction) -> int:
        """Return how many elements are loaded for each one that is used: a cache line if columns are read one by one.

        Reductions along columns combine adjacent columns together, unless a gather picks the columns.
        """
        if not self.picks_columns or all(c > _SWEEP or c < _SWEEP - _MAX_SWEEPS for c in self.uses.get(p, ())):
            return 1
        return max(1, CACHE_LINE * first_leaf_elements(p) // max(1, p.shape.byte_size))

    def _nests(self, updates: set[HloInstruction]) -> int:
        """Return the number of loop nests, about as `codegen.lowering.nests` finds them."""
        if len(self.outputs) == 1 or updates:
            return 1
        sizes = {first_leaf_elements(o) for o in self.outputs}
        domains = {_extent(i)[1:] for i in self.looped}
        for dims, kept in domains:
            sizes -= {math.prod(dims), math.prod(kept)}
        shapes = {tuple(long_dimensions(o.shape.dimensions)) for o in self.outputs if o.shape.is_array}
        transposed = {s for s in shapes for dims, _ in domains if s != dims and sorted(s) == sorted(dims)}
        return max(1, len(sizes) + len(domains) + len(transposed))

    def _root_context(self, output: HloInstruction, n: int, largest: int) -> int:
        """Return the context of an output of n elements: smaller ones have loops of their own."""
        if self.hero is None:
            return OWN if n == largest else hash((OWN, n))
        if n == self.kept_count:
            return _KEPT
        return self._row_of(output) if n == math.prod(self.full) else hash((_ROW, n))

    def _written(self, output: HloInstruction) -> float:
        if not self._in_place(output):
            return output.shape.byte_size
        return sum(u.operands[1].shape.byte_size for u in updates_of(output, self.members))

    def _in_place(self, output: HloInstruction) -> bool:
        if output.opcode is not Opcode.DYNAMIC_UPDATE_SLICE:
            return False
        base = updates_of(output, self.members)[0].operands[0]
        if len(self.outputs) > 1 and any(u.opcode is not Opcode.TUPLE for u in output.users):
            return False
        return base in self.inputs and _may_be_overwritten(base)

    def _input(self, p: HloInstruction) -> Input:
        n = first_leaf_elements(p)
        return Input(n, p.shape.byte_size / n if n else 0.0, self.uses.get(p, {}))

    def _need(self, value: HloInstruction, context: int, use: Use) -> None:
        contexts = self.uses.get(value)
        if contexts is None:
            contexts = self.uses[value] = {}
            self.own.add(value)
        elif value not in self.own:
            contexts = self.uses[value] = dict(contexts)
            self.own.add(value)
        add_use(contexts, context, use)

    # ---- from a result to the operands

    def _propagate(self, i: HloInstruction, contexts: dict[int, Use]) -> None:
        elementwise, uses = i.opcode.is_elementwise, self.uses
        for n, o in enumerate(i.operands):
            if o.shape.num_elements == 1:
                self._need(o, SCALAR, _ONCE)
            elif elementwise:
                found = uses.get(o)
                if found is None:  # all readers of `i` came before it, so that its contexts are final
                    uses[o] = contexts
                    continue
                if found is contexts and _MANY not in contexts:
                    continue  # the same uses once more are the same elements
                for context, use in contexts.items():
                    if found.get(context) is not use or context == _MANY:
                        self._need(o, context, use)
                        found = uses[o]
            elif i.opcode is Opcode.REDUCE:
                for context, use in contexts.items():
                    self._move_reduce(i, o, context, use)
            else:
                self._move(i, n, o, contexts)

    def _propagate_template(self, i: HloInstruction) -> None:
        """Need the operands of an op with an algorithm of its own, whose work includes the loads of what it reads."""
        for n, o in enumerate(i.operands):
            size = o.shape.num_elements
            times = 0.0 if o in self.inputs else operand_reads(i, n)
            self._need(o, hash((i.opcode, i.shape.is_array and i.shape.dimensions, n)), Use(size * times, size))

    def _propagate_update(self, update: HloInstruction, contexts: Contexts, others: Set[HloInstruction]) -> None:
        """Need only the new elements of an update in place, in the order of the other outputs, and where they go.

        An update before it in the same array, which is among `others`, is needed as far.
        """
        needed = update.operands[:2] if update.operands[0] in others else update.operands[1:2]
        for context, use in contexts.items():
            for o in needed:
                self._need(o, context, use)
        for start in update.operands[2:]:
            self._need(start, SCALAR, Use(1, 1))

    def _move(self, i: HloInstruction, n: int, o: HloInstruction, contexts: Contexts) -> None:
        if i.opcode is Opcode.CONCATENATE and self._is_only_output(i):
            n = _first_joined(i, n)
        size, share, moves = float(o.shape.num_elements), evaluation_share(i, n, o), index_move(i, n)
        repeats = i.opcode is Opcode.BROADCAST and self.hero is not None
        for context, use in contexts.items():
            if repeats and self._from_row(i, o, context):
                self._need(o, _KEPT, Use(self.kept_count, self.kept_count, 1))
                continue
            distinct = min(size, use.distinct * share)
            key = context if moves is None else hash((context, moves))
            self._need(o, key, Use(use.evaluations * share, distinct, use.copies))

    def _is_only_output(self, i: HloInstruction) -> bool:
        return len(self.outputs) == 1 and self.outputs[0] is i and self.hero is None

    def _from_row(self, i: HloInstruction, o: HloInstruction, context: int) -> bool:
        """Check whether a broadcast repeats one value per row along the row."""
        in_row = context == _ROW or _SWEEP - _MAX_SWEEPS <= context <= _SWEEP
        in_row = in_row and self.hero is not None and i.shape.dimensions == self.full
        return in_row and o.shape.num_elements == self.kept_count

    def _move_reduce(self, i: HloInstruction, o: HloInstruction, context: int, use: Use) -> None:
        if i in self.looped:
            n, dims = o.shape.num_elements, o.shape.dimensions
            is_row = long_dimensions(dims) == long_dimensions(self.full)
            self._need(o, self._row_of(i) if is_row else hash((_ROW, dims)), Use(n, n, 1))
            return
        times = reduced_elements(i)
        size = o.shape.num_elements
        if self.hero is None and size == self.largest and _is_short_row(i):
            self._need(o, OWN, Use(size, size, use.copies * times))
            return
        use = Use(use.evaluations * times, min(float(size), use.distinct * times), use.copies * times)
        self._need(o, hash((context, index_move(i, 0))), use)


def _is_short_row(reduce: HloInstruction) -> bool:
    """Check for a reduction of rows that kernels transpose in blocks."""
    source = reduce.operands[0].shape
    is_last = tuple(reduce.dimensions) == (source.rank - 1,) and source.dimensions[-1] in SHORT_ROWS
    return is_last and source.element_type in ROW_TYPES


def _is_half(output: HloInstruction) -> bool:
    return output.shape.is_array and output.shape.element_type.is_half


def _first_joined(concatenate: HloInstruction, n: int) -> int:
    """Return the first of the operands that are computed together with one of them, which share its index.

    Operands of equal shapes share a nest, as `codegen.lowering.lower` says; those that read nothing in common also have
    nothing that would be counted once.
    """
    shape = concatenate.operands[n].shape.dimensions
    same = [k for k, o in enumerate(concatenate.operands) if o.shape.dimensions == shape]
    return same[same.index(n) // MOST_JOINED * MOST_JOINED]


def _may_be_overwritten(base: HloInstruction) -> bool:
    return base.opcode is not Opcode.PARAMETER or len(base.users) == 1


def _unrolled(i: HloInstruction) -> int:
    return reduced_elements(i) if i.opcode is Opcode.REDUCE and not needs_loop(i) else 1
