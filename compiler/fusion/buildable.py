"""The one seam through which fusion asks the code generator what it can build."""

from __future__ import annotations

from compiler.ir import HloComputation, HloInstruction, Opcode


def kernel_refusal(fused: HloComputation) -> str | None:
    """Why no kernel can be made of this fused computation, or None. Costs a lowering of it."""
    from compiler.codegen import support  # the floor above: the one question asked upwards

    return support.why_not(fused)


def node_refusal(node: HloInstruction) -> str | None:
    """Why no kernel can hold this instruction (for a fusion: something in it), whatever stands around it, or None."""
    from compiler.codegen import support

    inside = node.attributes["calls"].instructions if node.opcode is Opcode.FUSION else (node,)
    for i in inside:
        if not support.is_emittable(i):
            return f"%{i.name}: no kernel can hold {i.opcode.text} of type {i.shape}"
    return None
