"""Fourier transforms on the CPU in the precision of their operands, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from env.reference import Reference
from tests.codegen.running import problem

KINDS = {"FFT": ("c64", "c64"), "IFFT": ("c64", "c64"), "RFFT": ("f32", "c64"), "IRFFT": ("c64", "f32")}
WIDE = {"c64": "c128", "f32": "f64"}
TYPES = {"c64": np.complex64, "c128": np.complex128, "f32": np.float32, "f64": np.float64}


def transform(kind: str, dims: tuple[int, ...], length: tuple[int, ...], wide: bool) -> tuple[str, np.ndarray]:
    """Return a program with one transform of `length`, and a random argument for it."""
    halved = (*dims[:-1], dims[-1] // 2 + 1)
    source, target = ((halved, dims) if kind == "IRFFT" else (dims, halved)) if "R" in kind else (dims, dims)
    before, after = (WIDE[t] if wide else t for t in KINDS[kind])
    shown = [",".join(map(str, d)) for d in (source, target, length)]
    text = f"""HloModule m
ENTRY e {{
  x = {before}[{shown[0]}] parameter(0)
  ROOT y = {after}[{shown[1]}] fft(x), fft_type={kind}, fft_length={{{shown[2]}}}
}}"""
    rng = np.random.default_rng(5)
    x = rng.normal(size=source) + (1j * rng.normal(size=source) if before[0] == "c" else 0)
    return text, x.astype(TYPES[before])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dims", "axes", "wide"),
    [
        ((19, 31), 1, False), ((2, 4, 6, 9), 3, False), ((1, 1), 1, False), ((70, 20), 2, False), ((3, 2310), 1, False),
        ((5, 6, 10), 2, True),
    ],
)  # fmt: skip
def test_transforms(kind: str, dims: tuple[int, ...], axes: int, wide: bool) -> None:
    text, x = transform(kind, dims, dims[len(dims) - axes :], wide)
    before = x.copy()
    wanted = Reference.of(parse(text), [x])
    for options in (CompileOptions(), CompileOptions(num_threads=1)):
        assert problem(compile(text, options=options)(x), wanted) is None
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("n", [127, 4096])
def test_transforms_of_small_prime_factors_are_kernels(n: int) -> None:
    text, x = transform("FFT", (2, n), (n,), False)
    exe = compile(text)
    assert [k.kind for k in exe.kernels] == ["fourier"]
    assert not any(isinstance(t, HostThunk) for t in exe.thunks)
    assert problem(exe(x), Reference.of(parse(text), [x])) is None


@pytest.mark.parametrize("kind", ["RFFT", "IRFFT"])
@pytest.mark.parametrize(("dims", "wide"), [((3375,), False), ((9, 1155), False), ((2, 375), True)])
def test_long_lines_of_an_odd_number_of_real_numbers_are_divided(kind: str, dims: tuple[int, ...], wide: bool) -> None:
    text, x = transform(kind, dims, dims[-1:], wide)
    exe = compile(text)
    (kernel,) = exe.kernels
    assert "whole[" in kernel.source
    assert problem(exe(x), Reference.of(parse(text), [x])) is None


@pytest.mark.parametrize(("kind", "n"), [("FFT", 131), ("IRFFT", 59049), ("FFT", 1 << 17)])
def test_other_transforms_are_made_by_scipy(kind: str, n: int) -> None:
    text, x = transform(kind, (n,), (n,), False)
    exe = compile(text)
    assert any(isinstance(t, HostThunk) for t in exe.thunks)
    assert problem(exe(x), Reference.of(parse(text), [x])) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_writes_its_result_only(kind: str) -> None:
    text, x = transform(kind, (3, 34), (34,), False)
    exe = compile(text)
    assert isinstance(exe, CpuExecutable)
    dtype, shape = exe(x)[0].dtype, exe(x)[0].shape
    size = dtype.itemsize * int(np.prod(shape))
    memory = np.full(size + 8192, 7, np.uint8)
    exe.call_at([x.ctypes.data], [memory.ctypes.data + 4096])
    assert (memory[:4096] == 7).all()
    assert (memory[-4096:] == 7).all()
    found = memory[4096:-4096].view(dtype).reshape(shape)
    assert problem([found], Reference.of(parse(text), [x])) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_reaches_its_row_only(value: float) -> None:
    text, x = transform("RFFT", (4, 32), (32,), False)
    x[2, 7] = value
    (found,) = compile(text)(x)
    assert not np.isfinite(found[2]).any()
    assert np.isfinite(found[[0, 1, 3]]).all()
