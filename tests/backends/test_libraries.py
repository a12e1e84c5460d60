"""Loaded shared objects: programs share them, and they are unloaded with their last user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.libraries import Library, load_library
from compiler.errors import BackendError

PROGRAM = """
HloModule shifted
ENTRY main {{
  x = f32[64] parameter(0)
  c = f32[] constant({shift})
  b = f32[64] broadcast(c), dimensions={{}}
  ROOT r = f32[64] add(x, b)
}}
"""
X = np.arange(64, dtype=np.float32)


def mapped() -> set[str]:
    """Return the paths of the shared objects that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.rpartition(" ")[2] for line in lines if line.endswith(".so")}


def compiled(shift: int) -> CpuExecutable:
    exe = compile(PROGRAM.format(shift=shift))
    assert isinstance(exe, CpuExecutable)
    return exe


def test_an_unused_program_is_unloaded() -> None:
    one, two = compiled(17), compiled(18)
    paths = {str(p) for p in one.built.objects.values()}
    assert paths <= mapped()
    np.testing.assert_array_equal(one(X)[0], X + 17)
    del one
    assert not paths & mapped()
    np.testing.assert_array_equal(two(X)[0], X + 18)


def test_equal_programs_share_a_library() -> None:
    one, two = compiled(19), compiled(19)
    (path,) = set(one.built.objects.values())
    assert load_library(path) is load_library(path)
    del one
    np.testing.assert_array_equal(two(X)[0], X + 19)


def test_the_number_of_mappings_does_not_grow_with_programs() -> None:
    compiled(0)(X)
    before = len(mapped())
    for shift in range(1, 9):
        np.testing.assert_array_equal(compiled(shift)(X)[0], X + shift)
    assert len(mapped()) <= before


def test_a_file_that_is_not_a_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("no code")
    with pytest.raises(BackendError, match=r"cannot load the compiled code text\.so"):
        Library(path)
