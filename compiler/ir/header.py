"""Typed values of a module's header: the entry's layout, aliases of results and parameters, donated buffers."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.shape import Shape

Index = tuple[int, ...]
"""A path into a tuple shape; () is the whole of it."""


def index_text(index: Index) -> str:
    """`{0,1}`."""
    return "{" + ",".join(map(str, index)) + "}"


def subshape(shape: Shape, index: Index) -> Shape | None:
    """The part of a tuple shape at this path, None when there is none."""
    for i in index:
        if not shape.is_tuple or not 0 <= i < len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[i]
    return shape


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """`entry_computation_layout={(f32[2]{0})->f32[]}`: what the caller passes and gets, layouts included."""

    parameters: tuple[Shape, ...]
    result: Shape

    def __str__(self) -> str:
        parts = [(f"/*index={i}*/" if i and i % 5 == 0 else "") + s.to_text() for i, s in enumerate(self.parameters)]
        return "{(" + ", ".join(parts) + ")->" + self.result.to_text() + "}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A part of a result that shares its buffer with a part of a parameter (of an operand, on an instruction)."""

    output: Index
    source: int
    index: Index
    kind: str | None = None  # may-alias or must-alias, in a module's header

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
    """A part of a parameter whose buffer may be used for any result."""

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
