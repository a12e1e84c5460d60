"""The numpy evaluator: the definition of every op.

`evaluate` runs a module, `evaluate_computation` one computation, `evaluate_op` one instruction on given values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.errors import ArgumentError
from compiler.interpreter import (  # noqa: F401  # importing a family fills its rows of the registry
    control,
    conversion,
    convolution,
    custom_calls,
    dot,
    elementwise,
    fft,
    gather_scatter,
    lapack,
    linalg,
    movement,
    ragged,
    random,
    reduce,
    reduce_window,
    sort,
    transfers,
)
from compiler.interpreter.custom_calls import register_custom_call as register_custom_call
from compiler.interpreter.footprint import check_footprint
from compiler.interpreter.machine import Context as Context
from compiler.interpreter.machine import Machine, contiguous, literal_value
from compiler.interpreter.registry import EVALUATORS as EVALUATORS
from compiler.interpreter.registry import Array, Value, leaves
from compiler.interpreter.registry import Evaluator as Evaluator
from compiler.ir.callgraph import check_call_graph
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.support.recursion import ENOUGH, deep_recursion


def evaluate(module: HloModule, args: Sequence[Any], context: Context | None = None) -> list[Array]:
    """Run a module.

    Args:
        module: whose entry to run.
        args: one value for each parameter: an array (or what numpy makes an array of, in the right dtype), or a
            tuple of such for a tuple parameter, or () for a token.
        context: queues of infeed and outfeed, and the seed of `rng`.

    Returns:
        The array leaves of the entry's result in order, row-major, sharing no memory with the arguments; tokens are
        left out.

    Raises:
        ArgumentError: count, dtype or dimensions of the arguments differ from the entry's parameters.
        UnsupportedError: an op or custom call that the interpreter does not know, or calls and loops that nest deeper
            than it can follow.
        InterpreterError: an op that cannot be evaluated on these values.
        MemoryLimitError: values that take more memory than there is.
    """
    graph = check_call_graph(module)
    shapes = module.parameter_shapes
    if len(args) != len(shapes):
        raise ArgumentError(f"module {module.name} takes {len(shapes)} arguments, got {len(args)}")
    values = [_argument(shape, arg, f"argument {i}") for i, (shape, arg) in enumerate(zip(shapes, args, strict=True))]
    check_footprint(module)
    # A call takes a handful of Python calls, and so do the plans of what is called.
    with np.errstate(all="ignore"), deep_recursion(ENOUGH + 10 * graph.calls):
        return contiguous(leaves(Machine(context).run(module.entry, values)))


def evaluate_computation(computation: HloComputation, args: Sequence[Value], context: Context | None = None) -> Value:
    """Run a computation on values of its parameters' shapes; the result may share memory with them."""
    shapes = computation.parameter_shapes
    if len(args) != len(shapes):
        raise ArgumentError(f"computation %{computation.name} takes {len(shapes)} arguments, got {len(args)}")
    with np.errstate(all="ignore"):
        return Machine(context).run(computation, args)


def evaluate_op(instruction: HloInstruction, operand_values: Sequence[Value], context: Context | None = None) -> Value:
    """Result of one instruction on values of its operands; the result may share memory with them."""
    if instruction.opcode is Opcode.CONSTANT:
        return literal_value(instruction.value)
    with np.errstate(all="ignore"):
        return Machine(context).evaluate(instruction, list(operand_values))


def _argument(shape: Shape, arg: Any, what: str) -> Value:
    """`arg` as a value of `shape`; ArgumentError when it is none."""
    if shape.is_tuple:
        if not isinstance(arg, tuple | list) or len(arg) != len(shape.tuple_shapes):
            raise ArgumentError(f"{what}: expected a tuple of shape {shape}, got {_given(arg)}")
        parts = zip(shape.tuple_shapes, arg, strict=True)
        return tuple(_argument(s, a, f"{what}, element {i}") for i, (s, a) in enumerate(parts))
    if not shape.is_array:
        return ()
    array = np.asarray(arg)
    if array.dtype != shape.dtype or array.shape != shape.dimensions:
        raise ArgumentError(f"{what}: expected {shape.dtype}{list(shape.dimensions)}, got {_given(arg)}")
    return array


def _given(arg: Any) -> str:
    if isinstance(arg, tuple | list):
        return f"a {type(arg).__name__} of {len(arg)}"
    array = np.asarray(arg)
    return f"{array.dtype}{list(array.shape)}"
