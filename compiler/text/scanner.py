"""The scanner: HLO text, a position in it, and the basic steps of the parser."""

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
"""Deepest nesting of tuples, literals and operands that is accepted."""


class Scanner:
    """HLO text and a position in it; every method first skips white space and comments."""

    def __init__(self, text: str, filename: str | None = None) -> None:
        self.text = text
        self.filename = filename
        self.pos = 0

    def line(self, pos: int) -> int:
        """Return the line number of a position."""
        return bisect.bisect_left(self._line_ends, pos) + 1

    @cached_property
    def _line_ends(self) -> list[int]:
        return [m.start() for m in re.finditer("\n", self.text)]

    def fail(self, message: str, pos: int | None = None) -> NoReturn:
        """Raise HloSyntaxError at `pos`, by default the current position."""
        at = self.pos if pos is None else pos
        at = min(at, len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        raise HloSyntaxError(message, self.text.count("\n", 0, at) + 1, at - start + 1, line, self.filename)

    def skip(self) -> None:
        """Skip white space and comments."""
        m = _SKIP.match(self.text, self.pos)
        if m:
            self.pos = m.end()
        if self.text.startswith("/*", self.pos):
            self.fail("comment is never closed: expected */")

    def at_end(self) -> bool:
        """Check whether only white space and comments are left."""
        self.skip()
        return self.pos >= len(self.text)

    def next_token(self) -> str:
        """Return the next token for an error message."""
        self.skip()
        if self.pos >= len(self.text):
            return "the end of the text"
        m = re.compile(r"[\w.%\-]+|\S").match(self.text, self.pos)
        return repr(m.group()[:40]) if m else "white space"

    def peek(self, literal: str) -> bool:
        """Check whether the text continues with `literal`."""
        self.skip()
        return self.text.startswith(literal, self.pos)

    def accept(self, literal: str) -> bool:
        """Skip `literal` if it comes next; return whether it did."""
        self.skip()
        if self.text.startswith(literal, self.pos):
            self.pos += len(literal)
            return True
        return False

    def expect(self, literal: str, where: str = "") -> None:
        """Skip `literal`, or raise HloSyntaxError if it does not come next."""
        if not self.accept(literal):
            self.fail(f"expected '{literal}'{' ' + where if where else ''}, found {self.next_token()}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Skip what `pattern` matches next; return the match, or None."""
        self.skip()
        m = pattern.match(self.text, self.pos)
        if m:
            self.pos = m.end()
        return m

    def keyword(self, word: str) -> bool:
        """Skip a whole word if it comes next; return whether it did."""
        self.skip()
        end = self.pos + len(word)
        if not self.text.startswith(word, self.pos):
            return False
        if end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_.-"):
            return False
        self.pos = end
        return True

    def name(self, what: str = "a name") -> str:
        """Parse an identifier, and drop its percent sign."""
        m = self.match(_NAME)
        if m is None:
            self.fail(f"expected {what}, found {self.next_token()}")
        return m.group(1)

    def integer(self, what: str = "an integer") -> int:
        """Parse an integer."""
        m = self.match(_INT)
        if m is None:
            self.fail(f"expected {what}, found {self.next_token()}")
        if len(m.group()) > 40:
            self.fail("integer out of range", m.start())
        return int(m.group())

    def string(self, what: str = "a string in quotes") -> str:
        """Parse a string in single or double quotes, with its escapes resolved."""
        m = self.match(_STRING)
        if m is None:
            self.fail(f"expected {what}, found {self.next_token()}")
        return unescape(m.group(1) if m.group(1) is not None else m.group(2))

    def balanced(self) -> str:
        """Return the text from an opening bracket to its closing one, and skip it."""
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
