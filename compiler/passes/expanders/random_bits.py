"""Random bits from elementwise ops: the counter-based generators Threefry and Philox, with unrolled rounds.

The generators follow Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The layout of counters
over an array is that of `xla/hlo/builder/lib/prng.cc`, so that the numbers equal XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir import HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.builder import Builder

U32, U64 = PrimitiveType.U32, PrimitiveType.U64
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_INCREMENTS = (0x9E3779B9, 0xBB67AE85)


def threefry2x32(
    keys: Sequence[HloInstruction], counters: Sequence[HloInstruction], b: Builder
) -> tuple[HloInstruction, HloInstruction]:
    """Build the twenty rounds of Threefry-2x32 on u32 arrays; keys are scalars or have the shape of the counters."""
    dims = counters[0].shape.dimensions
    k0, k1 = keys
    k2 = b.add(Opcode.XOR, b.add(Opcode.XOR, k0, k1), b.splat(_PARITY, k0.shape))
    schedule = (k0, k1, k2)
    x0 = b.add(Opcode.ADD, counters[0], _spread(k0, dims, b))
    x1 = b.add(Opcode.ADD, counters[1], _spread(k1, dims, b))
    for group in range(5):
        for amount in _ROTATIONS[group % 2]:
            x0 = b.add(Opcode.ADD, x0, x1)
            x1 = b.add(Opcode.XOR, x0, _rotate(x1, amount, b))
        first, second = schedule[(group + 1) % 3], schedule[(group + 2) % 3]
        second = b.add(Opcode.ADD, second, b.splat(group + 1, second.shape))
        x0 = b.add(Opcode.ADD, x0, _spread(first, dims, b))
        x1 = b.add(Opcode.ADD, x1, _spread(second, dims, b))
    return x0, x1


def _spread(x: HloInstruction, dims: Sequence[int], b: Builder) -> HloInstruction:
    return x if x.shape.dimensions == tuple(dims) else b.broadcast(x, dims, ())


def _rotate(x: HloInstruction, amount: int, b: Builder) -> HloInstruction:
    up = b.add(Opcode.SHIFT_LEFT, x, b.splat(amount, x.shape))
    down = b.add(Opcode.SHIFT_RIGHT_LOGICAL, x, b.splat(32 - amount, x.shape))
    return b.add(Opcode.OR, up, down)


def low_half(x: HloInstruction, b: Builder) -> HloInstruction:
    """Return the low 32 bits of u64 values."""
    return b.convert(x, U32)


def high_half(x: HloInstruction, b: Builder) -> HloInstruction:
    """Return the high 32 bits of u64 values."""
    return b.convert(b.add(Opcode.SHIFT_RIGHT_LOGICAL, x, b.splat(32, x.shape)), U32)


def joined(low: HloInstruction, high: HloInstruction, b: Builder) -> HloInstruction:
    """Combine two halves into u64 values."""
    wide = b.convert(high, U64)
    return b.add(Opcode.OR, b.convert(low, U64), b.add(Opcode.SHIFT_LEFT, wide, b.splat(32, wide.shape)))


def threefry_bits(
    key: HloInstruction, start: HloInstruction, dims: Sequence[int], bits: int, b: Builder
) -> tuple[HloInstruction, HloInstruction]:
    """Build Threefry bits of an array, as u64 for 64 bits and u32 otherwise; return them and the next counter.

    Args:
        key: a u64 scalar.
        start: the counter, a u64 scalar.
        dims: dimensions of the result.
        bits: bits per element; below 32 the caller uses the low bits.
        b: adds the instructions.
    """
    if bits == 64:
        counters, after = _counters(start, dims, math.prod(dims), b)
        x0, x1 = threefry2x32((low_half(key, b), high_half(key, b)), (low_half(counters, b), high_half(counters, b)), b)
        return joined(x0, x1, b), after
    shape = tuple(dims) or (1,)
    axis = next((d for d, n in enumerate(shape) if n % 2 == 0), max(range(len(shape)), key=lambda d: shape[d]))
    half = (shape[axis] + 1) // 2
    halves = (*shape[:axis], half, 1, *shape[axis + 1 :])
    counters, after = _counters(start, halves, math.prod(halves), b)
    outputs = threefry2x32((low_half(key, b), high_half(key, b)), (low_half(counters, b), high_half(counters, b)), b)
    both = b.concatenate(outputs, axis + 1)
    whole = b.reshape(both, (*shape[:axis], 2 * half, *shape[axis + 1 :]))
    spec = [SliceDim(0, n) for n in shape]
    return b.reshape(b.slice(whole, spec), tuple(dims)), after


def _counters(
    start: HloInstruction, dims: Sequence[int], count: int, b: Builder
) -> tuple[HloInstruction, HloInstruction]:
    """Return `start` plus the row-major position of each element as u64, and `start + count`."""
    shape = Shape(U64, tuple(dims))
    found, inner = _spread(start, dims, b), 1
    for d in reversed(range(len(dims))):
        if dims[d] < 2:
            continue
        position = b.add(Opcode.IOTA, shape=shape, iota_dimension=d)
        if inner > 1:
            position = b.add(Opcode.MULTIPLY, position, b.splat(inner, shape))
        found, inner = b.add(Opcode.ADD, found, position), inner * dims[d]
    return found, b.add(Opcode.ADD, start, b.scalar(count, U64))


def philox_bits(
    key: HloInstruction, start: Sequence[HloInstruction], dims: Sequence[int], bits: int, b: Builder
) -> tuple[HloInstruction, tuple[HloInstruction, HloInstruction]]:
    """Build Philox-4x32 bits of an array, as u64 for 64 bits and u32 otherwise; return them and the next counter.

    Args:
        key: a u64 scalar.
        start: the low and high halves of the 128-bit counter, u64 scalars.
        dims: dimensions of the result.
        bits: bits per element; below 32 the caller uses the low bits.
        b: adds the instructions.
    """
    total = math.prod(dims)
    blocks = -(-total * (2 if bits == 64 else 1) // 4)
    low, high = _philox_counters(start, blocks, b)
    after = _advanced(start, blocks, b)
    x = [low_half(low, b), high_half(low, b), low_half(high, b), high_half(high, b)]
    x = _philox_rounds(x, low_half(key, b), high_half(key, b), b)
    columns = [joined(x[0], x[1], b), joined(x[2], x[3], b)] if bits == 64 else x
    rows = b.concatenate([b.reshape(c, (blocks, 1)) for c in columns], 1)
    flat = b.slice(b.reshape(rows, (blocks * len(columns),)), [SliceDim(0, total)])
    return b.reshape(flat, tuple(dims)), after


def _philox_counters(start: Sequence[HloInstruction], blocks: int, b: Builder) -> tuple[HloInstruction, HloInstruction]:
    low, high = (_spread(s, (blocks,), b) for s in start)
    moved = b.add(Opcode.ADD, low, b.add(Opcode.IOTA, shape=low.shape, iota_dimension=0))
    carried = b.add(Opcode.ADD, high, b.convert(b.compare(moved, low, "LT"), U64))
    return moved, carried


def _advanced(start: Sequence[HloInstruction], blocks: int, b: Builder) -> tuple[HloInstruction, HloInstruction]:
    low, high = start
    moved = b.add(Opcode.ADD, low, b.scalar(blocks, U64))
    return moved, b.add(Opcode.ADD, high, b.convert(b.compare(moved, low, "LT"), U64))


def _philox_rounds(x: list[HloInstruction], k0: HloInstruction, k1: HloInstruction, b: Builder) -> list[HloInstruction]:
    dims = x[0].shape.dimensions
    for number in range(10):
        high0, low0 = _product(x[0], _PHILOX_MULTIPLIERS[0], b)
        high1, low1 = _product(x[2], _PHILOX_MULTIPLIERS[1], b)
        first = b.add(Opcode.XOR, b.add(Opcode.XOR, high1, x[1]), _spread(k0, dims, b))
        third = b.add(Opcode.XOR, b.add(Opcode.XOR, high0, x[3]), _spread(k1, dims, b))
        x = [first, low1, third, low0]
        if number < 9:
            k0 = b.add(Opcode.ADD, k0, b.splat(_PHILOX_INCREMENTS[0], k0.shape))
            k1 = b.add(Opcode.ADD, k1, b.splat(_PHILOX_INCREMENTS[1], k1.shape))
    return x


def _product(x: HloInstruction, factor: int, b: Builder) -> tuple[HloInstruction, HloInstruction]:
    wide = b.convert(x, U64)
    product = b.add(Opcode.MULTIPLY, wide, b.splat(factor, wide.shape))
    return high_half(product, b), low_half(product, b)
