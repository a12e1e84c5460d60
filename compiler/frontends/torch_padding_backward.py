"""Lowerings of the gradients of padding that mirrors or repeats an array: the padded edges are added to the inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.frontends.torch_builder import Lowerings, TorchBuilder
from compiler.frontends.torch_movement import piece, zeros_around
from compiler.ir import HloInstruction, Opcode

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def _reflection_pad_backward(b: TorchBuilder, grad: H, x: H, padding: Sequence[int]) -> H:
    """Add each padded edge, reversed, to the elements that it mirrors; those at the border have no copy."""

    def mirrored(edge: H, dim: int, n: int, first: bool) -> H:
        count = edge.shape.dimensions[dim]
        low = 1 if first else n - 1 - count
        return zeros_around(b, b.add(Opcode.REVERSE, edge, dimensions=(dim,)), dim, low, n - count - low)

    return _folded(b, grad, x, padding, mirrored)


@LOWERINGS.op("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _replication_pad_backward(b: TorchBuilder, grad: H, x: H, padding: Sequence[int]) -> H:
    """Add the sum of each padded edge to the element at the border."""

    def summed(edge: H, dim: int, n: int, first: bool) -> H:
        dims = tuple(1 if d == dim else size for d, size in enumerate(edge.shape.dimensions))
        total = b.reshape(b.reduce(Opcode.ADD, edge, (dim,), 0), dims)
        return zeros_around(b, total, dim, 0 if first else n - 1, n - 1 if first else 0)

    return _folded(b, grad, x, padding, summed)


def _folded(b: TorchBuilder, grad: H, x: H, padding: Sequence[int], fold: Callable[[H, int, int, bool], H]) -> H:
    """Return the gradient of `x`, dimension by dimension; `padding` starts with that of the last one."""
    for k in range(len(padding) // 2):
        left, right = padding[2 * k : 2 * k + 2]
        dim = x.shape.rank - 1 - k
        n, size = x.shape.dimensions[dim], grad.shape.dimensions[dim]
        inside = piece(b, grad, dim, max(left, 0), size - max(right, 0))
        found = zeros_around(b, inside, dim, max(-left, 0), max(-right, 0))
        if left > 0:
            found = b.add(Opcode.ADD, found, fold(piece(b, grad, dim, 0, left), dim, n, True))
        if right > 0:
            found = b.add(Opcode.ADD, found, fold(piece(b, grad, dim, size - right, size), dim, n, False))
        grad = found
    return grad
