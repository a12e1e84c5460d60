"""The scopes of instructions: the path of names under which a framework traced them, from HLO metadata."""

from __future__ import annotations

import re

from compiler.ir import HloInstruction

__all__ = ["Scopes", "scope_path"]

_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
MAX_DEPTH = 24


def scope_path(i: HloInstruction) -> tuple[str, ...]:
    """Return the scopes around an instruction, outermost first, without the op itself; () without metadata.

    `jit(f)/transpose(jvp(Model))/layer_0/mul` gives ("transpose(jvp(Model))", "layer_0"): the outermost `jit` contains
    everything and tells nothing.
    """
    metadata = i.attributes.get("metadata")
    if metadata is None:
        return ()
    found = _OP_NAME.search(getattr(metadata, "text", None) or str(metadata))
    if found is None:
        return ()
    parts = _split(found.group(1).replace('\\"', '"').replace("\\'", "'"))[:-1]
    if parts and parts[0].startswith(("jit(", "pjit(")):
        parts = parts[1:]
    return tuple(parts[:MAX_DEPTH])


def _split(path: str) -> list[str]:
    """Split a path at the slashes that are not within parentheses."""
    parts, depth, start = [], 0, 0
    for n, c in enumerate(path):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "/" and depth <= 0:
            parts.append(path[start:n])
            start = n + 1
    return [p for p in (*parts, path[start:]) if p]


class Scopes:
    """Numbers scopes: each is the number of the scope around it and its own name."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = [(-1, "")]
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, path: tuple[str, ...]) -> int:
        """Return the number of a path; 0 is the scope outside of all others."""
        found = 0
        for name in path:
            key = found, name
            if key not in self._numbers:
                self._numbers[key] = len(self.rows)
                self.rows.append(key)
            found = self._numbers[key]
        return found
