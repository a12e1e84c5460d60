"""What the machine code of a kernel says of its speed: counts of instructions, as a whole and in innermost loops.

A schedule says what the compiler was asked for, and the machine code what it made of it: whether a loop is in vectors,
how many instructions it takes per element, and what was spilled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from compiler.backends.cpu.disassembly import Instruction

__all__ = ["CODE_FEATURES", "CODE_FEATURE_VERSION", "code_features"]

CODE_FEATURE_VERSION = 1
COUNTS = (
    "instructions", "vector arithmetic", "scalar arithmetic", "vector integer", "scalar integer", "loads", "stores",
    "bytes loaded", "bytes stored", "gathered", "scattered", "divided", "divisions", "shuffles", "conversions", "masks",
    "calls", "branches", "stack accesses", "broadcasts", "512 bits", "256 bits", "128 bits", "lanes", "integer lanes",
)  # fmt: skip
"""What is counted; "lanes" are the numbers that arithmetic computes, "divided" those of divisions and roots."""
LOOPS = 2
"""Number of innermost loops that have features of their own, those with the most work first."""
_RATIOS = ("instructions", "loads", "stores", "shuffles", "divisions")
_LOOP = (*COUNTS, "depth", *(f"{name} per work" for name in _RATIOS), "work")
CODE_FEATURES = (
    *(f"all: {name}" for name in COUNTS), "all: loops", "all: innermost loops",
    *(f"loop {n}: {name}" for n in range(LOOPS) for name in _LOOP),
    *(f"innermost: {name}" for name in COUNTS), "innermost: instructions per work",
)  # fmt: skip
"""What the entries of `code_features` mean; counts are logarithms of base 2."""

_REGISTER = re.compile(r"%([xyz])mm")
_BYTES = {"x": 16, "y": 32, "z": 64}
_MEMORY = re.compile(r"\([^)]*\)")
_STORED = re.compile(r"\)(\{%k\d\})?$")
_FLOATS = (
    r"add|sub|mul|max|min|sqrt|div|fn?m(?:add|sub)\d+|fmaddsub\d+|hadd|and|andn|or|xor|rndscale|round|getexp|getmant|"
    r"scalef|rsqrt14|rcp14|reduce|range|fixupimm"
)
_PACKED = re.compile(rf"v?(?:{_FLOATS})p[sdh]")
_SCALAR = re.compile(rf"v?(?:{_FLOATS}|ucomi|comi)s[sdh]")
_SHUFFLE = re.compile(
    r"v?p?(?:perm|unpck|shuf|insert|extract|align|blend|pack|expand|compress|slldq|srldq|movhl|movlh|movddup|movshdup|"
    r"movsldup)"
)
_INTEGER = re.compile(r"vp?(?:add|sub|mul|sll|srl|sra|and|or|xor|ternlog|max|min|abs|rol|ror|madd|sad|lzcnt)")
_DIVISION = re.compile(r"v(?:div|sqrt)([ps])")
_NO_STORE = ("cmp", "test", "vucomi", "vcomi", "push", "pop")
_KINDS = {
    "shuffles": _SHUFFLE, "vector arithmetic": _PACKED, "scalar arithmetic": _SCALAR, "masks": re.compile(r"vp?cmp|k"),
    "vector integer": _INTEGER,
}  # fmt: skip
"""Kinds of instructions on vector registers, of which the first that matches counts."""


class _Kind(NamedTuple):
    """What a mnemonic says by itself.

    Attributes:
        counted: the one of COUNTS that it belongs to; empty for moves.
        lane: bytes of a number of its arithmetic.
    """

    counted: str
    lane: int


@lru_cache(maxsize=4096)
def _kind(mnemonic: str) -> _Kind:
    if mnemonic.startswith("call"):
        return _Kind("calls", 8)
    if mnemonic.startswith("j"):
        return _Kind("branches", 8)
    lane = 8 if mnemonic.endswith("d") else 4
    for count, pattern in _KINDS.items():
        if pattern.match(mnemonic):
            return _Kind(count, lane)
    return _Kind("", lane)


class _Counts:
    """Counts of COUNTS."""

    def __init__(self) -> None:
        self.values = dict.fromkeys(COUNTS, 0)

    def add(self, i: Instruction) -> None:
        """Count an instruction."""
        values = self.values
        values["instructions"] += 1
        kind = _kind(i.mnemonic)
        if kind.counted in ("calls", "branches"):
            values[kind.counted] += 1
            return
        registers = _REGISTER.findall(i.operands)
        size = max((_BYTES[r] for r in registers), default=0)
        if size:
            values[f"{8 * size} bits"] += 1
        self._add_memory(i, size)
        if "broadcast" in i.mnemonic or "{1to" in i.operands:
            values["broadcasts"] += 1
        if i.mnemonic.startswith(("vcvt", "vpmov")):
            values["conversions"] += 1
        self._add_division(i.mnemonic, size)
        if kind.counted == "vector integer" and not size:
            return
        if kind.counted:
            values[kind.counted] += 1
            if kind.counted == "vector arithmetic":
                values["lanes"] += size // kind.lane
            elif kind.counted == "scalar arithmetic":
                values["lanes"] += 1
            elif kind.counted == "vector integer":
                values["integer lanes"] += size // 4
        elif not size and not i.mnemonic.startswith("mov"):
            values["scalar integer"] += 1
            values["integer lanes"] += 1

    def _add_memory(self, i: Instruction, size: int) -> None:
        if i.mnemonic.startswith("lea") or not _MEMORY.search(i.operands):
            return
        values = self.values
        accessed = 4 if i.mnemonic.endswith(("ss", "sd")) else size or 8
        if "gather" in i.mnemonic:
            values["gathered"] += max(1, size // 4)
        elif "scatter" in i.mnemonic:
            values["scattered"] += max(1, size // 4)
        elif _STORED.search(i.operands) and not i.mnemonic.startswith(_NO_STORE):
            values["stores"] += 1
            values["bytes stored"] += accessed
        else:
            values["loads"] += 1
            values["bytes loaded"] += accessed
        if "(%rsp" in i.operands or "(%rbp" in i.operands:
            values["stack accesses"] += 1

    def _add_division(self, mnemonic: str, size: int) -> None:
        division = _DIVISION.match(mnemonic)
        if division is not None:
            self.values["divided"] += size // 4 if division[1] == "p" else 1
        elif mnemonic.startswith(("idiv", "div")):
            self.values["divided"] += 4
        else:
            return
        self.values["divisions"] += 1

    @property
    def work(self) -> float:
        """The numbers that are computed and moved, weighted."""
        v = self.values
        return v["lanes"] + v["integer lanes"] / 2 + v["bytes stored"] / 8 + v["bytes loaded"] / 16 + v["gathered"]

    def logs(self) -> list[float]:
        """Return the counts as logarithms."""
        return [math.log2(1 + n) for n in self.values.values()]


class _Loop(NamedTuple):
    """An innermost loop.

    Attributes:
        counts: of its instructions.
        depth: number of loops that it is in, itself included.
    """

    counts: _Counts
    depth: int

    @property
    def weight(self) -> float:
        """The work, times a guess of how often it runs."""
        return (2 * self.depth + 1) * self.counts.work

    def features(self) -> list[float]:
        """Return the entries of _LOOP."""
        work = self.counts.work + 1
        ratios = [self.counts.values[name] / work for name in _RATIOS]
        return [*self.counts.logs(), float(self.depth), *ratios, math.log2(work)]


def code_features(functions: Sequence[Sequence[Instruction]]) -> list[float]:
    """Return the features of the machine code of a kernel.

    Args:
        functions: see `machine_code`.
    """
    whole, inner, back = _Counts(), _Counts(), 0
    loops: list[_Loop] = []
    for code in functions:
        for i in code:
            whole.add(i)
        spans = _loop_spans(code)
        back += len(spans)
        loops += [_loop(code, span, spans) for span in _innermost(spans)]
    for loop in loops:
        for name, n in loop.counts.values.items():
            inner.values[name] += n
    loops.sort(key=lambda loop: -loop.weight)
    rows = [loop.features() for loop in loops[:LOOPS]]
    rows += [[0.0] * len(_LOOP)] * (LOOPS - len(rows))
    sizes = [math.log2(1 + back), math.log2(1 + len(loops))]
    share = inner.values["instructions"] / (inner.work + 1)
    return [*whole.logs(), *sizes, *(x for row in rows for x in row), *inner.logs(), share]


def _loop_spans(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Return the first and the last instruction of each loop: from the target of a branch back to the branch."""
    places: Mapping[int, int] = {i.address: n for n, i in enumerate(code)}
    found: list[tuple[int, int]] = []
    for n, i in enumerate(code):
        if _kind(i.mnemonic).counted != "branches":
            continue
        target = re.match(r"[0-9a-f]+", i.operands)
        first = None if target is None else places.get(int(target[0], 16))
        if first is not None and first <= n:
            found.append((first, n))
    return found


def _innermost(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the loops that contain no other."""
    return [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def _loop(code: Sequence[Instruction], span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> _Loop:
    counts = _Counts()
    for i in code[span[0] : span[1] + 1]:
        counts.add(i)
    return _Loop(counts, sum(first <= span[0] and span[1] <= last for first, last in spans))
