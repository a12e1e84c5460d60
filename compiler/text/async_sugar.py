"""`add-start`, `add-update`, `add-done`: the short forms of async-start, -update and -done around one instruction.

The start gets a computation of its own with that instruction in it; update and done inherit it from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import BY_TEXT, UNIVERSAL_ATTRIBUTES, Opcode
from compiler.ir.shape import Shape
from compiler.text.scanner import Scanner

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
"""These have opcodes of their own for their async forms."""
_OF_THE_START = frozenset({"async_execution_thread", "output_to_operand_aliasing"})
_SHARED = frozenset({"metadata", "backend_config", "frontend_attributes"})
"""Said once in the short form, and true of the start and of what it wraps."""


def split(text: str) -> tuple[Opcode, Opcode] | None:
    """`add-start` -> (ASYNC_START, ADD); None for what is no such form."""
    for suffix, opcode in _FORMS:
        wrapped = BY_TEXT.get(text.removesuffix(suffix)) if text.endswith(suffix) else None
        if wrapped is not None and wrapped not in _NATIVE:
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
    """Attributes of the async instruction that the short form stands for; makes the wrapping computation."""
    if opcode is not Opcode.ASYNC_START:
        inherit(p.s, opcode, operands, attributes, at, wrapped)
        return attributes
    if shape is None or not shape.is_tuple or len(shape.tuple_shapes) < 2 or not shape.tuple_shapes[0].is_tuple:
        p.s.fail("an async start has a shape ((operands...), result, ...), written out", at)
    inner = {k: v for k, v in attributes.items() if k not in _OF_THE_START and k not in UNIVERSAL_ATTRIBUTES}
    if wrapped in (Opcode.FUSION, Opcode.CUSTOM_CALL) and "output_to_operand_aliasing" in attributes:
        inner["output_to_operand_aliasing"] = attributes["output_to_operand_aliasing"]
    inner |= {k: v for k, v in attributes.items() if k in _SHARED}
    for required in wrapped.row.required:
        if required not in inner:
            p.s.fail(f"{wrapped.text} needs attribute '{required}'", at)
    body = HloComputation("async_wrapped")
    parameters = [
        body.add_parameter(i, part, "async_param") for i, part in enumerate(shape.tuple_shapes[0].tuple_shapes)
    ]
    body.root = body.insert(HloInstruction("async_op", wrapped, shape.tuple_shapes[1], parameters, inner))
    thread = attributes.get("async_execution_thread", "main")
    if thread != "main":
        body.attributes["execution_thread"] = thread
    p.add_generated(body)
    outer = {k: v for k, v in attributes.items() if k in _OF_THE_START or k in UNIVERSAL_ATTRIBUTES}
    if wrapped in (Opcode.FUSION, Opcode.CUSTOM_CALL):
        outer.pop("output_to_operand_aliasing", None)
    return outer | {"calls": body}


def inherit(
    s: Scanner,
    opcode: Opcode,
    operands: Sequence[HloInstruction],
    attributes: dict[str, Any],
    at: int,
    wrapped: Opcode | None = None,
) -> None:
    """Check what an update or done repeats of its start, and drop it."""
    if not operands:
        s.fail(f"{opcode.text} needs the async instruction it goes on from as its operand", at)
    if operands[0].opcode is Opcode.ASYNC_DONE:
        s.fail(f"{opcode.text} cannot go on from an async-done", at)
    start: HloInstruction | None = operands[0]
    while start is not None and start.opcode is Opcode.ASYNC_UPDATE:
        start = start.operands[0] if start.operands else None
    if start is None or start.opcode is not Opcode.ASYNC_START:
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
