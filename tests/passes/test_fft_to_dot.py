"""Fourier transforms as matrix products give what the interpreter's transforms give."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation import stand_in
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.passes.expanders.fft_to_dot import FftToDot
from compiler.runtime.thunks import HostThunk, walk

CASES = (
    ("FFT", "c64[3,10]", "c64[3,10]", "10"),
    ("IFFT", "c128[4,6,5]", "c128[4,6,5]", "6,5"),
    ("RFFT", "f32[5,9]", "c64[5,5]", "9"),
    ("RFFT", "f64[3,4,8]", "c128[3,4,5]", "4,8"),
    ("IRFFT", "c64[2,6]", "f32[2,10]", "10"),
    ("IRFFT", "c128[3,4,4]", "f64[3,4,7]", "4,7"),
    ("FFT", "c64[2,4,1,3]", "c64[2,4,1,3]", "4,1,3"),
    ("FFT", "c64[2,210]", "c64[2,210]", "210"),
    ("IFFT", "c128[512]", "c128[512]", "512"),
    ("RFFT", "f32[3,300]", "c64[3,151]", "300"),
    ("IRFFT", "c64[3,151]", "f32[3,300]", "300"),
    ("IRFFT", "c128[2,113]", "f64[2,225]", "225"),
    ("FFT", "c64[2,67]", "c64[2,67]", "67"),
)


def module(kind: str, x: str, y: str, length: str) -> HloModule:
    return parse(
        f"HloModule m\nENTRY e {{ x = {x} parameter(0) ROOT y = {y} fft(x), fft_type={kind}, fft_length={{{length}}} }}"
    )


@pytest.mark.parametrize(("kind", "x", "y", "length"), CASES)
def test_transforms_become_products(kind: str, x: str, y: str, length: str) -> None:
    m = module(kind, x, y, length)
    shape = m.entry.parameters[0].shape
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape.dimensions)
    if shape.element_type.text.startswith("c"):
        values = values + 1j * rng.standard_normal(shape.dimensions)
    argument = values.astype(shape.dtype)
    (wanted,) = evaluate(m, [argument])

    assert FftToDot().run(m)

    assert all(i.opcode is not Opcode.FFT for i in m.entry.instructions)
    (found,) = evaluate(m, [argument])
    single = wanted.dtype in (np.complex64, np.float32)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < (2e-6 if single else 1e-14)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize(
    ("kind", "x", "y", "length"), [("FFT", "c64[0,4]", "c64[0,4]", "4"), ("FFT", "c64[521]", "c64[521]", "521")]
)
def test_other_transforms_are_left(kind: str, x: str, y: str, length: str) -> None:
    assert not FftToDot().run(module(kind, x, y, length))


def test_only_a_gpu_has_products_for_transforms() -> None:
    executable = compile(module(*CASES[0]), backend="cuda")
    assert not any(isinstance(t, HostThunk) for t in walk(executable.thunks))
    cpu = compile(module(*CASES[0]), backend="cpu")
    assert any(i.opcode is Opcode.FFT for i in cpu.module.entry.instructions)


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
def test_kernels_of_transforms_match_the_interpreter() -> None:
    m = module(*CASES[3])
    x = np.random.default_rng(1).standard_normal((3, 4, 8))
    with stand_in.installed():
        (found,) = compile(m, backend="cuda")(x)
    (wanted,) = evaluate(m, [x])
    np.testing.assert_allclose(np.asarray(found.get()), wanted, atol=1e-13)
