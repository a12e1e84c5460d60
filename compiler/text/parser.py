"""Parser of HLO text: the header, the tables of source locations, and the computations.

The grammar is that of XLA's `xla/hlo/parser/hlo_parser.cc`: the header is optional; names may lack their percent sign;
operand and result shapes may be omitted; without ENTRY the last computation is the entry, and without ROOT the last
instruction is the root. Instructions are parsed in `text/instructions.py`.
"""

from __future__ import annotations

import difflib
import re
from functools import cached_property

from compiler.errors import ArgumentError
from compiler.ir.computation import HloComputation
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.support.untrusted import short_repr
from compiler.text.definitions import Definitions
from compiler.text.header import parse_header
from compiler.text.instructions import BodyParser
from compiler.text.scanner import Scanner
from compiler.text.shapes import at_shape, parse_shape

_TABLE = re.compile(
    r'(?:FileNames|FunctionNames)(?:\s*\d+\s*"(?:[^"\\]|\\.)*")*(?![\w.\-]|\s*[({=])'
    r"|(?:FileLocations|StackFrames)(?:\s*\d+\s*\{[^{}]*\})*(?![\w.\-]|\s*[({=])"
)
_INSTRUCTION_START = re.compile(r"(?:ROOT\s+)?%?[A-Za-z_][\w.\-]*\s*=")
_GIVEN_NAME = re.compile(r"([A-Za-z_][\w.\-]*)\s*=")
MAX_NESTING = 100
"""Deepest nesting of operands and inline computations that is accepted."""


def parse(text: str, *, filename: str | None = None, fill_elided: bool = False) -> HloModule:
    """Parse HLO text into a module.

    Args:
        text: a module, one or more computations, or a single instruction.
        filename: shown in errors.
        fill_elided: fill elided constants (`{...}`) with a fixed pattern instead of refusing them.

    Raises:
        HloSyntaxError: the text is not HLO; the error has line, column and a caret.
        ArgumentError: `text` is no string.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"parse takes HLO text, not {short_repr(text)}")
    return Parser(text, filename, fill_elided).module()


class Parser:
    """The state of a parse: the scanner, the module so far, and the nesting depth."""

    def __init__(self, text: str, filename: str | None, fill_elided: bool) -> None:
        self.s = Scanner(text, filename)
        self.fill_elided = fill_elided
        self.result = HloModule("module")
        self.depth = 0
        self._generated: set[HloComputation] = set()
        # A computation that is called before its definition is parsed early; its text is skipped later.
        self._read_ahead: dict[int, tuple[int, HloComputation]] = {}
        self._in_progress: set[str] = set()

    @cached_property
    def given_names(self) -> frozenset[str]:
        """All names that the text gives to instructions."""
        return frozenset(_GIVEN_NAME.findall(self.s.text))

    def enter(self) -> None:
        """Enter an inline computation or a nested operand; `leave` undoes it."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.s.fail(f"operands or inline computations nest deeper than {MAX_NESTING}")

    def leave(self) -> None:
        """Leave an inline computation or a nested operand."""
        self.depth -= 1

    def module(self) -> HloModule:
        """Parse the whole text."""
        s = self.s
        if s.at_end():
            s.fail("the text is empty: expected 'HloModule name' or a computation")
        named = s.keyword("HloModule")
        if named:
            parse_header(s, self.result)
        elif self._is_single_instruction():
            return self._single_instruction()
        self._tables()
        entry: HloComputation | None = None
        last: HloComputation | None = None
        while not s.at_end():
            at = s.pos
            if at in self._read_ahead:
                s.pos, last = self._read_ahead.pop(at)
                continue
            is_entry = s.keyword("ENTRY")
            last = self.computation(at)
            if is_entry:
                if entry is not None:
                    s.fail("a second ENTRY computation", at)
                entry = last
        entry = entry or last or (self.result.computations[-1] if self.result.computations else None)
        if entry is None:
            s.fail("the module has no computation")
        self.result.entry = entry
        if not named:
            self.result.name = f"module_{entry.name}"
        return self.result

    def _tables(self) -> None:
        while (m := self.s.match(_TABLE)) is not None:
            self.result.tables.append(m.group())

    # ---- single instructions

    def _is_single_instruction(self) -> bool:
        s = self.s
        return _INSTRUCTION_START.match(s.text, s.pos) is not None or at_shape(s)

    def _single_instruction(self) -> HloModule:
        """Parse one instruction, which becomes the root of the entry; undefined operands become parameters."""
        s = self.s
        computation = HloComputation("entry")
        body = BodyParser(self, computation, implicit_parameters=True)
        if at_shape(s):
            body.operation("root", parse_shape(s))
        else:
            s.keyword("ROOT")
            body.instruction()
        computation.root = computation.last
        self.result.entry = self.result.add(computation)
        if not s.at_end():
            s.fail(
                f"unexpected {s.next_token()} after a single instruction (several computations or instructions "
                "need a header, HloModule)"
            )
        return self.result

    # ---- computations

    def computation(self, starts_at: int) -> HloComputation:
        """Parse a computation from its name on; `starts_at` is the position of ENTRY or the name."""
        s = self.s
        at = s.pos
        name = s.name("a computation")
        known = self.result.find(name)
        if known is not None and known in self._generated:
            self.result.remove(known)
            known.name = f"{name}.generated"
            self.result.add(known)
        elif known is not None or name in self._in_progress:
            s.fail(f"a second computation named '{name}'", at)
        self._in_progress.add(name)
        declared = None
        if s.peek("("):
            declared = self._signature()
        computation = HloComputation(name)
        self.body(computation)
        if declared is not None and not declared[0].compatible(computation.root.shape):
            s.fail(
                f"'{name}' is declared to return {declared[0]}, but its root has {computation.root.shape}", declared[1]
            )
        while s.accept(","):
            key_at = s.pos
            key = s.name("a computation attribute")
            if key != "execution_thread":
                s.fail(f"a computation has no attribute '{key}', only execution_thread", key_at)
            s.expect("=")
            computation.attributes[key] = s.string()
        self._in_progress.discard(name)
        self._read_ahead[starts_at] = s.pos, computation
        return self.result.add(computation)

    def _signature(self) -> tuple[Shape, int] | None:
        """Parse `(p: f32[2], ...) -> f32[2]`; return the result shape and its position."""
        s = self.s
        s.expect("(")
        first = True
        while not s.accept(")"):
            if not first:
                s.expect(",", "or ')' in the parameter list")
            first = False
            s.name("a parameter's name")
            s.accept(":")
            parse_shape(s)
        if not s.accept("->"):
            return None
        s.skip()
        at = s.pos
        return parse_shape(s), at

    def body(self, computation: HloComputation) -> None:
        """Parse `{ instructions }` and set the root."""
        s = self.s
        s.skip()
        open_at = s.pos
        s.expect("{", "at the start of the computation's body")
        reader = BodyParser(self, computation)
        root = None
        while not s.accept("}"):
            if s.pos >= len(s.text):
                s.fail(f"the body of '{computation.name}' is never closed", open_at)
            at = s.pos
            is_root = s.keyword("ROOT")
            instruction = reader.instruction()
            if is_root:
                if root is not None:
                    s.fail(f"a second ROOT in '{computation.name}'", at)
                root = instruction
        if not len(computation):
            s.fail(f"computation '{computation.name}' is empty", open_at)
        computation.root = root or computation.last

    def add_generated(self, computation: HloComputation) -> HloComputation:
        """Add a computation that has no name in the text; it is renamed if the text defines one of that name."""
        self._generated.add(computation)
        return self.result.add(computation)

    def is_generated(self, computation: HloComputation) -> bool:
        """Check whether a computation has no name in the text."""
        return computation in self._generated

    def callee(self) -> HloComputation:
        """Parse a called computation: its name, or an inline definition."""
        s = self.s
        s.skip()
        at = s.pos
        if s.peek("{"):
            inline = HloComputation("inline")
            self.enter()
            self.body(inline)
            self.leave()
            return self.add_generated(inline)
        name = s.name("a computation's name")
        found = self._parsed(name)
        if found is not None:
            return found
        if s.peek("(") or s.peek("{"):
            s.pos = at
            self.enter()
            computation = self.computation(at)
            self.leave()
            return computation
        return self._defined_below(name, at)

    def _defined_below(self, name: str, at: int) -> HloComputation:
        """Parse the computation `name` ahead of its position: XLA prints some modules with callers first."""
        s = self.s
        start = None if name in self._in_progress else self._definitions.first(name, s.pos)
        if start is None:
            near = difflib.get_close_matches(name, [c.name for c in self.result.computations], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            if name in self._in_progress:
                hint = "; a computation cannot call itself"
            s.fail(f"no computation named '{name}'{hint}", at)
        back = s.pos
        self.enter()
        # Parse its own callees first, so that a chain of calls does not become deep recursion.
        for ahead in self._definitions.callees_first(start, self._read_ahead):
            s.pos = ahead
            s.skip()
            if s.pos not in self._read_ahead and self._parsed(self._definitions.name_at(ahead)) is None:
                self.computation(s.pos)
        self.leave()
        s.pos = back
        found = self._parsed(name)
        if found is None:
            s.fail(f"no computation named '{name}'", at)
        return found

    def _parsed(self, name: str) -> HloComputation | None:
        """Return the computation of this name that was parsed from the text, or None."""
        found = self.result.find(name)
        return None if found is None or found in self._generated else found

    @cached_property
    def _definitions(self) -> Definitions:
        return Definitions(self.s.text)
