"""Kernels and programs built with the address and undefined-behavior sanitizers make no invalid access."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = "-O1 -g -fsanitize=address,undefined,float-cast-overflow -fsanitize-recover=address,undefined"


def sanitizer_runtime() -> str | None:
    """Return the path of gcc's address sanitizer library, or None if it is not installed."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    done = subprocess.run([gcc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    found = Path(done.stdout.strip())
    return str(found) if found.is_absolute() and found.exists() else None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sanitizer_runtime() is None, reason="gcc's address sanitizer is not installed"),
]


def problems(folder: Path, *what: str) -> list[str]:
    """Run `tests.runtime.sanitized` and return the problems that it and the sanitizers reported."""
    compiler = folder / "sanitizing-gcc"
    # Drivers only call kernels and copy whole buffers, and gcc takes minutes to build long ones with sanitizers.
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *driver.c*) exec gcc "$@";; *) exec gcc "$@" {FLAGS};; esac\n')
    compiler.chmod(0o755)
    environment = {
        **os.environ, "CC": str(compiler), "HLOGYM_CACHE": str(folder / "cache"), "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": sanitizer_runtime() or "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2",
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:verify_asan_link_order=0",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.runtime.sanitized", *what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    lines = done.stderr.splitlines()
    found = [f"after {lines[n - 1]}: {line}" for n, line in enumerate(lines) if not line.startswith(("RUN ", "DONE"))]
    return found if "DONE" in lines else [*found, f"it ended early: {lines[-1:]}"]


def test_the_sanitizer_detects_a_write_past_an_array(tmp_path: Path) -> None:
    assert any("heap-buffer-overflow" in line for line in problems(tmp_path, "canary", "none", "keep", "0"))


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
@pytest.mark.parametrize("what", ["fusions", "products"])
def test_random_kernels_make_no_invalid_access(what: str, seed: str, tmp_path: Path) -> None:
    assert problems(tmp_path, what, "none", "keep", seed) == []
