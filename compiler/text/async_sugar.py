"""Short forms of async ops: `add-start`, `add-update`, `add-done` wrap one instruction in an async op.

The start gets a generated computation that contains the instruction; update and done inherit it from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import BY_TEXT, UNIVERSAL_ATTRIBUTES, Opcode
from compiler.ir.shape import Shape
from compiler.ir.shape_query import is_prefix

if TYPE_CHECKING:
    from compiler.text.parser import Parser

_FORMS = (
    ("-start", Opcode.ASYNC_START),
    ("-update", Opcode.ASYNC_UPDATE),
    ("-done", Opcode.ASYNC_DONE),
)
_NATIVE = frozenset(
    {Opcode.ALL_GATHER, Opcode.ALL_REDUCE, Opcode.COLLECTIVE_PERMUTE, Opcode.COPY, Opcode.RECV, Opcode.SEND}
)
"""Opcodes whose async forms are opcodes of their own."""
_VALUES = frozenset({Opcode.PARAMETER, Opcode.CONSTANT})
"""Opcodes with a value in their parentheses instead of operands."""
_CALLEES = {Opcode.CALL: "to_apply", Opcode.FUSION: "calls"}
_PASSING = frozenset(
    {Opcode.ASYNC_UPDATE, Opcode.GET_TUPLE_ELEMENT, Opcode.OPTIMIZATION_BARRIER, Opcode.COPY, Opcode.DOMAIN}
)
_OF_THE_START = frozenset({"async_execution_thread", "output_to_operand_aliasing"})
_SHARED = frozenset({"metadata", "backend_config", "frontend_attributes"})
"""Attributes that the short form gives once, for both the start and the instruction that it wraps."""


def split(text: str) -> tuple[Opcode, Opcode] | None:
    """Split `add-start` into (ASYNC_START, ADD); return None if the name is not a short form."""
    for suffix, opcode in _FORMS:
        wrapped = BY_TEXT.get(text.removesuffix(suffix)) if text.endswith(suffix) else None
        if wrapped is not None and wrapped not in _NATIVE and wrapped not in _VALUES:
            return opcode, wrapped
    return None


def expand(
    p: Parser,
    opcode: Opcode,
    wrapped: Opcode,
    operands: Sequence[HloInstruction],
    attributes: dict[str, Any],
    shape: Shape | None,
    at: int,
) -> dict[str, Any]:
    """Return the attributes of the async instruction that a short form denotes; a start also gets its computation."""
    if opcode is not Opcode.ASYNC_START:
        inherit(p, opcode, operands, attributes, shape, at, wrapped)
        return attributes
    if shape is None or not shape.is_tuple or len(shape.tuple_shapes) < 2 or not shape.tuple_shapes[0].is_tuple:
        p.s.fail("an async start must declare its shape ((operands...), result, ...)", at)
    inner = {k: v for k, v in attributes.items() if k not in _OF_THE_START and k not in UNIVERSAL_ATTRIBUTES}
    if wrapped in (Opcode.FUSION, Opcode.CUSTOM_CALL) and "output_to_operand_aliasing" in attributes:
        inner["output_to_operand_aliasing"] = attributes["output_to_operand_aliasing"]
    inner |= {k: v for k, v in attributes.items() if k in _SHARED}
    for required in wrapped.row.required:
        if required not in inner:
            p.s.fail(f"{wrapped.text} needs attribute '{required}'", at)
    body = HloComputation("async_wrapped")
    inputs, result = _signature(wrapped, inner, shape)
    parameters = [body.add_parameter(i, part, "async_param") for i, part in enumerate(inputs)]
    body.root = body.insert(HloInstruction("async_op", wrapped, result, parameters, inner))
    for i in body.instructions:
        i.line = p.s.line(at)
    p.add_generated(body)
    outer = {k: v for k, v in attributes.items() if k in _OF_THE_START or k in UNIVERSAL_ATTRIBUTES}
    if wrapped in (Opcode.FUSION, Opcode.CUSTOM_CALL):
        outer.pop("output_to_operand_aliasing", None)
    return outer | {"calls": body}


def _signature(wrapped: Opcode, inner: dict[str, Any], shape: Shape) -> tuple[list[Shape], Shape]:
    """Return operand shapes and result shape of the wrapped instruction, from the shape of the start or its callee.

    The shape of a start may omit operands and results that updates bind later.
    """
    inputs, result = list(shape.tuple_shapes[0].tuple_shapes), shape.tuple_shapes[1]
    callee: HloComputation | None = inner.get(_CALLEES[wrapped]) if wrapped in _CALLEES else None
    if callee is None:
        return inputs, result
    inputs += callee.parameter_shapes[len(inputs) :]
    return inputs, callee.result_shape if is_prefix(result, callee.result_shape) else result


def move_to_thread(computation: HloComputation, thread: str) -> None:
    """Set the execution thread of a computation and of everything that it calls, except those that have one."""
    waiting = [computation] if thread != "main" else []
    while waiting:
        c = waiting.pop()
        if "execution_thread" not in c.attributes:
            c.attributes["execution_thread"] = thread
            waiting += (callee for i in c.instructions for callee in i.called_computations())


def _grow(body: HloComputation, inputs: Sequence[Shape], result: Shape) -> None:
    """Add operands, and a larger part of the result, to a generated computation."""
    have = len(body.parameters)
    new = [body.add_parameter(i, s, "async_param") for i, s in enumerate(inputs[have:], have)]
    body.root.set_operands([*body.root.operands, *new])
    if is_prefix(body.root.shape, result):
        body.root.set_shape(result)


def inherit(
    p: Parser,
    opcode: Opcode,
    operands: Sequence[HloInstruction],
    attributes: dict[str, Any],
    shape: Shape | None,
    at: int,
    wrapped: Opcode | None = None,
) -> None:
    """Check and drop the attributes that an update or done repeats from its start; extend the generated computation."""
    s = p.s
    if not operands:
        s.fail(f"{opcode.text} needs the async instruction that it continues as its operand", at)
    if operands[0].opcode is Opcode.ASYNC_DONE:
        s.fail(f"{opcode.text} cannot continue an async-done", at)
    start = _start_of(operands[0])
    if start is None:
        return
    calls: HloComputation | None = start.attr("calls")
    if wrapped is not None and calls is not None and calls.root.opcode is not wrapped:
        s.fail(f"'{start.name}' started a {calls.root.opcode.text}, not a {wrapped.text}", at)
    repeated = attributes.pop("calls", None)
    if repeated is not None and calls is not None and repeated is not calls:
        s.fail(f"'{start.name}' calls {calls.name}, not {repeated.name}", at)
    thread = attributes.pop("async_execution_thread", None)
    if thread is not None and thread != start.attr("async_execution_thread", "main"):
        s.fail(f"'{start.name}' runs on thread '{start.attr('async_execution_thread', 'main')}', not '{thread}'", at)
    if calls is None or shape is None or not p.is_generated(calls):
        return
    if opcode is Opcode.ASYNC_DONE:
        _grow(calls, (), shape)
    elif len(shape.tuple_shapes) > 1:
        _grow(calls, shape.tuple_shapes[0].tuple_shapes, shape.tuple_shapes[1])


def _start_of(i: HloInstruction) -> HloInstruction | None:
    """Return the async-start of a state, looking through updates and tuples; None if it is not in this computation."""
    path: list[int] = []
    while i.opcode is not Opcode.ASYNC_START:
        if i.opcode is Opcode.TUPLE and path and path[-1] < len(i.operands):
            i = i.operands[path.pop()]
        elif i.opcode in _PASSING and i.operands:
            if i.opcode is Opcode.GET_TUPLE_ELEMENT:
                path.append(i.attr("index"))
            i = i.operands[0]
        else:
            return None
    return i if not path else None
