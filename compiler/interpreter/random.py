"""Evaluators of random numbers: rng-bit-generator, bit for bit as XLA, and rng.

Threefry2x32 and Philox4x32 follow Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the layout of
counters over the result is that of XLA's `xla/hlo/builder/lib/prng.cc`. The numbers of `rng` differ from XLA's, which
depend on hidden state of its backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.errors import UnsupportedError
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Array, Value, arrays, evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def threefry2x32(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Apply the twenty rounds to uint32 arrays, which are broadcast."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance)))
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x0, x1


def philox4x32(key: tuple[Array, Array], x: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Apply the ten rounds to uint32 arrays."""
    k0, k1 = key
    for _ in range(10):
        first, second = x[0].astype(np.uint64) * np.uint64(0xD2511F53), x[2].astype(np.uint64) * np.uint64(0xCD9E8D57)
        x = (_high(second) ^ x[1] ^ k0, _low(second), _high(first) ^ x[3] ^ k1, _low(first))
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return x


def _low(x: Array) -> Array:
    return np.asarray(x & _LOW).astype(np.uint32)


def _high(x: Array) -> Array:
    return np.asarray(x >> _HALF).astype(np.uint32)


def _join(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | (high.astype(np.uint64) << _HALF)


@evaluator(Opcode.RNG_BIT_GENERATOR)
def _rng_bit_generator(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return new state and bits, or only bits; the default algorithm is Philox, as on XLA:CPU."""
    algorithm = str(instruction.attr("algorithm")).lower()
    state = arrays(values)[0]
    shape = list(instruction.shape.leaves())[-1]
    width = shape.element_type.bits
    words = state.reshape(-1)
    if words.dtype == np.uint32:
        words = _join(words[0::2], words[1::2])
    if algorithm == "rng_three_fry":
        bits, next_words = threefry_bits(words, shape.dimensions, width)
    elif algorithm in ("rng_philox", "rng_default"):
        bits, next_words = philox_bits(words, shape.dimensions, width)
    else:
        raise UnsupportedError(f"%{instruction.name}: unknown random bit generator {algorithm}")
    if state.dtype == np.uint32:
        next_words = np.stack([_low(next_words), _high(next_words)], -1).reshape(state.shape)
    unsigned = np.dtype(f"u{max(8, width) // 8}")
    cut = bits & bits.dtype.type((1 << width) - 1) if width < 8 else bits
    data = cut.astype(unsigned).view(shape.dtype) if width >= 8 else cut.astype(np.uint8).astype(shape.dtype)
    return (next_words.reshape(state.shape), data) if instruction.shape.is_tuple else data


def threefry_bits(state: Array, dims: Sequence[int], width: int) -> tuple[Array, Array]:
    """Return bits of shape `dims` (uint64 for width 64, else uint32), and the next state.

    The state is a key and a 64-bit counter. For widths up to 32, the two words of a block are adjacent along the first
    dimension of even size, or else along the largest one.
    """
    key = state[0:1]
    k0, k1 = _low(key), _high(key)
    if width == 64:
        count = math.prod(dims)
        out = threefry2x32(k0, k1, *_counters(state[1], count))
        return _join(*out).reshape(dims), _advanced(state, count)
    split = next((d for d, n in enumerate(dims) if n % 2 == 0), None)
    if split is None and dims:
        split = max(range(len(dims)), key=lambda d: (dims[d], -d))
    if split is None:
        out = threefry2x32(k0, k1, *_counters(state[1], 1))
        return out[0].reshape(()), _advanced(state, 1)
    half = [-(-n // 2) if d == split else n for d, n in enumerate(dims)]
    count = math.prod(half)
    out = threefry2x32(k0, k1, *_counters(state[1], count))
    pair = np.stack([o.reshape(half) for o in out], split + 1)
    whole = pair.reshape([2 * n if d == split else n for d, n in enumerate(half)])
    return whole[tuple(slice(0, n) for n in dims)], _advanced(state, count)


def _counters(start: np.uint64, count: int) -> tuple[Array, Array]:
    numbers = start + np.arange(count, dtype=np.uint64)
    return _low(numbers), _high(numbers)


def _advanced(state: Array, count: int) -> Array:
    return np.stack([state[0], state[1] + np.uint64(count)])


def philox_bits(state: Array, dims: Sequence[int], width: int) -> tuple[Array, Array]:
    """Return bits of shape `dims` (uint64 for width 64, else uint32), and the next state.

    The state is a key and a 128-bit counter, low word first. A state of two words is the key, which is also the upper
    half of the counter, and the lower half.
    """
    low, high = (state[1], state[2]) if len(state) >= 3 else (state[1], state[0])
    key = state[0:1]
    words = math.prod(dims) * (2 if width == 64 else 1)
    blocks = -(-words // 4)
    lows = low + np.arange(blocks, dtype=np.uint64)
    highs = high + (lows < low).astype(np.uint64)
    out = philox4x32((_low(key), _high(key)), (_low(lows), _high(lows), _low(highs), _high(highs)))
    if width == 64:
        bits = np.stack([_join(out[0], out[1]), _join(out[2], out[3])], -1).reshape(-1)
    else:
        bits = np.stack(out, -1).reshape(-1)
    next_low = low + np.uint64(blocks)
    next_state = np.stack([state[0], next_low, high + np.uint64(next_low < low)])
    return bits[: math.prod(dims)].reshape(dims), next_state[: len(state)]


@evaluator(Opcode.RNG)
def _rng(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Draw uniformly from [a, b), or normally with mean a and deviation b, from the context's generator."""
    shape = instruction.shape
    a, b = arrays(values)
    if instruction.attr("distribution") == "rng_normal":
        draw = machine.rng.standard_normal(shape.dimensions)
        return np.asarray(draw * b.astype(np.float64) + a.astype(np.float64)).astype(shape.dtype)
    if shape.element_type.is_float:
        low, high = a.astype(np.float64), b.astype(np.float64)
        drawn = np.asarray(low + machine.rng.random(shape.dimensions) * (high - low)).astype(shape.dtype)
        # Rounding to the result type can reach b, which is excluded.
        return np.where(drawn >= b, a, drawn)
    if shape.element_type.bits <= 8:
        return np.asarray(machine.rng.integers(int(a), max(int(a) + 1, int(b)), shape.dimensions)).astype(shape.dtype)
    return np.asarray(machine.rng.integers(int(a), int(b), shape.dimensions, dtype=shape.dtype))


@evaluator(Opcode.RNG_GET_AND_UPDATE_STATE)
def _rng_get_and_update_state(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return a 128-bit counter as two words, high first; it starts at the context's seed and increases by `delta`."""
    before = machine.state
    machine.state = (before + instruction.attr("delta")) % (1 << 128)
    return np.array([before >> 64, before % (1 << 64)], np.uint64).reshape(instruction.shape.dimensions)
