"""Statements of the loop IR whose steps have an order: sorts, scans, and loops over flagged positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compiler.codegen.nest.index import Var
from compiler.codegen.nest.order_method import OrderMethod
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

if TYPE_CHECKING:
    from compiler.codegen.nest.loop_ir import Stmt


@dataclass(frozen=True, slots=True)
class Sort:
    """A stable sort of the element numbers 0 .. extent-1, followed by a loop over the sorted order.

    Attributes:
        left, right: variables of the two element numbers that are compared; their extent is the number of elements.
        compare: statements that define the pred scalar `before`.
        before: name of the pred scalar that says whether element `right` comes before element `left`.
        position: variable of a position in the sorted order; in `body`, `left` is the element number at that position.
        body: statements that run for each position.
    """

    left: Var
    right: Var
    compare: tuple[Stmt, ...]
    before: str
    position: Var
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class SortByKey:
    """For each row, a loop over its elements in ascending order of a key, ties in order of the elements.

    Attributes:
        row: variable of a row; rows are independent.
        element: variable of an element number; its extent is the number of elements of a row.
        read: statements that define the scalar `key` of an element.
        key: name of the key.
        type: element type of the key; floats are in total order.
        descending: whether the largest key comes first; ties are still in order of the elements.
        position: variable of a position in the order; its extent is the number of positions that are needed.
        body: statements that run for each position, `element` being the element at that position.
        grain: once bound, the least number of rows that a thread takes at a time; 0 for no threads.
        method: once bound, the parameters of the algorithms.
    """

    row: Var
    element: Var
    read: tuple[Stmt, ...]
    key: str
    type: PrimitiveType
    descending: bool
    position: Var
    body: tuple[Stmt, ...]
    grain: int = 0
    method: OrderMethod = field(default_factory=OrderMethod)


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that a `Scan` carries from step to step.

    Attributes:
        name: the value before a step.
        type: element type.
        start: name of the value before the first step.
        next: the name that the body gives to the value after a step.
    """

    name: str
    type: PrimitiveType
    start: str
    next: str


@dataclass(frozen=True, slots=True)
class Scan:
    """For each row, a sequential loop that carries values from step to step.

    Attributes:
        rows: two variables of independent rows; elements that differ by one in the second are adjacent in memory,
            unless its extent is 1.
        step: variable of a step.
        carries: the carried values.
        body: statements of one step: values and stores.
        combiner: if not None, the only carry is the combination of `value` over the steps, in any order.
        value: a name that the body defines without reading the carry.
    """

    rows: tuple[Var, Var]
    step: Var
    carries: tuple[Carry, ...]
    body: tuple[Stmt, ...]
    combiner: Opcode | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class ForFlagged:
    """Loops over the positions 0 .. extent-1 whose flag is not zero; slot n belongs to the n-th of them.

    Attributes:
        flags: local array of S32 with one flag per position.
        position: variable of a position; its extent is the number of flags.
        slot: variable of a slot; its extent is at least the number of flags, rounded up to whole groups.
        group: number of slots, at most 16, to a multiple of which the slots of `body` are rounded up.
        body: statements that run for all slots, on vectors; a slot without a flagged position runs them for any
            position.
        ordered: statements that run after `body`, one after another, for the slots that have a flagged position.
    """

    flags: str
    position: Var
    slot: Var
    group: int
    body: tuple[Stmt, ...]
    ordered: tuple[Stmt, ...]
