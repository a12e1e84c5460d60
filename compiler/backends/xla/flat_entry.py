"""An entry computation whose parameters and results are arrays, as jaxlib calls it."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir import HloInstruction, HloModule, Opcode, Shape
from compiler.ir.computation import HloComputation

_DROPPED = ("input_output_alias", "buffer_donor", "entry_computation_layout", "is_scheduled")


def with_flat_entry(module: HloModule) -> HloModule:
    """Return a copy whose entry takes and returns the leaves of its tuples, without donations and layouts.

    Donations are dropped because XLA would overwrite arguments. Tokens are neither taken nor returned.
    """
    found = module.clone()
    for header in _DROPPED:
        found.header.pop(header, None)
    old = found.entry
    if all(p.shape.is_array for p in old.parameters) and _is_flat(old.root.shape):
        return found
    new = HloComputation(found.unique_computation_name(old.name))
    numbers = iter(range(sum(p.shape.leaf_count for p in old.parameters)))
    arguments = [_argument(new, p.shape, numbers) for p in old.parameters]
    leaves = list(_leaves(new, new.inline(old, arguments)))
    new.root = new.add(Opcode.TUPLE, leaves)
    found.add(new, entry=True)
    found.remove(old)
    found.reorder()
    return found


def _is_flat(shape: Shape) -> bool:
    return shape.is_array or (shape.is_tuple and all(s.is_array for s in shape.tuple_shapes))


def _argument(entry: HloComputation, shape: Shape, numbers: Iterator[int]) -> HloInstruction:
    """Add the parameters of the arrays in a shape; return the value of that shape."""
    if shape.is_tuple:
        return entry.add(Opcode.TUPLE, [_argument(entry, s, numbers) for s in shape.tuple_shapes])
    if shape.is_token:
        return entry.add(Opcode.AFTER_ALL, [])
    return entry.add_parameter(next(numbers), shape)


def _leaves(entry: HloComputation, value: HloInstruction) -> Iterator[HloInstruction]:
    if value.shape.is_tuple:
        for n in range(len(value.shape.tuple_shapes)):
            yield from _leaves(entry, entry.add(Opcode.GET_TUPLE_ELEMENT, [value], index=n))
    elif value.shape.is_array:
        yield value
