"""The machine code of compiled kernels, read by objdump."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Instruction", "machine_code", "why_unreadable"]

SECONDS = 60
"""Seconds after which objdump is given up; it takes some hundredths of a second."""
_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"\s*([0-9a-f]+):\s+(.+)")
_PREFIXES = ("notrack ", "rep ", "repz ", "repnz ", "lock ", "bnd ", "data16 ", "cs ", "{vex} ", "{evex} ")
_PADDING = ("nop", "nopw", "nopl", "xchg")


class Instruction(NamedTuple):
    """An instruction of x86-64 as objdump prints it, the destination last."""

    address: int
    mnemonic: str
    operands: str


def why_unreadable() -> str | None:
    """Return why machine code cannot be read on this machine, or None if it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"machine code of {platform.machine()} is not read"
    if shutil.which("objdump") is None:
        return "there is no objdump; it is a part of binutils"
    return None


def machine_code(objects: Mapping[str, Path]) -> dict[str, list[list[Instruction]]]:
    """Return the functions of each kernel: its own, and those that were split off it.

    Args:
        objects: symbol of each kernel -> the shared object that contains it.

    Returns:
        The functions by symbol; kernels whose code cannot be read are left out.
    """
    found: dict[str, list[list[Instruction]]] = {}
    if why_unreadable() is not None:
        return found
    for path in dict.fromkeys(objects.values()):
        functions = _functions(path)
        for symbol in (s for s, p in objects.items() if p == path):
            own = [code for name, code in functions.items() if symbol in name and code]
            if own:
                found[symbol] = own
    return found


def _functions(path: Path) -> dict[str, list[Instruction]]:
    words = ["objdump", "--disassemble", "--no-show-raw-insn", "--wide", str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_functions(done.stdout.splitlines()) if done.returncode == 0 else {}


def parse_functions(lines: Iterable[str]) -> dict[str, list[Instruction]]:
    """Return the instructions of each function in the output of objdump, without padding."""
    found: dict[str, list[Instruction]] = {}
    code: list[Instruction] = []
    for line in lines:
        header = _FUNCTION.match(line)
        if header is not None:
            code = found.setdefault(header[1], [])
            continue
        instruction = _LINE.match(line)
        if instruction is None:
            continue
        text = instruction[2].partition("#")[0].strip()
        while text.startswith(_PREFIXES):
            text = text.partition(" ")[2].lstrip()
        mnemonic, _, operands = text.partition(" ")
        if mnemonic not in _PADDING:
            code.append(Instruction(int(instruction[1], 16), mnemonic, operands.strip()))
    return found
