"""What the templates of products and attention share: refusals of dots, and indices of their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, Var
from compiler.codegen.nest.traversal import walk
from compiler.ir.instruction import HloInstruction
from compiler.ir.types import PrimitiveType

__all__ = ["contracted_sizes", "dot_refusal", "free_dimensions", "index_of_groups", "loads_of", "operand_indices"]


def dot_refusal(dot: HloInstruction, summed_in: Mapping[PrimitiveType, PrimitiveType]) -> str | None:
    """Return why a dot has no generated kernel, or None.

    Args:
        dot: the dot.
        summed_in: the type in which the kernel sums products of each element type that it supports.
    """
    t = summed_in.get(dot.shape.element_type)
    types = {summed_in.get(o.shape.element_type) for o in dot.operands}
    if t is None or len(dot.operands) != 2 or types != {t}:
        named = ", ".join(o.shape.element_type.text for o in (*dot.operands, dot))
        return f"%{dot.name}: a dot of these types has no kernel: {named}"
    if 0 in dot.shape.dimensions or 0 in dot.operands[0].shape.dimensions:
        return f"%{dot.name}: an empty dot has no kernel"
    return None


def free_dimensions(dot: HloInstruction) -> tuple[list[int], list[int]]:
    """Return the dimensions of each operand that are neither batch nor contracted."""
    lhs, rhs = (
        [d for d in range(o.shape.rank) if d not in (*dot.attr(f"{side}_batch_dims", ()), *_contracted(dot, side))]
        for side, o in zip(("lhs", "rhs"), dot.operands, strict=True)
    )
    return lhs, rhs


def _contracted(dot: HloInstruction, side: str) -> Sequence[int]:
    dims: Sequence[int] = dot.attr(f"{side}_contracting_dims", ())
    return dims


def contracted_sizes(dot: HloInstruction) -> list[int]:
    """Return the sizes of the contracted dimensions, in their order in the dot."""
    return [dot.operands[0].shape.dimensions[d] for d in _contracted(dot, "lhs")]


def operand_indices(dot: HloInstruction, at: Sequence[IndexExpr], inner: Sequence[IndexExpr]) -> tuple[Index, Index]:
    """Return the indices of the elements of both operands that are multiplied.

    Args:
        dot: the dot.
        at: the index of an element of its result: batch, free dimensions of the lhs, free dimensions of the rhs.
        inner: the index along its contracted dimensions.
    """
    lhs, rhs = dot.operands
    lb, rb = dot.attr("lhs_batch_dims", ()), dot.attr("rhs_batch_dims", ())
    lf, rf = free_dimensions(dot)
    batch, left, right = at[: len(lb)], at[len(lb) : len(lb) + len(lf)], at[len(lb) + len(lf) :]
    return (
        index_of_groups(lhs.shape.rank, ((lb, batch), (lf, left), (_contracted(dot, "lhs"), inner))),
        index_of_groups(rhs.shape.rank, ((rb, batch), (rf, right), (_contracted(dot, "rhs"), inner))),
    )


def index_of_groups(rank: int, groups: Sequence[tuple[Sequence[int], Sequence[Var | IndexExpr]]]) -> Index:
    """Return an index from groups of dimensions with the variables or expressions for them."""
    found: dict[int, IndexExpr] = {}
    for dims, values in groups:
        found.update((d, ix.of(x) if isinstance(x, Var) else x) for d, x in zip(dims, values, strict=True))
    return tuple(found[d] for d in range(rank))


def loads_of(body: lir.Body) -> Iterator[lir.Load]:
    """Yield the loads from arguments in statements and those inside them."""
    return (s.value for s in walk(body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Load))
