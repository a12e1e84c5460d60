"""The statement of the loop IR that multiplies matrices on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.codegen.nest.index import IndexExpr
from compiler.codegen.nest.memory import Span
from compiler.ir.types import PrimitiveType


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in an array: element (r, c) is at `offset + r * row + c * column`; `local` arrays may be read past c."""

    array: str
    offset: IndexExpr
    row: int
    column: int
    local: bool


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """target = decay * target + lhs rhs, or lhs rhs if there is no `decay`.

    Attributes:
        target: rows x columns; its columns are adjacent.
        lhs: rows x depth.
        rhs: depth x columns; its columns are adjacent.
        type: element type of all three in memory, f32 or f64.
        rows, columns, depth: sizes.
        decay: local array of a factor for each column; empty for none.
        tile, narrow_tile: rows and vectors of a register tile for 32 registers of 512 bits, and for 16 of 256 bits.
    """

    target: Matrix
    lhs: Matrix
    rhs: Matrix
    type: PrimitiveType
    rows: Span
    columns: Span
    depth: Span
    decay: str = ""
    tile: tuple[int, int] = (8, 3)
    narrow_tile: tuple[int, int] = (4, 2)

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return target, lhs and rhs."""
        return self.target, self.lhs, self.rhs

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        """Return rows, columns and depth."""
        return self.rows, self.columns, self.depth

    def map_indices(self, f: Callable[[IndexExpr], IndexExpr]) -> MatrixProduct:
        """Return the statement with `f` applied to its index expressions."""
        target, lhs, rhs = (replace(m, offset=f(m.offset)) for m in self.matrices)
        rows, columns, depth = (s.map_base(f) for s in self.spans)
        return replace(self, target=target, lhs=lhs, rhs=rhs, rows=rows, columns=columns, depth=depth)

    @property
    def indices(self) -> tuple[IndexExpr, ...]:
        """Return its index expressions."""
        return (*(m.offset for m in self.matrices), *(s.base for s in self.spans if s.base is not None))
