"""Lowerings of random ATen ops to a Threefry generator whose state is a parameter and a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compiler.frontends.torch_builder import Lowerings, T, TorchBuilder
from compiler.frontends.torch_movement import piece
from compiler.frontends.torch_reductions import extreme, sorted_pair
from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import PadDim
from compiler.ir.shape import tuple_shape

LOWERINGS = Lowerings()
H = HloInstruction


def bits(b: TorchBuilder, dims: Sequence[int], t: PrimitiveType) -> H:
    """Return random bits of an unsigned type, and advance the state."""
    state = b.draw_state()
    shape = tuple_shape(state.shape, Shape(t, tuple(dims)))
    pair = b.add(Opcode.RNG_BIT_GENERATOR, state, shape=shape, algorithm="rng_three_fry")
    b.random_state = b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=0)
    return b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=1)


def state_bytes(b: TorchBuilder, state: H, size: int) -> H:
    """Return a state as the bytes with which PyTorch passes states from a forward to a backward pass."""
    raw = b.add(Opcode.BITCAST_CONVERT, state, shape=Shape(T.U8, (2, 8)))
    return b.add(Opcode.PAD, b.reshape(raw, (16,)), b.constant(0, T.U8), padding=(PadDim(0, size - 16),))


def state_of_bytes(b: TorchBuilder, raw: H) -> H:
    """Return the state that `state_bytes` took."""
    return b.add(Opcode.BITCAST_CONVERT, b.reshape(piece(b, raw, 0, 0, 16), (2, 8)), shape=Shape(T.U64, (2,)))


_DIGITS = {T.F16: 11, T.BF16: 8, T.F32: 24, T.F64: 53}


def uniform(b: TorchBuilder, dims: Sequence[int], t: PrimitiveType) -> H:
    """Return numbers in [0, 1) with as many digits as the type has."""
    raw = T.U64 if t is T.F64 else T.U32
    drawn = bits(b, dims, raw)
    digits = _DIGITS[t]
    kept = b.add(Opcode.SHIFT_RIGHT_LOGICAL, drawn, b.full(raw.bits - digits, drawn.shape))
    wide = t if t is T.F64 else T.F32
    return b.convert(b.binary(Opcode.MULTIPLY, b.convert(kept, wide), math.ldexp(1.0, -digits), wide), t)


def normal(b: TorchBuilder, dims: Sequence[int], t: PrimitiveType) -> H:
    """Return numbers with mean 0 and deviation 1 (Box-Muller)."""
    wide = t if t is T.F64 else T.F32
    radius = b.binary(Opcode.MULTIPLY, b.add(Opcode.LOG, _not_zero(b, dims, wide)), -2, wide)
    angle = b.binary(Opcode.MULTIPLY, uniform(b, dims, wide), 2 * math.pi, wide)
    return b.convert(b.add(Opcode.MULTIPLY, b.add(Opcode.SQRT, radius), b.add(Opcode.COSINE, angle)), t)


def _not_zero(b: TorchBuilder, dims: Sequence[int], t: PrimitiveType) -> H:
    """Return numbers in (0, 1]."""
    return b.binary(Opcode.SUBTRACT, 1, uniform(b, dims, t), t)


def _kept(b: TorchBuilder, dims: Sequence[int], chance: Any) -> H:
    """Return booleans, each true with this probability (a number or a tensor)."""
    t = chance.shape.element_type if isinstance(chance, H) else T.F32
    return b.add(Opcode.COMPARE, uniform(b, dims, t), b.operand(chance, t, dims), direction="LT")


@LOWERINGS.op("dropout", "native_dropout")
def _dropout(b: TorchBuilder, x: H, p: float, train: bool | None = False) -> Any:
    """Zero elements with probability `p`, and scale the others such that the mean is preserved."""
    native = "native" in b.what
    if not train or p == 0:
        return [x, b.full(True, x.shape.with_type(T.PRED))] if native else x
    t = x.shape.element_type
    keep = b.full(False, x.shape.with_type(T.PRED)) if p == 1 else _kept(b, x.shape.dimensions, 1 - p)
    scaled = x if p == 1 else b.binary(Opcode.MULTIPLY, x, 1 / (1 - p), t)
    result = b.select(keep, scaled, 0, t)
    return [result, keep] if native else result


@LOWERINGS.op("bernoulli")
def _bernoulli(b: TorchBuilder, x: H, p: Any = None, **_: Any) -> H:
    return b.convert(_kept(b, x.shape.dimensions, x if p is None else p), b.out.element_type)


@LOWERINGS.op("rand", "rand_like")
def _rand(b: TorchBuilder, *_: Any, **__: Any) -> H:
    return uniform(b, b.out.dimensions, b.out.element_type)


@LOWERINGS.op("uniform")
def _uniform(b: TorchBuilder, x: H, low: float = 0, high: float = 1, **_: Any) -> H:
    t = x.shape.element_type
    scaled = b.binary(Opcode.MULTIPLY, uniform(b, x.shape.dimensions, t), high - low, t)
    return b.binary(Opcode.ADD, scaled, low, t)


@LOWERINGS.op("randn", "randn_like")
def _randn(b: TorchBuilder, *_: Any, **__: Any) -> H:
    return normal(b, b.out.dimensions, b.out.element_type)


@LOWERINGS.op("normal_functional")
def _normal(b: TorchBuilder, x: H, mean: float = 0, deviation: float = 1, **_: Any) -> H:
    t = x.shape.element_type
    return b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, normal(b, x.shape.dimensions, t), deviation, t), mean, t)


@LOWERINGS.op("normal")
def _normal_of(b: TorchBuilder, mean: Any, deviation: Any = 1.0, *_: Any, **__: Any) -> H:
    """Lower `torch.normal`, where means, deviations or both are tensors."""
    t = b.out.element_type
    return b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, normal(b, b.out.dimensions, t), deviation, t), mean, t)


@LOWERINGS.op("exponential")
def _exponential(b: TorchBuilder, x: H, rate: float = 1, **_: Any) -> H:
    t = x.shape.element_type
    log = b.add(Opcode.LOG, b.convert(_not_zero(b, x.shape.dimensions, T.F64 if t is T.F64 else T.F32), t))
    return b.binary(Opcode.MULTIPLY, log, -1 / rate, t)


@LOWERINGS.op("randint", "randint_like")
def _randint(b: TorchBuilder, *args: Any, **_: Any) -> H:
    """Return integers from `low` (inclusive) to `high` (exclusive)."""
    numbers = [a for a in args if isinstance(a, int)]
    low, high = numbers[:2] if b.overload.startswith("low") else (0, numbers[0])
    drawn = bits(b, b.out.dimensions, T.U64)
    within = b.add(Opcode.REMAINDER, drawn, b.full(high - low, drawn.shape))
    t = b.out.element_type
    return b.binary(Opcode.ADD, b.convert(within, t), low, t)


@LOWERINGS.op("randperm")
def _randperm(b: TorchBuilder, n: int, **_: Any) -> H:
    """Sort the numbers by random keys."""
    keys = bits(b, (n,), T.U64)
    numbers = b.add(Opcode.IOTA, shape=b.out, iota_dimension=0)

    def make() -> HloComputation:
        f = HloComputation(f"before_u64_{b.out.element_type.text}")
        shapes = [Shape(T.U64)] * 2 + [Shape(b.out.element_type)] * 2
        first, second, *_ = (f.add_parameter(k, s) for k, s in enumerate(shapes))
        f.root = f.add(Opcode.COMPARE, [first, second], attributes={"direction": "LT"})
        return f

    order = b.once(("randperm", b.out.element_type), make)
    pair = b.add(Opcode.SORT, keys, numbers, dimensions=(0,), is_stable=True, to_apply=order)
    return b.add(Opcode.GET_TUPLE_ELEMENT, pair, index=1)


@LOWERINGS.op("rrelu_with_noise", "rrelu_with_noise_functional")
def _rrelu(
    b: TorchBuilder, x: H, noise: H, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    t = x.shape.element_type
    slope: Any = (lower + upper) / 2
    if training:
        slope = _uniform(b, x, lower, upper)
    below = b.compare(x, 0, "LT")
    result = b.select(below, b.binary(Opcode.MULTIPLY, x, slope, t), x, t)
    return [result, b.select(below, slope, 1, t)] if "functional" in b.what else result


@LOWERINGS.op("multinomial")
def _multinomial(b: TorchBuilder, x: H, samples: int, replacement: bool = False, **_: Any) -> H:
    """Sample categories by the largest log(weight) + Gumbel noise; sorted, these are samples without replacement."""
    dim = x.shape.rank - 1
    if replacement:  # separate noise for each sample
        *batch, n = x.shape.dimensions
        x = b.broadcast(b.reshape(x, (*batch, 1, n)), (*batch, samples, n))
        return extreme(b, _noisy(b, x), dim + 1, "GT")[1]
    return piece(b, sorted_pair(b, _noisy(b, x), dim, True)[1], dim, 0, samples)


def _noisy(b: TorchBuilder, x: H) -> H:
    gumbel = b.add(Opcode.NEGATE, b.add(Opcode.LOG, _exponential(b, x)))
    return b.add(Opcode.ADD, b.add(Opcode.LOG, x), gumbel)
