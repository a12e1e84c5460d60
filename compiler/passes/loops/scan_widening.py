"""Scan widening: processes several steps of a scan at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from compiler.analysis.loop_marks import unroll_factor
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape
from compiler.ir.attributes import SliceDim
from compiler.passes.infrastructure.base import Options, number_option
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewrite_limits import pinned, treatable
from compiler.passes.loops.scans import ScanView, add_scan, inline_step, step_of_array, view_scan, with_steps
from compiler.passes.loops.while_loop_unroller import unroll_mark


@register
@dataclass(frozen=True)
class ScanWidening(Options):
    """Process `factor` steps of a scan at once: it reads blocks of its inputs and writes blocks of its outputs.

    Remaining steps follow after the scan. Scans without inputs are kept. Work shared between steps is done once per
    block, and a loop made from the scan has fewer iterations. Widened scans are marked and not widened again. Not in
    the default pipeline, where most loops become one kernel, in which iterations have no overhead.

    Attributes:
        factor: old steps per new step; scans of less than `2 * factor` steps are kept.
        max_ops: maximum number of instructions of a new step.
    """

    name: ClassVar[str] = "scan-widening"
    factor: int = number_option(4, 1, 1024)
    max_ops: int = number_option(2000, 0, 100_000)

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for computation in treatable(module):
            scans = [v for i in computation.post_order() if (v := view_scan(i)) is not None]
            fixed = pinned(computation) if scans else set()
            for view in scans:
                if view.instruction not in fixed and self._is_profitable(view):
                    _widen(view, self.factor, computation, module)
                    changed = True
        if changed:
            module.remove_unreachable()
        return changed

    def _is_profitable(self, view: ScanView) -> bool:
        small = self.factor * len(view.function) <= self.max_ops
        fresh = bool(view.inputs) and unroll_factor(view.instruction) == 1
        return self.factor > 1 and view.length >= 2 * self.factor and small and fresh


def _widen(view: ScanView, factor: int, computation: HloComputation, module: HloModule) -> None:
    b = Builder(computation)
    blocks, rest = divmod(view.length, factor)
    first = rest if view.reverse else 0
    inputs = [_in_blocks(x, view.axis, first, blocks, factor, b) for x in view.inputs]
    function = module.add(_wide(view, factor, inputs))
    found = add_scan(b, function, inputs, view.init, view.axis, view.reverse)
    found[0].operand(0).set_attribute("frontend_attributes", unroll_mark(view.instruction, factor))
    count = len(view.outputs)
    carries = found[count:]
    parts = [[_flat(y, view.axis, b)] for y in found[:count]]
    left = range(rest - 1, -1, -1) if view.reverse else range(view.length - rest, view.length)
    for n in left:
        taken = [step_of_array(x, view.axis, n, b) for x in view.inputs]
        returned = inline_step(view.function, [*taken, *carries], b)
        carries = returned[count:]
        for found_parts, y in zip(parts, returned, strict=False):
            found_parts.append(_as_step(y, view.axis, b))
    results = [b.concatenate(p[::-1] if view.reverse else p, view.axis) for p in parts] + carries
    new = b.add(Opcode.TUPLE, *results) if view.instruction.shape.is_tuple else results[0]
    computation.replace(view.instruction, new)
    computation.remove_dead()


def _in_blocks(x: HloInstruction, axis: int, first: int, blocks: int, factor: int, b: Builder) -> HloInstruction:
    dims = x.shape.dimensions
    spec = [SliceDim(first, first + blocks * factor) if d == axis else SliceDim(0, n) for d, n in enumerate(dims)]
    return b.reshape(b.slice(x, spec), (*dims[:axis], blocks, factor, *dims[axis + 1 :]))


def _wide(view: ScanView, factor: int, inputs: Sequence[HloInstruction]) -> HloComputation:
    """Build a function of `factor` consecutive steps; output blocks have the steps along the axis."""
    wide = HloComputation(view.function.name)
    b = Builder(wide)
    blocks = [wide.add_parameter(n, _step_shape(x, view.axis)) for n, x in enumerate(inputs)]
    carries = [wide.add_parameter(len(blocks) + n, c.shape) for n, c in enumerate(view.init)]
    count = len(view.outputs)
    parts: list[list[HloInstruction]] = [[] for _ in range(count)]
    for k in reversed(range(factor)) if view.reverse else range(factor):
        taken = [step_of_array(x, view.axis, k, b) for x in blocks]
        returned = inline_step(view.function, [*taken, *carries], b)
        carries = returned[count:]
        for found, y in zip(parts, returned, strict=False):
            found.append(_as_step(y, view.axis, b))
    outputs = [b.concatenate(p[::-1] if view.reverse else p, view.axis) for p in parts]
    wide.root = b.add(Opcode.TUPLE, *outputs, *carries)
    wide.remove_dead()
    return wide


def _step_shape(x: HloInstruction, axis: int) -> Shape:
    dims = x.shape.dimensions
    return x.shape.with_dimensions((*dims[:axis], *dims[axis + 1 :]))


def _as_step(y: HloInstruction, axis: int, b: Builder) -> HloInstruction:
    return b.reshape(y, with_steps(y.shape.dimensions, axis, 1))


def _flat(y: HloInstruction, axis: int, b: Builder) -> HloInstruction:
    dims = y.shape.dimensions
    return b.reshape(y, (*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :]))
