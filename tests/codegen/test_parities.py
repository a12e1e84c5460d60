"""Tests of parities beside other tests: results, and that the C compiler keeps the vectors of such loops."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from compiler.backends.cpu import toolchain
from compiler.codegen.printing import print_c
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked


@pytest.mark.parametrize("t", ["s32", "u32", "s64", "s8", "u16"])
@pytest.mark.parametrize(("function", "operand"), [("remainder", 2), ("and", 1)])
@pytest.mark.parametrize(("direction", "value"), [("EQ", 1), ("NE", 1), ("EQ", 0), ("NE", 0), ("LT", 1)])
def test_tests_of_parities(t: str, function: str, operand: int, direction: str, value: int) -> None:
    text = f"""
    x = {t}[9,100] parameter(0)
    a = f32[9,100] parameter(1)
    operand = {t}[] constant({operand})
    operands = {t}[9,100] broadcast(operand), dimensions={{}}
    parity = {t}[9,100] {function}(x, operands)
    value = {t}[] constant({value})
    values = {t}[9,100] broadcast(value), dimensions={{}}
    ROOT is = pred[9,100] compare(parity, values), direction={direction}"""
    checked(text.replace("    a = f32[9,100] parameter(1)\n", ""), Schedule())


@pytest.mark.parametrize(("function", "operand"), [("remainder", 2), ("and", 1)])
@pytest.mark.parametrize(("direction", "value"), [("EQ", 1), ("NE", 0)])
def test_checkerboards_run_in_vectors(function: str, operand: int, direction: str, value: int, tmp_path: Path) -> None:
    text = f"""
    a = f32[64,128] parameter(0)
    b = f32[64,128] parameter(1)
    i = s32[64,128] iota(), iota_dimension=0
    j = s32[64,128] iota(), iota_dimension=1
    place = s32[64,128] add(i, j)
    operand = s32[] constant({operand})
    operands = s32[64,128] broadcast(operand), dimensions={{}}
    parity = s32[64,128] {function}(place, operands)
    value = s32[] constant({value})
    values = s32[64,128] broadcast(value), dimensions={{}}
    is = pred[64,128] compare(parity, values), direction={direction}
    less = pred[64,128] compare(a, b), direction=LT
    both = pred[64,128] and(is, less)
    negated = f32[64,128] negate(a)
    ROOT r = f32[64,128] select(both, negated, b)"""
    (tmp_path / "kernel.c").write_text(print_c.preamble() + checked(text, Schedule()))
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
    assert not re.search(r"\bv?comiss\b", (tmp_path / "kernel.s").read_text())
