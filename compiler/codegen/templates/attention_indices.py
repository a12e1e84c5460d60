"""The variables of an attention: queries, keys, depth and features, and the indices of its operands in these terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from compiler.analysis.attention import Attention
from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import kernel_arguments
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr, IndexSymbol, Var
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.templates.dots import contracted_sizes, index_of_groups, operand_indices
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.types import PrimitiveType as T


class AttentionIndices:
    """The variables and indices of one attention, from which its kernels are made.

    UnsupportedError: its dimensions do not divide into batch, queries, keys and features, or a type has no kernel.

    Attributes:
        e: the emitter of the kernel.
        query, key, depth, feature: the variables of the whole attention.
        outer: the other variables of its result.
        score_index: index of a score.
        dot_index: index of the element of the first dot from which that score is computed.
        queries, keys: the operands of the first dot.
        query_index, key_index, value_index: indices of the operands.
        output_index: index of an element of the result.

    Args:
        merged: maximum number of queries that are one variable although they have several dimensions, as where several
            heads of queries share one of keys.
    """

    def __init__(
        self, fused: HloComputation, roots: Sequence[HloInstruction], attention: Attention, merged: int = 0
    ) -> None:
        self.fused, self.roots, self.a = fused, roots, attention
        self.merged = merged
        self.e = Emitter(fused, STATEMENT_LIMIT)
        for d in (attention.dot, attention.output):
            if any(x.shape.element_type not in (T.F32, T.BF16, T.F16) for x in (d, *d.operands)):
                raise UnsupportedError(f"%{d.name}: attention of these types has no kernel")
            if 0 in d.shape.dimensions or 0 in d.operands[0].shape.dimensions:
                raise UnsupportedError(f"%{d.name}: empty attention has no kernel")
        for r in roots:
            if r.shape.num_elements != attention.output.shape.num_elements:
                raise UnsupportedError(f"%{r.name}: {r.shape} does not have one element per element of the attention")
        self._indices()

    def arguments(self) -> tuple[lir.Argument, ...]:
        """Return the arguments of the kernel."""
        return kernel_arguments(self.fused.parameters, [r.shape for r in self.roots])

    def _indices(self) -> None:
        """Find the variables of the whole attention and the indices of its operands in terms of them."""
        e, output, weights = self.e, self.a.output, self.a.weights
        first = output.operands[0] is weights
        sides = ("lhs", "rhs") if first else ("rhs", "lhs")
        wb, wc = (output.attr(f"{sides[0]}_{kind}_dims", ()) for kind in ("batch", "contracting"))
        vb, vc = (output.attr(f"{sides[1]}_{kind}_dims", ()) for kind in ("batch", "contracting"))
        values = self.a.values
        wf = [d for d in range(weights.shape.rank) if d not in wb and d not in wc]
        vf = [d for d in range(values.shape.rank) if d not in vb and d not in vc]
        result = [Var(e.fresh("i"), n) for n in output.shape.dimensions]
        contracted = [Var(e.fresh("k"), weights.shape.dimensions[d]) for d in wc]
        batch, free = result[: len(wb)], result[len(wb) :]
        left, right = (free[: len(wf)], free[len(wf) :]) if first else (free[len(vf) :], free[: len(vf)])
        self.query = max(left, key=lambda v: v.extent, default=Var(e.fresh("i"), 1))
        self.key = _only(contracted, "keys", e)
        self.feature = _only(right, "features", e)
        self.outer = [v for v in (*batch, *left) if v is not self.query]
        place: dict[Var, IndexExpr] = {v: ix.of(v) for v in result}
        sizes = [v.extent for v in left]
        if self.query.extent < math.prod(sizes) <= self.merged:
            self.query, self.outer = Var(e.fresh("i"), math.prod(sizes)), list(batch)
            place.update(zip(left, ix.delinearize(ix.of(self.query), sizes), strict=True))
        self.output_index = tuple(place[v] for v in result)
        rows = [place[v] for v in left]
        at = index_of_groups(weights.shape.rank, ((wb, batch), (wf, rows), (wc, contracted)))
        self.value_index = index_of_groups(values.shape.rank, ((vb, batch), (vf, right), (vc, contracted)))
        for i in self.a.chain[:-1]:
            at = INDEXING_MAPS[i.opcode](i, at) if i.opcode in INDEXING_MAPS else at
        self.score_index = at
        self._dot_indices()

    def _dot_indices(self) -> None:
        """Find the index of the dot that a score is computed from, and of its operands."""
        e, dot = self.e, self.a.dot
        seen: list[Index] = []

        def note(index: Index) -> str:
            seen.append(index)
            return e.constant(0.0, T.F32)

        e.sources[dot] = note
        with e.guard():
            e.value(self.a.scores, self.score_index)
        del e.sources[dot]
        if len(set(seen)) != 1:
            raise UnsupportedError(f"%{dot.name}: a score is computed from several elements")
        self.dot_index = seen[0]
        sizes = contracted_sizes(dot)
        self.depth = Var(e.fresh("k"), math.prod(sizes))
        indices = operand_indices(dot, self.dot_index, ix.delinearize(ix.of(self.depth), sizes))
        sides = tuple(zip(dot.operands, indices, strict=True))
        by_key = [self.key in ix.variables_of(index) for _, index in sides]
        by_query = [self.query in ix.variables_of(index) for _, index in sides]
        if sum(by_key) != 1 or any(a and b for a, b in zip(by_key, by_query, strict=True)):
            raise UnsupportedError(f"%{dot.name}: its sides are not the queries and the keys")
        keys = by_key.index(True)
        (self.keys, self.key_index), (self.queries, self.query_index) = sides[keys], sides[1 - keys]


def _only(found: Sequence[Var], what: str, e: Emitter) -> Var:
    """Return the only variable that is longer than 1."""
    long = [v for v in found if v.extent != 1]
    if len(long) > 1:
        raise UnsupportedError(f"attention whose {what} have {len(long)} dimensions has no kernel")
    return long[0] if long else Var(e.fresh("i"), 1)


def substituted(index: Index, mapping: Mapping[IndexSymbol, IndexExpr]) -> Index:
    """Return an index with symbols replaced by expressions."""
    return tuple(x.substitute(mapping) for x in index)
