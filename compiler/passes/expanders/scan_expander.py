"""Scan expansion: replaces a `scan` by a while loop that reads and writes one slice per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet
from compiler.passes.loops.counted_loop import counted_loop
from compiler.passes.loops.scans import ScanView, inline_step, view_scan

RULES = RuleSet()


@register
@dataclass(frozen=True)
class ScanExpander(RewritePass):
    """Replace every scan of arrays by a counted loop; a scan of length 0 by its initial carries and empty outputs.

    The loop carries the carries, inputs and outputs, as in XLA (`xla/service/scan_expander.cc`).
    """

    name: ClassVar[str] = "scan-expander"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.SCAN)
def _expand(i: HloInstruction, b: Builder) -> HloInstruction | None:
    view = view_scan(i)
    if view is None:
        return None
    empty = [b.splat(0, s) for s in view.outputs]
    results = [*empty, *view.init] if view.length == 0 else _looped(view, empty, b)
    return b.add(Opcode.TUPLE, *results) if i.shape.is_tuple else results[0]


def _looped(view: ScanView, empty: Sequence[HloInstruction], b: Builder) -> list[HloInstruction]:
    carries, inputs = len(view.init), len(view.inputs)

    def step(c: Builder, n: HloInstruction, carried: Sequence[HloInstruction]) -> Sequence[HloInstruction]:
        wholes, outputs = carried[carries : carries + inputs], carried[carries + inputs :]
        at = c.add(Opcode.SUBTRACT, c.scalar(view.length - 1, PrimitiveType.S32), n) if view.reverse else n
        taken = [_read(x, view.axis, at, c) for x in wholes]
        returned = inline_step(view.function, [*taken, *carried[:carries]], c)
        written = [_write(x, y, view.axis, at, c) for x, y in zip(outputs, returned, strict=False)]
        return *returned[len(outputs) :], *wholes, *written

    wanted = [*range(carries + inputs, carries + inputs + len(empty)), *range(carries)]
    return counted_loop(b, view.length, (*view.init, *view.inputs, *empty), step, wanted, "scan")


def _starts(rank: int, axis: int, at: HloInstruction, b: Builder) -> list[HloInstruction]:
    zero = b.scalar(0, PrimitiveType.S32)
    return [at if d == axis else zero for d in range(rank)]


def _read(x: HloInstruction, axis: int, at: HloInstruction, b: Builder) -> HloInstruction:
    dims = x.shape.dimensions
    sizes = (*dims[:axis], 1, *dims[axis + 1 :])
    part = b.add(Opcode.DYNAMIC_SLICE, x, *_starts(len(dims), axis, at, b), dynamic_slice_sizes=sizes)
    return b.reshape(part, (*dims[:axis], *dims[axis + 1 :]))


def _write(x: HloInstruction, y: HloInstruction, axis: int, at: HloInstruction, b: Builder) -> HloInstruction:
    dims = x.shape.dimensions
    part = b.reshape(y, (*dims[:axis], 1, *dims[axis + 1 :]))
    return b.add(Opcode.DYNAMIC_UPDATE_SLICE, x, part, *_starts(len(dims), axis, at, b))
