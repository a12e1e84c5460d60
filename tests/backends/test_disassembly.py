"""Reading machine code: functions in the output of objdump, and those of compiled kernels."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from compiler.backends.cpu import disassembly, toolchain
from compiler.backends.cpu.disassembly import Instruction, machine_code, parse_functions
from tests.session.test_kernel_sites import TRANSPOSE, fused

LISTING = """
kernels.so:     file format elf64-x86-64

Disassembly of section .text:

0000000000001000 <hk_a>:
    1000:\tpush   %rbp
    1004:\tnopw   0x0(%rax,%rax,1)
    1008:\tnotrack jmp *%rdx
    100c:\tvmovups (%rdi,%rax,4),%zmm0        # a comment
\t...

0000000000001040 <hk_a.part.0>:
    1040:\tret
"""
needs_objdump = pytest.mark.skipif(disassembly.why_unreadable() is not None, reason="machine code cannot be read here")


def test_functions_have_their_instructions_without_padding_prefixes_and_comments() -> None:
    assert parse_functions(LISTING.splitlines()) == {
        "hk_a": [
            Instruction(0x1000, "push", "%rbp"),
            Instruction(0x1008, "jmp", "*%rdx"),
            Instruction(0x100C, "vmovups", "(%rdi,%rax,4),%zmm0"),
        ],
        "hk_a.part.0": [Instruction(0x1040, "ret", "")],
    }


@needs_objdump
def test_the_functions_of_a_kernel_are_those_with_its_symbol() -> None:
    spec = fused(TRANSPOSE).kernel_sites()[0].spec
    assert spec is not None
    path = toolchain.kernel_objects([spec], toolchain.toolchain())[spec.symbol]
    found = machine_code({spec.symbol: path, "no_such_kernel": path})
    assert list(found) == [spec.symbol]
    assert any(i.mnemonic.startswith("ret") for code in found[spec.symbol] for i in code)


def test_a_file_that_is_no_object_has_no_code(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no object")
    assert machine_code({"k": tmp_path / "text"}) == {}


def test_without_objdump_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("objdump was started"))
    assert "binutils" in str(disassembly.why_unreadable())
    assert machine_code({"k": Path("k.so")}) == {}


def test_other_processors_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "aarch64" in str(disassembly.why_unreadable())
