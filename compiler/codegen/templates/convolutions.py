"""Convolutions in kernels: a copy of the fused computation in which the convolution is a product with windows.

A depthwise convolution is a sum of scaled slices instead. The rows of the product are the positions of the result, and
the contracted elements those under the window. They are read from the input where it is, so that what computes the
input becomes the prologue of the product, and what is computed from the result its epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.analysis.convolutions import slides_along_rows
from compiler.codegen.lowering.windows import Windows, add_windows
from compiler.errors import UnsupportedError
from compiler.ir.attributes import ConvDimLabels, PadDim, Window, WindowDim
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.passes.dots.convolution_patches import depthwise_sum
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.reductions.windows import edges


def convolution_of(fused: HloComputation) -> HloInstruction | None:
    """Return the convolution of a fused computation, or None if there is none; of several, one of them."""
    return next((i for i in fused.post_order() if i.opcode is Opcode.CONVOLUTION), None)


def convolution_refusal(i: HloInstruction, summed_in: Mapping[PrimitiveType, PrimitiveType]) -> str | None:
    """Return why a convolution has no generated kernel, or None.

    Args:
        i: the convolution.
        summed_in: the type in which the kernel sums products of each element type that it supports.
    """
    t = summed_in.get(i.shape.element_type)
    if t is None or {summed_in.get(o.shape.element_type) for o in i.operands} != {t}:
        named = ", ".join(o.shape.element_type.text for o in (*i.operands, i))
        return f"%{i.name}: a convolution of these types has no generated kernel: {named}"
    if any(0 in o.shape.dimensions for o in (*i.operands, i)):
        return f"%{i.name}: an empty convolution has no kernel"
    if i.attr("feature_group_count", 1) > 1 and i.attr("batch_group_count", 1) > 1:
        return f"%{i.name}: a convolution with groups of features and of the batch has no generated kernel"
    return None


def with_convolution_expanded(
    fused: HloComputation, convolution: HloInstruction, tiles: bool = False
) -> HloComputation:
    """Return a copy of a fused computation in which other ops compute what its convolution does.

    Args:
        fused: the computation.
        convolution: its convolution.
        tiles: whether products are divided into tiles for the blocks of a GPU.

    Raises:
        UnsupportedError: both features and batch are grouped.
    """
    copy, copies = fused.clone_with_mapping()
    HloModule("convolution").add(copy, entry=True)
    b = Builder(copy)
    i = copies[convolution]
    copy.replace(i, _computed(i, tiles, b))
    copy.remove_dead(b.made)
    for dot in [x for x in b.made if x.opcode is Opcode.DOT and x.parent is copy]:
        named = copy.add(dot.opcode, dot.operands, dot.shape, name=convolution.name, attributes=dot.attributes)
        copy.replace(dot, named)  # refusals name the instruction of the program
    return copy


def _computed(i: HloInstruction, tiles: bool, b: Builder) -> HloInstruction:
    form = _Form.of(i)
    if not tiles and (form.outputs == 1 or slides_along_rows(i)):
        return form.sum(b)
    return depthwise_sum(i, b) or form.product(b)


@dataclass(frozen=True)
class _Form:
    """A convolution as [batch, positions, groups, kernel elements] times [kernel elements, groups, outputs].

    Attributes:
        instruction: the convolution.
        labels: its dimension labels.
        window: one window dimension per spatial dimension.
        groups: number of groups, of features or of the batch.
        by_batch: whether the batch is grouped.
    """

    instruction: HloInstruction
    labels: ConvDimLabels
    window: tuple[WindowDim, ...]
    groups: int
    by_batch: bool

    @staticmethod
    def of(i: HloInstruction) -> _Form:
        by_features, by_batch = i.attr("feature_group_count", 1), i.attr("batch_group_count", 1)
        if by_features > 1 and by_batch > 1:
            raise UnsupportedError(f"%{i.name} has groups of features and of the batch")
        window: Window = i.attr("window", Window())
        return _Form(i, i.attributes["dim_labels"], window.dims, by_features * by_batch, by_batch > 1)

    def product(self, b: Builder) -> HloInstruction:
        """Build the product; dimensions of its result are groups, batch, positions, outputs."""
        i = self.instruction
        batch, positions = self._size(i, self.labels.out, "b"), self._sizes(i, self.labels.out)
        windows = self._windows(b, batch, positions)
        inner = len(self._inner)
        grouped = (2,) if self.groups > 1 else ()
        depth = tuple(range(2 + len(grouped), 2 + len(grouped) + inner))
        kernel = self._kernel(b)
        space = math.prod(positions)
        sizes = ((self.groups,) if grouped else ()) + (batch, space, self.outputs)
        precision = {k: v for k, v in i.attributes.items() if k == "operand_precision"}
        made = b.add(
            Opcode.DOT, windows, kernel, shape=Shape(i.shape.element_type, sizes),
            lhs_batch_dims=grouped, rhs_batch_dims=(inner,) if grouped else (),
            lhs_contracting_dims=depth, rhs_contracting_dims=tuple(range(inner)), **precision,
        )  # fmt: skip
        if grouped:
            made = b.transpose(made, (1, 2, 0, 3))
        made = b.reshape(made, (batch, *positions, self.groups * self.outputs))
        return b.transpose(made, [f"b{self._digits}f".index(c) for c in self.labels.out])

    @property
    def outputs(self) -> int:
        """Number of output features per group."""
        return self._size(self.instruction, self.labels.out, "f") // self.groups

    def sum(self, b: Builder) -> HloInstruction:
        """Build the sums of windows times the kernel, for one group or one output feature of each.

        They are in the order of the result, and in f32 if that is narrower.
        """
        i, out = self.instruction, self.labels.out
        kernel, dims = i.operands[1], i.shape.dimensions
        inner = [self._size(kernel, self.labels.rhs, c) for c in self._inner]
        depth = range(len(out), len(out) + len(inner))
        at = {c: d for d, c in enumerate(out) if c != "f"} | {"group": out.index("f")}
        made = self._sliding(b, (*dims, *inner), at, depth[0])
        weights = b.transpose(kernel, [self.labels.rhs.index(c) for c in f"o{self._inner}"])
        factors = b.broadcast(weights, (*dims, *inner), (out.index("f"), *depth))
        t = i.shape.element_type
        wide = PrimitiveType.F32 if t.is_narrow_float else t
        total = b.sum(b.add(Opcode.MULTIPLY, b.convert(made, wide), b.convert(factors, wide)), depth)
        return b.convert(total, t)

    def _windows(self, b: Builder, batch: int, positions: tuple[int, ...]) -> HloInstruction:
        """Build [batch, positions in one dimension, groups if there are several, kernel elements] of the input."""
        inner = [self._size(self.instruction.operands[1], self.labels.rhs, c) for c in self._inner]
        grouped = (self.groups,) if self.groups > 1 else ()
        at = {c: d for d, c in enumerate(f"b{self._digits}")} | {"group": 1 + len(positions)}
        first = 1 + len(positions) + len(grouped)
        made = self._sliding(b, (batch, *positions, *grouped, *inner), at, first)
        return b.reshape(made, (batch, math.prod(positions), *grouped, *inner))

    def _sliding(self, b: Builder, sizes: tuple[int, ...], at: Mapping[str, int], first: int) -> HloInstruction:
        """Build the windows of the input.

        Args:
            b: where they are built.
            sizes: of the result.
            at: its dimensions along the batch, the positions and the groups, by label or "group".
            first: its first dimension along the elements of the kernel, in the order of `_inner`.
        """
        x, labels = self.instruction.operands[0], self.labels.lhs
        pads = dict(zip(self._digits, edges(self.window), strict=True))
        x = b.pad(x, b.scalar(0, x.shape.element_type), [pads.get(c, PadDim(0, 0)) for c in labels])
        terms: list[tuple[tuple[int, int], ...]] = []
        starts = []
        for c in labels:
            own, start = self._terms(c, sizes, at, first)
            terms.append(tuple(own))
            starts.append(start)
        return add_windows(b.computation, x, sizes, Windows(tuple(terms), tuple(starts)))

    def _terms(
        self, c: str, sizes: tuple[int, ...], at: Mapping[str, int], first: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the terms and the start of the index along one dimension of the input, given its label."""
        if c == "b":
            return [(at["b"], 1), *([(at["group"], sizes[at["b"]])] if self.by_batch else [])], 0
        if c == "f":
            within = (first + self._inner.index("i"), 1)
            features = self._size(self.instruction.operands[1], self.labels.rhs, "i")
            return [within, *([(at["group"], features)] if self.groups > 1 and not self.by_batch else [])], 0
        w, inner = self.window[self._digits.index(c)], first + self._inner.index(c)
        if w.reversal:
            return [(at[c], w.stride), (inner, -w.rhs_dilate)], (w.size - 1) * w.rhs_dilate
        return [(at[c], w.stride), (inner, w.rhs_dilate)], 0

    def _kernel(self, b: Builder) -> HloInstruction:
        """Build [kernel elements, groups if there are several, outputs]."""
        kernel = self.instruction.operands[1]
        made = b.transpose(kernel, [self.labels.rhs.index(c) for c in f"{self._inner}o"])
        if self.groups == 1:
            return made
        *inner, outputs = made.shape.dimensions
        return b.reshape(made, (*inner, self.groups, outputs // self.groups))

    @property
    def _inner(self) -> str:
        """The labels of the kernel elements in the order in which the kernel is stored."""
        return "".join(c for c in self.labels.rhs if c != "o")

    @property
    def _digits(self) -> str:
        return "".join(sorted(c for c in self.labels.lhs if c.isdigit()))

    def _sizes(self, i: HloInstruction, labels: str) -> tuple[int, ...]:
        return tuple(self._size(i, labels, c) for c in self._digits)

    @staticmethod
    def _size(i: HloInstruction, labels: str, label: str) -> int:
        return i.shape.dimensions[labels.index(label)]
