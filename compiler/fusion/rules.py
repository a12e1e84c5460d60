"""Rules of a user about fusions: what is forbidden, forced or required, by name, opcode or scope.

A rule is written as text: `forbid exp* with op:reduce`, `force a with b`, `require scope:*softmax*`. A pattern is the
name of an instruction after the passes (see `hlogym opt`), `op:` and an opcode, or `scope:` and the `op_name` of the
metadata that frontends write; `*`, `?` and `[...]` match as in file names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from compiler.errors import FusionError
from compiler.fusion.rewriting import instructions_of
from compiler.ir import HloInstruction, Opcode
from compiler.support.untrusted import short_repr

Verb: TypeAlias = Literal["forbid", "force", "require"]
VERBS: tuple[Verb, ...] = get_args(Verb)
MAX_RULE = 1000
"""Longest text that is parsed as a rule."""
_RULE = re.compile(r"\s*(\w+)\s+(\S+)(?:\s+with\s+(\S+))?\s*")
_KINDS = ("op", "scope")
_NO_KERNEL = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT})
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Pattern:
    """What instructions a rule is about.

    Attributes:
        kind: "name", "op" or "scope".
        glob: what the name, the opcode or the `op_name` has to match.
    """

    kind: str
    glob: str

    @staticmethod
    def parse(text: str) -> Pattern:
        """Read a pattern such as `exp*`, `%exp.3`, `op:reduce` or `scope:*softmax*`."""
        kind, colon, glob = text.partition(":")
        if colon and kind in _KINDS:
            return Pattern(kind, glob)
        return Pattern("name", text.removeprefix("%"))

    def __str__(self) -> str:
        return self.glob if self.kind == "name" else f"{self.kind}:{self.glob}"

    @property
    def is_exact(self) -> bool:
        """Whether it names one instruction."""
        return self.kind == "name" and not set(self.glob) & set("*?[")

    def matches(self, instruction: HloInstruction) -> bool:
        """Check whether an instruction is one that the rule is about."""
        match self.kind:
            case "op":
                return fnmatchcase(instruction.opcode.text, self.glob)
            case "scope":
                return fnmatchcase(_scope_of(instruction), self.glob)
            case _:
                return fnmatchcase(instruction.name, self.glob)


@dataclass(frozen=True, slots=True)
class FusionRule:
    """One rule about kernels that hold an instruction of the first and one of the second pattern.

    Attributes:
        verb: "forbid": no fusion makes such a kernel; with one pattern only, its instructions are never fused. "force":
            such kernels are made first, where that is legal. "require": the same, and it is an error if an instruction
            of the first pattern ends up without one of the second.
        first, second: equal patterns mean two different instructions that match; `second` is None only for "forbid".
    """

    verb: Verb
    first: Pattern
    second: Pattern | None

    @staticmethod
    def parse(text: str) -> FusionRule:
        """Read a rule such as `forbid exp* with op:reduce`.

        Raises:
            FusionError: it is no rule; the message says how rules are written.
        """
        match = _RULE.fullmatch(text) if len(text) <= MAX_RULE else None
        verb = None if match is None else next((v for v in VERBS if v == match.group(1)), None)
        if match is None or verb is None:
            raise FusionError(
                f"cannot read {short_repr(text)} as a fusion rule; write: forbid, force or require, a pattern, and "
                "optionally 'with' and another pattern, such as 'forbid exp* with op:reduce'"
            )
        first = Pattern.parse(match.group(2))
        second = Pattern.parse(match.group(3)) if match.group(3) else None
        return FusionRule(verb, first, first if second is None and verb != "forbid" else second)

    def __str__(self) -> str:
        other = "" if self.second is None or self.second == self.first else f" with {self.second}"
        return f"{self.verb} {self.first}{other}"


class Restrictions:
    """The rules that forbid fusions, as `Legality` asks them."""

    def __init__(self, rules: Iterable[FusionRule] = ()) -> None:
        self.rules = tuple(r for r in rules if r.verb == "forbid")
        found = [p for r in self.rules for p in (r.first, r.second) if p is not None]
        self.patterns: tuple[Pattern, ...] = tuple(dict.fromkeys(found))
        self._bit = {p: 1 << n for n, p in enumerate(self.patterns)}

    def marks(self, node: HloInstruction) -> int:
        """Return the set of patterns that instructions of a node match, as bits."""
        if not self.patterns:
            return 0
        return sum(bit for p, bit in self._bit.items() if any(map(p.matches, kernel_instructions(node))))

    def refusal(self, first: int, second: int) -> str | None:
        """Return the rule against a kernel of two nodes with these marks, or None."""
        if not first | second:
            return None
        for r in self.rules:
            a = self._bit[r.first]
            if r.second is None:
                against = (first | second) & a
            else:
                b = self._bit[r.second]
                against = (first & a and second & b) or (first & b and second & a)
            if against:
                return f"the rule '{r}' forbids it"
        return None


def kernel_instructions(node: HloInstruction) -> list[HloInstruction]:
    """Return the instructions of a node that a rule can be about: no parameters, constants and tuples."""
    return [i for i in instructions_of(node) if i.opcode not in _NO_KERNEL]


def _scope_of(instruction: HloInstruction) -> str:
    """Return the `op_name` of an instruction's metadata, or an empty string."""
    found = _OP_NAME.search(str(instruction.attributes.get("metadata", "")))
    return found.group(1) if found else ""
