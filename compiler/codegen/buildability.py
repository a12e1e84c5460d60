"""Buildability: whether an instruction or a fused computation can become a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET, BuildTarget
from compiler.codegen.lowering.emission import STATEMENT_LIMIT
from compiler.codegen.lowering.lower import lower, roots_of
from compiler.codegen.lowering.plain_reductions import is_certainly_built
from compiler.codegen.nest.scalar_ops import is_supported_type, is_value_type, scalar_op_of
from compiler.codegen.templates.convolutions import convolution_refusal
from compiler.codegen.templates.dots import dot_refusal
from compiler.codegen.templates.products import ACCUMULATED_IN
from compiler.codegen.templates.running import running_refusal
from compiler.codegen.templates.scatter import scatter_refusal
from compiler.codegen.templates.tile_products import SUMMED_IN
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

FUSIBLE_STRUCTURE = frozenset(
    {
        Opcode.CONSTANT, Opcode.IOTA, Opcode.PARAMETER, Opcode.BROADCAST, Opcode.RESHAPE, Opcode.BITCAST,
        Opcode.TRANSPOSE, Opcode.SLICE, Opcode.REVERSE, Opcode.CONCATENATE, Opcode.PAD, Opcode.DYNAMIC_SLICE,
        Opcode.DYNAMIC_UPDATE_SLICE, Opcode.GATHER, Opcode.REDUCE, Opcode.MAP, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT,
    }
)  # fmt: skip
"""Opcodes that a kernel can contain besides the elementwise ones."""


_COMPUTING = frozenset({Opcode.IOTA, Opcode.REDUCE, Opcode.MAP, Opcode.BITCAST})
"""Opcodes of FUSIBLE_STRUCTURE that kernels have only for the types with which they compute."""


def is_emittable(i: HloInstruction) -> bool:
    """Check whether a kernel can contain this instruction, judging by its opcode and element types alone."""
    if i.opcode not in FUSIBLE_STRUCTURE and not _has_expression(i):
        return False
    leaves = [s for o in (i, *i.operands) for s in o.shape.leaves()]
    types = {s.element_type for s in leaves}
    if not all(map(is_value_type, types)) or any(s.is_dynamic for s in leaves):
        return False
    if i.opcode in _COMPUTING and not all(map(is_supported_type, types)):
        return False
    return i.opcode is not Opcode.CONSTANT or i.shape.num_elements == 1


def _has_expression(i: HloInstruction) -> bool:
    """Check whether an elementwise op has a scalar expression for its types."""
    try:
        scalar_op_of(i)
    except UnsupportedError:
        return False
    return True


def node_refusal(node: HloInstruction, target: BuildTarget = C_TARGET) -> str | None:
    """Return why no kernel can contain this instruction, or None when one can; a fusion is judged by its members."""
    inside = node.attributes["calls"].instructions if node.opcode is Opcode.FUSION else (node,)
    for i in inside:
        if i.opcode in TEMPLATE_OPS:
            refusal = _template_refusal(i, target)
            if refusal is not None:
                return refusal
        elif not is_emittable(i):
            return f"%{i.name}: no kernel can contain {i.opcode.text} of type {i.shape}"
    return None


def _template_refusal(i: HloInstruction, target: BuildTarget) -> str | None:
    """Return why no generated kernel of an op with a template could compute other ops too, or None."""
    if i.opcode is Opcode.REDUCE_WINDOW and not i.shape.is_array:
        return running_refusal(i)
    for s in (i.shape, *(o.shape for o in i.operands)):
        if s.is_tuple or s.is_dynamic or not is_supported_type(s.element_type):
            return f"%{i.name}: a {i.opcode.text} of type {i.shape} has no kernel that computes other ops too"
    language = target.printer
    needed = {
        Opcode.DOT: language.products, Opcode.CONVOLUTION: language.products, Opcode.SORT: language.sorts,
        Opcode.REDUCE_WINDOW: language.scans,
    }  # fmt: skip
    has_kernel = needed.get(i.opcode, True)
    if not has_kernel:
        return f"%{i.name}: {language.name} has no generated kernel for a {i.opcode.text}, into which others could go"
    summed_in = SUMMED_IN if language.tiles else ACCUMULATED_IN
    if i.opcode is Opcode.DOT:
        return dot_refusal(i, summed_in)
    if i.opcode is Opcode.CONVOLUTION:
        return convolution_refusal(i, summed_in)
    if i.opcode is Opcode.REDUCE_WINDOW:
        return running_refusal(i)
    return scatter_refusal(i) if i.opcode is Opcode.SCATTER else None


def is_refused(fused: HloComputation, target: BuildTarget = C_TARGET) -> bool:
    """Check whether `kernel_refusal` has a reason; for plain reductions without lowering the computation.

    Args:
        fused: a computation whose instructions can be in a kernel, each by itself.
        target: what the kernel is built for.
    """
    built = certainly_built(fused.post_order(), roots_of(fused), target)
    return kernel_refusal(fused, target) is not None if built is None else not built


def certainly_built(
    inside: Sequence[HloInstruction], outputs: Sequence[HloInstruction], target: BuildTarget
) -> bool | None:
    """Return whether instructions can be one kernel of a target; None if only lowering shows it."""
    on_gpu = target.language == CUDA_TARGET.language
    return is_certainly_built(inside, outputs, target.schedule if on_gpu else None)


def kernel_refusal(fused: HloComputation, target: BuildTarget = C_TARGET) -> str | None:
    """Return why this fused computation cannot be one kernel of a target, or None when it can.

    The kernel is made and discarded, so the answer is that of the code generator itself; it is only lowered where the
    language knows that nothing after lowering can fail.
    """
    if len(fused) > STATEMENT_LIMIT:
        return f"more than {STATEMENT_LIMIT} instructions"
    language, schedule = target.printer, target.schedule
    try:
        kernel = lower(fused, schedule, language.tiles, is_trial=True)
        if language.check is None:
            language.print_kernel(language.bind(kernel, schedule), "k")
        else:
            language.check(kernel, schedule)
    except UnsupportedError as e:
        return str(e)
    return None
