"""The pass protocol, and base classes of passes over computations and over instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import ClassVar, Protocol, TypeGuard, cast, runtime_checkable

from compiler.errors import OptionError
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.infrastructure.rewrite_limits import treatable
from compiler.support.untrusted import as_integer, short_repr

MAX_SWEEPS = 1000
"""Largest number of sweeps that a pass can be limited to; rewrites converge in a few."""


def number_option(default: int, least: int, most: int) -> int:
    """Declare a pass option that is an integer within inclusive bounds.

    The bounds keep run time and output size proportional to the module, because options may come from an untrusted text
    or plan.
    """
    made: int = field(default=default, metadata={"bounds": (least, most)})
    return made


@dataclass(frozen=True)
class Options:
    """Base class whose fields are the options of a pass; checks types and the bounds of `number_option`.

    Raises OptionError with the option and its allowed values.
    """

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, bool) or not isinstance(f.default, int):
                if not isinstance(value, type(f.default)):
                    wanted = "true or false" if isinstance(f.default, bool) else "a string"
                    raise OptionError(f"{self._describe(f.name)} takes {wanted}, got {short_repr(value)}")
                continue
            number = as_integer(value)
            least, most = f.metadata["bounds"]
            if number is None or not least <= number <= most:
                raise OptionError(
                    f"{self._describe(f.name)} takes an integer from {least} to {most}, got {short_repr(value)}"
                )
            object.__setattr__(self, f.name, number)

    def _describe(self, option: str) -> str:
        return f"option {option} of pass {getattr(self, 'name', type(self).__name__)!r}"


@runtime_checkable
class HloPass(Protocol):
    """A rewrite of a module.

    A pass is a frozen dataclass: its fields are its options, and `name` is its name in text and plans. It must be
    correct for every verified module and in any order. `run` changes the module in place and returns whether it did;
    False means that the module's text is unchanged.
    """

    @property
    def name(self) -> str:
        """The name of the pass in text: words joined by dashes."""
        ...

    def run(self, module: HloModule) -> bool:
        """Rewrite `module`; return whether it changed."""
        ...


class SweepingPass(HloPass, Protocol):
    """A pass that by default runs until nothing changes, and can be limited to a number of sweeps over the module."""

    def run_sweeps(self, module: HloModule, sweeps: int) -> bool:
        """Run at most `sweeps` sweeps; a sweep visits each instruction once, and none that it creates."""
        ...


def is_sweeping(hlo_pass: HloPass) -> TypeGuard[SweepingPass]:
    """Check whether a pass supports sweeps (`isinstance` with a protocol takes longer than a small pass)."""
    return hasattr(hlo_pass, "run_sweeps")


@dataclass(frozen=True)
class Swept:
    """A pass limited to `sweeps` sweeps per application; itself a pass with the name of the inner one.

    Passes that are not a `SweepingPass` walk over the module once anyway, and run unchanged. In text, the pass is
    followed by `@sweeps`: `shape-movement@1`.
    """

    within: HloPass
    sweeps: int = 1

    def __post_init__(self) -> None:
        sweeps = as_integer(self.sweeps)
        if sweeps is None or not 1 <= sweeps <= MAX_SWEEPS:
            raise OptionError(f"a pass can be limited to 1 to {MAX_SWEEPS} sweeps, not {short_repr(self.sweeps)}")

    @property
    def name(self) -> str:
        """The name of the inner pass."""
        return self.within.name

    def run(self, module: HloModule) -> bool:
        """Run the inner pass for at most that many sweeps; return whether the module changed."""
        if is_sweeping(self.within):
            return self.within.run_sweeps(module, self.sweeps)
        return self.within.run(module)


@lru_cache(maxsize=1000)
def _key(kind: Hashable, hlo_pass: Hashable) -> object:
    """Return an object that stands for a pass where it is looked up often, because hashing a pass takes longer.

    The type is a part of the key because all passes without options have the same hash.
    """
    del kind, hlo_pass
    return object()


def rewrite_each(
    computations: Iterable[HloComputation], hlo_pass: HloPass, rewrite: Callable[[HloComputation], bool]
) -> bool:
    """Rewrite computations, callees first, except for those in which a pass is known to find nothing.

    A pass finds nothing in a computation if it found nothing there before, and made nothing on trial, since it and what
    it calls have changed last.

    Args:
        computations: all of them, callees before their callers.
        hlo_pass: what is known is noted under this pass.
        rewrite: rewrites a computation, of which nothing but the computation and those that it calls is read; returns
            whether it changed.
    """
    key = _key(type(hlo_pass), cast("Hashable", hlo_pass))
    changed = False
    stamps: dict[HloComputation, int] = {}
    for computation in computations:
        before = stamps[computation] = computation.stamp_with_callees(stamps)
        if computation.facts.get(key) == before:
            continue
        changed |= rewrite(computation)
        # After a change, the stamp is another one, and also after an attempt that was taken back.
        after = stamps[computation] = computation.stamp_with_callees(stamps)
        if after == before:
            computation.facts[key] = after
    return changed


@dataclass(frozen=True)
class ComputationPass(Options, ABC):
    """A pass that rewrites each of the `treatable` computations by itself, callees first."""

    name: ClassVar[str]

    @abstractmethod
    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed.

        It depends on this computation and on those that it calls only, and changes no other one.
        """

    def run(self, module: HloModule) -> bool:
        """Rewrite every computation, callees first; return whether any changed."""
        return rewrite_each(treatable(module), self, self.run_on)


@dataclass(frozen=True)
class InstructionPass(ComputationPass):
    """A pass that visits each instruction once, operands first.

    `visit` does the whole rewrite, including removal of replaced instructions. Instructions that it creates are not
    visited in the same run.

    Attributes:
        opcodes: those of the instructions that it may rewrite; others are not visited. None: of all.
    """

    opcodes: ClassVar[frozenset[Opcode] | None] = None

    def visited(self, computation: HloComputation) -> list[HloInstruction]:
        """Return the instructions that a run visits, operands first."""
        return computation.post_order() if self.opcodes is None else computation.of_opcode(*self.opcodes)

    @abstractmethod
    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite one instruction; return whether anything changed."""

    def run_on(self, computation: HloComputation) -> bool:
        """Visit every instruction that has not been removed in the meantime."""
        changed = False
        for instruction in self.visited(computation):
            if instruction.parent is computation:
                changed |= self.visit(instruction)
        return changed


def op_count(module: HloModule) -> int:
    """Count the reachable instructions, without parameters, constants and tuples; a fusion counts as its body."""
    return sum([n for c in module.post_order() for op, n in c.opcodes.items() if op not in _NOT_COUNTED])


_NOT_COUNTED = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.FUSION})
