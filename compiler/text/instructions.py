"""Parser of instructions: `name = shape opcode(operands), attributes`."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, NoReturn

from compiler.errors import ShapeError
from compiler.ir.attributes import ANY_CASE, ATTRIBUTE_KINDS, AttrKind, allowed_values
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction, infer_shape
from compiler.ir.literal import Literal
from compiler.ir.opcodes import BY_TEXT, UNIVERSAL_ATTRIBUTES, Opcode
from compiler.ir.shape import Shape
from compiler.text import async_sugar
from compiler.text.attributes import PARSERS
from compiler.text.literals import parse_literal
from compiler.text.shapes import at_shape, parse_shape, with_moved_layout

if TYPE_CHECKING:
    from compiler.text.parser import Parser

_START = re.compile(r"\s*%?([A-Za-z_][\w.\-]*)\s*=\s*")
_OPCODE = re.compile(r"([a-z][a-z0-9\-]*)\s*\(")
_DIMENSIONED = re.compile(r"[a-z]\w*\[")
_SIMPLE_OPERANDS = re.compile(r"\s*%?([A-Za-z_][\w.\-]*(?:,\s*%?[A-Za-z_][\w.\-]*)*)\s*\)")
_SEPARATOR = re.compile(r",\s*%?")
_ATTRIBUTE = re.compile(r"([A-Za-z_][\w.\-]*)\s*=")
_MORE = re.compile(r"[ \t]*\n[ \t]*[%R}]")
"""Matches the next line after the operands, the most common case, in which there are no attributes to parse."""


_SHAPE_FROM_OPERANDS = frozenset({Opcode.SEND, Opcode.SEND_DONE, Opcode.RECV, Opcode.RECV_DONE, Opcode.OUTFEED})


class BodyParser:
    """Parses instructions into a computation.

    Args:
        parser: the state of the whole parse.
        computation: where the instructions are added.
        implicit_parameters: turn undefined operands into parameters (for single instructions).
    """

    def __init__(self, parser: Parser, computation: HloComputation, implicit_parameters: bool = False) -> None:
        self.p = parser
        self.s = parser.s
        self.computation = computation
        self.implicit_parameters = implicit_parameters
        self.names: dict[str, HloInstruction] = {}
        self._parameters: dict[int, str] = {}

    def instruction(self) -> HloInstruction:
        """Parse `name = ...` after an optional ROOT."""
        s = self.s
        m = s.match(_START)
        if m is None:
            name = s.name("an instruction")
            s.expect("=", f"after '{name}'")
            raise AssertionError("the pattern is a name and an equals sign")
        name = m.group(1)
        if name in self.names:
            s.fail(f"a second instruction named '{name}' in this computation", m.start(1))
        return self.operation(name, parse_shape(s) if at_shape(s) else None)

    def operation(self, name: str | None, shape: Shape | None, nested: bool = False) -> HloInstruction:
        """Parse from the opcode to the last attribute; a nested operand has no attributes."""
        s = self.s
        m = s.match(_OPCODE)
        if m is None:
            if shape is None and _DIMENSIONED.match(s.text, s.pos):
                parse_shape(s)  # which fails, because there is no such type
            s.fail(f"expected an opcode and '(', found {s.next_token()}")
        opcode = BY_TEXT.get(m.group(1))
        wrapped: Opcode | None = None
        if opcode is None:  # perhaps a short form such as `add-start`
            opcode, wrapped = async_sugar.split(m.group(1)) or (None, None)
        if opcode is None:
            near = difflib.get_close_matches(m.group(1), BY_TEXT, n=1)
            s.fail(f"unknown opcode '{m.group(1)}'" + (f"; did you mean '{near[0]}'?" if near else ""), m.start())
        at = m.start()
        literal: Literal | None = None
        number: int | None = None
        operands: list[HloInstruction] = []
        if opcode is Opcode.PARAMETER:
            number = self._parameter_number(name, shape, at)
        elif opcode is Opcode.CONSTANT:
            if shape is None:
                s.fail("a constant must declare its shape", at)
            literal = parse_literal(s, shape, self.p.fill_elided)
            s.expect(")", "after the constant's value")
        else:
            operands = self._operands()
        attributes: dict[str, Any] = {}
        if not nested and not _MORE.match(s.text, s.pos):
            attributes = self._attributes(opcode, wrapped)
        if wrapped is not None:
            attributes = async_sugar.expand(self.p, opcode, wrapped, operands, attributes, shape, at)
        elif opcode in (Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE):
            async_sugar.inherit(self.p, opcode, operands, attributes, shape, at)
        if opcode is Opcode.ASYNC_START and "async_execution_thread" in attributes and "calls" in attributes:
            async_sugar.move_to_thread(attributes["calls"], attributes["async_execution_thread"])
        for required in opcode.row.required:
            if required not in attributes:
                s.fail(f"{opcode.text} needs attribute '{required}'", at)
        if shape is None:
            shape = self._inferred(opcode, operands, attributes, at)
        elif opcode in _SHAPE_FROM_OPERANDS:
            shape = _transfer_shape(opcode, operands, attributes, shape)
        base = name or self.free_name(opcode.text)
        instruction = HloInstruction(base, opcode, shape, operands, attributes, literal, number)
        instruction.line = s.line(at)
        self.computation.insert(instruction)
        if name is not None:
            self.names[name] = instruction
        return instruction

    def free_name(self, base: str) -> str:
        """Return a name for an unnamed instruction that differs from all names in the text."""
        name = self.computation.unique_name(base)
        number = 0
        while name in self.p.given_names:
            number += 1
            name = self.computation.unique_name(f"{base}.{number}")
        return name

    def _parameter_number(self, name: str | None, shape: Shape | None, at: int) -> int:
        s = self.s
        number = s.integer("the parameter's number")
        s.expect(")", "after the parameter's number")
        if shape is None:
            s.fail("a parameter must declare its shape", at)
        if number < 0:
            s.fail(f"parameter number must not be negative, is {number}", at)
        if number in self._parameters:
            s.fail(f"parameter {number} is '{self._parameters[number]}' already", at)
        self._parameters[number] = name or "parameter"
        return number

    def _inferred(self, opcode: Opcode, operands: list[HloInstruction], attributes: dict[str, Any], at: int) -> Shape:
        try:
            shape = infer_shape(opcode, [o.shape for o in operands], attributes)
        except ShapeError as e:
            self.s.fail(f"cannot infer the result shape: {e}", at)
        if opcode is Opcode.TRANSPOSE:
            # As in XLA, a transpose without a declared shape is a bitcast: its layout leaves all elements in place.
            shape = with_moved_layout(shape, operands[0].shape, attributes["dimensions"])
        return shape

    # ---- operands

    def _operands(self) -> list[HloInstruction]:
        s = self.s
        m = _SIMPLE_OPERANDS.match(s.text, s.pos)
        if m is not None:
            names = self.names
            found = [names.get(n) for n in _SEPARATOR.split(m.group(1))]
            if None not in found:
                s.pos = m.end()
                return found  # type: ignore[return-value]  # checked for None above
        operands: list[HloInstruction] = []
        first = True
        while not s.accept(")"):
            if not first:
                s.expect(",", "or ')' after an operand")
            first = False
            operand = self._operand()
            if operand is not None:
                operands.append(operand)
        return operands

    def _operand(self) -> HloInstruction | None:
        """Parse an operand; return None if it is empty or a shape only, which XLA's parser ignores."""
        s = self.s
        shape = parse_shape(s) if at_shape(s) else None
        if not self.implicit_parameters and (s.peek(",") or s.peek(")")):
            return None
        s.skip()
        at = s.pos
        if _OPCODE.match(s.text, at):
            self.p.enter()
            found = self.operation(None, shape, nested=True)
            self.p.leave()
            return found
        if self.implicit_parameters and shape is not None and (s.peek(",") or s.peek(")")):
            return self._implicit(f"_{len(self._parameters)}", shape)
        name = s.name("an operand")
        known = self.names.get(name)
        if known is None and self.implicit_parameters:
            if shape is None:
                s.fail(f"operand '{name}' needs its shape: a single instruction has no definitions above it", at)
            known = self._implicit(name, shape)
        if known is None:
            self._unknown(name, at)
        while s.accept("#"):
            index = s.integer("a tuple index")
            name = f"{name}#{index}"
            known = self.names.get(name) or self._element(known, index, name, at)
        if shape is not None and not shape.compatible(known.shape):
            s.fail(f"operand '{name}' is declared with shape {shape}, but has {known.shape}", at)
        return known

    def _implicit(self, name: str, shape: Shape) -> HloInstruction:
        number = len(self._parameters)
        self._parameters[number] = name
        parameter = self.names[name] = self.computation.add_parameter(number, shape, name)
        return parameter

    def _unknown(self, name: str, at: int) -> NoReturn:
        near = difflib.get_close_matches(name, self.names, n=1)
        self.s.fail(f"no instruction named '{name}' above" + (f"; did you mean '{near[0]}'?" if near else ""), at)

    def _element(self, of: HloInstruction, index: int, name: str, at: int) -> HloInstruction:
        try:
            element = self.computation.add(
                Opcode.GET_TUPLE_ELEMENT, [of], index=index, name=self.free_name(name.replace("#", "_"))
            )
        except ShapeError as e:
            self.s.fail(str(e), at)
        self.names[name] = element
        return element

    # ---- attributes

    def _attributes(self, opcode: Opcode, wrapped: Opcode | None) -> dict[str, Any]:
        s = self.s
        attributes: dict[str, Any] = {}
        while s.accept(","):
            m = s.match(_ATTRIBUTE)
            if m is None:
                s.fail(f"expected an attribute, found {s.next_token()}")
            name = m.group(1)
            if name in attributes:
                s.fail(f"attribute '{name}' is given twice", m.start())
            if not _takes(opcode, wrapped, name):
                self._unknown_attribute(wrapped or opcode, name, m.start())
            attributes[name] = self._attribute(name, wrapped or opcode)
        return attributes

    def _unknown_attribute(self, opcode: Opcode, name: str, at: int) -> None:
        known = [*opcode.row.required, *opcode.row.optional, *UNIVERSAL_ATTRIBUTES]
        near = difflib.get_close_matches(name, known, n=1)
        own = ", ".join([*opcode.row.required, *opcode.row.optional])
        hint = f"; did you mean '{near[0]}'?" if near else f"; it takes {own}" if own else ""
        self.s.fail(f"{opcode.text} has no attribute '{name}'{hint}", at)

    def _attribute(self, name: str, opcode: Opcode) -> Any:
        s = self.s
        kind = ATTRIBUTE_KINDS.get(name, AttrKind.RAW)
        if kind is AttrKind.COMPUTATION:
            return self.p.callee()
        if kind is AttrKind.COMPUTATIONS:
            return self._list(self.p.callee, "a list of computations")
        if kind is AttrKind.INSTRUCTIONS:
            return self._list(self._predecessor, "a list of instructions")
        s.skip()
        at = s.pos
        value = PARSERS[kind](s)
        allowed = allowed_values(name, opcode.text)
        if allowed is None or value in allowed:
            return value
        folded = next((a for a in allowed if a.lower() == value.lower()), None) if name in ANY_CASE else None
        if folded is None:
            near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.4)
            s.fail(f"{name} cannot be '{value}'; " + (f"did you mean '{near[0]}'?" if near else ", ".join(allowed)), at)
        return folded

    def _list(self, item: Any, what: str) -> tuple[Any, ...]:
        s = self.s
        found: list[Any] = []
        s.expect("{", f"at the start of {what}")
        while not s.accept("}"):
            if found:
                s.expect(",", f"or '}}' in {what}")
            found.append(item())
        return tuple(found)

    def _predecessor(self) -> HloInstruction:
        s = self.s
        s.skip()
        at = s.pos
        name = s.name("an instruction")
        if name not in self.names:
            self._unknown(name, at)
        return self.names[name]


def _transfer_shape(
    opcode: Opcode, operands: list[HloInstruction], attributes: dict[str, Any], declared: Shape
) -> Shape:
    """Return the shape of a transfer, which XLA infers from its operands; a wrong declared shape is ignored."""
    try:
        found = infer_shape(opcode, [o.shape for o in operands], attributes, declared)
    except ShapeError:
        return declared
    return found


def _takes(opcode: Opcode, wrapped: Opcode | None, name: str) -> bool:
    """Check whether an instruction has this attribute; a short async start also has those of what it wraps."""
    row = opcode.row
    if name in row.required or name in row.optional or name in UNIVERSAL_ATTRIBUTES:
        return not (wrapped is not None and name == "calls" and opcode is not Opcode.ASYNC_START)
    if wrapped is None or opcode is not Opcode.ASYNC_START:
        return False
    return name in wrapped.row.required or name in wrapped.row.optional
