"""Batch norm expansion: training, inference and gradient as elementwise ops and reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.patterns import scalar_function
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register
@dataclass(frozen=True)
class BatchNormExpander(RewritePass):
    """Replace batch-norm-training, -inference and -grad by their definitions.

    Means and variances are computed in f32 if the operand is narrower.
    """

    name: ClassVar[str] = "batch-norm-expander"
    rules: ClassVar[RuleSet] = RULES


@dataclass(frozen=True)
class _Norm:
    """A batch norm: its input in the compute type, and helpers for per-feature vectors."""

    x: HloInstruction
    feature: int
    epsilon: float
    b: Builder

    @property
    def count(self) -> float:
        return self.x.shape.num_elements / max(1, self.x.shape.dimensions[self.feature])

    def spread(self, vector: HloInstruction) -> HloInstruction:
        """Broadcast a per-feature vector to the shape of the input."""
        wide = self.b.convert(vector, self.x.shape.element_type)
        return self.b.broadcast(wide, self.x.shape.dimensions, (self.feature,))

    def sum(self, value: HloInstruction) -> HloInstruction:
        """Sum over all dimensions except the features."""
        dims = [d for d in range(self.x.shape.rank) if d != self.feature]
        zero = self.b.scalar(0, self.x.shape.element_type)
        return self.b.reduce(value, zero, dims, _addition(self.b.computation, self.x.shape.element_type))

    def mean(self, value: HloInstruction) -> HloInstruction:
        """Average over all dimensions except the features."""
        total = self.sum(value)
        return self.b.add(Opcode.DIVIDE, total, self.b.splat(self.count, total.shape))

    def inverse_deviation(self, variance: HloInstruction) -> HloInstruction:
        """Return the vector 1 / sqrt(variance + epsilon)."""
        wide = self.b.convert(variance, self.x.shape.element_type)
        return self.b.add(Opcode.RSQRT, self.b.add(Opcode.ADD, wide, self.b.splat(self.epsilon, wide.shape)))


def _norm(i: HloInstruction, b: Builder) -> _Norm | None:
    x = i.operand(0)
    kind = x.shape.element_type
    if not kind.is_float or x.shape.num_elements == 0:
        return None
    wide = PrimitiveType.F32 if kind.bits < 32 else kind
    return _Norm(b.convert(x, wide), i.attributes["feature_index"], float(np.float32(i.attributes["epsilon"])), b)


def _addition(computation: HloComputation, kind: PrimitiveType) -> HloComputation:
    module = computation.parent
    if module is None:
        raise ValueError(f"computation %{computation.name} is not in a module, so it cannot have a reducer")
    name = f"batch_norm_add_{kind.text}"
    found = module.find(name)
    if found is not None and scalar_function(found) is Opcode.ADD and found.root.shape.element_type is kind:
        return found
    made = HloComputation(name)
    operands = [made.add_parameter(n, Shape(kind)) for n in range(2)]
    made.root = made.add(Opcode.ADD, operands)
    return module.add(made)


@RULES.on(Opcode.BATCH_NORM_INFERENCE)
def _inference(i: HloInstruction, b: Builder) -> HloInstruction | None:
    norm = _norm(i, b)
    if norm is None:
        return None
    _, scale, offset, mean, variance = i.operands
    normalised = _normalised(norm, mean, norm.inverse_deviation(variance))
    return b.convert(_scaled(norm, normalised, scale, offset), i.shape.element_type)


def _normalised(norm: _Norm, mean: HloInstruction, inverse: HloInstruction) -> HloInstruction:
    centred = norm.b.add(Opcode.SUBTRACT, norm.x, norm.spread(mean))
    return norm.b.add(Opcode.MULTIPLY, centred, norm.spread(inverse))


def _scaled(norm: _Norm, value: HloInstruction, scale: HloInstruction, offset: HloInstruction) -> HloInstruction:
    scaled = norm.b.add(Opcode.MULTIPLY, value, norm.spread(scale))
    return norm.b.add(Opcode.ADD, scaled, norm.spread(offset))


@RULES.on(Opcode.BATCH_NORM_TRAINING)
def _training(i: HloInstruction, b: Builder) -> HloInstruction | None:
    norm = _norm(i, b)
    if norm is None:
        return None
    _, scale, offset = i.operands
    mean = norm.mean(norm.x)
    centred = b.add(Opcode.SUBTRACT, norm.x, norm.spread(mean))
    variance = norm.mean(b.add(Opcode.MULTIPLY, centred, centred))
    normalised = b.add(Opcode.MULTIPLY, centred, norm.spread(norm.inverse_deviation(variance)))
    results = (_scaled(norm, normalised, scale, offset), mean, variance)
    return b.add(
        Opcode.TUPLE, *(b.convert(r, s.element_type) for r, s in zip(results, i.shape.tuple_shapes, strict=True))
    )


@RULES.on(Opcode.BATCH_NORM_GRAD)
def _gradient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return the gradients of (x - mean) / sqrt(var + eps) * scale + offset, where mean and var are those of x."""
    norm = _norm(i, b)
    if norm is None:
        return None
    _, scale, mean, variance, grad = i.operands
    inverse = norm.inverse_deviation(variance)
    normalised = _normalised(norm, mean, inverse)
    wide = b.convert(grad, norm.x.shape.element_type)
    grad_offset = norm.sum(wide)
    grad_scale = norm.sum(b.add(Opcode.MULTIPLY, wide, normalised))
    count = b.splat(norm.count, grad_scale.shape)
    along = b.add(Opcode.MULTIPLY, normalised, norm.spread(b.add(Opcode.DIVIDE, grad_scale, count)))
    centred = b.add(Opcode.SUBTRACT, wide, norm.spread(b.add(Opcode.DIVIDE, grad_offset, count)))
    factor = b.add(Opcode.MULTIPLY, inverse, b.convert(scale, inverse.shape.element_type))
    grad_x = b.add(Opcode.MULTIPLY, b.add(Opcode.SUBTRACT, centred, along), norm.spread(factor))
    results = (grad_x, grad_scale, grad_offset)
    return b.add(
        Opcode.TUPLE, *(b.convert(r, s.element_type) for r, s in zip(results, i.shape.tuple_shapes, strict=True))
    )
