"""Which values of a kernel are numbers of a narrow float type already, so that storing them needs no rounding.

f16 and bf16 are computed in float. A value that is only read, selected or negated has not left its type: rounding it
would cost several instructions per element, more than all others of a pad, a transpose or a maximum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_NARROW = (T.F16, T.BF16)
_CHOOSING = frozenset({Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.CLAMP, Opcode.COPY, Opcode.NEGATE, Opcode.ABS})
"""Ops whose result is an operand, up to its sign."""


def narrow_values(kernel: lir.Kernel) -> frozenset[tuple[str, T]]:
    """Return the names of the values, accumulators and local arrays that hold numbers of a narrow type, with the type.

    A local array that anything but a `LocalStore`, a `TransposeTile` or a `RepeatElements` writes is not among them.
    """
    types = {a.name: a.type for a in kernel.arguments}
    if not any(t in _NARROW for t in types.values()):
        return frozenset()
    statements = list(walk(kernel.body))
    found = {(n, t) for s in statements for n in _defined_by(s) for t in _NARROW}
    found -= {(m.array, t) for s in statements if isinstance(s, lir.MatrixProduct) for m in s.matrices for t in _NARROW}
    while True:  # what a loop carries may depend on itself, so everything is narrow until the contrary is found
        wide = {
            (name, t)
            for s in statements
            for name in _defined_by(s)
            for t in _NARROW
            if not _is_narrow(s, t, found, types)
        }
        if found.isdisjoint(wide):
            return frozenset(found)
        found -= wide


def _defined_by(s: lir.Stmt) -> tuple[str, ...]:
    """Return the names to which a statement gives a value; any other definition makes no value narrow."""
    if isinstance(s, lir.LocalStore | lir.TransposeTile | lir.RepeatElements):
        return (s.array,)
    return (s.name,) if isinstance(s, lir.Let | lir.Accumulator | lir.Assign) else ()


def _is_narrow(s: lir.Stmt, t: T, found: set[tuple[str, T]], types: Mapping[str, T]) -> bool:
    """Check whether a statement gives a number of type `t`, if the names `found` hold such numbers."""
    if isinstance(s, lir.Accumulator):
        return (s.init, t) in found
    if isinstance(s, lir.Assign | lir.LocalStore):
        return (s.value, t) in found
    if isinstance(s, lir.RepeatElements):
        return (s.source, t) in found
    if isinstance(s, lir.TransposeTile):
        return types.get(s.buffer) is t
    if not isinstance(s, lir.Let):
        return False
    v = s.value
    if isinstance(v, lir.Load):
        return types.get(v.buffer) is t
    if isinstance(v, lir.PairHalf):
        return t is T.BF16
    if isinstance(v, lir.LocalLoad):
        return (v.array, t) in found
    if isinstance(v, lir.Current):
        return (v.name, t) in found
    if isinstance(v, lir.Constant):
        return s.type.is_float and _represents(v.value, t)
    if not isinstance(v, lir.Apply):
        return False
    if v.op.opcode is Opcode.CONVERT:
        return v.op.result is t and (v.op.type is not t or (v.args[0], t) in found)
    if v.op.opcode is Opcode.SELECT:
        return all((a, t) in found for a in v.args[1:])
    return v.op.opcode in _CHOOSING and v.op.type.is_float and all((a, t) in found for a in v.args)


def _represents(value: float, t: T) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.float64(t.dtype.type(value)) == np.float64(value))
