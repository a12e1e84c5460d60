"""Kernels and programs built with the address and undefined-behavior sanitizers make no invalid access."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.sanitizers import ADDRESS, THREAD, run_sanitized, sanitizer_runtime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sanitizer_runtime(ADDRESS) is None, reason="gcc's address sanitizer is not installed"),
]


def problems(folder: Path, *what: str) -> list[str]:
    """Return what the sanitizers of addresses and undefined behavior report."""
    return run_sanitized(folder, ADDRESS, *what).problems


def test_the_sanitizer_detects_a_write_past_an_array(tmp_path: Path) -> None:
    assert any("heap-buffer-overflow" in line for line in problems(tmp_path, "canary", "none", "keep", "0"))


@pytest.mark.skipif(sanitizer_runtime(THREAD) is None, reason="gcc's thread sanitizer is not installed")
def test_the_sanitizer_detects_a_race(tmp_path: Path) -> None:
    assert any("data race" in line for line in run_sanitized(tmp_path, THREAD, "canary", "0").problems)


@pytest.mark.skipif(sanitizer_runtime(THREAD) is None, reason="gcc's thread sanitizer is not installed")
def test_calls_at_the_same_time_do_not_race(tmp_path: Path) -> None:
    assert run_sanitized(tmp_path, THREAD, "quickstart", "0").problems == []


@pytest.mark.parametrize(
    ("what", "fusion", "loops"),
    [
        ("quickstart", "default", "kernel"), ("quickstart", "none", "keep"), ("quickstart", "random", "unroll"),
        ("quickstart", "random", "full"), ("linear_algebra", "default", "kernel"), ("jax/test", "default", "kernel"),
        ("jax/validation", "default", "keep"), ("jax/train", "default", "kernel"), ("loops", "default", "kernel"),
        ("loops", "none", "keep"), ("loops", "random", "unroll"), ("scatters", "none", "keep"),
        ("sorts", "none", "keep"), ("scans", "none", "keep"),
    ],
)  # fmt: skip
def test_programs_make_no_invalid_access(what: str, fusion: str, loops: str, tmp_path: Path) -> None:
    assert problems(tmp_path, what, fusion, loops, "1") == []


@pytest.mark.parametrize("seed", ["0", "1"])
@pytest.mark.parametrize("what", ["fusions", "products", "schedules"])
def test_random_kernels_make_no_invalid_access(what: str, seed: str, tmp_path: Path) -> None:
    assert problems(tmp_path, what, "none", "keep", seed) == []
