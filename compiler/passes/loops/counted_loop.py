"""Construction of counted loops: a while with a counter from zero, and a body given as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.shape import tuple_shape
from compiler.passes.infrastructure.builder import Builder

Step: TypeAlias = Callable[[Builder, HloInstruction, Sequence[HloInstruction]], Sequence[HloInstruction]]
"""Maps a builder in the body, the s32 counter and the carried values to the next values."""


def counted_loop(
    b: Builder, count: int, init: Sequence[HloInstruction], step: Step, results: Sequence[int], name: str
) -> list[HloInstruction]:
    """Add a loop of `count` iterations to the builder's computation, which must be in a module.

    Returns:
        The carried values with the indices `results` after the last iteration.
    """
    module = b.computation.parent
    if module is None:
        raise ValueError(f"computation %{b.computation.name} is not in a module, so it cannot have a loop")
    counter = b.scalar(0, PrimitiveType.S32)
    shape = tuple_shape(counter.shape, *(i.shape for i in init))
    body = module.add(_body(shape, step, f"{name}_body"))
    condition = module.add(_condition(shape, count, f"{name}_condition"))
    start = b.add(Opcode.TUPLE, counter, *init)
    loop = b.add(Opcode.WHILE, start, condition=condition, body=body)
    return [b.add(Opcode.GET_TUPLE_ELEMENT, loop, index=n + 1) for n in results]


def _body(shape: Shape, step: Step, name: str) -> HloComputation:
    body = HloComputation(name)
    b = Builder(body)
    carried = body.add_parameter(0, shape)
    i, *values = (b.add(Opcode.GET_TUPLE_ELEMENT, carried, index=n) for n in range(len(shape.tuple_shapes)))
    following = b.add(Opcode.ADD, i, b.scalar(1, PrimitiveType.S32))
    body.root = b.add(Opcode.TUPLE, following, *step(b, i, values))
    body.remove_dead()
    return body


def _condition(shape: Shape, count: int, name: str) -> HloComputation:
    condition = HloComputation(name)
    b = Builder(condition)
    i = b.add(Opcode.GET_TUPLE_ELEMENT, condition.add_parameter(0, shape), index=0)
    condition.root = b.compare(i, b.scalar(count, PrimitiveType.S32), "LT")
    return condition
