"""HloModule: a program, its computations and its entry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from compiler.ir.attributes import Raw
from compiler.ir.callgraph import callees_first
from compiler.ir.computation import HloComputation
from compiler.ir.header import Aliases, Donors, EntryLayout
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.printing import PrintOptions, print_module
from compiler.ir.shape import Shape

HeaderValue = Raw | EntryLayout | Aliases | Donors


class HloModule:
    """A whole program.

    Attributes:
        name: printed in the header.
        header: header attributes by name; entry_computation_layout is an EntryLayout, input_output_alias Aliases,
            buffer_donor Donors, the others are kept as they were written.
        tables: FileNames, FunctionNames, FileLocations and StackFrames sections, as written.
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
        """HLO text; `parse` of it prints the same again."""
        return print_module(self, options or PrintOptions())

    @property
    def has_entry(self) -> bool:
        """Whether an entry is set."""
        return self._entry is not None

    @property
    def entry(self) -> HloComputation:
        """Where the program begins; ValueError when none is set."""
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
        """A snapshot in order of insertion."""
        return list(self._computations.values())

    @property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """Of the entry's parameters, by number."""
        return self.entry.parameter_shapes

    @property
    def result_shape(self) -> Shape:
        """What the entry returns."""
        return self.entry.result_shape

    @property
    def instruction_count(self) -> int:
        """Instructions over all computations."""
        return sum(len(c) for c in self._computations.values())

    def find(self, name: str) -> HloComputation | None:
        """Computation by name, without the percent sign."""
        return self._computations.get(name)

    def unique_computation_name(self, base: str) -> str:
        """`base` when free, else `base` with the next number that is free; numbers are not used again."""
        if base not in self._computations:
            return base
        n = self._next_number.get(base, 1)
        while (name := f"{base}.{n}") in self._computations:
            n += 1
        self._next_number[base] = n + 1
        return name

    def add(self, computation: HloComputation, entry: bool = False) -> HloComputation:
        """Take in a computation; its name is made unique."""
        computation.name = self.unique_computation_name(computation.name)
        computation.parent = self
        self._computations[computation.name] = computation
        if entry:
            self._entry = computation
        return computation

    def remove(self, computation: HloComputation) -> None:
        """Take out a computation; nothing may call it any more."""
        del self._computations[computation.name]
        computation.parent = None

    def remove_unreachable(self) -> int:
        """Remove computations that the entry does not reach; returns how many went."""
        live = set(self.post_order())
        gone = [c for c in self._computations.values() if c not in live]
        for c in gone:
            self.remove(c)
        return len(gone)

    def post_order(self, roots: Iterable[HloComputation] | None = None) -> list[HloComputation]:
        """Computations reachable from the entry (or `roots`), callees first."""
        return callees_first([self.entry] if roots is None else roots)

    def reorder(self) -> None:
        """Put the instructions of every computation into post order, so that whoever walks them finds them so."""
        for c in self._computations.values():
            c.reorder()

    def control_flow_computations(self) -> list[HloComputation]:
        """Computations that run as sequences of their own, callees first: entry, loops, branches, calls.

        Left out: bodies of fusions and the scalar functions of reduce, sort, map...
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
        """Instructions anywhere in the module that call `computation`."""
        return [i for c in self._computations.values() for i in c.notable if computation in i.called_computations()]

    def clone(self) -> HloModule:
        """A deep copy; names and order are kept."""
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
        for c in mapping.values():
            for i in c.notable:
                i.replace_called_computations(mapping)
        if self._entry is not None:
            copy._entry = mapping[self._entry]
        return copy

    def fingerprint(self) -> str:
        """SHA-256 of the canonical text: names renumbered, metadata and header left out."""
        text = print_module(self, PrintOptions.canonical())
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def is_control_flow(instruction: HloInstruction) -> bool:
    """Whether the computations it calls run as instruction sequences (while, conditional, call, async)."""
    return instruction.opcode in (
        Opcode.WHILE,
        Opcode.CONDITIONAL,
        Opcode.CALL,
        Opcode.ASYNC_START,
    )
