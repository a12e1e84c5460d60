"""Typed values of the module header: entry layout, input-output aliases, donated buffers."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.shape import Shape

Index = tuple[int, ...]
"""A path into a tuple shape; () denotes the whole shape. XLA calls this a ShapeIndex."""


def index_text(index: Index) -> str:
    """Format an index as in HLO text: `{0,1}`."""
    return "{" + ",".join(map(str, index)) + "}"


def subshape(shape: Shape, index: Index) -> Shape | None:
    """Return the subshape at an index, or None if there is none."""
    for i in index:
        if not shape.is_tuple or not 0 <= i < len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[i]
    return shape


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """`entry_computation_layout={(f32[2]{0})->f32[]}`: shapes and layouts of the program's arguments and result."""

    parameters: tuple[Shape, ...]
    result: Shape

    def __str__(self) -> str:
        parts = [(f"/*index={i}*/" if i and i % 5 == 0 else "") + s.to_text() for i, s in enumerate(self.parameters)]
        return "{(" + ", ".join(parts) + ")->" + self.result.to_text() + "}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A part of the result that shares its buffer with a part of a parameter (on an instruction: of an operand)."""

    output: Index
    source: int
    index: Index
    kind: str | None = None  # may-alias or must-alias; only in a module's header

    def __str__(self) -> str:
        kind = f", {self.kind}" if self.kind else ""
        return f"{index_text(self.output)}: ({self.source}, {index_text(self.index)}{kind})"


@dataclass(frozen=True, slots=True)
class Aliases:
    """`input_output_alias={ {0}: (0, {}, may-alias) }`, and `output_to_operand_aliasing={{}: (0, {})}`."""

    entries: tuple[Alias, ...] = ()

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.entries)) + "}"


@dataclass(frozen=True, slots=True)
class Donor:
    """A part of a parameter whose buffer may be reused for any result."""

    parameter: int
    index: Index

    def __str__(self) -> str:
        return f"({self.parameter}, {index_text(self.index)})"


@dataclass(frozen=True, slots=True)
class Donors:
    """`buffer_donor={ (0, {}) }`."""

    entries: tuple[Donor, ...] = ()

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.entries)) + "}"
