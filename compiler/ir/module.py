"""HloModule: a program, consisting of computations and an entry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from compiler.ir.attributes import Raw
from compiler.ir.callgraph import callees_first
from compiler.ir.computation import HloComputation
from compiler.ir.header import Aliases, Donors, EntryLayout
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.printing import PrintOptions, canonical_key, print_module
from compiler.ir.shape import Shape

HeaderValue = Raw | EntryLayout | Aliases | Donors


class HloModule:
    """A program: computations, one of which is the entry.

    Attributes:
        name: the name in the header.
        header: header attributes by name: entry_computation_layout is an EntryLayout, input_output_alias Aliases,
            buffer_donor Donors; all others are kept verbatim.
        tables: the FileNames, FunctionNames, FileLocations and StackFrames sections, verbatim.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.header: dict[str, HeaderValue] = {}
        self.tables: list[str] = []
        self._computations: dict[str, HloComputation] = {}
        self._entry: HloComputation | None = None
        self._next_number: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<HloModule {self.name}, {len(self._computations)} computations, {self.instruction_count} instructions>"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, options: PrintOptions | None = None) -> str:
        """Return the HLO text; parsing and printing it again gives the same text."""
        return print_module(self, options or PrintOptions())

    @property
    def has_entry(self) -> bool:
        """Whether an entry is set."""
        return self._entry is not None

    @property
    def entry(self) -> HloComputation:
        """The computation where the program starts; ValueError if none is set."""
        if self._entry is None:
            raise ValueError(f"module {self.name} has no entry computation yet")
        return self._entry

    @entry.setter
    def entry(self, computation: HloComputation) -> None:
        if computation.parent is not self:
            raise ValueError(f"%{computation.name} does not belong to module {self.name}")
        self._entry = computation

    @property
    def computations(self) -> list[HloComputation]:
        """Return a snapshot in insertion order."""
        return list(self._computations.values())

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the entry's parameters, ordered by number."""
        return self.entry.parameter_shapes

    @property
    def result_shape(self) -> Shape:
        """The shape of the entry's result."""
        return self.entry.result_shape

    @property
    def instruction_count(self) -> int:
        """Number of instructions over all computations."""
        return sum(len(c) for c in self._computations.values())

    def find(self, name: str) -> HloComputation | None:
        """Return the computation of this name (without the percent sign), or None."""
        return self._computations.get(name)

    def unique_computation_name(self, base: str) -> str:
        """Return `base` if it is free, else `base` with a numeric suffix; suffixes are never reused."""
        if base not in self._computations:
            return base
        n = self._next_number.get(base, 1)
        while (name := f"{base}.{n}") in self._computations:
            n += 1
        self._next_number[base] = n + 1
        return name

    def add(self, computation: HloComputation, entry: bool = False) -> HloComputation:
        """Add a computation; its name is made unique."""
        computation.name = self.unique_computation_name(computation.name)
        computation.parent = self
        self._computations[computation.name] = computation
        if entry:
            self._entry = computation
        return computation

    def remove(self, computation: HloComputation) -> None:
        """Remove a computation that nothing calls."""
        del self._computations[computation.name]
        computation.parent = None

    def exchange(self, old: HloComputation, new: HloComputation) -> None:
        """Put a computation that belongs to no module in the place of another, whose name it takes."""
        new.name, new.parent, old.parent = old.name, self, None
        self._computations[old.name] = new

    def next_number(self, base: str) -> int | None:
        """Return the number that `unique_computation_name` tries first if a name is taken; None if it never was."""
        return self._next_number.get(base)

    def take_back(self, computation: HloComputation, base: str, number: int | None) -> None:
        """Remove a computation that was just added, and set `next_number` of its base back."""
        self.remove(computation)
        if number is None:
            self._next_number.pop(base, None)
        else:
            self._next_number[base] = number

    def remove_unreachable(self) -> int:
        """Remove the computations that are unreachable from the entry; return how many were removed."""
        live = set(self.post_order())
        gone = [c for c in self._computations.values() if c not in live]
        for c in gone:
            self.remove(c)
        return len(gone)

    def post_order(self, roots: Iterable[HloComputation] | None = None) -> list[HloComputation]:
        """Return the computations reachable from the entry (or `roots`) in post order: callees first."""
        return callees_first([self.entry] if roots is None else roots)

    def reorder(self) -> None:
        """Sort the instructions of every computation into post order."""
        for c in self._computations.values():
            c.reorder()

    def control_flow_computations(self) -> list[HloComputation]:
        """Return the computations that run as instruction sequences, callees first: entry, loops, branches, calls.

        Fused computations and the functions applied by reduce, sort, map... are excluded.
        """
        live: dict[HloComputation, None] = {}
        work = [self.entry]
        while work:
            c = work.pop()
            if c in live:
                continue
            live[c] = None
            for i in c.notable:
                if is_control_flow(i):
                    work.extend(i.called_computations())
        return [c for c in self.post_order() if c in live]

    def callers(self, computation: HloComputation) -> list[HloInstruction]:
        """Return all instructions in the module that call `computation`."""
        return [i for c in self._computations.values() for i in c.notable if computation in i.called_computations()]

    def clone(self) -> HloModule:
        """Return a deep copy; names and order are kept."""
        copy = HloModule(self.name)
        copy.header = dict(self.header)
        copy.tables = list(self.tables)
        copy._next_number = dict(self._next_number)
        mapping: dict[HloComputation, HloComputation] = {}
        for c in self._computations.values():
            new = c.clone()
            new.parent = copy
            mapping[c] = new
            copy._computations[new.name] = new
        originals = {new: c for c, new in mapping.items()}
        for c in originals:
            for i in c.notable:
                i.replace_called_computations(mapping)
            c.share_facts(originals[c])
        if self._entry is not None:
            copy._entry = mapping[self._entry]
        return copy

    def dismantle(self) -> None:
        """Dismantle the module, so that its memory is freed at once and not by a full garbage collection.

        Instructions, computations and the module refer to each other. Nothing may use any of them afterwards.
        """
        for c in self._computations.values():
            c.dismantle()
        self._computations.clear()
        self._entry = None

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical text, which has renumbered names, no metadata and no header."""
        text = print_module(self, PrintOptions.canonical())
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def canonical_key(self) -> str:
        """Return a hash that two modules share if they share their fingerprint, and only then.

        It is not the fingerprint, but costs less: computations that have not changed since are not printed again.
        """
        return canonical_key(self)


def is_control_flow(instruction: HloInstruction) -> bool:
    """Check whether the called computations run as instruction sequences (while, conditional, call, async)."""
    return instruction.opcode in (
        Opcode.WHILE,
        Opcode.CONDITIONAL,
        Opcode.CALL,
        Opcode.ASYNC_START,
    )
