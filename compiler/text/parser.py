"""HLO text -> HloModule.

The grammar is that of XLA's `xla/hlo/parser/hlo_parser.cc`: the module header is optional, names may go without
their percent sign, operand shapes and result shapes may be left out, the last computation is the entry when none
says ENTRY, the last instruction is the root when none says ROOT.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from compiler.errors import ShapeError
from compiler.ir.attributes import ATTRIBUTE_KINDS, AttrKind, Raw
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction, infer_shape
from compiler.ir.literal import Literal
from compiler.ir.module import HloModule
from compiler.ir.opcodes import BY_TEXT, UNIVERSAL_ATTRIBUTES, Opcode
from compiler.ir.shape import Shape
from compiler.text.attributes import PARSERS, parse_raw
from compiler.text.literals import parse_literal
from compiler.text.scanner import Scanner
from compiler.text.shapes import at_shape, parse_shape

_OPCODE = re.compile(r"([a-z][a-z0-9\-]*)\(")
_SIMPLE_OPERANDS = re.compile(r"\s*%?([A-Za-z_][\w.\-]*(?:\s*,\s*%?[A-Za-z_][\w.\-]*)*)\s*\)")
_SEPARATOR = re.compile(r"\s*,\s*%?")
_ATTRIBUTE = re.compile(r"([A-Za-z_][\w\-]*)=")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def parse(text: str, *, filename: str | None = None, fill_elided: bool = False) -> HloModule:
    """Read a module from HLO text.

    Args:
        text: a whole module, one or more computations, or a single instruction.
        filename: named in errors.
        fill_elided: fill constants left out of the text (`{...}`) with a fixed pattern instead of refusing them.

    Raises:
        HloSyntaxError: with line, column and a caret.
    """
    return _Parser(text, filename, fill_elided).module()


class _Parser:
    def __init__(self, text: str, filename: str | None, fill_elided: bool) -> None:
        self.s = Scanner(text, filename)
        self.fill_elided = fill_elided
        self.result = HloModule("module")

    # ---- module

    def module(self) -> HloModule:
        s = self.s
        if s.at_end():
            s.fail("the text is empty: expected 'HloModule name' or a computation")
        if s.keyword("HloModule"):
            self._header()
        entry: HloComputation | None = None
        last: HloComputation | None = None
        while not s.at_end():
            if self._table():
                continue
            if last is None and entry is None and self._single_instruction():
                break
            at = s.pos
            is_entry = s.keyword("ENTRY")
            last = self._computation()
            if is_entry:
                if entry is not None:
                    s.fail("a second ENTRY computation", at)
                entry = last
        entry = entry or last or (self.result.computations[-1] if self.result.computations else None)
        if entry is None:
            s.fail("the module has no computation")
        self.result.entry = entry
        return self.result

    def _header(self) -> None:
        s = self.s
        self.result.name = s.name("the module's name")
        while s.accept(","):
            at = s.pos
            name = s.name("a header attribute")
            s.expect("=", f"after header attribute '{name}'")
            if name in self.result.header:
                s.fail(f"header attribute '{name}' is given twice", at)
            if name == "entry_computation_layout":
                self.result.header[name] = Raw(s.balanced())
            else:
                self.result.header[name] = parse_raw(s)

    def _table(self) -> bool:
        s = self.s
        for table in _TABLES:
            at = s.pos
            if s.keyword(table):
                if s.peek("{") or s.peek("(") or s.peek("="):
                    s.pos = at
                    return False
                m = re.compile(r"(?:[ \t]*\n[ \t]*\d+[^\n]*)*").match(s.text, s.pos)
                if m is not None:
                    s.pos = m.end()
                self.result.tables.append(s.text[at : s.pos].strip())
                return True
        return False

    def _single_instruction(self) -> bool:
        """A text that is one instruction: it becomes the entry, its unknown operands parameters."""
        s = self.s
        m = re.compile(r"(?:ROOT\s+)?%?[\w.\-]+\s*=\s").match(s.text, s.pos)
        if m is None:
            return False
        computation = HloComputation("entry")
        self._instruction(computation, {}, implicit_parameters=True)
        computation.root = computation.instructions[-1]
        self.result.add(computation)
        if not s.at_end():
            s.fail(f"unexpected {s.shown()} behind a single instruction")
        return True

    # ---- computations

    def _computation(self) -> HloComputation:
        s = self.s
        at = s.pos
        name = s.name("a computation")
        if self.result.find(name) is not None:
            s.fail(f"a second computation named '{name}'", at)
        if s.peek("("):
            self._signature()
        computation = HloComputation(name)
        self._body(computation)
        while s.accept(","):
            key = s.name("a computation attribute")
            s.expect("=")
            computation.attributes[key] = s.string()
        return self.result.add(computation)

    def _signature(self) -> None:
        """`(p: f32[2], ...) -> f32[2]`; the body says the same again, so it is only read over."""
        s = self.s
        s.expect("(")
        first = True
        while not s.accept(")"):
            if not first:
                s.expect(",", "or ')' in the parameter list")
            first = False
            s.name("a parameter's name")
            s.expect(":", "after a parameter's name")
            parse_shape(s)
        if s.accept("->"):
            parse_shape(s)

    def _body(self, computation: HloComputation) -> None:
        s = self.s
        open_at = s.pos
        s.expect("{", "at the start of the computation's body")
        names: dict[str, HloInstruction] = {}
        root: HloInstruction | None = None
        while not s.accept("}"):
            if s.at_end():
                s.fail(f"the body of '{computation.name}' is never closed", open_at)
            at = s.pos
            is_root = s.keyword("ROOT")
            instruction = self._instruction(computation, names)
            if is_root:
                if root is not None:
                    s.fail(f"a second ROOT in '{computation.name}'", at)
                root = instruction
        if not names:
            s.fail(f"computation '{computation.name}' is empty", open_at)
        computation.root = root or computation.instructions[-1]

    # ---- instructions

    def _instruction(
        self, computation: HloComputation, names: dict[str, HloInstruction], implicit_parameters: bool = False
    ) -> HloInstruction:
        s = self.s
        s.keyword("ROOT")
        at = s.pos
        name = s.name("an instruction")
        if name in names:
            s.fail(f"a second instruction named '{name}' in this computation", at)
        s.expect("=", f"after '{name}'")
        shape = parse_shape(s) if at_shape(s) else None
        return self._operation(computation, names, name, shape, implicit_parameters)

    def _operation(
        self,
        computation: HloComputation,
        names: dict[str, HloInstruction],
        name: str | None,
        shape: Shape | None,
        implicit_parameters: bool,
    ) -> HloInstruction:
        """From the opcode to the last attribute."""
        s = self.s
        m = s.match(_OPCODE)
        if m is None:
            s.fail(f"expected an opcode and '(', found {s.shown()}")
        opcode = BY_TEXT.get(m.group(1))
        if opcode is None:
            near = difflib.get_close_matches(m.group(1), BY_TEXT, n=1)
            s.fail(f"unknown opcode '{m.group(1)}'" + (f"; did you mean '{near[0]}'?" if near else ""), m.start())
        name = name or computation.unique_name(opcode.text)
        literal: Literal | None = None
        number: int | None = None
        operands: list[HloInstruction] = []
        if opcode is Opcode.PARAMETER:
            number = s.integer("the parameter's number")
            s.expect(")", "after the parameter's number")
        elif opcode is Opcode.CONSTANT:
            if shape is None:
                s.fail("a constant needs its shape written out", m.start())
            literal = parse_literal(s, shape, self.fill_elided)
            s.expect(")", "after the constant's value")
        else:
            operands = self._operands(computation, names, implicit_parameters)
        attributes = self._attributes(opcode, names)
        for required in opcode.row.required:
            if required not in attributes:
                s.fail(f"{opcode.text} needs attribute '{required}'", m.start())
        if shape is None:
            try:
                shape = infer_shape(opcode, [o.shape for o in operands], attributes)
            except ShapeError as e:
                s.fail(str(e), m.start())
        instruction = HloInstruction(name, opcode, shape, operands, attributes, literal, number)
        computation.insert(instruction)
        names[name] = instruction
        return instruction

    def _operands(
        self, computation: HloComputation, names: dict[str, HloInstruction], implicit_parameters: bool
    ) -> list[HloInstruction]:
        s = self.s
        m = _SIMPLE_OPERANDS.match(s.text, s.pos)
        if m is not None:
            found = [names.get(n) for n in _SEPARATOR.split(m.group(1))]
            if all(found):
                s.pos = m.end()
                return found  # type: ignore[return-value]  # all() excluded None
        operands: list[HloInstruction] = []
        while not s.accept(")"):
            if operands:
                s.expect(",", "or ')' after an operand")
            operands.append(self._operand(computation, names, implicit_parameters))
        return operands

    def _operand(
        self, computation: HloComputation, names: dict[str, HloInstruction], implicit_parameters: bool
    ) -> HloInstruction:
        s = self.s
        shape = parse_shape(s) if at_shape(s) else None
        s.skip()
        at = s.pos
        if _OPCODE.match(s.text, at):
            return self._operation(computation, names, None, shape, implicit_parameters)
        name = s.name("an operand")
        found = names.get(name)
        if found is None:
            if implicit_parameters and shape is not None:
                count = sum(i.opcode is Opcode.PARAMETER for i in computation.instructions)
                found = names[name] = computation.add_parameter(count, shape, name)
            else:
                near = difflib.get_close_matches(name, names, n=1)
                s.fail(
                    f"no instruction named '{name}' above this line" + (f"; did you mean '{near[0]}'?" if near else ""),
                    at,
                )
        while s.accept("#"):
            index = s.integer("a tuple index")
            try:
                found = computation.add(Opcode.GET_TUPLE_ELEMENT, [found], index=index)
            except ShapeError as e:
                s.fail(str(e), at)
        return found

    # ---- attributes

    def _attributes(self, opcode: Opcode, names: dict[str, HloInstruction]) -> dict[str, Any]:
        s = self.s
        attributes: dict[str, Any] = {}
        while s.accept(","):
            m = s.match(_ATTRIBUTE)
            if m is None:
                s.fail(f"expected an attribute, found {s.shown()}")
            name = m.group(1)
            if name in attributes:
                s.fail(f"attribute '{name}' is given twice", m.start())
            row = opcode.row
            if name not in row.required and name not in row.optional and name not in UNIVERSAL_ATTRIBUTES:
                known = [*row.required, *row.optional, *UNIVERSAL_ATTRIBUTES]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                s.fail(f"{opcode.text} has no attribute '{name}'{hint}", m.start())
            attributes[name] = self._attribute(name, names)
        return attributes

    def _attribute(self, name: str, names: dict[str, HloInstruction]) -> Any:
        s = self.s
        kind = ATTRIBUTE_KINDS.get(name, AttrKind.RAW)
        if kind is AttrKind.COMPUTATION:
            return self._callee()
        if kind is AttrKind.COMPUTATIONS:
            found = []
            s.expect("{", "at the start of a list of computations")
            while not s.accept("}"):
                if found:
                    s.expect(",", "or '}' in a list of computations")
                found.append(self._callee())
            return tuple(found)
        if kind is AttrKind.INSTRUCTIONS:
            predecessors = []
            s.expect("{")
            while not s.accept("}"):
                if predecessors:
                    s.expect(",", "or '}' in a list of instructions")
                at = s.pos
                n = s.name("an instruction")
                if n not in names:
                    s.fail(f"no instruction named '{n}' above this line", at)
                predecessors.append(names[n])
            return tuple(predecessors)
        return PARSERS[kind](s)

    def _callee(self) -> HloComputation:
        s = self.s
        s.skip()
        at = s.pos
        if s.peek("{"):
            inline = HloComputation(self.result.unique_computation_name("inline"))
            self._body(inline)
            return self.result.add(inline)
        name = s.name("a computation's name")
        if s.peek("(") or s.peek("{"):
            s.pos = at
            return self._computation()
        found = self.result.find(name)
        if found is None:
            near = difflib.get_close_matches(name, [c.name for c in self.result.computations], n=1)
            s.fail(f"no computation named '{name}' above" + (f"; did you mean '{near[0]}'?" if near else ""), at)
        return found
