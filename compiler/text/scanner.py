"""A position in HLO text, and the small steps every part of the parser takes from there."""

from __future__ import annotations

import bisect
import re
from functools import cached_property
from typing import NoReturn

from compiler.errors import HloSyntaxError
from compiler.ir.quoting import unescape

_SKIP = re.compile(r"(?:\s+|/\*(?:[^*]|\*(?!/))*\*/|//[^\n]*)+")
_NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_INT = re.compile(r"-?\d+")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_BRACKETS = re.compile(r'[{}()\[\]]|"(?:[^"\\]|\\.)*"|/\*(?:[^*]|\*(?!/))*\*/', re.DOTALL)
_CLOSING = {"{": "}", "(": ")", "[": "]"}
MAX_DEPTH = 128
"""Deepest nesting of tuples, literals and operands that is read."""


class Scanner:
    """Text and a position in it. Each method skips white space and comments first."""

    def __init__(self, text: str, filename: str | None = None) -> None:
        self.text = text
        self.filename = filename
        self.pos = 0

    def line(self, pos: int) -> int:
        """Line of a position."""
        return bisect.bisect_left(self._line_ends, pos) + 1

    @cached_property
    def _line_ends(self) -> list[int]:
        return [m.start() for m in re.finditer("\n", self.text)]

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        """Raise HloSyntaxError at `pos` (default: here)."""
        at = self.pos if pos is None else pos
        at = min(at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        raise HloSyntaxError(message, self.text.count("\n", 0, at) + 1, at - start + 1, line, self.filename)

    def skip(self) -> None:
        """Step over white space and comments."""
        m = _SKIP.match(self.text, self.pos)
        if m:
            self.pos = m.end()
        if self.text.startswith("/*", self.pos):
            self.fail("comment is never closed: expected */")

    def at_end(self) -> bool:
        """Whether nothing but white space and comments is left."""
        self.skip()
        return self.pos >= len(self.text)

    def shown(self) -> str:
        """What stands here, for messages."""
        self.skip()
        if self.pos >= len(self.text):
            return "the end of the text"
        m = re.compile(r"[\w.%\-]+|\S").match(self.text, self.pos)
        return repr(m.group()[:40]) if m else "white space"

    def peek(self, literal: str) -> bool:
        """Whether `literal` stands here."""
        self.skip()
        return self.text.startswith(literal, self.pos)

    def accept(self, literal: str) -> bool:
        """Step over `literal` when it stands here."""
        self.skip()
        if self.text.startswith(literal, self.pos):
            self.pos += len(literal)
            return True
        return False

    def expect(self, literal: str, where: str = "") -> None:
        """Step over `literal`; HloSyntaxError when it does not stand here."""
        if not self.accept(literal):
            self.fail(f"expected '{literal}'{' ' + where if where else ''}, found {self.shown()}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Step over `pattern` when it matches here."""
        self.skip()
        m = pattern.match(self.text, self.pos)
        if m:
            self.pos = m.end()
        return m

    def keyword(self, word: str) -> bool:
        """Step over a whole word."""
        self.skip()
        end = self.pos + len(word)
        if not self.text.startswith(word, self.pos):
            return False
        if end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_.-"):
            return False
        self.pos = end
        return True

    def name(self, what: str = "a name") -> str:
        """An identifier, its percent sign dropped."""
        m = self.match(_NAME)
        if m is None:
            self.fail(f"expected {what}, found {self.shown()}")
        return m.group(1)

    def integer(self, what: str = "an integer") -> int:
        """A whole number."""
        m = self.match(_INT)
        if m is None:
            self.fail(f"expected {what}, found {self.shown()}")
        if len(m.group()) > 40:
            self.fail("integer out of range", m.start())
        return int(m.group())

    def string(self, what: str = "a string in quotes") -> str:
        """A string in either kind of quotes, escapes resolved."""
        m = self.match(_STRING)
        if m is None:
            self.fail(f"expected {what}, found {self.shown()}")
        return unescape(m.group(1) if m.group(1) is not None else m.group(2))

    def balanced(self) -> str:
        """Text from an opening bracket here to the one that closes it, both included."""
        self.skip()
        start = self.pos
        stack: list[str] = []
        pos = start
        while True:
            m = _BRACKETS.search(self.text, pos)
            if m is None:
                self.fail("bracket is never closed", start)
            pos = m.end()
            c = m.group()
            if c in _CLOSING:
                stack.append(_CLOSING[c])
            elif c[0] not in '"/':
                if not stack or stack.pop() != c:
                    self.fail(f"unexpected '{c}'", m.start())
                if not stack:
                    self.pos = pos
                    return self.text[start:pos]
