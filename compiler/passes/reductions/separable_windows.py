"""Large windows of a reduction, dimension by dimension, each as slices that are combined one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.attributes import SliceDim, Window, WindowDim
from compiler.passes.expanders.map_inliner import lifted
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import identity_value, scalar_function, splat_value
from compiler.passes.reductions.windows import edges, in_summing_type, is_running

MIN_ELEMENTS, MIN_RATIO = 16, 2
"""Elements of a window, and how many times the combinations of its dimensions, from which on it is divided."""
MOST_DIRECT = 64
"""Elements of a window up to which another pass combines them one after the other if it is not divided."""
LONGEST = 32
"""Elements along one dimension that are combined one by one; of more, parts are combined first."""
DOUBLED, GROUP = 6, 4
"""Elements along one dimension from which on selected ones are found by doubling, and size of the groups from which on
they are stored."""
_IDEMPOTENT = frozenset({Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR})
_SELECTING = frozenset(
    {
        Opcode.PARAMETER, Opcode.CONSTANT, Opcode.COMPARE, Opcode.SELECT, Opcode.AND, Opcode.OR, Opcode.NOT, Opcode.XOR,
        Opcode.TUPLE,
    }
)  # fmt: skip
Arrays: TypeAlias = tuple[HloInstruction, ...]


@dataclass(frozen=True)
class _Combiner:
    """How elements are combined.

    Attributes:
        combine: combines two arrays, or groups of arrays, elementwise; None if that is not possible.
        repeats: whether an element may be combined several times.
        doubles: whether groups are doubled, because combining takes several ops; elements are combined several times.
    """

    combine: Callable[[Arrays, Arrays], Arrays | None]
    repeats: bool
    doubles: bool = False

    def all(self, terms: Sequence[Arrays]) -> Arrays | None:
        """Return the combination of several terms in order."""
        total: Arrays | None = terms[0]
        for term in terms[1:]:
            total = None if total is None else self.combine(total, term)
        return total


def suits_separation(i: HloInstruction) -> bool:
    """Check for a window of several dimensions whose elements are many more than those along the dimensions together.

    Its function must be an op that combines in any order.
    """
    if i.opcode is not Opcode.REDUCE_WINDOW or len(i.operands) != 2 or not i.shape.is_array:
        return False
    x, init = i.operands
    t, function = i.shape.element_type, scalar_function(i.attributes["to_apply"])
    if function is None or identity_value(function, t) is None or 0 in (*i.shape.dimensions, *x.shape.dimensions):
        return False
    if {x.shape.element_type, init.shape.element_type} != {t} or is_running(i):
        return False
    elements = math.prod(w.size for w in _window(i))
    is_shorter = elements > MOST_DIRECT or elements * i.shape.num_elements >= MIN_RATIO * _separate_work(i)
    return _is_large(i) and is_shorter


def separated(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return a reduce-window for which `suits_separation` holds, dimension by dimension; None for others.

    Sums change their order; those of floats narrower than 32 bits are computed in f32 and rounded once.
    """
    function = scalar_function(i.attributes["to_apply"]) if suits_separation(i) else None
    neutral = None if function is None else identity_value(function, i.shape.element_type)
    if function is None or neutral is None:
        return None
    op = function
    starts_neutral = splat_value(i.operands[1]) == neutral
    x, init = in_summing_type(i, b)

    def combine(first: Arrays, second: Arrays) -> Arrays:
        return (b.add(op, first[0], second[0]),)

    starts = (b.scalar(neutral, x.shape.element_type),)
    found = _along_all(i, (x,), starts, _Combiner(combine, op in _IDEMPOTENT), _order(i), b)
    if found is None:
        return None
    (total,) = found
    if not starts_neutral:
        total = b.add(op, b.broadcast(init, i.shape.dimensions, ()), total)
    return b.convert(total, i.shape.element_type)


def separated_selection(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return a large reduce-window that selects one of the elements, such as a maximum with its index, by dimension.

    The last dimension is first, so that of equal elements the first in row-major order stays the first.
    """
    count, function = len(i.operands) // 2, i.attributes["to_apply"]
    results = i.shape.tuple_shapes if i.shape.is_tuple else (i.shape,)
    if any(0 in s.dimensions for s in (*results, *(o.shape for o in i.operands))) or not _is_large(i) or is_running(i):
        return None
    inputs, starts = i.operands[:count], i.operands[count:]
    if not _selects(function) or any(
        x.shape.element_type is not s.shape.element_type for x, s in zip(inputs, starts, strict=True)
    ):
        return None

    def combine(first: Arrays, second: Arrays) -> Arrays | None:
        made = lifted(function, [*first, *second], first[0].shape.dimensions, b)
        return None if made is None else tuple(made)

    found = _along_all(i, inputs, starts, _Combiner(combine, True, doubles=True), _moving(i)[::-1], b)
    if found is None:
        return None
    return b.add(Opcode.TUPLE, *found) if i.shape.is_tuple else found[0]


def _is_large(i: HloInstruction) -> bool:
    sizes = [w.size for w in _window(i)]
    several = sum(s > 1 for s in sizes) > 1
    return (several and math.prod(sizes) >= MIN_ELEMENTS) or max(sizes, default=1) > LONGEST


def _selects(function: HloComputation) -> bool:
    """Check whether the results are one of the two groups of arguments, so that each may be combined several times."""
    root = function.root
    results = root.operands if root.opcode is Opcode.TUPLE else (root,)
    if any(f.opcode not in _SELECTING for f in function.instructions):
        return False
    count, choices = len(results), set()
    for n, r in enumerate(results):
        if r.opcode is not Opcode.SELECT:
            return False
        taken = tuple(o.parameter_number for o in r.operands[1:])
        if set(taken) != {n, n + count}:
            return False
        choices.add((r.operands[0], taken[0] == n))
    return len(choices) == 1


def _window(i: HloInstruction) -> Sequence[WindowDim]:
    window: Window = i.attr("window", Window())
    return window.dims


def _moving(i: HloInstruction) -> list[int]:
    """Return the dimensions that the window changes."""
    return [d for d, w in enumerate(_window(i)) if w != WindowDim(1)]


def _order(i: HloInstruction) -> list[int]:
    """Return the dimensions that the window changes, those first along which the fewest positions are left."""
    return sorted(_moving(i), key=lambda d: -_window(i)[d].stride)


def _separate_work(i: HloInstruction) -> int:
    """Return the number of elements that are combined dimension by dimension."""
    sizes, work = list(i.operands[0].shape.dimensions), 0
    for d in _order(i):
        w = _window(i)[d]
        if w.size > LONGEST:
            part = _part(w)
            work += part * math.prod(sizes)
            sizes[d] = i.shape.dimensions[d]
            work += -(-w.size // part) * math.prod(sizes)
        else:
            sizes[d] = i.shape.dimensions[d]
            work += w.size * math.prod(sizes)
    return work


def _part(w: WindowDim) -> int:
    """Return how many adjacent elements of a long window are combined first."""
    return math.isqrt(w.size - 1) + 1


def _along_all(
    i: HloInstruction,
    arrays: Arrays,
    starts: Arrays,
    combiner: _Combiner,
    order: Sequence[int],
    b: Builder,
) -> Arrays | None:
    """Return the combinations of a reduce-window; its dimensions are combined in this order."""
    window = _window(i)
    if any(w.reversal for w in window):
        return None
    result = i.shape if i.shape.is_array else i.shape.tuple_shapes[0]
    padded = tuple(b.pad(x, s, edges(window)) for x, s in zip(arrays, starts, strict=True))
    found: Arrays | None = arrays if padded == arrays else _stored(padded, b)
    for d in order:
        found = None if found is None else _along(found, d, window[d], result.dimensions[d], combiner, b)
    return found


def _along(arrays: Arrays, d: int, w: WindowDim, count: int, combiner: _Combiner, b: Builder) -> Arrays | None:
    """Return the combinations of a window along one dimension of padded arrays at `count` positions.

    Args:
        arrays: the arrays.
        d: the dimension.
        w: size, stride and dilation of the window.
        count: number of its positions.
        combiner: how elements are combined.
        b: where they are built.
    """

    def taken(of: Arrays, element: int) -> Arrays:
        first = element * w.rhs_dilate
        cut = SliceDim(first, first + (count - 1) * w.stride + 1, w.stride)
        return _cut(of, d, cut, b)

    if w.size >= DOUBLED and combiner.doubles:
        # Combining adjacent groups doubles their size. The last two groups may overlap, which changes no selection.
        group, size = arrays, 1
        while 2 * size <= w.size:
            length = group[0].shape.dimensions[d] - size * w.rhs_dilate
            halves = [_cut(group, d, SliceDim(first, first + length), b) for first in (0, size * w.rhs_dilate)]
            made = combiner.all(halves)
            if made is None:
                return None
            size *= 2
            group = made if size < GROUP else _stored(made, b)
        return combiner.all([taken(group, k) for k in dict.fromkeys((0, w.size - size))])
    if w.size <= LONGEST:
        return combiner.all([taken(arrays, k) for k in range(w.size)])
    part = _part(w)
    length = arrays[0].shape.dimensions[d] - (part - 1) * w.rhs_dilate
    slices = [_cut(arrays, d, SliceDim(k * w.rhs_dilate, k * w.rhs_dilate + length), b) for k in range(part)]
    parts = combiner.all(slices)
    if parts is None:
        return None
    parts = _stored(parts, b)
    whole, rest = divmod(w.size, part)
    terms = [taken(parts, k * part) for k in range(whole)]
    if rest and combiner.repeats:
        terms.append(taken(parts, w.size - part))
    elif rest:
        terms += [taken(arrays, k) for k in range(whole * part, w.size)]
    return combiner.all(terms)


def _cut(arrays: Arrays, d: int, cut: SliceDim, b: Builder) -> Arrays:
    return tuple(
        b.slice(x, [cut if k == d else SliceDim(0, n) for k, n in enumerate(x.shape.dimensions)]) for x in arrays
    )


def _stored(arrays: Arrays, b: Builder) -> Arrays:
    """Return arrays that are computed once, not in the loop of each element of a window."""
    return tuple(b.add(Opcode.OPTIMIZATION_BARRIER, x) for x in arrays)
