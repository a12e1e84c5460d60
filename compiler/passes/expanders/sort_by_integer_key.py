"""Sorts by integer keys: one array of 64-bit integers, which hold the order and the position, is sorted by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

_S16, _S32, _S64 = PrimitiveType.S16, PrimitiveType.S32, PrimitiveType.S64
_FLOATS = {PrimitiveType.F32: _S32, PrimitiveType.BF16: _S16, PrimitiveType.F16: _S16}
_SWAPPED = {"GT": "LT", "LT": "GT"}
_MAX_OPS = 32
"""Maximum number of ops of a comparator."""


@register
@dataclass(frozen=True)
class SortByIntegerKey(RewritePass):
    """Rewrite a sort -> a sort of s64 numbers by size, and gathers of the operands.

    A number holds the value that the comparator compares, as an integer in the same order, above the position in the
    row, so that the result is stable. The comparator must compare the same elementwise function of two elements of one
    operand by GT or LT: an integer of at most 32 bits, or an f32, f16 or bf16 in total order. A sort of one operand
    that is compared as it is, by size, is kept. XLA:CPU calls a comparator for every pair, but sorts integers by size
    with an inlined comparison.

    Attributes:
        min_length: minimum length of a row.
        min_elements: minimum number of elements of the operand.
    """

    name: ClassVar[str] = "sort-by-integer-key"
    rules: ClassVar[RuleSet] = RuleSet()
    min_length: int = number_option(8, 1, 1 << 31)
    min_elements: int = number_option(64, 1, 1 << 31)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def by_key(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return self._rewrite(i, b)

        return lambda op: (by_key,) if op is Opcode.SORT else ()

    def _rewrite(self, i: HloInstruction, b: Builder) -> HloInstruction | None:
        (along,), shape = i.dimensions, i.operand(0).shape
        if any(o.shape.is_dynamic for o in i.operands) or shape.rank == 0:
            return None
        length = shape.dimensions[along]
        if not self.min_length <= length < 1 << 31 or shape.num_elements < self.min_elements:
            return None
        compared = _Compared.of(i)
        module = b.computation.parent
        if compared is None or module is None or (len(i.operands) == 1 and compared.is_plain):
            return None
        key = _integer_key(_lifted(compared.left, i.operand(compared.operand), b), b)
        if compared.descending:
            key = b.add(Opcode.NOT, key)
        wide = Shape(_S64, shape.dimensions)
        positions = b.add(Opcode.IOTA, shape=wide, iota_dimension=along)
        above = b.add(Opcode.SHIFT_LEFT, b.convert(key, _S64), b.splat(32, wide))
        by_size = module.add(_by_size())
        numbers = b.add(
            Opcode.SORT, b.add(Opcode.OR, above, positions), dimensions=(along,), is_stable=True, to_apply=by_size
        )
        order = b.convert(b.add(Opcode.AND, numbers, b.splat((1 << 32) - 1, wide)), _S32)
        results = [_in_order(o, order, along, b) for o in i.operands]
        return results[0] if len(results) == 1 else b.add(Opcode.TUPLE, *results)


@dataclass(frozen=True)
class _Compared:
    """What a comparator compares.

    Attributes:
        operand: the number of the operand that it reads.
        left: the value that it computes of the first element; it computes the same of the second.
        descending: whether larger values come first.
    """

    operand: int
    left: HloInstruction
    descending: bool

    @staticmethod
    def of(sort: HloInstruction) -> _Compared | None:
        """Return what the comparator of a sort compares, or None if it has another form."""
        comparator: HloComputation = sort.attributes["to_apply"]
        root = comparator.root
        direction = root.attr("direction") if root.opcode is Opcode.COMPARE else None
        if direction not in _SWAPPED or len(comparator) > _MAX_OPS + len(comparator.parameters):
            return None
        left, right = root.operands
        kind = left.shape.element_type
        if kind in _FLOATS:
            if root.attr("type") != "TOTALORDER":
                return None
        elif not kind.is_integer or not 8 <= kind.bits <= 32:
            return None
        first, second = _reads(left), _reads(right)
        if first is None or second is None or first ^ 1 != second or not _same(left, right):
            return None
        return _Compared(first // 2, left, direction == ("GT" if first % 2 == 0 else "LT"))

    @property
    def is_plain(self) -> bool:
        """Whether integers are compared as they are."""
        return self.left.opcode is Opcode.PARAMETER and self.left.shape.element_type.is_integer


def _reads(value: HloInstruction) -> int | None:
    """Return the number of the only parameter that an elementwise function reads, or None for others."""
    found, stack, seen = set(), [value], set()
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        if i.opcode is Opcode.PARAMETER:
            found.add(i.parameter_number)
        elif i.opcode is not Opcode.CONSTANT and (not i.opcode.is_elementwise or i.called_computations()):
            return None
        stack += i.operands
    return found.pop() if len(found) == 1 else None


def _same(x: HloInstruction, y: HloInstruction) -> bool:
    """Check whether two functions of one parameter each are the same."""
    if x.opcode is not y.opcode or x.shape != y.shape:
        return False
    if x.opcode is Opcode.PARAMETER:
        return True
    if x.opcode is Opcode.CONSTANT:
        return _bytes(x) is not None and _bytes(x) == _bytes(y)
    return x.attributes == y.attributes and all(map(_same, x.operands, y.operands))


def _bytes(constant: HloInstruction) -> bytes | None:
    literal = constant.literal
    return None if literal is None or literal.array is None else bytes(literal.array.tobytes())


def _lifted(value: HloInstruction, x: HloInstruction, b: Builder) -> HloInstruction:
    """Return a scalar function of one parameter, applied to each element of an array."""
    done: dict[HloInstruction, HloInstruction] = {}

    def lift(i: HloInstruction) -> HloInstruction:
        found = done.get(i)
        if found is None:
            if i.opcode is Opcode.PARAMETER:
                found = x
            elif i.opcode is Opcode.CONSTANT:
                found = b.broadcast(b.constant(i.literal), x.shape.dimensions, ())
            else:
                shape = Shape(i.shape.element_type, x.shape.dimensions)
                found = b.with_operands(i, [lift(o) for o in i.operands], shape)
            done[i] = found
        return found

    return lift(value)


def _integer_key(x: HloInstruction, b: Builder) -> HloInstruction:
    """Return s32 numbers in the same order as the values: signed integers, or floats in total order."""
    kind = x.shape.element_type
    bits = _FLOATS.get(kind)
    if bits is not None:
        number = b.convert(b.add(Opcode.BITCAST_CONVERT, x, shape=Shape(bits, x.shape.dimensions)), _S32)
        # Negative floats are ordered by falling magnitude.
        sign = b.add(Opcode.SHIFT_RIGHT_ARITHMETIC, number, b.splat(31, number.shape))
        magnitude = b.splat((1 << kind.bits - 1) - 1, number.shape)
        return b.add(Opcode.XOR, number, b.add(Opcode.AND, sign, magnitude))
    if kind is PrimitiveType.U32:
        number = b.add(Opcode.BITCAST_CONVERT, x, shape=Shape(_S32, x.shape.dimensions))
        return b.add(Opcode.XOR, number, b.splat(-(1 << 31), number.shape))
    return b.convert(x, _S32)


def _by_size() -> HloComputation:
    made = HloComputation("by_size")
    first, second = (made.add_parameter(n, Shape(_S64)) for n in range(2))
    made.root = made.add(Opcode.COMPARE, [first, second], attributes={"direction": "LT"})
    return made


def _in_order(x: HloInstruction, order: HloInstruction, along: int, b: Builder) -> HloInstruction:
    """Return the elements of each row in the given order of positions."""
    if x.opcode is Opcode.IOTA and x.attributes["iota_dimension"] == along:
        return b.convert(order, x.shape.element_type)
    dims = x.shape.dimensions
    others = tuple(d for d in range(len(dims)) if d != along)
    return b.add(
        Opcode.GATHER, x, b.reshape(order, (*dims, 1)), offset_dims=(), collapsed_slice_dims=(along,),
        start_index_map=(along,), operand_batching_dims=others, start_indices_batching_dims=others,
        index_vector_dim=len(dims), slice_sizes=(1,) * len(dims),
    )  # fmt: skip
