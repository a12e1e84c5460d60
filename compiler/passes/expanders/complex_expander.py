"""Complex expansion: complex arithmetic becomes arithmetic on real and imaginary parts, which kernels can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.while_loop import LoopView
from compiler.interpreter.scalars import binary_opcode
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from compiler.passes.expanders.complex_functions import FUNCTIONS, Reals, power
from compiler.passes.expanders.complex_sorts import PARTS, comparator_of_parts, split_sort
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable
from compiler.passes.loops.loop_editing import LoopEdit, Loops

_LEAVES = (Opcode.CONSTANT, Opcode.COMPLEX)
_BY_PART = frozenset(
    {
        Opcode.ADD, Opcode.SUBTRACT, Opcode.NEGATE, Opcode.COPY, Opcode.SELECT, Opcode.BROADCAST, Opcode.RESHAPE,
        Opcode.TRANSPOSE, Opcode.SLICE, Opcode.REVERSE, Opcode.CONCATENATE, Opcode.PAD, Opcode.GATHER,
        Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE,
    }
)  # fmt: skip
"""Ops whose real part depends only on the real parts of their operands, and whose imaginary part only on theirs."""
_EXPANDED = _BY_PART | {*_LEAVES, Opcode.CONVERT, Opcode.MULTIPLY, Opcode.DIVIDE}
_ARITHMETIC = frozenset({Opcode.ADD, Opcode.SUBTRACT, Opcode.NEGATE, Opcode.MULTIPLY, Opcode.DIVIDE, Opcode.CONVERT})


@register
@dataclass(frozen=True)
class ComplexExpander:
    """Compute on complex arrays as on two arrays of real numbers.

    Connected ops are expanded together, if that saves more complex ops than it adds where their values come from other
    complex ops or go to them. Arithmetic of c64 is always expanded, because kernels read and make the parts of a c64.
    So are absolute values, elementary functions, comparisons, products, sorts, matrix products and sums, those of
    windows and, with products, of scattered updates as well. A loop carries the two parts of an element on which such
    ops work.

    Attributes:
        wide: whether all this holds for c128, too, but for matrix products: where kernels read and make their parts.
        wide_products: whether to expand matrix products of c128 as well, for which a GPU has a library.
        in_loops: whether to change only programs with a loop that carries complex numbers.
    """

    name: ClassVar[str] = "complex-expander"
    wide: bool = False
    wide_products: bool = False
    in_loops: bool = False

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        treated = set(treatable(module))
        found = [c for c in module.control_flow_computations() if c in treated]
        if not any(_is_complex(i) for c in found for i in c.instructions):
            return False
        if self.in_loops and not any(map(_carries_complex, (i for c in found for i in c.instructions))):
            return False
        changed = _split_loops(module)
        for computation in module.control_flow_computations():
            if computation in treated:
                changed |= _expand_sorts(module, computation, self.wide)
                changed |= _expand_single_ops(module, computation, self.wide, self.wide_products)
                changed |= _expand(computation, self.wide)
        return changed


def _is_complex(i: HloInstruction) -> bool:
    return i.shape.is_array and i.shape.element_type in PARTS and not i.shape.is_dynamic


def _carries_complex(i: HloInstruction) -> bool:
    return i.opcode is Opcode.WHILE and any(s.element_type in PARTS for s in i.shape.leaves())


def _is_expanded(i: HloInstruction) -> bool:
    if not _is_complex(i) or i.opcode not in _EXPANDED:
        return False
    return i.opcode is not Opcode.CONVERT or not i.operand(0).shape.is_dynamic


# ---- loops


def _split_loops(module: HloModule) -> bool:
    loops = Loops(module)
    changed = False
    for view in loops.views():
        found = [n for n in range(view.size) if _is_split(view, n)]
        if found:
            _split_elements(loops.owned(view), found)
            changed = True
    return changed


def _is_split(view: LoopView, n: int) -> bool:
    if not _is_complex(view.init[n]) or view.condition_reads[n]:
        return False
    users = {u for g in view.body_reads[n] for u in g.users if u is not view.body.root}
    return bool(users) and all(_is_expanded(u) or u.opcode in (Opcode.REAL, Opcode.IMAG, Opcode.ABS) for u in users)


def _split_elements(view: LoopView, found: list[int]) -> None:
    """Carry the real and the imaginary parts of some elements instead of the elements."""
    computation = view.instruction.parent
    assert computation is not None  # noqa: S101 - the loop was found in it
    around, inside = Builder(computation), Builder(view.body)
    kept = [n for n in range(view.size) if n not in found]
    new_index = {old: new for new, old in enumerate(kept)}
    init = [view.init[n] for n in kept] + [p for n in found for p in _parts_of(around, view.init[n])]
    outputs, results = list(view.outputs), view.results
    reads = view.body_reads
    edit = LoopEdit.begin(view, init, new_index)
    joined = {}
    for k, n in enumerate(found):
        first = len(kept) + 2 * k
        joined[n] = inside.add(Opcode.COMPLEX, edit.body_read(first), edit.body_read(first + 1))
        for gte in reads[n]:
            view.body.replace_uses(gte, joined[n])
            outputs = [joined[n] if o is gte else o for o in outputs]
    new = [outputs[n] for n in kept] + [p for n in found for p in _parts_of(inside, outputs[n])]
    loop = edit.finish(new)
    for k, n in enumerate(found):
        for gte in results[n]:
            parts = [around.add(Opcode.GET_TUPLE_ELEMENT, loop, index=len(kept) + 2 * k + p) for p in range(2)]
            computation.replace_uses(gte, around.add(Opcode.COMPLEX, *parts))
    edit.discard()


def _parts_of(b: Builder, x: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    return b.add(Opcode.REAL, x), b.add(Opcode.IMAG, x)


# ---- sequences


def _expand_single_ops(module: HloModule, computation: HloComputation, wide: bool, wide_products: bool = False) -> bool:
    """Compute from the parts of their operands what is no array of complex numbers, sums, and matrix products."""
    fixed = pinned(computation)
    found = [
        i
        for i in computation.post_order()
        if i not in fixed
        and i.opcode in _SINGLE_OPS
        and _has_parts(i, wide_products if i.opcode is Opcode.DOT else wide)
    ]
    changed = False
    for i in found:
        made = _SINGLE_OPS[i.opcode](Builder(computation), i, module)
        if made is not None:
            computation.replace(i, made)
            changed = True
    return changed


def _expand_sorts(module: HloModule, computation: HloComputation, wide: bool) -> bool:
    fixed = pinned(computation)
    types = set(PARTS) if wide else {PrimitiveType.C64}
    found = [
        i
        for i in computation.of_opcode(Opcode.SORT)
        if i not in fixed
        and not i.shape.is_dynamic
        and not types.isdisjoint(o.shape.element_type for o in i.operands)
        and all(o.shape.element_type in types or not o.shape.element_type.is_complex for o in i.operands)
    ]
    for i in found:
        comparator = module.add(comparator_of_parts(i))
        _expand_single_ops(module, comparator, wide)
        _expand(comparator, wide)
        computation.replace(i, split_sort(Builder(computation), i, comparator))
    return bool(found)


def _has_parts(i: HloInstruction, wide: bool) -> bool:
    """Check whether kernels read the parts of the operands of an instruction, or they are known."""
    if not i.shape.is_array or i.shape.is_dynamic:
        return False
    if i.opcode is not Opcode.SCATTER and not all(_is_complex(o) for o in i.operands):
        return False
    x = i.operand(0)
    if not _is_complex(x):
        return False
    if x.shape.element_type is PrimitiveType.C64 or wide:
        return True
    return i.opcode is Opcode.ABS and _is_expanded(x)


def _absolute_value(b: Builder, i: HloInstruction, _: HloModule) -> HloInstruction:
    return Reals(b, i.shape).size(*_parts_of(b, i.operand(0)))


def _comparison(b: Builder, i: HloInstruction, _: HloModule) -> HloInstruction:
    direction = i.attr("direction")
    parts = zip(*(_parts_of(b, x) for x in i.operands), strict=True)
    joined = Opcode.OR if direction == "NE" else Opcode.AND
    return b.add(joined, *(b.compare(x, y, direction) for x, y in parts))


def _sum_or_product(b: Builder, i: HloInstruction, module: HloModule) -> HloInstruction | None:
    reducer = i.attributes["to_apply"]
    op = binary_opcode(reducer)
    if len(i.operands) != 2 or op not in (Opcode.ADD, Opcode.MULTIPLY):
        return None
    (x, y), inits = (_parts_of(b, o) for o in i.operands)
    if op is Opcode.MULTIPLY:
        made = module.add(_product_of_parts(reducer, PARTS[i.shape.element_type]))
        return _joined(b, b.add(Opcode.REDUCE, x, y, *inits, dimensions=i.dimensions, to_apply=made))
    scalar = Shape(PARTS[i.shape.element_type])
    made = module.add(HloComputation(f"{reducer.name}_of_parts"))
    made.root = made.add(Opcode.ADD, [made.add_parameter(n, scalar) for n in range(2)])
    sums = (b.reduce(part, init, i.dimensions, made) for part, init in zip((x, y), inits, strict=True))
    return b.add(Opcode.COMPLEX, *sums)


def _product_of_parts(reducer: HloComputation, t: PrimitiveType) -> HloComputation:
    """Return the product of two complex numbers as a function of four parts, which returns two."""
    made = HloComputation(f"{reducer.name}_of_parts")
    p, q, r, s = (made.add_parameter(n, Shape(t)) for n in range(4))

    def combined(joined: Opcode, *pairs: tuple[HloInstruction, HloInstruction]) -> HloInstruction:
        return made.add(joined, [made.add(Opcode.MULTIPLY, pair) for pair in pairs])

    real, imaginary = combined(Opcode.SUBTRACT, (p, r), (q, s)), combined(Opcode.ADD, (p, s), (q, r))
    made.root = made.add(Opcode.TUPLE, [real, imaginary])
    return made


def _joined(b: Builder, parts: HloInstruction) -> HloInstruction:
    """Return the complex numbers whose parts are the elements of a tuple."""
    return b.add(Opcode.COMPLEX, *(b.add(Opcode.GET_TUPLE_ELEMENT, parts, index=n) for n in range(2)))


def _scattered(b: Builder, i: HloInstruction, module: HloModule) -> HloInstruction | None:
    """Return the sums or products of the updates of a scatter."""
    reducer = i.attributes["to_apply"]
    if len(i.operands) != 3 or binary_opcode(reducer) is not Opcode.MULTIPLY:
        return _sums_at_places(b, i, module)
    operand, indices, updates = i.operands
    made = module.add(_product_of_parts(reducer, PARTS[i.shape.element_type]))
    operands = *_parts_of(b, operand), indices, *_parts_of(b, updates)
    return _joined(b, b.add(Opcode.SCATTER, *operands, **{**i.attributes, "to_apply": made}))


def _sums_at_places(b: Builder, i: HloInstruction, module: HloModule) -> HloInstruction | None:
    """Return the sums of a window, or of the updates of a scatter; indices are not complex."""
    reducer = i.attributes["to_apply"]
    complex_ = [o for o in i.operands if _is_complex(o)]
    if len(complex_) != 2 or binary_opcode(reducer) is not Opcode.ADD:
        return None
    scalar = Shape(PARTS[i.shape.element_type])
    made = module.add(HloComputation(f"{reducer.name}_of_parts"))
    made.root = made.add(Opcode.ADD, [made.add_parameter(n, scalar) for n in range(2)])
    parts = {o: _parts_of(b, o) for o in complex_}

    def sums(part: int) -> HloInstruction:
        operands = [parts[o][part] if o in parts else o for o in i.operands]
        return b.add(i.opcode, *operands, **{**i.attributes, "to_apply": made})

    return b.add(Opcode.COMPLEX, sums(0), sums(1))


def _matrix_product(b: Builder, i: HloInstruction, _: HloModule) -> HloInstruction:
    """Return the product as products of real matrices, for each of which there is a library.

    There are four of them, or two if the result is real: the real part.
    """
    t = i.shape.element_type
    wide = PrimitiveType.F64 if t is PrimitiveType.F64 else PrimitiveType.F32
    shape = Shape(PARTS.get(t, wide), i.shape.dimensions)
    (a, b_), (c, d) = (_parts_of(b, x) for x in i.operands)

    def product(x: HloInstruction, y: HloInstruction) -> HloInstruction:
        return b.with_operands(i, [x, y], shape)

    real = b.add(Opcode.SUBTRACT, product(a, c), product(b_, d))
    if not t.is_complex:
        return b.convert(real, t)
    return b.add(Opcode.COMPLEX, real, b.add(Opcode.ADD, product(a, d), product(b_, c)))


def _function(b: Builder, i: HloInstruction, _: HloModule) -> HloInstruction:
    """Return an elementary function, or a power."""
    r = Reals(b, Shape(PARTS[i.shape.element_type], i.shape.dimensions))
    parts = [_parts_of(b, o) for o in i.operands]
    made = power(r, *parts) if i.opcode is Opcode.POWER else FUNCTIONS[i.opcode](r, *parts[0])
    return b.add(Opcode.COMPLEX, *made)


_SINGLE_OPS: dict[Opcode, Callable[[Builder, HloInstruction, HloModule], HloInstruction | None]] = {
    Opcode.ABS: _absolute_value,
    Opcode.COMPARE: _comparison,
    Opcode.REDUCE: _sum_or_product,
    Opcode.REDUCE_WINDOW: _sums_at_places,
    Opcode.SCATTER: _scattered,
    Opcode.DOT: _matrix_product,
    **dict.fromkeys((*FUNCTIONS, Opcode.POWER), _function),
}


def _expand(computation: HloComputation, wide: bool) -> bool:
    fixed = pinned(computation)
    nodes = [i for i in computation.post_order() if _is_expanded(i) and i not in fixed]
    changed = False
    for group in _connected(nodes):
        if _is_worthwhile(group, wide):
            _expand_group(computation, group)
            changed = True
    return changed


def _connected(nodes: list[HloInstruction]) -> list[list[HloInstruction]]:
    """Return the groups of nodes that are connected by uses other than those of constants, in order."""
    leader = {i: i for i in nodes}

    def find(i: HloInstruction) -> HloInstruction:
        while leader[i] is not i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for i in nodes:
        for o in i.operands:
            if o in leader and o.opcode is not Opcode.CONSTANT:
                leader[find(i)] = find(o)
    groups: dict[HloInstruction, list[HloInstruction]] = {}
    for i in nodes:
        groups.setdefault(find(i), []).append(i)
    return list(groups.values())


def _is_worthwhile(group: list[HloInstruction], wide: bool) -> bool:
    inside = set(group)
    work = [i for i in group if i.opcode not in _LEAVES]
    entering = {o for i in work for o in i.operands if _enters(o, inside)}
    leaving = [i for i in group if i.opcode is not Opcode.CONSTANT and _leaves(i, inside)]
    reads = sum(1 for i in group for u in i.users if u.opcode in (Opcode.REAL, Opcode.IMAG))
    if not work and not reads:
        return False
    if any(i.opcode in _ARITHMETIC and i.shape.element_type is PrimitiveType.C64 for i in work):
        return True
    if wide and any(i.shape.element_type is PrimitiveType.C128 for i in work):
        return True  # also what moves them, which kernels cannot
    return len(work) + reads > 2 * len(entering) + sum(i.opcode is not Opcode.COMPLEX for i in leaving)


def _enters(operand: HloInstruction, inside: set[HloInstruction]) -> bool:
    return _is_complex(operand) and operand not in inside and operand.opcode is not Opcode.CONSTANT


def _leaves(i: HloInstruction, inside: set[HloInstruction]) -> bool:
    return i.is_root or any(u not in inside and u.opcode not in (Opcode.REAL, Opcode.IMAG) for u in i.users)


def _expand_group(computation: HloComputation, group: list[HloInstruction]) -> None:
    b, inside = Builder(computation), set(group)
    parts = _Parts(b)
    for i in group:
        parts.expand(i)
    for i in group:
        if i.opcode is Opcode.CONSTANT:
            continue
        for user in list(i.users):
            if user.opcode in (Opcode.REAL, Opcode.IMAG):
                computation.replace_uses(user, parts.known[i][user.opcode is Opcode.IMAG])
        if i.opcode is not Opcode.COMPLEX and _leaves(i, inside):
            _join(computation, i, inside, b.add(Opcode.COMPLEX, *parts.known[i]))
    reads = [u for i in group for u in i.users if u.opcode in (Opcode.REAL, Opcode.IMAG)]
    computation.remove_dead([*reads, *reversed(group)])


def _join(
    computation: HloComputation, i: HloInstruction, inside: Iterable[HloInstruction], joined: HloInstruction
) -> None:
    """Replace the uses of `i` by instructions that are not expanded."""
    for user in list(i.users):
        if user not in inside and user is not joined:
            user.replace_operands(i, joined)
    if i.is_root:
        computation.root = joined


class _Parts:
    """The real and imaginary parts of complex values.

    Attributes:
        known: the parts by value.
    """

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.known: dict[HloInstruction, tuple[HloInstruction, HloInstruction]] = {}

    def expand(self, i: HloInstruction) -> None:
        """Add the parts of an instruction; those of its operands are known, or are read from complex values."""
        shape = Shape(PARTS[i.shape.element_type], i.shape.dimensions)
        if i.opcode is Opcode.CONSTANT:
            array = i.value.array
            assert array is not None  # noqa: S101 - the constant is an array
            self.known[i] = self.b.constant(array.real), self.b.constant(array.imag)
        elif i.opcode is Opcode.COMPLEX:
            self.known[i] = i.operand(0), i.operand(1)
        elif i.opcode is Opcode.CONVERT:
            self.known[i] = self._converted(i.operand(0), shape)
        elif i.opcode is Opcode.MULTIPLY:
            self.known[i] = self._product(*i.operands)
        elif i.opcode is Opcode.DIVIDE:
            self.known[i] = self._quotient(*i.operands)
        else:
            self.known[i] = self._by_part(i, 0, shape), self._by_part(i, 1, shape)

    def of(self, x: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
        if x not in self.known:
            if x.opcode is Opcode.CONSTANT:
                self.expand(x)
            else:
                self.known[x] = self.b.add(Opcode.REAL, x), self.b.add(Opcode.IMAG, x)
        return self.known[x]

    def _converted(self, x: HloInstruction, shape: Shape) -> tuple[HloInstruction, HloInstruction]:
        if _is_complex(x):
            real, imaginary = self.of(x)
            return self.b.convert(real, shape.element_type), self.b.convert(imaginary, shape.element_type)
        return self.b.convert(x, shape.element_type), self.b.splat(0, shape)

    def _product(self, x: HloInstruction, y: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
        (a, b), (c, d) = self.of(x), self.of(y)
        add, mul = self.b.add, Opcode.MULTIPLY
        return (
            add(Opcode.SUBTRACT, add(mul, a, c), add(mul, b, d)),
            add(Opcode.ADD, add(mul, a, d), add(mul, b, c)),
        )

    def _quotient(self, x: HloInstruction, y: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
        """Divide both parts of the divisor by the larger one first (Smith, CACM 1962), so that no square overflows."""
        (a, b), (c, d) = self.of(x), self.of(y)
        add, times = self.b.add, Opcode.MULTIPLY
        sizes = add(Opcode.ABS, c), add(Opcode.ABS, d)
        is_real = self.b.compare(*sizes, "GE")
        is_zero = add(Opcode.AND, is_real, self.b.compare(sizes[0], self.b.splat(0, c.shape), "EQ"))
        large, small = add(Opcode.SELECT, is_real, c, d), add(Opcode.SELECT, is_real, d, c)
        ratio = add(Opcode.DIVIDE, small, large)
        scale = add(Opcode.ADD, large, add(times, small, ratio))
        with_a, with_b = (add(Opcode.SELECT, is_real, p, add(times, p, ratio)) for p in (a, b))
        other_a, other_b = (add(Opcode.SELECT, is_real, add(times, p, ratio), p) for p in (a, b))
        real = add(Opcode.DIVIDE, add(Opcode.ADD, with_a, other_b), scale)
        imaginary = add(Opcode.DIVIDE, add(Opcode.SUBTRACT, with_b, other_a), scale)
        by_zero = (add(Opcode.DIVIDE, p, sizes[0]) for p in (a, b))
        return tuple(add(Opcode.SELECT, is_zero, z, q) for z, q in zip(by_zero, (real, imaginary), strict=True))  # type: ignore[return-value]

    def _by_part(self, i: HloInstruction, part: int, shape: Shape) -> HloInstruction:
        return self.b.with_operands(i, [self.of(o)[part] if _is_complex(o) else o for o in i.operands], shape)
