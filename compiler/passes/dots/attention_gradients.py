"""Gradients of attention: products of weights that are computed again from short products, instead of stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.ancestors import ancestors
from compiler.analysis.attention import upstream
from compiler.ir import HloComputation, HloInstruction, Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.passes.dots.dot_properties import DotDims, is_plain_dot, make_dot
from compiler.passes.dots.outlining import is_fused, outline
from compiler.passes.infrastructure.base import ComputationPass, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.rewrite_limits import pinned

_HALVES = frozenset({T.F16, T.BF16})
_MOVED = frozenset({Opcode.RESHAPE, Opcode.BITCAST, Opcode.TRANSPOSE, Opcode.CONVERT})
MOST_LENGTH = 128
"""Elements that a product adds up for a weight, and features of the values, at most."""
MOST_PRODUCTS = 2
"""Products that one kernel computes from the same rows, and those from which it computes their weights."""


@dataclass(frozen=True)
class AttentionGradients(ComputationPass):
    """Make fusions of the products in a gradient of attention that compute their weights again.

    With p = exp(s - max) / sum of a row, the gradients of attention (Dao, "FlashAttention-2", 2023) are products of p
    and of p * (dp - r). There dp is a product of the gradient g of the result o with the values, and r is the sum of
    p * dp over a row, which is also the sum of g * o over the features. Scores, weights and dp are as many as queries
    times keys: here they are computed from products of short rows wherever they are needed. Operands are halves, which
    tensor cores multiply.

    Attributes:
        min_scores: minimum number of scores of a head.
    """

    name: ClassVar[str] = "attention-gradients"
    min_scores: int = number_option(4096, 1, 1 << 40)

    def run_on(self, computation: HloComputation) -> bool:
        """Rewrite one computation; return whether it changed."""
        if computation.parent is None or is_fused(computation):
            return False
        changed, fixed = False, pinned(computation)
        for i in computation.post_order():
            if i.opcode is Opcode.EXPONENTIAL and i.parent is computation:
                softmax = _Softmax.of(i)
                if softmax is not None and self._is_large(softmax):
                    changed |= _Gradient(computation, softmax, fixed).rewrite()
        return changed

    def _is_large(self, s: _Softmax) -> bool:
        sizes = s.exponential.shape.dimensions
        return max(sizes[: s.axis] + sizes[s.axis + 1 :], default=0) * sizes[s.axis] >= self.min_scores


@dataclass(frozen=True)
class _Softmax:
    """The softmax of scores: exponential = exp(scores - most), and the sums of its rows.

    Attributes:
        exponential: the exponential.
        most: the reduction to the largest scores of rows.
        total: the sums of the exponential along `axis`.
        axis: the dimension of the rows.
    """

    exponential: HloInstruction
    most: HloInstruction
    total: HloInstruction
    axis: int

    @staticmethod
    def of(i: HloInstruction) -> _Softmax | None:
        """Return the softmax that an exponential belongs to, or None."""
        difference = i.operands[0]
        if difference.opcode is not Opcode.SUBTRACT or i.shape.element_type not in (T.F32, *_HALVES):
            return None
        scores, shift = difference.operands
        if shift.opcode is not Opcode.BROADCAST or not _is_reduction(shift.operands[0], Opcode.MAXIMUM, scores):
            return None
        most = shift.operands[0]
        (axis,) = most.dimensions
        kept = [d for d in range(i.shape.rank) if d != axis]
        terms = [i, *(u for u in i.users if u.opcode is Opcode.CONVERT)]
        sums = [u for x in terms for u in x.users if _is_reduction(u, Opcode.ADD, x) and u.dimensions == (axis,)]
        return _Softmax(i, most, sums[0], axis) if len(sums) == 1 and list(shift.dimensions) == kept else None


def _is_reduction(i: HloInstruction, opcode: Opcode, of: HloInstruction) -> bool:
    """Check for a reduction of one dimension of an instruction by a function of two parameters, from its identity."""
    if i.opcode is not Opcode.REDUCE or len(i.operands) != 2 or i.operands[0] is not of or len(i.dimensions) != 1:
        return False
    root = i.attributes["to_apply"].root
    if root.opcode is not opcode or {o.opcode for o in root.operands} != {Opcode.PARAMETER}:
        return False
    start = i.operands[1]
    if root.operands[0] is root.operands[1] or start.opcode is not Opcode.CONSTANT:
        return False
    return bool(start.value.common_value == (0 if opcode is Opcode.ADD else -math.inf))


class _Gradient:
    """The products that use the weights of one softmax.

    Attributes:
        order: for instructions with as many elements as the scores, the dimension of the exponential that each of their
            dimensions is.
    """

    def __init__(self, computation: HloComputation, softmax: _Softmax, fixed: set[HloInstruction]) -> None:
        self.computation, self.softmax, self.fixed = computation, softmax, fixed
        self.sizes = softmax.exponential.shape.dimensions
        self.kept = [d for d in range(len(self.sizes)) if d != softmax.axis]
        self.order = {softmax.exponential: tuple(range(len(self.sizes)))}
        self.b = Builder(computation)

    def rewrite(self) -> bool:
        """Make the fusions of all products but the attention itself; return whether there are any."""
        found = self._uses()
        if found is None:
            return False
        products, sums = found
        self._orders_of_operands()
        groups = self._groups(products)
        if groups is None:
            return False
        replaced = [(r, self._row_sum(r, products)) for r in sums]
        if any(new is None for _, new in replaced):
            self.computation.remove_dead(self.b.made)
            return False
        for old, new in replaced:
            if new is not None:
                self.computation.replace_uses(old, new)
        self.dependent = self._dependent()
        for group in groups:
            self._fuse([self._in_order(dot, products[dot]) for dot in group])
        self.computation.remove_dead(sums)
        return True

    # ---- what uses the weights

    def _uses(self) -> tuple[dict[HloInstruction, HloInstruction], list[HloInstruction]] | None:
        """Return the dots that use values as many as the scores, with the operand that does, and the sums of rows.

        None if something else uses them, so that they have to be stored.
        """
        products: dict[HloInstruction, HloInstruction] = {}
        sums: list[HloInstruction] = []
        work = [self.softmax.exponential]
        while work:
            i = work.pop()
            if i in self.fixed or i.is_root:
                return None
            for u in i.users:
                if u is self.softmax.total or u in self.order:
                    continue
                if u.opcode is Opcode.DOT:
                    if u in products or not is_plain_dot(u) or u in self.fixed:
                        return None
                    products[u] = i
                elif u.opcode is Opcode.REDUCE:
                    if not _is_reduction(u, Opcode.ADD, i) or self.order[i][u.dimensions[0]] != self.softmax.axis:
                        return None
                    sums.append(u)
                elif u.opcode is Opcode.TRANSPOSE or (u.opcode.is_elementwise and u.opcode is not Opcode.COPY):
                    at = self.order[i]
                    self.order[u] = tuple(at[d] for d in u.dimensions) if u.opcode is Opcode.TRANSPOSE else at
                    work.append(u)
                else:
                    return None
        return products, sums

    def _orders_of_operands(self) -> None:
        """Find the instructions with as many elements as the scores from which those known are computed."""
        work = list(self.order)
        while work:
            i = work.pop()
            at = self.order[i]
            if i.opcode is Opcode.TRANSPOSE:
                at = tuple(d for _, d in sorted(zip(i.dimensions, at, strict=True)))
            elif not i.opcode.is_elementwise:
                continue
            for o in i.operands:
                if o not in self.order and o.shape.rank == len(self.sizes):
                    self.order[o] = at
                    work.append(o)

    def _groups(self, products: dict[HloInstruction, HloInstruction]) -> list[list[HloInstruction]] | None:
        """Return the dots of each kernel: those of a gradient by what they add up; None if one has no kernel."""
        groups: dict[tuple[int, ...], list[HloInstruction]] = {}
        pairs = False
        for dot, weights in products.items():
            inner = [i for i in upstream(weights) if i.opcode is Opcode.DOT]
            if not 1 <= len(inner) <= MOST_PRODUCTS or not all(map(self._is_inner, inner)):
                return None
            if not _is_half(_other(dot, weights)) or _free_size(dot, weights) > MOST_LENGTH:
                return None
            pairs |= len(inner) == MOST_PRODUCTS
            contracted = tuple(sorted(self._contracted(dot, weights)))
            if not self._is_attention(dot, weights):
                groups.setdefault(contracted, []).append(dot)
        if not groups or not pairs:
            return None
        return [g[n : n + MOST_PRODUCTS] for g in groups.values() for n in range(0, len(g), MOST_PRODUCTS)]

    def _contracted(self, dot: HloInstruction, weights: HloInstruction) -> tuple[int, ...]:
        """Return the dimensions of the exponential along which a dot adds up."""
        return tuple(self.order[weights][d] for d in _side(dot, weights)[1])

    def _is_inner(self, dot: HloInstruction) -> bool:
        """Check for a product of halves with few elements to add up."""
        if not is_plain_dot(dot) or dot in self.fixed or not all(map(_is_half, dot.operands)):
            return False
        sizes = dot.operands[0].shape.dimensions
        return math.prod(sizes[d] for d in DotDims.of(dot).lhs_contracting) <= MOST_LENGTH

    def _is_attention(self, dot: HloInstruction, weights: HloInstruction) -> bool:
        """Check whether the weights of a dot are the softmax itself, and added up along its rows."""
        if self._contracted(dot, weights) != (self.softmax.axis,):
            return False
        i = _same_elements(weights)
        if i.opcode is not Opcode.DIVIDE or _same_elements(i.operands[0]) is not self.softmax.exponential:
            return False
        total = i.operands[1]
        if total.opcode is not Opcode.BROADCAST or _same_elements(total.operands[0]) is not self.softmax.total:
            return False
        return [self.order[i][d] for d in total.dimensions] == self.kept

    # ---- sums of rows

    def _row_sum(self, r: HloInstruction, products: dict[HloInstruction, HloInstruction]) -> HloInstruction | None:
        """Return the sum of exponential * dp over a row as one over features, or None if it is no such sum."""
        factors: list[HloInstruction] = []
        found: list[HloInstruction] = []
        if not self._collect(r.operands[0], factors, found) or len(found) != 1:
            return None
        dp = found[0]
        for values in dp.operands if dp in self.order else ():
            gradient = _other(dp, values)
            attention = self._attention_of(dp, values, products)
            rows = None if attention is None else self._matched(dp, gradient, values, attention, products[attention])
            if rows is not None:
                b = self.b
                total = b.sum(b.add(Opcode.MULTIPLY, *rows), range(r.shape.rank, rows[0].shape.rank))
                for f in (b.convert(self.softmax.total, T.F32), *factors):
                    total = b.add(Opcode.MULTIPLY, total, f)
                at = [d for d in self.order[r.operands[0]] if d != self.softmax.axis]
                return b.convert(b.transpose(total, [self.kept.index(d) for d in at]), r.shape.element_type)
        return None

    def _collect(self, i: HloInstruction, factors: list[HloInstruction], found: list[HloInstruction]) -> bool:
        """Collect the factors of a product: exactly one exponential, one dot, and values of rows; False for others."""
        work, exponentials = [i], 0
        while work:
            i = work.pop()
            if i is self.softmax.exponential:
                exponentials += 1
            elif i.opcode is Opcode.DOT:
                found.append(i)
            elif i.opcode is Opcode.MULTIPLY:
                work += i.operands
            elif i.opcode in (Opcode.CONVERT, Opcode.TRANSPOSE):
                work.append(i.operands[0])
            elif i.opcode is Opcode.DIVIDE and (row := self._row(i.operands[1])) is not None:
                one = self.b.splat(1.0, row.shape)
                factors.append(self.b.add(Opcode.DIVIDE, one, row))
                work.append(i.operands[0])
            elif (row := self._row(i)) is not None:
                factors.append(row)
            else:
                return False
        return exponentials == 1

    def _row(self, i: HloInstruction) -> HloInstruction | None:
        """Return the values of rows that an instruction repeats along them, in f32, or None."""
        if i.opcode is not Opcode.BROADCAST or i not in self.order:
            return None
        row = self.b.convert(i.operands[0], T.F32)
        if row.shape.rank == 0:
            return self.b.broadcast(row, [self.sizes[d] for d in self.kept], ())
        at = [self.order[i][d] for d in i.dimensions]
        return self.b.transpose(row, [at.index(d) for d in self.kept]) if sorted(at) == self.kept else None

    def _attention_of(
        self, dp: HloInstruction, values: HloInstruction, products: dict[HloInstruction, HloInstruction]
    ) -> HloInstruction | None:
        """Return the attention with the values of a product; it is added if there is none."""
        for dot, weights in products.items():
            if _other(dot, weights) is values and self._is_attention(dot, weights):
                return dot
        result, (batch, contracted) = _result_map(dp), _side(dp, values)
        keys = [d for d in range(values.shape.rank) if d not in batch and d not in contracted]
        places = {m[values]: self.order[dp][d] for d, m in result.items() if values in m}
        if len(keys) != 1 or places[keys[0]] != self.softmax.axis:
            return None
        b, s = self.b, self.softmax
        exponential, total = b.convert(s.exponential, T.F32), b.convert(s.total, T.F32)
        softmax = b.add(Opcode.DIVIDE, exponential, b.broadcast(total, self.sizes, self.kept))
        weights = b.convert(softmax, values.shape.element_type)
        self.order[weights] = self.order[s.exponential]
        made = make_dot(b, dp, weights, values, DotDims((s.axis,), (keys[0],), tuple(places[d] for d in batch), batch))
        products[made] = weights
        return made

    def _matched(
        self,
        dp: HloInstruction,
        gradient: HloInstruction,
        values: HloInstruction,
        attention: HloInstruction,
        weights: HloInstruction,
    ) -> tuple[HloInstruction, HloInstruction] | None:
        """Return gradient and attention in f32 with the dimensions of rows, then those of features."""
        of_gradient = {self.order[dp][n]: m[gradient] for n, m in _result_map(dp).items() if gradient in m}
        results = _result_map(attention)
        of_rows = {self.order[weights][m[weights]]: n for n, m in results.items() if weights in m}
        of_features = {m[values]: n for n, m in results.items() if values in m and weights not in m}
        pairs = dict(zip(_side(dp, values)[1], _side(dp, gradient)[1], strict=True))
        if not set(self.kept) <= of_gradient.keys() & of_rows.keys() or pairs.keys() != of_features.keys():
            return None
        rows = [*(of_gradient[d] for d in self.kept), *(pairs[d] for d in sorted(pairs))]
        others = [*(of_rows[d] for d in self.kept), *(of_features[d] for d in sorted(pairs))]
        if len(rows) != gradient.shape.rank or len(others) != attention.shape.rank:
            return None
        b = self.b
        return b.convert(b.transpose(gradient, rows), T.F32), b.convert(b.transpose(attention, others), T.F32)

    # ---- fusions

    def _dependent(self) -> set[HloInstruction]:
        """Return the values as many as the scores that are computed from products element by element."""
        found: set[HloInstruction] = set()
        for i in self.computation.post_order():
            if i not in self.order:
                continue
            if i.opcode is Opcode.DOT:
                if self._is_inner(i):
                    found.add(i)
            elif not found.isdisjoint(i.operands) and (i.opcode.is_elementwise or i.opcode is Opcode.TRANSPOSE):
                found.add(i)
        return found

    def _in_order(self, dot: HloInstruction, weights: HloInstruction) -> HloInstruction:
        """Return a dot that adds up along several dimensions in the order of those of the exponential."""
        at = self._contracted(dot, weights)
        if list(at) == sorted(at):
            return dot
        values = _other(dot, weights)
        first = dot.operands[0] is weights
        places = sorted(range(len(at)), key=at.__getitem__)
        mine, theirs = (tuple(_side(dot, o)[1][n] for n in places) for o in (weights, values))
        lhs, rhs = (mine, theirs) if first else (theirs, mine)
        dims = DotDims.of(dot)
        sorted_dims = DotDims(lhs, rhs, dims.lhs_batch, dims.rhs_batch)
        made = make_dot(self.b, dot, dot.operands[0], dot.operands[1], sorted_dims)
        self.computation.replace(dot, made)
        return made

    def _fuse(self, dots: list[HloInstruction]) -> None:
        """Make a fusion of outer products, or one of each if one depends on the others."""
        region, ends = self._region(dots)
        outside = [o for i in region for o in i.operands if o not in region]
        if len(dots) > 1 and not ends.isdisjoint(ancestors(outside)):
            for dot in dots:
                self._fuse([dot])
            return
        order = [i for i in self.computation.post_order() if i in region]
        outline(self.computation, order, "attention_gradient", region - ends)

    def _region(self, dots: list[HloInstruction]) -> tuple[set[HloInstruction], set[HloInstruction]]:
        """Return the instructions of a fusion, and those of them that are not copied."""
        region: set[HloInstruction] = set()
        ends: set[HloInstruction] = set()
        work = list(dots)
        while work:
            i = work.pop()
            if i in region:
                continue
            region.add(i)
            work += [o for o in i.operands if self._belongs(o, i)]
        for dot in dots:
            end: HloInstruction | None = dot
            while end is not None:
                ends.add(end)
                end = self._only_mover(end)
        return region | ends, ends

    def _only_mover(self, i: HloInstruction) -> HloInstruction | None:
        """Return the only user of an instruction if it moves or converts its elements."""
        if len(i.users) != 1 or i.is_root:
            return None
        (user,) = i.users
        return user if user.opcode in _MOVED and user not in self.fixed else None

    def _belongs(self, i: HloInstruction, user: HloInstruction) -> bool:
        """Check whether an operand is computed again: values as many as the scores, masks, and halves in f32."""
        if user.opcode is Opcode.DOT and i not in self.order:
            return i.opcode is Opcode.CONVERT and _is_half(i)
        if i in self.dependent or (i in self.order and i.opcode is Opcode.BROADCAST):
            return True
        return _is_index(i)


# ---- dots


def _other(dot: HloInstruction, operand: HloInstruction) -> HloInstruction:
    lhs, rhs = dot.operands
    return rhs if lhs is operand else lhs


def _side(dot: HloInstruction, operand: HloInstruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batch and the contracted dimensions of an operand."""
    dims = DotDims.of(dot)
    if dot.operands[0] is operand:
        return dims.lhs_batch, dims.lhs_contracting
    return dims.rhs_batch, dims.rhs_contracting


def _free_size(dot: HloInstruction, weights: HloInstruction) -> int:
    """Return the number of features of a product of weights and values."""
    values = _other(dot, weights)
    batch, contracted = _side(dot, values)
    return math.prod(n for d, n in enumerate(values.shape.dimensions) if d not in batch and d not in contracted)


def _result_map(dot: HloInstruction) -> dict[int, dict[HloInstruction, int]]:
    """Return the dimensions of the operands from which each dimension of the result comes."""
    lhs, rhs = dot.operands
    dims = DotDims.of(dot)
    found: list[dict[HloInstruction, int]] = [
        {lhs: a, rhs: b} for a, b in zip(dims.lhs_batch, dims.rhs_batch, strict=True)
    ]
    found += [{lhs: d} for d in dims.lhs_free(lhs.shape.rank)]
    found += [{rhs: d} for d in dims.rhs_free(rhs.shape.rank)]
    return dict(enumerate(found))


def _is_half(i: HloInstruction) -> bool:
    """Check for halves, or their values in f32."""
    if i.opcode is Opcode.CONVERT and i.shape.element_type is T.F32:
        i = i.operands[0]
    return i.shape.element_type in _HALVES


def _same_elements(i: HloInstruction) -> HloInstruction:
    """Return what an instruction is converted from, or has the transposed elements of."""
    while i.opcode in (Opcode.CONVERT, Opcode.TRANSPOSE):
        i = i.operands[0]
    return i


def _is_index(i: HloInstruction) -> bool:
    """Check for values that are computed from indices and scalar constants alone, such as causal masks."""
    return all(
        x.opcode in (Opcode.IOTA, Opcode.BROADCAST) or x.opcode.is_elementwise or (
            x.opcode is Opcode.CONSTANT and x.shape.is_scalar
        )
        for x in ancestors((i,))
    )  # fmt: skip
