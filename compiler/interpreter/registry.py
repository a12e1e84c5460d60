"""What a value is, and which function evaluates each opcode; the family files fill the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

import numpy as np
import numpy.typing as npt

from compiler.errors import InterpreterError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

if TYPE_CHECKING:
    from compiler.interpreter.machine import Machine

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = Union[Array, tuple["Value", ...]]  # noqa: UP007  # a recursive alias needs the quoted form
"""An array, or a tuple of values; a token is the empty tuple."""

Evaluator: TypeAlias = Callable[["Machine", HloInstruction, list[Value]], Value]
"""Operand values, in a list to itself -> result. Changes operands only through `own`; may return views of them."""

EVALUATORS: dict[Opcode, Evaluator] = {}
ARRAY_FUNCTIONS: dict[Opcode, Callable[..., Any]] = {}
"""`f(instruction, *operand_arrays)` of the opcodes that need nothing else; the evaluators are made of them."""
SPECIALISERS: dict[Opcode, Callable[[HloInstruction], Callable[..., Any] | None]] = {}
"""For some of those: a function of the operands' arrays alone that does the same for this instruction, or None."""
TOKEN: tuple[Value, ...] = ()

_F = TypeVar("_F", bound=Evaluator)
_A = TypeVar("_A", bound=Callable[..., Any])
_S = TypeVar("_S", bound=Callable[[HloInstruction], Callable[..., Any] | None])


def evaluator(*opcodes: Opcode) -> Callable[[_F], _F]:
    """Register a function as the evaluator of these opcodes."""

    def register(function: _F) -> _F:
        for opcode in opcodes:
            EVALUATORS[opcode] = function
        return function

    return register


def array_evaluator(*opcodes: Opcode) -> Callable[[_A], _A]:
    """Register `f(instruction, *operand_arrays) -> array`, for ops that need nothing else."""

    def register(function: _A) -> _A:
        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            return np.asarray(function(instruction, *values))

        for opcode in opcodes:
            EVALUATORS[opcode] = run
            ARRAY_FUNCTIONS[opcode] = function
        return function

    return register


def specialiser(*opcodes: Opcode) -> Callable[[_S], _S]:
    """Register a function of an instruction that gives its narrow array function, or None: see `SPECIALISERS`."""

    def register(function: _S) -> _S:
        for opcode in opcodes:
            SPECIALISERS[opcode] = function
        return function

    return register


def own(values: list[Value], index: int) -> Array:
    """An array to write to: the operand itself when nobody else holds it any more, else a copy.

    This is what keeps a loop that fills an array step by step from copying all of it in each step. The operand is taken
    out of the list.
    """
    x = as_array(values[index])
    values[index] = TOKEN
    # Two references: the name here, and the argument of getrefcount. A view of `x` would hold a third.
    alone = sys.getrefcount(x) <= 2 and x.flags.owndata and x.flags.writeable and x.flags.c_contiguous
    return x if alone else np.array(x, order="C")


def as_array(value: Value) -> Array:
    """The array a value is; InterpreterError for a tuple."""
    if isinstance(value, tuple):
        raise InterpreterError("expected an array, got a tuple")
    return value


def arrays(values: Sequence[Value]) -> list[Array]:
    """Values that must all be arrays."""
    return [as_array(v) for v in values]


def leaves(value: Value) -> list[Array]:
    """Arrays of a value from left to right; tokens have none."""
    if not isinstance(value, tuple):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]
