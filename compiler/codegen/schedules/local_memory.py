"""The local arrays of kernels, which are on the stack of a thread or in the shared memory of a block."""

from __future__ import annotations

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.schedule import LOCAL_BYTES
from compiler.errors import UnsupportedError


def local_bytes(body: lir.Body) -> int:
    """Return the bytes of all local arrays of a nest."""
    return sum(s.size * SCALAR_BYTES[s.type] for s in walk(body) if isinstance(s, lir.LocalArray))


def check_local_bytes(body: lir.Body) -> None:
    """Raise UnsupportedError if the local arrays of a kernel need more than LOCAL_BYTES."""
    held = local_bytes(body)
    if held > LOCAL_BYTES:
        raise UnsupportedError(f"the kernel needs {held} bytes of local arrays, more than {LOCAL_BYTES}")
