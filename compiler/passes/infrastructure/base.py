"""What a pass is, and the two common forms of one: visit every computation, visit every instruction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, Protocol, TypeGuard, runtime_checkable

from compiler.errors import HlogymError
from compiler.ir import HloComputation, HloInstruction, HloModule
from compiler.passes.infrastructure.rewrite_limits import treatable
from compiler.support.untrusted import as_integer, short_repr

MAX_SWEEPS = 1000
"""Most sweeps that a pass may be held to; rewrites settle in a few."""


class PassOptionError(HlogymError, ValueError):
    """An option a pass does not have, or a value it cannot take."""


def number_option(default: int, least: int, most: int) -> int:
    """A field of a pass that is a whole number within bounds, both included.

    The bounds keep what the pass makes, and the time it takes, in proportion to the module: options may come from a
    text or a plan that anybody wrote.
    """
    made: int = field(default=default, metadata={"bounds": (least, most)})
    return made


@dataclass(frozen=True)
class Options:
    """Fields that are the options of a pass, checked when it is made: types, and bounds of `number_option`.

    PassOptionError names the option and what it may be.
    """

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, bool) or not isinstance(f.default, int):
                if not isinstance(value, type(f.default)):
                    wanted = "true or false" if isinstance(f.default, bool) else "a text"
                    raise PassOptionError(f"{self._called(f.name)} takes {wanted}, got {short_repr(value)}")
                continue
            number = as_integer(value)
            least, most = f.metadata["bounds"]
            if number is None or not least <= number <= most:
                raise PassOptionError(
                    f"{self._called(f.name)} takes a whole number from {least} to {most}, got {short_repr(value)}"
                )
            object.__setattr__(self, f.name, number)

    def _called(self, option: str) -> str:
        return f"option {option} of pass {getattr(self, 'name', type(self).__name__)!r}"


@runtime_checkable
class HloPass(Protocol):
    """A rewrite of a whole module.

    A pass is a frozen dataclass: its options are its fields, its `name` is how text and plans call it.
    It is correct on every verified module and in any order. `run` changes the module in place and returns
    whether it did; False means that the module's text is what it was.
    """

    @property
    def name(self) -> str:
        """The name passes are called by in text: words joined by dashes."""
        ...

    def run(self, module: HloModule) -> bool:
        """Rewrite `module`; whether anything changed."""
        ...


class SweepingPass(HloPass, Protocol):
    """A pass that otherwise works to a fixed point of its own, and can be held to fewer sweeps over the module."""

    def run_sweeps(self, module: HloModule, sweeps: int) -> bool:
        """As `run`, in at most `sweeps` sweeps: each visits an instruction once, and nothing made since it began."""
        ...


def is_sweeping(hlo_pass: HloPass) -> TypeGuard[SweepingPass]:
    """Whether a pass can be held to sweeps (an `isinstance` with a protocol takes longer than a small pass)."""
    return hasattr(hlo_pass, "run_sweeps")


@dataclass(frozen=True)
class Swept:
    """A pass held to `sweeps` sweeps an application; itself a pass, with the name of the one within.

    Passes that are no `SweepingPass` walk over the module once in any case, and run as they are.
    In text it is the pass followed by `@sweeps`: `shape-movement@1`.
    """

    within: HloPass
    sweeps: int = 1

    def __post_init__(self) -> None:
        sweeps = as_integer(self.sweeps)
        if sweeps is None or not 1 <= sweeps <= MAX_SWEEPS:
            raise PassOptionError(f"a pass can be held to 1 to {MAX_SWEEPS} sweeps, not {short_repr(self.sweeps)}")

    @property
    def name(self) -> str:
        """The name of the pass within."""
        return self.within.name

    def run(self, module: HloModule) -> bool:
        """Run the pass within so many sweeps; whether anything changed."""
        if is_sweeping(self.within):
            return self.within.run_sweeps(module, self.sweeps)
        return self.within.run(module)


@dataclass(frozen=True)
class ComputationPass(Options, ABC):
    """A pass that treats each computation the entry reaches on its own, callees first, as `treatable` has them."""

    name: ClassVar[str]

    @abstractmethod
    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; whether anything changed."""

    def run(self, module: HloModule) -> bool:
        """`run_on` for every computation, callees first."""
        changed = False
        for computation in treatable(module):
            changed |= self.run_on(computation)
        return changed


@dataclass(frozen=True)
class InstructionPass(ComputationPass):
    """A pass that looks once at each instruction, operands first.

    `visit` does the whole rewrite, removal of what it replaced included, and says whether it changed anything.
    Instructions it makes are not visited in the same run.
    """

    @abstractmethod
    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite one instruction; whether anything changed."""

    def run_on(self, computation: HloComputation) -> bool:
        """`visit` for every instruction still there."""
        changed = False
        for instruction in computation.post_order():
            if instruction.parent is computation:
                changed |= self.visit(instruction)
        return changed


def op_count(module: HloModule) -> int:
    """Instructions the entry reaches; parameters, constants and tuples aside, a fusion counted by its body."""
    return sum(_counts(i) for c in module.post_order() for i in c.instructions)


_NOT_COUNTED = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "fusion"})


def _counts(instruction: HloInstruction) -> bool:
    return instruction.opcode.text not in _NOT_COUNTED
