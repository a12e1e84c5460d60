"""Bit casts between widths: kernels give the bits that the interpreter gives."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation import stand_in
from compiler.interpreter import evaluate
from compiler.ir.types import PrimitiveType
from compiler.runtime.thunks import HostThunk

CASES = [
    pytest.param("u64", (5,), "u8", (5, 8), id="u64-u8"),
    pytest.param("s32", (3, 4), "s16", (3, 4, 2), id="s32-s16"),
    pytest.param("f32", (6,), "u16", (6, 2), id="f32-u16"),
    pytest.param("s8", (2, 3, 4), "s32", (2, 3), id="s8-s32"),
    pytest.param("u16", (4,), "s64", (), id="u16-s64"),
    pytest.param("u32", (7, 2), "u64", (7,), id="u32-u64"),
]


def text_of(source: str, before: tuple[int, ...], target: str, after: tuple[int, ...]) -> str:
    x, r = f"{source}[{','.join(map(str, before))}]", f"{target}[{','.join(map(str, after))}]"
    return f"HloModule m\nENTRY e {{ x = {x} parameter(0) ROOT r = {r} bitcast-convert(x) }}"


def values(source: str, dims: tuple[int, ...]) -> np.ndarray:
    kind = PrimitiveType(source).dtype
    if kind.kind == "f":
        return np.random.default_rng(0).standard_normal(dims).astype(kind)
    return np.random.default_rng(0).integers(np.iinfo(kind).min, np.iinfo(kind).max, dims, kind, endpoint=True)


@pytest.mark.parametrize(("source", "before", "target", "after"), CASES)
def test_kernels_give_the_bits_of_the_interpreter(
    source: str, before: tuple[int, ...], target: str, after: tuple[int, ...]
) -> None:
    module = parse(text_of(source, before, target, after))
    x = values(source, before)
    executable = compile(module, backend="cpu")
    assert not any(isinstance(t, HostThunk) for t in executable.thunks)
    (found,), (wanted,) = executable(x), evaluate(module, [x])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
@pytest.mark.parametrize(("source", "before", "target", "after"), CASES[1:3])
def test_cuda_kernels_give_them_too(source: str, before: tuple[int, ...], target: str, after: tuple[int, ...]) -> None:
    module = parse(text_of(source, before, target, after))
    x = values(source, before)
    executable = compile(module, backend="cuda")
    with stand_in.installed():
        (found,) = (o.get() for o in executable(x))
    np.testing.assert_array_equal(found, evaluate(module, [x])[0])
