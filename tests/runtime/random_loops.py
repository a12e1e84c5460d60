"""Random programs of loops and conditionals whose carried values are swapped, duplicated, kept and partly updated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.shape import Shape, array_shape, tuple_shape
from tests.fuzz import sizes

T = PrimitiveType
NUMBER = array_shape(T.S32)
TYPES = (T.F32, T.F32, T.F32, T.F64, T.BF16, T.F16)
MAX_DEPTH = 3


@dataclass(frozen=True)
class Shapes:
    """The shapes of a program's values: vectors, and matrices with such vectors as rows."""

    vector: Shape
    matrix: Shape

    @staticmethod
    def draw(rng: np.random.Generator) -> Shapes:
        """Return random shapes without empty dimensions."""
        rows, columns = sizes.dimensions(rng, 2, 6000, zero=0.0)
        t = TYPES[int(rng.integers(len(TYPES)))]
        return Shapes(array_shape(t, columns), array_shape(t, rows, columns))

    @property
    def type(self) -> T:
        return self.vector.element_type

    @property
    def columns(self) -> int:
        return self.vector.dimensions[0]


def random_loops(rng: np.random.Generator) -> HloModule:
    """Return a random module with at least one loop."""
    module = HloModule("loops")
    entry = HloComputation("main")
    of = Shapes.draw(rng)
    writer = _Writer(rng, module, entry, of, 0)
    shapes = [NUMBER, of.vector, of.vector, of.matrix, *([of.vector] if rng.random() < 0.5 else [])]
    for n, s in enumerate(shapes):
        writer.values.append(entry.add_parameter(n, s))
    writer.values.append(entry.add_constant((np.arange(of.columns) % 7).astype(of.type.dtype)))
    writer.steps(int(rng.integers(0, 4)))
    writer.loop()
    writer.steps(int(rng.integers(0, 5)), control=0.4)
    results = [writer.any_of(s) for s in (of.vector, of.vector, of.matrix, NUMBER)]
    if rng.random() < 0.4:
        results.append(results[0])  # one value returned twice
    if rng.random() < 0.3:
        results.append(writer.values[1])  # a parameter returned
    if rng.random() < 0.3:
        results.append(entry.add_constant(np.float32(3.5)))
    entry.root = entry.add(Opcode.TUPLE, results)
    module.add(entry, entry=True)
    return module


@dataclass
class _Writer:
    rng: np.random.Generator
    module: HloModule
    body: HloComputation
    of: Shapes
    depth: int
    values: list[HloInstruction] = field(default_factory=list)

    def any_of(self, shape: Shape) -> HloInstruction:
        """Return a random value of a shape; later ones are more likely."""
        known = [v for v in self.values if v.shape == shape]
        n = len(known)
        return known[max(int(self.rng.integers(n)), int(self.rng.integers(n)))]

    def add(
        self, op: Opcode, operands: Sequence[HloInstruction], shape: Shape | None = None, **a: Any
    ) -> HloInstruction:
        made = self.body.add(op, operands, shape, **a)
        self.values.append(made)
        return made

    def steps(self, count: int, control: float = 0.0) -> None:
        for _ in range(count):
            if self.depth < MAX_DEPTH and self.rng.random() < control:
                self.loop() if self.rng.random() < 0.55 else self.conditional()
            else:
                self.step()

    def step(self) -> None:
        kind = int(self.rng.integers(7))
        vector, matrix = self.any_of(self.of.vector), self.any_of(self.of.matrix)
        columns, t = self.of.columns, self.of.type
        if kind == 0:
            self.add(Opcode.TANH, [vector])
        elif kind == 1:
            self.add(Opcode.SUBTRACT, [vector, self.any_of(self.of.vector)])
        elif kind == 2:
            row = self.add(Opcode.RESHAPE, [vector], array_shape(t, 1, columns))
            zero = self.body.add_constant(np.int32(0))
            self.add(Opcode.DYNAMIC_UPDATE_SLICE, [matrix, row, self.any_of(NUMBER), zero])
        elif kind == 3:
            zero = self.body.add_constant(np.int32(0))
            row = self.add(Opcode.DYNAMIC_SLICE, [matrix, self.any_of(NUMBER), zero], dynamic_slice_sizes=(1, columns))
            self.add(Opcode.RESHAPE, [row], self.of.vector)
        elif kind == 4:
            part = self.body.add_constant(np.array([9, 8][:columns], t.dtype))
            self.add(Opcode.DYNAMIC_UPDATE_SLICE, [vector, part, self.any_of(NUMBER)])
        elif kind == 5:
            self.add(Opcode.NEGATE, [matrix])
        else:
            self.add(Opcode.COPY, [vector])

    # ---- loops

    def loop(self) -> None:
        rng = self.rng
        count, vector, matrix = int(rng.integers(2, 6)), self.of.vector, self.of.matrix
        shapes = [NUMBER, *((vector, vector, vector, matrix)[int(rng.integers(4))] for _ in range(count))]
        if matrix not in shapes:
            shapes.append(matrix)
        if vector not in shapes:
            shapes.append(vector)
        state = tuple_shape(*shapes)
        start = self.body.add_constant(np.int32(0))
        init = self.body.add(Opcode.TUPLE, [start, *(self.any_of(s) for s in shapes[1:])])
        body = self._loop_body(state, shapes)
        condition = HloComputation(f"condition_{self._number()}")
        p = condition.add_parameter(0, state)
        i = condition.add(Opcode.GET_TUPLE_ELEMENT, [p], index=0)
        limit = condition.add_constant(np.int32(int(rng.integers(0, 5))))
        condition.root = condition.add(Opcode.COMPARE, [i, limit], direction="LT")
        self.module.add(condition)
        whole = self.body.add(Opcode.WHILE, [init], condition=condition, body=body)
        for k in range(len(shapes)):
            self.add(Opcode.GET_TUPLE_ELEMENT, [whole], index=k)

    def _loop_body(self, state: Shape, shapes: list[Shape]) -> HloComputation:
        rng = self.rng
        body = HloComputation(f"body_{self._number()}")
        p = body.add_parameter(0, state)
        inner = _Writer(rng, self.module, body, self.of, self.depth + 1)
        carried = [body.add(Opcode.GET_TUPLE_ELEMENT, [p], index=k) for k in range(len(shapes))]
        inner.values += carried
        inner.steps(int(rng.integers(0, 6)), control=0.12)
        one = body.add_constant(np.int32(1))
        new = [body.add(Opcode.ADD, [carried[0], one])]
        for k, s in enumerate(shapes[1:], 1):
            kind = rng.random()
            same = [c for c in carried if c.shape == s]
            if kind < 0.2:
                new.append(carried[k])
            elif kind < 0.45:
                new.append(same[int(rng.integers(len(same)))])  # swapped, rotated or duplicated
            else:
                new.append(inner.any_of(s))
        body.root = body.add(Opcode.TUPLE, new)
        self.module.add(body)
        return body

    # ---- conditionals

    def conditional(self) -> None:
        rng = self.rng
        branches = int(rng.integers(2, 4))
        shapes = (NUMBER, self.of.vector, self.of.vector, self.of.matrix)
        arguments = [self.body.add(Opcode.TUPLE, [self.any_of(s) for s in shapes]) for _ in range(branches)]
        by_index = branches > 2 or rng.random() < 0.5
        selector = self.any_of(NUMBER)
        if not by_index:
            two = self.body.add_constant(np.int32(2))
            selector = self.body.add(Opcode.COMPARE, [selector, two], direction="LT")
        made = [self._branch(shapes) for _ in range(branches)]
        calls = {"branch_computations": tuple(made)} if by_index else _two(made)
        whole = self.body.add(
            Opcode.CONDITIONAL, [selector, *arguments], tuple_shape(self.of.vector, self.of.matrix), **calls
        )
        for k in range(2):
            self.add(Opcode.GET_TUPLE_ELEMENT, [whole], index=k)

    def _branch(self, shapes: Sequence[Shape]) -> HloComputation:
        branch = HloComputation(f"branch_{self._number()}")
        p = branch.add_parameter(0, tuple_shape(*shapes))
        inner = _Writer(self.rng, self.module, branch, self.of, self.depth + 1)
        inner.values += [branch.add(Opcode.GET_TUPLE_ELEMENT, [p], index=k) for k in range(len(shapes))]
        inner.steps(int(self.rng.integers(0, 4)), control=0.15)
        branch.root = branch.add(Opcode.TUPLE, [inner.any_of(self.of.vector), inner.any_of(self.of.matrix)])
        self.module.add(branch)
        return branch

    def _number(self) -> int:
        return int(self.rng.integers(1 << 60))


def _two(made: list[HloComputation]) -> dict[str, Any]:
    return {"true_computation": made[0], "false_computation": made[1]}


def arguments_for(module: HloModule, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random arguments for a module of `random_loops`."""
    out = []
    for s in module.parameter_shapes:
        drawn = rng.integers(0, 4, s.dimensions) if s.element_type is T.S32 else rng.uniform(-2, 2, s.dimensions)
        out.append(np.asarray(drawn).astype(s.dtype))
    return out
