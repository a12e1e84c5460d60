"""Fourier transforms as matrix products, for backends without a library of transforms.

A transform of a short dimension is one product of real and imaginary parts, side by side, with a matrix of cosines and
sines. A longer one is divided into transforms of two factors with a multiplication by roots of unity between them
(Cooley and Tukey, 1965), so its products have the sizes of factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import SliceDim
from compiler.ir.types import PrimitiveType as T
from compiler.passes.infrastructure.base import InstructionPass, number_option
from compiler.passes.infrastructure.builder import Builder

_PARTS = {T.C64: T.F32, T.C128: T.F64, T.F32: T.F32, T.F64: T.F64}
_SHORT = 64
"""Length up to which a transform is one product."""
_Pair: TypeAlias = tuple[HloInstruction, HloInstruction]


@dataclass(frozen=True)
class FftToDot(InstructionPass):
    """Replace fft by matrix products of real numbers.

    A length with a prime factor above `max_prime` is left, since its matrix would be large.

    Attributes:
        max_prime: maximum length of a transform that is one product.
    """

    name: ClassVar[str] = "fft-to-dot"
    opcodes: ClassVar[frozenset[Opcode] | None] = frozenset({Opcode.FFT})
    max_prime: int = number_option(512, 2, 4096)

    def visit(self, instruction: HloInstruction) -> bool:
        """Rewrite a transform; return whether it was replaced."""
        i = instruction
        if i.parent is None or i.shape.is_dynamic or i.control_predecessors:
            return False
        x, lengths, kind = i.operand(0), tuple(i.attributes["fft_length"]), i.attributes["fft_type"]
        whole = (i if kind == "IRFFT" else x).shape.dimensions
        if 0 in x.shape.dimensions or 0 in whole or whole[len(whole) - len(lengths) :] != lengths:
            return False
        if any(self._factor(n) is None for n in lengths):
            return False
        i.parent.replace(i, _Transform(self, Builder(i.parent), _PARTS[x.shape.element_type]).of(x, kind, lengths))
        return True

    def _factor(self, n: int) -> int | None:
        """Return the factor that a length is divided by: 1 if it is one product, None if it cannot be divided."""
        if n <= _SHORT:
            return 1
        found = next((f for f in range(math.isqrt(n), 1, -1) if n % f == 0), 1)
        if found == 1:
            return 1 if n <= self.max_prime else None
        parts = (self._factor(found), self._factor(n // found))
        return None if None in parts else found

    def factor(self, n: int) -> int:
        """Return the factor of a length that can be divided; see `_factor`."""
        return self._factor(n) or 1


class _Transform:
    """Builds one transform."""

    def __init__(self, limits: FftToDot, builder: Builder, t: T) -> None:
        self.limits, self.b, self.t = limits, builder, t

    def of(self, x: HloInstruction, kind: str, lengths: tuple[int, ...]) -> HloInstruction:
        """Return the transform of the last dimensions of an array."""
        first = x.shape.rank - len(lengths)
        axes = list(range(first, x.shape.rank))
        if kind == "IRFFT":
            pair = self._parts(x)
            for d in axes[:-1]:
                pair = self._along(pair, d, lengths[d - first], True)
            return self._real_inverse(pair, axes[-1], lengths[-1])
        if kind == "RFFT":
            pair = self._real(x, axes[-1], lengths[-1])
            axes = axes[:-1]
        else:
            pair = self._parts(x)
        for d in axes:
            pair = self._along(pair, d, lengths[d - first], kind == "IFFT")
        return self.b.add(Opcode.COMPLEX, *pair)

    def _parts(self, x: HloInstruction) -> _Pair:
        return self.b.add(Opcode.REAL, x), self.b.add(Opcode.IMAG, x)

    def _along(self, x: _Pair, axis: int, n: int, inverse: bool) -> _Pair:
        """Return the complex transform along one dimension; the inverse one is divided by its length."""
        factor = self.limits.factor(n)
        if factor == 1:
            angles = _angles(n, n, inverse)
            scale = 1 / n if inverse else 1.0
            matrix = np.block([[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]]) * scale
            both = self.b.concatenate(x, axis)
            return self._halves(self._product(both, matrix, axis), axis)
        other = n // factor
        dims = x[0].shape.dimensions
        split = (*dims[:axis], factor, other, *dims[axis + 1 :])
        # Element n1 * other + n2 goes to k1 + factor * k2.
        rows = self._along(self._reshaped(x, split), axis, factor, inverse)
        turned = self._along(self._rotated(rows, axis, factor, other, inverse), axis + 1, other, inverse)
        order = list(range(len(split)))
        order[axis], order[axis + 1] = axis + 1, axis
        ordered = (self.b.transpose(turned[0], order), self.b.transpose(turned[1], order))
        return self._reshaped(ordered, dims)

    def _rotated(self, x: _Pair, axis: int, rows: int, columns: int, inverse: bool) -> _Pair:
        """Return the product with the roots of unity between two transforms."""
        sign = 1 if inverse else -1
        angles = sign * 2 * np.pi * np.outer(np.arange(rows), np.arange(columns)) / (rows * columns)
        sizes = x[0].shape.dimensions
        b, (re, im) = self.b, x
        cos, sin = (b.broadcast(self._constant(f(angles)), sizes, (axis, axis + 1)) for f in (np.cos, np.sin))
        times = [b.add(Opcode.MULTIPLY, *p) for p in ((re, cos), (im, sin), (re, sin), (im, cos))]
        return b.add(Opcode.SUBTRACT, times[0], times[1]), b.add(Opcode.ADD, times[2], times[3])

    def _real(self, x: HloInstruction, axis: int, n: int) -> _Pair:
        """Return the first half of the transform of real numbers along the last dimension."""
        half = n // 2 + 1
        if self.limits.factor(n) == 1:
            angles = _angles(n, half, False)
            return self._halves(self._product(x, np.hstack([np.cos(angles), np.sin(angles)]), axis), axis)
        zero = self.b.splat(0, x.shape)
        re, im = self._along((x, zero), axis, n, False)
        return self._sliced(re, axis, 0, half), self._sliced(im, axis, 0, half)

    def _real_inverse(self, x: _Pair, axis: int, n: int) -> HloInstruction:
        """Return the real numbers whose transform has these values as its first half."""
        half = n // 2 + 1
        if self.limits.factor(n) == 1:
            # The values that the first half stands for count twice; the first and the middle one are real.
            weights = np.where((np.arange(half) == 0) | (2 * np.arange(half) == n), 1.0, 2.0)[:, None] / n
            angles = _angles(half, n, True, n)
            sines = np.where(weights * n == 1.0, 0.0, np.sin(angles))
            both = self.b.concatenate(x, axis)
            return self._product(both, np.vstack([weights * np.cos(angles), -weights * sines]), axis)
        rest = n - half
        single = [0] if n % 2 else [0, half - 1]
        kept = np.ones(half)
        kept[single] = 0
        im = self.b.add(Opcode.MULTIPLY, x[1], self.b.broadcast(self._constant(kept), x[1].shape.dimensions, (axis,)))
        whole = []
        for part, negated in ((x[0], False), (im, True)):
            mirrored = self.b.add(Opcode.REVERSE, self._sliced(part, axis, 1, 1 + rest), dimensions=(axis,))
            whole.append(self.b.concatenate((part, self.b.add(Opcode.NEGATE, mirrored) if negated else mirrored), axis))
        return self._along((whole[0], whole[1]), axis, n, True)[0]

    # ---- pieces

    def _product(self, x: HloInstruction, matrix: NDArray[Any], axis: int) -> HloInstruction:
        """Return the product of one dimension with a matrix, whose columns take the place of the dimension."""
        rank = x.shape.rank
        dot = self.b.add(Opcode.DOT, x, self._constant(matrix), lhs_contracting_dims=(axis,), rhs_contracting_dims=(0,))
        order = [*range(axis), rank - 1, *range(axis, rank - 1)]
        return dot if axis == rank - 1 else self.b.transpose(dot, order)

    def _constant(self, values: NDArray[Any]) -> HloInstruction:
        return self.b.constant(values.astype(np.float32 if self.t is T.F32 else np.float64))

    def _reshaped(self, x: _Pair, sizes: tuple[int, ...]) -> _Pair:
        return self.b.reshape(x[0], sizes), self.b.reshape(x[1], sizes)

    def _halves(self, x: HloInstruction, axis: int) -> _Pair:
        n = x.shape.dimensions[axis] // 2
        return self._sliced(x, axis, 0, n), self._sliced(x, axis, n, 2 * n)

    def _sliced(self, x: HloInstruction, axis: int, start: int, limit: int) -> HloInstruction:
        spec = [SliceDim(0, n) for n in x.shape.dimensions]
        spec[axis] = SliceDim(start, limit)
        return self.b.slice(x, spec)


def _angles(rows: int, columns: int, inverse: bool, length: int = 0) -> NDArray[np.float64]:
    """Return the angles of exp(i * angle) between elements (rows) and results (columns) of a transform.

    Products of indices are taken modulo the length, so that the angles are exact to the last bits.
    """
    n = length or rows
    turns = np.outer(np.arange(rows), np.arange(columns)) % n
    return (1 if inverse else -1) * 2 * np.pi * turns / n
