"""Sums of rows whose numbers a kernel finds: results, and that the C compiler keeps the vectors of their loops."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from compiler.backends.cpu import toolchain
from compiler.codegen.printing import print_c
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked

REDUCERS = """
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
"""


@pytest.mark.parametrize("n", [16, 48, 128])
@pytest.mark.parametrize("unroll", [1, 4])
def test_sums_of_found_rows_run_in_vectors(n: int, unroll: int, tmp_path: Path) -> None:
    text = f"""
    table = f32[100,{n}] parameter(0)
    rows = s32[6,50] parameter(1)
    zero = f32[] constant(0)
    found = f32[6,50,{n}] gather(table, rows), offset_dims={{2}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
index_vector_dim=2, slice_sizes={{1,{n}}}
    ROOT s = f32[6,{n}] reduce(found, zero), dimensions={{1}}, to_apply=add"""
    source = checked(text, Schedule(unroll=unroll), REDUCERS)
    (tmp_path / "kernel.c").write_text(print_c.preamble() + source)
    tools = toolchain.toolchain()
    flags = [f for f in toolchain.FLAGS if f != "-shared"]
    command = [
        tools.compiler,
        *flags,
        *tools.options,
        "-S",
        str(tmp_path / "kernel.c"),
        "-o",
        str(tmp_path / "kernel.s"),
    ]
    subprocess.run(command, check=True)
    assert not re.search(r"\bv?addss\b", (tmp_path / "kernel.s").read_text())
