"""Branches that adjacent elements do not share, as in associative scans along rows, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.emulation import TrafficCounter, available, stand_in

jax = pytest.importorskip("jax")

from compiler.frontends.jax import lower  # noqa: E402 - after the check for JAX

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")


@needs_emulator
@pytest.mark.parametrize("n", [64, 100])
def test_threads_of_a_warp_take_the_same_branches_of_a_scan_along_rows(n: int) -> None:
    def scan(x: Any) -> Any:
        return jax.lax.associative_scan(jax.numpy.maximum, x, axis=1)

    x = np.random.default_rng(0).normal(size=(128, n)).astype(np.float32)
    executable = compile(lower(scan, x), backend="cuda")
    counts = TrafficCounter(keep=False).counts(executable.kernels)
    assert all(c.active_lanes > 24 for c in counts.values())
    with stand_in.installed():
        (got,) = executable(x)
    np.testing.assert_array_equal(got.get(), np.maximum.accumulate(x, axis=1))
