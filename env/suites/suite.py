"""Programs, and suites of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from compiler.errors import HlogymError, UnknownNameError
from env.suites.input_specs import InputSpec
from env.suites.program_files import read_hlo_text

__all__ = ["ManifestError", "Program", "Split", "Suite", "Tolerance"]

Split: TypeAlias = Literal["train", "validation", "test", "extra"]
"""What a program is for: "test" is held out from training; "extra" belongs to no split."""


class ManifestError(HlogymError, ValueError):
    """A suite that cannot be used: its folder or manifest, and everything that is wrong with it, by program.

    Attributes:
        problems: one message each.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)

    @staticmethod
    def of(where: Path, problems: Sequence[str]) -> ManifestError:
        """Return an error whose message lists every problem, or the first twenty."""
        if len(problems) == 1:
            return ManifestError(f"{where}: {problems[0]}", problems)
        shown = "".join(f"\n  - {p}" for p in problems[:20])
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        return ManifestError(f"{where} has {len(problems)} problems:{shown}{more}", problems)


@dataclass(frozen=True)
class Tolerance:
    """How close each element of the outputs must be to the reference's: |a - b| <= atol + rtol |b|.

    The movement of an element that rounding is seen to cause is allowed in addition (see `env.comparison`).

    Attributes:
        rtol: relative part; None: some units in the last place of the output's type.
        atol: absolute part, one number or one per output; None: the smallest numbers of the type.
        mismatch_fraction: fraction of the elements of an output that may differ beyond that, if they are scattered
            over it.
    """

    rtol: float | None = None
    atol: float | tuple[float, ...] | None = None
    mismatch_fraction: float = 0.0

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Tolerance:
        """Return the tolerance that a manifest describes."""
        atol = values.get("atol")
        return Tolerance(**{**values, "atol": tuple(atol) if isinstance(atol, list) else atol})

    def to_json(self) -> dict[str, Any]:
        """Return the tolerance as it is written in a manifest, without the parts that depend on the type."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Program:
    """One program of a suite.

    Attributes:
        suite: name of its suite, or of its folder.
        inputs: one spec per array that the program takes; empty if there is no manifest: defaults by type are drawn.
        tolerance: None leaves the comparison to its own default.
        chaotic: a simulator in which rounding may change a decision, after which some elements differ altogether.
        family: what programs like it are called; a family is in one split. Empty if the manifest names none.
    """

    name: str
    suite: str
    split: Split
    path: Path
    description: str
    inputs: tuple[InputSpec, ...] = ()
    tolerance: Tolerance | None = None
    chaotic: bool = False
    family: str = ""

    @property
    def label(self) -> str:
        """What error messages call the program: its name and its file."""
        return f"program {self.name!r} ({self.path})"

    def text(self) -> str:
        """Return the program as HLO text; see `env.suites.program_files.read_hlo_text` for the errors."""
        return read_hlo_text(self.path)


@dataclass(frozen=True)
class Suite:
    """A named list of programs."""

    name: str
    programs: tuple[Program, ...]

    def find(self, name: str) -> Program:
        """Return the program of that name.

        Raises:
            UnknownNameError: the suite has no such program.
        """
        for program in self.programs:
            if program.name == name:
                return program
        raise UnknownNameError("program", name, (p.name for p in self.programs))
