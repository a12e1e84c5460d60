"""Custom fusions around instructions that a library computes, so that no kernel takes them in."""

from __future__ import annotations

from collections.abc import Callable

from compiler.fusion.rewriting import FusionRewriter
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode

_FUSIBLE = frozenset({Opcode.REDUCE_WINDOW})
"""Opcodes that both libraries and kernels compute; the other library ops are never fused."""


def wrap_library_ops(module: HloModule, keeps: Callable[[HloInstruction], bool]) -> bool:
    """Wrap the instructions that `keeps` selects into fusions of kind kCustom; return whether there were any."""
    changed = False
    for computation in list(module.control_flow_computations()):
        for i in list(computation.instructions):
            if i.opcode in _FUSIBLE and keeps(i):
                _wrap(module, computation, i)
                changed = True
    return changed


def _wrap(module: HloModule, computation: HloComputation, i: HloInstruction) -> None:
    rewriter = FusionRewriter.of(i)
    rewriter.finish()
    body = module.add(rewriter.body)
    fusion = computation.add(Opcode.FUSION, rewriter.operands, shape=i.shape, kind="kCustom", calls=body)
    computation.replace_uses(i, fusion)
    computation.remove_dead([i])
