"""Convolution expansion: matrix products over patches of the input (im2col), or sums of products with its slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from compiler.analysis.convolutions import is_weights_gradient
from compiler.analysis.flops import instruction_flops
from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import ConvDimLabels, PadDim, SliceDim, Window, WindowDim
from compiler.passes.dots.dot_properties import DotDims
from compiler.passes.infrastructure.base import number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet, RulesOf
from compiler.passes.reductions.windows import at_position, edges, under_element

RULES = RuleSet()
_TYPES = {PrimitiveType.F32, PrimitiveType.F64}
"""Narrower types must be rounded once per result, which a sequence of additions would not do."""


@register
@dataclass(frozen=True)
class ConvolutionToPatches(RewritePass):
    """Rewrite a convolution as patches of the padded input, concatenated, and one matrix product per group.

    The parts that are concatenated are the input's slices under each kernel element or, if these are fewer, under each
    window position. The patches of windows that do not overlap, as of patch embeddings, are a transpose of the input.
    With one input and one output feature per group, the slices are scaled and added instead. In the gradient of such a
    kernel, which is a convolution with groups of the batch, each slice is multiplied by the other array and summed. If
    there are too many elements, the batch is divided, or else the positions of the window along one dimension. Only for
    f32 and f64.

    Attributes:
        max_parts: maximum number of parts per convolution.
        max_elements: maximum number of elements of all patches of a part of the batch, or of the positions.
        max_batches: maximum number of such parts.
    """

    name: ClassVar[str] = "convolution-to-patches"
    rules: ClassVar[RuleSet] = RULES
    max_parts: int = number_option(128, 0, 4096)
    max_elements: int = number_option(1 << 26, 0, 1 << 30)
    max_batches: int = number_option(64, 1, 256)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""

        def write_out(i: HloInstruction, b: Builder) -> HloInstruction | None:
            return self._rewrite(i, b)

        return lambda op: (write_out,) if op is Opcode.CONVOLUTION else ()

    def _rewrite(self, i: HloInstruction, b: Builder) -> HloInstruction | None:
        types = {o.shape.element_type for o in (*i.operands, i)}
        if len(types) != 1 or not types <= _TYPES or any(o.shape.is_dynamic for o in (*i.operands, i)):
            return None
        form = _Form.of(i)
        if form is None:
            return None
        if form.fills_tiles and self.max_parts:
            return form.product_to_tiles(b)
        if form.is_depthwise and math.prod(form.kernel) <= self.max_parts:
            return form.scaled_and_added(b)
        if form.is_depthwise_gradient and math.prod(form.positions) <= self.max_parts:
            return form.multiplied_and_summed(b)
        fewer = min(math.prod(form.kernel), math.prod(form.positions))
        if not form.is_tiled and fewer > self.max_parts:
            return None
        if not form.is_tiled and form.patch_elements > self.max_elements:
            return self._divided(form, b)
        if form.is_tiled:
            return form.product_of_tiles(b) if form.has_features_first else form.product(b)
        if form.has_planes:
            return form.product_of_planes(b)
        return form.product_over_rows(b) if form.has_contracted_first else form.product(b)

    def _divided(self, form: _Form, b: Builder) -> HloInstruction | None:
        """Return the convolutions of parts of the batch or of the positions, concatenated, each with few elements."""
        if not form.by_batch:
            for parts in range(2, min(form.batch, self.max_batches) + 1):
                if form.batch % parts == 0 and form.patch_elements <= parts * self.max_elements:
                    return form.in_batches(parts, b)
        most = max(form.positions)
        # The rows of patches at one position along the longest dimension; the parts have as many such rows as fit.
        rows = self.max_elements // (form.patch_elements // most)
        parts = -(-most // rows) if rows else most + 1
        return form.in_positions(parts, b) if 1 < parts <= min(most, self.max_batches) else None


MAX_PATCHES_FLOPS, MAX_PLANES_FLOPS = 600_000, 1_000_000
"""Floating point operations of a convolution of f32 up to which a product over patches is faster than a library, whose
calls take some microseconds; those of one with planes, where nothing is transposed."""
MAX_LAYER_WINDOW = 49
"""Elements of the windows of layers; those of gradients of weights are as large as a result, and mostly have more."""
PART_OF_VECTOR, MIN_OUTPUTS = 4, 8
"""Numbers of output features in multiples of which products over patches, and kernels of convolutions, fill vectors."""
SHORT_ROW = 8
"""Positions in a row up to which patches are not copied row by row."""
MAX_ADDED = 64
"""Elements of a depthwise kernel up to which one loop adds the slices under all of them."""
MAX_TILE_FEATURES = 15
MIN_TILE_ELEMENTS = 128
"""Tiles of so few features, and of so many elements, are better multiplied by the kernel as a matrix than by a library
of convolutions, which uses vectors of features."""


def depthwise_sum(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Build a depthwise convolution as a sum of scaled slices; return None for other and for larger convolutions.

    Slices are added in f32 or in the type of the result if that is wider.
    """
    form = _Form.of(i)
    t = i.shape.element_type
    if form is None or not form.is_depthwise or t.is_complex or math.prod(form.kernel) > MAX_ADDED:
        return None
    if t in _TYPES and all(o.shape.element_type is t for o in i.operands):
        return form.scaled_and_added(b)
    wide = [b.convert(o, PrimitiveType.F32) for o in i.operands]
    made = b.with_operands(i, wide, Shape(PrimitiveType.F32, i.shape.dimensions))
    return b.convert(replace(form, instruction=made).scaled_and_added(b), t)


def is_gathered(i: HloInstruction) -> bool:
    """Check for a convolution that becomes a product over patches, which is neither depthwise nor one over tiles."""
    types = {o.shape.element_type for o in (*i.operands, i)}
    form = _Form.of(i)
    is_real = len(types) == 1 and all(t in _TYPES or t.is_half for t in types)
    return form is not None and is_real and form.groups == 1 and not form.is_tiled


def suits_patches(i: HloInstruction) -> bool:
    """Check for a small convolution of f32 that is faster as a product over patches than as a call of a library."""
    form = _Form.of(i) if i.shape.element_type is PrimitiveType.F32 and is_gathered(i) else None
    if form is None or (is_weights_gradient(i) and math.prod(form.kernel) > MAX_LAYER_WINDOW):
        return False
    most = MAX_PLANES_FLOPS if form.has_planes else MAX_PATCHES_FLOPS
    return instruction_flops(i) < most and (form.has_planes or form.outputs % PART_OF_VECTOR == 0)


def suits_direct(i: HloInstruction) -> bool:
    """Check for a small convolution of f32, of planes with short rows, that is faster as one kernel than over patches.

    Its rows are too short to copy, and the product would be transposed.
    """
    if i.opcode is not Opcode.CONVOLUTION or not suits_patches(i):
        return False
    form = _Form.of(i)
    if form is None or not form.has_features_first or form.has_planes:
        return False
    is_dense = all(w.stride == w.lhs_dilate == 1 for w in form.window)
    fills_vectors = form.features == 1 or form.features % MIN_OUTPUTS == 0 or form.outputs >= 2 * MIN_OUTPUTS
    return is_dense and fills_vectors and form.positions[-1:] <= (SHORT_ROW,)


def suits_tiles(i: HloInstruction) -> bool:
    """Check for windows that are large tiles of an input with few features, such as the patches of an image."""
    form = _Form.of(i)
    if form is None or form.groups > 1 or i.shape.element_type not in _TYPES or not form.is_tiled:
        return False
    elements = math.prod(form.kernel) * form.features
    return form.features <= MAX_TILE_FEATURES and elements >= MIN_TILE_ELEMENTS


def fills_tiles(i: HloInstruction) -> bool:
    """Check for a convolution in which each position of the input fills a tile of the result: a transposed one."""
    form = _Form.of(i) if i.shape.element_type in _TYPES else None
    return form is not None and form.fills_tiles


@dataclass(frozen=True)
class _Form:
    """A convolution of arrays [group, batch, space..., feature] with kernels [space..., feature, group, feature].

    Attributes:
        instruction: the convolution.
        groups: number of groups, of features or of the batch.
        by_batch: whether the batch is grouped.
        window: one window dimension per spatial dimension.
        batch, features, outputs: sizes within a group.
        space: spatial sizes of the input; `kernel` and `positions` are those of the kernel and the result.
    """

    instruction: HloInstruction
    groups: int
    by_batch: bool
    window: tuple[WindowDim, ...]
    batch: int
    features: int
    outputs: int
    space: tuple[int, ...]
    kernel: tuple[int, ...]
    positions: tuple[int, ...]

    @staticmethod
    def of(i: HloInstruction) -> _Form | None:
        """Return the form of a convolution, or None if an array is empty or both kinds of groups are used."""
        labels: ConvDimLabels = i.attributes["dim_labels"]
        window: Window = i.attr("window", Window())
        x, kernel = i.operands
        by_features, by_batch = i.attr("feature_group_count", 1), i.attr("batch_group_count", 1)
        groups = by_features * by_batch
        if by_features > 1 and by_batch > 1:
            return None
        if 0 in (*x.shape.dimensions, *kernel.shape.dimensions, *i.shape.dimensions):
            return None

        def sizes(shape: Shape, labeled: str, wanted: str) -> tuple[int, ...]:
            return tuple(shape.dimensions[labeled.index(c)] for c in wanted)

        space = "".join(sorted(c for c in labels.lhs if c.isdigit()))
        (batch,), (features,) = sizes(x.shape, labels.lhs, "b"), sizes(kernel.shape, labels.rhs, "i")
        return _Form(
            i, groups, by_batch > 1, window.dims, batch // by_batch, features,
            sizes(kernel.shape, labels.rhs, "o")[0] // groups, sizes(x.shape, labels.lhs, space),
            sizes(kernel.shape, labels.rhs, space), sizes(i.shape, labels.out, space),
        )  # fmt: skip

    @property
    def is_depthwise(self) -> bool:
        """Whether every feature has its own kernel and yields one output feature."""
        return not self.by_batch and self.features == self.outputs == 1

    @property
    def is_depthwise_gradient(self) -> bool:
        """Whether each result reads one input of the batch and one kernel, as in the gradient of a depthwise kernel."""
        return self.by_batch and self.batch == self.outputs == 1

    @property
    def is_tiled(self) -> bool:
        """Whether the windows are tiles of the input, without padding, dilation or overlap."""
        return all(
            w.stride == w.size and (w.pad_low, w.pad_high, w.lhs_dilate, w.rhs_dilate) == (0, 0, 1, 1)
            for w in self.window
        )

    @property
    def fills_tiles(self) -> bool:
        """Whether each position of the input fills a tile of the result, as in the gradient of tiled windows."""
        tiles = [
            w.lhs_dilate == w.size and w.pad_low == w.size - 1 <= w.pad_high < 2 * w.size - 1
            and w.stride == w.rhs_dilate == 1
            for w in self.window
        ]  # fmt: skip
        return self.groups == 1 and all(tiles) and math.prod(self.kernel) > 1

    @property
    def has_features_first(self) -> bool:
        """Whether there are no groups, and the features of the input come before its space."""
        lhs = self._labels.lhs
        return self.groups == 1 and all(lhs.index("f") < lhs.index(c) for c in self._digits)

    @property
    def has_planes(self) -> bool:
        """Whether input and result are a plane per feature, of one batch, whose rows are not short."""
        order = f"f{self._digits}"
        is_one = self.groups == self.batch == 1
        is_first = all(labels.replace("b", "") == order for labels in (self._labels.lhs, self._labels.out))
        is_wide = self.positions[-1:] > (SHORT_ROW,) and math.prod(self.kernel) <= math.prod(self.positions)
        return is_one and is_first and is_wide

    @property
    def has_contracted_first(self) -> bool:
        """Whether the input has what is contracted first and the batch last.

        The gradient of weights has it where the activations have their features last: the layer's features are its
        batch, and the layer's batch is contracted like features.
        """
        lhs = self._labels.lhs
        first = lhs[0] == "f" and lhs[-1] == "b"
        return self.groups == 1 and first and math.prod(self.kernel) > math.prod(self.positions)

    @property
    def patch_elements(self) -> int:
        """Number of elements of all patches."""
        return self.groups * self.batch * math.prod(self.positions) * math.prod(self.kernel) * self.features

    # ---- the expansions

    def product(self, b: Builder) -> HloInstruction:
        """Build the patches and their matrix product with the kernel."""
        length, rows = math.prod(self.kernel) * self.features, self.batch * math.prod(self.positions)
        group: tuple[int, ...] = () if self.groups == 1 else (self.groups,)
        dims = DotDims((2,), (0,), (0,), (1,)) if group else DotDims((1,), (0,))
        patches = b.reshape(self._patches(self._padded(b), b), (*group, rows, length))
        weights = b.reshape(self._kernel(b), (length, *group, self.outputs))
        made = b.add(Opcode.DOT, patches, weights, shape=Shape(self._type), **dims.attributes(), **self._precision)
        if self.groups == 1:
            return self._as_result(b.reshape(made, (self.batch, *self.positions, self.outputs)), b)
        made = b.reshape(made, (self.groups, self.batch, *self.positions, self.outputs))
        inner = range(1, 2 + len(self.space))
        made = b.transpose(made, (*inner, 0, len(inner) + 1))
        return self._as_result(b.reshape(made, (self.batch, *self.positions, self.groups * self.outputs)), b)

    def product_over_rows(self, b: Builder) -> HloInstruction:
        """Build the patches with what is contracted as rows, and their product with the kernel.

        The slices of the input are concatenated as they are. Those of a gradient of weights are the patches of the
        layer itself, which then exist once.
        """
        whole, none = SliceDim(0, 1), PadDim(0, 0)
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in f"f{self._digits}b"])
        x = b.reshape(x, (1, self.features, *self.space, self.batch))
        x = b.pad(x, b.scalar(0, self._type), (none, none, *edges(self.window), none))
        parts = [
            b.slice(x, (whole, SliceDim(0, self.features), *at_position(at, self.window), SliceDim(0, self.batch)))
            for at in itertools.product(*map(range, self.positions))
        ]
        rows, columns = self.features * math.prod(self.kernel), math.prod(self.positions) * self.batch
        patches = b.reshape(b.concatenate(parts, x.shape.rank - 1), (rows, columns))
        kernel = b.transpose(self.instruction.operands[1], [self._labels.rhs.index(c) for c in f"i{self._digits}o"])
        turned = tuple(d + 1 for d, w in enumerate(self.window) if w.reversal)
        kernel = b.add(Opcode.REVERSE, kernel, dimensions=turned) if turned else kernel
        kernel = b.reshape(kernel, (rows, self.outputs))
        dims = DotDims((0,), (0,)).attributes()
        made = b.add(Opcode.DOT, patches, kernel, shape=Shape(self._type), **dims, **self._precision)
        made = b.reshape(made, (*self.positions, self.batch, self.outputs))
        return b.transpose(made, [f"{self._digits}bf".index(c) for c in self._labels.out])

    def product_of_planes(self, b: Builder) -> HloInstruction:
        """Build the product of the kernel and of patches whose columns are positions.

        The rows of slices are copied as they are, and neither the kernel nor the result is transposed.
        """
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in f"bf{self._digits}"])
        x = b.reshape(x, (self.features, *self.space))
        x = b.pad(x, b.scalar(0, self._type), (PadDim(0, 0), *edges(self.window)))
        features, size = SliceDim(0, self.features), math.prod(self.positions)
        parts = [
            b.reshape(
                b.slice(x, (features, *under_element(at, self.window, self.positions))),
                (self.features, 1, *self.positions),
            )
            for at in self._elements()
        ]
        length = math.prod(self.kernel) * self.features
        patches = b.reshape(b.concatenate(parts, 1), (length, size))
        kernel = self._kernel_of_outputs(b)
        dims = DotDims((1,), (0,)).attributes()
        made = b.add(Opcode.DOT, kernel, patches, shape=Shape(self._type), **dims, **self._precision)
        made = b.reshape(made, (1, self.outputs, *self.positions))
        return b.transpose(made, [f"bf{self._digits}".index(c) for c in self._labels.out])

    def product_of_tiles(self, b: Builder) -> HloInstruction:
        """Build the tiles with the features first, and their product with the kernel in this order.

        Each row of a tile is read as it is, and the kernel needs no transpose if its outputs come first.
        """
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in f"bf{self._digits}"])
        tiles = self._split(x, (self.batch, self.features), (), b)
        inner = 2 + 2 * len(self.space)
        tiles = b.transpose(tiles, (0, *range(2, inner, 2), 1, *range(3, inner, 2)))
        length, rows = math.prod(self.kernel) * self.features, self.batch * math.prod(self.positions)
        # The tiles are stored, and read by the product as a matrix, which a library may compute.
        tiles = b.add(Opcode.OPTIMIZATION_BARRIER, b.reshape(tiles, (rows, length)))
        dims = DotDims((1,), (1,)).attributes()
        made = b.add(Opcode.DOT, tiles, self._kernel_of_outputs(b), shape=Shape(self._type), **dims, **self._precision)
        return self._as_result(b.reshape(made, (self.batch, *self.positions, self.outputs)), b)

    def product_to_tiles(self, b: Builder) -> HloInstruction:
        """Build one matrix product, and arrange what each position of the input yields as a tile of the result."""
        x, kernel = self.instruction.operands
        digits, outputs, length = self._digits, self.outputs, math.prod(self.kernel)
        turned = tuple(
            self._labels.rhs.index(str(d)) for d, w in enumerate(self.window) if not w.reversal and w.size > 1
        )
        kernel = b.add(Opcode.REVERSE, kernel, dimensions=turned) if turned else kernel
        before: tuple[int, ...]
        after: tuple[int, ...]
        if self._labels.lhs.endswith("f"):
            x = b.transpose(x, [self._labels.lhs.index(c) for c in f"b{digits}f"])
            x = b.reshape(x, (self.batch * math.prod(self.space), self.features))
            kernel = b.transpose(kernel, [self._labels.rhs.index(c) for c in f"i{digits}o"])
            kernel = b.reshape(kernel, (self.features, length * outputs))
            made = b.add(
                Opcode.DOT, x, kernel, shape=Shape(self._type), **DotDims((1,), (0,)).attributes(), **self._precision
            )
            made = b.reshape(made, (self.batch, *self.space, *self.kernel, outputs))
            before, after = (self.batch,), (outputs,)
        else:
            x = b.transpose(x, [self._labels.lhs.index(c) for c in f"bf{digits}"])
            x = b.reshape(x, (self.batch, self.features, math.prod(self.space)))
            kernel = b.transpose(kernel, [self._labels.rhs.index(c) for c in f"o{digits}i"])
            kernel = b.reshape(kernel, (outputs * length, self.features))
            kernel = b.broadcast(kernel, (self.batch, outputs * length, self.features), (1, 2))
            dims = DotDims((2,), (1,), (0,), (0,))
            made = b.add(Opcode.DOT, kernel, x, shape=Shape(self._type), **dims.attributes(), **self._precision)
            made = b.reshape(made, (self.batch, outputs, *self.kernel, *self.space))
            n = len(self.space)
            made = b.transpose(made, (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)))
            before, after = (self.batch, outputs), ()
        # [before, space, kernel, after] becomes [before, space and kernel of each dimension, after].
        n, first = len(self.space), len(before)
        order = [d for k in range(n) for d in (first + k, first + n + k)]
        made = b.transpose(made, (*range(first), *order, *range(first + 2 * n, first + 2 * n + len(after))))
        filled = [m * k for m, k in zip(self.space, self.kernel, strict=True)]
        made = b.reshape(made, (*before, *filled, *after))
        rest = [PadDim(0, n - m) for n, m in zip(self.positions, filled, strict=True)]
        none = PadDim(0, 0)
        made = b.pad(made, b.scalar(0, self._type), (*(none for _ in before), *rest, *(none for _ in after)))
        return b.transpose(made, [(f"b{digits}f" if after else f"bf{digits}").index(c) for c in self._labels.out])

    def scaled_and_added(self, b: Builder) -> HloInstruction:
        """Build the sum of the input's slices, each multiplied by its kernel element, in the order of the result."""
        order = self._labels.out
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in order])
        pads = dict(zip(self._digits, edges(self.window), strict=True))
        x = b.pad(x, b.scalar(0, self._type), [pads.get(c, PadDim(0, 0)) for c in order])
        weights = b.reshape(self._kernel(b), (math.prod(self.kernel), self.groups))
        total: HloInstruction | None = None
        for n, at in enumerate(self._elements()):
            under = dict(zip(self._digits, under_element(at, self.window, self.positions), strict=True))
            whole = {c: SliceDim(0, size) for c, size in (("b", self.batch), ("f", self.groups))}
            part = b.slice(x, [{**whole, **under}[c] for c in order])
            weight = b.slice(weights, (SliceDim(n, n + 1), SliceDim(0, self.groups)))
            factor = b.broadcast(b.reshape(weight, (self.groups,)), part.shape.dimensions, (order.index("f"),))
            term = b.add(Opcode.MULTIPLY, part, factor)
            total = term if total is None else b.add(Opcode.ADD, total, term)
        if total is None:
            raise ValueError(f"the kernel of %{self.instruction.name} has no elements")
        return total

    def multiplied_and_summed(self, b: Builder) -> HloInstruction:
        """Build the sums of the input's slices times the kernel, one slice per window position."""
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in f"f{self._digits}b"])
        none = PadDim(0, 0)
        x = b.pad(x, b.scalar(0, self._type), (none, *edges(self.window), none))
        kernel = b.transpose(self._kernel(b), [f"{self._digits}io".index(c) for c in f"i{self._digits}o"])
        whole, inner = (SliceDim(0, self.features), SliceDim(0, self.groups)), range(1 + len(self.space))
        sums = []
        for position in itertools.product(*map(range, self.positions)):
            part = b.slice(x, (whole[0], *at_position(position, self.window), whole[1]))
            total = b.sum(b.add(Opcode.MULTIPLY, part, kernel), inner)
            sums.append(b.reshape(total, (1, self.groups)))
        made = b.reshape(b.concatenate(sums, 0), (1, *self.positions, self.groups))
        return self._as_result(made, b)

    def in_batches(self, parts: int, b: Builder) -> HloInstruction:
        """Build the same convolution of each of several equal parts of the batch."""
        i, size = self.instruction, self.batch // parts
        x, kernel = i.operands
        axis, to = self._labels.lhs.index("b"), self._labels.out.index("b")
        dims = tuple(size if d == to else n for d, n in enumerate(i.shape.dimensions))
        made = []
        for k in range(parts):
            within = [
                SliceDim(k * size, (k + 1) * size) if d == axis else SliceDim(0, n)
                for d, n in enumerate(x.shape.dimensions)
            ]
            made.append(b.with_operands(i, [b.slice(x, within), kernel], Shape(self._type, dims)))
        return b.concatenate(made, to)

    def in_positions(self, parts: int, b: Builder) -> HloInstruction:
        """Build the same convolution for each of several parts of its positions along the longest dimension."""
        i = self.instruction
        x, kernel = i.operands
        d = self.positions.index(max(self.positions))
        w, axis, to = self.window[d], self._labels.lhs.index(self._digits[d]), self._labels.out.index(self._digits[d])
        none = PadDim(0, 0)
        x = b.pad(x, b.scalar(0, self._type), [edges((w,))[0] if n == axis else none for n in range(x.shape.rank)])
        unpadded = replace(w, pad_low=0, pad_high=0, lhs_dilate=1)
        attributes = {k: v for k, v in i.attributes.items() if k != "control-predecessors"}
        attributes["window"] = Window((*self.window[:d], unpadded, *self.window[d + 1 :]))
        made = []
        for k in range(parts):
            first, end = self.positions[d] * k // parts, self.positions[d] * (k + 1) // parts
            read = SliceDim(first * w.stride, (end - 1) * w.stride + (w.size - 1) * w.rhs_dilate + 1)
            within = [read if n == axis else SliceDim(0, size) for n, size in enumerate(x.shape.dimensions)]
            dims = tuple(end - first if n == to else size for n, size in enumerate(i.shape.dimensions))
            part = b.slice(x, within)
            made.append(b.add(i.opcode, part, kernel, shape=Shape(self._type, dims), **attributes))
        return b.concatenate(made, to)

    # ---- operands

    @property
    def _type(self) -> PrimitiveType:
        return self.instruction.shape.element_type

    @property
    def _labels(self) -> ConvDimLabels:
        labels: ConvDimLabels = self.instruction.attributes["dim_labels"]
        return labels

    @property
    def _precision(self) -> dict[str, Any]:
        return {k: v for k, v in self.instruction.attributes.items() if k == "operand_precision"}

    @property
    def _digits(self) -> str:
        return "".join(sorted(c for c in self._labels.lhs if c.isdigit()))

    def _padded(self, b: Builder) -> HloInstruction:
        """Return [groups, batch, space..., features], padded and dilated as in the window."""
        x = b.transpose(self.instruction.operands[0], [self._labels.lhs.index(c) for c in f"b{self._digits}f"])
        if self.by_batch or self.groups == 1:
            x = b.reshape(x, (self.groups, self.batch, *self.space, self.features))
        else:
            x = b.reshape(x, (self.batch, *self.space, self.groups, self.features))
            inner = range(1 + len(self.space))
            x = b.transpose(x, (len(inner), *inner, len(inner) + 1))
        none = PadDim(0, 0)
        return b.pad(x, b.scalar(0, self._type), (none, none, *edges(self.window), none))

    def _kernel(self, b: Builder) -> HloInstruction:
        """Return [space..., features, groups * outputs], with reversed dimensions flipped."""
        order = [self._labels.rhs.index(c) for c in f"{self._digits}io"]
        kernel = b.transpose(self.instruction.operands[1], order)
        turned = tuple(d for d, w in enumerate(self.window) if w.reversal)
        return b.add(Opcode.REVERSE, kernel, dimensions=turned) if turned else kernel

    def _kernel_of_outputs(self, b: Builder) -> HloInstruction:
        """Return [outputs, features * kernel elements], with reversed dimensions flipped."""
        order = [self._labels.rhs.index(c) for c in f"oi{self._digits}"]
        kernel = b.transpose(self.instruction.operands[1], order)
        turned = tuple(d + 2 for d, w in enumerate(self.window) if w.reversal)
        kernel = b.add(Opcode.REVERSE, kernel, dimensions=turned) if turned else kernel
        return b.reshape(kernel, (self.outputs, self.features * math.prod(self.kernel)))

    def _patches(self, x: HloInstruction, b: Builder) -> HloInstruction:
        """Return [groups, batch, positions..., kernel elements * features]; some dimensions may be merged."""
        whole = (SliceDim(0, self.groups), SliceDim(0, self.batch))
        features = SliceDim(0, self.features)
        if self.is_tiled:
            return self._tiles(x, b)
        if math.prod(self.kernel) <= math.prod(self.positions):
            parts = [
                b.slice(x, (*whole, *under_element(at, self.window, self.positions), features))
                for at in self._elements()
            ]
            return b.concatenate(parts, x.shape.rank - 1)
        length = math.prod(self.kernel) * self.features
        parts = [
            b.reshape(
                b.slice(x, (*whole, *at_position(position, self.window), features)),
                (self.groups, self.batch, 1, length),
            )
            for position in itertools.product(*map(range, self.positions))
        ]
        return b.concatenate(parts, 2)

    def _tiles(self, x: HloInstruction, b: Builder) -> HloInstruction:
        """Return the patches of windows that do not overlap, by a transpose of the input."""
        x = self._split(x, (self.groups, self.batch), (self.features,), b)
        spatial = range(2, 2 + 2 * len(self.space))
        x = b.transpose(x, (0, 1, *spatial[::2], *spatial[1::2], len(spatial) + 2))
        length = math.prod(self.kernel) * self.features
        return b.reshape(x, (self.groups, self.batch, math.prod(self.positions), length))

    def _split(self, x: HloInstruction, before: tuple[int, ...], after: tuple[int, ...], b: Builder) -> HloInstruction:
        """Divide each spatial dimension into positions and elements of a tile, and drop what no tile covers."""
        covered = [n * size for n, size in zip(self.positions, self.kernel, strict=True)]
        x = b.slice(x, [SliceDim(0, n) for n in (*before, *covered, *after)])
        return b.reshape(
            x, (*before, *(n for pair in zip(self.positions, self.kernel, strict=True) for n in pair), *after)
        )

    def _elements(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.kernel))

    def _as_result(self, made: HloInstruction, b: Builder) -> HloInstruction:
        """Transpose [batch, space..., features] to the order of the result."""
        return b.transpose(made, [f"b{self._digits}f".index(c) for c in self._labels.out])
