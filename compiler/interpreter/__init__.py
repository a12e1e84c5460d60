"""The interpreter: a numpy evaluator that defines every op.

`evaluate` runs a module, `evaluate_computation` a computation, and `evaluate_op` one instruction on given values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.errors import ArgumentError
from compiler.interpreter import (  # noqa: F401  # importing a module registers its evaluators
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
from compiler.support.recursion import ENOUGH, deep_recursion, on_deep_stack


def evaluate(module: HloModule, args: Sequence[Any], context: Context | None = None) -> list[Array]:
    """Run a module and return its results.

    Args:
        module: the module whose entry is run.
        args: one value per parameter: an array (or something that numpy converts to one of the right dtype), a tuple
            for a tuple parameter, or () for a token. Or else the array leaves of all parameters in order, as an
            executable takes them.
        context: the infeed and outfeed queues, and the seed of `rng`.

    Returns:
        The array leaves of the entry's result in order, row-major, without memory shared with the arguments; tokens are
        omitted.

    Raises:
        ArgumentError: number, dtype or dimensions of the arguments do not fit the entry's parameters.
        UnsupportedError: an op or custom call is unknown, or calls and loops nest too deeply.
        InterpreterError: an op cannot be evaluated on these values.
        MemoryLimitError: the values do not fit into memory.
    """
    graph = check_call_graph(module)
    shapes = module.parameter_shapes
    if not all(s.is_array for s in shapes) and not any(isinstance(a, tuple | list) for a in args):
        args = _nested(shapes, args)
    if len(args) != len(shapes):
        raise ArgumentError(f"module {module.name} takes {len(shapes)} arguments, got {len(args)}")
    values = [_argument(shape, arg, f"argument {i}") for i, (shape, arg) in enumerate(zip(shapes, args, strict=True))]
    check_footprint(module)

    def run() -> list[Array]:
        # Each HLO call takes a handful of Python calls.
        with np.errstate(all="ignore"), deep_recursion(ENOUGH + 10 * graph.calls):
            return contiguous(leaves(Machine(context).run(module.entry, values)))

    return on_deep_stack(run, graph.calls)


def evaluate_computation(computation: HloComputation, args: Sequence[Value], context: Context | None = None) -> Value:
    """Run a computation on values of its parameter shapes; the result may share memory with them."""
    shapes = computation.parameter_shapes
    if len(args) != len(shapes):
        raise ArgumentError(f"computation %{computation.name} takes {len(shapes)} arguments, got {len(args)}")
    with np.errstate(all="ignore"):
        return Machine(context).run(computation, args)


def evaluate_op(instruction: HloInstruction, operand_values: Sequence[Value], context: Context | None = None) -> Value:
    """Evaluate an instruction on values of its operands; the result may share memory with them."""
    if instruction.opcode is Opcode.CONSTANT:
        return literal_value(instruction.value)
    with np.errstate(all="ignore"):
        return Machine(context).evaluate(instruction, list(operand_values))


def _nested(shapes: Sequence[Shape], arrays: Sequence[Any]) -> list[Any]:
    """Return one value per parameter from the array leaves of all; raise ArgumentError if there are more or fewer."""
    wanted = [s for shape in shapes for s in shape.leaves() if s.is_array]
    if len(arrays) != len(wanted):
        listed = ", ".join(map(str, wanted))
        raise ArgumentError(
            f"expected a tuple for each parameter that is one, or the {len(wanted)} arrays of all parameters "
            f"({listed}), got {len(arrays)} arguments"
        )
    rest = iter(arrays)

    def value(shape: Shape) -> Any:
        return next(rest) if shape.is_array else tuple(value(s) for s in (shape.tuple_shapes if shape.is_tuple else ()))

    return [value(s) for s in shapes]


def _argument(shape: Shape, arg: Any, what: str) -> Value:
    """Convert an argument to a value of `shape`; raise ArgumentError if it does not fit."""
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
