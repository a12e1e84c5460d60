"""Tests of where the C compiler lets loops begin."""

import re
import subprocess
from pathlib import Path

import pytest

import hlogym
from compiler.backends.cpu.toolchain import FLAGS, find_compiler
from compiler.codegen.printing.print_c import preamble

RELU = """HloModule m
ENTRY main {
  x = f32[65536] parameter(0)
  z = f32[] constant(0)
  zs = f32[65536] broadcast(z), dimensions={}
  ROOT r = f32[65536] maximum(x, zs)
}"""


@pytest.mark.parametrize("before", range(0, 32, 5))
def test_loops_begin_at_multiples_of_32_bytes_whatever_is_before_them(tmp_path: Path, before: int) -> None:
    (kernel,) = hlogym.compile(RELU, backend="cpu").kernels
    text = re.sub(r"(#pragma omp simd\n\s*for)", rf'__asm__ volatile(".skip {before}, 0x90");\n\1', kernel.source)
    assert text.count(".skip") == 1
    source, assembly = tmp_path / "kernel.c", tmp_path / "kernel.s"
    source.write_text(preamble() + text)
    flags = [f for f in FLAGS if f != "-shared"]
    command = [find_compiler(), *flags, "-S", str(source), "-o", str(assembly)]
    subprocess.run(command, check=True, timeout=120)
    lines = assembly.read_text().splitlines()
    # The requests are before the label of the loop, to which its last instruction jumps back.
    label = next(m[1] for m in (re.match(r"\tjne\t(\.L\d+)$", line) for line in lines) if m)
    at = lines.index(f"{label}:")
    assert ".p2align 5" in [line.strip() for line in lines[at - 2 : at]]
