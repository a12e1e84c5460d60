"""Exceptions raised by hlogym; each message says what failed, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class HlogymError(Exception):
    """Base class of every error that hlogym raises on purpose; the message is written for the user.

    Errors can be pickled, whatever the arguments of their constructors, so that they keep their type on the way out of
    another process, such as one of `gymnasium.vector.AsyncVectorEnv`.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_error, (type(self), self.args, dict(self.__dict__))


def _same_error(kind: type[HlogymError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HlogymError:
    """Return an error without calling the constructor of its class."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class HloSyntaxError(HlogymError, ValueError):
    """Raised for text that is not valid HLO.

    Attributes:
        line: line of the offending character, counted from 1.
        column: its column, counted from 1.
        source_line: the source line that contains it.
        filename: the file, if known.
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
    """Raised for a module that parses but breaks a rule of HLO; `findings` lists each violation and its instruction."""

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        shown = "\n".join(f"  - {f if len(f) < 4000 else f[:4000] + '...'}" for f in self.findings[:20])
        more = f"\n  ... and {len(self.findings) - 20} more" if len(self.findings) > 20 else ""
        super().__init__(f"the module is not valid HLO ({len(self.findings)} finding(s)):\n{shown}{more}")


class ShapeError(HlogymError, ValueError):
    """Raised if no result shape can be inferred from the operands and attributes."""


class UnsupportedError(HlogymError, NotImplementedError):
    """Raised for a valid program that uses an op or feature hlogym does not support; names the op and its location."""


class UnknownNameError(HlogymError, ValueError):
    """Raised for an unknown name (of a program, pass, policy, environment...); suggests the closest known names.

    With one argument, that is the message: Gymnasium raises errors of its processes again in this way.
    """

    def __init__(self, kind: object, name: str | None = None, known: Iterable[str] = ()) -> None:
        if name is None:
            self.kind, self.name = "", ""
            self.near: tuple[str, ...] = ()
            super().__init__(str(kind))
            return
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
        if near:
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?"
        else:
            hint = "known: " + (", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "none")
        self.kind, self.name, self.near = str(kind), name, tuple(near)
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class BackendError(HlogymError, RuntimeError):
    """Raised if a backend is unavailable (no C compiler, no GPU...); says what to install or which backend to use."""


class DeviceLostError(BackendError):
    """A kernel failed on the GPU, after which this process cannot use the GPU any more; another process can.

    Attributes:
        kernels: symbols of the kernels that may have failed, of which the last one was launched last.
    """

    def __init__(self, message: str, kernels: Sequence[str] = ()) -> None:
        self.kernels = tuple(kernels)
        super().__init__(message)


class MemoryLimitError(HlogymError, MemoryError):
    """Raised if arrays do not fit into the available memory; names them, the bytes needed and the bytes available."""


class BuildKilledError(BackendError):
    """The compiler of a backend was killed; the same source may build another time."""


class CodegenError(HlogymError, RuntimeError):
    """Raised if a kernel cannot be generated or built; includes the compiler's output if there is any."""


class UnbuildableFusionError(CodegenError):
    """Raised if a fusion that was accepted as legal cannot be built for its backend, which is a fault of hlogym."""


class PolicyError(HlogymError, ValueError):
    """Raised for a policy file that cannot be used; says why."""


class PlanError(HlogymError, ValueError):
    """Raised if a compilation plan does not fit the module it is replayed on."""


class OptionError(HlogymError, ValueError):
    """Raised for an unknown option of a pass or of a fusion policy, or an invalid value."""


class ArgumentError(HlogymError, TypeError):
    """Raised if the arguments of a call do not fit the entry computation; says what was expected and what was given."""


class InterpreterError(HlogymError, RuntimeError):
    """Raised if the interpreter cannot evaluate an op on the given values; names the instruction."""


class FusionError(HlogymError, ValueError):
    """Raised for an illegal fusion, or one that names unknown instructions; says which and why."""
