"""Fused modules handed to stock XLA:CPU, which generates code for our fusions instead of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.xla.library import run, xla
from compiler.errors import UnsupportedError
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.computation import HloComputation
from compiler.passes.dots.outlining import outline

__all__ = ["DISABLED_PASSES", "FusedXlaProgram", "module_for_xla", "slow_in_xla", "xla_refusal"]

DISABLED_PASSES = "layout-assignment,convolution-canonicalization"
"""The passes of XLA that do not run on a fused module.

Layout assignment removes the layouts inside of fusions, which XLA's emitters need; ours are all row-major. The
canonicalization of convolutions relies on layout assignment.
"""
_REFUSED = {
    Opcode.GATHER: "XLA:CPU takes no general gather inside of a fusion",
    Opcode.DOT: "XLA:CPU takes no product inside of a fusion of kind kLoop",
    Opcode.CONVOLUTION: "XLA:CPU takes no convolution inside of a fusion of kind kLoop",
    Opcode.SCATTER: "XLA:CPU takes no scatter inside of a fusion of kind kLoop",
    Opcode.SORT: "XLA:CPU takes no sort inside of a fusion",
}


def xla_refusal(fusion: HloInstruction) -> str | None:
    """Return why XLA:CPU generates no code for one of our fusions, or None if it does."""
    if fusion.attributes["kind"] == "kCustom":
        return "XLA:CPU has no code for our fusions of kind kCustom (library calls, matrix products, attention)"
    body: HloComputation = fusion.attributes["calls"]
    if len({s.dimensions for s in fusion.shape.leaves()}) > 1:
        return "XLA:CPU generates no fusion whose outputs differ in shape"
    return next((_REFUSED[i.opcode] for i in body.instructions if i.opcode in _REFUSED), None)


def slow_in_xla(fusion: HloInstruction) -> str | None:
    """Return why XLA:CPU should not get one of our fusions, or None: no code for it, or code that repeats work."""
    body: HloComputation = fusion.attributes["calls"]
    repeated = next((i for i in body.instructions if i.opcode in _REPEATED and _feeds_more(i)), None)
    if repeated is not None:
        return f"XLA:CPU computes %{repeated.name} again for every element that uses it"
    return xla_refusal(fusion)


def _feeds_more(i: HloInstruction) -> bool:
    """Check whether an instruction is used in its fusion other than as a result."""
    return any(u.opcode is not Opcode.TUPLE or not u.is_root for u in i.users)


_REPEATED = (Opcode.REDUCE, Opcode.REDUCE_WINDOW, Opcode.DOT, Opcode.CONVOLUTION)


def module_for_xla(module: HloModule, refusal: Callable[[HloInstruction], str | None] = xla_refusal) -> HloModule:
    """Return a copy of a fused module that XLA:CPU accepts, with the same fusions where it has code for them.

    Fusions with a `refusal` are dissolved. Donations are dropped, because XLA would overwrite the arguments.

    Raises:
        UnsupportedError: a library call of the program needs column-major arrays, which only XLA's layout assignment
            makes.
    """
    found = module.clone()
    for entry in ("input_output_alias", "buffer_donor"):
        found.header.pop(entry, None)
    for computation in list(found.control_flow_computations()):
        for i in list(computation.instructions):
            if i.opcode is Opcode.FUSION and refusal(i) is not None:
                computation.replace_uses(i, computation.inline(i.attributes["calls"], i.operands))
                computation.remove(i)
        for i in list(computation.instructions):
            if i.opcode is Opcode.CUSTOM_CALL and any(s.layout is not None for s in i.shape.leaves()):
                raise UnsupportedError(
                    f"%{i.name} calls {i.attributes.get('custom_call_target')}, whose column-major arrays XLA makes "
                    "only in its layout assignment, and that removes the layouts inside of fusions"
                )
            if i.opcode is Opcode.DOT:
                _permute_dot_operands(computation, i)
        for i in list(computation.instructions):
            if i.opcode is Opcode.TRANSPOSE or _is_transposing(i):
                outline(computation, [i], "transpose").set_attribute("kind", "kLoop")
        for i in computation.instructions:
            if i.opcode is Opcode.FUSION:
                _adapt(i.attributes["calls"])
    found.remove_unreachable()
    found.reorder()
    return found


def _permute_dot_operands(computation: HloComputation, dot: HloInstruction) -> None:
    """Transpose the operands of a dot to batch, rows, contracted and batch, contracted, columns, as XLA would."""
    for number, side in enumerate(("lhs", "rhs")):
        operand = dot.operands[number]
        batch = dot.attributes.get(f"{side}_batch_dims", ())
        contracted = dot.attributes.get(f"{side}_contracting_dims", ())
        free = [d for d in range(operand.shape.rank) if d not in batch and d not in contracted]
        order = (*batch, *free, *contracted) if side == "lhs" else (*batch, *contracted, *free)
        if order == tuple(range(operand.shape.rank)):
            continue
        shape = operand.shape.with_dimensions(tuple(operand.shape.dimensions[d] for d in order))
        moved = computation.add(Opcode.TRANSPOSE, [operand], shape, dimensions=order)
        dot.replace_operand(number, moved)
        dot.set_attribute(f"{side}_batch_dims", tuple(order.index(d) for d in batch))
        dot.set_attribute(f"{side}_contracting_dims", tuple(order.index(d) for d in contracted))


def _is_transposing(i: HloInstruction) -> bool:
    """Check for a broadcast that only permutes dimensions."""
    return (
        i.opcode is Opcode.BROADCAST
        and bool(i.shape.dimensions)
        and len(i.operands[0].shape.dimensions) == i.shape.rank
    )


def _adapt(body: HloComputation) -> None:
    """Rewrite what XLA:CPU expands outside of fusions only, and make every layout row-major."""
    for i in list(body.instructions):
        if i.opcode is Opcode.LOGISTIC:
            body.replace(i, _expanded_logistic(body, i))
        elif i.opcode is Opcode.TRANSPOSE:
            # XLA's way through MLIR turns a transpose into a change of layout, but not a broadcast of higher rank.
            dimensions = tuple(1 + int(d) for d in np.argsort(i.attributes["dimensions"]))
            shape = i.shape.with_dimensions((1, *i.shape.dimensions))
            longer = body.add(Opcode.BROADCAST, [i.operands[0]], shape, dimensions=dimensions)
            body.replace(i, body.add(Opcode.RESHAPE, [longer], i.shape.without_layout()))
    body.reorder()


def _expanded_logistic(body: HloComputation, i: HloInstruction) -> HloInstruction:
    constant = body.add_constant(np.ones((), i.shape.dtype), "one")
    one = body.add(Opcode.BROADCAST, [constant], i.shape, dimensions=())
    exponential = body.add(Opcode.EXPONENTIAL, [body.add(Opcode.NEGATE, [i.operands[0]])])
    return body.add(Opcode.DIVIDE, [one, body.add(Opcode.ADD, [one, exponential])])


class FusedXlaProgram:
    """A fused module that XLA:CPU compiled as it is; XLA adds fusions of its own around ours.

    Args:
        text: HLO text, such as `str(module_for_xla(exe.module))`.

    Attributes:
        text: the HLO after XLA's passes.

    Raises:
        BackendError: jaxlib is missing, or XLA refuses the program; the message gives its first line.
    """

    def __init__(self, text: str) -> None:
        self._loaded = xla().compile(text, DISABLED_PASSES)
        self.text = str(self._loaded.hlo_modules()[0].to_string())

    def __call__(self, *arrays: NDArray[Any]) -> Sequence[NDArray[Any]]:
        """Run the program and return the leaves of its result in order."""
        return [np.asarray(o) for o in run(self._loaded, [xla().put(np.asarray(a)) for a in arrays])]
