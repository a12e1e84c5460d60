"""Winograd's algorithm for convolutions by 3x3: fewer multiplications, as products of transformed tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import ConvDimLabels, PadDim, SliceDim, Window, WindowDim
from compiler.passes.dots.dot_properties import DotDims
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf

RULES = RuleSet()
_TYPES = {PrimitiveType.F32, PrimitiveType.F64}
TILE, EDGE = 2, 4
"""Results that a tile yields along each dimension, and inputs that it reads, which overlap with those of its neighbors.

Larger tiles need even fewer multiplications, but their transforms multiply by numbers that are not powers of two and
lose several bits.
"""

_Transform: TypeAlias = Callable[[Sequence[HloInstruction]], list[HloInstruction]]


@register
@dataclass(frozen=True)
class ConvolutionWinograd(RewritePass):
    """Rewrite a convolution by 3x3 as 16 matrix products of transformed tiles: F(2x2, 3x3).

    Each tile of 4x4 inputs gives 2x2 results by 16 multiplications per pair of features instead of 36. The transforms
    add and subtract, and halve the sums of kernel elements, so results differ from those of the convolution by a few
    roundings. Only for f32 and f64, two spatial dimensions, stride 1, no dilation and no groups.

    Source: A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016 (arXiv 1509.09308).
    """

    name: ClassVar[str] = "convolution-winograd"
    rules: ClassVar[RuleSet] = RULES

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def transform(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return _Tiles(i, b).result() if _suits(i) else None

        return lambda op: (transform,) if op is Opcode.CONVOLUTION else ()


def _suits(i: HloInstruction) -> bool:
    window: Window = i.attr("window", Window())
    types = {o.shape.element_type for o in (*i.operands, i)}
    empty = any(0 in o.shape.dimensions or o.shape.is_dynamic for o in (*i.operands, i))
    groups = (i.attr("feature_group_count", 1), i.attr("batch_group_count", 1))
    return (
        len(types) == 1
        and types <= _TYPES
        and not empty
        and groups == (1, 1)
        and len(window.dims) == 2
        and all(_is_plain(w) for w in window.dims)
    )


def _is_plain(w: WindowDim) -> bool:
    return (w.size, w.stride, w.lhs_dilate, w.rhs_dilate) == (3, 1, 1, 1)


class _Tiles:
    """The convolution as [batch, rows, columns, features] by a kernel of [rows, columns, features, outputs]."""

    def __init__(self, i: HloInstruction, b: Builder) -> None:
        self.b, self.instruction = b, i
        self.labels: ConvDimLabels = i.attributes["dim_labels"]
        self.window: tuple[WindowDim, ...] = i.attributes["window"].dims
        result = [i.shape.dimensions[self.labels.out.index(c)] for c in "b01f"]
        self.batch, self.outputs = result[0], result[3]
        self.positions = (result[1], result[2])
        self.tiles = tuple(-(-n // TILE) for n in self.positions)
        self.features = i.operand(0).shape.dimensions[self.labels.lhs.index("f")]

    def result(self) -> HloInstruction:
        """Build the transforms, the products and the transform of the results."""
        b, rows = self.b, self.batch * self.tiles[0] * self.tiles[1]
        inputs = b.concatenate([b.reshape(x, (1, rows, self.features)) for x in self._inputs()], 0)
        kernels = b.concatenate([b.reshape(k, (1, self.features, self.outputs)) for k in self._kernels()], 0)
        i = self.instruction
        precision = {k: v for k, v in i.attributes.items() if k == "operand_precision"}
        dims = DotDims((2,), (1,), (0,), (0,)).attributes()
        products = b.add(Opcode.DOT, inputs, kernels, shape=Shape(i.shape.element_type), **dims, **precision)
        whole = (SliceDim(0, rows), SliceDim(0, self.outputs))
        parts = [
            b.reshape(b.slice(products, (SliceDim(n, n + 1), *whole)), (rows, self.outputs)) for n in range(EDGE * EDGE)
        ]
        return self._placed(self._results(parts))

    def _inputs(self) -> list[HloInstruction]:
        """Return the 16 transformed elements of all tiles, each [batch, tiles, tiles, features]."""
        b = self.b
        x = b.transpose(self.instruction.operand(0), [self.labels.lhs.index(c) for c in "b01f"])
        spec = [PadDim(0, 0)]
        for w, size, tiles in zip(self.window, x.shape.dimensions[1:3], self.tiles, strict=True):
            spec.append(PadDim(w.pad_low, TILE * tiles + TILE - size - w.pad_low))
        x = b.pad(x, b.scalar(0, x.shape.element_type), (*spec, PadDim(0, 0)))

        def element(row: int, column: int) -> HloInstruction:
            within = [
                SliceDim(at, at + TILE * (tiles - 1) + 1, TILE)
                for at, tiles in zip((row, column), self.tiles, strict=True)
            ]
            return b.slice(x, (SliceDim(0, self.batch), *within, SliceDim(0, self.features)))

        elements = [[element(r, c) for c in range(EDGE)] for r in range(EDGE)]
        return self._both_ways(elements, self._input_transform)

    def _kernels(self) -> list[HloInstruction]:
        """Return the 16 transformed elements of the kernel, each [features, outputs]."""
        b = self.b
        kernel = b.transpose(self.instruction.operand(1), [self.labels.rhs.index(c) for c in "01io"])
        turned = tuple(d for d, w in enumerate(self.window) if w.reversal)
        kernel = b.add(Opcode.REVERSE, kernel, dimensions=turned) if turned else kernel

        def element(row: int, column: int) -> HloInstruction:
            at = (SliceDim(row, row + 1), SliceDim(column, column + 1))
            part = b.slice(kernel, (*at, SliceDim(0, self.features), SliceDim(0, self.outputs)))
            return b.reshape(part, (self.features, self.outputs))

        elements = [[element(r, c) for c in range(3)] for r in range(3)]
        return self._both_ways(elements, self._kernel_transform)

    def _results(self, products: Sequence[HloInstruction]) -> list[HloInstruction]:
        """Return the 4 results of all tiles, each [batch * tiles * tiles, outputs]."""
        elements = [list(products[EDGE * r : EDGE * (r + 1)]) for r in range(EDGE)]
        return self._both_ways(elements, self._result_transform)

    def _placed(self, results: Sequence[HloInstruction]) -> HloInstruction:
        """Interleave the results of all tiles and return them in the order of the convolution's result."""
        b = self.b
        one = (self.batch, self.tiles[0], 1, self.tiles[1], 1, self.outputs)
        lines = [b.concatenate([b.reshape(r, one) for r in results[TILE * n : TILE * (n + 1)]], 4) for n in range(TILE)]
        whole = b.concatenate(lines, 2)
        covered = (self.batch, *(TILE * t for t in self.tiles), self.outputs)
        whole = b.reshape(whole, covered)
        whole = b.slice(whole, [SliceDim(0, n) for n in (self.batch, *self.positions, self.outputs)])
        return b.transpose(whole, ["b01f".index(c) for c in self.labels.out])

    # ---- one-dimensional transforms of a line of elements

    def _both_ways(self, elements: Sequence[Sequence[HloInstruction]], transform: _Transform) -> list[HloInstruction]:
        columns = [transform(line) for line in zip(*elements, strict=True)]
        return [x for line in zip(*columns, strict=True) for x in transform(line)]

    def _input_transform(self, d: Sequence[HloInstruction]) -> list[HloInstruction]:
        return [self._minus(d[0], d[2]), self._plus(d[1], d[2]), self._minus(d[2], d[1]), self._minus(d[1], d[3])]

    def _kernel_transform(self, g: Sequence[HloInstruction]) -> list[HloInstruction]:
        outer = self._plus(g[0], g[2])
        half = self.b.splat(0.5, g[0].shape)
        sums = (self._plus(outer, g[1]), self._minus(outer, g[1]))
        return [g[0], *(self.b.add(Opcode.MULTIPLY, s, half) for s in sums), g[2]]

    def _result_transform(self, m: Sequence[HloInstruction]) -> list[HloInstruction]:
        return [self._plus(self._plus(m[0], m[1]), m[2]), self._minus(self._minus(m[1], m[2]), m[3])]

    def _plus(self, x: HloInstruction, y: HloInstruction) -> HloInstruction:
        return self.b.add(Opcode.ADD, x, y)

    def _minus(self, x: HloInstruction, y: HloInstruction) -> HloInstruction:
        return self.b.add(Opcode.SUBTRACT, x, y)
