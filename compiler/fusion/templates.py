"""Which fusions a kernel from a template can be: a product, scan, scatter or sort with what is before and after it.

A product or a convolution absorbs what its operands are computed from, and what is computed from its result element by
element, and so does a cumulative reduction. A scatter absorbs its indices, its updates and the array that it updates; a
sort what it sorts. Beyond these rules, the kernel itself decides (`trials`).
"""

from __future__ import annotations

from compiler.analysis.kernel_summary import KernelSummary
from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.fusion.rewriting import body_of, instructions_of
from compiler.ir import HloInstruction, Opcode

WITHOUT_TEMPLATE = {
    Opcode.CUSTOM_CALL: "its code is not made by this compiler",
    Opcode.SCALED_DOT: "only a product of two whole matrices has a kernel that computes other ops too",
    Opcode.TOPK: "its kernel reads an array and computes nothing else",
    Opcode.FFT: "a library computes it, whose code absorbs no other ops",
    Opcode.CHOLESKY: "a library computes it, whose code absorbs no other ops",
    Opcode.TRIANGULAR_SOLVE: "a library computes it, whose code absorbs no other ops",
    Opcode.RAGGED_DOT: "only a product of two whole matrices has a kernel that computes other ops too",
}
"""Why ops with algorithms of their own cannot be fused at all."""
SINGLE = TEMPLATE_OPS
"""Opcodes whose kernels compute no independent nodes beside them."""


def is_open_product(node: HloInstruction) -> bool:
    """Check for a fusion around one dot that the compiler made by a rule, and that may grow."""
    return node.opcode is Opcode.FUSION and [i.opcode for i in body_of(node).instructions].count(Opcode.DOT) == 1


def pair_refusal(
    kind: str, first: HloInstruction, second: HloInstruction, a: KernelSummary, b: KernelSummary
) -> str | None:
    """Return the reason against a kernel of two nodes that follows from the templates of their kernels, or None.

    Args:
        kind: see `trial_fusion`.
        first: the producer, or the earlier of two independent nodes.
        second: the consumer, or the later node.
        a: summary of the first.
        b: summary of the second.
    """
    if a.template is None and b.template is None:
        return None
    hero = _hero(first) or _hero(second)
    if hero is None:
        return None
    if a.template is not None and b.template is not None:
        other = _hero(second)
        named = "" if other is None else f"%{other.name} ({other.opcode.text})"
        return f"%{hero.name} ({hero.opcode.text}) and {named} each need a kernel with loops of their own"
    if a.looped_reduction or b.looped_reduction:
        node = second if a.template is not None else first
        return (
            f"%{hero.name} ({hero.opcode.text}) is computed in loops of its own, in which the reduction of "
            f"%{node.name} has no place"
        )
    if hero.opcode in (Opcode.DOT, Opcode.CONVOLUTION, Opcode.REDUCE_WINDOW):
        if kind == "producer-consumer" or (kind == "multi-output" and a.template is not None):
            return None
        other = second if a.template is not None else first
        named = f"%{hero.name} ({hero.opcode.text})"
        return f"the kernel of {named} yields only what is computed from its result, and not %{other.name}"
    if kind != "producer-consumer":
        return f"the kernel of %{hero.name} ({hero.opcode.text}) yields nothing but its result"
    if a.template is Opcode.SCATTER:
        return f"%{hero.name} (scatter) is complete only after its last update, so %{second.name} needs another kernel"
    return None


def _hero(node: HloInstruction) -> HloInstruction | None:
    """Return the instruction of a node for which there is a template, or None."""
    return next((i for i in instructions_of(node) if i.opcode in TEMPLATE_OPS), None)
