"""Emission of reductions: a loop hoisted to where the result is invariant, or straight-line code for few elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from compiler.codegen.lowering.emission import EmissionState
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.nest.loop_ir import LoopKind
from compiler.codegen.nest.scalar_ops import COMBINERS, SCALAR_BYTES, is_supported_type
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode, Trait
from compiler.ir.shape import Shape

UNROLL_LIMIT = 16
"""Reductions of at most this many elements are unrolled."""
LANES_FROM = 8
"""Number of adjacent elements from which on an expensive reduction that is computed once is a loop in vectors."""
VECTOR_BYTES = 64
"""Bytes of a vector; whole vectors are also faster where they only combine elements."""

_REGULAR = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.IOTA, *INDEXING_MAPS})
"""Ops besides elementwise ones of which all elements are computed by the same statements."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The iteration domain of a reduction, without dimensions of size 1.

    Reductions over equal domains can share loops even if their operands differ in dimensions of size 1. A position in
    the domain is one index per dimension of `sizes`; `operand_index` and `result_index` translate it to an index into
    the arrays of a particular reduction.

    Attributes:
        sizes: sizes of the operand's dimensions, without those of size 1.
        reduced: positions in `sizes` of the reduced dimensions.
        kept: the dimensions that are not reduced.
    """

    sizes: tuple[int, ...]
    reduced: frozenset[int]
    kept: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", tuple([k for k in range(len(self.sizes)) if k not in self.reduced]))

    @staticmethod
    def of(reduce: HloInstruction) -> Domain:
        """Return the domain of a reduce instruction."""
        return _domain(reduce.operands[0].shape.dimensions, tuple(reduce.dimensions))

    @property
    def is_by_rows(self) -> bool:
        """Whether the kept dimensions come before the reduced ones, so that what is reduced is adjacent in memory."""
        return self.kept == tuple(range(len(self.kept)))

    @property
    def result_and_operand(self) -> tuple[int, int]:
        """The numbers of elements of a result and of an operand."""
        return math.prod(self.sizes[k] for k in self.kept), math.prod(self.sizes)

    def position(self, kept: Sequence[IndexExpr], reduced: Sequence[IndexExpr]) -> Index:
        """Return a position, given the indices along the kept and along the reduced dimensions, each in order."""
        sources = {True: iter(reduced), False: iter(kept)}
        return tuple(next(sources[k in self.reduced]) for k in range(len(self.sizes)))


@lru_cache(maxsize=4096)
def _domain(dimensions: tuple[int, ...], reduced: tuple[int, ...]) -> Domain:
    dims = [(n, d in reduced) for d, n in enumerate(dimensions) if n != 1]
    return Domain(tuple([n for n, _ in dims]), frozenset([k for k, (_, is_reduced) in enumerate(dims) if is_reduced]))


def operand_index(reduce: HloInstruction, position: Index) -> Index:
    """Return the index into the operands of a reduce at a position of its domain."""
    return with_unit_dimensions(position, reduce.operands[0].shape.dimensions)


def result_index(reduce: HloInstruction, kept: Index) -> Index:
    """Return the index into the results of a reduce, given the indices along the kept dimensions of its domain."""
    return with_unit_dimensions(kept, _first_shape(reduce).dimensions)


def with_unit_dimensions(index: Index, dims: Sequence[int]) -> Index:
    """Insert zeros for dimensions of size 1 into an index and return an index into an array of shape `dims`."""
    rest = iter(index)
    return tuple(ix.const(0) if n == 1 else next(rest) for n in dims)


def without_unit_dimensions(index: Index, dims: Sequence[int]) -> Index:
    """Remove dimensions of size 1 from an index into an array of shape `dims` and return the result."""
    return tuple(at for at, n in zip(index, dims, strict=True) if n != 1)


def reduce_values(e: EmissionState, i: HloInstruction, index: Index) -> tuple[str, ...]:
    """Emit the reduce `i` at `index` and return the names of its results: one, or several if it is variadic.

    Raises:
        UnsupportedError: it would be recomputed too often, or its loop would be inside a branch.
    """
    full = i.operands[0].shape.dimensions
    if math.prod(full[d] for d in i.dimensions) <= UNROLL_LIMIT and not _is_once_in_lanes(e, i):
        return _emit_unrolled(e, i, index)
    _refuse_recomputation(e, i)
    domain = Domain.of(i)
    kept = without_unit_dimensions(index, _first_shape(i).dimensions)
    vars_ = [Var(e.fresh("r"), domain.sizes[k]) for k in sorted(domain.reduced)]
    position = domain.position(kept, [ix.of(v) for v in vars_])
    if not _is_simple(i):
        return _emit_general(e, i, vars_, operand_index(i, position))
    members = e.groups.get(i, (i,))
    if not all(_is_simple(m) for m in members):
        members = (i,)
    names = _emit_simple(e, members, vars_, position)
    for m, name in zip(members, names, strict=True):
        e.remember(m, result_index(m, kept), (name,))
    return (names[members.index(i)],)


def combiner_of(computation: HloComputation) -> Opcode | None:
    """Return the associative binary op that a reducer consists of, or None if it is anything else."""
    root = computation.root
    if root.opcode not in COMBINERS or len(computation) != 3:
        return None
    a, b = root.operands
    both = a.opcode is Opcode.PARAMETER and b.opcode is Opcode.PARAMETER and a is not b
    return root.opcode if both and a.shape.compatible(root.shape) else None


def _source_index(i: HloInstruction, index: Index, reduced: dict[int, IndexExpr]) -> Index:
    kept = iter(index)
    return tuple(reduced[d] if d in reduced else next(kept) for d in range(i.operands[0].shape.rank))


def _refuse_recomputation(e: EmissionState, i: HloInstruction) -> None:
    runs = math.prod(v.extent for f in e.frames[e.runs_from :] for v in f.vars)
    results = max(1, _first_shape(i).num_elements)
    if runs > results * 2:
        raise UnsupportedError(f"%{i.name}: the reduction would be computed {runs} times for {results} results")
    if any(f.is_guard for f in e.frames):
        raise UnsupportedError(f"%{i.name}: a reduction inside a branch has no kernel")


def _is_once_in_lanes(e: EmissionState, i: HloInstruction) -> bool:
    """Check whether a short reduction is emitted outside of all loops and is faster as a loop in vectors.

    Inside a loop, the unrolled elements of several results run in vectors. Outside of all, they would be scalar code.
    """
    if not e.loops_once or any(f.vars or f.is_guard for f in e.frames) or not _is_simple(i):
        return False
    domain, t = Domain.of(i), i.shape.element_type
    if domain.reduced != {len(domain.sizes) - 1} or not t.is_float or not is_supported_type(t):
        return False
    n, size = domain.sizes[-1], SCALAR_BYTES[t]
    is_whole = n * size % VECTOR_BYTES == 0
    if not is_whole and (n < LANES_FROM or size > VECTOR_BYTES // UNROLL_LIMIT):
        return False
    cone = _regular_cone(e, i.operands[0])
    if cone is None:
        return False
    types = {x.shape.element_type for x in cone if x.opcode.has(Trait.EXPENSIVE)}
    return all(SCALAR_BYTES[x] <= VECTOR_BYTES // UNROLL_LIMIT for x in types) if types else is_whole


def _regular_cone(e: EmissionState, start: HloInstruction) -> list[HloInstruction] | None:
    """Return what an element is computed from; None unless it is computed in the same way at any index."""
    cone, seen = [start], {start}
    for i in cone:
        if i in e.sources or i in e.bound or i.shape.element_type not in SCALAR_BYTES:
            return None
        if not (i.opcode in _REGULAR or i.opcode.is_elementwise) or i.opcode is Opcode.MAP:
            return None
        if i.opcode is Opcode.CONSTANT and i.shape.num_elements != 1:
            return None
        for o in i.operands:
            if o not in seen:
                seen.add(o)
                cone.append(o)
    return cone


def _first_shape(i: HloInstruction) -> Shape:
    return i.shape.tuple_shapes[0] if i.shape.is_tuple else i.shape


def _is_simple(i: HloInstruction) -> bool:
    return len(i.operands) == 2 and combiner_of(i.attributes["to_apply"]) is not None


def _emit_unrolled(e: EmissionState, i: HloInstruction, index: Index) -> tuple[str, ...]:
    n = len(i.operands) // 2
    full = i.operands[0].shape.dimensions
    names = tuple(e.value(o, ()) for o in i.operands[n:])
    extents = [full[d] for d in i.dimensions]
    for k in range(math.prod(extents)):
        at = dict(zip(i.dimensions, ix.delinearize(ix.const(k), extents), strict=True))
        source = _source_index(i, index, at)
        elements = [e.value(o, source) for o in i.operands[:n]]
        names = e.inline(i.attributes["to_apply"], [*names, *elements])
    return names


def _emit_simple(e: EmissionState, members: tuple[HloInstruction, ...], vars_: list[Var], position: Index) -> list[str]:
    """Emit reductions over one domain as one `Reduce`, and return the names of the results."""
    reductions: list[lir.Reduction] = []
    with e.reduction(vars_, reductions):
        for m in members:
            t, op = m.shape.element_type, combiner_of(m.attributes["to_apply"])
            if op is None or not is_supported_type(t):
                raise UnsupportedError(f"%{m.name}: element type {t.text} has no kernel")
            element = e.value(m.operands[0], operand_index(m, position))
            reductions.append(lir.Reduction(e.fresh("a"), t, op, element))
    names: list[str] = []
    for m, r in zip(members, reductions, strict=True):
        init = e.value(m.operands[1], ())
        names += e.inline(m.attributes["to_apply"], [init, r.name])
    return names


def _emit_general(e: EmissionState, i: HloInstruction, vars_: list[Var], source: Index) -> tuple[str, ...]:
    """Emit a reduction with an arbitrary reducer as a sequential loop nest; return the names of its results."""
    n = len(i.operands) // 2
    names = []
    for o in i.operands[n:]:
        name = e.fresh("a")
        e.add(lir.Accumulator(name, o.shape.element_type, e.value(o, ())))
        names.append(name)
    types = [o.shape.element_type for o in i.operands[n:]]
    with e.loops(vars_, LoopKind.SERIAL):
        elements = [e.value(o, source) for o in i.operands[:n]]
        current = [e.let(t, lir.Current(a)) for a, t in zip(names, types, strict=True)]
        for name, value in zip(names, e.inline(i.attributes["to_apply"], [*current, *elements]), strict=True):
            e.add(lir.Assign(name, value))
    return tuple(e.let(t, lir.Current(a)) for a, t in zip(names, types, strict=True))
