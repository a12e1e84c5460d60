"""The errors a user of hlogym can meet: each says what failed, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class HlogymError(Exception):
    """Base of every error hlogym raises on purpose; its text is meant for a person."""


class HloSyntaxError(HlogymError, ValueError):
    """Text that is not HLO.

    Attributes:
        line, column: 1-based position of the offending character.
        source_line: the line of text it stands on.
        filename: the file it came from, when known.
    """

    def __init__(
        self, message: str, line: int, column: int, source_line: str = "", filename: str | None = None
    ) -> None:
        self.message, self.line, self.column = message, line, column
        self.source_line, self.filename = source_line, filename
        super().__init__(message)

    def __str__(self) -> str:
        where = f"{self.filename or '<text>'}:{self.line}:{self.column}"
        start = max(0, self.column - 81)
        shown = self.source_line[start : start + 160]
        caret = " " * (self.column - 1 - start) + "^"
        return f"{where}: {self.message}\n    {shown}\n    {caret}"


class HloVerificationError(HlogymError, ValueError):
    """A module that parses but breaks a rule of HLO; `findings` lists each one with its instruction."""

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        shown = "\n".join(f"  - {f if len(f) < 4000 else f[:4000] + '...'}" for f in self.findings[:20])
        more = f"\n  ... and {len(self.findings) - 20} more" if len(self.findings) > 20 else ""
        super().__init__(f"the module is not valid HLO ({len(self.findings)} finding(s)):\n{shown}{more}")


class ShapeError(HlogymError, ValueError):
    """Operands or attributes from which no result shape follows."""


class UnsupportedError(HlogymError, NotImplementedError):
    """A valid program that uses something hlogym does not (yet) handle; names the op and where it stands."""


class UnknownNameError(HlogymError, ValueError):
    """A name nobody knows (a program, pass, policy, environment...), with the nearest ones that exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?"
        else:
            hint = "known: " + (", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "none")
        self.kind, self.name, self.near = kind, name, tuple(near)
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class BackendError(HlogymError, RuntimeError):
    """A backend that cannot work here (no C compiler, no GPU...), and what to install or choose instead."""


class MemoryLimitError(HlogymError, MemoryError):
    """Arrays that do not fit into the memory there is: which, how many bytes they need and how many there are."""


class BuildKilledError(BackendError):
    """The compiler of a backend was killed; the same source may build another time."""


class CodegenError(HlogymError, RuntimeError):
    """A kernel that could not be generated or built; carries the compiler's own words where there are any."""


class PolicyError(HlogymError, ValueError):
    """A policy file that cannot be used, and why."""


class PlanError(HlogymError, ValueError):
    """A compilation plan that does not fit the module it is replayed on."""


class ArgumentError(HlogymError, TypeError):
    """Arguments of a call that do not fit the entry computation: expected and given are both said."""


class InterpreterError(HlogymError, RuntimeError):
    """An op the interpreter cannot evaluate on these values, with the instruction's name."""


class FusionError(HlogymError, ValueError):
    """A fusion that is not legal, or names instructions that are not there; says which and why."""
