"""Lowerings of `prims`, to which some of PyTorch's decompositions lead, where they differ from ATen ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.frontends.torch_builder import Lowerings, TorchBuilder, element_type, in_single_precision
from compiler.ir import HloInstruction, Opcode, Shape

LOWERINGS = Lowerings()
H = HloInstruction


@LOWERINGS.op("fma")
@in_single_precision
def _multiply_and_add(b: TorchBuilder, x: H, y: H, z: H) -> H:
    return b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, x, y), z)


@LOWERINGS.op("convert_element_type")
def _convert(b: TorchBuilder, x: H, dtype: Any) -> H:
    return b.convert(x, element_type(dtype))


@LOWERINGS.op("iota")
def _iota(b: TorchBuilder, _length: int, start: int = 0, step: int = 1, **_: Any) -> H:
    t = b.out.element_type
    counted = b.add(Opcode.IOTA, shape=b.out, iota_dimension=0)
    return b.binary(Opcode.ADD, b.binary(Opcode.MULTIPLY, counted, step, t), start, t)


@LOWERINGS.op("broadcast_in_dim")
def _broadcast_in_dim(b: TorchBuilder, x: H, sizes: Sequence[int], dims: Sequence[int]) -> H:
    aligned = [1] * len(sizes)
    for d, n in zip(dims, x.shape.dimensions, strict=True):
        aligned[d] = n
    return b.broadcast(b.reshape(x, aligned), sizes)


@LOWERINGS.op("collapse", "collapse_view", "split_dim", "view_of")
def _resized(b: TorchBuilder, x: H, *_: Any) -> H:
    return b.reshape(x, b.out.dimensions)


@LOWERINGS.op("rev")
def _reversed(b: TorchBuilder, x: H, dims: Sequence[int]) -> H:
    return b.add(Opcode.REVERSE, x, dimensions=tuple(d % x.shape.rank for d in dims))


@LOWERINGS.op("device_put")
def _same_device(b: TorchBuilder, x: H, *_: Any) -> H:
    return x


@LOWERINGS.op("cbrt")
def _cube_root(b: TorchBuilder, x: H) -> H:
    return b.add(Opcode.CBRT, b.convert(x, b.out.element_type))


@LOWERINGS.op("view_of_dtype")
def _bits(b: TorchBuilder, x: H, dtype: Any) -> H:
    return b.add(Opcode.BITCAST_CONVERT, x, shape=Shape(element_type(dtype), b.out.dimensions))
