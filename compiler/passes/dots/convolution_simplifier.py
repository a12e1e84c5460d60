"""Convolution simplification: rewrites convolutions as dots where possible, and canonicalizes all others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, Shape
from compiler.ir.attributes import ConvDimLabels, Raw, SliceDim, Window, WindowDim
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, Rule, RuleSet, RulesOf

TO_DOT = RuleSet()
CANONICAL = RuleSet()


MIN_POSITIONS = 64
"""Positions of an image from which a dot per image is worthwhile if the features come before the space."""


@register
@dataclass(frozen=True)
class ConvolutionToDot(RewritePass):
    """Rewrite 1x1 convolutions without padding and groups as dots over the features.

    With the features before the space, there is one dot per image, which needs no transpose, unless the images are so
    small that copies of the kernel would be larger than they are. Only this form skips positions by a stride.

    A convolution whose kernel covers the whole input without padding has a single window position and is a dot, too. If
    there are as many groups as features, each scaled by one number, it is a multiplication.

    Attributes:
        shared: also rewrite convolutions whose input feeds other convolutions, which may need it in another layout.
        images: also rewrite 1x1 convolutions of images whose features are not the last dimension. A dot per image is
            slower than one dot for all, which is possible if the layout changes.
    """

    name: ClassVar[str] = "convolution-to-dot"
    rules: ClassVar[RuleSet] = TO_DOT
    shared: bool = True
    images: bool = True

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""
        return lambda op: tuple(map(self._restricted, self.rules.of(op)))

    def _restricted(self, rule: Rule) -> Rule:
        rule = rule if self.shared else _of_own_input(rule)
        return rule if self.images else _of_features_last(rule)


def _of_own_input(rule: Rule) -> Rule:
    def restricted(i: HloInstruction, b: Builder) -> HloInstruction | None:
        shared = any(u is not i and u.opcode is Opcode.CONVOLUTION for u in i.operand(0).users)
        return None if shared else rule(i, b)

    return restricted


def _of_features_last(rule: Rule) -> Rule:
    def restricted(i: HloInstruction, b: Builder) -> HloInstruction | None:
        labels = _labels(i)
        images = len(labels.lhs) > 2 and not (labels.lhs.endswith("f") and labels.out.endswith("f"))
        return None if images and is_pointwise(i) else rule(i, b)

    return restricted


@register
@dataclass(frozen=True)
class ConvolutionCanonicalization(RewritePass):
    """Canonicalize convolutions to input b01f, kernel 01io, output b01f by transposes, and drop what has no effect.

    Dilation of an input or kernel dimension of size 1, strides with one window position, and reversal of a kernel
    dimension of size 1 are reset to their defaults.
    """

    name: ClassVar[str] = "convolution-canonicalization"
    rules: ClassVar[RuleSet] = CANONICAL


def _labels(i: HloInstruction) -> ConvDimLabels:
    labels: ConvDimLabels = i.attributes["dim_labels"]
    return labels


def _window(i: HloInstruction) -> Window:
    window: Window = i.attr("window", Window())
    return window


def _ungrouped(i: HloInstruction) -> bool:
    return bool(i.attr("feature_group_count", 1) == 1 and i.attr("batch_group_count", 1) == 1)


def _suits_dot_per_image(i: HloInstruction) -> bool:
    labels = _labels(i)
    if labels.lhs != labels.out or not labels.lhs.startswith("bf"):
        return False
    features, inputs = i.shape.dimensions[1], i.operands[0].shape.dimensions[1]
    positions = math.prod(i.shape.dimensions[2:])
    return positions >= MIN_POSITIONS and features * inputs <= (features + inputs) * positions


def is_product(i: HloInstruction) -> bool:
    """Check whether a convolution is 1x1 and `ConvolutionToDot` makes one matrix product, or one per image, of it."""
    return is_pointwise(i) and (_suits_dot_per_image(i) or all(w.stride == 1 for w in _window(i).dims))


def is_pointwise(i: HloInstruction) -> bool:
    """Check for a 1x1 convolution without padding, dilation and groups; it may skip positions by a stride."""
    plain = all(replace(w, stride=1, rhs_dilate=1, reversal=False) == WindowDim(1) for w in _window(i).dims)
    return plain and _ungrouped(i)


@TO_DOT.on(Opcode.CONVOLUTION)
def _pointwise_images(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Multiply each image, [features, positions], by the kernel from the left."""
    labels, window = _labels(i), _window(i)
    if not is_pointwise(i) or not _suits_dot_per_image(i):
        return None
    x, kernel = i.operands
    batch, features, *space = i.shape.dimensions
    inputs, positions = x.shape.dimensions[1], math.prod(space)
    strides = {c: w.stride for c, w in zip(sorted(c for c in labels.lhs if c.isdigit()), window.dims, strict=True)}
    taken = [SliceDim(0, n, strides.get(c, 1)) for n, c in zip(x.shape.dimensions, labels.lhs, strict=True)]
    if any(d.stride > 1 for d in taken):
        x = b.slice(x, taken)
    matrices = b.reshape(x, (batch, inputs, positions))
    outputs_first = b.transpose(kernel, [labels.rhs.index(c) for c in ("o", "i", *sorted(set(labels.rhs) - set("oi")))])
    copies = b.broadcast(b.reshape(outputs_first, (features, inputs)), (batch, features, inputs), (1, 2))
    product = b.add(
        Opcode.DOT, copies, matrices, shape=Shape(i.shape.element_type), lhs_batch_dims=(0,), rhs_batch_dims=(0,),
        lhs_contracting_dims=(2,), rhs_contracting_dims=(1,), **_swapped_precision(i),
    )  # fmt: skip
    return b.reshape(product, i.shape.dimensions)


@TO_DOT.on(Opcode.CONVOLUTION)
def _pointwise(i: HloInstruction, b: Builder) -> HloInstruction | None:
    plain = all(replace(w, rhs_dilate=1, reversal=False) == WindowDim(1) for w in _window(i).dims)
    if not plain or not _ungrouped(i):
        return None
    x, kernel = i.operands
    labels = _labels(i)
    flat = b.reshape(kernel, [n for n, c in zip(kernel.shape.dimensions, labels.rhs, strict=True) if c in "io"])
    features = "".join(c for c in labels.rhs if c in "io")
    product = b.add(
        Opcode.DOT, x, flat, shape=Shape(i.shape.element_type), lhs_contracting_dims=(labels.lhs.index("f"),),
        rhs_contracting_dims=(features.index("i"),), **_precision(i),
    )  # fmt: skip
    made = [c for c in labels.lhs if c != "f"] + ["f"]
    return b.transpose(product, [made.index(c) for c in labels.out])


@TO_DOT.on(Opcode.CONVOLUTION)
def _scaled_features(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Rewrite a 1x1 kernel with one input and one output feature per group as a multiplication."""
    x, kernel = i.operands
    labels = _labels(i)
    plain = all(replace(w, rhs_dilate=1, reversal=False) == WindowDim(1) for w in _window(i).dims)
    groups = i.attr("feature_group_count", 1)
    features = x.shape.dimensions[labels.lhs.index("f")]
    if not plain or groups == 1 or groups != features or kernel.shape.num_elements != groups:
        return None
    same = x.shape.element_type is i.shape.element_type is kernel.shape.element_type
    if i.attr("batch_group_count", 1) != 1 or not same:
        return None
    moved = b.transpose(x, [labels.lhs.index(c) for c in labels.out])
    factors = b.broadcast(b.reshape(kernel, (features,)), moved.shape.dimensions, (labels.out.index("f"),))
    return b.add(Opcode.MULTIPLY, moved, factors)


def _swapped_precision(i: HloInstruction) -> dict[str, object]:
    """Return the precision of a dot whose operands are those of a convolution in the other order."""
    given = {k: str(v).strip("{}").split(",") for k, v in _precision(i).items()}
    return {k: Raw("{" + ",".join(reversed(v)) + "}") for k, v in given.items()}


def _precision(i: HloInstruction) -> dict[str, object]:
    return {k: v for k, v in i.attributes.items() if k == "operand_precision"}


@TO_DOT.on(Opcode.CONVOLUTION)
def _covering(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Contract the spatial dimensions, too, if the kernel is as large as the input."""
    labels, window = _labels(i), _window(i)
    x, kernel = i.operands
    spatial = [c for c in labels.lhs if c.isdigit()]
    if not _ungrouped(i) or not spatial or i.shape.num_elements == 0:
        return None
    for w, c in zip(window.dims, sorted(spatial), strict=True):
        simple = w.pad_low == w.pad_high == 0 and w.lhs_dilate == w.rhs_dilate == 1 and not w.reversal
        if not simple or w.size != x.shape.dimensions[labels.lhs.index(c)]:
            return None
    pairs = [("f", "i"), *((c, c) for c in spatial)]
    product = b.add(
        Opcode.DOT, x, kernel, shape=Shape(i.shape.element_type),
        lhs_contracting_dims=tuple(labels.lhs.index(c) for c, _ in pairs),
        rhs_contracting_dims=tuple(labels.rhs.index(c) for _, c in pairs), **_precision(i),
    )  # fmt: skip
    order = [c for c in labels.out if c in "bf"]
    return b.reshape(b.transpose(product, ["bf".index(c) for c in order]), i.shape.dimensions)


@CANONICAL.on(Opcode.CONVOLUTION)
def _idle_window(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Reset window fields without effect to their defaults."""
    labels = _labels(i)
    x = i.operands[0]
    dims = []
    for w, c in zip(_window(i).dims, sorted(c for c in labels.lhs if c.isdigit()), strict=True):
        n = x.shape.dimensions[labels.lhs.index(c)]
        new = replace(w, lhs_dilate=1) if n == 1 else w
        if w.size == 1:
            new = replace(new, rhs_dilate=1, reversal=False)
        if i.shape.dimensions[labels.out.index(c)] == 1 and new.output_size(n) == 1:
            one = replace(new, stride=1)
            new = one if one.output_size(n) == 1 else new
        dims.append(new)
    if tuple(dims) == _window(i).dims:
        return None
    return b.add(Opcode.CONVOLUTION, *i.operands, shape=i.shape, **{**_kept(i), "window": Window(tuple(dims))})


def _kept(i: HloInstruction) -> dict[str, object]:
    return {k: v for k, v in i.attributes.items() if k not in ("control-predecessors", "metadata")}


@CANONICAL.on(Opcode.CONVOLUTION)
def _order(i: HloInstruction, b: Builder) -> HloInstruction | None:
    labels = _labels(i)
    digits = "".join(sorted(c for c in labels.lhs if c.isdigit()))
    wanted = ConvDimLabels(f"b{digits}f", f"{digits}io", f"b{digits}f")
    if labels == wanted:
        return None
    x = b.transpose(i.operands[0], [labels.lhs.index(c) for c in wanted.lhs])
    kernel = b.transpose(i.operands[1], [labels.rhs.index(c) for c in wanted.rhs])
    result = b.add(
        Opcode.CONVOLUTION, x, kernel, shape=Shape(i.shape.element_type), **{**_kept(i), "dim_labels": wanted}
    )
    return b.transpose(result, [wanted.out.index(c) for c in labels.out])
