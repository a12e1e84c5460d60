"""The approximation of tanh in the C preamble, over its whole range."""

import numpy as np

from compiler import CompileOptions, compile


def test_tanh_is_within_eight_units_in_the_last_place() -> None:
    n = 200_000
    text = f"ENTRY e {{ x = f32[{n}] parameter(0) ROOT y = f32[{n}] tanh(x) }}"
    executable = compile(text, options=CompileOptions(optimize=False))
    magnitudes = np.concatenate([np.linspace(0, 20, n // 4), np.logspace(-38, 38, n // 4)])
    x = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    x[:6] = [np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45]
    (y,) = executable(x)
    want = np.tanh(x.astype(np.float64))
    assert np.all(np.abs(y - want) <= 8 * np.spacing(np.abs(want).astype(np.float32)))
    assert np.all(np.abs(y) <= 1)
    assert np.array_equal(np.signbit(y), np.signbit(x))


def test_tanh_propagates_nan() -> None:
    executable = compile("ENTRY e { x = f32[3] parameter(0) ROOT y = f32[3] tanh(x) }")
    (y,) = executable(np.array([np.nan, 1.0, -np.nan], np.float32))
    assert np.isnan(y).tolist() == [True, False, True]


def test_tanh_saturates_at_exactly_one() -> None:
    executable = compile("ENTRY e { x = f32[5] parameter(0) ROOT y = f32[5] tanh(x) }")
    (y,) = executable(np.array([9.5, -9.5, 1e30, -np.inf, np.inf], np.float32))
    assert y.tolist() == [1.0, -1.0, 1.0, -1.0, 1.0]
