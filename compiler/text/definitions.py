"""Positions at which computations are defined in HLO text, so that calls may precede definitions."""

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
    """The positions in HLO text at which computations seem to be defined, found by regular expressions."""

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
        """Return the position of the first definition of `name` at or after `after`, or None."""
        starts = self._by_name.get(name, ())
        at = bisect.bisect_left(starts, after)
        return starts[at] if at < len(starts) else None

    def name_at(self, start: int) -> str:
        """Return the name of the computation that is defined at `start`."""
        return self._names[bisect.bisect_left(self._starts, start)]

    def callees_first(self, start: int, done: Container[int]) -> Iterator[int]:
        """Yield the positions of the computation at `start` and of the later ones it needs, callees first.

        Positions in `done` are skipped, together with what only they need.
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
        """Yield the positions of later definitions that the text of a computation names as callees."""
        number = bisect.bisect_right(self._starts, start)
        end = self._starts[number] if number < len(self._starts) else len(self._text)
        for m in _CALL.finditer(self._text, start, end):
            for name in _NAMES.findall(m.group(1) or m.group(2) or ""):
                found = self.first(name, end)
                if found is not None:
                    yield found
