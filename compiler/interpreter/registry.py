"""Values, and the table of evaluators, which the modules of this package fill."""

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
"""Maps operand values, in a list it owns, to a result; it may return views, and writes to operands via `own` only."""

EVALUATORS: dict[Opcode, Evaluator] = {}
ARRAY_FUNCTIONS: dict[Opcode, Callable[..., Any]] = {}
"""Functions `f(instruction, *operand_arrays)` of opcodes that need nothing else; their evaluators wrap them."""
SPECIALISERS: dict[Opcode, Callable[[HloInstruction], Callable[..., Any] | None]] = {}
"""Functions that return an equivalent function of the operand arrays only for an instruction, or None."""
TOKEN: tuple[Value, ...] = ()

_F = TypeVar("_F", bound=Evaluator)
_A = TypeVar("_A", bound=Callable[..., Any])
_S = TypeVar("_S", bound=Callable[[HloInstruction], Callable[..., Any] | None])


def evaluator(*opcodes: Opcode) -> Callable[[_F], _F]:
    """Register the decorated function as the evaluator of these opcodes."""

    def register(function: _F) -> _F:
        for opcode in opcodes:
            EVALUATORS[opcode] = function
        return function

    return register


def array_evaluator(*opcodes: Opcode) -> Callable[[_A], _A]:
    """Register `f(instruction, *operand_arrays) -> array` for ops that need nothing else."""

    def register(function: _A) -> _A:
        def run(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            return np.asarray(function(instruction, *values))

        for opcode in opcodes:
            EVALUATORS[opcode] = run
            ARRAY_FUNCTIONS[opcode] = function
        return function

    return register


def specialiser(*opcodes: Opcode) -> Callable[[_S], _S]:
    """Register a function that returns a specialized array function for an instruction; see `SPECIALISERS`."""

    def register(function: _S) -> _S:
        for opcode in opcodes:
            SPECIALISERS[opcode] = function
        return function

    return register


def own(values: list[Value], index: int) -> Array:
    """Take an array out of `values` to write to: the operand itself if nothing else refers to it, else a copy.

    This keeps a loop that fills an array step by step from copying the whole array in each step.
    """
    x = as_array(values[index])
    values[index] = TOKEN
    # Two references: the name here, and the argument of getrefcount. A view of `x` would hold a third.
    alone = sys.getrefcount(x) <= 2 and x.flags.owndata and x.flags.writeable and x.flags.c_contiguous
    return x if alone else np.array(x, order="C")


def as_array(value: Value) -> Array:
    """Return the value as an array; raise InterpreterError for a tuple."""
    if isinstance(value, tuple):
        raise InterpreterError("expected an array, got a tuple")
    return value


def arrays(values: Sequence[Value]) -> list[Array]:
    """Return the values, all of which must be arrays."""
    return [as_array(v) for v in values]


def leaves(value: Value) -> list[Array]:
    """Return the arrays of a value from left to right; tokens have none."""
    if not isinstance(value, tuple):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]
