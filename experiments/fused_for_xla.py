"""Fused modules handed to stock XLA:CPU, which generates code for our fusions instead of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import BackendError, UnsupportedError
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.computation import HloComputation
from compiler.passes.dots.outlining import outline

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FusedXlaProgram", "module_for_xla", "xla_refusal"]

_DISABLED_PASSES = "layout-assignment,convolution-canonicalization"
"""XLA's layout assignment removes the layouts inside of fusions, which its emitters need. Ours are all row-major.

Convolutions are not canonicalized, because that relies on layout assignment.
"""
_REFUSED = {
    Opcode.GATHER: "XLA:CPU takes no general gather inside of a fusion",
}


def xla_refusal(fusion: HloInstruction) -> str | None:
    """Return why XLA:CPU generates no code for one of our fusions, or None if it does."""
    if fusion.attributes["kind"] == "kCustom":
        return "XLA:CPU has no code for our fusions of kind kCustom (library calls, matrix products, attention)"
    body: HloComputation = fusion.attributes["calls"]
    if len({s.dimensions for s in fusion.shape.leaves()}) > 1:
        return "XLA:CPU generates no fusion whose outputs differ in shape"
    return next((_REFUSED[i.opcode] for i in body.instructions if i.opcode in _REFUSED), None)


def module_for_xla(module: HloModule) -> HloModule:
    """Return a copy of a fused module that XLA:CPU accepts, with the same fusions where it has code for them.

    Fusions with an `xla_refusal` are dissolved. Donations are dropped, because XLA would overwrite the arguments.

    Raises:
        UnsupportedError: a library call of the program needs column-major arrays, which only XLA's layout assignment
            makes.
    """
    found = module.clone()
    for entry in ("input_output_alias", "buffer_donor"):
        found.header.pop(entry, None)
    for computation in list(found.control_flow_computations()):
        for i in list(computation.instructions):
            if i.opcode is Opcode.FUSION and xla_refusal(i) is not None:
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
                outline(computation, [i], "transpose").attributes["kind"] = "kLoop"
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
        dot.attributes[f"{side}_batch_dims"] = tuple(order.index(d) for d in batch)
        dot.attributes[f"{side}_contracting_dims"] = tuple(order.index(d) for d in contracted)


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
    """A module with fusions that XLA:CPU compiled.

    XLA adds fusions of its own around them.

    Args:
        text: HLO text, such as `str(module_for_xla(exe.module))`.

    Attributes:
        text: the HLO after XLA's passes.

    Raises:
        BackendError: jaxlib is missing, or XLA refuses the program; the message gives its first line.
    """

    def __init__(self, text: str) -> None:
        try:
            import jax
            from jax._src import xla_bridge
            from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name compiles HLO text
        except ImportError as error:
            raise BackendError("XLA is not installed here; pip install 'hlogym[jax]'") from error
        # Without this, programs that call LAPACK crash the process.
        importlib.import_module("jaxlib.cpu._lapack").initialize()
        self._jax = jax
        client: Any = xla_bridge.get_backend("cpu")
        self._device = client.devices()[0]
        options = _jax.CompileOptions()
        options.env_option_overrides = [("xla_disable_hlo_passes", _DISABLED_PASSES)]
        try:
            proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
            mlir = _jax.mlir.xla_computation_to_mlir_module(hlo.XlaComputation(proto))
            self._executable = client.compile_and_load(mlir, _jax.DeviceList((self._device,)), options)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"XLA refuses the program: {(str(error).splitlines() or ['?'])[0]}") from error
        self.text = str(self._executable.hlo_modules()[0].to_string())

    def __call__(self, *arrays: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        """Run the program and return the leaves of its result in order."""
        with self._jax.enable_x64(True):
            buffers = [self._jax.device_put(np.asarray(a), self._device) for a in arrays]
        shards = self._executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [np.asarray(s[0]) for s in shards]
