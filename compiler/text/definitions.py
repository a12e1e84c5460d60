"""Where a text defines its computations, found without reading them: for calls of what is defined further down."""

from __future__ import annotations

import bisect
import re
from collections.abc import Container, Iterator

from compiler.ir.instruction import CALLEE_ATTRIBUTES

_NAME = r"[A-Za-z_][\w.\-]*"
_DEFINITION = re.compile(rf"^[ \t]*%?({_NAME})[ \t]*(?:\{{|\((?=[^\n]*->[^\n]*\{{[ \t]*$))", re.MULTILINE)
_CALL = re.compile(rf"\b(?:{'|'.join(map(re.escape, CALLEE_ATTRIBUTES))})\s*=\s*(?:\{{([^{{}}]*)\}}|%?({_NAME}))")
_NAMES = re.compile(_NAME)


class Definitions:
    """The lines of a text on which computations seem to begin."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: list[int] = []
        self._names: list[str] = []
        self._by_name: dict[str, list[int]] = {}
        for m in _DEFINITION.finditer(text):
            self._starts.append(m.start())
            self._names.append(m.group(1))
            self._by_name.setdefault(m.group(1), []).append(m.start())

    def first(self, name: str, after: int) -> int | None:
        """Where a computation of this name begins at or behind a position; None when none does."""
        starts = self._by_name.get(name, ())
        at = bisect.bisect_left(starts, after)
        return starts[at] if at < len(starts) else None

    def name_at(self, start: int) -> str:
        """The name of the computation that begins there."""
        return self._names[bisect.bisect_left(self._starts, start)]

    def callees_first(self, start: int, done: Container[int]) -> Iterator[int]:
        """Where the computation at `start` begins, and those further down that it needs, in an order to read them in.

        Those at positions in `done` are left out, with what only they need.
        """
        seen = {start}
        stack = [(start, self._called(start))]
        while stack:
            at, pending = stack[-1]
            following = next((c for c in pending if c not in seen and c not in done), None)
            if following is None:
                stack.pop()
                yield at
            else:
                seen.add(following)
                stack.append((following, self._called(following)))

    def _called(self, start: int) -> Iterator[int]:
        """Beginnings of the computations that the text of one names as callees, as far as they are defined below it."""
        number = bisect.bisect_right(self._starts, start)
        end = self._starts[number] if number < len(self._starts) else len(self._text)
        for m in _CALL.finditer(self._text, start, end):
            for name in _NAMES.findall(m.group(1) or m.group(2) or ""):
                found = self.first(name, end)
                if found is not None:
                    yield found
