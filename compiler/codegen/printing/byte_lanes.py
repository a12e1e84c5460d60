"""The loads of bytes in short vector loops, which are widened before the loop.

gcc takes one number of lanes for a loop, that of its narrowest type: a loop of 16 iterations that reads bytes beside
floats gets vectors of two to four floats, since one of 64 bytes has more lanes than there are iterations. Copied to an
array of 32-bit integers by a loop that gcc writes out, the bytes are widened by one instruction, and all lanes of the
vector loop have 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.ir.types import PrimitiveType as T

COUNTS = (8, 16)
"""Numbers of iterations of the loops. gcc writes out loops of up to 16; shorter ones than 8 are not worth it."""
_BYTES = frozenset({T.PRED, T.S8, T.U8})


def byte_loads(loop: lir.For, types: Mapping[str, T]) -> dict[str, lir.Load]:
    """Return the loads of a loop that are to be widened before it, by the name that each defines.

    Args:
        loop: a loop that gcc vectorizes.
        types: element types of the buffers.
    """
    if loop.var.extent not in COUNTS or loop.base is not None or not loop.kind.is_vector or has_loop(loop.body):
        return {}
    if not any(isinstance(s, lir.Let) and s.type.bits == 32 for s in loop.body):
        return {}
    written = {s.buffer for s in walk(loop.body) if isinstance(s, lir.Store | lir.Update)}
    defined = {s.name for s in loop.body if isinstance(s, lir.Let)}
    loads = {s.name: s.value for s in loop.body if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)}
    return {
        name: load
        for name, load in loads.items()
        if types[load.buffer] in _BYTES
        and load.buffer not in written
        and load.offset.coefficient(loop.var) == 1
        and defined.isdisjoint(v.name for v in load.offset.variables())
    }
