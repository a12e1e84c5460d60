"""Random well-formed modules with many kinds of ops, for the fuzzers and for tests of passes.

`random_module(rng, max_instructions)` returns a module that parses, verifies and runs; `random_inputs(module, rng)`
returns arguments for it. Two properties of each value are tracked, so that implementations can be compared on it:

- a bound of its magnitude, so that nothing overflows to infinity;
- whether it is exact, that is, free of rounding. Only exact values are compared, rounded to integers, sorted or
  bit-cast, because these ops can turn a difference in the last bit into a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode, PrimitiveType, Shape
from compiler.ir.shape import array_shape
from tests.fuzz import sizes

T = PrimitiveType
FLOATS = (T.F32, T.F32, T.F32, T.F64, T.BF16, T.F16)
INTS = (T.S32, T.S32, T.U32, T.S8, T.U8, T.S64)
MAX_BOUND = 1000.0
LARGEST_HALF = 30_000.0
"""Bound of f16 sums. Above 65504 they overflow, and when that happens depends on the order of the terms."""
MAX_ELEMENTS = 4000
"""Maximum number of elements of an array; arrays may be constants in the HLO text."""


@dataclass(frozen=True)
class Value:
    """An instruction with properties of its elements.

    Attributes:
        at: the instruction.
        bound: an upper bound of the magnitudes.
        exact: whether the values are free of rounding.
    """

    at: HloInstruction
    bound: float
    exact: bool

    @property
    def shape(self) -> Shape:
        return self.at.shape

    @property
    def type(self) -> PrimitiveType:
        return self.at.shape.element_type


def random_module(rng: np.random.Generator, max_instructions: int = 40) -> HloModule:
    """Return a random module of up to about `max_instructions` instructions; deterministic for a state of `rng`."""
    module = HloModule("random")
    entry = HloComputation("main")
    writer = Writer(rng, module, entry, depth=0)
    for number in range(int(rng.integers(1, 5))):
        writer.parameter(number, writer.random_shape())
    target = int(rng.integers(max(2, max_instructions // 2), max_instructions + 1))
    while module.instruction_count + len(entry) < target:
        writer.step()
    sinks = [v.at for v in writer.values if not v.at.users]
    entry.root = entry.add(Opcode.TUPLE, sinks[-12:])
    module.add(entry, entry=True)
    return module


def random_inputs(module: HloModule, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Return arguments for the entry: small numbers that are exact in their types."""
    return [random_array(shape, rng) for shape in module.parameter_shapes]


def random_array(shape: Shape, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return an array of small numbers that are exact in the element type."""
    t = shape.element_type
    if t is T.PRED:
        return rng.integers(0, 2, shape.dimensions).astype(np.bool_)
    if t.is_integer:
        return rng.integers(0 if t.is_unsigned else -6, 7, shape.dimensions).astype(shape.dtype)
    return (rng.integers(-16, 17, shape.dimensions) / 8).astype(shape.dtype)


class Writer:
    """Adds random instructions to one computation, and the computations that they call to its module."""

    def __init__(self, rng: np.random.Generator, module: HloModule, computation: HloComputation, depth: int) -> None:
        self.rng, self.module, self.computation, self.depth = rng, module, computation, depth
        self.values: list[Value] = []

    # ---- choosing

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def random_type(self) -> PrimitiveType:
        kind = self.rng.random()
        return self.pick(FLOATS) if kind < 0.6 else self.pick(INTS) if kind < 0.9 else T.PRED

    def random_shape(self) -> Shape:
        rank = int(self.rng.choice([0, 1, 2, 2, 3, 4]))
        return Shape(self.random_type(), sizes.dimensions(self.rng, rank, MAX_ELEMENTS))

    def some(self, accept: Callable[[Value], bool]) -> Value | None:
        """Return a random value that `accept` allows, preferring later ones; None if there is none."""
        fitting = [v for v in self.values if accept(v)]
        if not fitting:
            return None
        n = len(fitting)
        return fitting[max(int(self.rng.integers(n)), int(self.rng.integers(n)))]

    # ---- adding

    def take(self, at: HloInstruction, bound: float, exact: bool) -> Value:
        value = Value(at, bound if at.shape.element_type.is_float else min(bound, 2.0**40), exact)
        if value.type.is_float and bound > MAX_BOUND:
            value = self.squash(value)
        self.values.append(value)
        return value

    def op(self, opcode: Opcode, *operands: HloInstruction, shape: Shape | None = None, **attributes: Any) -> Any:
        return self.computation.add(opcode, operands, shape, **attributes)

    def squash(self, v: Value) -> Value:
        """Apply tanh to a value, which limits it to [-1, 1]."""
        return Value(self.op(Opcode.TANH, v.at), 1.0, False)

    def constant(self, array: Any) -> HloInstruction:
        return self.computation.add_constant(array)

    def scalar(self, number: float, t: PrimitiveType) -> HloInstruction:
        return self.computation.add_constant(Literal.from_array(np.array(number, t.dtype), Shape(t)))

    def full(self, number: float, like: Shape) -> HloInstruction:
        at: HloInstruction = self.op(
            Opcode.BROADCAST, self.scalar(number, like.element_type), shape=_plain(like), dimensions=()
        )
        return at

    def parameter(self, number: int, shape: Shape) -> Value:
        return self.take(self.computation.add_parameter(number, shape), 6.0, True)

    def literal(self, shape: Shape) -> Value:
        at = self.computation.add_constant(Literal.from_array(random_array(shape, self.rng), shape))
        return self.take(at, 6.0, True)

    def like(self, v: Value) -> Value:
        """Return a random value of the same type and dimensions; add a constant if there is none."""
        found = self.some(lambda o: o.type is v.type and o.shape.dimensions == v.shape.dimensions)
        return found or self.literal(_plain(v.shape))

    def index(self) -> HloInstruction:
        """Return a random integer scalar, which may be out of bounds as an index."""
        found = self.some(lambda o: o.type is T.S32 and o.shape.is_scalar)
        return found.at if found and self.chance(0.7) else self.scalar(int(self.rng.integers(-3, 6)), T.S32)

    def step(self) -> None:
        """Add one random piece."""
        from tests.fuzz.random_pieces import PIECES, WEIGHTS

        if not self.values:
            self.literal(self.random_shape())
        piece = PIECES[int(self.rng.choice(len(PIECES), p=WEIGHTS))]
        piece(self)

    # ---- called computations

    def scalar_function(self, opcode: Opcode, t: PrimitiveType) -> HloComputation:
        """Add a computation `(a, b) -> a op b` on scalars, as used by reductions."""
        f = HloComputation(f"{opcode.text}_{t.text}")
        a, b = (f.add_parameter(i, array_shape(t)) for i in range(2))
        f.root = f.add(opcode, [a, b])
        return self.module.add(f)

    def nested(self, name: str, inputs: Sequence[Shape], steps: int, bound: float, exact: bool) -> Writer:
        """Return a writer of a new computation with the given parameters, after some random steps."""
        body = Writer(self.rng, self.module, HloComputation(name), self.depth + 1)
        for number, shape in enumerate(inputs):
            body.take(body.computation.add_parameter(number, shape), bound, exact or shape.element_type.is_integer)
        for _ in range(steps):
            body.step()
        return body

    def result_of(self, shape: Shape, bound: float) -> HloInstruction:
        """Return a value of the given shape and within the bound, to be the result of the computation."""
        found = self.some(lambda o: o.type is shape.element_type and o.shape.dimensions == shape.dimensions)
        value = found or self.literal(_plain(shape))
        return self.squash(value).at if value.type.is_float and value.bound > bound else value.at


def _plain(shape: Shape) -> Shape:
    return Shape(shape.element_type, shape.dimensions)
